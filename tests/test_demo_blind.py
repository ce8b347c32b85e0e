"""The demo's model learns nothing from shuffled labels (in a file of its own, to run beside tests/test_demo.py)."""

import pytest

import difficulty
from cortext.data.simulate import simulate


@pytest.mark.slow
def test_shuffled_labels_teach_no_more_than_a_constant(tmp_path):
    simulate(tmp_path / "data", "demo")
    figures = difficulty.measure_blind(tmp_path / "data", tmp_path)
    assert figures["shuffled_per"] >= figures["constant_per"] - difficulty.SHUFFLED_GAIN
