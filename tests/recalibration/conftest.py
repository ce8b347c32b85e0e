import pytest
import torch
from drifted_day import Participant, make_participant


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def participant(tmp_path_factory) -> Participant:
    return make_participant(tmp_path_factory.mktemp("drifted"))
