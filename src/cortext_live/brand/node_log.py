"""The usage log of a BRAND node: the decoded sentences and, on request, their features.

T bins, C features.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from cortext.decoding import NBest
from cortext_live.core.log_writer import LogWriter, logged_features, record_of, spoken_s
from cortext_live.core.pipeline import Pipeline
from cortext_live.usage.writer import session_of_today

SOURCE = "brand"


class NodeLog:
    """Keeps the bins of the utterance in progress, and logs it when it ends.

    Args:
        writer: The usage log; None logs nothing.
        pipeline: Decodes the bins.

    Attributes:
        features_notes: Lines on the features of the utterance in progress.
    """

    def __init__(self, writer: LogWriter | None, pipeline: Pipeline) -> None:
        self._writer = writer
        self._pipeline = pipeline
        self.features_notes: list[str] = []
        self._bins: list[np.ndarray] = []
        self._held: list[np.ndarray] = []

    def begin(self) -> None:
        """Note that an utterance begins."""
        self._bins, self.features_notes = [], []
        if self._writer is not None:
            self._writer.speaking(True)

    def keep(self, bins_TC: np.ndarray) -> None:
        """Keep bins of the utterance, float32 [T, C]."""
        if self._writer is not None:
            self._bins.append(bins_TC.copy())

    def hold(self, n_bins: int) -> None:
        """Take the last bins off again: they came after the utterance's end."""
        if self._bins:
            whole_TC = np.concatenate(self._bins)
            end = len(whole_TC) - n_bins
            self._bins, self._held = [whole_TC[:end]], [whole_TC[end:]]

    def begin_held(self) -> None:
        """Begin an utterance with the bins that were held."""
        self._bins, self._held = self._held, []

    def drop(self) -> None:
        """Log nothing of the utterance, which could not be decoded."""
        self._bins, self._held = [], []
        if self._writer is not None:
            self._writer.speaking(False)

    def end(self, number: int, nbest: NBest, ended: str, model: str | None) -> None:
        """Log the utterance.

        Silence that ended by itself is none.

        Args:
            number: Its number.
            nbest: Its sentences.
            ended: Why it has ended.
            model: Name of the model that decoded it; None without a chain of models.
        """
        if self._writer is None:
            return
        self._writer.speaking(False)
        bins, self._bins = self._bins, []
        if ended in ("silence", "length", "idle") and not nbest[0].text:
            return
        pipeline = self._pipeline
        features_TC = logged_features(bins, pipeline.statistics, pipeline.conventions)
        n_bins = 0 if features_TC is None else len(features_TC)
        duration_s = spoken_s(nbest, n_bins, ended, pipeline.conventions.bin_ms)
        facts = number, session_of_today(pipeline.session), duration_s, nbest, SOURCE, model
        make = partial(record_of, *facts, features_notes=self.features_notes)
        self._writer.append(number, make, features_TC)
