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
from right_plugin import registries  # noqa: F401 # a fixture
from two_participants import small_config, write_two

from cortext.training import train


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
