"""A stand-in for the public T15 data, verified once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from stand_in import StandIn, verified, write_stand_in

from cortext_published.verification import Verification


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    """The stand-in, only to be read."""
    torch.set_num_threads(1)
    return write_stand_in(tmp_path_factory.mktemp("stand_in"))


@pytest.fixture(scope="session")
def whole(stand_in: StandIn, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Verification]:
    """The verification of the whole stand-in and its directory, only to be read."""
    out = tmp_path_factory.mktemp("whole") / "verify"
    return out, verified(stand_in, out)


@pytest.fixture
def own(stand_in: StandIn, tmp_path: Path) -> StandIn:
    """A copy of the stand-in, to be damaged."""
    folder = tmp_path / "jane doe's data"
    shutil.copytree(stand_in.directory, folder / "t15")
    shutil.copytree(stand_in.lm, folder / "lm")
    return replace(stand_in, directory=folder / "t15", lm=folder / "lm")


@pytest.fixture
def out(whole: tuple[Path, Verification], tmp_path: Path) -> Path:
    """A copy of the finished verification: only the stages that a damage concerns run again."""
    return shutil.copytree(whole[0], tmp_path / "verify")
