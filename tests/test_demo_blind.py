"""What the demo's task denies to those who cannot hear it: shuffled labels teach nothing, single frames tell little.

In a file of its own, to run beside tests/test_demo.py.
"""

from pathlib import Path

import pytest

import difficulty
from cortext.data.simulate import simulate

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """The demo's recordings, with what was said when."""
    out = tmp_path_factory.mktemp("blind") / "data"
    simulate(out, "demo", truth=True)
    return out


def test_shuffled_labels_teach_no_more_than_a_constant(data, tmp_path):
    figures = difficulty.measure_blind(data, tmp_path)
    assert figures["shuffled_per"] >= figures["constant_per"] - difficulty.SHUFFLED_GAIN


def test_single_frames_do_not_give_the_phoneme_away(data):
    assert difficulty.frame_error(data) >= difficulty.FRAME_ERROR
