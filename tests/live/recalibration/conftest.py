from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from drifted_day import Participant, make_participant
from recalibrating import World, drawn_by_number


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def participant(tmp_path_factory) -> Participant:
    return make_participant(tmp_path_factory.mktemp("drifted"))


@pytest.fixture
def world(participant: Participant, tmp_path: Path) -> Iterator[World]:
    """The participant's empty log, without a service yet."""
    world = World(participant, tmp_path)
    yield world
    world.stop()


@pytest.fixture(name="drawn_by_number")
def _drawn_by_number():
    """Draw utterances by their numbers: even ones are reserved, and every tenth is watched."""
    with drawn_by_number():
        yield
