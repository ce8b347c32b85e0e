"""Candidate sentences as the published protocol sends them.

The format is that of language_model/language-model-standalone.py of the public NEJM 2024 release.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cortext.decoding.options import Hypothesis


@dataclass(frozen=True)
class Candidate:
    """A sentence and its scores, natural logs; `total` is the one that ranks."""

    sentence: str
    acoustic: float
    ngram: float
    llm: float
    total: float


def candidates_of(hypotheses: Iterable[Hypothesis]) -> list[Candidate]:
    """The candidates of a search, in its order."""
    return [
        Candidate(found.text, found.acoustic_score, found.lm_score, _llm_score(found), found.score)
        for found in hypotheses
    ]


def _llm_score(found: Hypothesis) -> float:
    """What counted as the large model's.

    Of no words at all the n-gram's, and 0 where it ranked nothing.
    """
    if found.llm_score is not None:
        return found.llm_score
    return 0.0 if found.confidence is None else found.lm_score


def scoring(candidates: Sequence[Candidate]) -> str:
    """The candidates as one text: sentence;acoustic;ngram;llm;total, joined by `;`.

    Clients sort by the total, in an order of their own where two are equal; so that the best stays
    the best, equal totals are told apart in the last digit. A sentence holds no `;`.
    """
    parts: list[str] = []
    last = math.inf
    for candidate in candidates:
        last = min(candidate.total, math.nextafter(last, -math.inf))
        numbers = (candidate.acoustic, candidate.ngram, candidate.llm, last)
        parts += [
            without_separator(candidate.sentence),
            *(repr(float(number)) for number in numbers),
        ]
    return ";".join(parts)


def without_separator(sentence: str) -> str:
    """A sentence without the sign that separates."""
    return sentence.replace(";", ",")
