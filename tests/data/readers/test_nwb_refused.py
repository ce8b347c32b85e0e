"""NWB files of any lab that a mapping cannot read, and damage to some of their trials."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("acquisition/tx,", "acquisition/tz,", "acquisition/tz: no such time series; did you mean"),
        (
            "{name: cue}",
            "{name: queue}",
            "intervals/trials/queue: no such column; did you mean 'cue'?",
        ),
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
        (
            "counts}",
            "counts, arrays: [6v]}",
            "acquisition/tx/electrodes: no electrodes found; name",
        ),
    ],
)
def test_what_the_file_lacks_is_one_line(tmp_path: Path, old: str, new: str, expected: str) -> None:
    path = tmp_path / "a.nwb"
    write_simple(path, cue_rows("one", "two", word=[1, 2], half=[0.5, 1.0]))
    assert old in SIMPLE
    result = import_source(
        nwb(path, mapping_file(tmp_path, SIMPLE.replace(old, new))), tmp_path / "out"
    )
    (problem,) = result.problems
    assert str(problem).startswith(f"{path}: ")
    assert expected in str(problem)


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (np.nan, 1.8, "row 1 is from nan s to 1.8 s; a start before its stop expected"),
        (1.8, 1.0, "row 1 is from 1.8 s to 1 s; a start before its stop expected"),
        (20.0, 21.0, "no samples between 20 s and 21 s; the series is from 0 s to 9.98 s"),
        (9.0, 11.0, "the trial's stop is 1.02 s from the nearest sample, at 9.98 s"),
    ],
)
def test_a_trial_outside_of_the_series_is_a_problem_of_its_own(
    tmp_path: Path, start: float, stop: float, expected: str
) -> None:
    rows = cue_rows("one", "two")
    rows[1] |= {"start_time": start, "stop_time": stop}
    write_simple(tmp_path / "a.nwb", rows)
    said = only_problem(tmp_path / "a.nwb")
    assert said.startswith("block 0 trial 1: ")
    assert expected in said
    assert said.endswith("or leave it out with --skip-bad")


def test_a_trial_that_crosses_a_gap_says_where(tmp_path: Path) -> None:
    times = np.arange(500) * 0.02
    times[80:] += 10  # between 1.58 s and 11.6 s
    write_simple(tmp_path / "a.nwb", cue_rows("one", "two"), timestamps=times)
    assert only_problem(tmp_path / "a.nwb") == (
        "block 0 trial 1: acquisition/tx: the trial's stop is 0.22 s from the nearest sample, at"
        " 1.58 s; correct the trial, which lies in a gap of the series, or leave it out with"
        " --skip-bad"
    )
    times[80:] -= 9.9
    write_simple(tmp_path / "a.nwb", cue_rows("one", "two"), timestamps=times)
    assert "samples at 1.58 s and 1.7 s follow each other in a trial" in only_problem(
        tmp_path / "a.nwb"
    )


def test_a_row_that_is_there_twice_is_a_problem(tmp_path: Path) -> None:
    rows = cue_rows("one", "two")
    rows[1] |= {"start_time": 0.0, "stop_time": 0.8}
    write_simple(tmp_path / "a.nwb", rows)
    assert "row 1 has the times of row 0; remove one of them" in only_problem(tmp_path / "a.nwb")


def test_times_that_go_back_are_a_fault_of_the_file(tmp_path: Path) -> None:
    times = np.arange(500) * 0.02
    times[80] = 0
    write_simple(tmp_path / "a.nwb", cue_rows("one"), timestamps=times)
    assert only_problem(tmp_path / "a.nwb") == (
        "acquisition/tx: sample 80 is at 0 s, the one before it at 1.58 s; increasing times"
        " expected; correct the timestamps"
    )


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


def test_a_series_in_another_file_is_refused_also_where_its_folder_is(tmp_path: Path) -> None:
    for name in ("a.nwb", "other.nwb"):
        write_simple(tmp_path / name, cue_rows("one"))
    with h5py.File(tmp_path / "a.nwb", "r+") as file:
        del file["acquisition"]
        file["acquisition"] = h5py.ExternalLink("other.nwb", "/acquisition")
    assert only_problem(tmp_path / "a.nwb") == (
        "acquisition/tx: an external link found, which reads another file; copy the values into"
        " the file itself"
    )


@pytest.mark.parametrize("rate", [1e-3, 2e6])
def test_rates_that_no_feature_has_are_refused(tmp_path: Path, rate: float) -> None:
    write_simple(tmp_path / "a.nwb", cue_rows("one"), rate=rate)
    assert "samples a second found, 1 to 1,000,000 possible" in only_problem(tmp_path / "a.nwb")


@pytest.mark.parametrize("name", ["", "/", ".", "acquisition", "acquisition/tx/data", "a\\0b"])
def test_any_name_of_a_series_is_read_or_refused(tmp_path: Path, name: str) -> None:
    write_simple(tmp_path / "a.nwb", cue_rows("one"))
    said = only_problem(tmp_path / "a.nwb", SIMPLE.replace("acquisition/tx,", f'"{name}",'))
    assert "; " in said


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
