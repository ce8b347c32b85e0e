"""Any lab's MATLAB files, by a mapping: cells of trials, cubes, or continuous bins with epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cortext.data.checks import FaultError
from cortext_data.readers.files.matlab import MatFile, Numbers, open_mat
from cortext_data.readers.mapped.mapping import (
    Feature,
    MatMapping,
    load_mapping,
    session_name,
)
from cortext_data.readers.mapped.parts import EDIT, FeaturePart, check_bytes, check_columns
from cortext_data.readers.mapped.strays import refused, without_strays
from cortext_data.readers.mapped.trials import ColumnValues, count_overlaps, mapped_source
from cortext_data.readers.recording import Source
from cortext_data.readers.source_files import file_faults, files_of

_MOST_TRIALS = 100_000  # of a file
_FEW = 3  # cells whose equal rows say something


def mat(source: Path, mapping: Path) -> Source:
    """Return the recordings of MATLAB files, v5 or v7.3.

    Args:
        source: A file, or a folder with files `*.mat` at any depth.
        mapping: Mapping file.

    Raises:
        ConfigError: For a mapping that cannot be right.
        DataError: For a source without MATLAB files, and a file without a date.
    """
    keys = load_mapping(mapping, MatMapping, "mat")
    sessions: dict[str, list[Path]] = {}
    undated: list[FaultError] = []
    # The folder around a file, or the source itself, may have the date in its name.
    above = Path(source).absolute().parent
    above = above if Path(source).is_dir() else above.parent
    files = files_of(source, ".mat")
    kept, others = without_strays(files, [each.name for each in keys.features], _has_one)
    for path in kept:
        if (day := keys.session.date_of(path.absolute().relative_to(above))) is not None:
            sessions.setdefault(session_name(keys.participant, day), []).append(path)
            continue
        undated.append(
            FaultError(
                None,
                f"no date of the form {keys.session.date} in its name",
                "correct session.date in the mapping, or give its date under session.files",
            )
        )
        others.append(refused(path, undated[-1]))
    if undated and not sessions:
        with file_faults(others[-len(undated)].paths[0]):
            raise undated[0]

    @contextmanager
    def open_file(path: Path) -> Iterator[_MatTrials]:
        with open_mat(path, keys.variables()) as file:
            yield _MatTrials(file, keys)

    return mapped_source("mat", sessions, open_file, keys, mapping, others)


def _has_one(path: Path, names: Sequence[str]) -> bool:
    with open_mat(path, ()) as file:
        return any(name.partition(".")[0] in file.names for name in names)


class _MatTrials:
    """The trials of a MATLAB file; a `MappedFile`."""

    def __init__(self, file: MatFile, mapping: MatMapping) -> None:
        self._file = file
        self._mapping = mapping
        layouts: dict[str, Callable[[MatFile, Feature, MatMapping], _Cells | _Cube | _Epochs]]
        layouts = {"cells": _Cells, "cube": _Cube, "epochs": _Epochs}
        layout = layouts[mapping.trials.layout]
        self._features = [layout(file, feature, mapping) for feature in mapping.features]
        first = self._features[0]
        self.n_trials = first.n_trials
        for feature in self._features[1:]:
            self._check_number(feature.name, feature.n_trials)
        if not self.n_trials:
            raise FaultError(first.name, "no trials found", EDIT)
        self.widths: Sequence[int] = [feature.width for feature in self._features]
        self.n_overlaps = first.n_overlaps if isinstance(first, _Epochs) else 0

    def absent(self, trial: int) -> str | None:
        reasons = (feature.absent(trial) for feature in self._features)
        return next((why for why in reasons if why), None)

    def notes(self) -> Sequence[str]:
        return [note for feature in self._features for note in feature.notes()]

    def _check_number(self, name: str, n_values: int) -> None:
        if n_values != self.n_trials:
            raise FaultError(
                name,
                f"{n_values} values found, one for each of {self.n_trials} trials expected",
                "name a variable with a value for each trial",
            )

    def column(self, name: str) -> ColumnValues:
        is_text = self._file.kind(name) == "texts"
        values: ColumnValues = self._file.texts(name) if is_text else self._file.vector(name)
        self._check_number(name, len(values))
        return values

    def cues(self, name: str) -> Sequence[str]:
        return self._file.texts(name)

    def blocks(self, name: str) -> ColumnValues:
        assert self._mapping.block is not None
        if self._mapping.block.per == "trial":
            return self.column(name)
        epochs = self._features[0]
        assert isinstance(epochs, _Epochs)
        values_T = self._file.vector(name)
        if len(values_T) != epochs.n_bins:
            finding = f"{len(values_T)} values found, one for each of {epochs.n_bins} bins expected"
            raise FaultError(name, finding, "name a variable with a value for each bin")
        blocks: list[Any] = []
        for trial in range(self.n_trials):
            try:
                blocks.append(epochs.block(trial, name, values_T))
            except FaultError as fault:
                blocks.append(fault)
        return blocks

    def parts(self, trial: int) -> list[FeaturePart]:
        return [feature.part(trial) for feature in self._features]


class _Cells:
    """A cell array with the bins of one trial in each cell."""

    def __init__(self, file: MatFile, feature: Feature, mapping: MatMapping) -> None:
        self.name = feature.name
        self._cells = file.cells(feature.name, checked=False)
        self._columns = feature.numbers()
        self._is_counts = feature.is_counts
        self._bin_ms = mapping.bin_ms_of(feature)
        self.n_trials = len(self._cells)
        full = [i for i, cell in enumerate(self._cells) if cell.is_readable and 0 not in cell.shape]
        if not any(cell.is_readable for cell in self._cells):
            self._cells = file.cells(feature.name)  # which says what they are
        self._first = full[0] if full else 0
        self._check_rows([self._cells[i].shape for i in full])
        self.width = 0
        if self._cells:
            self.width = check_columns(self.name, self._columns, self._n_columns(self._first))

    def _check_rows(self, shapes: list[tuple[int, ...]]) -> None:
        """Raise FaultError where columns differ and rows do not: columns are bins then."""
        rows, columns = {shape[:1] for shape in shapes}, {shape[1:] for shape in shapes}
        self._is_equal = len(shapes) >= _FEW and len(rows) == len(columns) == 1
        if len(shapes) >= _FEW and len(rows) == 1 and len(columns) > 1:
            (n_rows,) = rows.pop()
            raise FaultError(
                self.name,
                f"{n_rows} rows in every cell, and columns that differ; [bins, columns] with equal"
                " columns expected",
                "transpose the cells",
            )

    def absent(self, trial: int) -> str | None:
        """Return why a trial was never recorded."""
        cell = self._cells[trial]
        return "with an empty cell" if cell.is_readable and 0 in cell.shape else None

    def notes(self) -> Sequence[str]:
        """Return what the user should know of the cells."""
        if not self._is_equal or self._columns is not None:
            return ()
        n_rows, n_columns = self._cells[self._first].shape
        return [
            f"every cell of {self.name} has {n_rows} rows and {n_columns} columns, read as"
            f" {n_rows} bins of {n_columns} features; transpose the cells if {n_rows} is the number"
            f" of channels, or write `columns: 0-{n_columns - 1}` if it is not"
        ]

    def _n_columns(self, trial: int) -> int:
        shape = self._cells[trial].shape
        if len(shape) != 2:
            finding = f"cell {trial + 1} has shape {list(shape)}, [bins, columns] expected"
            raise FaultError(self.name, finding, EDIT)
        return shape[1]

    def part(self, trial: int) -> FeaturePart:
        cell = self._cells[trial]
        cell.check()
        if self._n_columns(trial) != self._n_columns(self._first):
            raise FaultError(
                self.name,
                f"cell {trial + 1} has shape {list(cell.shape)} and cell {self._first + 1}"
                f" {list(self._cells[self._first].shape)}; [bins, columns] with equal columns"
                " expected",
                "transpose the cells where columns are bins",
            )
        n_bins = cell.shape[0]
        check_bytes(self.name, n_bins, self.width, max(4, cell.dtype.itemsize))
        read = partial(cell.read, columns=self._columns)
        return FeaturePart(self.name, n_bins, self._bin_ms, self._is_counts, read)


class _Cube:
    """An array [n, T, C] of trials that are filled up to the longest one."""

    def __init__(self, file: MatFile, feature: Feature, mapping: MatMapping) -> None:
        assert mapping.trials.lengths is not None
        self.name = feature.name
        self._cube = _with_dims(file.numbers(feature.name, 3), self.name, 3)
        self._lengths_name = mapping.trials.lengths
        _check_trials(self.name, self._cube.shape[0])
        self._lengths_N = file.vector(self._lengths_name)
        self._columns = feature.numbers()
        self._is_counts = feature.is_counts
        self._bin_ms = mapping.bin_ms_of(feature)
        self._own_ms = mapping.bin_ms_of(mapping.features[0])
        self.n_trials, self._most_bins, n_columns = self._cube.shape
        self.width = check_columns(self.name, self._columns, n_columns)
        if len(self._lengths_N) != self.n_trials:
            raise FaultError(
                self._lengths_name,
                f"{len(self._lengths_N)} lengths found for {self.n_trials} trials of {self.name}",
                EDIT,
            )

    def absent(self, trial: int) -> str | None:
        """Return why a trial was never recorded."""
        return "whose length is NaN" if np.isnan(self._lengths_N[trial]) else None

    def notes(self) -> Sequence[str]:
        """Return nothing: a length for each trial leaves no doubt about the axes."""
        return ()

    def part(self, trial: int) -> FeaturePart:
        # Lengths count bins of the first feature.
        length = float(self._lengths_N[trial]) * self._own_ms / self._bin_ms
        if not 0 < length <= self._most_bins or float(self._lengths_N[trial]) % 1:
            raise FaultError(
                self._lengths_name,
                f"trial {trial + 1} has length {self._lengths_N[trial]:g};"
                f" {self.name} has 1 to {self._most_bins} bins",
                "correct the length",
            )
        n_bins = int(length + 1e-6)
        check_bytes(self.name, self._most_bins, self.width, max(4, self._cube.dtype.itemsize))

        def read() -> np.ndarray:
            x_1TC = self._cube.read(trial, trial + 1, self._columns)
            return x_1TC[0, :n_bins]

        return FeaturePart(self.name, n_bins, self._bin_ms, self._is_counts, read)


class _Epochs:
    """Continuous bins [T, C] with the first and last bin of each trial."""

    def __init__(self, file: MatFile, feature: Feature, mapping: MatMapping) -> None:
        assert mapping.trials.epochs is not None
        self.name = feature.name
        self._bins = _with_dims(file.numbers(feature.name, 2), self.name, 2)
        self._epochs_name = mapping.trials.epochs
        epochs = _with_dims(file.numbers(self._epochs_name, 2), self._epochs_name, 2)
        if epochs.shape[1] != 2:
            finding = f"shape {list(epochs.shape)} found, [trials, 2] expected"
            fix = "transpose it" if epochs.shape[0] == 2 else EDIT
            raise FaultError(self._epochs_name, finding, fix)
        _check_trials(self._epochs_name, epochs.shape[0])
        self._epochs_N2 = epochs.read().astype(np.float64)
        self._last_bin = mapping.trials.stop_bin
        after_N = self._epochs_N2[:, 1] + (self._last_bin == "included")
        self.n_overlaps = count_overlaps(self._epochs_N2[:, 0], after_N)
        self._first_trial: dict[tuple[float, float], int] = {}
        for trial, (first, last) in enumerate(self._epochs_N2.tolist()):
            self._first_trial.setdefault((first, last), trial)
        self._columns = feature.numbers()
        self._is_counts = feature.is_counts
        self._bin_ms = mapping.bin_ms_of(feature)
        self.n_trials = epochs.shape[0]
        self.n_bins, n_columns = self._bins.shape
        self.width = check_columns(self.name, self._columns, n_columns)

        starts_N = self._epochs_N2[self._epochs_N2[:, 1] > 0, 0]
        if (starts_N[:1] == 0).any():
            finding = "the first epoch is from bin 0, and bins are counted from 1"
            raise FaultError(self._epochs_name, finding, "add 1 to all epochs")
        last = np.nanmax(self._epochs_N2, initial=0)
        if self.n_bins < min(last, n_columns) and last <= n_columns:
            finding = f"shape [{self.n_bins}, {n_columns}] found, and epochs up to bin {last:g}"
            raise FaultError(self.name, f"{finding}; [bins, columns] expected", "transpose it")

    def absent(self, trial: int) -> str | None:
        """Return why a trial was never recorded."""
        return "whose epoch is NaN" if np.isnan(self._epochs_N2[trial]).all() else None

    def notes(self) -> Sequence[str]:
        """Return nothing: the epochs count the bins."""
        return ()

    def bounds(self, trial: int) -> tuple[int, int]:
        """Return the number of a trial's first bin, from 0, and of the bin after its last."""
        first, last = self._epochs_N2[trial].tolist()
        stop = last if self._last_bin == "included" else last - 1
        if not 1 <= first <= stop <= self.n_bins or first % 1 or last % 1:
            raise FaultError(
                self._epochs_name,
                f"trial {trial + 1} is from bin {first:g} to {last:g}; {self.name} has 1 to"
                f" {self.n_bins}",
                "correct the epoch",
            )
        return int(first) - 1, int(stop)

    def block(self, trial: int, name: str, blocks_T: np.ndarray) -> float:
        """Return the block of a trial's bins; raise FaultError for several."""
        first, stop = self.bounds(trial)
        inside = np.unique(blocks_T[first:stop])
        if len(inside) == 1:
            return float(inside[0])
        listed = ", ".join(f"{value:g}" for value in inside[:5])
        finding = f"trial {trial + 1} has bins of blocks {listed}; one expected"
        raise FaultError(name, finding, "correct its epoch")

    def part(self, trial: int) -> FeaturePart:
        first, stop = self.bounds(trial)
        if (other := self._first_trial[tuple(self._epochs_N2[trial].tolist())]) != trial:
            finding = f"trial {trial + 1} has the epoch of trial {other + 1}"
            raise FaultError(self._epochs_name, finding, "remove one of them")
        check_bytes(self.name, stop - first, self.width, max(4, self._bins.dtype.itemsize))
        read = partial(self._bins.read, first, stop, self._columns)
        return FeaturePart(self.name, stop - first, self._bin_ms, self._is_counts, read)


def _check_trials(name: str, n: int) -> None:
    """Raise FaultError for more trials, each of which takes memory, than a day has."""
    if n > _MOST_TRIALS:
        raise FaultError(name, f"{n:,} trials found, at most {_MOST_TRIALS:,} expected", EDIT)


def _with_dims(numbers: Numbers, name: str, n_dims: int) -> Numbers:
    if len(numbers.shape) != n_dims:
        shape = {2: "[bins, columns]", 3: "[trials, bins, columns]"}[n_dims]
        raise FaultError(name, f"shape {list(numbers.shape)} found, {shape} expected", EDIT)
    return numbers
