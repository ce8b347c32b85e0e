import zlib

import numpy as np
import pytest

from cortext.data import PackedDataset, open_dataset, write_session
from cortext.data.packed import pack
from cortext.data.packed_dataset import joined
from cortext.data.trial import Trial
from cortext.errors import DataError


@pytest.fixture
def two(tmp_path):
    """Two packed directories.

    Days a and b with train trials, days b and c with train and val trials.
    """
    rng = np.random.default_rng(0)
    contents = {
        "first": [("a", "train", 3), ("b", "train", 2)],
        "second": [("b", "val", 2), ("c", "train", 2)],
    }
    for name, files in contents.items():
        for session, split, n_trials in files:
            trials = [
                Trial(
                    rng.normal(size=(60 + 7 * i, 4)).astype(np.float32),
                    session,
                    1,
                    i,
                    "a cat",
                    np.arange(1, 4 + i),
                )
                for i in range(n_trials)
            ]
            write_session(tmp_path / name / session / f"data_{split}.hdf5", trials)
    return [pack(tmp_path / name, tmp_path / f"{name}-packed") for name in contents]


def test_every_trial_is_what_it_was(two):
    both = joined(two)
    assert both.sessions == ("a", "b", "c")
    assert both.splits == ("train", "val")
    train = both.split("train")
    expected = [(data.split("train"), i) for data in two for i in range(len(data.split("train")))]
    assert len(train) == len(expected) == 7
    for i, (split, j) in enumerate(expected):
        np.testing.assert_array_equal(train.features(i), split.features(j))
        np.testing.assert_array_equal(train.labels(i), split.labels(j))
        assert (train.session(i), train.sentence(i), train.trial_N[i]) == (
            split.session(j),
            split.sentence(j),
            split.trial_N[j],
        )
    batch = train.batch([6, 0])
    assert batch.features_BTC.shape == (2, 67, 4)
    np.testing.assert_array_equal(batch.features_BTC[1, :60], two[0].split("train").features(0))


def test_chosen_trials_and_features_are_copied(two):
    chosen = [
        data.select(feature_subset=[2, 0]).showing(
            {"train": data.select(feature_subset=[2, 0]).split("train").take([1])}
        )
        for data in two
    ]
    train = joined(chosen).split("train")
    assert len(train) == 2
    np.testing.assert_array_equal(train.features(1), two[1].split("train").features(1)[:, [2, 0]])
    np.testing.assert_array_equal(train.labels(1), [1, 2, 3, 4])
    assert joined(chosen).checksums == {
        "train": zlib.crc32(np.concatenate([train.features(0), train.features(1)]).data)
    }


def test_open_dataset_gives_session_files_and_packed_data_one_interface(two):
    folder = two[0].source
    of_files, of_packed = open_dataset(folder), open_dataset(str(two[0].path))
    assert isinstance(of_packed, PackedDataset)
    for name in ("session_names", "splits", "n_features"):
        assert getattr(of_packed, name) == getattr(of_files, name)
    assert [trial.name for trial in of_packed] == [trial.name for trial in of_files]
    chosen = [list(data.trials("train", ["b"])) for data in (of_files, of_packed)]
    assert [[trial.name for trial in trials] for trials in chosen] == [
        ["b/block 1/trial 0", "b/block 1/trial 1"]
    ] * 2
    for before, after in zip(*chosen, strict=True):
        assert after.features_TC.dtype == np.float32
        np.testing.assert_array_equal(before.features_TC.astype(np.float16), after.features_TC)
        assert after.sentence == "a cat"
        np.testing.assert_array_equal(before.phoneme_ids, after.phoneme_ids)
    assert of_packed.n_trials("train") == of_files.n_trials("train") == 5
    for data in (of_files, of_packed):
        with pytest.raises(DataError, match="split 'trains'; did you mean 'train'"):
            data.trials("trains")
        with pytest.raises(DataError, match="unknown session 'c'; known: a, b"):
            data.trials("train", ["c"])
