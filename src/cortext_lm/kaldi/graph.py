"""The words of a compiled decoding graph (`TLG.fst`) of a 1-gram model.

Kaldi composes CTC's rules (T), the lexicon (L) and the grammar (G) into one transducer. Its input
labels are tokens, counted from 1 in the order of the published language models; its output labels
are words. Under a 1-gram all words begin in the same state, so each path from there to a state that
begins words again spells one word: its phonemes, and the sum of its weights, -ln p. In a graph of a
higher order a path meets a second word first, because a word leads to the state of its history.

CTC's rules add paths that spell the same: a token may repeat, and blanks may stand anywhere. One
path is left of them when loops are dropped, and blanks are followed only where nothing else leads
to the next token.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from cortext.decoding.ngram.vocabulary import LN10
from cortext.errors import LanguageModelError
from cortext.text.inventory import LM, SIL
from cortext.text.lexicon import CODE_OF, Lexicon, decode
from cortext_lm.kaldi.grammar import NGrams, Words
from cortext_lm.kaldi.openfst import Fst

ANOTHER = (
    "get the n-gram model itself: cortext fetch lm-5gram OUT, or cortext lm build TEXT --out OUT"
)
MOST_STEPS_PER_ARC = 8
"""A graph of 126,000 words takes 1.4 steps for each of its 770,000 arcs, where prefixes are
shared."""
SAME = 0.01
"""Costs of pronunciations that differ by less are the same: Kaldi rounds each arc's to 1/1024."""
_LONGEST_PATH = 5000  # arcs; CTC takes four for a phoneme
_START_LOG10_PROB = -99.0  # of <s>, which is never asked for
_EPSILON = 0
_SILENCE = 1 + LM.index[SIL]
_CODES = ["", *(CODE_OF.get(symbol, "") for symbol in LM.symbols)]
_CODES[_SILENCE] = " "
"""A character for each input label: phonemes as a lexicon writes them, a blank for silence."""


@dataclass(frozen=True)
class GraphWords:
    """The words of a graph.

    Attributes:
        names: Words, and `<s>` and `</s>`.
        unigrams: Their probabilities.
        lexicon: Their pronunciations; a less probable one has a weight below 1.
    """

    names: list[str]
    unigrams: NGrams
    lexicon: Lexicon


def read_graph(fst: Fst, words: Words, path: Path) -> GraphWords:
    """Return the words of a 1-gram's compiled graph.

    Args:
        fst: The graph, with vector states as `read_fst` gives it.
        words: The words of its output labels.
        path: File of the graph, for errors.

    Raises:
        LanguageModelError: For a graph of a higher order, and for one that is no decoding graph.
    """
    graph = _PlainGraph(fst, words, path)
    costs: dict[int, dict[str, float]] = {}
    for word, code, cost in graph.paths():
        known = costs.setdefault(word, {})
        known[code] = min(cost, known.get(code, np.inf))
    if not costs:
        raise graph.error("spells no word", "give a TLG.fst with its own words.txt")
    cost_W = [min(spelt.values()) for spelt in costs.values()]
    if min(*cost_W, graph.end_cost) < -SAME:
        raise graph.error("has a word of a probability above 1", ANOTHER)
    lexicon = Lexicon()
    for word, spelt in costs.items():
        best = min(spelt.values())
        for code, cost in spelt.items():
            if code:
                weight = 1.0 if cost - best < SAME else max(float(np.exp(best - cost)), 1e-12)
                lexicon.add(words.names[word], decode(code), weight)
    numbers = [*costs, words.begin, words.end]
    cost_N = np.array([*cost_W, -_START_LOG10_PROB * LN10, graph.end_cost])
    log10_prob = np.minimum(-cost_N / LN10, 0.0)
    unigrams = NGrams(
        np.arange(len(numbers), dtype=np.int32)[:, None], log10_prob, np.zeros(len(numbers))
    )
    return GraphWords([words.names[number] for number in numbers], unigrams, lexicon)


class _PlainGraph:
    """The arcs of a graph without CTC's loops and blanks, in lists that Python walks fast."""

    def __init__(self, fst: Fst, words: Words, path: Path) -> None:
        self.path = path
        self.words = words
        self.start = fst.start
        self.final = fst.final
        if not len(fst.weights):
            raise self.error("has no arcs", "copy or download it again")
        if not np.isfinite(fst.weights).all():
            raise self.error("has arcs of infinite weight", "copy or download it again")
        if int(fst.inputs.max()) > len(LM):
            raise self.error(
                f"has input labels up to {fst.inputs.max()}; the {len(LM)} tokens are needed",
                "give a graph of the published phonemes",
            )
        if int(fst.outputs.max()) >= len(words.names):
            raise self.error(
                "has labels beyond the words of words.txt", "use the words.txt of the same folder"
            )
        sources = fst.sources
        loops = sources == fst.targets
        blanks = fst.inputs == 1 + LM.blank
        # By CTC's exact rules a phoneme leads to the next one directly, too. The blank alone is
        # followed there, which leads to the same places. WeNet's rules have blanks in loops only.
        by_blank = np.zeros(len(fst.final), dtype=bool)
        by_blank[sources[blanks & ~loops]] = True
        kept = ~loops & (blanks == by_blank[sources])
        self.sources = sources[kept]
        self.inputs = np.where(blanks, _EPSILON, fst.inputs)[kept]
        self.targets = fst.targets[kept]
        no_words = (words.begin, words.end, words.backoff)
        self.outputs = np.where(np.isin(fst.outputs, no_words), _EPSILON, fst.outputs)[kept]
        self.weights = fst.weights[kept].astype(np.float64)
        self.first = np.searchsorted(self.sources, np.arange(len(fst.final) + 1))

    def error(self, problem: str, fix: str) -> LanguageModelError:
        return LanguageModelError(problem, where=self.path, fix=fix)

    def closure(self, state: int) -> dict[int, float]:
        """Return the states that no token parts from a state, with what leads there costs."""
        costs = {state: 0.0}
        waiting = [state]
        while waiting:
            source = waiting.pop()
            for arc in range(self.first[source], self.first[source + 1]):
                target = int(self.targets[arc])
                if self.inputs[arc] == _EPSILON and target not in costs:
                    costs[target] = costs[source] + float(self.weights[arc])
                    waiting.append(target)
        return costs

    @cached_property
    def n_phonemes(self) -> np.ndarray:
        """Number of arcs with a phoneme that leave each state, int64 [S]."""
        spoken = (self.inputs != _EPSILON) & (self.inputs != _SILENCE)
        return np.bincount(self.sources[spoken], minlength=len(self.final))

    def spoken(self, state: int) -> frozenset[tuple[int, int]]:
        """Return phoneme and target of each arc with a phoneme that leaves a state."""
        arcs = range(self.first[state], self.first[state + 1])
        pairs = ((int(self.inputs[arc]), int(self.targets[arc])) for arc in arcs)
        return frozenset(pair for pair in pairs if pair[0] not in (_EPSILON, _SILENCE))

    @cached_property
    def begin(self) -> tuple[int, float]:
        """State in which words begin, after a silence if there may be one, and the cost of the end.

        Before the silence, words cost what it costs to leave it out.
        """
        around = self.closure(self.start)
        state = max(around, key=lambda one: int(self.n_phonemes[one]))
        arcs = np.arange(self.first[state], self.first[state + 1])
        silent = (self.inputs[arcs] == _SILENCE) & (self.outputs[arcs] == _EPSILON)
        for target in self.targets[arcs[silent]][:1].tolist():
            after = self.closure(target)
            same = [one for one in after if self.spoken(one) == self.spoken(state)]
            if same:
                state, around = same[0], after
        ends = [
            cost + float(self.final[one])
            for one, cost in around.items()
            if self.final[one] < np.inf
        ]
        if not self.n_phonemes[state] or not ends:
            raise self.error(
                "has no state in which words begin and sentences end", "give a TLG.fst of Kaldi"
            )
        return state, min(ends)

    @property
    def end_cost(self) -> float:
        """Cost of the end of a sentence, -ln p."""
        return self.begin[1]

    def paths(self) -> list[tuple[int, str, float]]:
        """Return word, pronunciation and cost of each path from the begin to where words begin.

        A pronunciation is a lexicon's code, empty for a word that is all silence.
        """
        begin, _ = self.begin
        like_begin = self.spoken(begin)
        alike = np.flatnonzero(self.n_phonemes == len(like_begin)).tolist()
        begins = {state for state in alike if self.spoken(state) == like_begin}
        first, targets = self.first.tolist(), self.targets.tolist()
        inputs, outputs, weights = (
            array.tolist() for array in (self.inputs, self.outputs, self.weights)
        )
        paths_found: list[tuple[int, str, float]] = []
        n_steps = 0
        most_steps = 1_000_000 + MOST_STEPS_PER_ARC * len(targets)
        # One entry for each arc of the path: the arcs still to follow, and the words read before.
        path = [(iter(range(first[begin], first[begin + 1])), 0, "", 0.0)]
        while path:
            arcs, word, code, cost = path[-1]
            arc = next(arcs, None)
            if arc is None:
                path.pop()
                continue
            n_steps += 1
            if n_steps > most_steps or len(path) > _LONGEST_PATH:
                raise self._not_1gram("paths without an end")
            if outputs[arc]:
                if word:
                    raise self._not_1gram("two words on a path")
                word = outputs[arc]
            state, code, cost = targets[arc], code + _CODES[inputs[arc]], cost + weights[arc]
            if state not in begins:
                path.append((iter(range(first[state], first[state + 1])), word, code, cost))
            elif word:
                paths_found.append((word, self._checked(code), cost))
            elif code.strip():
                raise self._not_1gram("phonemes without a word")
        return paths_found

    def _checked(self, code: str) -> str:
        """Return a pronunciation without the silence around it."""
        spelt = code.strip(" ")
        if " " in spelt:
            raise self._not_1gram("a silence within a word")
        return spelt

    def _not_1gram(self, part: str) -> LanguageModelError:
        return self.error(f"is no graph of a 1-gram model: it has {part}", ANOTHER)
