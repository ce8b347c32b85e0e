"""Time series of an NWB file: a group with `data`, and either `timestamps` or `starting_time`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import h5py
import numpy as np

from cortext.data import hdf5_input
from cortext.data.checks import FaultError
from cortext.data.hdf5_chunks import Values
from cortext_data.readers.files.nwb_values import (
    EXPORT,
    attribute,
    dataset,
    length,
    number_of,
    numbers,
    read_all,
)

_MOST_TIMES = 20_000_000  # 160 MB of float64
_MOST_BYTES = 1 << 29  # read of a series at once


@dataclass(frozen=True, eq=False)
class NwbSeries:
    """A time series, of which only the shape has been read.

    Attributes:
        path: Place in the file, such as `acquisition/binned_spikes`.
        shape: [T] or [T, C].
        dtype: Type of the numbers in the file.
        unit: Unit of the values, as the file states it.
        rate: Samples a second; None where the file has a time for each sample.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype
    unit: str
    rate: float | None
    _data: Values = field(repr=False)
    _timestamps: Values | None = field(repr=False)
    _start: float = field(repr=False)
    _conversion: float = field(repr=False)
    _offset: float = field(repr=False)
    _channels: Values | None = field(repr=False)

    def times(self) -> np.ndarray:
        """Return the time of each sample in seconds, float64 [T]."""
        n = self.shape[0]
        if n > _MOST_TIMES:
            finding = f"{n} samples found, at most {_MOST_TIMES} expected"
            raise FaultError(self.path, finding, "name a series of binned features")
        if self._timestamps is None:
            assert self.rate is not None
            return self._start + np.arange(n) / self.rate
        times_T = read_all(self._timestamps).astype(np.float64, copy=False)
        if not np.isfinite(times_T).all():
            raise FaultError(self._timestamps.name, "NaN or Inf found, seconds expected", EXPORT)
        return times_T

    def read(
        self, start: int = 0, stop: int | None = None, columns: slice | Sequence[int] | None = None
    ) -> np.ndarray:
        """Return samples start:stop in the series' unit, [T] or [T, C].

        Args:
            start: First sample.
            stop: Sample after the last one; the end by default.
            columns: Channels to read, of a series [T, C]; all by default.

        Raises:
            FaultError: For damage, and for more than 512 MiB at once.
        """
        stop = self.shape[0] if stop is None else stop
        n_bytes = max(stop - start, 0) * math.prod(self.shape[1:]) * self._data.n_bytes
        if n_bytes > _MOST_BYTES:
            finding = f"{n_bytes >> 20} MiB asked for at once, at most {_MOST_BYTES >> 20} possible"
            raise FaultError(self.path, finding, "name a series of binned features")
        if not n_bytes:
            x = np.empty((0, *self.shape[1:]), self.dtype)
        else:
            x = self._boxes.read(slice(start, stop), *(slice(0, n) for n in self.shape[1:]))
        if self._channels is not None:
            x = x * read_all(self._channels)
        if columns is not None:
            x = x[:, columns]
        if self._conversion != 1:
            x = x * self._conversion
        return x if self._offset == 0 else x + self._offset

    @cached_property
    def _boxes(self) -> hdf5_input.Boxes:
        return hdf5_input.Boxes(self._data)


def series_of(path: str, group: h5py.Group) -> NwbSeries | None:
    """Return the series of a group; None where the group is none."""
    timed = hdf5_input.has(group, "timestamps")
    if not hdf5_input.has(group, "data") or not (timed or hdf5_input.has(group, "starting_time")):
        return None
    data = dataset(group, "data", path)
    if not 1 <= len(data.shape) <= 2:
        finding = f"shape {data.shape} found, [samples] or [samples, channels] expected"
        parts = ", or write its parts as series of their own" if len(data.shape) > 2 else ""
        raise FaultError(path, finding, f"name another series{parts}")
    timestamps, start, rate = None, 0.0, None
    if timed:
        timestamps = numbers(group, "timestamps", f"{path}/timestamps", None)
        n = length(timestamps)
        if n != data.shape[0] and n == data.shape[-1]:
            finding = f"shape {data.shape} found for {n} times, [samples, channels] expected"
            raise FaultError(
                path, finding, "it is probably transposed: write it the other way round"
            )
        if n != data.shape[0]:
            finding = f"{n} times found for {data.shape[0]} samples"
            raise FaultError(f"{path}/timestamps", finding, EXPORT)
    else:
        field = f"{path}/starting_time"
        first = dataset(group, "starting_time", field)
        if length(first) != 1 or first.dtype.kind not in "iuf":
            raise FaultError(field, "a value of another type found, a number expected", EXPORT)
        start = float(np.asarray(h5py.Dataset(first.id)[()]).item())
        rate = number_of(first, "rate", None, field)
        if not (math.isfinite(start) and math.isfinite(rate) and rate > 0):
            finding = f"{start:g} s and {rate:g} samples a second found"
            raise FaultError(field, finding, EXPORT)
    channels = None
    if hdf5_input.has(group, "channel_conversion") and len(data.shape) == 2:
        channels = numbers(group, "channel_conversion", f"{path}/channel_conversion", None)
        if length(channels) != data.shape[1]:
            finding = f"{length(channels)} factors found for {data.shape[1]} channels"
            raise FaultError(f"{path}/channel_conversion", finding, EXPORT)
    return NwbSeries(
        path,
        data.shape,
        data.dtype,
        str(attribute(h5py.Dataset(data.id), "unit", f"{path}: unit") or ""),
        rate,
        data,
        timestamps,
        start,
        number_of(data, "conversion", 1.0, path),
        number_of(data, "offset", 0.0, path),
        channels,
    )
