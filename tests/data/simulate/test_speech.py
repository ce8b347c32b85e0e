import numpy as np
import pytest

from cortext.text import to_phonemes, to_tokens
from cortext.text.inventory import RELEASE
from cortext_data.simulate.config import PRESETS, preset_config
from cortext_data.simulate.speech import (
    STEP_MS,
    STEPS_PER_BIN,
    gamma_quantiles,
    speaking_rate,
    utter,
)

DEMO = PRESETS["demo"]
SENTENCES = (
    "could you close the window before dinner",
    "my brother is coming to see us on sunday",
    "thank you",
)


def test_gamma_quantiles_agree_with_chi_square_tables():
    # A gamma of shape 7 and mean 1 is chi-square with 14 degrees of freedom over 14; table values
    # for 5, 50 and 95 %.
    found = np.interp([0.05, 0.5, 0.95], (np.arange(4096) + 0.5) / 4096, gamma_quantiles(7.0))
    np.testing.assert_allclose(found * 14, [6.571, 13.339, 23.685], rtol=2e-3)


def test_gamma_quantiles_have_the_distribution_s_mean_and_variance():
    quantiles = gamma_quantiles(7.0)
    assert quantiles.mean() == pytest.approx(1, abs=1e-3)
    assert quantiles.var() == pytest.approx(1 / 7, rel=0.01)


def test_segments_are_a_silence_and_then_the_phonemes_in_order():
    phonemes = to_phonemes(SENTENCES[0])
    utterance = utter(phonemes, DEMO, day=1, block=1, trial=0)
    assert RELEASE.names(utterance.ids_S) == ["SIL", *phonemes]
    assert utterance.n_words == 7
    assert utterance.ends_S[-1] % STEPS_PER_BIN == 0
    assert (np.diff(utterance.ends_S, prepend=0) >= 8).all()  # nothing is shorter than 40 ms


def test_durations_are_the_same_on_every_machine():
    utterance = utter(["HH", "AY", "SIL"], DEMO, day=3, block=2, trial=5)
    assert utterance.ends_S.tolist() == [91, 122, 209, 308]


def test_every_preset_speaks_at_40_to_80_words_a_minute():
    spanish = [("k", "a", "s", "a", "SIL") * 4, ("p", "w", "e", "ɾ", "t", "a", "SIL") * 5]
    for name in PRESETS.keys() - {"handwriting"}:
        phonemes = spanish if name == "spanish" else [to_phonemes(s) for s in SENTENCES[:2]]
        rates = [
            utter(each, PRESETS[name], 1, block, t).words_per_minute
            for block in range(20)
            for t, each in enumerate(phonemes)
        ]
        assert 40 <= np.mean(rates) <= 80, name


def test_handwriting_is_as_fast_as_published():
    # 90 characters a minute, blanks included: Willett et al., Nature 2021.
    config = PRESETS["handwriting"]
    rates = []
    for block in range(20):
        for t, sentence in enumerate(SENTENCES[:2]):
            tokens = to_tokens(sentence, config.inventory, config.language)
            utterance = utter(tokens, config, 1, block, t)
            written_ms = (utterance.ends_S[-2] - utterance.ends_S[0]) * STEP_MS
            rates.append(60_000 * len(sentence) / written_ms)
    assert np.mean(rates) == pytest.approx(90, rel=0.1)


def test_speaking_rate_varies_between_blocks_within_its_spread():
    rates = np.array([speaking_rate(DEMO, 1, block) for block in range(200)])
    assert rates.min() >= 1 - DEMO.rate_spread
    assert rates.max() <= 1 + DEMO.rate_spread
    assert rates.std() == pytest.approx(DEMO.rate_spread / 6**0.5, rel=0.15)  # triangular


def test_silent_attempts_are_slower():
    silent = preset_config("demo", ["attempt=silent"])
    bins = [utter(to_phonemes(SENTENCES[0]), config, 1, 1, 0).n_bins for config in (DEMO, silent)]
    assert bins[1] / bins[0] == pytest.approx(1.2, rel=0.02)


def test_bins_name_the_phoneme_said_in_their_middle():
    utterance = utter(["M", "IY", "SIL"], DEMO, 1, 1, 0)
    per_bin = utterance.ids_per_bin()
    assert len(per_bin) == utterance.n_bins
    for t, token in enumerate(per_bin):
        segment = np.flatnonzero(utterance.ends_S > t * STEPS_PER_BIN + 2)[0]
        assert token == utterance.ids_S[segment]
    np.testing.assert_array_equal(utterance.ids_per_bin(lead_bins=3)[:-3], per_bin[3:])
