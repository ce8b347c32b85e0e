"""Any lab's NWB files, by a mapping: binned time series, and spikes that are binned by trial."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from cortext.data.checks import FaultError
from cortext.data.hdf5_input import damage
from cortext.files import is_plain_name
from cortext_data.readers.files.nwb_file import NwbFile, Table, open_nwb
from cortext_data.readers.mapped.mapping import (
    UNITS,
    Feature,
    NwbMapping,
    load_mapping,
    session_name,
)
from cortext_data.readers.mapped.parts import EDIT, FeaturePart, check_bytes, check_columns
from cortext_data.readers.mapped.strays import refused, without_strays
from cortext_data.readers.mapped.trials import ColumnValues, count_overlaps, mapped_source
from cortext_data.readers.recording import Source
from cortext_data.readers.source_files import files_of

ELECTRODES = "general/extracellular_ephys/electrodes"
"""Place of the table of electrodes."""
_SLACK = 0.01
"""Part of a bin by which a time may be rounded."""
_SAME_LENGTH = 1e-3
"""Part by which the lengths of two bins may differ through rounding."""
_FINEST_MS = 1.0
"""Shortest bin of features; finer samples are voltages."""
_WIDE = 4
"""Times as many columns as samples that a series has which was probably transposed."""
_BACK_S = 1.0
"""Seconds by which the times of trials may fall back."""
_MUCH_LONGER = 10
"""Ratio of the last spike's time to the last trial's from which on both are noted."""
_MS_PER_S = (300, 3000)
"""Ratios of two durations of which one is probably in milliseconds."""
_SAME_BIN = 0.5
"""Part of a bin by which the distance of two samples may differ from it."""


def nwb(source: Path, mapping: Path) -> Source:
    """Return the recordings of NWB files.

    Args:
        source: A file, or a folder with files `*.nwb` at any depth.
        mapping: Mapping file.

    Raises:
        ConfigError: For a mapping that cannot be right.
        DataError: For a source without NWB files, and a file without a date or participant.
    """
    keys = load_mapping(mapping, NwbMapping, "nwb")
    sessions: dict[str, list[Path]] = {}
    identifiers: dict[tuple[str, str], Path] = {}
    files = files_of(source, ".nwb")
    kept, others = without_strays(files, [each.name for each in keys.features], _has_one)
    for path in kept:
        try:
            name, identifier = _names_of(path, keys)
            other = identifiers.setdefault((name, identifier), path)
            if other != path and identifier:
                raise FaultError("identifier", f"the same as in {other}", "remove one of them")
        except FaultError as fault:
            others.append(refused(path, fault))
            continue
        sessions.setdefault(name, []).append(path)

    @contextmanager
    def open_file(path: Path) -> Iterator[_NwbTrials]:
        with open_nwb(path) as file:
            yield _NwbTrials(file, keys)

    return mapped_source("nwb", sessions, open_file, keys, mapping, others)


def _has_one(path: Path, names: Sequence[str]) -> bool:
    with open_nwb(path) as file:
        return any(file.has(name) for name in names)


def _names_of(path: Path, keys: NwbMapping) -> tuple[str, str]:
    """Return the session of a file, and the file's identifier."""
    with open_nwb(path) as file:
        participant = keys.participant or file.subject
        day, identifier = file.date, file.identifier
    if participant is None or not is_plain_name(participant):
        raise FaultError(
            "subject_id",
            f"{participant!r:.60} found, a plain name expected",
            "name the participant in the mapping",
        )
    return session_name(participant, day), identifier


class _NwbTrials:
    """The trials of an NWB file; a `MappedFile`."""

    def __init__(self, file: NwbFile, mapping: NwbMapping) -> None:
        self._mapping = mapping
        self._table = file.table(mapping.trials.table)
        self._start_N = _seconds(self._table, mapping.trials.start)
        self._stop_N = _seconds(self._table, mapping.trials.stop)
        self.n_trials = len(self._start_N)
        if not self.n_trials:
            raise FaultError(mapping.trials.table, "a table without rows found", EDIT)
        # In bins: a trial that is there twice may have times that were rounded differently.
        bounds_N2 = np.stack([self._start_N, self._stop_N], axis=1) * (1000 / mapping.bin_ms)
        self._bounds = [(start, stop) for start, stop in np.rint(bounds_N2).tolist()]
        last = 0.5 if mapping.trials.stop_bin == "included" else -0.5  # of a bin, for rounding
        self.n_overlaps = count_overlaps(bounds_N2[:, 0], bounds_N2[:, 1] + last)
        self._first_row: dict[tuple[float, float], int] = {}
        for row, each in enumerate(self._bounds):
            self._first_row.setdefault(each, row)
        seconds_N2 = np.stack([self._start_N, self._stop_N], axis=1)
        self._features: list[_Series | _Spikes] = [
            _Spikes(file, feature, mapping, seconds_N2)
            if feature.name == UNITS
            else _Series(file, feature, mapping)
            for feature in mapping.features
        ]
        self.widths: Sequence[int] = [feature.width for feature in self._features]

    def column(self, name: str) -> ColumnValues:
        return self._table.column(name)

    blocks = column

    def cues(self, name: str) -> Sequence[str]:
        raise FaultError(name, "a list of cues is needed", EDIT)

    def absent(self, trial: int) -> str | None:
        if np.isnan([self._start_N[trial], self._stop_N[trial]]).all():
            return "whose start and stop are NaN"
        reasons = (each.absent(trial) for each in self._features if isinstance(each, _Spikes))
        return next((why for why in reasons if why), None)

    def notes(self) -> Sequence[str]:
        notes = [note for each in self._features for note in each.notes()]
        start_N = self._start_N[np.isfinite(self._start_N)]
        steps = np.diff(start_N)
        if len(steps) and steps.min() < -_BACK_S:
            at = int(np.argmin(steps))
            notes.append(
                f"{self._mapping.trials.table}: the trials' times start again:"
                f" {start_N[at + 1]:.6g} s follows {start_N[at]:.6g} s; check that they are times"
                " of one clock"
            )
        return notes

    def parts(self, trial: int) -> list[FeaturePart]:
        start, stop = float(self._start_N[trial]), float(self._stop_N[trial])
        if not (np.isfinite([start, stop, stop - start]).all() and start < stop):
            raise FaultError(
                self._mapping.trials.table,
                f"row {trial} is from {start:g} s to {stop:g} s; a start before its stop expected",
                "correct the row",
            )
        if (first := self._first_row[self._bounds[trial]]) != trial:
            finding = f"row {trial} has the times of row {first}"
            raise FaultError(self._mapping.trials.table, finding, "remove one of them")
        return [feature.part(start, stop) for feature in self._features]


def _seconds(table: Table, name: str) -> np.ndarray:
    times = table.column(name)
    if isinstance(times, list) or times.dtype.kind not in "iuf":
        raise FaultError(f"{table.path}/{name}", "no numbers found, seconds expected", EDIT)
    return times.astype(np.float64)


class _Series:
    """A time series of binned features."""

    def __init__(self, file: NwbFile, feature: Feature, mapping: NwbMapping) -> None:
        self._series = file.one_series(feature.name)
        self._feature = feature
        self._bin_ms = self._known_bin_ms(mapping.bin_ms_of(feature), mapping.bin_ms)
        self._last_bin = mapping.trials.stop_bin
        n_columns = self._series.shape[1] if len(self._series.shape) == 2 else 1
        self._columns = feature.numbers()
        if feature.arrays is not None:
            self._columns = _columns_of(file, feature, n_columns)
        self.width = check_columns(feature.name, self._columns, n_columns)
        self._n_columns = n_columns
        self._times_T = self._series.times()
        _check_order(feature.name, self._times_T)

    def notes(self) -> Sequence[str]:
        """Return what the user should know of the samples."""
        name, n_samples = self._feature.name, len(self._times_T)
        notes = []
        if round(self._bin_ms, 3) < _FINEST_MS:
            notes.append(
                f"{name}: {1000 / self._bin_ms:,.6g} samples a second are raw voltages, which are"
                " not filtered or thresholded; import binned features or spike times"
            )
        if self._n_columns > _WIDE * n_samples:
            notes.append(
                f"{name}: {n_samples} samples of {self._n_columns} columns found; transpose it if"
                f" {self._n_columns} is the number of samples"
            )
        return notes

    def _known_bin_ms(self, given: float, target: float) -> float:
        rate = self._series.rate
        if rate is None:
            return given
        known = 1000 / rate
        if not 0.001 <= known <= 1000:
            raise FaultError(
                self._feature.name,
                f"{rate:g} samples a second found, 1 to 1,000,000 possible",
                "name a series of binned features",
            )
        if self._feature.bin_ms is not None and abs(given / known - 1) > _SLACK:
            raise FaultError(
                self._feature.name,
                f"{rate:g} samples a second are bins of {known:g} ms, not {given:g} ms",
                "correct bin_ms of the feature",
            )
        # A mapping writes the bins of 30 Hz as 33.333 ms.
        return target if abs(target / known - 1) < _SAME_LENGTH else known

    def part(self, start: float, stop: float) -> FeaturePart:
        bin_s = self._bin_ms / 1000
        slack = _SLACK * bin_s
        end = stop + slack if self._last_bin == "included" else stop - slack
        first, last = np.searchsorted(self._times_T, [start - slack, end]).tolist()
        name = self._feature.name
        if first == last:
            raise FaultError(
                name,
                f"no samples between {start:.6g} s and {stop:.6g} s; the series is from"
                f" {self._times_T[0]:.6g} s to {self._times_T[-1]:.6g} s",
                "check the trial's start and stop",
            )
        self._check_gaps(start, stop, first, last, bin_s)
        check_bytes(name, last - first, self.width, max(4, self._series.dtype.itemsize))

        def read() -> np.ndarray:
            with damage():  # of this trial alone
                if len(self._series.shape) == 1:
                    return self._series.read(first, last)[:, None]
                return self._series.read(first, last, self._columns)

        return FeaturePart(name, last - first, self._bin_ms, self._feature.is_counts, read)

    def _check_gaps(self, start: float, stop: float, first: int, last: int, bin_s: float) -> None:
        """Raise FaultError for samples that are missing in a trial, or at one of its ends."""
        times = self._times_T[first:last]
        steps = np.diff(times)
        off = np.abs(steps - bin_s) > _SAME_BIN * bin_s
        if off.any():
            at = int(np.argmax(off))
            raise FaultError(
                self._feature.name,
                f"samples at {times[at]:.6g} s and {times[at + 1]:.6g} s follow each other in a"
                f" trial, {bin_s:g} s expected between them",
                "correct bin_ms, or the trial that crosses a gap",
            )
        for distance, end in ((times[0] - start, "start"), (stop - times[-1], "stop")):
            if distance > (2 if end == "stop" else 1) * bin_s * (1 + _SLACK):
                at_s = times[0] if end == "start" else times[-1]
                raise FaultError(
                    self._feature.name,
                    f"the trial's {end} is {distance:.6g} s from the nearest sample, at"
                    f" {at_s:.6g} s",
                    "correct the trial, which lies in a gap of the series",
                )


def _check_order(name: str, times_T: np.ndarray) -> None:
    if not len(times_T):
        raise FaultError(name, "a series without samples found", EDIT)
    later = np.diff(times_T) > 0
    if not later.all():
        at = int(np.argmin(later))
        raise FaultError(
            name,
            f"sample {at + 1} is at {times_T[at + 1]:.6g} s, the one before it at"
            f" {times_T[at]:.6g} s; increasing times expected",
            "correct the timestamps",
        )


def _columns_of(file: NwbFile, feature: Feature, n_columns: int) -> list[int]:
    """Return the columns of the arrays that a feature names."""
    assert feature.arrays is not None
    rows_C = file.electrodes(feature.name)
    names = file.table(ELECTRODES).column("group_name")
    if len(rows_C) != n_columns or not (rows_C >= 0).all() or not (rows_C < len(names)).all():
        finding = f"{len(rows_C)} of {len(names)} electrodes named for {n_columns} columns"
        raise FaultError(feature.name, finding, "give columns instead of arrays")
    array_C = [str(names[row]) for row in rows_C]
    for array in feature.arrays:
        if array not in array_C:
            known = ", ".join(dict.fromkeys(array_C))
            finding = f"no electrodes of array {array!r:.60}, but of {known}"
            raise FaultError(feature.name, finding, EDIT)
    return [column for column, array in enumerate(array_C) if array in feature.arrays]


class _Spikes:
    """Spikes of the table of units, counted in bins that begin at the start of each trial."""

    def __init__(
        self, file: NwbFile, feature: Feature, mapping: NwbMapping, bounds_N2: np.ndarray
    ) -> None:
        units = file.units()
        if not units:
            elsewhere = [path for path, kind, _ in file.unread() if kind == "spikes"]
            fix = f"write the spikes of {elsewhere[0]} there" if elsewhere else EDIT
            raise FaultError(UNITS, "no spike times found", fix)
        if feature.arrays is not None:
            raise FaultError(UNITS, "arrays are given", "give columns, the numbers of units")
        columns = feature.numbers()
        self.width = check_columns(UNITS, columns, len(units))
        self._units = units
        self._columns = list(range(len(units))) if columns is None else columns
        self._feature = feature
        self._bin_ms = mapping.bin_ms_of(feature)
        self._last_bin = mapping.trials.stop_bin
        self._bounds_N2 = bounds_N2
        self._seen_NU = self._observed()

    def _observed(self) -> np.ndarray | None:
        """Return whether each unit was observed in each trial, [N, U]; None if it is unknown."""
        if self._units.intervals is None:
            return None
        slack = self._bin_ms / 1000
        start_N1, stop_N1 = self._bounds_N2[:, :1] + slack, self._bounds_N2[:, 1:] - slack
        seen = []
        for unit in self._columns:
            from_K, to_K = self._units.intervals[unit].T
            seen.append(((from_K <= start_N1) & (stop_N1 <= to_K)).any(axis=1))
        return np.stack(seen, axis=1)

    def absent(self, trial: int) -> str | None:
        """Return why a trial was never recorded."""
        if self._seen_NU is None or self._seen_NU[trial].any():
            return None
        return "outside the obs_intervals of all units"

    def notes(self) -> Sequence[str]:
        """Return what the times of spikes and trials say of each other."""
        bounds_N2 = self._bounds_N2[np.isfinite(self._bounds_N2).all(axis=1)]
        notes = []
        if self._seen_NU is not None:
            partly = self._seen_NU.any(axis=1) & ~self._seen_NU.all(axis=1)
            if partly.any():
                notes.append(
                    f"{UNITS}: {partly.sum()} trials lie outside the obs_intervals of some units,"
                    " whose counts are 0 there; `columns` chooses units that were always observed"
                )
        if self._units.range_s is None or not len(bounds_N2):
            return [*notes, f"{UNITS}: no unit has a spike; every count is 0"]
        first, last = self._units.range_s
        without = (bounds_N2[:, 1] <= first) | (bounds_N2[:, 0] > last)
        if self._seen_NU is not None:  # trials that were not observed are left out anyway
            without &= self._seen_NU[np.isfinite(self._bounds_N2).all(axis=1)].any(axis=1)
        length = last / max(bounds_N2[:, 1].max(), 1e-9)
        if not without.any() and length < _MUCH_LONGER:
            return notes
        without_spikes = f"trials without a spike: {int(without.sum())} of {len(bounds_N2)}"
        fix = "check that both are in seconds, by the same clock"
        if 1 / _MS_PER_S[1] < length < 1 / _MS_PER_S[0] or _MS_PER_S[0] < length < _MS_PER_S[1]:
            fix = f"{'spike' if length > 1 else 'trial'} times may be in ms; NWB has seconds"
        ranges = (
            f"{UNITS}: spikes are from {first:.6g} s to {last:.6g} s, trials from"
            f" {bounds_N2[:, 0].min():.6g} s to {bounds_N2[:, 1].max():.6g} s"
        )
        return [*notes, f"{ranges}; {without_spikes}; {fix}"]

    def part(self, start: float, stop: float) -> FeaturePart:
        bin_s = self._bin_ms / 1000
        n_bins = int((stop - start) / bin_s + _SLACK)
        n_bins += self._last_bin == "included"
        if not n_bins:
            raise FaultError(
                UNITS,
                f"a trial from {start:g} s to {stop:g} s is shorter than a bin",
                "correct the trial, or bin_ms",
            )
        check_bytes(UNITS, n_bins, self.width, 4)

        def read() -> np.ndarray:
            edges = start + np.arange(n_bins + 1) * bin_s
            within = (edges[0], edges[-1])
            counts = [binned(self._units.between(u, *within), edges) for u in self._columns]
            return np.stack(counts, axis=1)

        return FeaturePart(UNITS, n_bins, self._bin_ms, self._feature.is_counts, read)


def binned(times: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the number of spikes in each bin; one on an edge belongs to the later bin.

    Args:
        times: Sorted times [N] of spikes in seconds.
        edges: Edges [T + 1] of the bins in seconds.

    Returns:
        int32 [T].
    """
    return np.diff(np.searchsorted(times, edges, side="left")).astype(np.int32)
