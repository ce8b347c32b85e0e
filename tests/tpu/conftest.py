"""JAX computes on the CPU here, whatever the machine has; recordings that the tests share."""

import os

import pytest
from small_training import write_recordings

from cortext.data.packed import pack

os.environ.setdefault("JAX_PLATFORMS", "cpu")


@pytest.fixture(scope="session")
def recordings(tmp_path_factory):
    return write_recordings(tmp_path_factory.mktemp("recordings") / "sessions")


@pytest.fixture(scope="session")
def packed(recordings, tmp_path_factory):
    return pack(recordings, tmp_path_factory.mktemp("packed") / "data")
