"""An utterance of the page: its bins, its messages, and the features to log of it.

T bins, C features, P frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cortext.data.conventions import RELEASE_CONVENTIONS, Conventions
from cortext.decoding.nbest import Hypothesis, NBest, hypothesis_json
from cortext.decoding.options import DecoderOptions
from cortext_live.core.log_writer import candidates, logged_features, spoken_s
from cortext_live.core.pipeline import Update
from cortext_live.core.statistics import words_per_minute
from cortext_live.page.messages import StepMessage, shown_bins, shown_posteriors

STEP_MS = 80
"""Milliseconds of bins after which a page is sent a step even if no frame is complete."""


@dataclass
class BinOrigin:
    """The source of bins: a trial of a session, or by default a feed of today.

    Attributes:
        session: The recording day; None for a feed.
        trial: Number of the trial; None for a feed.
        reference: The prompted sentence, where it is known.
        texts: Decoded texts of the utterances of the trial so far, where it has a reference.
    """

    session: str | None = None
    trial: int | None = None
    reference: str | None = None
    texts: list[str] = field(default_factory=list)


@dataclass
class PageUtterance:
    """An utterance in progress.

    Attributes:
        id: Counts from 1.
        session: The recording day that its features are of.
        trial: Number of its trial, None for a feed.
        reference: The prompted sentence, where it is known.
        keep: Whether its features are kept for the usage log.
        model: Name of the model that decodes it; None without a chain of models.
        conventions: The language of its text and the length of its bins.
        private: Whether nothing of it is kept.
    """

    id: int
    session: str
    trial: int | None = None
    reference: str | None = None
    keep: bool = False
    model: str | None = None
    conventions: Conventions = RELEASE_CONVENTIONS
    private: bool = False
    n_bins: int = 0
    _kept: list[np.ndarray] = field(default_factory=list)
    _unsent: list[np.ndarray] = field(default_factory=list)
    _n_unsent: int = 0

    def step(self, bins_TC: np.ndarray, update: Update) -> StepMessage | None:
        """Return the message to send after decoded bins; None while there is too little to send."""
        self.n_bins += len(bins_TC)
        self._unsent.append(bins_TC)
        self._n_unsent += len(bins_TC)
        if self.keep:
            self._kept.append(bins_TC.copy())
        unsent_ms = self._n_unsent * self.conventions.bin_ms
        if not len(update.logits_PV) and unsent_ms < STEP_MS:
            return None
        shown_TC = shown_bins(np.concatenate(self._unsent))
        self._unsent = []
        self._n_unsent = 0
        stage_ms = {stage: round(max(ms), 3) for stage, ms in update.stage_ms.items() if ms} or None
        return StepMessage(
            self.id,
            self.n_bins * self.conventions.bin_ms,
            shown_TC,
            shown_posteriors(update.logits_PV),
            update.stable,
            update.tail,
            stage_ms,
        )

    def make_private(self) -> None:
        """Keep nothing of it."""
        self.private, self.keep = True, False
        self._kept.clear()

    def features_TC(self, statistics: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray | None:
        """Return the features to log, float32 [T, C], given the rolling statistics."""
        return logged_features(self._kept, statistics, self.conventions)

    def message(
        self,
        nbest: NBest,
        shown: Sequence[str],
        options: DecoderOptions,
        ended: str,
        final_ms: float,
        error: str | None,
    ) -> dict[str, Any]:
        """Return the body of its `utterance` message, without an error rate.

        Args:
            nbest: The candidate sentences.
            shown: The first of them as they are shown.
            options: The decoder options that ranked them.
            ended: Why it has ended.
            final_ms: Milliseconds from its end to its text.
            error: What went wrong.
        """
        duration_s = spoken_s(nbest, self.n_bins, ended, self.conventions.bin_ms)
        return {
            "id": self.id,
            "session": self.session,
            "trial": self.trial,
            "model": self.model,
            "text": nbest[0].text,
            "shown": shown[0],
            "words": hypothesis_json(nbest[0])["words"],
            "confidence": nbest.confidence,
            "nbest": [
                candidate | {"shown": text}
                for candidate, text in zip(candidates(nbest), shown, strict=True)
            ],
            "reference": self.reference,
            "wer": None,
            "words_per_minute": words_per_minute(
                self.conventions.language.n_words(nbest[0].text), duration_s
            ),
            "duration_s": duration_s,
            "latency_ms": final_ms,
            "ended": ended,
            "error": error,
            "ngram_text": ngram_text(nbest, options),
            "degraded": nbest.degraded,
        }


def ngram_text(nbest: NBest, options: DecoderOptions) -> str | None:
    """Return the best candidate without the large model's scores; None if it ranked nothing."""
    if nbest[0].confidence is None:
        return None
    ngram, llm = options.llm.shares(options.lm_weight)

    def without(hypothesis: Hypothesis) -> float:
        return (
            hypothesis.score
            + (options.lm_weight - ngram) * hypothesis.lm_score
            - llm * (hypothesis.llm_score or 0.0)
        )

    return max(nbest, key=without).text
