"""A word transition network.

Sentences aligned word by word, so that they can vote at every position.

After Fiscus, "A post-processing system to yield reduced word error rates: Recognizer Output Voting
Error Reduction (ROVER)", ASRU 1997, with the costs of a confusion network: a word and a position
differ by the share of the weight so far that has another word there, so that a position's majority
counts for more than its odd words. Sentences come in the order of their weights, the heaviest
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cortext.decoding.ensemble.candidates import Weighted

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
        above, row = costs[-1], [costs[-1][0] + skip[i]]
        pair = [1 - slot.votes.get(word, 0.0) / total for word in words]
        for j in range(n_words):
            row.append(min(above[j] + pair[j], above[j + 1] + skip[i], row[j] + 1))
        costs.append(row)
    path: list[tuple[int | None, int | None]] = []
    i, j = n_slots, n_words
    while i or j:
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
