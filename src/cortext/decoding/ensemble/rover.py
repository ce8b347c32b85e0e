"""ROVER: a word transition network, and votes over it, alone or together with an n-gram.

Sentences are aligned word by word, so that they can vote at every position. After Fiscus, "A
post-processing system to yield reduced word error rates: Recognizer Output Voting Error Reduction
(ROVER)", ASRU 1997, with the costs of a confusion network: a word and a position differ by the
share of the weight so far that has another word there, so that a position's majority counts for
more than its odd words. Sentences come in the order of their weights, the heaviest first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cortext.decoding.ensemble.candidates import Weighted
from cortext.decoding.ensemble.options import EnsembleOptions

MOST_HISTORIES = 256
"""So many of the best beginnings are kept in the search with an n-gram.

Fewer histories make it exact.
"""


NULL = ""
"""The word that stands for none."""


@dataclass(slots=True)
class Slot:
    """One position: the weight of each word there, and its weight times its confidence."""

    votes: dict[str, float] = field(default_factory=dict)
    sure: dict[str, float] = field(default_factory=dict)

    def add(self, word: str, weight: float, confidence: float = 0.0) -> None:
        """A vote more."""
        self.votes[word] = self.votes.get(word, 0.0) + weight
        self.sure[word] = self.sure.get(word, 0.0) + weight * confidence

    def confidence(self, word: str) -> float:
        """Mean confidence of those who vote for the word."""
        return self.sure[word] / self.votes[word]


def build_network(candidates: Sequence[Weighted]) -> list[Slot]:
    """The network of weighted sentences. The votes of each slot add up to the sum of the weights.

    Equal weights keep their order, by which ties of the alignment are decided.
    """
    slots: list[Slot] = []
    before = 0.0
    for candidate in sorted(candidates, key=lambda candidate: -candidate.weight):
        slots = _merged(slots, candidate, before)
        before += candidate.weight
    return slots


def _merged(slots: list[Slot], candidate: Weighted, before: float) -> list[Slot]:
    """The network with one sentence more; `before` is the weight that is in it."""
    merged: list[Slot] = []
    for place, number in _align(slots, candidate.words, before):
        slot = Slot({NULL: before}, {NULL: 0.0}) if place is None else slots[place]
        if place is None and not before:
            slot = Slot()
        if number is None:
            slot.add(NULL, candidate.weight)
        else:
            slot.add(candidate.words[number], candidate.weight, candidate.confidences[number])
        merged.append(slot)
    return merged


def _align(
    slots: Sequence[Slot], words: Sequence[str], total: float
) -> list[tuple[int | None, int | None]]:
    """Pairs (slot, word) along a cheapest path.

    None is a slot without a word or a word without a slot.

    A new slot costs 1, leaving a slot out the share of its votes that are for a word, and a word in
    a slot the share of the votes that are for others. Among equals a pair goes before a slot left
    out, and that before a new slot.
    """
    n_slots, n_words = len(slots), len(words)
    skip = [1 - slot.votes.get(NULL, 0.0) / total for slot in slots]
    costs = [[float(j) for j in range(n_words + 1)]]
    for i, slot in enumerate(slots):
        above = costs[-1]
        row = [costs[-1][0] + skip[i]]
        pair = [1 - slot.votes.get(word, 0.0) / total for word in words]
        for j in range(n_words):
            row.append(min(above[j] + pair[j], above[j + 1] + skip[i], row[j] + 1))
        costs.append(row)
    path: list[tuple[int | None, int | None]] = []
    i, j = n_slots, n_words
    while i or j:
        # Costs are sums of shares in different orders: rounding must not decide a tie.
        cost = costs[i][j] + 1e-9
        if (
            i
            and j
            and costs[i - 1][j - 1] + 1 - slots[i - 1].votes.get(words[j - 1], 0.0) / total <= cost
        ):
            i, j = i - 1, j - 1
            path.append((i, j))
        elif i and costs[i - 1][j] + skip[i - 1] <= cost:
            i -= 1
            path.append((i, None))
        else:
            j -= 1
            path.append((None, j))
    return path[::-1]


class Ngram(Protocol):
    """The interface of an n-gram model; `cortext.decoding.ngram.LanguageModel` has it.

    Equal states score alike.
    """

    def begin(self) -> Any:
        """The state at the start of a sentence."""

    def score(self, state: Any, word: str) -> tuple[float, Any]:
        """Natural-log probability of a word, and the state after it."""

    def end(self, state: Any) -> float:
        """Natural-log probability of the sentence's end."""


def word_scores(slot: Slot, options: EnsembleOptions) -> dict[str, float]:
    """Score of each word of a slot, for `NULL` of having none.

    Fiscus' frequency of occurrence and mean confidence.

    alpha * share of the votes + (1 - alpha) * mean confidence of these votes; that of NULL is
    `null_confidence`, and its score is multiplied by `null_weight`.
    """
    total = sum(slot.votes.values())
    scores = {}
    for word, votes in slot.votes.items():
        confidence = options.null_confidence if word == NULL else slot.confidence(word)
        score = options.alpha * votes / total + (1 - options.alpha) * confidence
        scores[word] = score * options.null_weight if word == NULL else score
    return scores


def vote(slots: Sequence[Slot], options: EnsembleOptions) -> tuple[str, ...]:
    """Return the words with the highest scores.

    Of words with equal scores the first one wins, which is from the sentence with more weight.
    """
    chosen = []
    for slot in slots:
        scores = word_scores(slot, options)
        highest = max(scores.values()) - 1e-9
        chosen.append(next(word for word, score in scores.items() if score >= highest))
    return tuple(word for word in chosen if word != NULL)


def vote_with_lm(slots: Sequence[Slot], options: EnsembleOptions, lm: Ngram) -> tuple[str, ...]:
    """Return the words w with the highest sum of log(score) + lm_weight * log P(w) + word_score.

    The sentence's end is included. Scores of a slot are made to add up to 1. Prefixes with equal
    n-gram states are joined.
    """
    known: dict[tuple[Any, str], tuple[float, Any]] = {}
    beginnings: dict[Any, tuple[float, tuple[str, ...]]] = {lm.begin(): (0.0, ())}
    for slot in slots:
        longer: dict[Any, tuple[float, tuple[str, ...]]] = {}
        shares = _log_shares(slot, options)
        for state, (score, words) in beginnings.items():
            for word, log_share in shares.items():
                total = score + log_share
                after = state
                text = words
                if word != NULL:
                    if (state, word) not in known:
                        known[state, word] = lm.score(state, word)
                    log_prob, after = known[state, word]
                    total = total + options.lm_weight * log_prob + options.word_score
                    text = (*words, word)
                if after not in longer or total > longer[after][0] + 1e-9:
                    longer[after] = (total, text)
        best = sorted(longer.items(), key=lambda item: -item[1][0])[:MOST_HISTORIES]
        beginnings = dict(best)
    ends = [
        (score + options.lm_weight * lm.end(state), words)
        for state, (score, words) in beginnings.items()
    ]
    return max(ends, key=lambda end: end[0])[1]


def _log_shares(slot: Slot, options: EnsembleOptions) -> dict[str, float]:
    """Logarithms of the scores, which are made to add up to 1.

    A score of 0 counts as next to nothing.
    """
    scores = {word: max(score, 1e-12) for word, score in word_scores(slot, options).items()}
    total = sum(scores.values())
    return {word: math.log(score / total) for word, score in scores.items()}
