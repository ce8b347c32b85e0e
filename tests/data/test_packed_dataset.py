import zlib

import numpy as np
import pytest

from cortext.data import write_session
from cortext.data.packed import pack
from cortext.data.packed_dataset import joined
from cortext.data.trial import Trial


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
