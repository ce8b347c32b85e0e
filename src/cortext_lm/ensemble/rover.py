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

from cortext_lm.ensemble.candidates import Weighted
from cortext_lm.ensemble.options import EnsembleOptions

MOST_HISTORIES = 256
"""Number of beginnings that the search with an n-gram keeps, the best ones.

The search is exact as long as there are no more.
"""


NULL = ""
"""The word that stands for no word."""


@dataclass(slots=True)
class Slot:
    """One position: the weight of each word there, and its weight times its confidence."""

    votes: dict[str, float] = field(default_factory=dict)
    sure: dict[str, float] = field(default_factory=dict)

    def add(self, word: str, weight: float, confidence: float = 0.0) -> None:
        """Add a vote.

        Args:
            word: The word, or `NULL` for none.
            weight: Weight of the vote.
            confidence: Confidence of the word, 0 to 1.
        """
        self.votes[word] = self.votes.get(word, 0.0) + weight
        self.sure[word] = self.sure.get(word, 0.0) + weight * confidence

    def confidence(self, word: str) -> float:
        """Return the mean confidence of the votes for the word."""
        return self.sure[word] / self.votes[word]


def build_network(candidates: Sequence[Weighted]) -> list[Slot]:
    """Return the transition network of weighted sentences.

    The votes of each slot add up to the sum of the weights. Sentences of equal weight keep their
    order, which decides ties of the alignment.
    """
    slots: list[Slot] = []
    before = 0.0
    for candidate in sorted(candidates, key=lambda candidate: -candidate.weight):
        slots = _merged(slots, candidate, before)
        before += candidate.weight
    return slots


def _merged(slots: list[Slot], candidate: Weighted, before: float) -> list[Slot]:
    """Return the network with one more sentence; `before` is the weight that is in it."""
    merged: list[Slot] = []
    for position, number in _align(slots, candidate.words, before):
        slot = Slot({NULL: before}, {NULL: 0.0}) if position is None else slots[position]
        if position is None and not before:
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
    """Return pairs (slot, word) along a cheapest path.

    None stands for the word of a slot left out, and for the slot of a word that needs a new one.

    A new slot costs 1. A slot left out costs the share of its votes that are for a word. A word in
    a slot costs the share of the votes that are for others. Among equals a pair goes before a slot
    left out, and that before a new slot.
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
        """Return the state at the start of a sentence."""

    def score(self, state: Any, word: str) -> tuple[float, Any]:
        """Return the natural-log probability of a word, and the state after it."""

    def end(self, state: Any) -> float:
        """Return the natural-log probability of the sentence's end."""


def word_scores(slot: Slot, options: EnsembleOptions) -> dict[str, float]:
    """Return the score of each word of a slot; that of `NULL` is the score of no word.

    The score is alpha * share of the votes + (1 - alpha) * mean confidence of these votes (Fiscus'
    frequency of occurrence and mean confidence). `NULL` has the confidence `null_confidence`, and
    its score is multiplied by `null_weight`.
    """
    total = sum(slot.votes.values())
    scores = {}
    for word, votes in slot.votes.items():
        confidence = options.null_confidence if word == NULL else slot.confidence(word)
        score = options.alpha * votes / total + (1 - options.alpha) * confidence
        scores[word] = score * options.null_weight if word == NULL else score
    return scores


def vote(slots: Sequence[Slot], options: EnsembleOptions) -> tuple[str, ...]:
    """Return the word with the highest score of each slot, without `NULL`.

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

    The sentence's end is included. Scores of a slot are made to add up to 1. Of prefixes with equal
    n-gram states the best is kept.

    Args:
        slots: Transition network (`build_network`).
        options: `lm_weight`, `word_score`, and those of `word_scores`.
        lm: The n-gram.
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
    """Return the logarithms of the scores, which are made to add up to 1.

    A score of 0 counts as 1e-12.
    """
    scores = {word: max(score, 1e-12) for word, score in word_scores(slot, options).items()}
    total = sum(scores.values())
    return {word: math.log(score / total) for word, score in scores.items()}
