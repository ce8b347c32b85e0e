"""One utterance on its way through the pipeline, and what is told of it.

T bins of 20 ms, C features, P frames.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cortext.data.trial import BIN_MS
from cortext.decoding.nbest import hypothesis_json
from cortext.decoding.options import DecoderOptions, Hypothesis, NBest
from cortext.live.core.pipeline import Update
from cortext.live.core.statistics import words_per_minute
from cortext.live.page.messages import Step, shown_bins, shown_posteriors

MAX_NBEST = 20
"""Candidates that a page is sent."""
BINS_PER_STEP = 4
"""Bins after which a page is told even if no frame is complete."""


@dataclass
class PageUtterance:
    """An utterance in progress.

    Attributes:
        id: Counts from 1.
        session: The recording day that its features are of.
        trial: Number of its trial, None for a feed.
        reference: What was to be said, where that is known.
        keep: Whether its features are kept for the log.
    """

    id: int
    session: str
    trial: int | None = None
    reference: str | None = None
    keep: bool = False
    n_bins: int = 0
    _kept: list[np.ndarray] = field(default_factory=list)
    _unsent: list[np.ndarray] = field(default_factory=list)
    _n_unsent: int = 0

    def step(self, frames_TC: np.ndarray, update: Update) -> Step | None:
        """What to send after bins that were decoded; None while there is too little to tell."""
        self.n_bins += len(frames_TC)
        self._unsent.append(frames_TC)
        self._n_unsent += len(frames_TC)
        if self.keep:
            self._kept.append(frames_TC.copy())
        if not len(update.logits_PV) and self._n_unsent < BINS_PER_STEP:
            return None
        bins_TC = shown_bins(np.concatenate(self._unsent))
        self._unsent, self._n_unsent = [], 0
        stage_ms = {stage: round(max(ms), 3) for stage, ms in update.stage_ms.items() if ms} or None
        posteriors_PV = shown_posteriors(update.logits_PV)
        return Step(
            self.id,
            self.n_bins * BIN_MS,
            bins_TC,
            posteriors_PV,
            update.stable,
            update.tail,
            stage_ms,
        )

    def features_TC(self, statistics: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray | None:
        """The features that were kept, float32 [T, C], with rolling statistics (mean and
        deviation) as z-scores.
        """
        if not self._kept:
            return None
        features_TC = np.concatenate(self._kept)
        if statistics is None:
            return features_TC
        mean_C, std_C = statistics
        z_TC: np.ndarray = ((features_TC - mean_C) / np.where(std_C > 0, std_C, 1)).astype(
            np.float32
        )
        return z_TC

    def told(
        self, nbest: NBest, options: DecoderOptions, ended: str, final_ms: float, error: str | None
    ) -> dict[str, Any]:
        """The body of its `utterance` message, without an error rate.

        It lasts as long as its trial; what ended by itself, where a feed goes on without end, from
        the first word's beginning to the last one's end.

        Args:
            options: Those by which the candidates were ranked.
        """
        hypotheses = [hypothesis_json(hypothesis) for hypothesis in nbest[:MAX_NBEST]]
        words = hypotheses[0]["words"]
        duration_s = self.n_bins * BIN_MS / 1000
        if ended in ("silence", "length") and words:
            duration_s = (words[-1]["end_ms"] - words[0]["start_ms"]) / 1000
        return {
            "id": self.id,
            "session": self.session,
            "trial": self.trial,
            "text": nbest[0].text,
            "words": words,
            "nbest": [
                {name: h[name] for name in ("text", "score", "acoustic", "ngram", "llm")}
                for h in hypotheses
            ],
            "reference": self.reference,
            "wer": None,
            "words_per_minute": words_per_minute(len(nbest[0].text.split()), duration_s),
            "duration_s": duration_s,
            "latency_ms": final_ms,
            "ended": ended,
            "error": error,
            "ngram_text": ngram_text(nbest, options),
            "degraded": nbest.degraded,
        }


def ngram_text(nbest: NBest, options: DecoderOptions) -> str | None:
    """Which of the candidates would be the best without a large model.

    None where none ranked them.
    """
    if nbest[0].confidence is None:
        return None
    ngram, llm = options.llm.shares(options.lm_weight)

    def without(found: Hypothesis) -> float:
        return (
            found.score
            + (options.lm_weight - ngram) * found.lm_score
            - llm * (found.llm_score or 0.0)
        )

    return max(nbest, key=without).text
