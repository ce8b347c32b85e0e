"""The reference search: CTC prefix beam search over a lexicon tree with an n-gram.

It is the oracle of the faster engines.

The search space: a sentence w1 ... wn is read from a sequence of one token per frame by the rules
of CTC (repeats joined, then blanks removed) if what remains is

    SIL* pron(w1) SIL* pron(w2) ... SIL* pron(wn) SIL*

with any pronunciation of each word. SIL may stand before, between and after words any number of
times and is never required (unless `sil_required` asks for one between words); entering a word
directly after the last phoneme of another costs `sil_cost`, the start and the end of the sentence
cost nothing. Two equal phonemes that meet at a word boundary need a blank (or SIL) between them, as
within a word. A word counts when its last phoneme is there; a sentence ends only between words.

SIL stands here for what the inventory has between words, a silence or a boundary. An inventory
with neither has nothing there: the sentence is read if what remains is

    pron(w1) pron(w2) ... pron(wn)

and entering a word costs nothing; `sil_cost` and `sil_required` do not apply. Equal phonemes that
meet still need a blank between them.

With an open vocabulary (a language model of characters) the words of this page are the tokens
themselves, the separator among them, so nothing stands between these words.
`cortext.decoding.open_vocabulary` makes text of them.

A path is one token per frame, read as words in one way (`AA B` may be two ways to read one
sentence, as where one word has the pronunciations `AA` and `AA B`). Its score is the sum of
`cortext.decoding.nbest.Hypothesis.score`, with

    acoustic: sum of log-probabilities - log(blank_penalty) per blank
              - prior_weight * log(label prior) per token + log weight of each pronunciation
    ngram:    log p(w1 ... wn </s>) + unk_score for each word that the n-gram does not know
              (such a word has the n-gram's `<unk>` probability)
    sil:      -sil_cost for each boundary between words without SIL

The score of a *sentence* joins all its paths: the log
of the sum of their exponentials (`logadd`) or their maximum (`max`). `cortext.decoding.sentences`
computes it, so a reported score is exact and does not depend on the beam; the beam decides which
sentences are found. Log-probabilities below `FLOOR` count as `FLOOR`, so that every sentence that
fits into the frames has a finite score. In frames that are passed over (`blank_skip`) the blank is
the only token.

Hypotheses are kept apart by their whole history of words, so joining never mixes sentences and
`history_words` changes nothing. For pruning only, the score of an unfinished word includes the best
it can still get: the best unigram (and word score) below its node.

Graves et al., Connectionist Temporal Classification, ICML 2006; Hannun et al., First-Pass Large
Vocabulary Continuous Speech Recognition using Bi-Directional Recurrent DNNs, arXiv 1408.2873
(prefix beam search).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from cortext._native import NGram, State
from cortext.decoding.options import DecoderOptions
from cortext.decoding.sentences import boundary_cost
from cortext.text.inventory import Inventory
from cortext.text.lexicon import Lexicon

FLOOR = -1000.0
"""Natural-log probability below which all are alike, minus infinity included."""

MAX_REMEMBERED = 1_000_000
"""Scored words that a graph remembers before it forgets all (about 200 bytes each)."""

ROOT = 0
_NEG_INF = -math.inf


@dataclass(slots=True)
class LexiconTree:
    """The lexicon as a prefix tree: words that begin alike share their first phonemes.

    Node 0 is the root; every other node is one phoneme after its parent.

    Attributes:
        children: Children of each node, by token number.
        words: Words whose pronunciation ends at each node, with the log of its weight.
    """

    children: list[dict[int, int]] = field(default_factory=lambda: [{}])
    words: list[list[tuple[str, float]]] = field(default_factory=lambda: [[]])

    @classmethod
    def of(cls, lexicon: Lexicon, inventory: Inventory) -> LexiconTree:
        """Return the tree of all pronunciations of a lexicon in the token numbers of an inventory.

        Homophones share a node.
        """
        tree = cls()
        for word in lexicon:
            for phonemes, weight in zip(
                lexicon.pronunciations(word), lexicon.weights(word), strict=True
            ):
                node = ROOT
                for phoneme in phonemes:
                    node = tree._child(node, inventory.index[phoneme])
                tree.words[node].append((word, math.log(weight)))
        return tree

    def __len__(self) -> int:
        return len(self.children)

    def _child(self, node: int, token: int) -> int:
        child = self.children[node].get(token)
        if child is None:
            child = self.children[node][token] = len(self.children)
            self.children.append({})
            self.words.append([])
        return child


Scored = tuple[float, State]
"""Score that a word adds after a state of the n-gram, and the state after the word."""


class History:
    """The words of a hypothesis so far, as a linked list; one object per word sequence of a search.

    Attributes:
        state: The n-gram's state after them.
        next: Scores of words after that state, as far as they are known (shared by all histories
            with that state).
    """

    __slots__ = ("length", "next", "parent", "state", "word")

    def __init__(
        self, parent: History | None, word: str, state: State, following: dict[str, Scored]
    ) -> None:
        self.parent = parent
        self.word = word
        self.state = state
        self.next = following
        self.length: int = parent.length + 1 if parent else 0

    def words(self) -> list[str]:
        """Return the words, first to last."""
        backwards = []
        history = self
        while history.parent is not None:
            backwards.append(history.word)
            history = history.parent
        return backwards[::-1]


Key = tuple[History, int, int]
"""A hypothesis: its words, its node in the tree and the token of the last frame.

That token is the blank or the node's phoneme. CTC needs it: the same phoneme is a new label after a
blank and a repeat after itself. Histories are compared by identity; there is one object for each
sequence of words.
"""

Arc = tuple[int | None, float, tuple[tuple[str, float, float], ...]]
"""A step by one token from a node of the tree.

The next node (None at a leaf) and the change of the look-ahead on the way there; the words that end
with the token, each with the score of leaving the tree (n-gram and word score come on top) and an
upper bound on all of it.
"""


class Graph:
    """The lexicon tree with its arcs by token, and one more node, `after_word`.

    `after_word` stands directly after a word, without SIL yet: entering the next word from there
    costs `sil_cost`. The graph also caches the scores of words after states of the n-gram, from
    one utterance to the next.
    """

    def __init__(
        self, tree: LexiconTree, ngram: NGram, options: DecoderOptions, inventory: Inventory
    ) -> None:
        self.blank = inventory.blank
        self.after_word = len(tree)
        self.ngram = ngram
        self.options = options
        self._tree = tree
        self._following: dict[State, dict[str, Scored]] = {}
        self._n_scored = 0
        self._ahead = self._look_ahead()
        self.arcs: list[dict[int, Arc]] = [
            {token: self._arc(node, child) for token, child in children.items()}
            for node, children in enumerate(tree.children)
        ]
        cost = boundary_cost(options, inventory)
        direct = {} if cost == math.inf else self.arcs[ROOT]
        self.arcs.append(
            {
                token: (
                    node,
                    gain - cost,
                    tuple([(word, ends - cost, most - cost) for word, ends, most in words]),
                )
                for token, (node, gain, words) in direct.items()
            }
        )
        if (sil := inventory.sil) is not None:
            for node in (ROOT, self.after_word):
                self.arcs[node][sil] = (ROOT, 0.0, ())

    def history(self, parent: History | None, word: str, state: State) -> History:
        """Return the history after `parent` and `word`.

        Args:
            parent: The history before the word; None for the start of a sentence.
            word: The last word; empty for the start of a sentence.
            state: The n-gram's state after the word.
        """
        return History(parent, word, state, self._following.setdefault(state, {}))

    def score(self, history: History, word: str) -> Scored:
        """Score a word after a history whose `next` does not hold it yet."""
        if self._n_scored >= MAX_REMEMBERED:
            self._following.clear()
            self._n_scored = 0
        self._n_scored += 1
        log_prob, state = self.ngram.score(history.state, word)
        scored = history.next[word] = self._word_score(word, log_prob), state
        return scored

    def _arc(self, node: int, child: int) -> Arc:
        words = []
        for word, log_weight in self._tree.words[child]:
            ends = self.options.acoustic_scale * log_weight - self._ahead[node]
            # A log-probability is at most 0: 0 in the n-gram's place bounds the score from above.
            words.append((word, ends, ends + self._word_score(word, 0.0)))
        return (
            child if self._tree.children[child] else None,
            self._ahead[child] - self._ahead[node],
            tuple(words),
        )

    def _word_score(self, word: str, log_prob: float) -> float:
        unknown = 0.0 if word in self.ngram else self.options.unk_score
        return self.options.lm_weight * (log_prob + unknown) + self.options.word_score

    def _look_ahead(self) -> list[float]:
        """Return for each node the best that the words strictly below it can add, by unigrams.

        The n-gram scores a word only when it ends. Without a guess before, unfinished words look
        better than finished ones, and the beam drops what has just been scored. 0 for the root.
        """
        tree = self._tree
        ahead = [_NEG_INF] * len(tree)
        for node in reversed(range(len(tree))):  # children have higher numbers than their parents
            for child in tree.children[node].values():
                ahead[node] = max(ahead[node], ahead[child])
                for word, log_weight in tree.words[child]:
                    own = self._word_score(word, self.ngram.unigram(word))
                    ahead[node] = max(ahead[node], own + self.options.acoustic_scale * log_weight)
        ahead[ROOT] = 0.0
        return [0.0 if value == _NEG_INF else value for value in ahead]


def scaled(log_probs_PV: np.ndarray, options: DecoderOptions, inventory: Inventory) -> np.ndarray:
    """Return the score that each token adds to a path in each frame.

    Args:
        log_probs_PV: Float [P, V], natural-log probabilities.
        options: Options of the search: scale, blank penalty, label priors and `blank_skip`.
        inventory: Tokens of the columns, in order.

    Returns:
        float64 [P, V]; -inf for all tokens but the blank in frames that are passed over.
    """
    scores_PV = np.maximum(log_probs_PV.astype(np.float64), FLOOR)
    blank = inventory.blank
    # Judged by the model's own probability: with the default penalty of 32 no blank would be sure.
    passed_over_P = (
        np.exp(scores_PV[:, blank]) >= options.blank_skip
        if options.blank_skip < 1
        else np.zeros(len(scores_PV), dtype=bool)
    )
    scores_PV[:, blank] -= math.log(options.blank_penalty)
    for symbol, prior in dict(options.label_priors).items():
        scores_PV[:, inventory.index[symbol]] -= options.prior_weight * math.log(prior)
    scores_PV *= options.acoustic_scale
    only_blank_V = np.arange(scores_PV.shape[1]) != blank
    scores_PV[np.ix_(passed_over_P, only_blank_V)] = _NEG_INF
    return scores_PV


class ReferenceSearch:
    """The search through one utterance, frame by frame."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._options = graph.options
        self._join = _log_add if graph.options.recombine == "logadd" else _maximum
        self._longer: dict[tuple[History, str], History] = {}
        start = graph.history(None, "", graph.ngram.begin())
        self._live: list[tuple[Key, float]] = [((start, ROOT, graph.blank), 0.0)]

    def advance(self, scores_PV: np.ndarray) -> None:
        """Take in frames of `scaled` scores."""
        for scores_V in scores_PV:
            self._live = self._prune(self._extend(scores_V.tolist()))

    def _extend(self, scores: list[float]) -> dict[Key, float]:
        """Return the continuations of the live hypotheses by one frame, with their joined scores.

        Those that cannot survive the frame are left out where that is known early.
        """
        table: dict[Key, float] = {}
        self._stay(scores, table)
        blank = self._graph.blank
        least = self._least(table)
        tokens = sorted(
            [
                (score, token)
                for token, score in enumerate(scores)
                if token != blank and score > _NEG_INF
            ],
            reverse=True,
        )
        for number, (key, score) in enumerate(self._live, start=1):
            if tokens:
                self._move(key, score, tokens, least - score, table)
            # The best hypotheses come first, so that the threshold rises early. It sorts the whole
            # table, so it is found again only after 4, 8, 16, ... hypotheses.
            if number & (number - 1) == 0 and number >= 4:
                least = self._least(table)
        return table

    def _stay(self, scores: list[float], table: dict[Key, float]) -> None:
        """Let every live hypothesis go on with the blank or repeat its last token."""
        join = self._join
        blank = self._graph.blank
        for key, score in self._live:
            history, node, last = key
            join(table, (history, node, blank), score + scores[blank])
            if last != blank and scores[last] > _NEG_INF:
                join(table, key, score + scores[last])

    def _move(
        self,
        key: Key,
        score: float,
        tokens: list[tuple[float, int]],
        least: float,
        table: dict[Key, float],
    ) -> None:
        """Let one hypothesis take each token that the tree allows.

        Args:
            key: The hypothesis.
            score: Its score before the frame.
            tokens: Score and number of each token of the frame, best first.
            least: Continuations that add less than this are left out.
            table: Continuations so far and their scores; new ones are joined.
        """
        join = self._join
        graph = self._graph
        after_word = self._graph.after_word
        history, node, last = key
        arcs = graph.arcs[node]
        for added, token in tokens:
            if added < least:
                break
            if token == last or token not in arcs:
                continue
            child, gain, words = arcs[token]
            if child is not None and added + gain >= least:
                join(table, (history, child, token), score + added + gain)
            for word, ends, bound in words:
                if added + bound < least:
                    continue
                gain, state = history.next.get(word) or graph.score(history, word)
                if added + ends + gain >= least:
                    longer = self._longer.get((history, word))
                    if longer is None:
                        longer = self._longer[history, word] = graph.history(history, word, state)
                    join(table, (longer, after_word, token), score + added + ends + gain)

    def _least(self, table: dict[Key, float]) -> float:
        """Return the lowest score with which a hypothesis survives the frame.

        At most `max_active` hypotheses within the beam survive, and at least `min_active` where
        there are that many. More continuations can only raise the score, so a hypothesis that is
        below it half-way through a frame can be dropped.
        """
        options = self._options
        if len(table) <= options.min_active:
            return _NEG_INF
        values = sorted(table.values(), reverse=True)
        least = min(values[0] - options.beam, values[options.min_active - 1])
        return (
            max(least, values[options.max_active - 1])
            if len(values) > options.max_active
            else least
        )

    def _prune(self, table: dict[Key, float]) -> list[tuple[Key, float]]:
        """Return the survivors, best first."""
        least = self._least(table)
        live = [item for item in table.items() if item[1] >= least]
        live.sort(key=itemgetter(1), reverse=True)
        return live[: self._options.max_active]

    def finish(self) -> list[tuple[float, History]]:
        """Return the sentences that the utterance may be, with the search's own score, best first.

        If no live hypothesis stands between words, the unfinished words are dropped.
        """
        between = (ROOT, self._graph.after_word)
        live = [item for item in self._live if item[0][1] in between] or self._live
        table: dict[History, float] = {}
        for (history, _, _), score in live:
            self._join(table, history, score)
        weight = self._options.lm_weight
        ended = [
            (score + weight * self._graph.ngram.end(history.state), history)
            for history, score in table.items()
        ]
        return sorted(ended, key=itemgetter(0), reverse=True)

    def partial(self) -> tuple[list[str], list[str]]:
        """Return the words that all live hypotheses share, and the best one's words after them."""
        histories = list(dict.fromkeys(key[0] for key, _ in self._live))
        best = histories[0]
        shared = histories[0]
        for history in histories[1:]:
            shared = _common(shared, history)
        words = best.words()
        return words[: shared.length], words[shared.length :]


def _common(one: History, other: History) -> History:
    """Return the longest history that both begin with."""
    while one is not other:
        if one.length < other.length:
            one, other = other, one
        assert one.parent is not None
        one = one.parent
    return one


Join = Callable[[dict, object, float], None]


def _log_add(table: dict, key: object, score: float) -> None:
    """Join a path with those of the same key by the sum of their probabilities."""
    known = table.get(key)
    if known is None:
        table[key] = score
    elif known >= score:
        table[key] = known + math.log1p(math.exp(score - known))
    else:
        table[key] = score + math.log1p(math.exp(known - score))


def _maximum(table: dict, key: object, score: float) -> None:
    """Join a path with those of the same key by keeping the better."""
    known = table.get(key)
    if known is None or score > known:
        table[key] = score
