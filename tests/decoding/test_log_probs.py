"""Greedy decoding by the rules of CTC."""

import numpy as np
import pytest

from cortext.decoding import greedy
from cortext.text.phonemes import LM, RELEASE


@pytest.mark.parametrize("inventory", [RELEASE, LM])
@pytest.mark.parametrize(
    ("frames", "labels"),
    [
        ("AA AA BLANK AA SIL", "AA AA SIL"),  # a blank keeps equal tokens apart
        ("AA AA AA", "AA"),
        ("BLANK BLANK", ""),
        ("B AA B BLANK BLANK B", "B AA B B"),
        ("", ""),
    ],
)
def test_repeats_are_joined_and_blanks_removed(frames, labels, inventory):
    log_probs_PV = np.full((len(frames.split()), len(inventory)), -5.0, dtype=np.float32)
    log_probs_PV[np.arange(len(log_probs_PV)), inventory.ids(frames.split())] = 0.0
    assert inventory.names(greedy(log_probs_PV, inventory)) == labels.split()
