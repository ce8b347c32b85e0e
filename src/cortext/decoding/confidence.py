"""Confidences that are probabilities: from the signals of a decoded sentence to P(right).

The search's own posterior of a word is a probability only as long as the model is right about what
it sees. On a day on which the recordings have drifted the model is as sure as before and often
wrong. A logistic regression on the posterior and on four other signals corrects for that;
`cortext.evaluation.fit.regression` fits it. All signals are there when a sentence ends, and need
neither labels nor a second pass.

Shapes: P frames, V tokens, N words of all hypotheses of a list, H hypotheses, K signals.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from cortext.config import to_mapping
from cortext.decoding.nbest import FRAME_MS, Hypothesis, NBest
from cortext.decoding.ngram import LanguageModel
from cortext.decoding.options import DecoderOptions, LLMOptions
from cortext.errors import ConfigError

WORD_SIGNALS = ("posterior", "ngram", "letters", "entropy", "sentence_entropy")
"""Signals of a word: log-odds of its posterior; n-gram log-probability; log of its letters; mean
entropy of its frames, and of the sentence's frames, in nats.

Chosen by experiment among 28, for words of later days that took no part in the fit. The entropy of
the sentence tells drifted days from others; the n-gram and the length of the word tell which words
are right by chance there.
"""
SENTENCE_SIGNALS = ("words", "share")
"""Signals of a sentence: log-odds of the product of its words' probabilities, and of its share in
the summed probabilities of the n-best list.
"""
LEAST = 1e-4
"""Probabilities are kept this far from 0 and 1 before log-odds are taken."""


LARGEST = 1e100
"""Numbers of a regression are below it: sums of their products must not be infinite."""


@dataclass(frozen=True)
class Signal:
    """One input of a logistic regression.

    Attributes:
        mean: Subtracted from its values.
        scale: Divides the difference; above 0.
        weight: Log-odds for a difference of one `scale`.
    """

    mean: float
    scale: float
    weight: float

    def __post_init__(self) -> None:
        slope = self.weight / self.scale if self.scale > 0 else np.inf
        if not all(abs(each) < LARGEST for each in (self.mean, self.scale, slope)):
            raise ConfigError("a signal has a scale that is not above 0, or a number without bound")


@dataclass(frozen=True)
class Logistic:
    """A logistic regression: P = 1 / (1 + exp(-(intercept + sum of weighted signals))).

    Attributes:
        intercept: Log-odds where all signals have their mean.
        signals: The inputs by name, in the order of the columns.
    """

    intercept: float
    signals: dict[str, Signal]

    def __post_init__(self) -> None:
        if not abs(self.intercept) < LARGEST:
            raise ConfigError("intercept is not finite, or too large")

    def require(self, names: Sequence[str]) -> None:
        """Raise ConfigError unless these are its signals, in this order."""
        if list(self.signals) != list(names):
            named = ", ".join(self.signals) or "none"
            raise ConfigError(f"signals are {named}; {', '.join(names)} are needed")

    def __call__(self, signals_NK: np.ndarray) -> np.ndarray:
        """Return probabilities, float64 [N].

        Args:
            signals_NK: Float [N, K].
        """
        signals = self.signals.values()
        mean_K = np.array([signal.mean for signal in signals])
        slope_K = np.array([signal.weight / signal.scale for signal in signals])
        return probability(self.intercept + (signals_NK - mean_K) @ slope_K)


@dataclass(frozen=True)
class Calibrator:
    """The regressions of words and of sentences, and the decoder options that they go with.

    Attributes:
        words: Regression on `WORD_SIGNALS`.
        sentences: Regression on `SENTENCE_SIGNALS`.
        options: Checksums of decoder options; see `options_checksum`.
    """

    words: Logistic
    sentences: Logistic
    options: tuple[str, ...]

    def __post_init__(self) -> None:
        self.words.require(WORD_SIGNALS)
        self.sentences.require(SENTENCE_SIGNALS)

    def goes_with(self, options: DecoderOptions) -> bool:
        """Tell whether it was fitted to sentences that these options found."""
        return options_checksum(options) in self.options

    def calibrated(self, nbest: NBest, log_probs_PV: np.ndarray, lm: LanguageModel) -> NBest:
        """Return the list with calibrated confidences.

        Words keep what the search computed in `posterior`. The list stays as it is where words have
        no confidence, as in a list that did not come from a search.

        Args:
            nbest: The list as the search found it; times are in frames of `FRAME_MS`.
            log_probs_PV: float32 [P, V], the natural-log probabilities that were searched.
            lm: The language model of the search.
        """
        signals_NK = word_signals(nbest, log_probs_PV, lm)
        if signals_NK is None:
            return nbest
        sure = iter(self.words(signals_NK).tolist())
        hypotheses = [
            replace(
                hypothesis,
                words=tuple(
                    replace(word, confidence=next(sure), posterior=word.confidence)
                    for word in hypothesis.words
                ),
            )
            for hypothesis in nbest
        ]
        of_best = [word.confidence for word in hypotheses[0].words]
        confidence = None
        if of_best:
            score_H = np.array([hypothesis.score for hypothesis in hypotheses])
            signals_1K = sentence_signals(np.array(of_best), score_H)
            confidence = float(self.sentences(signals_1K)[0])
        return NBest(hypotheses, nbest.degraded, confidence)


def word_signals(
    nbest: Sequence[Hypothesis], log_probs_PV: np.ndarray, lm: LanguageModel
) -> np.ndarray | None:
    """Return the signals of all words of all hypotheses, one hypothesis after the other.

    Args:
        nbest: Hypotheses; times are in frames of `FRAME_MS`.
        log_probs_PV: float32 [P, V] natural-log probabilities.
        lm: The language model of the search.

    Returns:
        float64 [N, K] with the columns `WORD_SIGNALS`; None where a word has no posterior.
    """
    words = [word for hypothesis in nbest for word in hypothesis.words]
    posteriors = [word.confidence for word in words if word.confidence is not None]
    if len(posteriors) < len(words):
        return None
    entropy_P = entropy(log_probs_PV)
    sums_P = np.concatenate([[0.0], np.cumsum(entropy_P)])
    first_N = np.array([round(word.start_ms / FRAME_MS) for word in words], dtype=int)
    end_N = np.array([round(word.end_ms / FRAME_MS) for word in words], dtype=int)
    first_N = np.clip(first_N, 0, max(len(entropy_P) - 1, 0))
    end_N = np.clip(end_N, first_N + 1, max(len(entropy_P), 1))
    signals_NK = np.empty((len(words), len(WORD_SIGNALS)))
    if words:
        signals_NK[:, 0] = log_odds(np.array(posteriors))
        signals_NK[:, 1] = [
            score for hypothesis in nbest for score in _ngram_scores(hypothesis, lm)
        ]
        signals_NK[:, 2] = np.log([max(len(word.word), 1) for word in words])
        signals_NK[:, 3] = (sums_P[end_N] - sums_P[first_N]) / (end_N - first_N)
        signals_NK[:, 4] = entropy_P.mean()
    return signals_NK


def sentence_signals(confidence_N: np.ndarray, score_H: np.ndarray) -> np.ndarray:
    """Return the signals of the best sentence, float64 [1, K].

    Args:
        confidence_N: Float [N], the calibrated probability of each of its words.
        score_H: Float [H], scores of all sentences of its list, its own first.
    """
    share = 1 / np.exp(score_H - score_H[0]).sum()
    return log_odds(np.array([[np.prod(confidence_N), share]]))


def entropy(log_probs_PV: np.ndarray) -> np.ndarray:
    """Return the entropy of each frame's token probabilities in nats, float64 [P].

    Args:
        log_probs_PV: Float [P, V] natural-log probabilities; -inf is allowed.
    """
    finite_PV = np.maximum(log_probs_PV.astype(np.float64), -700.0)  # exp(-700) is above 0
    total_P: np.ndarray = -(np.exp(finite_PV) * finite_PV).sum(axis=1)
    return total_P


def log_odds(p: np.ndarray) -> np.ndarray:
    """Return the log-odds of probabilities of any shape, which are kept `LEAST` from 0 and 1."""
    p = np.clip(p, LEAST, 1 - LEAST)
    odds: np.ndarray = np.log(p / (1 - p))
    return odds


def probability(log_odds_N: np.ndarray) -> np.ndarray:
    """Return probabilities, float64 [N], of log-odds."""
    p_N: np.ndarray = 1 / (1 + np.exp(-np.clip(log_odds_N, -700, 700)))
    return p_N


@lru_cache(maxsize=64)
def options_checksum(options: DecoderOptions) -> str:
    """Return 16 hexadecimal digits that stand for the options of a search.

    The settings of a large model do not count: confidences are calibrated without one.
    """
    mapping = to_mapping(replace(options, llm=LLMOptions()))
    mapping["label_priors"] = dict(mapping["label_priors"])
    # 32 and 32.0 are the same option.
    plain = {
        name: float(value) if isinstance(value, int | float) else value
        for name, value in mapping.items()
    }
    text = json.dumps(plain, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _ngram_scores(hypothesis: Hypothesis, lm: LanguageModel) -> list[float]:
    """Return the n-gram log-probability of each word.

    An n-gram of characters gives each word the sentence's mean.
    """
    if lm.is_open:
        return [hypothesis.lm_score / len(hypothesis.words)] * len(hypothesis.words)
    state = lm.ngram.begin()
    scores = []
    for word in hypothesis.words:
        score, state = lm.ngram.score(state, word.word)
        scores.append(score)
    return scores
