"""Settings and runs of trainings that take a second."""

import pytest
import torch
from clear_recordings import (  # noqa: F401 # fixtures
    config,
    finished,
    one_thread,
    packed,
    recordings,
    short,
    undisturbed,
)
from two_participants import small_config, write_two

from cortext.features.augment import AUGMENTATIONS
from cortext.models import MODELS
from cortext.training import LOSSES, train
from cortext.training.config import TASKS


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
