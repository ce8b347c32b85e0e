"""What the demo's task denies to those who hear it one frame at a time.

In a file of its own, to run beside tests/data/test_demo.py.
"""

from pathlib import Path

import pytest

import difficulty
from cortext_data.simulate import simulate

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """As many days as are measured of the demo's recordings, with what was said when."""
    out = tmp_path_factory.mktemp("blind") / "data"
    simulate(out, "demo", truth=True, overrides=[f"n_days={difficulty.FRAME_DAYS}"])
    return out


def test_single_frames_do_not_give_the_phoneme_away(data):
    assert difficulty.frame_error(data) >= difficulty.FRAME_ERROR
