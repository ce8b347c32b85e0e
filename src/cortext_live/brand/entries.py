"""Entries of BRAND streams: array bytes, running numbers, states, and problems of an utterance.

T bins, C features.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from cortext.errors import DataError, shown
from cortext_live.brand.parameters import NodeConfig
from cortext_live.core.log import event
from cortext_live.core.redis_link import RedisLink

LARGEST_FEATURE = 1e6
MOST_WILD = 0.25
"""Share of an entry that bad channels may have; of bytes of another type more is wild."""
SMALLEST_FEATURE = 1e-30
"""Bounds of features other than zero: numbers beyond are bytes of another dtype."""
LARGEST_INDEX = 2**53
"""Largest running number: all numbers up to it are exact in JSON and in double precision."""
MOST_BINS = 3_000
"""Most bins in an entry that may hold any number of them: a minute."""
_DTYPES = ("float32", "float64", "float16", "int8", "int16", "int32", "int64")


def timestamp() -> bytes:
    """Return BRAND's `ts`: the monotonic clock in ns, as bytes of an unsigned 64-bit number."""
    return uint64(time.monotonic_ns())


def uint64(number: int) -> bytes:
    """Return the bytes of an unsigned 64-bit number, little-endian."""
    return struct.pack("<Q", number)


def index_of(value: bytes | None, near: int | None = None) -> int | None:
    """Return the running number of an entry; None where the field holds none.

    It is written as bytes of an unsigned number (8, 4 or 2) or as decimal digits. A number beyond
    `LARGEST_INDEX` is none: nobody counts that far, but -1 in 8 bytes lies there. Bytes that are
    all digits are decimal, unless the binary number is nearer to an expected one: a source that
    counts with 2 bytes comes to "00" after four minutes.

    Args:
        value: The field.
        near: A number that was read lately.
    """
    # 2^64 has 20 digits; `int` would raise ValueError for thousands of them.
    if not value or len(value) > 20:
        return None
    numbers = [int(value)] if value.isdigit() else []
    if len(value) in (2, 4, 8) or (len(value) == 1 and not numbers):
        numbers.append(int.from_bytes(value, "little"))
    numbers = [number for number in numbers if number <= LARGEST_INDEX]
    if len(numbers) > 1 and near is not None:
        numbers.sort(key=lambda number: abs(number - near))
    return numbers[0] if numbers else None


def no_index(name: str, value: bytes) -> str:
    """Return the problem of a field that holds no running number."""
    return f"{name} is {shown(value[:24])} ({len(value)} bytes); a number of at most 2^53 is needed"


class EntryReader:
    """Reads bins from entries as the parameters say.

    Args:
        parameters: The node's parameters.
        n_features: Features of a bin of the model.
    """

    def __init__(self, parameters: NodeConfig, n_features: int) -> None:
        self._field = parameters.input_field.encode()
        self._n_features = n_features
        self._dtype = np.dtype(parameters.input_dtype)
        self._bins_per_entry = parameters.bins_per_entry

    def bins(self, fields: Mapping[bytes, bytes]) -> np.ndarray:
        """Return the bins of an entry, float32 [T, C].

        Raises:
            DataError: The field holds no such bins; the message says what it may hold.
        """
        name = self._field.decode()
        value = fields.get(self._field)
        if value is None:
            raise DataError(f"no field {name!r}")
        per_bin = self._n_features * self._dtype.itemsize
        wanted = (self._bins_per_entry or max(len(value) // per_bin, 1)) * per_bin
        if len(value) != wanted:
            raise DataError(
                f"{name} has {len(value)} bytes; {self._expected(wanted)}{self._guess(len(value))}"
            )
        if len(value) > MOST_BINS * per_bin and self._bins_per_entry is None:
            raise DataError(
                f"{name} has {len(value) // per_bin} bins; at most {MOST_BINS} are taken at once"
            )
        numbers = np.frombuffer(value, dtype=self._dtype)
        with np.errstate(over="ignore", invalid="ignore"):
            bins_TC: np.ndarray = numbers.astype(np.float32).reshape(-1, self._n_features)
        size_TC = np.abs(bins_TC)
        wild_TC = ~(size_TC <= LARGEST_FEATURE)
        tiny_TC = (size_TC > 0) & (size_TC < SMALLEST_FEATURE)
        if (wild_TC | tiny_TC).mean() <= MOST_WILD and (size_TC >= SMALLEST_FEATURE).any():
            # A few bad channels: the pipeline leaves out values that are no numbers.
            bins_TC[wild_TC] = np.nan
            return bins_TC
        largest = size_TC.max()
        if not np.isfinite(largest):
            raise DataError(f"{name} holds NaN or infinity")
        if largest > LARGEST_FEATURE or 0 < largest < SMALLEST_FEATURE:
            raise DataError(
                f"{name} holds numbers of the size {largest:.1g}: input_dtype is not {self._dtype}"
            )
        return bins_TC

    def _expected(self, n_bytes: int) -> str:
        n_bins = f"{self._bins_per_entry or 'whole'} bins of " if self._bins_per_entry != 1 else ""
        return f"{n_bytes} are needed for {n_bins}{self._n_features} {self._dtype}"

    def _guess(self, n_bytes: int) -> str:
        """Name the dtypes that the number of bytes would fit."""
        n_numbers = (self._bins_per_entry or 1) * self._n_features
        fitting = [name for name in _DTYPES if np.dtype(name).itemsize * n_numbers == n_bytes]
        return f" ({' or '.join(fitting)} would fit)" if fitting else ""


MOST_PROBLEMS = 5
"""Problems of an utterance that are named; the others are counted."""


class NodeStates:
    """The states of a node, on the stream NICK_state."""

    def __init__(self, link: RedisLink, nickname: str) -> None:
        self._link = link
        self._nickname = nickname

    def write(self, status: str, message: str = "", **facts: str) -> None:
        """Write a state to the stream and to the log; `facts` are more fields of the stream.

        Nodes in Python have the state in `status`, those in C in `state`: both fields are written.
        """
        level = {"NODE_FATAL_ERROR": "error", "NODE_WARNING": "warning"}.get(status, "info")
        event(status.lower(), level, node=self._nickname, message=message)
        code = int(status == "NODE_FATAL_ERROR")
        fields = {
            "code": code,
            "status": status,
            "state": status,
            "message": message,
            "ts": timestamp(),
        }
        self._link.add(f"{self._nickname}_state", fields | facts)


@dataclass
class NodeUtterance:
    """An utterance of a node in progress, with its counts and problems."""

    trial: bytes = b""
    first_index: int | None = None
    n_bins: int = 0
    n_entries: int = 0
    n_lost: int = 0
    n_unusable: int = 0
    n_duplicates: int = 0
    problems: list[str] = field(default_factory=list)
    n_problems: int = 0

    def add_problem(self, problem: str) -> bool:
        """Note a problem; return whether it is among the first, which are reported at once."""
        self.n_problems += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)
            return True
        return False

    @property
    def counts(self) -> dict[str, int]:
        """Counts of bins that were decoded, and of entries that were not, by name."""
        return {
            name: getattr(self, name) for name in ("n_bins", "n_lost", "n_unusable", "n_duplicates")
        }

    @property
    def error(self) -> str:
        """All problems in one text; empty without any."""
        more = self.n_problems - len(self.problems)
        return "; ".join([*self.problems, f"and {more} more"] if more else self.problems)
