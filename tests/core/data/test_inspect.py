import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from cortext.data import make_trial, pack, write_session
from cortext.data.inspect import inspect
from cortext.errors import DataError


def test_report_counts_what_is_there(dataset_root: Path, some_trials) -> None:
    calls: list[tuple[int, int]] = []
    report = inspect(dataset_root, lambda *progress: calls.append(progress), check_sentences=False)
    assert (report.kind, report.n_features, report.problems) == ("session files", 8, [])
    assert [(row.session, row.split, row.n_trials) for row in report.rows] == [
        ("t15.2023.08.11", "train", 4),
        ("t15.2023.08.11", "val", 4),
        ("t15.2023.08.11", "test", 4),
        ("t15.2023.08.13", "train", 4),
        ("t15.2023.08.13", "test", 4),
    ]
    assert [(row.split, row.n_trials) for row in report.totals] == [
        ("train", 8),
        ("val", 4),
        ("test", 8),
    ]
    row = report.rows[0]
    trials = some_trials("t15.2023.08.11", 1)
    assert row.date == "2023-08-11"
    assert row.minutes == pytest.approx(sum(t.n_bins for t in trials) * 0.02 / 60)
    assert (row.shortest_bins, row.longest_bins) == (
        min(t.n_bins for t in trials),
        max(t.n_bins for t in trials),
    )
    assert row.lowest == min(t.features_TC.min() for t in trials)
    assert row.highest == max(t.features_TC.max() for t in trials)
    assert (row.n_sentences, row.n_phonemes) == (4, 24)
    assert report.n_distinct_sentences == 4
    assert {"AH", "CH", "ER", "SIL"}.isdisjoint(report.phonemes_missing)
    assert len(report.phonemes_missing) == 36
    assert calls[-1] == (20, 20)


def test_report_is_a_table_and_json(dataset_root: Path) -> None:
    report = inspect(dataset_root, check_sentences=False)
    plain = json.loads(report.to_json())
    assert plain["rows"][1]["split"] == "val"
    assert plain["problems"] == []
    lines = str(report).splitlines()
    assert lines[2].split()[:4] == ["session", "split", "trials", "bad"]
    assert lines[3].split()[:4] == ["t15.2023.08.11", "train", "4", "0"]
    assert lines[-1] == "problems: none"


def test_sentences_that_are_scored_otherwise_than_labelled_are_counted(tmp_path: Path) -> None:
    prompts = ["We\u2019re here", "yes", "We\u2019re there"]
    features_TC = np.random.default_rng(0).normal(size=(100, 4))
    trials = [make_trial(features_TC, "a.2026.01.12", 1, i, text) for i, text in enumerate(prompts)]
    write_session(tmp_path / "a.2026.01.12" / "data_train.hdf5", trials)
    (problem,) = inspect(tmp_path).problems
    assert problem.message.startswith("2 sentences have marks that labels read and scoring drops")
    assert "labelled \"we're here\" and scored 'were here'" in problem.message
    assert inspect(tmp_path, check_sentences=False).problems == []


def test_every_problem_is_listed(dataset_root: Path, some_trials, tmp_path: Path) -> None:
    folder = dataset_root / "t15.2023.08.11"
    with h5py.File(folder / "data_train.hdf5", "r+") as file:
        file["trial_0001/input_features"][0, 0] = np.nan
        del file["trial_0003/transcription"]
    (dataset_root / "t15.2023.08.13" / "data_train.hdf5").write_bytes(b"no")
    write_session(folder / "data_val.hdf5", some_trials("t15.2023.08.11", 1))
    report = inspect(dataset_root, check_sentences=False)
    assert [(Path(p.file).name, p.trial, p.field) for p in report.problems] == [
        ("data_train.hdf5", "trial_0001", "input_features"),
        ("data_train.hdf5", "trial_0003", "transcription"),
        ("data_train.hdf5", None, None),
        ("data_val.hdf5", None, "trial_num"),
    ]
    assert "2 trials have numbers of another split's (the first: " in str(report.problems[3])
    assert [row.n_bad for row in report.rows] == [2, 0, 0, 1, 0]
    assert "problems: 4" in str(report)

    calls: list[tuple[int, int]] = []
    out = pack(dataset_root, tmp_path / "packed", skip_bad=True).path
    packed = inspect(out, lambda *progress: calls.append(progress), check_sentences=False)
    assert calls == sorted(calls)
    assert calls[-1] == (28, 28)
    assert inspect(out, check_sentences=False) == packed
    assert packed.kind == "packed"
    assert len(packed.problems) == 3
    assert {(row.session, row.split): (row.n_trials, row.n_bad) for row in packed.rows}[
        "t15.2023.08.11", "train"
    ] == (
        2,
        2,
    )
    assert [(row.split, row.n_trials) for row in packed.totals] == [
        ("train", 2),
        ("val", 4),
        ("test", 8),
    ]


def test_nothing_readable_is_a_report_too(dataset_root: Path, tmp_path: Path) -> None:
    for path in dataset_root.glob("*/*.hdf5"):
        path.write_bytes(b"")
    report = inspect(dataset_root, check_sentences=False)
    assert report.n_features is None
    assert len(report.problems) == 5
    with pytest.raises(DataError, match="no such directory"):
        inspect(tmp_path / "absent")


def test_each_unreadable_file_says_itself_what_is_wrong(dataset_root: Path) -> None:
    files = sorted(dataset_root.glob("*/data_*.hdf5"))
    for file in files:
        file.write_text("no HDF5")
    assert sorted(
        problem.file for problem in inspect(dataset_root, check_sentences=False).problems
    ) == [str(file) for file in files]
    assert {
        problem.message.split(",")[0]
        for problem in inspect(dataset_root, check_sentences=False).problems
    } == {"not an HDF5 file"}


def test_directory_in_place_of_a_file_is_a_problem(dataset_root: Path) -> None:
    file = dataset_root / "t15.2023.08.11" / "data_val.hdf5"
    file.unlink()
    file.mkdir()
    assert [problem.file for problem in inspect(dataset_root, check_sentences=False).problems] == [
        str(file)
    ]
