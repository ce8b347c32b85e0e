"""Recordings and settings with which a training takes less than a second."""

from pathlib import Path

import pytest
import torch

from cortext.data import pack
from cortext.data.simulate import simulate
from cortext.tuning import Search, Study, tune_training


@pytest.fixture(autouse=True)
def one_thread():
    """Bit-exact repetition needs the same number of threads, and small matrices are fastest with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def quick() -> tuple[str, ...]:
    """Overrides of the recipe `tiny`."""
    return "num_training_batches=4", "batches_per_val_step=2", "model.n_units=8"


@pytest.fixture
def tune(packed, tmp_path, quick):
    """Searches into a new directory, or goes on there."""

    def run(search: Search, out: str = "search", overrides=(), **arguments) -> Study:
        settings = [*quick, *overrides]
        arguments = {"data": packed, "progress": False, **arguments}
        return tune_training("tiny", out=tmp_path / out, search=search, overrides=settings, **arguments)

    return run


@pytest.fixture(scope="session")
def sessions(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("tuning") / "sessions"
    simulate(out, "tiny", overrides=["train_per_day=8", "val_per_day=3", "test_per_day=0"])
    return out


@pytest.fixture(scope="session")
def packed(sessions) -> Path:
    out = sessions.parent / "packed"
    pack(sessions, out)
    return out
