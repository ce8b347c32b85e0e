"""Sentences of a usage log with their features, to learn from and to judge with.

An utterance that can never be used (too short, of other features, damaged) is set aside: it is
named once, and the work continues without it.

Shapes: T bins, C features.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cortext.data.conventions import Conventions
from cortext.data.scaling import ROLLING_TRIALS, RollingZScore
from cortext.errors import CortextError, DataError, first_line
from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.log import LOG, LogContents, read_log
from cortext_live.usage.log_entries import LoggedUtterance

PASSING = (
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EAGAIN,
    errno.EINTR,
    errno.ESTALE,
    errno.ETIMEDOUT,
)
"""Errors of the system that are not the fault of one file."""
MOST_TRIES = 3
"""Times that a sentence may fail for a reason that may pass, such as too little memory."""


class SentenceFault(CortextError):
    """An utterance that a model cannot be run on.

    Attributes:
        number: Its place in the log.
        may_pass: Whether another try may go well.
    """

    def __init__(self, number: int, problem: str, may_pass: bool) -> None:
        super().__init__(problem, where=f"entry {number} of the log")
        self.number = number
        self.may_pass = may_pass


@contextmanager
def blamed(number: int) -> Iterator[None]:
    """Raise what running a model on one utterance raises as its `SentenceFault`."""
    try:
        yield
    except CortextError as error:
        raise SentenceFault(number, error.what, may_pass=False) from None
    except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError without memory
        raise SentenceFault(number, first_line(error), may_pass=True) from None


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
        n_frames: Returns the frames that the model makes of some bins.

    Attributes:
        set_aside: Why utterances are not used, by their numbers.
    """

    def __init__(
        self,
        folder: Path,
        conventions: Conventions,
        n_features: int,
        n_frames: Callable[[int], int] = lambda n_bins: n_bins,
    ) -> None:
        self.folder = folder
        self.set_aside = dict[int, str]()
        self._n_frames = n_frames
        self._failures = Counter[int]()
        self._conventions = conventions
        self._raw = False
        self._n_features = n_features
        self._features = KeptFeatures(folder)
        self._seen: tuple[int, int, int] | None = None
        self.log = LogContents()

    def refresh(self) -> bool:
        """Read the log again where it has changed; return whether it has.

        Raises:
            DataError: There is no log, or it cannot be read.
        """
        try:
            status = (self.folder / LOG).stat()
        except OSError as error:
            raise DataError(
                f"no log of use: {error.strerror}",
                where=self.folder / LOG,
                fix="give the directory of serve's --session-log",
            ) from None
        seen = status.st_ino, status.st_size, status.st_mtime_ns  # deleting replaces the file
        if seen == self._seen:
            return False
        self._check_conventions()
        before = self.began
        self.log = read_log(self.folder)
        self._seen = seen
        if self.began != before:
            self.set_aside.clear()
            self._failures.clear()
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
        """Return an utterance with its features; None where they are not kept, or set aside.

        Raises:
            DataError: They cannot be read now; the cause will pass.
        """
        features_TC = self._read(number)
        if features_TC is None or number not in self.log.utterances:
            return None
        if self._n_frames(len(features_TC)) < 1:
            problem = f"{len(features_TC)} bins are too few for one frame of the model"
            self.set_aside[number] = problem
            return None
        if self._raw:
            features_TC = self._z_scored(number, features_TC)
        return LoggedSentence(number, self.log.utterances[number], features_TC)

    def give_up(self, fault: SentenceFault) -> None:
        """Set an utterance aside. Raises its fault, up to `MOST_TRIES` times, where it may pass."""
        self._failures[fault.number] += 1
        if fault.may_pass and self._failures[fault.number] < MOST_TRIES:
            raise fault
        self.set_aside[fault.number] = fault.what

    def _read(self, number: int) -> np.ndarray | None:
        if self.began is None or number in self.set_aside:
            return None
        try:
            features_TC = self._features.load(self.began, number)
        except DataError as error:
            self.set_aside[number] = error.what
            return None
        except OSError as error:
            problem = f"its features cannot be read: {error.strerror}"
            if error.errno in PASSING:
                path = self._features.path(self.began, number)
                raise DataError(problem, where=path) from None
            self.set_aside[number] = problem
            return None
        if features_TC is not None and features_TC.shape[1] != self._n_features:
            fault = f"it has {features_TC.shape[1]} features; the model reads {self._n_features}"
            self.set_aside[number] = fault
            return None
        return features_TC

    def _z_scored(self, number: int, features_TC: np.ndarray) -> np.ndarray:
        """Return rolling z-scores, float32 [T, C], by the utterances before.

        They depend only on the recordings, so that a process that begins anew has the same.
        """
        normaliser = RollingZScore(self._n_features)
        before = [each for each in self.log.utterances if each < number]
        for earlier in before[-ROLLING_TRIALS:]:
            before_TC = self._read(earlier)
            if before_TC is not None:
                normaliser.push(before_TC)
                normaliser.end_utterance()
        return normaliser.push(features_TC)
