"""Exact scores of given sentences, by hand. (The search's tests check them against the
enumeration of all paths.)
"""

import math

import numpy as np
import pytest
from engine_cases import NEUTRAL

from cortext.decoding.options import DecoderOptions
from cortext.decoding.sentences import score_sentences
from cortext.text.inventory import Inventory

TOY = Inventory("toy", ("BLANK", "AA", "B", "SIL"))
A, B = [([1], 0.0)], [([2], 0.0)]


def score(sentence, scores_PV, **options):
    (paths,) = score_sentences([sentence], scores_PV, DecoderOptions(**NEUTRAL | options), TOY)
    return paths


def uniform(n_frames):
    return np.log(np.full((n_frames, 4), 0.25))


def test_required_silence_leaves_only_paths_with_silence_between_words():
    """In three frames AA SIL B.

    In four one of these repeated, or a blank or SIL at an end, or a blank beside SIL.

    The paths of three frames without the obligation: AA SIL B; AA B with one of them repeated (2),
    a blank before, between or after (3), SIL before or after (2).
    """
    assert score([A, B], uniform(2), sil_required=True).score == -math.inf
    assert score([A, B], uniform(3), sil_required=True).score == pytest.approx(math.log(1 / 4**3))
    assert score([A, B], uniform(3)).score == pytest.approx(math.log(8 / 4**3))
    assert score([A, B], uniform(4), sil_required=True).score == pytest.approx(math.log(9 / 4**4))


def test_required_silence_is_not_required_at_the_start_and_the_end():
    assert score([A], uniform(1), sil_required=True).score == pytest.approx(math.log(0.25))
    # Blank or SIL.
    assert score([], uniform(1), sil_required=True).score == pytest.approx(math.log(0.5))


@pytest.mark.parametrize("recombine", ["logadd", "max"])
def test_required_silence_makes_its_cost_meaningless(recombine):
    paths = [
        score([A, B], uniform(5), sil_required=True, sil_cost=cost, recombine=recombine)
        for cost in (0.0, 3.0)
    ]
    assert paths[0] == paths[1]
    assert paths[0].boundaries == 0


def test_required_silence_decides_the_times():
    """The likeliest path says AA B B; with SIL between, B begins a frame later."""
    scores_PV = np.log(np.array([[0.1, 0.7, 0.1, 0.1], [0.1, 0.1, 0.5, 0.3], [0.1, 0.1, 0.7, 0.1]]))
    assert score([A, B], scores_PV).spans == ((0, 1), (1, 3))
    assert score([A, B], scores_PV, sil_required=True).spans == ((0, 1), (2, 3))
    assert score([A, B], scores_PV, sil_required=True).score == pytest.approx(
        math.log(0.7 * 0.3 * 0.7)
    )
