"""Exact scores and word times of given sentences: the compiled ones against the slow oracle."""

import math
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search_oracle import Oracle, Sentence

from cortext import _native
from cortext.decoding.options import DecoderOptions
from cortext.errors import DecodingError
from cortext.text.inventory import RELEASE, Inventory

TOY = Inventory("toy", ("BLANK", "AA", "B", "CH", "SIL"))


def native(sentences, scores_PV, options, inventory=TOY):
    return _native.score_sentences(
        sentences,
        scores_PV,
        acoustic_scale=options.acoustic_scale,
        sil_cost=options.sil_cost,
        logadd=options.recombine == "logadd",
        sil_required=options.sil_required,
        blank=inventory.blank,
        sil=inventory.sil,
    )


def by_the_oracle(sentence, scores_PV, options, inventory, beam):
    """Score and courses; a word's name is its spelling, so equal words are one."""
    entries = {
        (str(spelling), number): (
            str(spelling),
            " ".join(inventory.symbols[token] for token in tokens),
            math.exp(log_weight),
        )
        for spelling in sentence
        for number, (tokens, log_weight) in enumerate(spelling)
    }
    oracle = Oracle(list(entries.values()), None, options, inventory)
    words = [str(spelling) for spelling in sentence]
    found = oracle.sentences_of_scores(scores_PV, given=words, beam=beam)
    return next(iter(found.values()), Sentence((), -math.inf, 0.0, {((), 0, -1): 0.0}, options))


def check(sentences, scores_PV, options, inventory=TOY, beam=math.inf):
    """Equal scores, and for each sentence whether its path is one of the best."""
    found = native(sentences, scores_PV, options, inventory)
    expected = [by_the_oracle(each, scores_PV, options, inventory, beam) for each in sentences]
    assert [score for score, _, _ in found] == pytest.approx(
        [sentence.paths for sentence in expected], abs=1e-6, rel=0
    )
    return [
        (tuple(map(tuple, spans)), boundaries) in [course[:2] for course in sentence.courses]
        for sentence, (_, boundaries, spans) in zip(expected, found, strict=True)
    ]


pronunciations = st.lists(st.integers(1, 3), min_size=1, max_size=4)
weights = st.sampled_from([1.0, 0.3, 2.0]).map(math.log)
spellings = st.lists(st.tuples(pronunciations, weights), min_size=1, max_size=3)
words = st.lists(spellings, min_size=1, max_size=5)
choices = st.builds(
    DecoderOptions,
    acoustic_scale=st.sampled_from([1.0, 0.4]),
    sil_cost=st.sampled_from([0.0, 1.3, -0.7]),
    sil_required=st.booleans(),
    recombine=st.sampled_from(["logadd", "max"]),
)


@st.composite
def utterances(draw):
    """Sentences of a few words, and scores [P, V] of frames that are certain, noisy, or
    impossible here and there.
    """
    vocabulary = draw(words)
    chosen = st.lists(st.sampled_from(vocabulary), max_size=5)
    sentences = draw(st.lists(chosen, min_size=1, max_size=6))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_frames = draw(st.integers(0, 24))
    x_PV = generator.normal(size=(n_frames, len(TOY))) * draw(st.sampled_from([0.3, 3.0, 40.0]))
    x_PV -= np.logaddexp.reduce(x_PV, axis=1, keepdims=True)
    x_PV[:, 0] -= draw(st.sampled_from([0.0, 3.5]))
    spoiled = draw(st.sampled_from(["no", "floors", "passed over", "impossible"]))
    if spoiled == "floors":
        x_PV[generator.random(x_PV.shape) < 0.15] = -1000.0
    if spoiled == "passed over":
        x_PV[np.ix_(generator.random(n_frames) < 0.2, [1, 2, 3, 4])] = -np.inf
    if spoiled == "impossible":
        x_PV[generator.random(x_PV.shape) < 0.05] = -np.inf
    return sentences, x_PV


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(utterance=utterances(), options=choices)
def test_scores_and_times_are_those_of_the_oracle(utterance, options):
    sentences, scores_PV = utterance
    assert all(check(sentences, scores_PV, options))


def frames(tokens, strength=8.0, inventory=TOY, noise=0.0, seed=0):
    """Log-probabilities that clearly say one token per frame."""
    x_PV = np.random.default_rng(seed).normal(size=(len(tokens), len(inventory))) * noise
    x_PV[np.arange(len(tokens)), tokens] += strength
    return x_PV - np.logaddexp.reduce(x_PV, axis=1, keepdims=True)


def test_a_sentence_that_does_not_fit_has_no_score_and_no_times():
    word = [([1, 2], 0.0)]
    for n_frames in (0, 1, 3):
        uniform_PV = np.log(np.full((n_frames, 5), 0.2))
        assert native([[word, word]], uniform_PV, DecoderOptions()) == [(-math.inf, 0, [])]
    repeated = [([1, 1], 0.0)]  # needs a blank in between
    assert native([[repeated]], np.log(np.full((2, 5), 0.2)), DecoderOptions()) == [
        (-math.inf, 0, [])
    ]


def test_no_words_and_no_frames_are_silence():
    assert native([[]], np.empty((0, 5)), DecoderOptions()) == [(0.0, 0, [])]
    assert native([], np.empty((0, 5)), DecoderOptions()) == []
    # one frame of blank or SIL, each of probability 1/5
    assert native([[]], np.log(np.full((1, 5), 0.2)), DecoderOptions()) == [
        (pytest.approx(math.log(0.4)), 0, [])
    ]


def test_required_silence_between_words_by_hand():
    """AA, SIL, B in four equally likely frames.

    One repeated, a blank or SIL at either end, or a blank beside SIL.
    """
    a, b = [([1], 0.0)], [([2], 0.0)]
    uniform_PV = np.log(np.full((4, 5), 0.2))
    (paths,) = native([[a, b]], uniform_PV, DecoderOptions(sil_required=True))
    assert paths[0] == pytest.approx(math.log(9 / 5**4))
    spoken = native([[a, b]], frames([1, 2, 4, 2]), DecoderOptions(sil_required=True))[0]
    assert spoken[1:] == (0, [(0, 1), (3, 4)])


def test_word_times_and_boundaries_by_hand():
    a, b = [([1, 2], 0.0)], [([1], 0.0)]
    spoken_PV = frames([0, 1, 1, 0, 2, 0, 4, 1, 0, 1, 2, 2, 0])
    (paths,) = native([[a, b, a]], spoken_PV, DecoderOptions(sil_cost=1.0))
    assert paths[1:] == (1, [(1, 5), (7, 8), (9, 12)])
    certain_PV = np.where(spoken_PV > -1, 0.0, -np.inf)
    assert native([[a, b, a]], certain_PV, DecoderOptions(sil_cost=1.25))[0][0] == pytest.approx(
        -1.25
    )


def test_long_words_and_many_tokens():
    generator = np.random.default_rng(1)
    spelling = generator.integers(1, 40, size=70).tolist()
    spoken_PV = frames(np.repeat(spelling, 2), inventory=RELEASE, noise=1.0)
    for word in (spelling[:20], spelling[:64], spelling[:65], spelling):
        assert all(check([[[(word, 0.0)]]], spoken_PV[: 2 * len(word)], DecoderOptions(), RELEASE))


def long_utterance(n_words, n_sentences, seed=0):
    """Frames that say words of four phonemes, some wrongly, and sentences near to what is said."""
    generator = np.random.default_rng(seed)
    said = [generator.integers(1, 40, size=4).tolist() for _ in range(n_words)]
    tokens = []
    for word in said:
        for token in word:
            heard = token if generator.random() > 0.1 else int(generator.integers(1, 40))
            tokens += [heard] * int(generator.integers(1, 3)) + [RELEASE.blank] * int(
                generator.integers(0, 3)
            )
        tokens += [RELEASE.sil] * int(generator.integers(0, 2))
    scores_PV = frames(tokens, 6.0, RELEASE, noise=1.5, seed=seed)
    scores_PV[:, RELEASE.blank] -= math.log(32)
    sentences = [said]
    while len(sentences) < n_sentences:
        sentence = [list(word) for word in said]
        for _ in range(int(generator.integers(1, 4))):
            sentence[int(generator.integers(n_words))][int(generator.integers(4))] = int(
                generator.integers(1, 40)
            )
        sentences.append(sentence)
    return [[[(word, 0.0)] for word in sentence] for sentence in sentences], scores_PV


@pytest.mark.parametrize("recombine", ["logadd", "max"])
def test_a_realistic_list_of_sentences(recombine):
    options = DecoderOptions(sil_cost=1.0, recombine=recombine)
    sentences, scores_PV = long_utterance(10, 40)
    assert all(check(sentences, scores_PV, options, RELEASE, beam=100.0))


@pytest.mark.parametrize("recombine", ["logadd", "max"])
def test_long_utterances_are_scored_right(recombine):
    """The best path of a quarter of an hour loses against all paths together by more than a
    double holds.
    """
    sentences, scores_PV = long_utterance(100, 3, seed=1)
    options = DecoderOptions(recombine=recombine)
    assert all(check(sentences, scores_PV, options, RELEASE, beam=100.0))


def test_time_grows_with_the_length_only():
    def seconds(n_words):
        sentences, scores_PV = long_utterance(n_words, 4)
        scores_PV = scores_PV.copy()
        best = math.inf
        for _ in range(5):
            start = time.thread_time()  # the work, whatever else the machine does
            found = native(sentences, scores_PV, DecoderOptions(), RELEASE)
            best = min(best, time.thread_time() - start)
        assert all(len(spans) == n_words for _, _, spans in found)
        return best

    assert seconds(1600) < 22 * seconds(200)  # 8 times the length; squared it would be 64 times


def test_one_frame_that_contradicts_a_long_sentence_changes_it_by_that_frame():
    """The frame says with certainty what no sentence allows there."""
    sentences, scores_PV = long_utterance(30, 2)
    scores_PV[50] = -1000.0
    scores_PV[50, 7 if sentences[0][10][0][0][0] != 7 else 8] = 0.0
    check(sentences, scores_PV, DecoderOptions(), RELEASE)


def test_a_long_utterance_full_of_contradictions_takes_no_longer_than_a_moment():
    sentences, scores_PV = long_utterance(300, 20)
    scores_PV[np.random.default_rng(0).random(scores_PV.shape) < 0.1] = -1000.0
    start = time.perf_counter()
    found = native(sentences, scores_PV, DecoderOptions(), RELEASE)
    assert time.perf_counter() - start < 3  # 0.05 s; exactly it would take a minute
    assert all(score > -1e5 and len(spans) == 300 for score, _, spans in found)


def test_what_is_no_phoneme_is_refused():
    uniform_PV = np.log(np.full((3, 5), 0.2))
    for tokens in ([0], [4], [5], [-1], []):
        with pytest.raises(DecodingError, match="pronunciation has"):
            native([[[(tokens, 0.0)]]], uniform_PV, DecoderOptions())
