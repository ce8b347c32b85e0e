"""The numbers of one feature in one trial of a mapped file, and several of them side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cortext.data.checks import FaultError
from cortext.data.rebin import rebin

MOST_BYTES = 1 << 28
"""Most bytes of one trial's numbers of one feature: hours of binned features."""
EDIT = "correct the mapping"


@dataclass(frozen=True, slots=True)
class FeaturePart:
    """One feature of the mapping in one trial.

    Attributes:
        name: Name of the feature in the mapping.
        n_bins: Length in the file's bins.
        bin_ms: Length of the file's bins.
        is_counts: Whether joined bins are summed.
        read: Reads the numbers, [T, C].
    """

    name: str
    n_bins: int
    bin_ms: float
    is_counts: bool
    read: Callable[[], np.ndarray]

    def n_rebinned(self, bin_ms: float) -> int:
        """Return the length in bins of another length, as `rebin` counts them."""
        if self.bin_ms == bin_ms:
            return self.n_bins
        return len(rebin(np.zeros((self.n_bins, 1), np.float32), self.bin_ms, bin_ms))

    def rebinned(self, bin_ms: float) -> np.ndarray:
        """Read the numbers in bins of another length, [T, C]."""
        x_TC = self.read()
        if self.bin_ms == bin_ms:
            return x_TC
        return rebin(x_TC, self.bin_ms, bin_ms, range(x_TC.shape[1] if self.is_counts else 0))


def joined(parts: Sequence[FeaturePart], bin_ms: float) -> np.ndarray:
    """Read features and join them side by side, [T, C].

    One bin more at the end of some is dropped: the ends of bins of different length do not meet.
    """
    arrays = [part.rebinned(bin_ms) for part in parts]
    lengths = [len(array) for array in arrays]
    shortest, longest = int(np.argmin(lengths)), int(np.argmax(lengths))
    if lengths[longest] - lengths[shortest] > 1:
        raise FaultError(
            parts[longest].name,
            f"{lengths[longest]} bins of {bin_ms:g} ms found, {lengths[shortest]} in"
            f" {parts[shortest].name}",
            "correct bin_ms of the features",
        )
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate([array[: lengths[shortest]] for array in arrays], axis=1)


def check_columns(name: str, columns: Sequence[int] | None, n_columns: int) -> int:
    """Return how many columns a feature has. Raises FaultError where it lacks a chosen one."""
    if columns is None:
        return n_columns
    if max(columns) >= n_columns:
        raise FaultError(
            name,
            f"column {max(columns)} does not exist, 0 to {n_columns - 1} found",
            "correct columns in the mapping",
        )
    return len(columns)


def check_bytes(name: str, n_bins: int, width: int, item: int) -> None:
    """Raise FaultError for a trial that is too large to be one of binned features."""
    if n_bins * width * item > MOST_BYTES:
        raise FaultError(
            name,
            f"a trial of {n_bins} bins x {width} columns of {item} bytes found, at most"
            f" {MOST_BYTES >> 20} MiB expected",
            "check the trial's start and stop",
        )
