"""Access to NWB 2 files with h5py alone: time series, tables of trials and spike times.

Neurodata Without Borders is HDF5 with a fixed layout (Rübel et al. 2022, nwb-schema 2): a group
with `data` and either `timestamps` or `starting_time` is a time series; a group with the attribute
`colnames` is a table whose columns are datasets. Nothing is read until it is asked for, and only
from the file itself.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5g, h5o

from cortext.data import hdf5_input
from cortext.data.checks import AGAIN, FaultError
from cortext.errors import nearest
from cortext_data.readers.files.hdf5_text import are_texts
from cortext_data.readers.files.nwb_series import NwbSeries, series_of
from cortext_data.readers.files.nwb_units import Units, units_of
from cortext_data.readers.files.nwb_values import (
    EXPORT,
    attribute,
    dataset,
    is_vector,
    length,
    names,
    numbers,
    read_all,
    read_whole,
    scalar_text,
    texts,
)

TRIALS = "intervals/trials"
_FOLDERS = ("acquisition", "processing", "analysis", "stimulus", "scratch")
_TABLES = ("intervals", "units", "general/extracellular_ephys", *_FOLDERS)
_DEEPEST = 8  # groups within groups; pynwb makes at most four
_MOST_GROUPS = 10_000
_MOST_ROWS = 100_000
_MOST_ELECTRODES = 100_000


@contextmanager
def open_nwb(path: Path) -> Iterator[NwbFile]:
    """Open an NWB 2 file.

    Raises FaultError for another format; damage raises it within the context.
    """
    with hdf5_input.opened(path) as file:
        version = attribute(file, "nwb_version", "nwb_version")
        if not isinstance(version, str) or not version.removeprefix("NWB-").startswith("2."):
            finding = "none" if version is None else f"{version!r:.40}"
            raise FaultError("nwb_version", f"{finding} found, version 2 of NWB expected", EXPORT)
        yield NwbFile(path, file)


class Table:
    """A table, such as `intervals/trials`; a column is read when it is asked for.

    Attributes:
        path: Place in the file.
        columns: Names of the columns, in the file's order, ragged ones included.
    """

    def __init__(self, path: str, group: h5py.Group) -> None:
        self.path = path
        self.columns = tuple(names(group, "colnames", path))
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
            finding = "a ragged column found (several values in a row), one value expected"
            raise FaultError(field, finding, "name another column")
        values = dataset(self._group, name, field)
        if not is_vector(values) or not (values.dtype.kind in "biuf" or are_texts(values)):
            finding = f"{values.dtype} of shape {values.shape} found, one number or text a row"
            raise FaultError(field, f"{finding} expected", "name another column")
        n_rows = length(values)
        if n_rows > _MOST_ROWS:
            finding = f"{n_rows} rows declared, at most {_MOST_ROWS} expected"
            raise FaultError(field, finding, EXPORT)
        if self._n_rows is None:
            self._n_rows = n_rows
        if n_rows != self._n_rows:
            finding = f"{n_rows} rows found, {self._n_rows} expected as in other columns"
            raise FaultError(field, finding, EXPORT)
        return texts(values) if are_texts(values) else read_all(values)


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
        text = scalar_text(self._file, field)
        with suppress(ValueError):
            return datetime.date.fromisoformat(("" if text is None else text)[:10])
        finding = "none" if text is None else f"{text!r:.40}"
        raise FaultError(field, f"{finding} found, a date and time expected", EXPORT)

    @property
    def subject(self) -> str | None:
        """Identifier of the participant; None where the file states none."""
        return scalar_text(self._file, "general/subject/subject_id")

    @property
    def identifier(self) -> str:
        """Identifier of the file; empty where the file states none."""
        return scalar_text(self._file, "identifier") or ""

    def has(self, path: str) -> bool:
        """Return whether the file has something in that place, or a link."""
        try:
            return hdf5_input.member(self._file, path, path) is not None
        except FaultError:
            return True

    def series(self) -> dict[str, NwbSeries]:
        """Return the time series of numbers that can be read, by their place.

        `unread` says why others cannot; `one_series` says it of one.
        """
        by_path: dict[str, NwbSeries] = {}
        for path, part in _parts(self._file, _FOLDERS):
            if isinstance(part, h5py.Group):
                with suppress(FaultError):
                    series = series_of(path, part)
                    if series is not None and series.dtype.kind in "biuf":
                        by_path[path] = series
        return by_path

    def unread(self) -> Iterator[tuple[str, str, str]]:
        """Yield place, kind and reason of everything that a mapping cannot name."""
        for path, part in _parts(self._file, ("intervals", *_FOLDERS)):
            if isinstance(part, FaultError):
                yield path, "link", part.message
                continue
            try:
                if reason := _reason(path, part):
                    yield path, *reason
            except FaultError as fault:
                yield path, "series", fault.message

    def one_series(self, path: str) -> NwbSeries:
        """Return the time series of that place, such as `acquisition/binned_spikes`.

        Raises FaultError where there is none, or it cannot be read.
        """
        group = hdf5_input.member(self._file, path, path)
        series = series_of(path, h5py.Group(group)) if isinstance(group, h5g.GroupID) else None
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
        rows_C = numbers(h5py.Group(group), "electrodes", field, _MOST_ELECTRODES)
        return read_whole(rows_C)

    def tables(self) -> tuple[str, ...]:
        """Return the places of the tables, such as `intervals/trials`."""
        return tuple(path for path, part in _parts(self._file, _TABLES) if _is_table(part))

    def table(self, path: str = TRIALS) -> Table:
        """Return the table of that place. Raises FaultError where there is none."""
        group = hdf5_input.member(self._file, path, path)
        if not isinstance(group, h5g.GroupID) or not hdf5_input.has(h5py.Group(group), "colnames"):
            raise FaultError(path, "no such table", _choice(path, self.tables()))
        return Table(path, h5py.Group(group))

    def units(self) -> Units | None:
        """Return the spike times of each unit; None without units."""
        group = hdf5_input.member(self._file, "units", "units")
        return units_of(h5py.Group(group)) if isinstance(group, h5g.GroupID) else None


def _choice(path: str, known: Collection[str]) -> str:
    return nearest(path, known) if known else "the file has none"


def _parts(
    file: h5py.File, folders: Sequence[str]
) -> Iterator[tuple[str, h5py.Group | h5d.DatasetID | FaultError]]:
    """Yield groups, links that cannot be followed, and datasets outside of tables and series.

    They come with their places, in the order of their names. A group that links lead to again,
    perhaps from within, is yielded once.
    """
    seen: set[int] = set()
    waiting = [(folder, 0) for folder in reversed(folders)]
    while waiting:
        path, depth = waiting.pop()
        try:
            opened = hdf5_input.member(file, path, path)
        except FaultError as fault:  # a link into another file, or one that leads nowhere
            yield path, fault
            continue
        if isinstance(opened, h5d.DatasetID):
            yield path, opened
        if not isinstance(opened, h5g.GroupID):
            continue
        if (place := h5o.get_info(opened).addr) in seen:
            continue
        seen.add(place)
        if len(seen) > _MOST_GROUPS:
            raise FaultError(path, f"more than {_MOST_GROUPS} groups found", AGAIN)
        group = h5py.Group(opened)
        yield path, group
        if depth < _DEEPEST:
            is_whole = _is_table(group) or hdf5_input.has(group, "data")
            inner = [name for name in group if not is_whole or _is_group(group, name)]
            waiting += [(f"{path}/{name}", depth + 1) for name in sorted(inner, reverse=True)]


def _is_group(group: h5py.Group, name: str) -> bool:
    with suppress(FaultError):
        return isinstance(hdf5_input.member(group, name), h5g.GroupID)
    return False  # a link of a series or table, which says so when it is read


def _is_table(part: Any) -> bool:
    return isinstance(part, h5py.Group) and hdf5_input.has(part, "colnames")


def _reason(path: str, part: h5py.Group | h5d.DatasetID) -> tuple[str, str] | None:
    """Return kind and reason of a part that cannot be read; None of all others."""
    if isinstance(part, h5d.DatasetID):
        shape = list(part.shape or ())
        return "dataset", f"shape {shape}; only time series and columns of tables are read"
    if _is_table(part):
        if not hdf5_input.has(part, "spike_times"):
            return None
        return "spikes", "only spikes of the table `units` are read; write them there"
    if not hdf5_input.has(part, "data"):
        return None
    series = series_of(path, part)
    if series is None:
        return "data", "no time series: it has neither timestamps nor starting_time"
    if series.dtype.kind not in "biuf":
        return "series", f"{series.dtype} found, numbers expected"
    return None
