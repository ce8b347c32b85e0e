"""NWB files of any lab, written with pynwb and read by a mapping."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from foreign_files import SENTENCES
from foreign_nwb import CHICAGO, rig_trials, write_falcon, write_nwb
from lab_nwb import (
    HEAD,
    SIMPLE,
    all_trials,
    cue_rows,
    mapping_file,
    read_nwb,
    write_series,
    write_simple,
)

from cortext.data import open_dataset
from cortext.data.checks import FaultError
from cortext_data.readers.importing import import_source
from cortext_data.readers.nwb import binned, nwb

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


@pytest.mark.parametrize("timestamps", [False, True])
def test_an_export_of_a_rig_is_read_as_it_was_recorded(tmp_path: Path, timestamps: bool) -> None:
    rig = write_nwb(
        tmp_path / "a.nwb", timestamps=timestamps, split=["train"] * 4 + ["val", "test"]
    )
    contents, arrays = read_nwb(tmp_path / "a.nwb", RIG)
    assert [(block.number, block.split, len(block.trials)) for block in contents.blocks] == [
        (1, "train", 3),
        (2, "train", 1),
        (2, "val", 1),
        (2, "test", 1),
    ]
    assert [trial.number for trial in all_trials(contents)] == [0, 1, 2, 0, 1, 2]
    assert [trial.sentence for trial in all_trials(contents)] == list(SENTENCES)
    assert contents.counts == list(range(64))
    assert contents.bin_ms == 20
    for written, found, trial in zip(rig.trials, arrays, all_trials(contents), strict=True):
        expected = np.concatenate(list(written.arrays.values()), axis=1)
        np.testing.assert_array_equal(found, expected)
        assert trial.n_bins == len(expected)


def test_an_import_of_a_rigs_files_has_z_scores_by_block(tmp_path: Path) -> None:
    rig = write_nwb(tmp_path / "in" / "a.nwb")
    write_nwb(tmp_path / "in" / "b.nwb", start="2026.05.05", seed=1)
    source = nwb(tmp_path / "in", mapping_file(tmp_path, RIG))
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
    contents, arrays = read_nwb(
        tmp_path / "held_in_calib" / "T5_2022.05.18_held_in_calib.nwb", text
    )
    assert [(block.number, block.split) for block in contents.blocks] == [(1, "train"), (2, "val")]
    assert ">" in trials[0].sentence
    expected = trials[0].sentence.replace(">", " ").replace("~", "")
    assert all_trials(contents)[0].sentence == expected
    for written, found in zip(trials, arrays, strict=True):
        np.testing.assert_array_equal(found, written.arrays["binned_spikes"])


def _counted(tmp_path: Path, kind: str = "counts", **trials: Any) -> tuple[list[Any], np.ndarray]:
    """Read one trial of two units, whose spikes are given by hand."""
    units = [np.array([0.999, 1.0, 1.019, 1.02, 1.0999]), np.array([1.04, 1.06, 1.0601, 1.1])]
    path = tmp_path / "units.nwb"
    write_series(path, {}, [{"start_time": 1.0, "stop_time": 1.1, "cue": "hello"}], units=units)
    text = f"{HEAD}bin_ms: 20\nfeatures: [{{name: units, kind: {kind}}}]\nsentence: {{name: cue}}\n"
    text += "".join(f"trials: {{{key}: {value}}}\n" for key, value in trials.items())
    contents, (found,) = read_nwb(path, text)
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
    write_series(
        path, series, [{"start_time": 0.2, "stop_time": 0.8, "cue": "hello"}], units=spikes
    )
    text = f"""{HEAD}bin_ms: 20
features:
  - {{name: acquisition/fast, kind: counts, columns: [2, 0]}}
  - {{name: acquisition/slow, kind: power}}
  - {{name: acquisition/finest, kind: power}}
  - {{name: units, kind: counts, bin_ms: 10}}
sentence: {{name: cue}}
"""
    contents, (found,) = read_nwb(path, text)
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
    write_series(path, series, [{"start_time": 1.0, "stop_time": 1.21, "cue": "hello"}])
    text = f"""{HEAD}bin_ms: 20
features:
  - {{name: acquisition/a, kind: counts}}
  - {{name: acquisition/b, kind: counts}}
sentence: {{name: cue}}
"""
    contents, (found,) = read_nwb(path, text)
    assert found.shape == (10, 16)
    assert all_trials(contents)[0].n_bins == 10
    series["b"] = {"data": np.ones((97, 8)), "timestamps": np.arange(97) * 0.022}
    write_series(path, series, [{"start_time": 1.0, "stop_time": 1.81, "cue": "hello"}])
    with pytest.raises(FaultError) as caught:
        read_nwb(path, text)
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
    _, (found,) = read_nwb(tmp_path / "a.nwb", text)
    np.testing.assert_array_equal(found, data[:, [1, 2, 4, 5]])
    with pytest.raises(FaultError, match="no electrodes of array '6w', but of 44, 6v"):
        read_nwb(tmp_path / "a.nwb", text.replace("[6v]", "[6w]"))


def test_trials_that_the_mapping_leaves_out_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "a.nwb"
    rows = cue_rows("one", "REST", "", "two", "REST", "bad", block=[1] * 6, kind=["a"] * 5 + ["x"])
    write_simple(path, rows)
    text = SIMPLE.replace("{name: cue}", "{name: cue, leave_out: [REST]}")
    text += "block: {name: block}\nsplit: {name: kind, train: [a], leave_out: [x]}\n"
    contents, _ = read_nwb(path, text)
    assert [(trial.number, trial.sentence) for trial in all_trials(contents)] == [
        (0, "one"),
        (3, "two"),
    ]
    assert list(contents.notes) == [
        "left out: 2 trials of 'REST'",
        "left out: 1 trial without a sentence",
        "left out: 1 trial of split 'x'",
    ]


def test_test_trials_need_no_sentence(tmp_path: Path) -> None:
    write_simple(tmp_path / "a.nwb", cue_rows("one", "", kind=["train", "test"]))
    text = SIMPLE + "split: {name: kind, train: [train], test: [test]}\n"
    contents, _ = read_nwb(tmp_path / "a.nwb", text)
    assert [(block.split, block.trials[0].sentence) for block in contents.blocks] == [
        ("train", "one"),
        ("test", None),
    ]


def test_trials_stay_in_the_order_of_the_file_whatever_their_split(tmp_path: Path) -> None:
    """Causal z-scores look back on the trials before."""
    kinds = ["train", "val", "train", "test"]
    write_simple(tmp_path / "a.nwb", cue_rows("one", "two", "three", "four", kind=kinds))
    text = SIMPLE + "split: {name: kind, train: [train], val: [val], test: [test]}\n"
    contents, _ = read_nwb(tmp_path / "a.nwb", text)
    assert [(block.number, block.split) for block in contents.blocks] == [(0, k) for k in kinds]
    assert [trial.number for trial in all_trials(contents)] == [0, 1, 2, 3]
    source = nwb(tmp_path / "a.nwb", mapping_file(tmp_path, text))
    assert not import_source(source, tmp_path / "out").problems
    found = open_dataset(tmp_path / "out").trials("train")
    assert [trial.trial for trial in found] == [0, 2]


def test_splits_may_be_numbers_or_truth_values(tmp_path: Path) -> None:
    write_simple(tmp_path / "a.nwb", cue_rows("one", "two", held=[False, True]))
    text = SIMPLE + "split: {name: held, train: [false], val: [true]}\n"
    contents, _ = read_nwb(tmp_path / "a.nwb", text)
    assert [block.split for block in contents.blocks] == ["train", "val"]


def test_cues_may_be_numbers_of_a_list_in_the_mapping(tmp_path: Path) -> None:
    rows = cue_rows("", "", number=[2, 1])
    write_simple(tmp_path / "a.nwb", rows)
    text = SIMPLE.replace("{name: cue}", "{name: number, cues: [hello, good day]}")
    contents, _ = read_nwb(tmp_path / "a.nwb", text)
    assert [trial.sentence for trial in all_trials(contents)] == ["good day", "hello"]
    with pytest.raises(FaultError, match="cue 2 found, 0 to 1 expected"):
        read_nwb(tmp_path / "a.nwb", text.replace("cues:", "first_cue: 0, cues:"))


def test_files_of_one_day_are_blocks_of_one_session(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for number, name in enumerate(("b.nwb", "a.nwb")):
        write_series(
            folder / name,
            {"tx": {"data": np.full((50, 8), number + 5), "rate": 50.0}},
            cue_rows("one"),
            identifier=name,
        )
    source = nwb(folder, mapping_file(tmp_path, SIMPLE + "split: {val_blocks: 1}\n"))
    (recording,) = source.recordings
    assert recording.session == "T99.2025.03.14"
    with recording.open() as contents:
        found = [(b.number, b.split, int(b.trials[0].read()[0, 0])) for b in contents.blocks]
        assert found == [(0, "train", 6), (1, "val", 5)]
        assert int(contents.blocks[0].trials[0].read()[0, 0]) == 6  # also after the other file


def test_a_session_of_one_block_is_for_training_alone(tmp_path: Path) -> None:
    write_simple(tmp_path / "a.nwb", cue_rows("one", "two"))
    contents, _ = read_nwb(tmp_path / "a.nwb", SIMPLE + "split: {val_blocks: 1}\n")
    assert [block.split for block in contents.blocks] == ["train"]
    assert list(contents.notes) == [
        "no trials for val: val_blocks is 1, and there is 1 block to train on"
    ]


def test_bins_of_thirty_hertz_stay_as_they_are(tmp_path: Path) -> None:
    data = np.random.default_rng(0).poisson(1, (300, 8))
    write_simple(tmp_path / "a.nwb", cue_rows("one", "two"), data=data, rate=30.0)
    contents, arrays = read_nwb(tmp_path / "a.nwb", SIMPLE.replace("bin_ms: 20", "bin_ms: 33.333"))
    np.testing.assert_array_equal(arrays[1], data[30:54])
    assert [trial.n_bins for trial in all_trials(contents)] == [24, 24]


def test_bins_may_have_a_rate_that_is_no_round_number(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    trials = rig_trials(rng, 8)
    write_nwb(tmp_path / "a.nwb", trials=trials, bin_ms=15)
    contents, arrays = read_nwb(tmp_path / "a.nwb", RIG.replace("bin_ms: 20", "bin_ms: 15"))
    for written, found in zip(trials, arrays, strict=True):
        expected = np.concatenate(list(written.arrays.values()), axis=1)
        np.testing.assert_array_equal(found, expected)
    assert contents.bin_ms == 15


def test_a_trial_whose_times_were_rounded_differently_is_not_another_one(tmp_path: Path) -> None:
    path = tmp_path / "in" / "a.nwb"
    write_nwb(path)
    with h5py.File(path, "a") as file:
        for name in ("start_time", "stop_time"):
            times = file[f"intervals/trials/{name}"]
            times[1] = times[0] + 1e-6
    source = nwb(path, mapping_file(tmp_path, RIG))
    (problem,) = import_source(source, tmp_path / "out").problems
    assert "intervals/trials: row 1 has the times of row 0; remove one of them" in str(problem)
