"""Spike times of the table of units of an NWB file.

Up to 40 million spikes are in memory. Of more, the times are gone through once, and the parts that
trials need are read when they are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from cortext.data import hdf5_input
from cortext.data.checks import FaultError
from cortext.data.hdf5_chunks import Values
from cortext_data.readers.files.nwb_values import (
    EXPORT,
    dataset,
    length,
    numbers,
    read_all,
    read_whole,
)

MOST_IN_MEMORY = 40_000_000
"""Spikes that are read at once, 320 MB."""
_MOST_SPIKES = 4_000_000_000
_MOST_UNITS = 100_000
_MOST_INTERVALS = 1_000_000
_STEP = 1 << 12  # spikes from one noted time to the next
_PIECE = 256 * _STEP  # spikes that are gone through at once
_BEST_COMPRESSION = 1032  # of zlib, by its authors
_RESTART_S = 1.0
"""Least seconds by which a clock that starts again falls back."""
_FEWEST = 20  # spikes that tell a clock that starts again from times in no order
_LEAST_RUN = 4  # spikes between two falls of a clock that starts again; 2 of random times


@dataclass
class _Order:
    """Facts shown by the order of a unit's times.

    Attributes:
        n: Number of spikes.
        n_falls: Times that are earlier than the one before.
        fall: The largest fall: the time before it and the time after it.
    """

    n: int = 0
    n_falls: int = 0
    fall: tuple[float, float] = (0.0, 0.0)

    def add(self, times: np.ndarray, before: float) -> None:
        """Count times that follow another one."""
        self.n += len(times)
        steps = np.diff(times, prepend=before)
        self.n_falls += int(np.count_nonzero(steps < 0))
        at = int(np.argmin(steps)) if len(steps) else 0
        if len(steps) and -steps[at] > self.fall[0] - self.fall[1]:
            self.fall = (float(times[at - 1]) if at else before, float(times[at]))

    @property
    def starts_again(self) -> bool:
        """True if long runs of rising times follow each other, each far behind the one before."""
        is_far = self.fall[0] - self.fall[1] > _RESTART_S
        return is_far and self.n >= _FEWEST and self.n_falls * _LEAST_RUN <= self.n

    def __add__(self, other: _Order) -> _Order:
        larger = max(self.fall, other.fall, key=lambda fall: fall[0] - fall[1])
        return _Order(self.n + other.n, self.n_falls + other.n_falls, larger)


class Units(Sequence[np.ndarray]):
    """Sorted spike times of each unit in seconds, float64 [N].

    Attributes:
        n_spikes: Spikes of all units.
        range_s: First and last time of all spikes; None without spikes.
        intervals: Periods [K, 2] in seconds in which each unit was observed; None where the file
            does not say.
    """

    def __init__(
        self, spikes: Values, ends_U: np.ndarray, intervals: list[np.ndarray] | None
    ) -> None:
        self.n_spikes = length(spikes)
        self.range_s: tuple[float, float] | None = None
        self.intervals = intervals
        self._starts_U = np.concatenate(([0], ends_U[:-1])) if len(ends_U) else ends_U
        self._ends_U = ends_U
        self._values = spikes
        self._boxes = hdf5_input.Boxes(spikes) if self.n_spikes else None
        _check_ends(f"{_FIELD}_index", ends_U, self.n_spikes, "spikes")
        self._kept: dict[int, np.ndarray] = {}
        self._marks: list[np.ndarray] = []
        self._orders: list[_Order] = []
        self._whole = read_all(spikes) if self.n_spikes <= MOST_IN_MEMORY else None
        self._survey()

    def __len__(self) -> int:
        return len(self._ends_U)

    def __getitem__(self, unit: Any) -> Any:
        """Return all times of a unit."""
        return self._sorted(unit)

    def between(self, unit: int, start: float, stop: float) -> np.ndarray:
        """Return the times of a unit from `start` to before `stop`, in seconds."""
        if self._whole is not None or unit in self._kept:
            times_N = self._sorted(unit)
        else:
            low, high = np.searchsorted(self._marks[unit], [start, stop]).tolist()
            first, last = int(self._starts_U[unit]), int(self._ends_U[unit])
            times_N = self._read(first + max(low - 1, 0) * _STEP, min(first + high * _STEP, last))
        low, high = np.searchsorted(times_N, [start, stop]).tolist()
        return times_N[low:high]

    def _sorted(self, unit: int) -> np.ndarray:
        if unit not in self._kept:
            times_N = self._read(int(self._starts_U[unit]), int(self._ends_U[unit]))
            if self._orders[unit].n_falls:
                times_N = np.sort(times_N)
            if self._whole is None:
                return times_N
            self._kept[unit] = times_N
        return self._kept[unit]

    def _read(self, first: int, last: int) -> np.ndarray:
        """Return times by their places among all spikes."""
        if self._whole is not None:
            return self._whole[first:last].astype(np.float64, copy=False)
        if last <= first or self._boxes is None:
            return np.zeros(0)
        box = [slice(first, last) if n > 1 else slice(0, n) for n in self._values.shape]
        return self._boxes.read(*box).ravel().astype(np.float64, copy=False)

    def _pieces(self, unit: int) -> Iterator[np.ndarray]:
        last = int(self._ends_U[unit])
        for at in range(int(self._starts_U[unit]), last, _PIECE):
            yield self._read(at, min(at + _PIECE, last))

    def _survey(self) -> None:
        """Go through all times once: their range, their order, and marks to find them by.

        Raises FaultError for times that are no numbers, and for a clock that starts again.
        """
        low, high = math.inf, -math.inf
        for unit in range(len(self)):
            order = _Order()
            marks: list[np.ndarray] = []
            before = -math.inf
            for times_N in self._pieces(unit):
                if not np.isfinite(times_N).all():
                    raise FaultError(_FIELD, "NaN or Inf found, seconds expected", EXPORT)
                order.add(times_N, times_N[0] if before == -math.inf else before)
                before = float(times_N[-1])
                low, high = min(low, float(times_N.min())), max(high, float(times_N.max()))
                marks.append(times_N[::_STEP].copy())
            if order.starts_again:
                raise _starts_again(f"the times of unit {unit}", order)
            self._orders.append(order)
            self._marks.append(np.concatenate(marks) if marks else np.zeros(0))
        if self.n_spikes:
            self.range_s = (low, high)
        fallen = sum((order for order in self._orders if order.n_falls), _Order())
        if fallen.starts_again:
            raise _starts_again("the times of several units", fallen)
        self._keep_unsorted(fallen.n)

    def _keep_unsorted(self, n_spikes: int) -> None:
        """Keep units in memory whose times have to be sorted, where others are not kept."""
        if self._whole is not None:
            return
        if n_spikes > MOST_IN_MEMORY:
            finding = f"{n_spikes:,} times in no order found, at most {MOST_IN_MEMORY:,} are sorted"
            raise FaultError(_FIELD, finding, "sort the times of each unit")
        for unit, order in enumerate(self._orders):
            if order.n_falls:
                self._kept[unit] = self._sorted(unit)


_FIELD = "units/spike_times"


def _starts_again(what: str, order: _Order) -> FaultError:
    before, after = order.fall
    return FaultError(
        _FIELD,
        f"{what} start again: {after:.6g} s follows {before:.6g} s; times of one clock expected",
        "add the time of its start to each part of the recording, or write a file for each",
    )


def units_of(group: h5py.Group) -> Units | None:
    """Return the units of a table; None where it has no spike times."""
    if not hdf5_input.has(group, "spike_times"):
        return None
    spikes = numbers(group, "spike_times", _FIELD, _MOST_SPIKES)
    ends_U = read_whole(numbers(group, "spike_times_index", f"{_FIELD}_index", _MOST_UNITS))
    stored = spikes.id.get_storage_size() * _BEST_COMPRESSION
    if length(spikes) > MOST_IN_MEMORY and length(spikes) * spikes.n_bytes > stored:
        finding = f"{length(spikes):,} numbers declared, which {stored:,} bytes cannot hold"
        raise FaultError(_FIELD, finding, EXPORT)
    return Units(spikes, ends_U, _intervals(group, len(ends_U)))


def _check_ends(field: str, ends_U: np.ndarray, n: int, what: str) -> None:
    starts_U = np.concatenate(([0], ends_U))[:-1]
    if (ends_U < starts_U).any() or (ends_U[-1] if len(ends_U) else 0) != n:
        finding = f"it does not divide {n} {what} among {len(ends_U)} units"
        raise FaultError(field, finding, EXPORT)


def _intervals(group: h5py.Group, n_units: int) -> list[np.ndarray] | None:
    """Return the periods in which each unit was observed, [K, 2], those that touch as one."""
    field = "units/obs_intervals"
    if not hdf5_input.has(group, "obs_intervals"):
        return None
    values = dataset(group, "obs_intervals", field)
    ends_U = read_whole(numbers(group, "obs_intervals_index", f"{field}_index", _MOST_UNITS))
    shape = values.shape
    if len(shape) != 2 or shape[1] != 2 or shape[0] > _MOST_INTERVALS or len(ends_U) != n_units:
        finding = f"shape {shape} found for {len(ends_U)} of {n_units} units, [periods, 2] expected"
        raise FaultError(field, finding, EXPORT)
    _check_ends(f"{field}_index", ends_U, shape[0], "periods")
    found_K2 = read_all(values).reshape(shape).astype(np.float64)
    starts_U = np.concatenate(([0], ends_U))[:-1]
    return [_merged(found_K2[a:b]) for a, b in zip(starts_U, ends_U, strict=True)]


def _merged(periods_K2: np.ndarray) -> np.ndarray:
    """Return periods in order, those that touch or overlap as one."""
    merged: list[list[float]] = []
    for start, stop in sorted(periods_K2.tolist()):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], stop)
        else:
            merged.append([start, stop])
    return np.array(merged, np.float64).reshape(-1, 2)
