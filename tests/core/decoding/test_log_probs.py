"""Greedy decoding by the rules of CTC."""

import numpy as np
import pytest

from cortext.decoding import DecoderOptions, greedy
from cortext.decoding.log_probs import estimate_priors
from cortext.text.inventory import LM, RELEASE


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


def test_priors_are_shares_of_the_tokens_and_their_mean_for_the_blank():
    """By hand: beside blanks there is AA with 3/4 and SIL with 1/4 of the probability."""
    said = np.full((2, len(RELEASE)), -np.inf, np.float32)
    said[0, [RELEASE.index["BLANK"], RELEASE.index["AA"]]] = np.log([0.4, 0.6])
    said[1, [RELEASE.index["BLANK"], RELEASE.index["SIL"]]] = np.log([0.8, 0.2])
    priors = estimate_priors([said[:1], said[1:]], RELEASE)
    assert priors["AA"] == pytest.approx(0.75, rel=1e-3)
    assert priors["SIL"] == pytest.approx(0.25, rel=1e-3)
    # exp(0.75 log 0.75 + 0.25 log 0.25) = 0.5699, were there no others
    assert priors["BLANK"] == pytest.approx(0.5699, rel=2e-3)
    assert priors.keys() == set(RELEASE.symbols)
    assert DecoderOptions(label_priors=priors)  # all above 0
