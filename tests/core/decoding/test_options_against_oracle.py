"""Every option of the search against the oracle.

The options come from the fields of `DecoderOptions`: an option that only the compiled search reads
cannot pass.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from engine_cases import (
    COLUMNS,
    SENTENCES,
    TEXTS,
    UNLIMITED,
    Grams,
    posteriors,
    random_frames,
    sentence_entries,
)
from generated_options import CHANGE_NO_SCORE, SCORING, values_of
from search_oracle import Oracle, all_scores, check_hypothesis

from cortext.decoding import Decoder, DecoderOptions
from cortext.text.inventory import RELEASE

# One word that the n-gram does not know, two that sound alike, and "c" is "a b" without SIL.
ENTRIES = [("a", "AA", 1.0), ("b", "B", 0.3), ("c", "AA B", 1.0), ("d", "B", 1.0), ("z", "AA", 0.5)]
GRAMS = Grams.random(3, seed=9)
# The priors give `prior_weight` something to weigh.
BASE = DecoderOptions(**UNLIMITED, label_priors={"BLANK": 0.5, "SIL": 0.1, "AA": 0.05})
FRAMES = [random_frames(np.random.default_rng(seed), 4, 1.5) for seed in range(2)]
FRAMES[1][2, COLUMNS[3]] = -np.inf  # counts as the floor
FRAMES[1] -= np.logaddexp.reduce(FRAMES[1], axis=1, keepdims=True)
CASES = [
    pytest.param(option.name, value, id=f"{option.name}={value}")
    for option in SCORING
    for value in values_of(option)
]


@pytest.fixture(scope="module")
def decoder(lm_of):
    return Decoder.from_dir(lm_of(ENTRIES, GRAMS), BASE)


def scores_by_the_oracle(options):
    return [all_scores(ENTRIES, GRAMS, log_probs_PV, options) for log_probs_PV in FRAMES]


def test_every_option_changes_scores_or_is_declared_not_to():
    names = {option.name for option in fields(DecoderOptions)}
    assert CHANGE_NO_SCORE.keys() < names
    assert all(values_of(option) for option in fields(DecoderOptions))
    assert {option.name for option in SCORING} == names - CHANGE_NO_SCORE.keys()


@pytest.mark.parametrize("name", [option.name for option in SCORING])
def test_the_oracle_knows_every_option_that_changes_scores(name):
    """Otherwise the comparison below could not fail."""
    (option,) = (each for each in SCORING if each.name == name)
    plain = scores_by_the_oracle(BASE)
    assert any(
        scores_by_the_oracle(BASE.changed({name: value})) != plain for value in values_of(option)
    )


@pytest.mark.parametrize(("name", "value"), CASES)
def test_the_search_scores_all_sentences_as_the_oracle_does(decoder, name, value):
    options = BASE.changed({name: value})
    changed = decoder.with_options(**{name: value})
    for log_probs_PV, expected in zip(FRAMES, scores_by_the_oracle(options), strict=True):
        nbest = changed.decode(log_probs_PV, RELEASE)
        assert {each.text: each.score for each in nbest} == pytest.approx(expected, abs=1e-4)
        for text in nbest.texts[:3]:
            alone = changed.score(log_probs_PV, RELEASE, text)
            assert alone.score == pytest.approx(expected[text], abs=1e-4)


@pytest.fixture(scope="module")
def of_sentences(sentence_lm):
    """A decoder of sentences, with a list to compare."""
    options = BASE.changed(dict(beam=14.0, max_active=200, lattice_beam=8.0, nbest=4))
    return Decoder.from_dir(sentence_lm, options)


@pytest.mark.parametrize(("name", "value"), CASES)
def test_the_search_scores_long_sentences_as_the_oracle_does(of_sentences, name, value):
    decoder = of_sentences.with_options(**{name: value})
    log_probs_PV = posteriors(TEXTS[5], 2.0)
    oracle = Oracle(sentence_entries(), SENTENCES, decoder.options)
    for hypothesis in decoder.decode(log_probs_PV, RELEASE):
        (expected,) = oracle.sentences(log_probs_PV, given=hypothesis.text.split()).values()
        check_hypothesis(hypothesis, expected)


@pytest.mark.parametrize("name", CHANGE_NO_SCORE)
def test_options_that_are_declared_so_change_no_score(decoder, name):
    """A sentence that is found has the score, the parts of it and the times that it had before."""
    (option,) = (each for each in fields(DecoderOptions) if each.name == name)
    found = 0
    for log_probs_PV in FRAMES:
        plain = {each.text: each for each in decoder.decode(log_probs_PV, RELEASE)}
        for value in values_of(option):
            changed = decoder.with_options(**{name: value})
            for hypothesis in changed.decode(log_probs_PV, RELEASE):
                assert parts(hypothesis) == pytest.approx(parts(plain[hypothesis.text]), abs=1e-9)
                found += 1
            alone = changed.score(log_probs_PV, RELEASE, "a b")
            assert parts(alone) == pytest.approx(parts(plain["a b"]), abs=1e-9)
    assert found >= 4


def parts(hypothesis):
    times = [time for word in hypothesis.words for time in (word.start_ms, word.end_ms)]
    own = (hypothesis.score, hypothesis.acoustic_score, hypothesis.lm_score, hypothesis.sil_score)
    return [*own, *times]
