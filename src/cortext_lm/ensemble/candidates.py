"""The candidate sentences of several systems for one trial, and their weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import Levenshtein

from cortext.arguments import check_list
from cortext.errors import DecodingError
from cortext.evaluation.nbest_file import TrialKey
from cortext.text.language import EN, Language
from cortext_lm.ensemble.options import EnsembleOptions


@dataclass(frozen=True, slots=True)
class Candidate:
    """One sentence of one system.

    Attributes:
        words: Words, normalised as they are scored.
        score: Natural log, comparable within the system's list only; None where it has none.
        confidences: Confidence of each word, 0 to 1; None where the system gives none.
    """

    words: tuple[str, ...]
    score: float | None = None
    confidences: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Candidates:
    """Sentences of several systems for one trial.

    Attributes:
        systems: Each system's list of sentences, best first.
        id: Name of the trial: its row of `predictions.csv`, or the `id` of its line.
        reference: Sentence to be decoded; None where it is unknown.
        degraded: One line that names what a system's list lacks, such as a large model's scores;
            None where nothing is missing.
        language: Normalisation of the sentences.
    """

    systems: tuple[tuple[Candidate, ...], ...]
    id: int | str = 0
    session: str | None = None
    block: int | None = None
    trial: int | None = None
    reference: str | None = None
    degraded: str | None = None
    language: Language = EN

    @classmethod
    def of(
        cls,
        texts: Iterable[str],
        *,
        id: int | str = 0,
        reference: str | None = None,
        language: Language = EN,
    ) -> Candidates:
        """Return the candidates of a trial in which each system has one sentence.

        Args:
            texts: The sentence of each system; it is normalised here.
            id: Name of the trial.
            reference: Sentence to be decoded; None where it is unknown.
            language: Normalisation of the sentences.
        """
        return cls(
            tuple(
                (Candidate(tuple(language.normalize(text).split())),)
                for text in check_list(texts, "texts", "a list of sentences")
            ),
            id,
            reference=reference,
            language=language,
        )

    @property
    def key(self) -> TrialKey:
        """The fields that name its trial in `nbest.jsonl`."""
        return self.id, self.session, self.block, self.trial

    @property
    def reference_words(self) -> tuple[str, ...] | None:
        """Normalised words of the reference; None where it is unknown."""
        if self.reference is None:
            return None
        return tuple(self.language.normalize(self.reference).split())

    @property
    def best(self) -> tuple[tuple[str, ...], ...]:
        """Each system's best sentence."""
        return tuple(system[0].words for system in self.systems)


@dataclass(frozen=True, slots=True)
class Weighted:
    """A sentence that one or more systems have.

    Their weights are added up, and their confidences averaged by weight.
    """

    words: tuple[str, ...]
    weight: float
    confidences: tuple[float, ...]


def sentence_of(words: Sequence[str], language: Language = EN) -> str:
    """Return the sentence that normalising turns into these words.

    The words come from normalising. The benchmark's drops a hyphen before a blank, and a blank
    before an apostrophe, so the sentence has one more of each there.
    """
    text = " ".join(words)
    return text.replace("- ", "-- ").replace(" '", "  '") if language.is_benchmark else text


def weighted(candidates: Candidates, options: EnsembleOptions) -> list[Weighted]:
    """Return the distinct sentences with their weights, which add up to 1.

    They come in the order of the systems and their lists. Scores of different systems lie on
    different scales, so each list becomes a probability distribution of its own (`list_shares`).
    The systems' weights mix these distributions. A word without a confidence has 1.

    Raises:
        DecodingError: For a system without a sentence, or a number of weights that is not that of
            the systems.
    """
    weights = _system_weights(candidates, options)
    shares: dict[tuple[str, ...], float] = {}
    sums: dict[tuple[str, ...], list[float]] = {}
    for system, weight in zip(candidates.systems, weights, strict=True):
        chosen = system[: options.taken]
        for candidate, share in zip(chosen, list_shares(chosen, options.score_scale), strict=True):
            words = candidate.words
            part = weight * share
            confidences = candidate.confidences or (1.0,) * len(words)
            shares[words] = shares.get(words, 0.0) + part
            old = sums.get(words, [0.0] * len(words))
            sums[words] = [
                total + part * confidence
                for total, confidence in zip(old, confidences, strict=True)
            ]
    return [
        Weighted(words, share, tuple(total / share for total in sums[words]))
        for words, share in shares.items()
        if share > 0
    ]


def list_shares(system: Sequence[Candidate], score_scale: float) -> list[float]:
    """Return the probability of each sentence of a list: the softmax of its scaled scores.

    Without any score, or with a scale of 0, all sentences are equal. Where only some sentences have
    a score, the others are impossible.
    """
    scores = [candidate.score for candidate in system]
    known = [score for score in scores if score is not None]
    if not known or not score_scale:
        return [1 / len(system)] * len(system)
    best = max(known)
    raised = [0.0 if score is None else math.exp(score_scale * (score - best)) for score in scores]
    total = sum(raised)
    return [value / total for value in raised]


def _system_weights(candidates: Candidates, options: EnsembleOptions) -> list[float]:
    n_systems = len(candidates.systems)
    if not n_systems or not all(candidates.systems):
        raise DecodingError(
            "a system without a sentence cannot be combined", where=f"trial {candidates.id}"
        )
    given = options.weights or (1.0,) * n_systems
    if len(given) != n_systems:
        raise DecodingError(
            f"{len(given)} weights for {n_systems} systems", where=f"trial {candidates.id}"
        )
    return [weight / sum(given) for weight in given]


_TIE = 1e-9


def risks(texts: Sequence[Sequence[str]], candidates: Sequence[Weighted]) -> np.ndarray:
    """Return the expected word edit distance of each text from the truth, float64 [len(texts)].

    The candidates' weights are taken for their probabilities. Minimum Bayes risk: Stolcke, Konig
    and Weintraub, "Explicit word error minimization in n-best list rescoring", Eurospeech 1997.
    """
    codes: dict[str, int] = {}
    coded = [_coded(words, codes) for words in texts]
    others = [_coded(candidate.words, codes) for candidate in candidates]
    distances = process.cdist(coded, others, scorer=Levenshtein.distance, dtype=np.int32)
    risk: np.ndarray = distances @ np.array([candidate.weight for candidate in candidates])
    return risk


def least_risk(candidates: Sequence[Weighted]) -> int:
    """Return the number of the candidate with the least risk; the first of equals."""
    risk = risks([candidate.words for candidate in candidates], candidates)
    return int(np.argmax(risk <= risk.min() + _TIE))


def _coded(words: Sequence[str], codes: dict[str, int]) -> str:
    """Return a string with a letter for every word: its distances are distances in words."""
    numbers = (codes.setdefault(word, len(codes)) for word in words)
    # Skip the surrogates (0xD800 to 0xDFFF), which are no characters.
    return "".join(chr(number if number < 0xD800 else number + 0x800) for number in numbers)
