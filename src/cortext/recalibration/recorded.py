"""Sentences of a usage log with their features, to learn from and to judge with.

Shapes: T bins, C features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cortext.data.conventions import Conventions
from cortext.data.scaling import ROLLING_TRIALS, RollingZScore
from cortext.errors import DataError
from cortext.usage.heard import HeardFeatures
from cortext.usage.log import LOG, LogContents, read_log
from cortext.usage.log_entries import LoggedUtterance


@dataclass(frozen=True, eq=False)
class LoggedSentence:
    """An utterance of the log as its model saw it.

    Attributes:
        number: Its place in the log, from 0.
        utterance: Its line, with the feedback so far.
        features_TC: float32 [T, C], as the network takes them: z-scores of raw recordings.
    """

    number: int
    utterance: LoggedUtterance
    features_TC: np.ndarray


class LoggedSentences:
    """The sentences of a usage log that a decoder may be writing at this moment.

    Args:
        folder: Directory of the log.
        conventions: Those of the model.
        n_features: Features of the model, C.
    """

    def __init__(self, folder: Path, conventions: Conventions, n_features: int) -> None:
        self.folder = folder
        self._conventions = conventions
        self._raw = False
        self._n_features = n_features
        self._features = HeardFeatures(folder)
        self._seen: tuple[int, int, int] | None = None
        self.log = LogContents()

    def refresh(self) -> bool:
        """Read the log again where it has changed; return whether it has.

        Raises:
            DataError: There is no log, or it cannot be read.
        """
        try:
            found = (self.folder / LOG).stat()
        except OSError as error:
            raise DataError(
                f"no log of use: {error.strerror}",
                where=self.folder / LOG,
                fix="give the directory of serve's --session-log",
            ) from None
        seen = found.st_ino, found.st_size, found.st_mtime_ns  # deleting replaces the file
        if seen == self._seen:
            return False
        self._check_conventions()
        self.log = read_log(self.folder)
        self._seen = seen
        return True

    def _check_conventions(self) -> None:
        """Raise DataError where the kept features are not what the model reads.

        A model of raw features reads z-scores, too: a server that was given them keeps them.
        """
        if not self._features.folder.exists():
            return
        kept, own = self._features.conventions, self._conventions
        self._raw = kept.features == "raw"
        if own.features == "raw":
            own = replace(own, features=kept.features)
        replace(kept, inventory=own.inventory, language=own.language).require(
            own,
            mine="the features of the log",
            theirs="the run",
            where=self._features.folder,
            fix="give the run that decoded them, or one that was adapted from it",
        )

    @property
    def began(self) -> int | None:
        """Second of the log's first entry, which tells one log from another; None if empty."""
        return self.log.began

    def sentence(self, number: int) -> LoggedSentence | None:
        """Return an utterance with its features; None where they are not kept or do not fit."""
        features_TC = self._read(number)
        if features_TC is None or number not in self.log.utterances:
            return None
        if self._raw:
            features_TC = self._z_scored(number, features_TC)
        return LoggedSentence(number, self.log.utterances[number], features_TC)

    def _read(self, number: int) -> np.ndarray | None:
        block = self.began
        features_TC = None if block is None else self._features.read(block, number)
        fits = features_TC is not None and features_TC.shape[1] == self._n_features
        return features_TC if fits else None

    def _z_scored(self, number: int, features_TC: np.ndarray) -> np.ndarray:
        """Return rolling z-scores, float32 [T, C], by the utterances before.

        They depend on nothing but the recordings, so that a process that begins anew has the same.
        """
        normaliser = RollingZScore(self._n_features)
        before = [each for each in self.log.utterances if each < number]
        for earlier in before[-ROLLING_TRIALS:]:
            before_TC = self._read(earlier)
            if before_TC is not None:
                normaliser.push(before_TC)
                normaliser.end_utterance()
        return normaliser.push(features_TC)
