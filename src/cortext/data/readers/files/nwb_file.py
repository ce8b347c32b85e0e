"""Access to NWB 2 files with h5py alone: time series, tables of trials and spike times.

Neurodata Without Borders is HDF5 with a fixed layout (Rübel et al. 2022, nwb-schema 2): a group
with `data` and either `timestamps` or `starting_time` is a time series; a group with the attribute
`colnames` is a table whose columns are datasets. Nothing is read until it is asked for, and only
from the file itself.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5o, h5t

from cortext.data import hdf5_input
from cortext.data.checks import AGAIN, FaultError
from cortext.data.hdf5_attributes import check_text_lengths
from cortext.data.hdf5_input import Values
from cortext.data.hdf5_text import are_texts, read_texts
from cortext.errors import nearest

TRIALS = "intervals/trials"
_EXPORT = "export the file again with pynwb or MatNWB"
_FOLDERS = ("acquisition", "processing", "analysis", "stimulus", "scratch")
_DEEPEST = 8  # groups within groups; pynwb makes at most four
_MOST_SERIES = 10_000
_MOST_TIMES = 20_000_000  # 160 MB of float64
_MOST_SPIKES = 40_000_000
_MOST_ROWS = 100_000
_MOST_UNITS = 100_000
_MOST_TEXT = 10_000  # characters of a cell of a table
_MOST_NAMES = 1 << 20  # bytes of the names of columns
_MOST_BYTES = 1 << 29  # read of a series at once


@contextmanager
def open_nwb(path: Path) -> Iterator[NwbFile]:
    """Open an NWB 2 file.

    Raises FaultError for what is none; what is damaged raises it within the context.
    """
    with hdf5_input.opened(path) as file:
        version = _attribute(file, "nwb_version", "nwb_version")
        if not isinstance(version, str) or not version.removeprefix("NWB-").startswith("2."):
            found = "none" if version is None else f"{version!r:.40}"
            raise FaultError("nwb_version", f"{found} found, version 2 of NWB expected", _EXPORT)
        yield NwbFile(path, file)


@dataclass(frozen=True, eq=False)
class Series:
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
            found = f"{n} samples found, at most {_MOST_TIMES} expected"
            raise FaultError(self.path, found, "name a series of binned features")
        if self._timestamps is None:
            assert self.rate is not None
            return self._start + np.arange(n) / self.rate
        times_T = _read_all(self._timestamps).astype(np.float64, copy=False)
        if not np.isfinite(times_T).all():
            raise FaultError(self._timestamps.name, "NaN or Inf found, seconds expected", _EXPORT)
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
            found = f"{n_bytes >> 20} MiB asked for at once, at most {_MOST_BYTES >> 20} possible"
            raise FaultError(self.path, found, "name a series of binned features")
        if not n_bytes:
            x = np.empty((0, *self.shape[1:]), self.dtype)
        else:
            x = self._boxes.read(slice(start, stop), *(slice(0, n) for n in self.shape[1:]))
        if self._channels is not None:
            x = x * _read_all(self._channels)
        if columns is not None:
            x = x[:, columns]
        if self._conversion != 1:
            x = x * self._conversion
        return x if self._offset == 0 else x + self._offset

    @cached_property
    def _boxes(self) -> hdf5_input.Boxes:
        return hdf5_input.Boxes(self._data)


class Table:
    """A table, such as `intervals/trials`; a column is read when it is asked for.

    Attributes:
        path: Place in the file.
        columns: Names of the columns, in the file's order, ragged ones included.
    """

    def __init__(self, path: str, group: h5py.Group) -> None:
        self.path = path
        self.columns = tuple(_names(group, "colnames", path))
        self._group = group
        self._n_rows: int | None = None

    def column(self, name: str) -> np.ndarray | list[str]:
        """Return the values of a column by row: numbers or truth values [n], or texts.

        Raises FaultError for a column that is not there, has several values in a row, or has not
        as many rows as the first column that was read.
        """
        field = f"{self.path}/{name}"
        if name not in self.columns:
            raise FaultError(field, f"no such column; {nearest(name, self.columns)}", "name one")
        if hdf5_input.has(self._group, f"{name}_index"):
            found = "a ragged column found (several values in a row), one value expected"
            raise FaultError(field, found, "name another column")
        values = _dataset(self._group, name, field)
        if len(values.shape) != 1 or not (values.dtype.kind in "biuf" or are_texts(values)):
            found = f"{values.dtype} of shape {values.shape} found, one number or text a row"
            raise FaultError(field, f"{found} expected", "name another column")
        n_rows = values.shape[0]
        if n_rows > _MOST_ROWS:
            found = f"{n_rows} rows declared, at most {_MOST_ROWS} expected"
            raise FaultError(field, found, _EXPORT)
        if self._n_rows is None:
            self._n_rows = n_rows
        if n_rows != self._n_rows:
            found = f"{n_rows} rows found, {self._n_rows} expected as in other columns"
            raise FaultError(field, found, _EXPORT)
        return _texts(values) if are_texts(values) else _read_all(values)


class NwbFile:
    """An open NWB file.

    Attributes:
        path: Path of the file.
    """

    def __init__(self, path: Path, file: h5py.File) -> None:
        self.path = path
        self._file = file

    @property
    def date(self) -> datetime.date:
        """Day of `session_start_time`, in the time zone that the file states."""
        field = "session_start_time"
        text = _scalar_text(self._file, field)
        with suppress(ValueError):
            return datetime.date.fromisoformat(("" if text is None else text)[:10])
        found = "none" if text is None else f"{text!r:.40}"
        raise FaultError(field, f"{found} found, a date and time expected", _EXPORT)

    @property
    def subject(self) -> str | None:
        """Identifier of the participant; None where the file states none."""
        return _scalar_text(self._file, "general/subject/subject_id")

    @property
    def identifier(self) -> str:
        """Identifier of the file; empty where the file states none."""
        return _scalar_text(self._file, "identifier") or ""

    def series(self) -> dict[str, Series]:
        """Return the time series of numbers in the file itself, by their place.

        Series that lie in other files are left out; `one_series` says so.
        """
        found: dict[str, Series] = {}
        for path, group in _groups(self._file, _FOLDERS):
            with suppress(FaultError):
                series = _series(path, group)
                if series is not None and series.dtype.kind in "biuf":
                    found[path] = series
            if len(found) > _MOST_SERIES:
                raise FaultError(path, f"more than {_MOST_SERIES} series found", AGAIN)
        return found

    def one_series(self, path: str) -> Series:
        """Return the time series of that place, such as `acquisition/binned_spikes`.

        Raises FaultError where there is none, or it cannot be read.
        """
        group = hdf5_input.member(self._file, path, path)
        series = _series(path, h5py.Group(group)) if isinstance(group, h5g.GroupID) else None
        if series is None:
            known = self.series()
            raise FaultError(path, "no such time series", _choice(path, known))
        if series.dtype.kind not in "biuf":
            raise FaultError(path, f"{series.dtype} found, numbers expected", "name another series")
        return series

    def electrodes(self, path: str) -> np.ndarray:
        """Return the row in the table of electrodes of each column of a series, int64 [C].

        Raises FaultError for a series that names no electrodes.
        """
        field = f"{path}/electrodes"
        group = hdf5_input.member(self._file, path, path)
        if not isinstance(group, h5g.GroupID) or not hdf5_input.has(
            h5py.Group(group), "electrodes"
        ):
            raise FaultError(field, "no electrodes found", "name the series' columns instead")
        rows_C = _numbers(h5py.Group(group), "electrodes", field, _MOST_UNITS)
        return _read_whole(rows_C)

    def tables(self) -> tuple[str, ...]:
        """Return the places of the tables of intervals, such as `intervals/trials`."""
        groups = _groups(self._file, ("intervals",))
        return tuple(path for path, group in groups if hdf5_input.has(group, "colnames"))

    def table(self, path: str = TRIALS) -> Table:
        """Return the table of that place. Raises FaultError where there is none."""
        group = hdf5_input.member(self._file, path, path)
        if not isinstance(group, h5g.GroupID) or not hdf5_input.has(h5py.Group(group), "colnames"):
            raise FaultError(path, "no such table", _choice(path, self.tables()))
        return Table(path, h5py.Group(group))

    def units(self) -> list[np.ndarray] | None:
        """Return the sorted spike times of each unit in seconds, float64; None without units."""
        field = "units/spike_times"
        group = hdf5_input.member(self._file, "units", "units")
        if not isinstance(group, h5g.GroupID):
            return None
        units = h5py.Group(group)
        if not hdf5_input.has(units, "spike_times"):
            return None
        spikes = _numbers(units, "spike_times", field, _MOST_SPIKES)
        ends = _numbers(units, "spike_times_index", f"{field}_index", _MOST_UNITS)
        times_N = _read_all(spikes).astype(np.float64, copy=False)
        ends_U = _read_whole(ends)
        if not np.isfinite(times_N).all():
            raise FaultError(field, "NaN or Inf found, seconds expected", _EXPORT)
        starts_U = np.concatenate(([0], ends_U))[:-1]
        if (ends_U < starts_U).any() or (ends_U[-1] if len(ends_U) else 0) != len(times_N):
            found = f"it does not divide {len(times_N)} spikes among {len(ends_U)} units"
            raise FaultError(f"{field}_index", found, _EXPORT)
        parts = [times_N[a:b] for a, b in zip(starts_U, ends_U, strict=True)]
        for part in parts:
            if (part[1:] < part[:-1]).any():
                part.sort()
        return parts


def _choice(path: str, known: Collection[str]) -> str:
    return nearest(path, known) if known else "the file has none"


def _groups(file: h5py.File, folders: Sequence[str]) -> Iterator[tuple[str, h5py.Group]]:
    """Yield the groups under some folders with their places, in the order of their names.

    A group that links lead to again, perhaps from within, is yielded once.
    """
    seen: set[int] = set()
    waiting = [(folder, 0) for folder in reversed(folders)]
    while waiting:
        path, depth = waiting.pop()
        try:
            found = hdf5_input.member(file, path, path)
        except FaultError:  # a link into another file, or one that leads nowhere
            continue
        if not isinstance(found, h5g.GroupID):
            continue
        if (place := h5o.get_info(found).addr) in seen:
            continue
        seen.add(place)
        group = h5py.Group(found)
        yield path, group
        if depth < _DEEPEST:
            waiting += [(f"{path}/{name}", depth + 1) for name in sorted(group, reverse=True)]


def _series(path: str, group: h5py.Group) -> Series | None:
    """Return the series of a group; None where the group is none."""
    timed = hdf5_input.has(group, "timestamps")
    if not hdf5_input.has(group, "data") or not (timed or hdf5_input.has(group, "starting_time")):
        return None
    data = _dataset(group, "data", path)
    if not 1 <= len(data.shape) <= 2:
        found = f"shape {data.shape} found, [samples] or [samples, channels] expected"
        raise FaultError(path, found, "name another series")
    timestamps, start, rate = None, 0.0, None
    if timed:
        timestamps = _numbers(group, "timestamps", f"{path}/timestamps", None)
        if timestamps.shape[0] != data.shape[0]:
            found = f"{timestamps.shape[0]} times found for {data.shape[0]} samples"
            raise FaultError(f"{path}/timestamps", found, _EXPORT)
    else:
        field = f"{path}/starting_time"
        first = _dataset(group, "starting_time", field)
        if first.shape or first.dtype.kind not in "iuf":
            raise FaultError(field, "a value of another type found, a number expected", _EXPORT)
        start = float(np.asarray(h5py.Dataset(first.id)[()]))
        rate = _float(first, "rate", None, field)
        if not (math.isfinite(start) and math.isfinite(rate) and rate > 0):
            found = f"{start:g} s and {rate:g} samples a second found"
            raise FaultError(field, found, _EXPORT)
    channels = None
    if hdf5_input.has(group, "channel_conversion") and len(data.shape) == 2:
        channels = _numbers(group, "channel_conversion", f"{path}/channel_conversion", None)
        if channels.shape[0] != data.shape[1]:
            found = f"{channels.shape[0]} factors found for {data.shape[1]} channels"
            raise FaultError(f"{path}/channel_conversion", found, _EXPORT)
    return Series(
        path,
        data.shape,
        data.dtype,
        str(_attribute(h5py.Dataset(data.id), "unit", f"{path}: unit") or ""),
        rate,
        data,
        timestamps,
        start,
        _float(data, "conversion", 1.0, path),
        _float(data, "offset", 0.0, path),
        channels,
    )


def _dataset(group: h5py.Group, name: str, field: str) -> Values:
    found = hdf5_input.member(group, name, field)
    if not isinstance(found, h5d.DatasetID):
        raise FaultError(field, "dataset missing", _EXPORT)
    return hdf5_input.own_values(found, field)


def _numbers(group: h5py.Group, name: str, field: str, most: int | None) -> Values:
    """Return a dataset of numbers in one dimension, at most `most`."""
    values = _dataset(group, name, field)
    if len(values.shape) != 1 or values.dtype.kind not in "iuf":
        found = f"{values.dtype} of shape {values.shape} found, numbers in one dimension expected"
        raise FaultError(field, found, _EXPORT)
    if most is not None and values.shape[0] > most:
        found = f"{values.shape[0]} numbers declared, at most {most} expected"
        raise FaultError(field, found, _EXPORT)
    return values


def _read_all(values: Values) -> np.ndarray:
    """Read all values of a dataset in one dimension."""
    n = values.shape[0]
    return hdf5_input.Boxes(values).read(slice(0, n)) if n else np.empty(0, values.dtype)


def _read_whole(values: Values) -> np.ndarray:
    """Read all values of a dataset in one dimension as whole numbers, int64."""
    found_N = _read_all(values)
    if found_N.dtype.kind == "f" and not np.isin(found_N % 1, 0).all():  # NaN is in nothing
        raise FaultError(values.name, "numbers found that are not whole", _EXPORT)
    with np.errstate(invalid="ignore"):  # what int64 cannot hold becomes negative
        return found_N.astype(np.int64, copy=False)


def _texts(values: Values) -> list[str]:
    return [_text(cell, values.name) for cell in read_texts(values)]


def _text(cell: Any, field: str) -> str:
    if isinstance(cell, bytes):
        try:
            cell = cell.decode()
        except UnicodeDecodeError:
            found = f"{cell!r:.40} found, a text in UTF-8 expected"
            raise FaultError(field, found, AGAIN) from None
    if not isinstance(cell, str):
        raise FaultError(field, f"{cell!r:.40} found, a text expected", _EXPORT)
    if len(cell) > _MOST_TEXT:
        found = f"{len(cell)} characters found, at most {_MOST_TEXT} expected"
        raise FaultError(field, found, _EXPORT)
    return cell


def _scalar_text(file: h5py.File, path: str) -> str | None:
    """Return the text of a dataset with one value; None where there is none."""
    found = hdf5_input.member(file, path, path)
    if not isinstance(found, h5d.DatasetID):
        return None
    values = hdf5_input.own_values(found, path)
    if math.prod(values.shape) != 1 or not are_texts(values):
        what = f"{values.dtype} of shape {values.shape} found, a text expected"
        raise FaultError(path, what, _EXPORT)
    return _texts(values)[0]


def _attribute(owner: h5py.Group | h5py.Dataset, name: str, field: str) -> Any:
    """Return an attribute that is one number or text; None where there is none."""
    if not h5a.exists(owner.id, name.encode()):
        return None
    try:
        value = hdf5_input.attribute(owner, name)
    except FaultError as fault:
        raise FaultError(field, str(fault), _EXPORT) from None
    return _text(value, field) if isinstance(value, bytes) else value


def _float(values: Values, name: str, default: float | None, field: str) -> float:
    value = _attribute(h5py.Dataset(values.id), name, f"{field}: {name}")
    value = default if value is None else value
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    raise FaultError(f"{field}: {name}", f"{value!r:.40} found, a number expected", _EXPORT)


def _names(group: h5py.Group, name: str, field: str) -> list[str]:
    """Return the texts of an attribute."""
    found = h5a.open(group.id, name.encode())
    if found.get_storage_size() > _MOST_NAMES:
        raise FaultError(field, f"more than {_MOST_NAMES} bytes of names found", _EXPORT)
    kind = found.get_type()
    if isinstance(kind, h5t.TypeStringID):
        check_text_lengths(group.id, name, kind)
    elif kind.get_class() not in (h5t.INTEGER, h5t.FLOAT):  # which may hold texts of any length
        raise FaultError(
            f"{field}: {name}", "values of another type found, texts expected", _EXPORT
        )
    values = np.asarray(group.attrs[name]).ravel().tolist()
    return [_text(value, f"{field}: {name}") for value in values]
