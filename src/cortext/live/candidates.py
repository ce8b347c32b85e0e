"""Candidate sentences as the published protocol sends them, with those made by exchanging words.

The format and the exchange follow language_model/language-model-standalone.py of the public NEJM 2024 release.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cortext.decoding.options import DecoderOptions, NBest
from cortext.text.metrics import align


@dataclass(frozen=True)
class Candidate:
    """A sentence and its scores, natural logs; `total` is the one that ranks."""

    sentence: str
    acoustic: float
    ngram: float
    llm: float
    total: float


def candidates_of(nbest: NBest) -> list[Candidate]:
    """The candidates of a search, best first."""
    return [
        Candidate(found.text, found.acoustic_score, found.lm_score, found.llm_score or 0.0, found.score)
        for found in nbest
    ]


def augmented(
    candidates: Sequence[Candidate], options: DecoderOptions, top: int, penalty_fraction: float
) -> list[Candidate]:
    """The candidates, and those that come of two of the best `top` exchanging one word; best first.

    Two sentences of equal length exchange the words in which they differ, one at a time. What comes of it has the
    mean of their scores, less a fraction of its size.
    """
    known = {candidate.sentence for candidate in candidates}
    made: list[Candidate] = []
    best = [(candidate, candidate.sentence.split()) for candidate in candidates[:top]]
    for place, (left, left_words) in enumerate(best):
        for right, right_words in best[place + 1 :]:
            if len(left_words) != len(right_words):
                continue
            for sentence in _exchanged(left_words, right_words):
                if sentence not in known:
                    known.add(sentence)
                    made.append(_between(sentence, left, right, options, penalty_fraction))
    return sorted([*candidates, *made], key=lambda candidate: -candidate.total)  # stable: found before made


def _exchanged(left: list[str], right: list[str]) -> Iterable[str]:
    """Both sentences, with one of the words in which they differ taken from the other."""
    at_left = at_right = 0
    for ours, theirs in align(left, right):
        if ours is not None and theirs is not None and ours != theirs:
            yield " ".join([*left[:at_left], theirs, *left[at_left + 1 :]])
            yield " ".join([*right[:at_right], ours, *right[at_right + 1 :]])
        at_left += ours is not None
        at_right += theirs is not None


def _between(sentence: str, left: Candidate, right: Candidate, options: DecoderOptions, fraction: float) -> Candidate:
    def mean(one: float, other: float) -> float:
        middle = (one + other) / 2
        return middle - fraction * abs(middle)

    def rest(candidate: Candidate) -> float:
        return candidate.total - options.acoustic_scale * candidate.acoustic - options.lm_weight * candidate.ngram

    acoustic, ngram = mean(left.acoustic, right.acoustic), mean(left.ngram, right.ngram)
    total = options.acoustic_scale * acoustic + options.lm_weight * ngram + (rest(left) + rest(right)) / 2
    return Candidate(sentence, acoustic, ngram, (left.llm + right.llm) / 2, total)


def scoring(candidates: Sequence[Candidate]) -> str:
    """The candidates as one text: sentence;acoustic;ngram;llm;total, joined by `;`.

    Clients sort by the total, in an order of their own where two are equal; so that the best stays the best, equal
    totals are told apart in the last digit. A sentence holds no `;`.
    """
    parts: list[str] = []
    last = math.inf
    for candidate in candidates:
        last = min(candidate.total, math.nextafter(last, -math.inf))
        numbers = (candidate.acoustic, candidate.ngram, candidate.llm, last)
        parts += [plain(candidate.sentence), *(repr(float(number)) for number in numbers)]
    return ";".join(parts)


def plain(sentence: str) -> str:
    """A sentence without the sign that separates."""
    return sentence.replace(";", ",")
