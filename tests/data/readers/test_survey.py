"""Channels that are NaN, flat or saturated are left out, and values that fit nothing are noted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from cortext.cli import run
from cortext.data import open_dataset
from cortext_data.readers.importing import Imported, import_source
from cortext_data.readers.recording import (
    Block,
    Contents,
    FeatureGroup,
    RecordedTrial,
    Recording,
    Source,
)
from cortext_data.readers.survey import Survey

RNG = np.random.default_rng(7)
DAYS = ("t9.2025.01.01", "t9.2025.01.02")


def power(n_trials: int = 4, n_bins: int = 100, n_features: int = 6) -> list[np.ndarray]:
    return [RNG.normal(5, 1, (n_bins, n_features)) for _ in range(n_trials)]


def imported(
    folder: Path,
    *days: Sequence[np.ndarray],
    normalise: str = "block",
    is_counts: bool = False,
    columns: Sequence[int] = range(10, 16),
) -> Imported:
    """Import days of trials, each of which is a block of its own in pairs."""
    recordings = []
    for name, trials in zip(DAYS, days, strict=False):
        path = folder / name
        if not path.exists():
            path.write_bytes(bytes(10))

        @contextmanager
        def opened(trials=trials):
            made = [
                RecordedTrial(i, len(x), lambda x=x: x, "hello there") for i, x in enumerate(trials)
            ]
            blocks = [Block(i, "train", made[2 * i : 2 * i + 2]) for i in range(len(made) // 2)]
            yield Contents(blocks, 20, groups=[FeatureGroup("tx", columns, is_counts)])

        recordings.append(Recording(name, [path], opened))
    return import_source(Source("lab", recordings), folder / "out", normalise=normalise)


def written(folder: Path) -> list[np.ndarray]:
    return [trial.features_TC for trial in open_dataset(folder / "out").trials("train")]


@pytest.mark.parametrize("normalise", ["block", "rolling", "none", "raw"])
def test_dead_channels_become_zero_in_one_line_with_the_columns_to_keep(tmp_path, normalise):
    trials = power()
    for i, x in enumerate(trials):
        x[:, 1] = np.nan
        x[:, 2] = 3.5
        x[: 80 if i else 20, 4] = 99.0  # 260 of 400 bins at the highest value
    alive = [0, 3, 5]
    done = imported(tmp_path, trials, normalise=normalise)
    assert done.problems == []
    assert done.notes == [
        f"{DAYS[0]}: tx: left out (0): column 11 (NaN), column 12 (flat), column 14 (saturated);"
        " `columns: 10, 13, 15` leaves them out for good"
    ]
    found = written(tmp_path)
    assert not np.concatenate(found)[:, [1, 2, 4]].any()
    if normalise == "block":
        block = np.concatenate(trials[2:])[:, alive]
        expected = (trials[2][:, alive] - block.mean(axis=0)) / block.std(axis=0)
        np.testing.assert_allclose(found[2][:, alive], expected, atol=1e-5)
    elif normalise in ("none", "raw"):
        np.testing.assert_array_equal(found[2][:, alive], np.float32(trials[2][:, alive]))


def test_a_channel_that_is_lost_in_a_block_is_left_out_of_the_day(tmp_path):
    trials = power()
    trials[1][50:, 0] = np.nan  # unplugged within a trial
    trials[2][:, 0] = trials[3][:, 0] = np.nan
    done = imported(tmp_path, trials)
    assert "column 10 (NaN)" in done.notes[0]
    assert done.problems == []
    assert not np.concatenate(written(tmp_path))[:, 0].any()


@pytest.mark.parametrize("at", [slice(None), slice(0, 60)])
def test_a_lost_trial_is_a_problem_and_costs_no_channel(tmp_path, at):
    """All channels of a trial, or all of some bins."""
    trials = power()
    trials[3][at] = np.nan
    done = imported(tmp_path, trials)
    assert [problem.trial for problem in done.problems] == ["block 1 trial 3"]
    assert "NaN or Inf found, the first at bin 0 of feature 0" in str(done.problems[0])


def test_counts_of_zero_and_one_are_not_saturated(tmp_path):
    trials = [(RNG.random((100, 6)) < 0.8).astype("u1") for _ in range(4)]
    assert imported(tmp_path, trials, is_counts=True).notes == []


def test_sparse_counts_are_not_saturated_where_they_are_z_scored(tmp_path):
    trials = [RNG.poisson(0.3, (100, 6)) for _ in range(4)]  # 0 in three quarters of the bins
    x = np.concatenate(trials)
    scored = [(x_TC - x.mean(axis=0)) / x.std(axis=0) for x_TC in trials]
    assert imported(tmp_path, scored, normalise="none").notes == []


def test_a_channel_at_the_lower_end_of_its_amplifier_is_saturated(tmp_path):
    trials = power()
    for x in trials:
        x[:60, 3] = -32768
    (note,) = imported(tmp_path, trials).notes
    assert "column 13 (saturated)" in note


def test_a_trial_of_t12_has_no_dead_channel(real_data):
    with np.load(real_data / "neural" / "t12.2022.04.28_train_trial10.npz") as arrays:
        for name in ("tx1", "spikePow_z", "features_z"):
            survey = Survey([FeatureGroup(name, range(arrays[name].shape[1]), name == "tx1")])
            survey.add(1, arrays[name])
            assert survey.notes("none", {}, False) == []


def test_a_recording_of_nothing_says_so(tmp_path):
    done = imported(tmp_path, [np.zeros((100, 6))] * 4)
    assert done.notes == [
        f"{DAYS[0]}: tx: left out (0): columns 10-15 (flat); no column is left that says anything"
    ]
    (problem,) = done.problems
    assert problem.message == "no feature is left that says anything; name other features"
    assert (done.n_written, done.n_refused) == (0, 1)


def test_counts_that_are_no_counts_are_noted(tmp_path):
    volts = [RNG.normal(0, 30, (100, 6)) for _ in range(4)]
    volts[0][0] = [-90.5, 88, 0, 0, 0, 0]
    for x in volts:
        np.clip(x, -90.5, 88, out=x)
    (note,) = imported(tmp_path, volts, is_counts=True).notes
    assert note == (
        f"{DAYS[0]}: tx: values from -90.5 to 88 found for `kind: counts`, whole numbers from 0"
        " expected; power has `kind: power`, and raw voltages are not read"
    )


def test_values_that_are_no_z_scores_are_noted_where_they_are_left(tmp_path):
    trials = [np.abs(x) * 1000 for x in power()]
    (note,) = imported(tmp_path, trials, normalise="none").notes
    low, high = min(x.min() for x in trials), max(x.max() for x in trials)
    assert f"values from {low:,.4g} to {high:,.0f}" in note or f"{high:,.4g}" in note
    assert "left as they are, -3 to 3 expected of most z-scores" in note


def test_a_day_in_another_unit_is_noted_with_both_ranges(tmp_path):
    first = [2.0 + RNG.integers(0, 5, (100, 6)) for _ in range(4)]  # 2 to 6
    done = imported(tmp_path, first, [x * 1000 for x in first])
    assert done.notes == [
        f"{DAYS[1]}: tx: values from 2,000 to 6,000, 2 to 6 in {DAYS[0]}: on average 1,000 times as"
        " large; check their unit"
    ]
    # The record has the note, and a second call shows it again.
    record = json.loads((tmp_path / "out" / "import.json").read_text())
    assert [entry["notes"] for entry in record["recordings"].values()] == [[], done.notes]
    again = imported(tmp_path, first, [x * 1000 for x in first])
    assert (again.n_written, again.n_kept, again.notes) == (0, 2, done.notes)


def test_nothing_that_can_be_packed_is_a_failure(tmp_path):
    done = imported(tmp_path, [x * 1e5 for x in power()], normalise="none")
    assert len(done.problems) == 4
    assert "at most 65504 (the end of float16) expected" in str(done.problems[0])
    assert done.n_written == 0


def test_an_import_that_leaves_everything_out_fails(tmp_path, capsys):
    from foreign_matlab import cells, save_v5, texts

    path = tmp_path / "t99.2025.03.14.mat"
    empty = [np.zeros((0, 0))] * 3
    save_v5(path, {"tx": cells(empty), "words": texts(["one", "two", "three"], (3, 1))})
    mapping = tmp_path / "m.yaml"
    mapping.write_text(
        "format: cortext-mapping\nformat_version: 1\nreader: mat\nparticipant: t99\nbin_ms: 20\n"
        "features: [{name: tx, kind: counts}]\ntrials: {layout: cells}\nsentence: {name: words}\n"
    )
    command = ["import", "mat", str(path), "--mapping", str(mapping), "--out", str(tmp_path / "o")]
    assert run(command) == 2
    said = capsys.readouterr().err
    assert "note: t99.2025.03.14: left out: 3 trials with an empty cell" in said
    assert "no trial was left to write; see the notes and problems above" in said
