"""NWB files of any lab that a mapping cannot read, and damage to some of their trials."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from lab_nwb import (
    SIMPLE,
    cue_rows,
    mapping_file,
    only_problem,
    write_series,
    write_simple,
)
from refusals import refused

from cortext.data import open_dataset
from cortext_data.readers.importing import import_source
from cortext_data.readers.nwb import nwb

Change = Callable[[h5py.File], object]
TIMES_S = np.arange(500) * 0.02


def row_1(start_s: float, stop_s: float) -> Change:
    def change(file: h5py.File) -> None:
        file["intervals/trials/start_time"][1] = start_s
        file["intervals/trials/stop_time"][1] = stop_s

    return change


def sampled_at(times_s: np.ndarray) -> Change:
    """Times of the samples in place of a rate."""

    def change(file: h5py.File) -> None:
        del file["acquisition/tx/starting_time"]
        times = file["acquisition/tx"].create_dataset("timestamps", data=times_s)
        times.attrs.update({"interval": 1, "unit": "seconds"})

    return change


def rate(hz: float) -> Change:
    return lambda file: file["acquisition/tx/starting_time"].attrs.__setitem__("rate", hz)


def in_another_file(file: h5py.File) -> None:
    del file["acquisition"]
    file["acquisition"] = h5py.ExternalLink("other.nwb", "/acquisition")


def emptied(*names: str) -> Change:
    def change(file: h5py.File) -> None:
        for name in names:
            old = file[name]
            values, dtype, attributes = old[:0], old.dtype, dict(old.attrs)
            del file[name]
            file.create_dataset(name, data=values, dtype=dtype).attrs.update(attributes)

    return change


COLUMNS = ("id", "start_time", "stop_time", "cue", "word", "half")
SKIP = "or leave it out with --skip-bad"
DAMAGE = {
    "nan": (
        row_1(np.nan, 1.8),
        "block 0 trial 1: .*row 1 is from nan s to 1.8 s; a start before its stop expected;.*SKIP",
    ),
    "backwards": (row_1(1.8, 1.0), "block 0 trial 1: .*row 1 is from 1.8 s to 1 s; a start.*SKIP"),
    "after the end": (
        row_1(20.0, 21.0),
        "block 0 trial 1: .*no samples between 20 s and 21 s; the series is from 0 s to 9.98 s.*SKIP",
    ),
    "over the end": (
        row_1(9.0, 11.0),
        "block 0 trial 1: .*the trial's stop is 1.02 s from the nearest sample, at 9.98 s;.*SKIP",
    ),
    "the row before": (row_1(0.0, 0.8), ".*row 1 has the times of row 0; remove one of them"),
    "in a gap": (
        sampled_at(TIMES_S + 10 * (np.arange(500) >= 80)),  # between 1.58 s and 11.6 s
        "block 0 trial 1: acquisition/tx: the trial's stop is 0.22 s from the nearest sample, at"
        " 1.58 s; correct the trial, which lies in a gap of the series, SKIP",
    ),
    "over a gap": (
        sampled_at(TIMES_S + 0.1 * (np.arange(500) >= 80)),
        ".*samples at 1.58 s and 1.7 s follow each other in a trial",
    ),
    "times that go back": (
        sampled_at(TIMES_S * (np.arange(500) != 80)),
        "acquisition/tx: sample 80 is at 0 s, the one before it at 1.58 s; increasing times"
        " expected; correct the timestamps$",
    ),
    "in another file": (
        in_another_file,
        "acquisition/tx: an external link found, which reads another file; copy the values into"
        " the file itself$",
    ),
    "no samples": (
        emptied("acquisition/tx/data"),
        "acquisition/tx: a series without samples found",
    ),
    "no rows": (
        emptied(*(f"intervals/trials/{name}" for name in COLUMNS)),
        "intervals/trials: a table without rows found",
    ),
    "a slow rate": (rate(1e-3), ".*samples a second found, 1 to 1,000,000 possible"),
    "a fast rate": (rate(2e6), ".*samples a second found, 1 to 1,000,000 possible"),
}
MAPPINGS = [
    ("acquisition/tx,", "acquisition/tz,", "acquisition/tz: no such time series; did you mean"),
    ("{name: cue}", "{name: queue}", "intervals/trials/queue: no such column; did you mean 'cue'?"),
    ("{name: cue}", "{name: word}", "word: numbers found, texts expected; name their cues in"),
    ("bin_ms: 20\n", "bin_ms: 20\ntrials: {table: intervals/t}\n", "no such table; did you"),
    ("bin_ms: 20\n", "bin_ms: 20\ntrials: {stop: cue}\n", "no numbers found, seconds expected"),
    ("counts}", "counts, columns: 6-8}", "column 8 does not exist, 0 to 7 found; correct"),
    ("counts}", "counts, bin_ms: 10}", "50 samples a second are bins of 20 ms, not 10 ms"),
    ("acquisition/tx,", "units,", "units: no spike times found; correct the mapping"),
    ("{name: cue}", "{name: cue}\nblock: {name: cue}", "cue: 'one' found, a whole number"),
    ("{name: cue}", "{name: cue}\nblock: {name: half}", "half: 0.5 found, a whole number"),
    (
        "{name: cue}",
        "{name: cue}\nsplit: {name: cue, train: [one]}",
        "cue: 'two' found, which split does not name; name it under train, val, test or",
    ),
    ("counts}", "counts, arrays: [6v]}", "acquisition/tx/electrodes: no electrodes found; name"),
    *(
        ("acquisition/tx,", f'"{name}",', "; ")
        for name in ("", "/", ".", "acquisition", "acquisition/tx/data", "a\\0b")
    ),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of two trials."""
    path = tmp_path_factory.mktemp("made") / "a.nwb"
    write_simple(path, cue_rows("one", "two", word=[1, 2], half=[0.5, 1.0]))
    return path.read_bytes()


@pytest.fixture
def file(made: bytes, tmp_path: Path) -> Path:
    """A copy of it, and another one beside it."""
    for name in ("a.nwb", "other.nwb"):
        (tmp_path / name).write_bytes(made)
    return tmp_path / "a.nwb"


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_one_line(file: Path, name: str) -> None:
    change, says = DAMAGE[name]
    with h5py.File(file, "r+") as opened:
        change(opened)
    assert re.match(says.replace("SKIP", f"{SKIP}$"), only_problem(file))


@pytest.mark.parametrize(("old", "new", "says"), MAPPINGS)
def test_what_the_file_lacks_is_one_line(file: Path, old: str, new: str, says: str) -> None:
    assert old in SIMPLE
    assert says in only_problem(file, SIMPLE.replace(old, new))


def test_one_file_twice_is_refused_and_read_once(tmp_path: Path) -> None:
    for name in ("a.nwb", "b.nwb"):
        write_simple(tmp_path / name, cue_rows("one"))
    source = nwb(tmp_path, mapping_file(tmp_path, SIMPLE))
    done = import_source(source, tmp_path / "out", skip_bad=True)
    assert [str(problem) for problem in done.problems] == [
        f"{tmp_path}/b.nwb: identifier: the same as in {tmp_path}/a.nwb; remove one of them"
    ]
    assert open_dataset(tmp_path / "out").n_trials("train") == 1


def test_a_file_without_a_participant_does_not_stop_the_others(tmp_path: Path) -> None:
    write_simple(tmp_path / "a.nwb", cue_rows("one"))
    ones = {"tx": {"data": np.ones((50, 8), np.int16), "rate": 50.0}}
    write_series(tmp_path / "b.nwb", ones, cue_rows("two"), subject=None)
    source = nwb(tmp_path, mapping_file(tmp_path, SIMPLE))
    done = import_source(source, tmp_path / "out")
    assert [str(problem) for problem in done.problems] == [
        f"{tmp_path}/b.nwb: subject_id: None found, a plain name expected; name the participant in"
        " the mapping"
    ]
    assert done.n_written == 1


def test_a_block_in_two_files_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.nwb", "b.nwb"):
        series = {"tx": {"data": np.ones((50, 8)), "rate": 50.0}}
        write_series(
            folder / name, series, cue_rows("one", block=[3]), ("cue", "block"), identifier=name
        )
    source = nwb(folder, mapping_file(tmp_path, SIMPLE + "block: {name: block}\n"))
    (problem,) = import_source(source, tmp_path / "out").problems
    assert "block 3 is in a.nwb and in b.nwb; remove a file that is there twice" in str(problem)


def test_a_fault_of_the_second_file_of_a_session_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, width in (("a.nwb", 8), ("b.nwb", 9)):
        series = {"tx": {"data": np.ones((50, width)), "rate": 50.0}}
        write_series(folder / name, series, cue_rows("one"), identifier=name)
    (problem,) = import_source(
        nwb(folder, mapping_file(tmp_path, SIMPLE)), tmp_path / "out"
    ).problems
    assert "b.nwb: features: [9] columns found, [8] in a.nwb" in str(problem)


def test_sources_that_hold_no_such_file_are_refused(tmp_path: Path) -> None:
    mapping = mapping_file(tmp_path, SIMPLE)
    with refused("no such file or folder; check the path"):
        nwb(tmp_path / "none", mapping)
    with refused(r"no \.nwb files there; check the folder"):
        nwb(tmp_path, mapping)


def test_damage_of_one_trial_leaves_the_others(tmp_path: Path) -> None:
    """Bytes of one compressed chunk are overwritten."""
    path = tmp_path / "a.nwb"
    rng = np.random.default_rng(0)
    write_simple(path, cue_rows("one", "two"), data=rng.poisson(3, (500, 8)))
    with h5py.File(path, "r+") as file:
        data = file["acquisition/tx/data"]
        values, attributes = data[:], dict(data.attrs)
        del file["acquisition/tx/data"]
        new = file["acquisition/tx"].create_dataset(
            "data", data=values, chunks=(45, 8), compression=4
        )
        new.attrs.update(attributes)
        place = new.id.get_chunk_info_by_coord((45, 0))
    content = bytearray(path.read_bytes())
    content[place.byte_offset : place.byte_offset + place.size] = bytes(place.size)
    path.write_bytes(content)
    source = nwb(path, mapping_file(tmp_path, SIMPLE))
    done = import_source(source, tmp_path / "out", skip_bad=True)
    (problem,) = done.problems
    assert problem.trial == "block 0 trial 1"
    assert "damaged HDF5" in str(problem)
    assert done.n_written == 1


def test_a_trial_without_a_block_costs_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.nwb"
    write_simple(path, cue_rows("one", "two", "yes", block=[1.0, np.nan, 2.0]))
    text = SIMPLE + "block: {name: block}\n"
    source = nwb(path, mapping_file(tmp_path, text))
    (problem,) = import_source(source, tmp_path / "out", skip_bad=True, normalise="none").problems
    assert str(problem).startswith(f"{path}: block 1 trial 1: block: nan found, a whole number")
    trials = open_dataset(tmp_path / "out").trials("train")
    assert [(trial.sentence, trial.block) for trial in trials] == [("one", 1), ("yes", 2)]
