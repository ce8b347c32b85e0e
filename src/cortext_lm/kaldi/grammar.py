"""The n-grams of a Kaldi grammar: a back-off model as an acceptor, as arpa2fst writes it.

A state is a history; an arc with a word is an n-gram and weighs `-ln p`; an arc without one is the
back-off to a shorter history; a final weight is the n-gram that ends in `</s>`. A word arc leads to
the state of the longest history that its n-gram ends in. States that only back off are not always
kept; they are folded into the arcs that lead there, as arpa2fst itself does, which changes no
sentence's score.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cortext.decoding.ngram.vocabulary import LN10, MAX_ORDER
from cortext.errors import LanguageModelError
from cortext_lm.kaldi.openfst import Fst

_START_LOG10_PROB = -99.0  # of <s>, which is never asked for
_EPSILON = 0


@dataclass(frozen=True, slots=True)
class Words:
    """The words of `words.txt`: names by number, and the numbers of `<s>`, `</s>` and `#0`.

    The number of `#0` is -1 if it is absent.
    """

    names: list[str]
    begin: int
    end: int
    backoff: int


@dataclass(frozen=True, slots=True, eq=False)
class NGrams:
    """The n-grams of one order.

    Word numbers int32 [N, order], log10 probability and log10 back-off float64 [N].
    """

    words: np.ndarray
    log10_prob: np.ndarray
    log10_backoff: np.ndarray


def read_ngrams(fst: Fst, words: Words, path: Path) -> tuple[list[str], list[NGrams]]:
    """Return the vocabulary of a grammar with `<s>` and `</s>`, and its n-grams, shortest first.

    Args:
        fst: The grammar.
        words: The words of its labels.
        path: File of the grammar, for errors.

    Raises:
        LanguageModelError: If the transducer is not a back-off n-gram model over `words`; it names
            `path`.
    """
    return _Grammar(fst, words, path).ngrams()


class _Grammar:
    """A back-off acceptor, and the history of each of its states.

    Attributes:
        sources, labels, weights, targets: The arcs with words.
        backoff, backoff_to: Weight and target of each state's back-off; -1 where it has none.
        level: Number of words of a state's history; -1 where it is unknown.
        parent, word: The state of the history without its last word, and that word.
    """

    def __init__(self, fst: Fst, words: Words, path: Path) -> None:
        self.path = path
        self.words = words
        self.start = fst.start
        self.final = fst.final.copy()
        if len(fst.outputs) and max(int(fst.outputs.max()), int(fst.inputs.max())) >= len(
            words.names
        ):
            raise self.error(
                "has labels beyond the words of words.txt", "use the words.txt of the same folder"
            )
        self._take_arcs(fst)
        self._fold_bare_states()
        self._find_histories()
        self._check_histories()

    def error(
        self, problem: str, fix: str = "give the G.fst that Kaldi's arpa2fst made"
    ) -> LanguageModelError:
        return LanguageModelError(problem, where=self.path, fix=fix)

    def _take_arcs(self, fst: Fst) -> None:
        """Sort arcs into words, back-offs, `<s>` and `</s>`.

        A grammar may lack arcs of the last two: `</s>` may be in the final weights.
        """
        sources = fst.sources
        targets = fst.targets
        weights = fst.weights
        labels = fst.outputs
        backs = (labels == _EPSILON) | (labels == self.words.backoff)
        if (fst.inputs[~backs] != labels[~backs]).any() or not np.isin(
            fst.inputs[backs], (_EPSILON, self.words.backoff)
        ).all():
            raise self.error("has arcs with different words on their two sides; it is no acceptor")
        if len(np.unique(sources[backs])) != np.count_nonzero(backs):
            raise self.error("has states with more than one back-off; it is no n-gram model")
        self.backoff_to = np.full(len(self.final), -1, dtype=np.int32)
        self.backoff = np.zeros(len(self.final), dtype=np.float64)
        self.backoff_to[sources[backs]] = targets[backs]
        self.backoff[sources[backs]] = weights[backs]
        ends = labels == self.words.end
        begins = labels == self.words.begin
        self.final[sources[ends]] = weights[ends] + fst.final[targets[ends]]
        self.final[targets[ends]] = np.inf
        if begins.any():
            self.start = int(targets[begins][0])
        spoken = ~(backs | ends | begins)
        self.sources = sources[spoken]
        self.targets = targets[spoken]
        self.labels = labels[spoken]
        self.weights = weights[spoken].astype(np.float64)

    def _fold_bare_states(self) -> None:
        """Lead arcs past the states that only back off."""
        bare = np.isinf(self.final) & (self.backoff_to >= 0)
        bare[self.sources] = False
        bare[self.start] = False
        for _ in range(MAX_ORDER + 1):
            arcs = np.flatnonzero(bare[self.targets])
            backs = np.flatnonzero((self.backoff_to >= 0) & bare[self.backoff_to])
            if not len(arcs) and not len(backs):
                return
            passed = self.targets[arcs]
            self.weights[arcs] += self.backoff[passed]
            self.targets[arcs] = self.backoff_to[passed]
            passed = self.backoff_to[backs]
            self.backoff[backs] += self.backoff[passed]
            self.backoff_to[backs] = self.backoff_to[passed]
        raise self.error("backs off in a circle; it is no n-gram model")

    def _find_histories(self) -> None:
        """Spread from the empty history and `<s>`, level by level.

        All states of a level are reached from the level before. So a state that an arc of a level
        reaches first is new, and its history is one word longer than that of the arc's source.
        """
        empty = self.start
        for _ in range(MAX_ORDER):
            empty = int(self.backoff_to[empty]) if self.backoff_to[empty] >= 0 else empty
        if self.backoff_to[empty] >= 0:
            raise self.error(
                "has no state of the empty history to back off to; it is no n-gram model"
            )
        self.level, self.parent, self.word = (
            np.full(len(self.final), -1, dtype=np.int32) for _ in range(3)
        )
        self.level[empty] = 0
        if self.start != empty:
            self.level[self.start] = 1
            self.parent[self.start] = empty
            self.word[self.start] = self.words.begin
        for level in range(MAX_ORDER + 1):
            arcs = np.flatnonzero(
                (self.level[self.sources] == level) & (self.level[self.targets] < 0)
            )
            reached = self.targets[arcs]
            if len(np.unique(reached)) != len(reached):
                raise self.error(
                    "has a state that several histories lead to; it is no n-gram model"
                )
            self.level[reached] = level + 1
            self.parent[reached] = self.sources[arcs]
            self.word[reached] = self.labels[arcs]
        if (self.level > MAX_ORDER).any():
            raise self.error(
                f"has an order above the highest supported, {MAX_ORDER}", "build a lower order"
            )

    def _histories(self, states: np.ndarray, length: int) -> np.ndarray:
        """Return the last `length` words of the histories of `states`, int32 [states, length]."""
        words = np.empty((len(states), length), dtype=np.int32)
        for column in reversed(range(length)):
            words[:, column] = self.word[states]
            states = self.parent[states]
        return words

    def _check_histories(self) -> None:
        """Raise unless arcs and back-offs lead to histories that end the words before them."""
        for level in range(int(self.level.max()) + 1):
            states = np.flatnonzero((self.level == level) & (self.backoff_to >= 0))
            self._check_ends(self._histories(states, level), self.backoff_to[states], level - 1)
            arcs = np.flatnonzero(self.level[self.sources] == level)
            self._check_ends(self._ngrams(arcs, level), self.targets[arcs], level + 1)
            pairs = self.sources[arcs].astype(np.int64) * len(self.words.names) + self.labels[arcs]
            if len(np.unique(pairs)) != len(pairs):
                raise self.error("has two arcs with one word from a state; it is no n-gram model")

    def _check_ends(self, words: np.ndarray, states: np.ndarray, longest: int) -> None:
        """Check that the words read end in `states`: histories of at most `longest` words."""
        levels = self.level[states]
        if len(states) and not (levels.min() >= 0 and levels.max() <= longest):
            raise self.error("has arcs to histories that are too long; it is no n-gram model")
        for level in range(1, longest + 1):
            rows = np.flatnonzero(levels == level)
            if (
                self._histories(states[rows], level) != words[rows, words.shape[1] - level :]
            ).any():
                raise self.error(
                    "has arcs that lead to another history than they spell; it is no n-gram model"
                )

    def _ngrams(self, arcs: np.ndarray, level: int) -> np.ndarray:
        return np.column_stack([self._histories(self.sources[arcs], level), self.labels[arcs]])

    def ngrams(self) -> tuple[list[str], list[NGrams]]:
        """Return the vocabulary and the n-grams, shortest first."""
        order = 1 + int(
            self.level[
                np.concatenate([self.sources, np.flatnonzero(np.isfinite(self.final))])
            ].max()
        )
        if order > MAX_ORDER:
            raise self.error(
                f"has order {order}, above the highest supported, {MAX_ORDER}",
                "build a lower order",
            )
        levels = [self._of_level(level) for level in range(order)]
        labels = levels[0].words[:, 0]
        number = np.full(len(self.words.names), -1, dtype=np.int32)
        number[labels] = np.arange(len(labels))
        numbered = [
            NGrams(number[level.words], level.log10_prob, level.log10_backoff) for level in levels
        ]
        if any((level.words < 0).any() for level in numbered):
            raise self.error("has n-grams of words that have no 1-gram; it is no n-gram model")
        return [self.words.names[label] for label in labels], numbered

    def _of_level(self, level: int) -> NGrams:
        """Return the n-grams of the histories of one level, with the numbers of `words.txt`."""
        arcs = np.flatnonzero(self.level[self.sources] == level)
        ends = np.flatnonzero((self.level == level) & np.isfinite(self.final))
        closing = np.column_stack(
            [self._histories(ends, level), np.full(len(ends), self.words.end, dtype=np.int32)]
        )
        targets = self.targets[arcs]
        own = (self.parent[targets] == self.sources[arcs]) & (self.level[targets] == level + 1)
        backoffs = np.where(own, self.backoff[targets], 0.0)
        ngrams = [self._ngrams(arcs, level), closing]
        costs = [self.weights[arcs], self.final[ends]]
        backs = [backoffs, np.zeros(len(ends))]
        if level == 0:  # <s> is a context, never a word
            ngrams.append(np.array([[self.words.begin]], dtype=np.int32))
            costs.append(np.array([-_START_LOG10_PROB * LN10]))
            backs.append(np.array([self.backoff[self.start] if self.level[self.start] else 0.0]))
        return NGrams(
            np.concatenate(ngrams), -np.concatenate(costs) / LN10, -np.concatenate(backs) / LN10
        )
