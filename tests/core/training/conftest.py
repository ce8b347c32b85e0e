"""Fixtures that the tests of training share."""

import shutil
from pathlib import Path

import pytest
import torch
from random_recordings import config, one_thread, packed, recordings, twelve_batches
from two_participants import small_config, write_two

from cortext.features.augment import AUGMENTATIONS
from cortext.models import MODELS
from cortext.training import LOSSES, TrainConfig, train
from cortext.training.config import TASKS

__all__ = ["config", "one_thread", "packed", "recordings"]


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


@pytest.fixture
def registries():
    """Forgets what a test registers."""
    kept = [(registry, dict(registry)) for registry in (MODELS, LOSSES, AUGMENTATIONS, TASKS)]
    yield
    for registry, before in kept:
        registry.clear()
        registry.update(before)


@pytest.fixture(scope="session")
def two(tmp_path_factory):
    """Recordings of two participants, by name."""
    return write_two(tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="session")
def joint_run(two, tmp_path_factory):
    """A finished run of both; only to be read."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("joint") / "run"
    train(small_config(), two, out, progress=False)
    return out
