"""Fixtures that several packages' tests share."""

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What needs a CUDA device is skipped where there is none."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")


@pytest.fixture
def real_data() -> Path:
    """The directory of real recordings and texts; tests that need it are skipped where it is absent."""
    path = Path(os.environ.get("CORTEXT_REAL_DATA", ROOT.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"no real data at {path}; set CORTEXT_REAL_DATA")
    return path
