"""Small session files, written for real."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from full_disk import full_disk  # noqa: F401 # a fixture

from cortext.data import Trial, write_session

SESSIONS = ("t15.2023.08.11", "t15.2023.08.13")
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# Needs 7 frames: 6 tokens and a blank between the equal ones.
LABELS = np.array([8, 3, 40, 12, 12, 40])


def trials_of(
    session: str, block: int, n_trials: int = 4, n_features: int = 8, labelled: bool = True
) -> list[Trial]:
    generator = np.random.default_rng([block, n_features, int(session[-2:])])
    return [
        Trial(
            generator.standard_normal(
                (int(generator.integers(60, 120)), n_features), dtype=np.float32
            ),
            session,
            block,
            number,
            f"sentence number {NUMBERS[number]}" if labelled else None,
            LABELS if labelled else None,
        )
        for number in range(n_trials)
    ]


@pytest.fixture
def some_trials() -> Callable[..., list[Trial]]:
    """Makes trials of a session and block."""
    return trials_of


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sessions; the second has no val. Only to be copied."""
    root = tmp_path_factory.mktemp("made") / "data"
    for session, splits in zip(
        SESSIONS, (("train", "val", "test"), ("train", "test")), strict=True
    ):
        for block, split in enumerate(splits, start=1):
            trials = trials_of(session, block, labelled=split != "test")
            write_session(root / session / f"data_{split}.hdf5", trials)
    return root


@pytest.fixture
def dataset_root(made_once: Path, tmp_path: Path) -> Path:
    """A copy of the two sessions."""
    return shutil.copytree(made_once, tmp_path / "data")
