"""Measures of confidences: how far stated probabilities agree with the share that is right.

Shapes: N words (or sentences), S sentences, K bins of confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortext.decoding.nbest import Word
from cortext.describe import Described, percent, with_interval
from cortext.errors import DataError
from cortext.evaluation.scores import TrialResult
from cortext.text.language import EN, Language
from cortext.text.metrics import align

N_BINS = 10
"""Bins of equal width in which stated and observed probabilities are compared."""
SURE = 0.9
"""Least confidence of what counts as given as sure."""
N_BOOT = 1000


@dataclass(frozen=True)
class ReliabilityBin:
    """Words whose confidence lies between two bounds.

    Attributes:
        low: Lower bound, included.
        high: Upper bound, excluded; the last bin includes it.
        n: Number of words.
        confidence: Their mean confidence; None without words.
        right: Share of them that is right; None without words.
    """

    low: float
    high: float
    n: int
    confidence: float | None
    right: float | None


@dataclass(frozen=True, repr=False)
class Calibration(Described):
    """Measures of the confidences of some words, or sentences.

    Attributes:
        n: Number of words.
        right: Share of them that is right, the base rate.
        mean: Mean confidence.
        brier: Mean squared difference between confidence and 1 (right) or 0 (wrong).
        brier_skill: 1 - brier / (brier of the base rate as everybody's confidence); None where all
            words are right, or all wrong.
        auroc: Chance that a right word has a higher confidence than a wrong one, ties counted half;
            None where all words are right, or all wrong.
        ece: Expected calibration error (Naeini et al. 2015): mean distance of the bins' confidence
            and share, weighted by words.
        ece_ci95: Percentile interval of `ece` by a bootstrap over sentences. Resampling adds to the
            distances, so that both bounds are too high rather than too low.
        n_sure: Number of words with a confidence of `SURE` or more.
        sure_right: Share of these that is right; None without any.
        sure_right_ci95: Its interval by the same bootstrap, over resamples with such words.
        bins: Reliability diagram.
    """

    n: int
    right: float
    mean: float
    brier: float
    brier_skill: float | None
    auroc: float | None
    ece: float
    ece_ci95: tuple[float, float] | None
    n_sure: int
    sure_right: float | None
    sure_right_ci95: tuple[float, float] | None
    bins: tuple[ReliabilityBin, ...]

    def _facts(self) -> dict[str, Any]:
        unknown = (None, None)
        return {
            "words": self.n,
            "right": percent(self.right),
            "mean confidence": percent(self.mean),
            "Brier skill": self.brier_skill,
            "AUROC": self.auroc,
            "ECE": with_interval(self.ece, *(self.ece_ci95 or unknown)),
            f"right of those at {SURE:g} or more": with_interval(
                self.sure_right, *(self.sure_right_ci95 or unknown)
            ),
        }


def calibration(
    confidence_N: Sequence[float] | np.ndarray,
    right_N: Sequence[bool] | np.ndarray,
    sentence_N: Sequence[int] | np.ndarray,
    seed: int = 0,
    n_boot: int = N_BOOT,
) -> Calibration:
    """Measure the confidences of words, or of sentences.

    Args:
        confidence_N: Float [N], from 0 to 1.
        right_N: Bool [N], the words that are right.
        sentence_N: Int [N], a number for the sentence of each word: the bootstrap resamples whole
            sentences, because words of one sentence are right or wrong together.
        seed: Seed of the bootstrap.
        n_boot: Number of resamplings.

    Raises:
        DataError: For no words, unequal lengths, and confidences outside of 0 to 1.
    """
    p_N = np.asarray(confidence_N, dtype=np.float64)
    y_N = np.asarray(right_N, dtype=bool).astype(np.float64)
    if not len(p_N) or not len(p_N) == len(y_N) == len(sentence_N):
        counts = f"{len(p_N)} confidences, {len(y_N)} words, {len(sentence_N)} sentences"
        raise DataError(f"{counts}; as many of each are needed, and at least one")
    if not ((p_N >= 0) & (p_N <= 1)).all():
        raise DataError("a confidence is not between 0 and 1")
    base = float(y_N.mean())
    brier = float(np.mean((p_N - y_N) ** 2))
    mixed = 0 < base < 1
    sums_KS = _sums(p_N, y_N, np.asarray(sentence_N))
    total_K = sums_KS.sum(axis=2)
    ece_I, sure_I = _resampled(sums_KS, seed, n_boot)
    n_sure = int(total_K[0, -1])
    return Calibration(
        n=len(p_N),
        right=base,
        mean=float(p_N.mean()),
        brier=brier,
        brier_skill=1 - brier / (base * (1 - base)) if mixed else None,
        auroc=auroc(p_N, y_N > 0) if mixed else None,
        ece=float(_ece(total_K[:, :N_BINS, None])[0]),
        ece_ci95=_interval(ece_I),
        n_sure=n_sure,
        sure_right=float(total_K[2, -1] / n_sure) if n_sure else None,
        sure_right_ci95=_interval(sure_I),
        bins=_bins(total_K[:, :N_BINS]),
    )


def auroc(score_N: np.ndarray, right_N: np.ndarray) -> float:
    """Return the chance that a right word scores higher than a wrong one, ties counted half.

    Args:
        score_N: Float [N], any scores.
        right_N: Bool [N], with both values.
    """
    _, rank_N, counts = np.unique(score_N, return_inverse=True, return_counts=True)
    middle = np.cumsum(counts) - (counts - 1) / 2  # mean rank of equal scores, from 1
    n_right = int(right_N.sum())
    ranks_sum = float(middle[rank_N][right_N].sum())
    return (ranks_sum - n_right * (n_right + 1) / 2) / (n_right * (len(right_N) - n_right))


def words_right(reference: str, words: Sequence[Word], language: Language = EN) -> list[bool]:
    """Return for each decoded word whether it is right, along a shortest path of edits.

    Args:
        reference: The sentence, normalised.
        words: Decoded words. A word that the language's normal form splits is right where all its
            parts are.
        language: Normalisation of the words.
    """
    parts = [language.normalize(word.word).split() for word in words]
    flat = [part for each in parts for part in each]
    pairs = align(reference.split(), flat)
    right = iter(
        [true == sentences_right for true, sentences_right in pairs if sentences_right is not None]
    )
    sentences_right = []
    for each in parts:
        of_word = [next(right) for _ in each]
        sentences_right.append(bool(of_word) and all(of_word))
    return sentences_right


def _sums(p_N: np.ndarray, y_N: np.ndarray, sentence_N: np.ndarray) -> np.ndarray:
    """Return float64 [3, K + 1, S]: words, their confidences, and the right ones.

    The last of the K + 1 rows counts the words that are given as sure.
    """
    _, number_N = np.unique(sentence_N, return_inverse=True)
    bin_N = np.minimum((p_N * N_BINS).astype(int), N_BINS - 1)
    sums = np.zeros((3, N_BINS + 1, int(number_N.max()) + 1))
    sure_N = p_N >= SURE
    for row, value_N in enumerate((np.ones_like(p_N), p_N, y_N)):
        np.add.at(sums[row], (bin_N, number_N), value_N)
        np.add.at(sums[row, -1], number_N[sure_N], value_N[sure_N])
    return sums


def _ece(sums: np.ndarray) -> np.ndarray:
    """Return the calibration error [I] of sums [3, K, I]."""
    n_KI, confidence_KI, right_KI = sums
    error: np.ndarray = np.abs(confidence_KI - right_KI).sum(axis=0) / n_KI.sum(axis=0)
    return error


def _resampled(sums: np.ndarray, seed: int, n_boot: int) -> tuple[np.ndarray, np.ndarray]:
    """Return calibration errors and shares of right sure words, of resampled sentences."""
    generator = np.random.default_rng(seed)
    n_sentences = sums.shape[2]
    share = np.full(n_sentences, 1 / n_sentences)
    drawn = np.zeros((*sums.shape[:2], n_boot))
    for resample in range(n_boot):
        # How often each sentence is drawn is all that counts: a product gives every sum at once.
        drawn[:, :, resample] = sums @ generator.multinomial(n_sentences, share)
    some = drawn[0, -1] > 0
    return _ece(drawn[:, :N_BINS]), drawn[2, -1][some] / drawn[0, -1][some]


def _interval(values: np.ndarray) -> tuple[float, float] | None:
    if not len(values):
        return None
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def _bins(total_K: np.ndarray) -> tuple[ReliabilityBin, ...]:
    bins = []
    for k, (n, confidence, right) in enumerate(total_K.T.tolist()):
        means = (confidence / n, right / n) if n else (None, None)
        bins.append(ReliabilityBin(k / N_BINS, (k + 1) / N_BINS, int(n), *means))
    return tuple(bins)


def trial_calibrations(trials: Sequence[TrialResult], seed: int = 0) -> dict[str, Calibration]:
    """Return measures of the confidences of trials.

    Args:
        trials: Decoded trials; those without a reference or confidences are left out.
        seed: Seed of the bootstrap.

    Returns:
        `words`; with calibrated confidences also `sentences`, and `posteriors` of the same words.
        Nothing where there are no such words.
    """
    values: dict[str, list[tuple[float, bool, int]]] = {}
    for trial in trials:
        if trial.nbest is None or trial.reference is None:
            continue
        best = trial.nbest[0]
        right = words_right(trial.reference, best.words, trial.language)
        for word, is_right in zip(best.words, right, strict=True):
            for name, value in (("words", word.confidence), ("posteriors", word.posterior)):
                if value is not None:
                    row = (min(max(value, 0.0), 1.0), is_right, trial.id)
                    values.setdefault(name, []).append(row)
        if trial.nbest.confidence is not None:
            row = (trial.nbest.confidence, trial.text == trial.reference, trial.id)
            values.setdefault("sentences", []).append(row)
    by_name = {}
    for name, rows in values.items():
        confidence_N, right_N, trial_N = (np.array(column) for column in zip(*rows, strict=True))
        by_name[name] = calibration(confidence_N, right_N, trial_N, seed)
    return by_name
