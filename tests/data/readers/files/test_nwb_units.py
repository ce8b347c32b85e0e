"""Spike times of units: streams, clocks that start again, and periods of observation."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from lab_nwb import HEAD, cue_rows, read_nwb, write_series

from cortext.data.checks import FaultError
from cortext_data.readers.files import nwb_units
from cortext_data.readers.files.nwb_file import open_nwb

UNITS = f"{HEAD}bin_ms: 20\nfeatures: [{{name: units, kind: counts}}]\nsentence: {{name: cue}}\n"
RNG = np.random.default_rng(5)


def with_units(path: Path, *units: np.ndarray, rows: int = 2) -> Path:
    write_series(path, {}, cue_rows(*["yes"] * rows), units=units)
    return path


def replaced(path: Path, name: str, values: np.ndarray, **storage: object) -> None:
    with h5py.File(path, "r+") as file:
        attributes = dict(file[name].attrs) if name in file else {}
        if name in file:
            del file[name]
        file.create_dataset(name, data=values, **storage).attrs.update(attributes)


def notes_of(path: Path) -> list[str]:
    return list(read_nwb(path, UNITS)[0].notes)


@pytest.mark.parametrize("storage", [{}, {"chunks": (64,), "compression": "gzip"}, {"row": True}])
def test_more_spikes_than_memory_takes_are_counted_as_fewer_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: dict[str, object]
) -> None:
    units = [np.sort(RNG.uniform(0, 3, n)) for n in (400, 0, 7, 250)]
    units[3][:2] = units[3][1::-1]  # not in order
    path = with_units(tmp_path / "a.nwb", *units)
    times = np.concatenate(units)
    is_row = storage.pop("row", False)
    replaced(path, "units/spike_times", times[None] if is_row else times, **storage)
    monkeypatch.setattr(nwb_units, "MOST_IN_MEMORY", 300)
    monkeypatch.setattr(nwb_units, "_PIECE", 30)
    monkeypatch.setattr(nwb_units, "_STEP", 5)
    _, features = read_nwb(path, UNITS)
    for start, x_TC in zip((0.0, 1.0), features, strict=True):
        edges = start + np.arange(len(x_TC) + 1) * 0.02
        expected = [np.histogram(t[t < edges[-1]], edges)[0] for t in units]
        np.testing.assert_array_equal(x_TC, np.stack(expected, axis=1))
    with open_nwb(path) as file:
        found = file.units()
        assert found is not None
        assert (len(found), found.n_spikes) == (4, 657)
        for times_N, unit in zip(found, units, strict=True):
            np.testing.assert_array_equal(times_N, np.sort(unit))
        assert found.range_s == (times.min(), times.max())


@pytest.mark.parametrize("limit", [1_000_000, 10])
def test_a_clock_that_starts_again_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(nwb_units, "MOST_IN_MEMORY", limit)
    first, second = np.arange(0, 600, 10) + 0.5, np.arange(0, 300, 10) + 0.25
    path = with_units(tmp_path / "a.nwb", np.arange(5.0), np.concatenate([first, second]))
    with open_nwb(path) as file, pytest.raises(FaultError) as error:
        file.units()
    assert error.value.message == (
        "the times of unit 1 start again: 0.25 s follows 590.5 s; times of one clock expected; add"
        " the time of its start to each part of the recording, or write a file for each"
    )


def test_few_spikes_of_many_units_show_a_clock_that_starts_again(tmp_path: Path) -> None:
    parts = np.sort(RNG.uniform(0, 600, (6, 2, 5)), axis=2)
    path = with_units(tmp_path / "a.nwb", *parts.reshape(6, 10))
    with open_nwb(path) as file, pytest.raises(FaultError, match="several units start again"):
        file.units()


def test_times_in_no_order_are_sorted(tmp_path: Path) -> None:
    times = RNG.uniform(0, 600, 500)
    with open_nwb(with_units(tmp_path / "a.nwb", times)) as file:
        (found,) = file.units() or ()
    np.testing.assert_array_equal(found, np.sort(times))


def test_trials_that_no_unit_was_observed_in_are_left_out(tmp_path: Path) -> None:
    path = with_units(tmp_path / "a.nwb", *[np.arange(0.05, 1.9, 0.1)] * 2, rows=4)
    # Trials of 0.8 s begin at 0, 1, 2 and 3 s. Two periods that touch are one.
    replaced(path, "units/obs_intervals", np.array([[0, 0.5], [0.5, 2.0], [0, 1.2]]))
    replaced(path, "units/obs_intervals_index", np.array([2, 3]))
    contents, features = read_nwb(path, UNITS)
    assert len(features) == 2
    assert contents.notes == [
        "units: 1 trials lie outside the obs_intervals of some units, whose counts are 0 there;"
        " `columns` chooses units that were always observed",
        "left out: 2 trials outside the obs_intervals of all units",
    ]


def test_spike_times_in_milliseconds_are_noted_with_both_ranges(tmp_path: Path) -> None:
    path = with_units(tmp_path / "a.nwb", np.arange(0, 1801.0, 100))
    assert notes_of(path) == [
        "units: spikes are from 0 s to 1800 s, trials from 0 s to 1.8 s; trials without a spike: 0"
        " of 2; spike times may be in ms; NWB has seconds"
    ]


def test_trials_after_the_last_spike_are_noted(tmp_path: Path) -> None:
    path = with_units(tmp_path / "a.nwb", np.arange(0, 1.5, 0.1), rows=4)
    assert notes_of(path) == [
        "units: spikes are from 0 s to 1.4 s, trials from 0 s to 3.8 s; trials without a spike: 2"
        " of 4; check that both are in seconds, by the same clock"
    ]


def test_units_without_any_spike_are_noted(tmp_path: Path) -> None:
    path = with_units(tmp_path / "a.nwb", np.zeros(0), np.zeros(0))
    assert notes_of(path) == ["units: no unit has a spike; every count is 0"]


def test_trials_whose_times_start_again_are_noted(tmp_path: Path) -> None:
    rows = cue_rows("one", "two", "three")
    rows[2] |= {"start_time": -3.0, "stop_time": -2.0}
    write_series(tmp_path / "a.nwb", {}, rows, units=[np.arange(-3, 2, 0.1)])
    assert notes_of(tmp_path / "a.nwb") == [
        "intervals/trials: the trials' times start again: -3 s follows 1 s; check that they are"
        " times of one clock"
    ]
