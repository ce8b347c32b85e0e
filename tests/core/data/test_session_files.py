from pathlib import Path

import h5py
import numpy as np
import pytest

from cortext.data import Trial, make_trial, open_dataset, read_trials, write_session
from cortext.data.dataset import read_description
from cortext.errors import DataError

SESSION = "t15.2023.08.11"


def trial(number: int = 0, n_bins: int = 60, **changes) -> Trial:
    values = dict(
        features_TC=np.ones((n_bins, 4), np.float32), session=SESSION, block=2, trial=number
    )
    values |= dict(sentence="Hi there", phoneme_ids=np.array([16, 11, 40]))
    return Trial(**(values | changes))


def test_file_has_the_release_s_layout(tmp_path: Path) -> None:
    path = tmp_path / SESSION / "data_train.hdf5"
    write_session(path, [trial(7)])
    with h5py.File(path) as file:
        group = file["trial_0000"]
        assert set(group) == {"input_features", "seq_class_ids", "transcription"}
        assert group["input_features"].shape == (60, 4)
        assert group["input_features"].dtype == np.float32
        assert group["seq_class_ids"][:4].tolist() == [16, 11, 40, 0]
        assert group["seq_class_ids"].shape == group["transcription"].shape == (500,)
        codes = group["transcription"][:]
        assert "".join(map(chr, codes[: np.argmin(codes)])) == "Hi there"
        assert dict(group.attrs) == {
            "n_time_steps": 60,
            "seq_len": 3,
            "sentence_label": "Hi there",
            "session": SESSION,
            "block_num": 2,
            "trial_num": 7,
        }


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    features_TC = np.random.default_rng(0).standard_normal((70, 4), dtype=np.float32)
    path = tmp_path / SESSION / "data_train.hdf5"
    write_session(path, (t for t in [trial(features_TC=features_TC, corpus="50-Word"), trial(1)]))
    first, second = read_trials(path, labels_required=True)
    assert np.array_equal(first.features_TC, features_TC)
    assert (first.session, first.block, first.trial) == (SESSION, 2, 0)
    assert (first.sentence, first.phoneme_ids.tolist(), first.corpus) == (
        "Hi there",
        [16, 11, 40],
        "50-Word",
    )
    assert (second.name, second.corpus) == (f"{SESSION}/block 2/trial 1", None)


def test_unlabelled_trials_have_no_label_fields(tmp_path: Path) -> None:
    path = tmp_path / SESSION / "data_test.hdf5"
    write_session(path, [trial(sentence=None, phoneme_ids=None)])
    with h5py.File(path) as file:
        assert list(file["trial_0000"]) == ["input_features"]
    (read,) = read_trials(path, labels_required=False)
    assert read.sentence is None
    assert read.phoneme_ids is None


def test_a_training_trial_may_have_no_label_but_no_half_of_one(tmp_path: Path) -> None:
    path = tmp_path / SESSION / "data_train.hdf5"
    write_session(path, [trial(), trial(1, sentence=None, phoneme_ids=None)])
    assert [t.sentence for t in open_dataset(tmp_path).trials("train")] == ["Hi there", None]
    with h5py.File(path, "r+") as file:
        file["trial_0001"].attrs["sentence_label"] = "Hi there"
    with pytest.raises(DataError, match="trial_0001: seq_len: attribute missing"):
        list(open_dataset(tmp_path).trials("train"))


def test_a_file_in_the_folder_of_another_day_is_refused_also_by_a_relative_path(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=f"'{tmp_path.name}' .the folder. expected"):
        write_session("data_train.hdf5", [trial()])
    assert not list(tmp_path.iterdir())


def test_a_file_by_another_hand_is_read(tmp_path: Path) -> None:
    """Byte strings, float64 features, padding bins, extra groups, trials of five digits."""
    path = tmp_path / "data_train.hdf5"
    with h5py.File(path, "w") as file:
        for number in (10000, 2):
            group = file.create_group(f"trial_{number:04d}")
            group["input_features"] = np.full((80, 4), number, dtype=np.float64)
            group["seq_class_ids"] = np.pad([1, 40], (0, 498)).astype(np.int64)
            group["transcription"] = np.zeros(500, dtype=np.uint8)
            group.attrs.update(
                {"n_time_steps": 70, "seq_len": np.array([2]), "block_num": 1, "trial_num": number}
            )
            group.attrs["session"] = np.bytes_(SESSION)
            group.attrs["sentence_label"] = np.array(["ah"], dtype=object)
        file.create_group("notes")
    trials = list(read_trials(path, labels_required=True))
    assert [t.trial for t in trials] == [2, 10000]
    assert (trials[0].n_bins, trials[0].features_TC.dtype, trials[0].sentence) == (
        70,
        np.float32,
        "ah",
    )


def test_trials_are_read_one_at_a_time(dataset_root: Path) -> None:
    trials = open_dataset(dataset_root).trials("train")
    assert next(trials).trial == 0
    (dataset_root / "t15.2023.08.13" / "data_train.hdf5").unlink()
    with pytest.raises(DataError, match="no such file"):
        list(trials)


def test_writing_checks_trials_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / SESSION / "data_train.hdf5"
    write_session(path, [trial()])
    before = path.read_bytes()
    cases = {
        "9 patches|12 patches": [trial(n_bins=58, phoneme_ids=np.full(12, 3))],
        "both or neither": [trial(phoneme_ids=None)],
        "token 41": [trial(phoneme_ids=np.array([41]))],
        "already in trial_0000": [trial(), trial()],
        r"5 features found, 4 expected": [
            trial(),
            trial(1, features_TC=np.ones((60, 5), np.float32)),
        ],
        "1 NaN or Inf found, the first at bin 3 of feature 2": [trial(features_TC=with_nan())],
        "500 characters found": [trial(sentence="a" * 500)],
        r"\[bins, features\]": [trial(features_TC=np.ones(60, np.float32))],
        f"session: 't15.2023.08.13' found, '{SESSION}' .the folder. expected; write it to a"
        " folder named t15.2023.08.13": [trial(), trial(1, session="t15.2023.08.13")],
        "an array of numbers expected": [trial(features_TC=np.full((60, 4), "a"))],
        "block_num: 1.5 found, a whole number expected": [trial(block=1.5)],
        "corpus: 3 found, a text expected": [trial(corpus=3)],
        r"shape \[1, 3\] found, \[phonemes\] expected": [trial(phoneme_ids=np.ones((1, 3), int))],
        "no trials": [],
    }
    for message, trials in cases.items():
        with pytest.raises(DataError, match=message) as caught:
            write_session(path, trials)
        assert str(path) in str(caught.value)
        assert path.read_bytes() == before
        assert [p.name for p in path.parent.iterdir()] == [path.name]


def with_nan() -> np.ndarray:
    features_TC = np.ones((60, 4), np.float32)
    features_TC[3, 2] = np.nan
    return features_TC


def test_an_error_of_the_caller_s_generator_passes_and_leaves_nothing(tmp_path: Path) -> None:
    def trials(error: Exception):
        yield trial(session=tmp_path.name)
        raise error

    for error in (ZeroDivisionError(), FileNotFoundError("recording.ns5")):
        with pytest.raises(type(error)):
            write_session(tmp_path / "data_train.hdf5", trials(error))
        assert not list(tmp_path.iterdir())


def test_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, full_disk) -> None:
    path = tmp_path / "data_train.hdf5"
    with (
        full_disk(100_000),
        pytest.raises(DataError, match=r"cannot be written: .*free some space"),
    ):
        write_session(
            path, (trial(number, n_bins=400, session=tmp_path.name) for number in range(40))
        )
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match=r"cannot be written: .*; check the folder's permissions"):
        write_session(tmp_path / "file" / "data_train.hdf5", [trial()])


def test_make_trial_looks_phonemes_up() -> None:
    made = make_trial(np.zeros((60, 4)), SESSION, 1, 2, "hello world", corpus="mine")
    assert made.features_TC.dtype == np.float32
    # HH AH L OW SIL, W ER L D SIL.
    assert made.phoneme_ids.tolist() == [
        16,
        3,
        21,
        25,
        40,
        36,
        12,
        21,
        9,
        40,
    ]
    assert make_trial(np.zeros((60, 4)), SESSION, 1, 2).phoneme_ids is None
    assert make_trial(
        np.zeros((60, 4)), SESSION, 1, 2, "ah", phoneme_ids=[1]
    ).phoneme_ids.tolist() == [1]


def test_dataset_lists_sessions_and_splits(dataset_root: Path) -> None:
    (dataset_root / "notes").mkdir()
    dataset = open_dataset(dataset_root)
    assert [session.name for session in dataset.sessions] == ["t15.2023.08.11", "t15.2023.08.13"]
    assert dataset.splits == ("train", "val", "test")
    assert dataset.n_features == 8
    assert [dataset.n_trials(split) for split in dataset.splits] == [8, 4, 8]
    assert [t.session for t in dataset.trials("train", ["t15.2023.08.13"])] == [
        "t15.2023.08.13"
    ] * 4
    with pytest.raises(DataError, match=r"did you mean 't15\.2023\.08\.13'"):
        next(dataset.trials("train", ["t15.2023.08.14"]))
    with pytest.raises(DataError, match="did you mean 'train'"):
        next(dataset.trials("trian"))


def test_corpus_comes_from_the_table_of_blocks(dataset_root: Path, real_data: Path) -> None:
    table = real_data / "t15" / "t15_copyTaskData_description.csv"
    rows = read_description(table)
    assert (rows[0].date, rows[0].post_implant_day, rows[0].block, rows[0].corpus) == (
        "2023-08-11",
        25,
        2,
        "50-Word",
    )
    assert len({row.date for row in rows}) == 45
    (dataset_root.parent / table.name).write_bytes(table.read_bytes())
    dataset = open_dataset(dataset_root)
    assert dataset.post_implant_days() == {"t15.2023.08.11": 25, "t15.2023.08.13": 27}
    assert {t.corpus for t in dataset.trials("val", ["t15.2023.08.11"])} == {"50-Word"}
    (dataset_root.parent / table.name).write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="not the table of blocks"):
        open_dataset(dataset_root)


def test_a_dataset_iterates_over_all_its_trials(dataset_root: Path) -> None:
    dataset = open_dataset(dataset_root)
    assert [trial.name for trial in dataset] == [
        trial.name for split in dataset.splits for trial in dataset.trials(split)
    ]
