"""NWB files of any lab, written with pynwb and read by a mapping."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from foreign_files import SENTENCES, Written
from foreign_nwb import CHICAGO, rig_trials, write_falcon, write_nwb
from refusals import refused

from cortext.data import open_dataset
from cortext.data.checks import FaultError
from cortext.data.readers.importing import import_source
from cortext.data.readers.nwb import binned, nwb
from cortext.data.readers.recording import Contents, RecordedTrial

HEAD = "format: cortext-mapping\nformat_version: 1\nreader: nwb\n"
RIG = f"""{HEAD}
participant: t99
bin_ms: 20
features:
  - {{name: acquisition/threshold_crossings, kind: counts}}
  - {{name: acquisition/spike_band_power, kind: power}}
sentence: {{name: prompt}}
block: {{name: block_id}}
split: {{name: purpose, train: [train], val: [val], test: [test]}}
"""


def _mapping(folder: Path, text: str) -> Path:
    path = folder / "mapping.yaml"
    path.write_text(text)
    return path


def _trials(contents: Contents) -> list[RecordedTrial]:
    return [trial for block in contents.blocks for trial in block.trials]


def _read(path: Path, text: str) -> tuple[Contents, list[np.ndarray]]:
    """Return the contents of the only recording, and the numbers of its trials."""
    source = nwb(path, _mapping(path.parent, text))
    (recording,) = source.recordings
    with recording.open() as contents:
        return contents, [trial.read() for trial in _trials(contents)]


def _write(
    path: Path,
    series: dict[str, dict[str, Any]],
    trials: Sequence[dict[str, Any]],
    columns: Sequence[str] = ("cue",),
    units: Sequence[np.ndarray] = (),
    subject: str | None = "T99",
    identifier: str = "one",
) -> None:
    """Write an NWB file of series (arguments of pynwb's TimeSeries) and rows of trials."""
    from pynwb import NWBHDF5IO, NWBFile, TimeSeries
    from pynwb.file import Subject

    start = datetime.datetime(2025, 3, 14, 9, 26, tzinfo=CHICAGO)
    file = NWBFile("speech", identifier, start)
    if subject is not None:
        file.subject = Subject(subject_id=subject, age="P40Y", sex="M", species="Homo sapiens")
    for name, arguments in series.items():
        file.add_acquisition(TimeSeries(name=name, **{"unit": "n/a"} | arguments))
    for column in columns:
        file.add_trial_column(name=column, description=column)
    for row in trials:
        file.add_trial(**row)
    for times in units:
        file.add_unit(spike_times=times)
    with NWBHDF5IO(path, "w") as io:
        io.write(file)


@pytest.mark.parametrize("timestamps", [False, True])
def test_an_export_of_a_rig_is_read_as_it_was_recorded(tmp_path: Path, timestamps: bool) -> None:
    rig = write_nwb(
        tmp_path / "a.nwb", timestamps=timestamps, split=["train"] * 4 + ["val", "test"]
    )
    contents, arrays = _read(tmp_path / "a.nwb", RIG)
    assert [(block.number, block.split, len(block.trials)) for block in contents.blocks] == [
        (1, "train", 3),
        (2, "train", 1),
        (2, "val", 1),
        (2, "test", 1),
    ]
    assert [trial.number for trial in _trials(contents)] == [0, 1, 2, 0, 1, 2]
    assert [trial.sentence for trial in _trials(contents)] == list(SENTENCES)
    assert contents.counts == list(range(64))
    assert contents.bin_ms == 20
    for written, found, trial in zip(rig.trials, arrays, _trials(contents), strict=True):
        expected = np.concatenate(list(written.arrays.values()), axis=1)
        np.testing.assert_array_equal(found, expected)
        assert trial.n_bins == len(expected)


def test_an_import_of_a_rigs_files_has_z_scores_by_block(tmp_path: Path) -> None:
    rig = write_nwb(tmp_path / "in" / "a.nwb")
    write_nwb(tmp_path / "in" / "b.nwb", start="2026.05.05", seed=1)
    source = nwb(tmp_path / "in", _mapping(tmp_path, RIG))
    assert [each.session for each in source.recordings] == ["t99.2026.05.04", "t99.2026.05.05"]
    result = import_source(source, tmp_path / "out")
    assert not result.problems
    assert result.n_written == 2
    data = open_dataset(tmp_path / "out")
    by_name = {t.name: t for split in ("train", "val") for t in data.trials(split)}
    first_block = np.concatenate(
        [np.concatenate(list(t.arrays.values()), axis=1) for t in rig.trials if t.block == 1]
    ).astype(np.float64)
    expected = (first_block - first_block.mean(axis=0)) / first_block.std(axis=0)
    found = by_name["t99.2026.05.04/block 1/trial 0"]
    np.testing.assert_allclose(found.features_TC, expected[: found.n_bins], atol=1e-4)
    assert found.sentence == SENTENCES[0]


def test_the_last_bin_belongs_to_a_trial_where_the_mapping_says_so(tmp_path: Path) -> None:
    """FALCON's stop times are the times of the last bins."""
    material = write_falcon(tmp_path, dandi=False)
    trials = material["held-in-calib", "2022.05.18"]
    text = f"""{HEAD}
participant: t5
bin_ms: 20
inventory: handwriting
features: [{{name: acquisition/binned_spikes, kind: counts}}]
trials: {{stop_bin: included}}
sentence: {{name: cue, replace: {{">": " ", "~": ""}}}}
block: {{name: block_num}}
split: {{val_blocks: 1}}
"""
    contents, arrays = _read(tmp_path / "held_in_calib" / "T5_2022.05.18_held_in_calib.nwb", text)
    assert [(block.number, block.split) for block in contents.blocks] == [(1, "train"), (2, "val")]
    assert ">" in trials[0].sentence
    expected = trials[0].sentence.replace(">", " ").replace("~", "")
    assert _trials(contents)[0].sentence == expected
    for written, found in zip(trials, arrays, strict=True):
        np.testing.assert_array_equal(found, written.arrays["binned_spikes"])


def _counted(tmp_path: Path, kind: str = "counts", **trials: Any) -> tuple[list[Any], np.ndarray]:
    """Read one trial of two units, whose spikes are given by hand."""
    units = [np.array([0.999, 1.0, 1.019, 1.02, 1.0999]), np.array([1.04, 1.06, 1.0601, 1.1])]
    path = tmp_path / "units.nwb"
    _write(path, {}, [{"start_time": 1.0, "stop_time": 1.1, "cue": "hello"}], units=units)
    text = f"{HEAD}bin_ms: 20\nfeatures: [{{name: units, kind: {kind}}}]\nsentence: {{name: cue}}\n"
    text += "".join(f"trials: {{{key}: {value}}}\n" for key, value in trials.items())
    contents, (found,) = _read(path, text)
    return list(contents.counts), found


def test_a_spike_on_an_edge_belongs_to_the_later_bin(tmp_path: Path) -> None:
    # Bins begin at 1.00, 1.02, 1.04, 1.06, 1.08 s. 0.999 is before the trial, 1.1 after it.
    counts, found = _counted(tmp_path)
    assert found.tolist() == [[2, 0], [1, 0], [0, 1], [0, 2], [1, 0]]
    assert counts == [0, 1]


def test_a_trial_of_units_has_one_bin_more_where_its_last_one_is_included(tmp_path: Path) -> None:
    _, found = _counted(tmp_path, stop_bin="included")
    assert found.tolist() == [[2, 0], [1, 0], [0, 1], [0, 2], [1, 0], [0, 1]]


def test_spikes_are_binned_as_numpy_counts_them() -> None:
    rng = np.random.default_rng(3)
    times = np.sort(rng.uniform(0, 3, 5000))
    edges = 0.5 + np.arange(101) * 0.02
    # NumPy's last bin holds its right edge, on which no drawn time lies.
    np.testing.assert_array_equal(binned(times, edges), np.histogram(times, edges)[0])
    assert binned(np.array([]), edges).tolist() == [0] * 100


def test_features_of_other_rates_are_joined_in_one_bin_length(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    fast = rng.poisson(1, (100, 3))  # 10 ms
    slow = rng.gamma(2, 2, (50, 2))  # 20 ms
    finest = rng.gamma(2, 2, (1000, 1))  # 1 ms
    series = {
        "fast": {"data": fast, "rate": 100.0},
        "slow": {"data": slow, "rate": 50.0},
        "finest": {"data": finest, "rate": 1000.0},
    }
    path = tmp_path / "a.nwb"
    spikes = [np.arange(0.205, 0.8, 0.02)]  # one in the middle of each 10 ms
    _write(path, series, [{"start_time": 0.2, "stop_time": 0.8, "cue": "hello"}], units=spikes)
    text = f"""{HEAD}bin_ms: 20
features:
  - {{name: acquisition/fast, kind: counts, columns: [2, 0]}}
  - {{name: acquisition/slow, kind: power}}
  - {{name: acquisition/finest, kind: power}}
  - {{name: units, kind: counts, bin_ms: 10}}
sentence: {{name: cue}}
"""
    contents, (found,) = _read(path, text)
    assert found.shape == (30, 6)
    pairs = fast[20:80].reshape(30, 2, 3).sum(axis=1)
    np.testing.assert_array_equal(found[:, :2], pairs[:, [2, 0]])
    np.testing.assert_allclose(found[:, 2:4], slow[10:40], rtol=1e-6)
    means = finest[200:800].reshape(30, 20).mean(axis=1)
    np.testing.assert_allclose(found[:, 4], means, rtol=1e-5)
    np.testing.assert_array_equal(found[:, 5], 1)
    assert contents.counts == [0, 1, 5]


def test_one_bin_more_of_a_feature_is_cut_and_two_are_a_fault(tmp_path: Path) -> None:
    series = {
        "a": {"data": np.ones((100, 8)), "rate": 50.0},
        # Half a bin later: of 1.0 to 1.21 s it has 10 bins, where `a` has 11.
        "b": {"data": np.ones((100, 8)), "rate": 50.0, "starting_time": 0.015},
    }
    path = tmp_path / "a.nwb"
    _write(path, series, [{"start_time": 1.0, "stop_time": 1.21, "cue": "hello"}])
    text = f"""{HEAD}bin_ms: 20
features:
  - {{name: acquisition/a, kind: counts}}
  - {{name: acquisition/b, kind: counts}}
sentence: {{name: cue}}
"""
    contents, (found,) = _read(path, text)
    assert found.shape == (10, 16)
    assert _trials(contents)[0].n_bins == 10
    series["b"] = {"data": np.ones((97, 8)), "timestamps": np.arange(97) * 0.022}
    _write(path, series, [{"start_time": 1.0, "stop_time": 1.81, "cue": "hello"}])
    with pytest.raises(FaultError) as caught:
        _read(path, text)
    assert caught.value.message == (
        "41 bins of 20 ms found, 37 in acquisition/b; correct bin_ms of the features"
    )


def test_arrays_are_chosen_by_the_names_in_the_electrodes_table(tmp_path: Path) -> None:
    from pynwb import NWBHDF5IO, NWBFile
    from pynwb.ecephys import ElectricalSeries

    file = NWBFile("speech", "one", datetime.datetime(2025, 3, 14, tzinfo=CHICAGO))
    device = file.create_device(name="array")
    for name in ("6v", "44", "6v"):
        if name not in file.electrode_groups:
            file.create_electrode_group(name, description=name, location="left", device=device)
        for _ in range(2):
            file.add_electrode(group=file.electrode_groups[name], location="left")
    # Rows 0, 1 and 4, 5 are of 6v, whatever the order of the columns.
    region = file.create_electrode_table_region([2, 0, 1, 3, 5, 4], "all")
    data = np.arange(60.0).reshape(10, 6)
    series = ElectricalSeries(name="power", data=data, electrodes=region, rate=50.0)
    file.add_acquisition(series)
    file.add_trial_column("cue", "cue")
    file.add_trial(start_time=0.0, stop_time=0.2, cue="hello")
    with NWBHDF5IO(tmp_path / "a.nwb", "w") as io:
        io.write(file)
    text = f"""{HEAD}participant: t99
bin_ms: 20
features: [{{name: acquisition/power, kind: power, arrays: [6v]}}]
sentence: {{name: cue}}
"""
    _, (found,) = _read(tmp_path / "a.nwb", text)
    np.testing.assert_array_equal(found, data[:, [1, 2, 4, 5]])
    with pytest.raises(FaultError, match="no electrodes of array '6w', but of 44, 6v"):
        _read(tmp_path / "a.nwb", text.replace("[6v]", "[6w]"))


def _simple(path: Path, trials: Sequence[dict[str, Any]], **series: Any) -> None:
    arguments = {"data": np.ones((500, 8), np.int16), "rate": 50.0} | series
    if "timestamps" in arguments:
        del arguments["rate"]
    _write(path, {"tx": arguments}, trials, columns=tuple(trials[0])[2:])


def _rows(*cues: str, **columns: Sequence[Any]) -> list[dict[str, Any]]:
    """Return rows of trials of 0.8 s, a second apart."""
    rows = []
    for i, cue in enumerate(cues):
        row: dict[str, Any] = {"start_time": i + 0.0, "stop_time": i + 0.8, "cue": cue}
        rows.append(row | {name: values[i] for name, values in columns.items()})
    return rows


SIMPLE = f"""{HEAD}bin_ms: 20
features: [{{name: acquisition/tx, kind: counts}}]
sentence: {{name: cue}}
"""


def test_trials_that_the_mapping_leaves_out_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "a.nwb"
    rows = _rows("one", "REST", "", "two", "REST", "bad", block=[1] * 6, kind=["a"] * 5 + ["x"])
    _simple(path, rows)
    text = SIMPLE.replace("{name: cue}", "{name: cue, leave_out: [REST]}")
    text += "block: {name: block}\nsplit: {name: kind, train: [a], leave_out: [x]}\n"
    contents, _ = _read(path, text)
    assert [(trial.number, trial.sentence) for trial in _trials(contents)] == [
        (0, "one"),
        (3, "two"),
    ]
    assert list(contents.notes) == [
        "2 trials of 'REST', left out by the mapping",
        "1 trial without a sentence",
        "1 trial of split 'x'",
    ]


def test_test_trials_need_no_sentence(tmp_path: Path) -> None:
    _simple(tmp_path / "a.nwb", _rows("one", "", kind=["train", "test"]))
    text = SIMPLE + "split: {name: kind, train: [train], test: [test]}\n"
    contents, _ = _read(tmp_path / "a.nwb", text)
    assert [(block.split, block.trials[0].sentence) for block in contents.blocks] == [
        ("train", "one"),
        ("test", None),
    ]


def test_trials_stay_in_the_order_of_the_file_whatever_their_split(tmp_path: Path) -> None:
    """Causal z-scores look back on the trials before."""
    kinds = ["train", "val", "train", "test"]
    _simple(tmp_path / "a.nwb", _rows("one", "two", "three", "four", kind=kinds))
    text = SIMPLE + "split: {name: kind, train: [train], val: [val], test: [test]}\n"
    contents, _ = _read(tmp_path / "a.nwb", text)
    assert [(block.number, block.split) for block in contents.blocks] == [(0, k) for k in kinds]
    assert [trial.number for trial in _trials(contents)] == [0, 1, 2, 3]
    source = nwb(tmp_path / "a.nwb", _mapping(tmp_path, text))
    assert not import_source(source, tmp_path / "out").problems
    found = open_dataset(tmp_path / "out").trials("train")
    assert [trial.trial for trial in found] == [0, 2]


def test_splits_may_be_numbers_or_truth_values(tmp_path: Path) -> None:
    _simple(tmp_path / "a.nwb", _rows("one", "two", held=[False, True]))
    text = SIMPLE + "split: {name: held, train: [false], val: [true]}\n"
    contents, _ = _read(tmp_path / "a.nwb", text)
    assert [block.split for block in contents.blocks] == ["train", "val"]


def test_cues_may_be_numbers_of_a_list_in_the_mapping(tmp_path: Path) -> None:
    rows = _rows("", "", number=[2, 1])
    _simple(tmp_path / "a.nwb", rows)
    text = SIMPLE.replace("{name: cue}", "{name: number, cues: [hello, good day]}")
    contents, _ = _read(tmp_path / "a.nwb", text)
    assert [trial.sentence for trial in _trials(contents)] == ["good day", "hello"]
    with pytest.raises(FaultError, match="cue 2 found, 0 to 1 expected"):
        _read(tmp_path / "a.nwb", text.replace("cues:", "first_cue: 0, cues:"))


def test_files_of_one_day_are_blocks_of_one_session(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number, name in enumerate(("b.nwb", "a.nwb")):
        _write(
            folder / name,
            {"tx": {"data": np.full((50, 8), number + 5), "rate": 50.0}},
            _rows("one"),
            identifier=name,
        )
    source = nwb(folder, _mapping(tmp_path, SIMPLE + "split: {val_blocks: 1}\n"))
    (recording,) = source.recordings
    assert recording.session == "T99.2025.03.14"
    with recording.open() as contents:
        found = [(b.number, b.split, int(b.trials[0].read()[0, 0])) for b in contents.blocks]
        assert found == [(0, "train", 6), (1, "val", 5)]
        assert int(contents.blocks[0].trials[0].read()[0, 0]) == 6  # also after the other file


def test_a_session_of_one_block_is_for_training_alone(tmp_path: Path) -> None:
    _simple(tmp_path / "a.nwb", _rows("one", "two"))
    contents, _ = _read(tmp_path / "a.nwb", SIMPLE + "split: {val_blocks: 1}\n")
    assert [block.split for block in contents.blocks] == ["train"]
    assert list(contents.notes) == [
        "no trials for val: val_blocks is 1, and there is 1 block to train on"
    ]


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
    _simple(path, _rows("one", "two", word=[1, 2], half=[0.5, 1.0]))
    assert old in SIMPLE
    result = import_source(
        nwb(path, _mapping(tmp_path, SIMPLE.replace(old, new))), tmp_path / "out"
    )
    (problem,) = result.problems
    assert str(problem).startswith(f"{path}: ")
    assert expected in str(problem)


def _problem(path: Path, text: str = SIMPLE) -> str:
    """Return the only problem of an import, without the file."""
    result = import_source(nwb(path, _mapping(path.parent, text)), path.parent / "out")
    (problem,) = result.problems
    return str(problem).removeprefix(f"{path}: ")


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
    rows = _rows("one", "two")
    rows[1] |= {"start_time": start, "stop_time": stop}
    _simple(tmp_path / "a.nwb", rows)
    said = _problem(tmp_path / "a.nwb")
    assert said.startswith("block 0 trial 1: ")
    assert expected in said
    assert said.endswith("or leave it out with --skip-bad")


def test_a_trial_that_crosses_a_gap_says_where(tmp_path: Path) -> None:
    times = np.arange(500) * 0.02
    times[80:] += 10  # between 1.58 s and 11.6 s
    _simple(tmp_path / "a.nwb", _rows("one", "two"), timestamps=times)
    assert _problem(tmp_path / "a.nwb") == (
        "block 0 trial 1: acquisition/tx: the trial's stop is 0.22 s from the nearest sample, at"
        " 1.58 s; correct the trial, which lies in a gap of the series, or leave it out with"
        " --skip-bad"
    )
    times[80:] -= 9.9
    _simple(tmp_path / "a.nwb", _rows("one", "two"), timestamps=times)
    assert "samples at 1.58 s and 1.7 s follow each other in a trial" in _problem(
        tmp_path / "a.nwb"
    )


def test_a_row_that_is_there_twice_is_a_problem(tmp_path: Path) -> None:
    rows = _rows("one", "two")
    rows[1] |= {"start_time": 0.0, "stop_time": 0.8}
    _simple(tmp_path / "a.nwb", rows)
    assert "row 1 has the times of row 0; remove one of them" in _problem(tmp_path / "a.nwb")


def test_times_that_go_back_are_a_fault_of_the_file(tmp_path: Path) -> None:
    times = np.arange(500) * 0.02
    times[80] = 0
    _simple(tmp_path / "a.nwb", _rows("one"), timestamps=times)
    assert _problem(tmp_path / "a.nwb") == (
        "acquisition/tx: sample 80 is at 0 s, the one before it at 1.58 s; increasing times"
        " expected; correct the timestamps"
    )


def test_one_file_twice_is_refused(tmp_path: Path) -> None:
    for name in ("a.nwb", "b.nwb"):
        _simple(tmp_path / name, _rows("one"))
    with refused(r"b\.nwb: identifier: the same as in .*a\.nwb; remove one of them"):
        nwb(tmp_path, _mapping(tmp_path, SIMPLE))


def test_a_block_in_two_files_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.nwb", "b.nwb"):
        series = {"tx": {"data": np.ones((50, 8)), "rate": 50.0}}
        _write(folder / name, series, _rows("one", block=[3]), ("cue", "block"), identifier=name)
    source = nwb(folder, _mapping(tmp_path, SIMPLE + "block: {name: block}\n"))
    (problem,) = import_source(source, tmp_path / "out").problems
    assert "block 3 is in a.nwb and in b.nwb; remove a file that is there twice" in str(problem)


def test_a_fault_of_the_second_file_of_a_session_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, width in (("a.nwb", 8), ("b.nwb", 9)):
        series = {"tx": {"data": np.ones((50, width)), "rate": 50.0}}
        _write(folder / name, series, _rows("one"), identifier=name)
    (problem,) = import_source(nwb(folder, _mapping(tmp_path, SIMPLE)), tmp_path / "out").problems
    assert "b.nwb: features: [9] columns found, [8] in a.nwb" in str(problem)


def test_sources_that_hold_no_such_file_are_refused(tmp_path: Path) -> None:
    mapping = _mapping(tmp_path, SIMPLE)
    with refused("no such file or folder; check the path"):
        nwb(tmp_path / "none", mapping)
    with refused(r"no \.nwb files there; check the folder"):
        nwb(tmp_path, mapping)
    _write(tmp_path / "a.nwb", {}, _rows("one"), subject=None)
    with refused("subject_id: None found, a plain name expected; name the participant"):
        nwb(tmp_path, mapping)


def test_a_series_in_another_file_is_refused_also_where_its_folder_is(tmp_path: Path) -> None:
    for name in ("a.nwb", "other.nwb"):
        _simple(tmp_path / name, _rows("one"))
    with h5py.File(tmp_path / "a.nwb", "r+") as file:
        del file["acquisition"]
        file["acquisition"] = h5py.ExternalLink("other.nwb", "/acquisition")
    assert _problem(tmp_path / "a.nwb") == (
        "acquisition/tx: an external link found, which reads another file; copy the values into"
        " the file itself"
    )


def test_bins_of_thirty_hertz_stay_as_they_are(tmp_path: Path) -> None:
    data = np.random.default_rng(0).poisson(1, (300, 8))
    _simple(tmp_path / "a.nwb", _rows("one", "two"), data=data, rate=30.0)
    contents, arrays = _read(tmp_path / "a.nwb", SIMPLE.replace("bin_ms: 20", "bin_ms: 33.333"))
    np.testing.assert_array_equal(arrays[1], data[30:54])
    assert [trial.n_bins for trial in _trials(contents)] == [24, 24]


@pytest.mark.parametrize("rate", [1e-3, 2e6])
def test_rates_that_no_feature_has_are_refused(tmp_path: Path, rate: float) -> None:
    _simple(tmp_path / "a.nwb", _rows("one"), rate=rate)
    assert "samples a second found, 1 to 1,000,000 possible" in _problem(tmp_path / "a.nwb")


@pytest.mark.parametrize("name", ["", "/", ".", "acquisition", "acquisition/tx/data", "a\\0b"])
def test_any_name_of_a_series_is_read_or_refused(tmp_path: Path, name: str) -> None:
    _simple(tmp_path / "a.nwb", _rows("one"))
    said = _problem(tmp_path / "a.nwb", SIMPLE.replace("acquisition/tx,", f'"{name}",'))
    assert "; " in said


def test_damage_of_one_trial_leaves_the_others(tmp_path: Path) -> None:
    """Bytes of one compressed chunk are overwritten."""
    path = tmp_path / "a.nwb"
    rng = np.random.default_rng(0)
    _simple(path, _rows("one", "two"), data=rng.poisson(3, (500, 8)))
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
    source = nwb(path, _mapping(tmp_path, SIMPLE))
    done = import_source(source, tmp_path / "out", skip_bad=True)
    (problem,) = done.problems
    assert problem.trial == "block 0 trial 1"
    assert "damaged HDF5" in str(problem)
    assert done.n_written == 1


def test_bins_may_have_a_rate_that_is_no_round_number(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    trials = [Written(t.sentence, t.block, t.arrays) for t in rig_trials(rng, 8)]
    write_nwb(tmp_path / "a.nwb", trials=trials, bin_ms=15)
    contents, arrays = _read(tmp_path / "a.nwb", RIG.replace("bin_ms: 20", "bin_ms: 15"))
    for written, found in zip(trials, arrays, strict=True):
        expected = np.concatenate(list(written.arrays.values()), axis=1)
        np.testing.assert_array_equal(found, expected)
    assert contents.bin_ms == 15
