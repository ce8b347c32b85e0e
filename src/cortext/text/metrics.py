"""Error rates of words, characters and phonemes by edit distance, with bootstrap intervals.

The rates are those of the benchmark: substitutions, insertions and deletions of all trials over the
length of all references (not the mean of each trial's rate). Counts agree with jiwer's.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from rapidfuzz.distance import Levenshtein

from cortext.arguments import as_count, check_list, check_type
from cortext.describe import Described, with_interval
from cortext.errors import TextError
from cortext.text.language import EN, Language

Unit = Literal["word", "char", "phoneme"]
_DRAWS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class EditCounts:
    """Edits that turn the reference into the hypothesis, along one shortest path."""

    substitutions: int = 0
    insertions: int = 0
    deletions: int = 0
    reference_length: int = 0

    @property
    def errors(self) -> int:
        """Number of all edits."""
        return self.substitutions + self.insertions + self.deletions

    def __add__(self, other: EditCounts) -> EditCounts:
        return EditCounts(
            self.substitutions + other.substitutions,
            self.insertions + other.insertions,
            self.deletions + other.deletions,
            self.reference_length + other.reference_length,
        )


@dataclass(frozen=True, repr=False)
class ErrorRate(Described):
    """A corpus-level error rate with its bootstrap interval.

    `rate` is errors per unit of reference: 0.1 is 10 %, and values above 1 are possible. Rate and
    interval are None without trials, or with empty references only.
    """

    rate: float | None
    low: float | None
    high: float | None
    counts: EditCounts
    n_trials: int

    def _facts(self) -> dict[str, Any]:
        return {
            "rate": with_interval(self.rate, self.low, self.high) or "no references",
            "errors": self.counts.errors,
            "of": self.counts.reference_length,
            "trials": self.n_trials,
        }

    def _table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        counts = self.counts
        row = (counts.substitutions, counts.insertions, counts.deletions)
        return ("substitutions", "insertions", "deletions"), [row]


def edit_counts(
    reference: Sequence[Hashable] | np.ndarray, hypothesis: Sequence[Hashable] | np.ndarray
) -> EditCounts:
    """Count the edits between two sequences.

    Strings are compared by character, anything else element by element.
    """
    source, target = _plain(reference), _plain(hypothesis)
    tags = [edit.tag for edit in Levenshtein.editops(source, target)]
    return EditCounts(
        tags.count("replace"), tags.count("insert"), tags.count("delete"), len(source)
    )


def align(
    reference: Sequence[Any] | np.ndarray, hypothesis: Sequence[Any] | np.ndarray
) -> list[tuple[Any | None, Any | None]]:
    """Return pairs `(reference unit, hypothesis unit)` along a shortest edit path.

    None stands for a missing partner.
    """
    source, target = _plain(reference), _plain(hypothesis)
    pairs: list[tuple[Any | None, Any | None]] = []
    for op in Levenshtein.opcodes(source, target):
        left, right = source[op.src_start : op.src_end], target[op.dest_start : op.dest_end]
        if op.tag == "delete":
            pairs += [(unit, None) for unit in left]
        elif op.tag == "insert":
            pairs += [(None, unit) for unit in right]
        else:
            pairs += zip(left, right, strict=True)
    return pairs


def confusion(
    references: Sequence[Sequence[int] | np.ndarray],
    hypotheses: Sequence[Sequence[int] | np.ndarray],
    size: int,
) -> np.ndarray:
    """Count aligned pairs of token numbers.

    Args:
        references: Token numbers of each trial, 0 to size - 1.
        hypotheses: Decoded token numbers of each trial.
        size: V, number of tokens.

    Returns:
        Counts, int64 [V+1, V+1]: a row for each reference token, a column for each hypothesis
        token. The last row counts insertions, the last column deletions.

    Raises:
        TextError: For unequal numbers of trials.
    """
    _check_paired(references, hypotheses)
    size = as_count(size, "size", 1)
    counts = np.zeros((size + 1, size + 1), dtype=np.int64)
    for reference, hypothesis in zip(references, hypotheses, strict=True):
        for true, decoded in align(reference, hypothesis):
            counts[size if true is None else true, size if decoded is None else decoded] += 1
    return counts


def error_rate(
    references: Sequence[Any],
    hypotheses: Sequence[Any],
    unit: Unit = "word",
    n_boot: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
    language: Language = EN,
) -> ErrorRate:
    """Return the corpus-level error rate of one hypothesis per trial.

    Args:
        references: For unit "word" (WER) and "char" (CER) one sentence per trial, which is
            normalised here; for "phoneme" (PER) one sequence per trial of token numbers or symbols,
            without blanks. Characters are Unicode code points after NFC: a combining mark that
            NFC leaves apart counts as one, and so does a blank between words. Where each character
            is a word (`zh`), blanks do not count, and CER is WER.
        hypotheses: Decoded sentences, as many and of the same kind as the references.
        unit: "word", "char" or "phoneme".
        n_boot: Resamplings of whole trials, with replacement, for the percentile interval; 0
            leaves it out (None).
        confidence: Confidence level of the interval.
        seed: Seed of the resamplings.
        language: Normalisation of the sentences; English as the benchmark scores it by default.

    Raises:
        TextError: If the numbers of references and hypotheses differ or the unit is unknown.
    """
    _check_paired(references, hypotheses)
    n_boot = as_count(n_boot, "n_boot")
    seed = as_count(seed, "seed")
    if not isinstance(confidence, float) or not 0 < confidence < 1:
        raise TextError(f"confidence is {confidence!r}; a number between 0 and 1 is needed")
    trials = [
        edit_counts(_units(reference, unit, language), _units(hypothesis, unit, language))
        for reference, hypothesis in zip(references, hypotheses, strict=True)
    ]
    total = sum(trials, EditCounts())
    rate = total.errors / total.reference_length if total.reference_length else None
    errors_B = np.array([trial.errors for trial in trials], dtype=np.int64)
    length_B = np.array([trial.reference_length for trial in trials], dtype=np.int64)
    low, high = (
        bootstrap_interval(errors_B, length_B, n_boot, seed, confidence)
        if rate is not None
        else (None, None)
    )
    return ErrorRate(rate, low, high, total, len(trials))


def bootstrap_interval(
    errors_B: np.ndarray, length_B: np.ndarray, n_boot: int, seed: int, confidence: float
) -> tuple[float | None, float | None]:
    """Return the percentile interval of the pooled rate over resampled trials.

    Resamples without any reference are left out.

    Args:
        errors_B: int64 [B], errors of each trial.
        length_B: int64 [B], reference length of each trial.
        n_boot: Number of resamplings; 0 gives (None, None).
        seed: Seed of the resamplings.
        confidence: Confidence level, between 0 and 1.

    Returns:
        Lower and upper bound; None where there is no resample.
    """
    generator = np.random.default_rng(seed)
    n_trials = len(errors_B)
    per_chunk = max(1, _DRAWS_AT_ONCE // n_trials)
    rates: list[np.ndarray] = []
    for start in range(0, n_boot, per_chunk):
        drawn = generator.integers(0, n_trials, (min(per_chunk, n_boot - start), n_trials))
        length = length_B[drawn].sum(axis=1)
        rates.append(errors_B[drawn].sum(axis=1)[length > 0] / length[length > 0])
    pooled = np.concatenate(rates) if rates else np.empty(0)
    if not pooled.size:
        return None, None
    low, high = np.quantile(pooled, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _units(trial: Any, unit: Unit, language: Language) -> Any:
    if unit == "word":
        return language.normalize(trial).split()
    if unit == "char":
        return language.joined(language.normalize(trial).split())
    if unit == "phoneme":
        return trial
    raise TextError(f"unknown unit {unit!r}; use 'word', 'char' or 'phoneme'")


def _plain(sequence: Any) -> Any:
    """Return an array or tensor as a list of Python numbers: rapidfuzz compares hashes.

    A tensor's elements are never equal to another's, and each would count as an error.
    """
    if hasattr(sequence, "tolist"):
        if np.ndim(sequence) != 1:
            raise TextError(
                f"a sequence has shape {list(np.shape(sequence))}; one dimension is needed"
            )
        return sequence.tolist()
    check_type(sequence, Sequence, "a trial", "a sequence of tokens")
    return sequence


def _check_paired(references: Sequence[Any], hypotheses: Sequence[Any]) -> None:
    for name, trials in (("references", references), ("hypotheses", hypotheses)):
        check_list(trials, name, "a list of one for each trial")
        check_type(trials, Sized, name, "a list of one for each trial")
    if len(references) != len(hypotheses):
        raise TextError(
            f"{len(references)} references but {len(hypotheses)} hypotheses; give one of each per"
            " trial"
        )
