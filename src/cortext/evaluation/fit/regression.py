"""Fit probabilities of right words and right sentences to a run, on its validation trials.

A model makes few errors on the days that it was trained for, and many later. Fitted on the former
alone, confidences stay high where words are wrong. The trials are therefore decoded five times: as
they are, and as on simulated days that have drifted by growing degrees (`drifted`).

Shapes: N words, K signals, P frames, V tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cortext.data.packed import PackedSplit
from cortext.decoding import Decoder, NBest
from cortext.decoding.confidence import (
    SENTENCE_SIGNALS,
    WORD_SIGNALS,
    Logistic,
    Signal,
    probability,
    sentence_signals,
    word_signals,
)
from cortext.decoding.log_probs import log_softmax
from cortext.errors import DataError
from cortext.evaluation.fit.calibration import Calibration, calibration, words_right
from cortext.evaluation.fit.drifted import DriftedDay, statistics
from cortext.evaluation.fit.options import TrialName
from cortext.evaluation.fit.search import halves
from cortext.evaluation.logits import logits_of
from cortext.models import AcousticModel
from cortext.processes import Progress

STRENGTHS = (0.25, 0.5, 0.75, 1.0)
"""Strengths of the drift of the simulated days."""
DAYS = 6
"""Simulated days of each strength."""
MOST_TRIALS = 200
"""Most trials that are decoded, each once for every strength and once as it is."""
FEWEST = 50
"""Fewest right words, and fewest wrong ones: of fewer a fit would learn chance."""
RIDGE = 1.0
"""Half of it times the sum of the squared weights is added to the negative log-likelihood."""
MOST_STEPS = 100
MOST_STATISTICS = 64
"""Most trials that means and standard deviations of the features are taken from."""


@dataclass(frozen=True)
class BestSentence:
    """The best sentence that was decoded from a trial.

    Attributes:
        signals_NK: Float [N, K], `WORD_SIGNALS` of its words.
        posteriors: Posterior of each word.
        right: The words that are right.
        is_right: True if all of the sentence is.
        score_H: Float [H], scores of its n-best list.
        half: Half of its trial, 0 or 1.
        trial: Number of its trial.
    """

    signals_NK: np.ndarray
    posteriors: list[float]
    right: list[bool]
    is_right: bool
    score_H: np.ndarray
    half: int
    trial: int


@dataclass(frozen=True)
class ConfidenceFit:
    """Regressions fitted to all sentences, and their measures where each half tests the other.

    Attributes:
        words: Regression of words.
        sentences: Regression of sentences.
        cross_fitted: Measures of the words of each half with a fit to the other half.
        cross_fitted_sentences: The same of sentences.
        posteriors: Measures of the engine's posteriors of the same words.
        n_trials: Number of trials.
        seconds: Time that it took.
    """

    words: Logistic
    sentences: Logistic
    cross_fitted: Calibration
    cross_fitted_sentences: Calibration
    posteriors: Calibration
    n_trials: int
    seconds: float


def fit_confidence(
    model: AcousticModel,
    split: PackedSplit,
    trials: Sequence[TrialName],
    chosen: Sequence[int],
    decoder: Decoder,
    *,
    threads: int = 1,
    seed: int = 0,
    progress: Progress | None = None,
) -> ConfidenceFit:
    """Fit confidences to trials that the model has not learnt from.

    Args:
        model: The model.
        split: A split that it can read, with all features.
        trials: Name of each chosen trial; those without a sentence are left out.
        chosen: Positions of the trials in the split.
        decoder: The decoder, with the options that confidences are fitted for.
        threads: Threads of the search; the result does not depend on them.
        seed: Seed of the simulated days, and of the sample where there are more trials.
        progress: Called with trials decoded and in all.

    Raises:
        DataError: For too few right or wrong words, and for fewer than two different sentences.
    """
    began = time.perf_counter()
    generator = np.random.default_rng(seed)
    labelled = [number for number, trial in enumerate(trials) if trial.reference]
    drawn = generator.permutation(labelled)[:MOST_TRIALS].tolist()
    names = [trials[number] for number in drawn]
    rows = [chosen[number] for number in drawn]
    half_B = halves([name.reference for name in names], [(t.session, t.block) for t in names])
    some = [split.features(row) for row in rows[:MOST_STATISTICS]]
    mean_C, scale_C = statistics(some)
    sentences: list[BestSentence] = []
    strengths = (0.0, *STRENGTHS)
    for done, strength in enumerate(strengths, 1):
        change = _drift(strength, mean_C, scale_C, generator) if strength else None
        logits = logits_of(model, split, rows, None, change)
        log_probs = [log_softmax(logits_PV) for logits_PV in logits]
        lists = decoder.search_batch(log_probs, model.inventory, threads)
        for n, name in enumerate(names):
            sentence = _sentence(lists[n], log_probs[n], decoder, name.reference, int(half_B[n]), n)
            if sentence is not None:
                sentences.append(sentence)
        if progress:
            progress(done, len(strengths))
    return fit_sentences(sentences, len(names), time.perf_counter() - began)


def _drift(
    strength: float, mean_C: np.ndarray, scale_C: np.ndarray, generator: np.random.Generator
) -> Callable[[int, np.ndarray], np.ndarray]:
    """Return a function that changes the features of a trial to those of a drifted day."""
    days = [DriftedDay.draw(strength, mean_C, scale_C, generator) for _ in range(DAYS)]
    seed = int(generator.integers(2**32))

    def changed(n: int, x_TC: np.ndarray) -> np.ndarray:
        # A generator for each trial: the model reads them in another order.
        return days[n % DAYS].changed(x_TC, np.random.default_rng([seed, n]))

    return changed


def _sentence(
    nbest: NBest, log_probs_PV: np.ndarray, decoder: Decoder, reference: str, half: int, trial: int
) -> BestSentence | None:
    """Return the best sentence with its signals; None for one without words or posteriors."""
    best = nbest[0]
    signals_NK = word_signals([best], log_probs_PV, decoder.lm)
    if signals_NK is None or not best.words:
        return None
    language = decoder.language
    return BestSentence(
        signals_NK=signals_NK,
        posteriors=[word.confidence or 0.0 for word in best.words],
        right=words_right(reference, best.words, language),
        is_right=language.normalize(best.text) == reference,
        score_H=np.array([hypothesis.score for hypothesis in nbest]),
        half=half,
        trial=trial,
    )


def fit_sentences(
    sentences: Sequence[BestSentence], n_trials: int, seconds: float = 0.0
) -> ConfidenceFit:
    """Fit to decoded sentences, and to each half of them to judge the other.

    Args:
        sentences: The sentences.
        n_trials: Number of trials that they come from, for the record.
        seconds: Time that decoding took, for the record.

    Raises:
        DataError: For too few right or wrong words.
    """
    began = time.perf_counter()
    parts = [[sentence for sentence in sentences if sentence.half == half] for half in (0, 1)]
    n_right = min(sum(sum(sentence.right) for sentence in part) for part in parts)
    n_wrong = min(
        sum(len(sentence.right) - sum(sentence.right) for sentence in part) for part in parts
    )
    if min(n_right, n_wrong) < FEWEST / 2:
        raise DataError(
            f"{n_right} right and {n_wrong} wrong words in a half of the decoded trials; at least"
            f" {FEWEST // 2} of each are needed to fit confidences"
        )
    words, of_sentences = _fitted(sentences)
    crossed = [_judged(part, *_fitted(parts[1 - half])) for half, part in enumerate(parts)]
    ordered = [sentence for part in parts for sentence in part]
    number_N = [sentence.trial for sentence in ordered for _ in sentence.right]
    right_N = [right for sentence in ordered for right in sentence.right]
    posteriors = [posterior for sentence in ordered for posterior in sentence.posteriors]
    return ConfidenceFit(
        words=words,
        sentences=of_sentences,
        cross_fitted=calibration(np.concatenate([one for one, _ in crossed]), right_N, number_N),
        cross_fitted_sentences=calibration(
            np.concatenate([one for _, one in crossed]),
            [sentence.is_right for sentence in ordered],
            [sentence.trial for sentence in ordered],
        ),
        posteriors=calibration(np.clip(posteriors, 0, 1), right_N, number_N),
        n_trials=n_trials,
        seconds=seconds + time.perf_counter() - began,
    )


def _fitted(sentences: Sequence[BestSentence]) -> tuple[Logistic, Logistic]:
    """Return the regressions of words and of sentences."""
    words = fit_logistic(
        np.concatenate([sentence.signals_NK for sentence in sentences]),
        np.concatenate([sentence.right for sentence in sentences]),
        WORD_SIGNALS,
    )
    signals = [
        sentence_signals(words(sentence.signals_NK), sentence.score_H) for sentence in sentences
    ]
    is_right = np.array([sentence.is_right for sentence in sentences])
    return words, fit_logistic(np.concatenate(signals), is_right, SENTENCE_SIGNALS)


def _judged(
    sentences: Sequence[BestSentence], words: Logistic, of_sentences: Logistic
) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities of all words, and of all sentences."""
    of_words = [words(sentence.signals_NK) for sentence in sentences]
    signals = [
        sentence_signals(p_N, sentence.score_H)
        for p_N, sentence in zip(of_words, sentences, strict=True)
    ]
    return np.concatenate(of_words), of_sentences(np.concatenate(signals))


def fit_logistic(
    signals_NK: np.ndarray, right_N: np.ndarray, names: Sequence[str], ridge: float = RIDGE
) -> Logistic:
    """Fit a logistic regression by Newton's method to standardised signals.

    Args:
        signals_NK: Float [N, K].
        right_N: Bool [N].
        names: Name of each column.
        ridge: Half of it times the squared weights is added to the negative log-likelihood; the
            intercept is free, so that the mean probability is the share of right ones.
    """
    mean_K, scale_K = signals_NK.mean(axis=0), signals_NK.std(axis=0)
    scale_K = np.where(scale_K > 0, scale_K, 1.0)  # a constant signal stays 0
    x_NK = np.column_stack([np.ones(len(signals_NK)), (signals_NK - mean_K) / scale_K])
    y_N = np.asarray(right_N, dtype=np.float64)
    ridge_K = np.full(x_NK.shape[1], ridge)
    ridge_K[0] = 1e-9  # none, but finite where all are right

    def cost(weight_K: np.ndarray) -> float:
        odds_N = x_NK @ weight_K
        loss = np.logaddexp(0, odds_N).sum() - y_N @ odds_N
        return float(loss + 0.5 * ridge_K @ weight_K**2)

    weight_K = np.zeros(x_NK.shape[1])
    for _ in range(MOST_STEPS):
        p_N = probability(x_NK @ weight_K)
        slope_K = x_NK.T @ (p_N - y_N) + ridge_K * weight_K
        curvature_KK = (x_NK * (p_N * (1 - p_N))[:, None]).T @ x_NK + np.diag(ridge_K)
        step_K = np.linalg.solve(curvature_KK, slope_K)
        # A full step can overshoot where few words are wrong: shorten it until it helps.
        while cost(weight_K - step_K) > cost(weight_K) and np.abs(step_K).max() > 1e-10:
            step_K /= 2
        weight_K -= step_K
        if np.abs(step_K).max() < 1e-8:
            break
    signals = zip(names, mean_K.tolist(), scale_K.tolist(), weight_K[1:].tolist(), strict=True)
    return Logistic(
        float(weight_K[0]), {name: Signal(mean, scale, w) for name, mean, scale, w in signals}
    )
