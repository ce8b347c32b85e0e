"""The bins of a packed split: in a memory map, in TFRecord files, or in memory.

All three hold the same float16 bins, one trial after another. A trial is named by its first bin,
counted over the split as it was packed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

_PIECE = 1 << 24
"""Bytes read at once where all are read."""


class BinSource(Protocol):
    """Float16 bins of all trials of a split."""

    shape: tuple[int, int]
    """Number of bins and of features."""

    def rows(self, first: int, n_bins: int) -> np.ndarray:
        """Return the bins of the trial that begins at bin `first`: float16 [n_bins, C], a view."""

    def location(self, first: int) -> tuple[Path, int]:
        """Return the file that holds the trial's bins and the byte where they begin."""

    def pieces(self) -> Iterator[bytes | memoryview]:
        """Read all bins in order, in pieces that fit into memory."""


class MappedBins:
    """Bins in one file, which is mapped when the first one is read."""

    def __init__(self, path: Path, shape: tuple[int, int]) -> None:
        self.path = path
        self.shape = shape
        self._map: np.ndarray | None = None

    def rows(self, first: int, n_bins: int) -> np.ndarray:
        """See `BinSource`."""
        if self._map is None:
            # An array: slices of a memmap cost twice as much, for each makes an object with a file.
            self._map = np.asarray(np.memmap(self.path, np.float16, "r", shape=self.shape))
        return self._map[first : first + n_bins]

    def location(self, first: int) -> tuple[Path, int]:
        """See `BinSource`."""
        return self.path, first * _bin_bytes(self.shape)

    def pieces(self) -> Iterator[bytes]:
        """See `BinSource`. Reads the file and not the map: a file cut short gives fewer bytes."""
        with self.path.open("rb") as file:
            while piece := file.read(_PIECE):
                yield piece

    def __getstate__(self) -> dict[str, Any]:
        """Leave the map out: worker processes map the file themselves."""
        return self.__dict__ | {"_map": None}


class RecordBins:
    """Bins in TFRecord files, of which each is mapped when its first trial is read.

    Args:
        records: File and first byte of each trial by its first bin, in order.
        shape: Number of bins and of features.
    """

    def __init__(self, records: Mapping[int, tuple[Path, int]], shape: tuple[int, int]) -> None:
        self.records = records
        self.shape = shape
        self._maps: dict[Path, np.ndarray] = {}

    def rows(self, first: int, n_bins: int) -> np.ndarray:
        """See `BinSource`. They may begin at an odd byte."""
        path, byte = self.records[first]
        if path not in self._maps:
            self._maps[path] = np.asarray(np.memmap(path, np.uint8, "r"))
        return np.ndarray((n_bins, self.shape[1]), np.float16, self._maps[path].data, byte)

    def location(self, first: int) -> tuple[Path, int]:
        """See `BinSource`."""
        return self.records[first]

    def pieces(self) -> Iterator[bytes]:
        """See `BinSource`. A piece is a trial."""
        ends = [*self.records, self.shape[0]][1:]
        for (first, (path, byte)), end in zip(self.records.items(), ends, strict=True):
            with path.open("rb") as file:
                file.seek(byte)
                yield file.read((end - first) * _bin_bytes(self.shape))

    def __getstate__(self) -> dict[str, Any]:
        """Leave the maps out: worker processes map the files themselves."""
        return self.__dict__ | {"_maps": {}}


class MemoryBins:
    """Bins in memory, float16 [T, C]."""

    def __init__(self, bins_TC: np.ndarray) -> None:
        self.bins_TC = bins_TC
        self.shape: tuple[int, int] = bins_TC.shape

    def rows(self, first: int, n_bins: int) -> np.ndarray:
        """See `BinSource`."""
        return self.bins_TC[first : first + n_bins]

    def location(self, first: int) -> tuple[Path, int]:
        """Raise TypeError: there is no file."""
        raise TypeError("the bins are in memory, not in a file")

    def pieces(self) -> Iterator[memoryview]:
        """See `BinSource`."""
        yield self.bins_TC.data


def _bin_bytes(shape: tuple[int, int]) -> int:
    return shape[1] * np.dtype(np.float16).itemsize
