"""Minimum Bayes risk: of the candidates the one with the fewest word errors to be expected.

Stolcke, Konig and Weintraub, "Explicit word error minimization in n-best list rescoring",
Eurospeech 1997.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import Levenshtein

from cortext.decoding.ensemble.candidates import Weighted

_TIE = 1e-9


def risks(texts: Sequence[Sequence[str]], candidates: Sequence[Weighted]) -> np.ndarray:
    """Expected word edit distance of each text from what was said, if the candidates' weights
    were its probabilities.

    Returns float64 [len(texts)].
    """
    codes: dict[str, int] = {}
    coded = [_coded(words, codes) for words in texts]
    others = [_coded(candidate.words, codes) for candidate in candidates]
    distances = process.cdist(coded, others, scorer=Levenshtein.distance, dtype=np.int32)
    risk: np.ndarray = distances @ np.array([candidate.weight for candidate in candidates])
    return risk


def least_risk(candidates: Sequence[Weighted]) -> int:
    """Number of the candidate with the least risk; the first of equals."""
    risk = risks([candidate.words for candidate in candidates], candidates)
    return int(np.argmax(risk <= risk.min() + _TIE))


def _coded(words: Sequence[str], codes: dict[str, int]) -> str:
    """A letter for every word, so that distances of strings are distances in words."""
    numbers = (codes.setdefault(word, len(codes)) for word in words)
    return "".join(
        chr(number if number < 0xD800 else number + 0x800) for number in numbers
    )  # past the surrogates
