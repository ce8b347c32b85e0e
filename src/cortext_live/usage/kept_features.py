"""Features of all utterances of a usage log, kept to learn from where the user asked for it.

    DIR/heard/<block>-<number>.safetensors   features_TC of an utterance

Block and number are those of kept recordings (`usage.writer`): the second of the log's first
utterance, and the utterance's place in the log. So another log in the same directory is not taken
for this one.

They are deleted when they are too old, and the oldest of them when they take too much space
(`usage.retention`).

    DIR/heard.aged   its time of change is that of the last deletion by age

Shapes: T bins, C features.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from cortext.data.conventions import FILE as CONVENTIONS
from cortext.data.conventions import Conventions
from cortext.errors import ConfigError, DataError, LiveError
from cortext.files import atomic_stream
from cortext.temporaries import clear
from cortext_live.usage.log_lines import MOST_ENTRIES
from cortext_live.usage.retention import PAUSE_S, KeptFile, beyond_quota, doubt, too_old

FOLDER = "heard"
AGED = "heard.aged"


class KeptFeatures:
    """Features of the utterances of a log. For one writer, and readers of other processes.

    Args:
        folder: Directory of the log.
        quota_bytes: Most bytes that they take together.
        days: Days for which they are kept.
        clock: Returns the time, seconds since 1970.

    Attributes:
        problem: Why the last `tidy` did not delete what it should; empty for nothing.

    Raises:
        ConfigError: For a quota or days that are not positive.
    """

    def __init__(
        self,
        folder: str | Path,
        quota_bytes: float = 2e9,
        days: float = 30.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not (quota_bytes > 0 and days > 0):
            raise ConfigError(
                f"recordings of at most {quota_bytes:g} bytes are kept for {days:g} days",
                fix="give positive numbers",
            )
        self.folder = Path(folder) / FOLDER
        self._aged = Path(folder) / AGED
        self._quota_bytes = quota_bytes
        self._days = days
        self._clock = clock
        self.problem = ""

    def state(self, conventions: Conventions) -> None:
        """Write the conventions of the features beside them (`cortext.json`).

        Raises:
            LiveError: Features that are kept already have others, or the disk is full.
        """
        if any(self.folder.glob("*.safetensors")):
            conventions.require(
                self.conventions,
                mine="the model",
                theirs="the features that this log keeps",
                where=self.folder,
                error=LiveError,
                fix="give another --session-log",
            )
        if not conventions.to_json() and not self.folder.exists():
            return  # there is nothing to state
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            conventions.write(self.folder)
            if (path := self.folder / CONVENTIONS).exists():
                path.chmod(0o600)
        except (OSError, DataError) as error:
            raise LiveError(f"conventions cannot be kept: {error}", where=self.folder) from None

    @property
    def conventions(self) -> Conventions:
        """Conventions of the kept features. Raises DataError for a damaged file of them."""
        return Conventions.read(self.folder)

    def keep(self, block: int, number: int, features_TC: np.ndarray) -> None:
        """Keep the features of an utterance, and delete those that are too old or too many.

        Args:
            block: Second of the log's first utterance.
            number: Its place in the log, from 0.
            features_TC: float32 [T, C], in the conventions of the log's recordings.

        Raises:
            LiveError: The disk is full, or they take more than the quota; the others stay.
        """
        path = self.path(block, number)
        if features_TC.nbytes > self._quota_bytes:
            problem = (
                f"the features of an utterance are not kept: they take {features_TC.nbytes} bytes"
            )
            raise LiveError(problem, where=path, fix="give a larger --record-quota-gb")
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            content = save({"features_TC": np.ascontiguousarray(features_TC, np.float32)})
            with atomic_stream(path, private=True) as file:
                file.write(content)
        except OSError as error:
            fix = "free some space, or lower --record-quota-gb"
            problem = f"the features of an utterance cannot be kept: {error.strerror}"
            raise LiveError(problem, where=path, fix=fix) from None
        self.tidy(block)

    def read(self, block: int, number: int) -> np.ndarray | None:
        """Return the features of an utterance, float32 [T, C]; None where they are not kept.

        None, too, for a damaged file.
        """
        try:
            return self.load(block, number)
        except (DataError, OSError):
            return None

    def load(self, block: int, number: int) -> np.ndarray | None:
        """Return the features of an utterance, float32 [T, C]; None where they are not kept.

        Raises:
            DataError: The file is damaged.
            OSError: It cannot be read.
        """
        path = self.path(block, number)
        try:
            features_TC: np.ndarray = load(path.read_bytes())["features_TC"]
        except FileNotFoundError:
            return None
        except (KeyError, ValueError, SafetensorError):
            raise DataError("the file of its features is damaged", where=path) from None
        if not (
            features_TC.dtype == np.float32
            and features_TC.ndim == 2
            and np.isfinite(features_TC).all()
        ):
            raise DataError("its features are no finite numbers [bins, features]", where=path)
        return features_TC

    def next_number(self, block: int) -> int:
        """Return the number after the last one of a block that has features; 0 for none."""
        stems = (path.stem.split("-") for path in self.folder.glob(f"{block}-*.safetensors"))
        numbers = (int(stem[-1]) for stem in stems if stem[-1].isdecimal())
        return 1 + max((n for n in numbers if n < MOST_ENTRIES - 1), default=-1)

    def tidy(self, block: int | None = None) -> None:
        """Delete features that are too old or too much, and what a killed process left.

        Args:
            block: The log that is written now; None where it is empty.
        """
        clear(self.folder)
        files, now_s, self.problem = self._in_order(block), self._clock(), ""
        surplus = beyond_quota(files, self._quota_bytes)
        self._delete(surplus)
        gone = {each.path for each in surplus}
        left = [each for each in files if each.path not in gone]
        if problem := doubt(left, self._days, now_s):
            self.problem = self.problem or problem
        elif self._may_delete_by_age(now_s) and (old := too_old(left, self._days, now_s)):
            with suppress(OSError):
                self._aged.touch(mode=0o600)
                os.utime(self._aged, (now_s, now_s))
            self._delete(old)

    def _in_order(self, block: int | None) -> list[KeptFile]:
        """Return the kept files in the order of the log; those of other logs come first."""
        files = []
        for path in self.folder.glob("*.safetensors"):
            began, _, number = path.stem.partition("-")
            if began.isdecimal() and number.isdecimal():  # else it is none of ours
                with suppress(OSError):
                    status = path.stat()
                    place = int(began) == block, int(began), int(number)
                    files.append((place, KeptFile(path, status.st_mtime, status.st_size)))
        return [each for _, each in sorted(files, key=lambda pair: pair[0])]

    def _may_delete_by_age(self, now_s: float) -> bool:
        """Tell whether the last deletion by age was half a day ago, by the clock, or never."""
        try:
            return abs(now_s - self._aged.stat().st_mtime) >= PAUSE_S
        except OSError:
            return True

    def _delete(self, files: list[KeptFile]) -> None:
        for each in files:
            try:
                each.path.unlink(missing_ok=True)
            except OSError as error:
                problem = f"{each.path}: it is too old or too much, and cannot be deleted"
                self.problem = f"{problem}: {error.strerror}; check the folder's permissions"

    def path(self, block: int, number: int) -> Path:
        """Return the file of an utterance's features, which need not exist."""
        return self.folder / f"{block}-{number}.safetensors"
