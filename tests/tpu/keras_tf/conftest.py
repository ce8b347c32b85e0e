"""TensorFlow with one thread and two CPU devices, and recordings small enough to train on in
seconds.
"""

import os
from importlib import util
from pathlib import Path

import numpy as np
import pytest

from cortext.data import Trial, pack, write_session

SESSIONS = ("t15.2023.08.11", "t15.2023.08.13", "t15.2023.08.18")
N_FEATURES = 16

if util.find_spec("tensorflow"):
    for name, value in {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "1",
    }.items():
        os.environ.setdefault(name, value)
    import tensorflow as tf

    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)


def write_recordings(root: Path) -> Path:
    """Session files whose trials have very different lengths.

    One has a corpus, and the test split no labels.
    """
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(41, N_FEATURES))
    for day, session in enumerate(SESSIONS):
        for block, (split, n_trials) in enumerate({"train": 8 + day, "val": 3, "test": 2}.items()):
            trials = []
            for number in range(n_trials):
                labels_U = rng.integers(1, 6, size=rng.integers(2, 7))
                labels_U[-1] = 40
                features_TC = np.repeat(patterns[labels_U], 14, axis=0) + rng.normal(
                    size=(14 * len(labels_U), 16)
                )
                known = (
                    (f"sentence {number}", labels_U.astype(np.int64))
                    if split != "test"
                    else (None, None)
                )
                trials.append(Trial(features_TC.astype(np.float32), session, block, number, *known))
            write_session(root / session / f"data_{split}.hdf5", trials)
    return root


@pytest.fixture(scope="session")
def recordings(tmp_path_factory) -> Path:
    return write_recordings(tmp_path_factory.mktemp("recordings"))


@pytest.fixture(scope="session")
def packed(recordings, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "f16"
    pack(recordings, out)
    return out
