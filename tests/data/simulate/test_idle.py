from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from cortext.errors import ConfigError
from cortext.text.pronunciation import pronounced
from cortext_data.simulate.brain import electrodes
from cortext_data.simulate.config import PRESETS
from cortext_data.simulate.idle import (
    KINDS,
    ContinuousRecording,
    IdleConfig,
    continuous,
    other_speech_weights,
)
from cortext_data.simulate.plan import Prompt
from cortext_data.simulate.speech import utter, with_pauses

QUIET = replace(
    PRESETS["demo"],
    latent_sd=0.0,
    arousal_sd=0.0,
    movement_per_min=0.0,
    modulation=1.2,
    lead_ms=(0.0, 0.0),
    conjunctive=0.0,
)
"""Nothing but the drive, Poisson counts and the noise of power; drive is linear in movement."""
E = electrodes(QUIET, (1,))
PROMPTS = [Prompt("the boat sails tomorrow", "own"), Prompt("who painted that wall", "own")]


def recorded(
    seconds: float = 200.0, n_sentences: int = 0, **changes: object
) -> ContinuousRecording:
    idle = replace(IdleConfig(stretch_s=(20.0, 20.0)), **changes)
    return continuous(QUIET, E, 1, 0, seconds, PROMPTS, n_sentences=n_sentences, idle=idle)


def power(found: ContinuousRecording, kind: str) -> np.ndarray:
    """Return the mean log power of each electrode in each bin of the kind's stretches."""
    parts = [
        found.features_TC[s.first_bin : s.end_bin, QUIET.n_electrodes :]
        for s in found.stretches
        if s.kind == kind
    ]
    return np.log(np.concatenate(parts))


def excess(found: ContinuousRecording, kind: str) -> float:
    """Return the variance of log power over that at rest, summed over the electrodes."""
    return float((power(found, kind).var(axis=0) - power(found, "rest").var(axis=0)).sum())


def test_every_kind_has_its_share_and_the_stretches_fill_the_recording():
    found = recorded()
    assert [s.end_bin - s.first_bin for s in found.stretches] == [1000] * 10
    assert sorted(s.kind for s in found.stretches) == sorted(2 * KINDS)
    assert found.stretches[0].first_bin == 0
    assert all(a.end_bin == b.first_bin for a, b in pairwise(found.stretches))
    assert found.idle_bins == len(found.features_TC) == 10_000
    assert found.features_TC.dtype == np.float32


def test_the_same_settings_give_the_same_bits_and_another_number_others():
    one, same = recorded(40.0), recorded(40.0)
    other = continuous(QUIET, E, 1, 1, 40.0, PROMPTS, idle=IdleConfig(stretch_s=(20.0, 20.0)))
    assert (one.features_TC == same.features_TC).all()
    assert (one.features_TC != other.features_TC).any()


def test_inner_speech_has_the_square_of_its_modulation_as_variance():
    # Drive is linear here: variance goes with the square of the movement, (0.3 / 0.7)**2 = 0.184.
    weak = excess(recorded(inner_modulation=0.3), "inner speech")
    strong = excess(recorded(inner_modulation=0.7), "inner speech")
    assert weak / strong == pytest.approx(0.184, abs=0.06)


@pytest.mark.parametrize(
    ("kind", "off"),
    [
        ("inner speech", {"inner_modulation": 0.0}),
        ("listening", {"heard_modulation": 0.0}),
        ("chewing", {"chew_modulation": 0.0}),
        ("coughing", {"cough_modulation": 0.0}),
    ],
)
def test_a_kind_that_is_switched_off_is_rest(kind, off):
    strong = recorded(inner_modulation=1.0, heard_modulation=1.0)
    assert abs(excess(recorded(**off), kind)) < 0.15 * excess(strong, kind)


def test_only_some_living_electrodes_of_55b_and_dorsal_6v_answer_to_speech_that_is_heard():
    answers_E = (other_speech_weights(QUIET, E, IdleConfig()) != 0).any(axis=0)
    half = QUIET.n_electrodes // 2  # ventral 6v and area 4 come first
    assert not answers_E[:half].any()
    assert 0.15 < answers_E[half:].mean() < 0.65  # 0.4, drawn for 32 electrodes
    assert not (answers_E & ~E.alive_E).any()


def test_chewing_has_the_chosen_rhythm():
    found = recorded(chews_hz=(1.5, 1.5), chewing_s=(18.0, 18.0), fit_pause_s=(1.0, 1.0))
    stretch = next(s for s in found.stretches if s.kind == "chewing")
    course_TE = np.log(
        found.features_TC[stretch.first_bin + 50 : stretch.first_bin + 950, QUIET.n_electrodes :]
    )
    spectrum_F = (np.abs(np.fft.rfft(course_TE - course_TE.mean(axis=0), axis=0)) ** 2).sum(axis=1)
    assert np.argmax(spectrum_F) * 50 / 900 == pytest.approx(1.5, abs=0.06)


def test_sentences_stand_between_idle_stretches_at_the_times_that_were_said():
    found = recorded(60.0, n_sentences=4)
    attempts = [s for s in found.stretches if s.kind == "attempted speech"]
    assert len(found.stretches) == 9
    assert {s.text for s in attempts} <= {prompt.text for prompt in PROMPTS}
    assert found.idle_bins == pytest.approx(3000, abs=5)
    said = pronounced(attempts[0].text, QUIET.inventory, QUIET.language)
    shortest = utter(with_pauses(said, QUIET.inventory), QUIET, 1, 0, 0).n_bins // 3
    for before, attempt in zip(found.stretches[::2], attempts, strict=False):
        assert attempt.end_bin - attempt.first_bin > shortest
        assert before.end_bin <= attempt.first_bin <= before.end_bin + 100
    # Speech stands out from rest by much more than a bin's noise, in the middle of the sentence.
    attempted = power(found, "attempted speech").var(axis=0)
    assert attempted.sum() > 1.5 * power(recorded(), "rest").var(axis=0).sum()


@pytest.mark.parametrize(
    "wrong",
    [
        {"inner_modulation": -0.1},
        {"heard_share": 1.5},
        {"chews_hz": (2.0, 1.0)},
        {"fit_pause_s": (0.0, 1.0)},
    ],
)
def test_impossible_settings_are_refused_by_name(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        IdleConfig(**wrong)
