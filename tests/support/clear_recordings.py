"""A recording small enough to train on in a second, with settings and a finished run.

Phonemes drawn at random, each with a pattern of its own.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from small_training import schedule

from cortext.data import write_session
from cortext.data.packed import pack
from cortext.data.trial import Trial
from cortext.features import AugmentationConfig
from cortext.models.gru import GRUConfig, InputNetworkConfig
from cortext.training import DatasetConfig, TrainConfig, train

SESSIONS = ("t15.2023.08.11", "t15.2023.08.13", "t15.2023.08.18")
N_FEATURES = 8


@pytest.fixture(autouse=True)
def one_thread():
    """Bit-exact repetition needs the same number of threads, and small matrices are fastest with
    one.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def write_recordings(
    root: Path, trials_per_split: dict[str, int], n_phonemes: int = 5, bins: int = 16
) -> Path:
    """Session files in which a frame tells its phoneme (1..`n_phonemes`, then SIL) almost
    without noise.
    """
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(41, N_FEATURES)) * 2
    for session in SESSIONS:
        for split, n_trials in trials_per_split.items():
            trials = []
            for number in range(n_trials):
                labels_U = rng.integers(1, n_phonemes + 1, size=rng.integers(3, 6))
                labels_U[-1] = 40
                clean = np.repeat(patterns[labels_U], bins, axis=0)
                features_TC = (clean + rng.normal(size=clean.shape)).astype(np.float32)
                block = list(trials_per_split).index(split)
                trials.append(
                    Trial(
                        features_TC, session, block, number, "a cat sat", labels_U.astype(np.int64)
                    )
                )
            (root / session).mkdir(parents=True, exist_ok=True)
            write_session(root / session / f"data_{split}.hdf5", trials)
    return root


@pytest.fixture(scope="session")
def recordings(tmp_path_factory) -> Path:
    return write_recordings(tmp_path_factory.mktemp("recordings"), {"train": 20, "val": 6})


@pytest.fixture(scope="session")
def packed(recordings, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("packed") / "data"
    pack(recordings, out)
    return out


def twelve_batches() -> TrainConfig:
    return TrainConfig(
        model=GRUConfig(
            n_units=16, n_layers=2, rnn_dropout=0.2, input_network=InputNetworkConfig()
        ),
        dataset=DatasetConfig(
            batch_size=6, days_per_batch=2, data_transforms=AugmentationConfig(white_noise_std=0.5)
        ),
        **schedule(12),
        batches_per_train_log=3,
        batches_per_val_step=4,
    )


@pytest.fixture
def config() -> TrainConfig:
    return twelve_batches()


@pytest.fixture
def short() -> TrainConfig:
    """Two batches and a validation, for tests of what happens around them."""
    config = twelve_batches()
    config.num_training_batches = config.batches_per_val_step = 2
    return config


@pytest.fixture(scope="session")
def undisturbed(packed: Path, tmp_path_factory) -> Path:
    """A run of `config` from the first batch to the last; only to be read."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    torch.set_num_threads(1)
    train(twelve_batches(), packed, out, progress=False)
    return out


@pytest.fixture
def finished(undisturbed: Path, tmp_path: Path) -> Path:
    """A copy of that run, to be changed."""
    return shutil.copytree(undisturbed, tmp_path / "finished")
