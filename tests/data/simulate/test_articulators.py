import numpy as np
import pytest

from cortext.text.inventory import ARPABET, RELEASE
from cortext_data.simulate.articulators import ARTICULATORS, articulate, targets
from cortext_data.simulate.config import PRESETS
from cortext_data.simulate.speech import STEPS_PER_BIN, TimedPhonemes, utter

LIPS, ROUNDING, VELUM = (ARTICULATORS.index(name) for name in ("lips", "rounding", "velum"))


def said(*phonemes: str, ms: int = 200) -> TimedPhonemes:
    return TimedPhonemes(RELEASE.ids(phonemes), np.arange(1, len(phonemes) + 1) * (ms // 5), 1)


def middle(utterance: TimedPhonemes, segment: int) -> int:
    return int(utterance.starts_S[segment] + utterance.ends_S[segment]) // 2 // STEPS_PER_BIN


def test_no_two_phonemes_aim_alike():
    rows = np.concatenate(targets(), axis=1)[1:40].reshape(len(ARPABET), -1)
    assert len(np.unique(rows, axis=0)) == len(ARPABET)


def test_a_long_phoneme_reaches_its_aim():
    positions = articulate(said("SIL", "M", "SIL", ms=1000))
    assert positions[75, LIPS] == pytest.approx(1, abs=0.01)
    assert positions[75, VELUM] == pytest.approx(1, abs=0.02)


def test_what_a_consonant_leaves_free_is_decided_by_its_neighbours():
    spread = said("SIL", "IY", "T", "IY", "SIL")
    rounded = said("SIL", "UW", "T", "UW", "SIL")
    t = middle(spread, 2)
    assert articulate(rounded)[t, ROUNDING] - articulate(spread)[t, ROUNDING] > 0.5


def test_movement_begins_before_the_phoneme():
    utterance = said("AA", "UW")
    onset = int(utterance.starts_S[1]) // STEPS_PER_BIN
    rounding = articulate(utterance)[:, ROUNDING]
    assert rounding[onset - 2] > rounding[0] + 0.1


def test_movement_is_smooth_and_undershoot_makes_it_smoother():
    utterance = utter(["K", "AE", "T", "SIL", "S", "AE", "T", "SIL"], PRESETS["demo"], 1, 1, 0)
    steps = [
        np.abs(np.diff(articulate(utterance, undershoot), axis=0)).max()
        for undershoot in (0.5, 1.0, 2.0)
    ]
    assert steps[0] > steps[1] > steps[2]
    assert steps[1] < 0.6


def test_padding_continues_the_last_posture_and_changes_nothing_before():
    utterance = said("AA", "SIL", ms=400)
    padded = articulate(utterance, pad_bins=5)
    plain = articulate(utterance)
    assert len(plain) == utterance.n_bins
    assert len(padded) == utterance.n_bins + 5
    np.testing.assert_allclose(padded[: utterance.n_bins], plain, atol=1e-6)
    np.testing.assert_allclose(padded[-1], 0, atol=1e-3)
