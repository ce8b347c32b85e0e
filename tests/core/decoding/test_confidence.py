"""Calibrated confidences of a decoder: signals computed by hand, and where they are not used."""

import math

import numpy as np
import pytest

from cortext.decoding import Decoder, DecoderOptions
from cortext.decoding.confidence import (
    SENTENCE_SIGNALS,
    WORD_SIGNALS,
    Calibrator,
    Logistic,
    Signal,
    entropy,
    options_checksum,
    sentence_signals,
    word_signals,
)
from cortext.decoding.fake import fake_log_probs
from cortext.decoding.nbest import NBest
from cortext.decoding.ngram import LanguageModel
from cortext.errors import ConfigError

TEXTS = ["i want to go home", "we went there two days ago", "are you there", "i would like water"]
OPTIONS = DecoderOptions(beam=12, max_active=60, nbest=10)
LOG_PROBS_PV = fake_log_probs("i want water there", noise=2.5, seed=4)


def logistic(names, weights, intercept=0.0):
    signals = zip(names, weights, strict=True)
    return Logistic(intercept, {name: Signal(0.0, 2.0, weight) for name, weight in signals})


CALIBRATOR = Calibrator(
    logistic(WORD_SIGNALS, (1.0, 0.2, 0.3, -0.5, -1.0), 0.4),
    logistic(SENTENCE_SIGNALS, (1.5, 0.5), -1.0),
    (options_checksum(OPTIONS),),
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("lm") / "lm"
    LanguageModel.build(TEXTS, 3, directory)
    return directory


@pytest.fixture(scope="module")
def raw(directory):
    return Decoder.from_dir(directory, OPTIONS)


@pytest.fixture(scope="module")
def decoder(raw):
    return raw.with_calibrator(CALIBRATOR)


def sigmoid(odds):
    return 1 / (1 + math.exp(-odds))


def test_confidences_are_those_of_a_slow_computation(raw, decoder):
    plain, found = raw.decode(LOG_PROBS_PV, "release"), decoder.decode(LOG_PROBS_PV, "release")
    assert found.texts == plain.texts
    p_PV = np.exp(LOG_PROBS_PV.astype(np.float64))
    entropies = [-sum(p * math.log(p) for p in row if p > 0) for row in p_PV]
    for before, after in zip(plain, found, strict=True):
        for at, (one, word) in enumerate(zip(before.words, after.words, strict=True)):
            prefix = " ".join(each.word for each in before.words[:at])
            history = raw.lm.ngram.begin()
            for each in prefix.split():
                history = raw.lm.ngram.score(history, each)[1]
            p = min(max(one.confidence, 1e-4), 1 - 1e-4)
            frames = entropies[int(one.start_ms / 80) : int(one.end_ms / 80)]
            signals = (
                math.log(p / (1 - p)),
                raw.lm.ngram.score(history, one.word)[0],
                math.log(len(one.word)),
                sum(frames) / len(frames),
                sum(entropies) / len(entropies),
            )
            weighted = [
                w * x / 2 for w, x in zip((1.0, 0.2, 0.3, -0.5, -1.0), signals, strict=True)
            ]
            assert word.confidence == pytest.approx(sigmoid(0.4 + sum(weighted)))
            assert word.posterior == one.confidence
    product = math.prod(word.confidence for word in found[0].words)
    share = 1 / sum(math.exp(each.score - found[0].score) for each in found)
    odds = [math.log(p / (1 - p)) for p in (min(max(q, 1e-4), 1 - 1e-4) for q in (product, share))]
    assert found.confidence == pytest.approx(sigmoid(-1.0 + 1.5 * odds[0] / 2 + 0.5 * odds[1] / 2))


@pytest.mark.parametrize("size", [1, 7])
def test_a_stream_gives_the_same_confidences_bit_for_bit(decoder, size):
    whole = decoder.decode(LOG_PROBS_PV, "release")
    stream = decoder.stream("release")
    chunk = np.empty((size, LOG_PROBS_PV.shape[1]), dtype=np.float32)
    for start in range(0, len(LOG_PROBS_PV), size):
        part = LOG_PROBS_PV[start : start + size]
        chunk[: len(part)] = part  # the same array again and again, as a rig's buffer
        stream.step(chunk[: len(part)])
    found = stream.finish()
    assert (found.hypotheses, found.confidence) == (whole.hypotheses, whole.confidence)


def test_without_a_calibrator_nothing_changes(raw, decoder):
    plain = raw.decode(LOG_PROBS_PV, "release")
    assert decoder.with_calibrator(None).decode(LOG_PROBS_PV, "release") == plain
    assert plain.confidence is None
    assert {word.posterior for found in plain for word in found.words} == {None}


def test_other_options_than_the_fitted_ones_keep_the_posteriors(raw, decoder):
    changed = {"word_score": -2.5}
    expected = raw.with_options(**changed).decode(LOG_PROBS_PV, "release")
    assert decoder.with_options(**changed).decode(LOG_PROBS_PV, "release") == expected
    stream = decoder.stream("release")
    stream.step(LOG_PROBS_PV)
    stream.set_options(**changed)
    assert stream.finish().confidence is None


def test_large_model_settings_do_not_count_among_the_options():
    other = OPTIONS.changed({"llm": {"budget_ms": 40.0}})
    assert CALIBRATOR.goes_with(other)
    assert CALIBRATOR.goes_with(OPTIONS.changed({"beam": 12.0}))
    assert not CALIBRATOR.goes_with(OPTIONS.changed({"beam": 12.5}))


def test_no_words_have_no_confidence(decoder):
    silence_PV = np.full((12, LOG_PROBS_PV.shape[1]), -20.0, dtype=np.float32)
    silence_PV[:, 0] = 0.0
    found = decoder.decode(silence_PV, "release")
    assert (found[0].text, found.confidence) == ("", None)
    empty = decoder.decode(silence_PV[:0], "release")
    assert (empty[0].text, empty.confidence) == ("", None)


def test_words_without_posteriors_get_no_confidence(decoder):
    text = decoder.decode(LOG_PROBS_PV, "release")[0].text
    given = NBest([decoder.score(LOG_PROBS_PV, "release", text)])  # no search has found it
    assert given[0].words
    assert CALIBRATOR.calibrated(given, LOG_PROBS_PV, decoder.lm) is given


def test_times_and_confidences_survive_other_frames(decoder):
    found = decoder.decode(LOG_PROBS_PV, "release")
    timed = found.timed(40.0)
    assert timed.confidence == found.confidence
    assert [w.posterior for w in timed[0].words] == [w.posterior for w in found[0].words]


def test_entropy_is_that_of_known_distributions():
    with np.errstate(divide="ignore"):
        log_probs_PV = np.log(np.array([[1.0, 0.0, 0.0, 0.0], [0.25] * 4, [0.5, 0.5, 0.0, 0.0]]))
    expected = [0.0, math.log(4), math.log(2)]
    assert entropy(log_probs_PV.astype(np.float32)) == pytest.approx(expected)


def test_share_is_that_of_the_list():
    signals_1K = sentence_signals(np.array([0.5, 0.5]), np.log([0.6, 0.2, 0.2]))
    assert signals_1K[0] == pytest.approx([math.log(0.25 / 0.75), math.log(0.6 / 0.4)])


def test_a_list_without_words_has_no_signals(decoder):
    none = NBest(decoder.decode(LOG_PROBS_PV[:0], "release"))
    signals_NK = word_signals(none, LOG_PROBS_PV, decoder.lm)
    assert signals_NK is not None
    assert signals_NK.shape == (0, len(WORD_SIGNALS))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Signal(0.0, 0.0, 1.0),
        lambda: Signal(0.0, 1.0, math.nan),
        lambda: Logistic(math.inf, {}),
        lambda: Calibrator(CALIBRATOR.sentences, CALIBRATOR.sentences, ()),
    ],
)
def test_numbers_and_signals_that_cannot_be_are_refused(make):
    with pytest.raises(ConfigError):
        make()
