"""Features of all utterances of a usage log, kept to learn from where the user asked for it.

    DIR/heard/<block>-<number>.safetensors   features_TC of an utterance

Block and number are those of kept recordings (`usage.writer`): the second of the log's first
utterance, and the utterance's place in the log. So another log in the same directory is not taken
for this one.

They are deleted when they are too old, and the oldest of them when they take too much space.

Shapes: T bins, C features.
"""

from __future__ import annotations

import time
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
from cortext.usage.log_lines import MOST_ENTRIES

HEARD = "heard"
DAY_NS = 86_400 * 10**9


class HeardFeatures:
    """Features of the utterances of a log. For one writer, and readers of other processes.

    Args:
        folder: Directory of the log.
        quota_bytes: Most bytes that they take together.
        days: Days for which they are kept.

    Raises:
        ConfigError: For a quota or days that are not positive.
    """

    def __init__(self, folder: str | Path, quota_bytes: float = 2e9, days: float = 30.0) -> None:
        if not (quota_bytes > 0 and days > 0):
            raise ConfigError(
                f"recordings of at most {quota_bytes:g} bytes are kept for {days:g} days",
                fix="give positive numbers",
            )
        self.folder = Path(folder) / HEARD
        self._quota_bytes = quota_bytes
        self._days = days

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
        """Keep the features of an utterance, and delete what is too old or too much.

        Args:
            block: Second of the log's first utterance.
            number: Its place in the log, from 0.
            features_TC: float32 [T, C], in the conventions of the log's recordings.

        Raises:
            LiveError: The disk is full; the others stay.
        """
        path = self.path(block, number)
        try:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            content = save({"features_TC": np.ascontiguousarray(features_TC, np.float32)})
            with atomic_stream(path, private=True) as file:
                file.write(content)
        except OSError as error:
            fix = "free some space, or lower --record-quota-gb"
            what = f"the features of an utterance cannot be kept: {error.strerror}"
            raise LiveError(what, where=path, fix=fix) from None
        self.tidy()

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
            found: np.ndarray = load(path.read_bytes())["features_TC"]
        except FileNotFoundError:
            return None
        except (KeyError, ValueError, SafetensorError):
            raise DataError("the file of its features is damaged", where=path) from None
        if not (found.dtype == np.float32 and found.ndim == 2 and np.isfinite(found).all()):
            raise DataError("its features are no finite numbers [bins, features]", where=path)
        return found

    def next_number(self, block: int) -> int:
        """Return the number after the last one of a block that has features; 0 for none."""
        stems = (path.stem.split("-") for path in self.folder.glob(f"{block}-*.safetensors"))
        numbers = (int(stem[-1]) for stem in stems if stem[-1].isdecimal())
        return 1 + max((n for n in numbers if n < MOST_ENTRIES - 1), default=-1)

    def tidy(self) -> None:
        """Delete features that are too old or too much, and what a killed process left."""
        clear(self.folder)
        found = []
        for path in self.folder.glob("*.safetensors"):
            with suppress(OSError):
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, path))
        kept_bytes = 0
        oldest_ns = time.time_ns() - int(self._days * DAY_NS)
        for when_ns, size, path in sorted(found, reverse=True):
            kept_bytes += size
            if kept_bytes > self._quota_bytes or when_ns < oldest_ns:
                with suppress(OSError):
                    path.unlink(missing_ok=True)

    def path(self, block: int, number: int) -> Path:
        """Return the file of an utterance's features, which need not exist."""
        return self.folder / f"{block}-{number}.safetensors"
