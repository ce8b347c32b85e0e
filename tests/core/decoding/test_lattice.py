"""What is read off the lattice.

Complete lists, how probable each word is, and the sentences of a second n-gram.
"""

import itertools

import numpy as np
import pytest
from engine_cases import (
    NEUTRAL,
    SENTENCES,
    TEXTS,
    WIDE,
    Grams,
    noise,
    posteriors,
    random_frames,
    sentence_entries,
    spoken,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search_oracle import Oracle, all_scores

from cortext.decoding import Decoder, DecoderOptions
from cortext.errors import LanguageModelError
from cortext.text.inventory import RELEASE

ENTRIES = [("a", "AA", 1.0), ("b", "B", 0.3), ("c", "AA B", 1.0), ("d", "B", 1.0)]
SMALL, LARGE = Grams.random(2, seed=1), Grams.random(4, seed=2)
seldom = settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def toy(lm_of):
    return Decoder.from_dir(lm_of(ENTRIES, SMALL), WIDE)


@pytest.mark.parametrize("recombine", ["logadd", "max"])
def test_short_lists_are_the_beginning_of_the_whole(toy, recombine):
    toy = toy.with_options(recombine=recombine)
    for seed in range(5):
        log_probs_PV = random_frames(np.random.default_rng(seed), 5, 1.0)
        scores = sorted(
            all_scores(ENTRIES, SMALL, log_probs_PV, toy.options).values(), reverse=True
        )
        for nbest in (1, 2, 5, 30):
            found = toy.with_options(nbest=nbest).decode(log_probs_PV, RELEASE)
            # The lattice ranks by best paths; a few more than asked for are scored exactly, so
            # the first ones are right.
            assert len(found) == min(nbest, len(scores))
            assert found[0].score == pytest.approx(scores[0], abs=1e-4)
            if recombine == "max":
                assert [each.score for each in found] == pytest.approx(scores[:nbest], abs=1e-4)


def test_lists_hold_every_reading_of_a_sentence_with_many_homophones(lm_of):
    """Three words with two spellings each, twice: 2^3 sentences from one string of phonemes."""
    entries = [("a", "AA", 1.0), ("b", "AA", 1.0), ("c", "B", 1.0), ("d", "B", 1.0)]
    log_probs_PV = np.full((5, len(RELEASE)), -np.inf, dtype=np.float32)
    log_probs_PV[np.arange(5), RELEASE.ids("AA SIL B SIL AA".split())] = 0.0
    options = dict(lattice_beam=60.0, beam=60.0, nbest=100)
    found = Decoder.from_dir(lm_of(entries, SMALL), options).decode(log_probs_PV, RELEASE)
    certain = [text for text in found.texts if len(text.split()) == 3 and text.split()[1] in "cd"]
    expected = {f"{one} {two} {three}" for one in "ab" for two in "cd" for three in "ab"}
    assert set(certain) == expected
    assert set(found.texts[:8]) == expected
    by_ngram = sorted(expected, key=lambda text: -SMALL.sentence(text.split()))
    assert found.texts[:8] == by_ngram


def test_a_cap_on_the_lattice_keeps_the_best(sentence_lm):
    decoder = Decoder.from_dir(sentence_lm, NEUTRAL | dict(nbest=100, lattice_beam=20.0))
    for seed, text in enumerate(TEXTS):
        log_probs_PV = posteriors(text, 2.0, seed)
        every = decoder.decode(log_probs_PV, RELEASE)
        for max_arcs in (2000, 200, 20):
            capped = decoder.with_options(max_arcs=max_arcs).decode(log_probs_PV, RELEASE)
            assert capped[0].text == every[0].text
            known = {each.text: each.score for each in every}
            assert all(abs(each.score - known.get(each.text, each.score)) < 1e-9 for each in capped)
        assert 1 <= len(capped) < len(every)


def test_a_wider_lattice_beam_keeps_what_a_narrower_one_kept(sentence_lm):
    log_probs_PV = posteriors(TEXTS[1], 2.5)
    lists = [
        Decoder.from_dir(sentence_lm, dict(nbest=5000, lattice_beam=beam, recombine="max")).decode(
            log_probs_PV, RELEASE
        )
        for beam in (0.0, 8.0, 11.0, 14.0)
    ]
    assert len(lists[0]) == 1
    assert [len(each) for each in lists] == sorted(len(each) for each in lists)
    assert len(lists[3]) > len(lists[1]) > 1
    for narrow, wide in itertools.pairwise(lists):
        assert set(narrow.texts) <= set(wide.texts)
    for beam, found in zip((0.0, 8.0, 11.0, 14.0), lists, strict=True):
        near = {each.text for each in lists[3] if each.score > lists[3][0].score - beam / 2}
        assert near <= set(found.texts)


def probability(entries, grams, log_probs_PV, options, word, start, end):
    """Of the paths on which the word is said at some time in the frames [start, end)."""
    every, saying = [], []
    found = Oracle(entries, grams, options).sentences(log_probs_PV, every_course=True)
    for sentence in found.values():
        rest = sentence.score - sentence.paths
        for (spans, _, _), score in sentence.courses.items():
            every.append(score + rest)
            said = zip(sentence.words, spans, strict=True)
            if any(other == word and first < end and last > start for other, (first, last) in said):
                saying.append(score + rest)
    return float(np.exp(np.logaddexp.reduce(saying) - np.logaddexp.reduce(every)))


@seldom
@given(
    seed=st.integers(0, 2**32),
    n_frames=st.integers(3, 5),
    acoustic_scale=st.sampled_from([1.0, 0.4]),
    lm_weight=st.sampled_from([1.0, 0.3]),
)
def test_the_confidence_of_a_word_is_its_posterior_probability(
    lm_of, seed, n_frames, acoustic_scale, lm_weight
):
    """The frames are too few for a word to be said twice, so the time of the other one does not
    matter.
    """
    entries = [
        ("a", "AA B AA", 1.0),
        ("b", "B AA B", 0.3),
        ("c", "B AA B", 1.0),
        ("d", "AA B", 1.0),
    ][: 3 + seed % 2]
    options = DecoderOptions.of(
        WIDE | dict(blank_penalty=1.0, acoustic_scale=acoustic_scale, lm_weight=lm_weight)
    )
    if len(entries) == 4 and n_frames > 3:
        entries = entries[:3]  # `d d` would fit
    log_probs_PV = random_frames(np.random.default_rng(seed), n_frames, 1.5)
    nbest = Decoder.from_dir(lm_of(entries, LARGE), options).decode(log_probs_PV, RELEASE)
    confidences = {}
    for hypothesis in nbest:
        for word in hypothesis.words:
            expected = probability(
                entries,
                LARGE,
                log_probs_PV,
                options,
                word.word,
                word.start_ms / 80,
                word.end_ms / 80,
            )
            assert word.confidence == pytest.approx(expected, abs=2e-3)
            confidences[word.word] = word.confidence
    # A sentence of one word each: the probabilities of the words and of saying nothing sum to 1.
    weights = {each.text: np.exp(each.score) for each in nbest}
    for word in confidences:
        assert confidences[word] == pytest.approx(weights[word] / sum(weights.values()), abs=2e-3)


def test_homophones_share_the_probability(lm_of):
    entries = [("b", "B AA B", 1.0), ("c", "B AA B", 1.0), ("d", "B AA B", 1.0)]
    log_probs_PV = random_frames(np.random.default_rng(1), 4, 2.0)
    log_probs_PV[:, RELEASE.index["SIL"]] = -np.inf
    options = WIDE | dict(blank_penalty=1.0)
    nbest = Decoder.from_dir(lm_of(entries, LARGE), options).decode(normal(log_probs_PV), RELEASE)
    confidences = {each.text: each.words[0].confidence for each in nbest if each.words}
    silent = next(each.score for each in nbest if not each.words)
    total = np.logaddexp.reduce([each.score for each in nbest])
    assert sum(confidences.values()) == pytest.approx(1 - np.exp(silent - total), abs=1e-4)
    ratio = np.exp(LARGE.sentence(["b"]) - LARGE.sentence(["c"]))
    assert confidences["b"] == pytest.approx(ratio * confidences["c"], abs=2e-3)


def normal(log_probs_PV):
    return log_probs_PV - np.logaddexp.reduce(log_probs_PV, axis=1, keepdims=True)


def test_the_frequencies_of_words_in_the_list_agree_with_their_confidence(sentence_lm):
    """On realistic frames, against the posterior of a list of 600 sentences.

    Most words, as times are not exact.
    """
    options = dict(nbest=600, beam=25.0, max_active=2000, lattice_beam=25.0)
    decoder, errors, spread = Decoder.from_dir(sentence_lm, options), [], []
    for seed, text in enumerate(TEXTS):
        nbest = decoder.decode(posteriors(text, 2.5, seed), RELEASE)
        scores = np.array([each.score for each in nbest])
        share = np.exp(scores - np.logaddexp.reduce(scores))
        for word in nbest[0].words:
            saying = [
                any(
                    other.word == word.word
                    and other.start_ms < word.end_ms
                    and other.end_ms > word.start_ms
                    for other in each.words
                )
                for each in nbest
            ]
            errors.append(abs(word.confidence - share[saying].sum()))
            spread.append(share[saying].sum())
            assert 0.0 <= word.confidence <= 1.0
    assert min(spread) < 0.8  # some words are in doubt
    assert np.median(errors) < 0.01
    assert np.quantile(errors, 0.8) < 0.05


def test_sure_words_are_sure(sentence_lm):
    decoder = Decoder.from_dir(sentence_lm)
    *_, best = decoder.with_options(nbest=1).decode(
        posteriors("are you there", 0.3, strength=12.0), RELEASE
    )
    assert best.text == "are you there"
    assert all(word.confidence > 0.95 for word in best.words[:2])
    assert (
        decoder.score(posteriors("are you there"), RELEASE, "are you there").words[0].confidence
        is None
    )


@seldom
@given(
    seed=st.integers(0, 2**32),
    n_frames=st.integers(0, 5),
    recombine=st.sampled_from(["logadd", "max"]),
    lm_weight=st.sampled_from([1.0, 0.0, 1.7]),
    known=st.sampled_from(["abcd", "abc"]),
)
def test_a_second_ngram_gives_what_decoding_with_it_gives(
    lm_of, seed, n_frames, recombine, lm_weight, known
):
    second = Grams.random(4, seed=3, words=known)
    one, other = lm_of(ENTRIES, SMALL), lm_of(ENTRIES, second)
    options = DecoderOptions.of(
        WIDE | dict(recombine=recombine, lm_weight=lm_weight, unk_score=-2.0)
    )
    log_probs_PV = random_frames(np.random.default_rng(seed), n_frames, 1.0)
    rescored = Decoder.from_dir(one, options, second_lm=other).decode(log_probs_PV, RELEASE)
    expected = all_scores(ENTRIES, second, log_probs_PV, options)
    assert {each.text: each.score for each in rescored} == pytest.approx(expected, abs=1e-4)
    for each in rescored:
        assert each.lm_score == pytest.approx(second.sentence(each.text.split(), -2.0), abs=1e-4)
    alone = Decoder.from_dir(other, options).decode(log_probs_PV, RELEASE)
    assert [each.score for each in rescored] == pytest.approx(
        [each.score for each in alone], abs=1e-4
    )


def test_a_second_ngram_brings_up_what_it_prefers(lm_of, sentence_lm):
    """It has read `two two`; the first has not, and says `two` once or `to two`."""
    second = Grams.counted([*TEXTS, *["we want two two"] * 20], 3)
    larger = lm_of(sentence_entries(), second)
    log_probs_PV = posteriors("we want two two", 0.5)
    wide = dict(lattice_beam=30.0, beam=40.0, max_active=3000)
    plain = Decoder.from_dir(sentence_lm, wide).decode(log_probs_PV, RELEASE)
    rescored = Decoder.from_dir(sentence_lm, wide, second_lm=larger).decode(log_probs_PV, RELEASE)
    alone = Decoder.from_dir(larger, wide).decode(log_probs_PV, RELEASE)
    assert plain[0].text != "we want two two"
    assert rescored[0].text == alone[0].text == "we want two two"
    assert rescored[0].score == pytest.approx(alone[0].score, abs=1e-4)


def one_word_models():
    """A word `a` and twenty homophones.

    Of two models each knows what the other does not, and all else is equal.
    """
    words = ["a", *(f"x{number}" for number in range(20))]
    common = {("<unk>",): -1.0, ("<s>",): -99.0, ("</s>",): -1.0, ("<s>", "</s>"): -5.0}
    few = Grams(2, common | {("a",): -3.0}, {("<s>",): 0.0})
    many = Grams(2, common | {(word,): -3.0 for word in words[1:]}, {("<s>",): 0.0})
    return [(word, "AA B", 1.0) for word in words], few, many


@pytest.mark.parametrize("knows_a", ["the second", "the first"])
def test_words_that_one_of_the_ngrams_does_not_know_are_weighed_before_the_list_is_cut(
    lm_of, knows_a
):
    """A list of one, chosen from few sentences of the lattice.

    The second n-gram knows only `a`, or all but `a`.
    """
    entries, few, many = one_word_models()
    one, other = (many, few) if knows_a == "the second" else (few, many)
    options = dict(nbest=1, unk_score=-6.0, beam=60.0, lattice_beam=60.0)
    decoder = Decoder.from_dir(lm_of(entries, one), options, second_lm=lm_of(entries, other))
    (best,) = decoder.decode(spoken("AA B"), RELEASE)
    assert (best.text == "a") == (knows_a == "the second")
    assert best.lm_score == pytest.approx(-4.0, abs=1e-5)  # a known word and the sentence's end


def test_words_after_one_that_is_in_doubt_are_not_stable(lm_of):
    """`b` and `c` are homophones that the n-gram does not know.

    `a`, `a b a` and `a c a` meet before `d`.

    The paths to there share `a`, and `a` alone is one of them; so what follows must not be taken
    for the second word.
    """
    entries = [("a", "AA", 1.0), ("b", "B", 1.0), ("c", "B", 1.0), ("d", "CH", 1.0)]
    log_probs = {
        ("<unk>",): -1.0,
        ("<s>",): -99.0,
        ("</s>",): -1.0,
        ("a",): -1.0,
        ("d",): -1.0,
        ("a", "d"): -1.0,
    }
    grams = Grams(2, log_probs, {("a",): 0.0})
    options = NEUTRAL | dict(
        unk_score=0.0, blank_penalty=1.0, beam=8.0, lattice_beam=8.0, min_active=1
    )
    log_probs_PV = spoken("AA AA AA SIL CH", 12.0)
    log_probs_PV[1] = np.log(1e-6)
    log_probs_PV[1, RELEASE.ids(["AA", "B"])] = np.log(0.5)
    stream = Decoder.from_dir(lm_of(entries, grams), options).stream(RELEASE)
    stable = [
        stream.step(frame_PV).stable for frame_PV in np.split(log_probs_PV, len(log_probs_PV))
    ]
    assert set(stream.finish().texts) == {"a d", "a b a d", "a c a d"}
    assert stable == ["a"] * 5


@settings(seldom, max_examples=20)
@given(
    seed=st.integers(0, 500),
    kind=st.sampled_from(["speech", "noise"]),
    cuts=st.lists(st.integers(0, 50), max_size=5),
    max_arcs=st.sampled_from([10, 100_000]),
)
def test_stable_words_outlive_a_second_ngram(lm_of, sentence_lm, seed, kind, cuts, max_arcs):
    if "decoder" not in SECOND:
        second = Grams.counted(TEXTS[::-1], 4)
        SECOND["decoder"] = Decoder.from_dir(
            sentence_lm, second_lm=lm_of(sentence_entries(), second)
        )
    decoder = SECOND["decoder"].with_options(beam=8.0, max_arcs=max_arcs)
    log_probs_PV = (
        posteriors(TEXTS[seed % 7], 2.0, seed) if kind == "speech" else noise(40, 1.5, seed)
    )
    stream = decoder.stream(RELEASE)
    for chunk_PV in np.split(log_probs_PV, sorted(cuts)):
        stable = stream.step(chunk_PV).stable
    nbest = stream.finish()
    assert nbest == decoder.decode(log_probs_PV, RELEASE)
    assert all(f"{text} ".startswith(f"{stable} ".lstrip()) for text in nbest.texts)


SECOND = {}


def test_a_second_model_that_is_not_there_is_named(sentence_lm, tmp_path):
    with pytest.raises(LanguageModelError, match="no-such") as caught:
        Decoder.from_dir(sentence_lm, second_lm=tmp_path / "no-such")
    assert "\n" not in str(caught.value)


def test_a_hook_and_a_second_ngram_go_together(toy, lm_of):
    second = Decoder.from_dir(toy.lm_dir, toy.options, second_lm=lm_of(ENTRIES, LARGE))
    log_probs_PV = random_frames(np.random.default_rng(3), 4, 1.0)
    expected = all_scores(ENTRIES, LARGE, log_probs_PV, toy.options)
    second = second.with_options(history_words=8)

    def hook(batch):
        return (np.array([-1.5 * len(words) for words in batch.words]) - batch.added).astype(
            np.float32
        )

    stream = second.stream(RELEASE, hook=hook)
    stream.step(log_probs_PV)
    found = {each.text: each.score for each in stream.finish()}
    assert found == pytest.approx(
        {text: score - 1.5 * len(text.split()) for text, score in expected.items()}, abs=1e-4
    )


def test_the_shared_sentences_have_doubtful_words():
    assert SENTENCES.order == 3
    assert (
        len({phonemes for word, phonemes, _ in sentence_entries() if word in ("to", "too", "two")})
        <= 3
    )
