"""The decoder as people use it: at once, in batches, as a stream, and with what it must refuse."""

import numpy as np
import pytest
from engine_cases import NEUTRAL, Grams
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search_oracle import Oracle, check_hypothesis

from cortext.decoding import Decoder, DecoderOptions
from cortext.decoding.ngram import LanguageModel
from cortext.errors import DecodingError, LanguageModelError, TextError
from cortext.text.inventory import LM, RELEASE
from cortext.text.pronunciation import to_phonemes

TEXTS = [
    "I want to go home.",
    "We went there two days ago.",
    "Are you there?",
    "I would like water too.",
    "Go there.",
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("lm") / "lm"
    LanguageModel.build(TEXTS, 3, directory, keep_arpa=True)
    return directory


@pytest.fixture(scope="module")
def decoder(directory):
    return Decoder.from_dir(directory, NEUTRAL | dict(beam=12, max_active=60))


def posteriors(sentence, noise=1.0, seed=0, inventory=RELEASE, dtype=np.float32):
    """Log-probabilities [P, V] of a sentence with two to three frames a phoneme, blanks between
    them, and noise.
    """
    rng = np.random.default_rng(seed)
    tokens = []
    for token in inventory.ids(to_phonemes(sentence)):
        tokens += [token] * rng.integers(1, 3) + [inventory.blank] * rng.integers(1, 3)
    x_PV = rng.normal(size=(len(tokens), len(inventory))) * noise
    x_PV[np.arange(len(tokens)), tokens] += 6.0
    return (x_PV - np.logaddexp.reduce(x_PV, axis=1, keepdims=True)).astype(dtype)


@pytest.mark.parametrize("sentence", ["we want two", "i would like to go there", "are you home"])
@pytest.mark.parametrize("inventory", [RELEASE, LM])
def test_sentences_are_read_from_their_phonemes(decoder, sentence, inventory):
    nbest = decoder.decode(posteriors(sentence, inventory=inventory), inventory.name)
    read = [hypothesis.text for hypothesis in nbest]
    assert read[0].replace("too", "two").replace("to", "two") == sentence.replace("to", "two")
    assert len(set(read)) == len(read) > 1
    assert all(word.start_ms < word.end_ms for word in nbest[0].words)
    assert all(0.0 < word.confidence <= 1.0 for word in nbest[0].words)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.integers(0, 40), max_size=6),
    seed=st.integers(0, 2),
    recombine=st.sampled_from(["logadd", "max"]),
)
def test_a_stream_in_any_chunking_equals_the_whole_bit_for_bit(decoder, cuts, seed, recombine):
    decoder = decoder.with_options(recombine=recombine)
    log_probs_PV = posteriors("we went there two days ago", noise=2.0, seed=seed)
    stream, stable = decoder.stream(RELEASE), ""
    for chunk_PV in np.split(log_probs_PV, sorted(cuts)):
        partial = stream.step(np.ascontiguousarray(chunk_PV))
        assert partial.stable.startswith(stable)
        assert f"{partial.stable} {partial.tail}".strip() == partial.text
        stable = partial.stable
    nbest = stream.finish()
    assert nbest == decoder.decode(log_probs_PV, RELEASE)
    assert all(f"{hypothesis.text} ".startswith(f"{stable} ".lstrip()) for hypothesis in nbest)


def test_words_become_stable_while_the_sentence_is_spoken(decoder):
    stream = decoder.with_options(beam=5.0, min_active=1).stream(RELEASE)
    log_probs_PV = posteriors("i would like water", noise=0.3)
    stable = [
        stream.step(log_probs_PV[frame : frame + 1]).stable for frame in range(len(log_probs_PV))
    ]
    assert stable[-1].startswith("i would like")
    assert stable[0] == ""


def test_a_finished_stream_takes_nothing_more(decoder):
    stream = decoder.stream(RELEASE)
    stream.finish()
    for call in (stream.finish, lambda: stream.step(posteriors("go"))):
        with pytest.raises(DecodingError, match="the stream is finished; open a new one"):
            call()


def test_batches_equal_single_utterances(decoder):
    batch = [posteriors(text, noise=1.5, seed=seed) for seed, text in enumerate(TEXTS)]
    done = []
    found = decoder.decode_batch(batch, RELEASE, progress=lambda *state: done.append(state))
    assert found == [decoder.decode(log_probs_PV, RELEASE) for log_probs_PV in batch]
    assert done == [(number, 5) for number in range(1, 6)]


def test_several_threads_give_what_one_gives(decoder):
    batch = [posteriors(text, noise=1.5, seed=seed) for seed, text in enumerate(TEXTS)]
    assert decoder.decode_batch(batch, RELEASE, threads=2) == decoder.decode_batch(batch, RELEASE)


def test_no_frames_give_the_empty_sentence(decoder):
    (only,) = decoder.decode(np.empty((0, 41), dtype=np.float32), RELEASE)
    assert only.text == ""
    assert only.words == ()
    assert only.acoustic_score == 0.0
    assert only.score == only.lm_score < 0


def test_a_given_sentence_scores_as_the_search_scores_it(decoder):
    log_probs_PV = posteriors("we want to go", noise=1.5)
    for hypothesis in decoder.decode(log_probs_PV, RELEASE):
        assert decoder.score(log_probs_PV, RELEASE, hypothesis.text).score == pytest.approx(
            hypothesis.score
        )
    with pytest.raises(DecodingError, match="'zebra' is not in the lexicon"):
        decoder.score(log_probs_PV, RELEASE, "zebra")
    with pytest.raises(DecodingError, match="does not fit into 2 frames"):
        decoder.score(log_probs_PV[:2], RELEASE, "we want to go")


def frames(change):
    log_probs_PV = posteriors("go", noise=0.5)
    return change(log_probs_PV)


def with_value(log_probs_PV, value):
    log_probs_PV[2, 5] = value
    return log_probs_PV


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.tolist(), "log_probs is a list; a NumPy array is needed"),
        (lambda x: x.astype(np.float16), "has dtype float16; float32 is needed"),
        (lambda x: x.astype(np.float64), "has dtype float64; float32 is needed"),
        (lambda x: x[0], r"has shape \[41\]; \[frames, 41\] is needed"),
        (
            lambda x: np.ascontiguousarray(x[:, :40]),
            r"\[frames, 41\] is needed for the tokens of inventory 'release'",
        ),
        (lambda x: np.asfortranarray(x), "is not C-contiguous; use numpy.ascontiguousarray"),
        (lambda x: with_value(x, np.nan), "has NaN, first in frame 2"),
        (lambda x: with_value(x, 0.5), "the probabilities of frame 2 sum to .*apply log-softmax"),
        (lambda x: np.exp(x), "the probabilities of frame 0 sum to 4"),
        (lambda x: x + 1.0, "the probabilities of frame 0 sum to 2.7"),
        (lambda x: x - 0.5, "the probabilities of frame 0 sum to 0.6"),
        (lambda x: np.full_like(x, -np.inf), "the probabilities of frame 0 sum to 0, not 1"),
        (lambda x: np.full_like(x, np.inf), "the probabilities of frame 0 sum to inf"),
    ],
)
def test_what_is_not_log_probabilities_is_refused(decoder, change, message):
    log_probs_PV = frames(change)
    with pytest.raises(DecodingError, match=message):
        decoder.decode(log_probs_PV, RELEASE)
    with pytest.raises(DecodingError, match=message):
        decoder.stream(RELEASE).step(log_probs_PV)
    with pytest.raises(DecodingError, match=f"utterance 1: .*{message}"):
        decoder.decode_batch([posteriors("go"), log_probs_PV], RELEASE)


@pytest.mark.parametrize("options", [NEUTRAL | dict(beam=12), {}], ids=["neutral", "defaults"])
def test_the_search_agrees_with_the_oracle(directory, options):
    """On scores and times of every sentence that both list.

    The search's list is at least as good, place by place.
    """
    decoder = Decoder.from_dir(directory, options | dict(max_active=100, lattice_beam=20.0))
    lexicon = decoder.lm.lexicon
    entries = [
        (word, " ".join(pronunciation), weight)
        for word in lexicon
        for pronunciation, weight in zip(
            lexicon.pronunciations(word), lexicon.weights(word), strict=True
        )
    ]
    grams = Grams.read(directory / "lm.arpa")
    for seed, text in enumerate(TEXTS):
        log_probs_PV = posteriors(text, noise=2.0, seed=seed)
        found = decoder.decode(log_probs_PV, RELEASE)
        expected = Oracle(entries, grams, decoder.options).search(log_probs_PV)
        assert found[0].text == expected[0].text
        known = {sentence.text: sentence for sentence in expected}
        both = [hypothesis for hypothesis in found if hypothesis.text in known]
        assert len(both) > 1
        for hypothesis in both:
            check_hypothesis(hypothesis, known[hypothesis.text])
        assert all(
            one.score >= other.score - 1e-4 for one, other in zip(found, expected, strict=True)
        )


def test_impossible_tokens_are_allowed(decoder):
    log_probs_PV = np.full((4, 41), -np.inf, dtype=np.float32)
    log_probs_PV[np.arange(4), RELEASE.ids(["G", "OW", "SIL", "BLANK"])] = 0.0
    assert decoder.decode(log_probs_PV, RELEASE)[0].text == "go"


def test_names_that_do_not_exist_are_refused_with_the_nearest(decoder):
    with pytest.raises(DecodingError, match="unknown decoder option 'beem'; did you mean 'beam'"):
        Decoder.from_dir(decoder.lm_dir, dict(beem=3))
    with pytest.raises(TextError, match="unknown inventory 'relase'"):
        decoder.decode(posteriors("go"), "relase")
    with pytest.raises(LanguageModelError, match="no such directory"):
        Decoder.from_dir(decoder.lm_dir / "absent")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(acoustic_scale=0.0), "acoustic_scale is 0.0; it must be at least 0.001"),
        (dict(blank_penalty=0.5), "blank_penalty is 0.5; it must be at least 1"),
        (dict(beam=float("nan")), "beam is nan; a finite float is needed"),
        (dict(nbest=2.5), "nbest is 2.5; a finite int is needed"),
        (dict(nbest=True), "nbest is True; a finite int is needed"),
        (dict(recombine="sum"), "recombine is 'sum'; use 'logadd' or 'max'"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(DecodingError, match=message):
        DecoderOptions.of(options)


def test_the_best_sentence_does_not_hang_on_silence_noise_or_length(decoder):
    silence_PV = np.log(np.full((300, 41), 1e-6, dtype=np.float32))
    silence_PV[:, RELEASE.blank] = np.log(1 - 40e-6)
    assert decoder.decode(silence_PV, RELEASE)[0].text == ""
    uniform_PV = np.full((100, 41), -np.log(41), dtype=np.float32)
    assert np.isfinite(decoder.decode(uniform_PV, RELEASE)[0].score)
    assert decoder.decode(uniform_PV[:1], RELEASE)[0].text == ""
