"""The compiled search against the oracle, and against itself in other chunks."""

import math

import numpy as np
import pytest
from engine_cases import (
    COLUMNS,
    NEUTRAL,
    SENTENCES,
    TEXTS,
    WIDE,
    Grams,
    in_release_order,
    noise,
    posteriors,
    random_frames,
    sentence_entries,
    spoken,
)
from generated_options import generated_options
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search_oracle import Oracle, all_scores, check_hypothesis

from cortext.decoding import Decoder, DecoderOptions
from cortext.decoding.engine import NativeEngine
from cortext.decoding.words import WordChanges
from cortext.text.inventory import LM, RELEASE

GRAMS = [Grams.random(order, seed=order) for order in (1, 2, 3, 4)]
entries_of_lexicons = st.lists(
    st.tuples(
        st.sampled_from("abcdz"),  # the n-grams do not know z
        st.sampled_from(["AA", "B", "AA B", "B AA", "AA AA", "B B AA", "AA B AA", "B AA B"]),
        st.sampled_from([1.0, 0.3]),
    ),
    min_size=1,
    max_size=7,
    unique_by=lambda entry: entry[:2],
).filter(lambda entries: any(word != "z" for word, _, _ in entries))
options_of_the_search = generated_options().map(DecoderOptions.of)
many = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


def frames_that_stay_few(entries, longest):
    """So few frames that the sentences can all be listed: words of one phoneme make many."""
    short = sum(" " not in phonemes for _, phonemes, _ in entries)
    return min(longest, {0: 10, 1: 9, 2: 7}.get(short, 5))


@settings(many, max_examples=120)
@given(
    entries=entries_of_lexicons,
    grams=st.sampled_from(GRAMS),
    options=options_of_the_search,
    n_frames=st.integers(0, 5),
    seed=st.integers(0, 2**32),
    spread=st.sampled_from([0.5, 3.0]),
    impossible=st.booleans(),
)
def test_a_wide_search_finds_every_sentence_with_its_exact_score(
    lm_of, entries, grams, options, n_frames, seed, spread, impossible
):
    log_probs_PV = random_frames(np.random.default_rng(seed), n_frames, spread)
    if impossible and n_frames:
        log_probs_PV[0, COLUMNS[2]] = -np.inf
        log_probs_PV -= np.logaddexp.reduce(log_probs_PV, axis=1, keepdims=True)
    expected = Oracle(entries, grams, options).sentences(log_probs_PV)

    nbest = Decoder.from_dir(lm_of(entries, grams), options).decode(log_probs_PV, RELEASE)
    assert sorted(nbest.texts) == sorted(expected)
    assert len(set(nbest.texts)) == len(nbest)
    assert [each.score for each in nbest] == sorted((each.score for each in nbest), reverse=True)
    for hypothesis in nbest:
        words = tuple(hypothesis.text.split())
        check_hypothesis(hypothesis, expected[hypothesis.text])
        assert hypothesis.lm_score == pytest.approx(
            grams.sentence(words, options.unk_score), abs=1e-5
        )
        assert hypothesis.score == pytest.approx(
            options.acoustic_scale * hypothesis.acoustic_score
            + options.lm_weight * hypothesis.lm_score
            + options.word_score * len(words)
            + hypothesis.sil_score,
            abs=1e-9,
        )
        assert hypothesis.hotword_score == 0.0
        assert hypothesis.llm_score is None


@settings(many, max_examples=40)
@given(
    entries=entries_of_lexicons,
    grams=st.sampled_from(GRAMS),
    options=options_of_the_search,
    n_frames=st.integers(3, 10),
    seed=st.integers(0, 2**32),
    spread=st.sampled_from([0.5, 3.0]),
    short_list=st.booleans(),
)
def test_a_wide_search_of_more_frames_agrees_with_the_oracle(
    lm_of, entries, grams, options, n_frames, seed, spread, short_list
):
    log_probs_PV = random_frames(
        np.random.default_rng(seed), frames_that_stay_few(entries, n_frames), spread
    )
    directory = lm_of(entries, grams)
    expected = Oracle(entries, grams, options).sentences(log_probs_PV)
    nbest = Decoder.from_dir(directory, options).decode(log_probs_PV, RELEASE)
    agree(nbest, sorted(expected.values(), key=lambda each: -each.score))
    assert sorted(nbest.texts) == sorted(expected)
    if short_list:
        (best,) = (
            Decoder.from_dir(directory, options).with_options(nbest=1).decode(log_probs_PV, RELEASE)
        )
        if len(nbest) > 1 and nbest[0].score - nbest[1].score < 1e-9:
            best = next(each for each in nbest if each.text == best.text)
            assert best.score == pytest.approx(nbest[0].score, abs=1e-9)
        else:
            assert best == nbest[0]


def agree(nbest, expected):
    """The best is the same; sentences that both have agree in all fields."""
    assert nbest[0].score == pytest.approx(expected[0].score, abs=1e-4)
    if len(expected) > 1 and expected[0].score - expected[1].score > 1e-6:
        assert nbest[0].text == expected[0].text
    known = {sentence.text: sentence for sentence in expected}
    for found in nbest:
        if found.text in known:
            check_hypothesis(found, known[found.text])


@pytest.mark.parametrize("recombine", ["logadd", "max"])
@pytest.mark.parametrize("sentence", TEXTS[:4])
@pytest.mark.parametrize("spread", [1.0, 2.0])
def test_usual_beams_find_what_the_oracle_finds(sentence_lm, sentence, spread, recombine):
    options = DecoderOptions(
        beam=14.0,
        max_active=150,
        recombine=recombine,
        word_score=0.0,
        sil_cost=0.5,
        nbest=5,
        lattice_beam=20.0,
        acoustic_scale=0.7,
    )
    log_probs_PV = posteriors(sentence, spread, seed=len(sentence))
    expected = Oracle(sentence_entries(), SENTENCES, options).search(log_probs_PV)
    nbest = Decoder.from_dir(sentence_lm, options).decode(log_probs_PV, RELEASE)
    agree(nbest, expected)
    # Joining by context, it may hold more in its beam.
    for found, other in zip(nbest[:3], expected[:3], strict=True):
        assert found.score >= other.score - 1e-4


@settings(many, max_examples=40)
@given(
    entries=entries_of_lexicons,
    seed=st.integers(0, 2**32),
    beam=st.sampled_from([0.0, 2.0, 6.0]),
    lattice_beam=st.sampled_from([0.0, 3.0]),
    active=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    max_arcs=st.integers(1, 20),
    recombine=st.sampled_from(["logadd", "max"]),
)
def test_what_a_narrow_search_finds_it_scores_exactly(
    lm_of, entries, seed, beam, lattice_beam, active, max_arcs, recombine
):
    log_probs_PV = random_frames(np.random.default_rng(seed), 5, 1.0)
    narrow = DecoderOptions(
        beam=beam,
        lattice_beam=lattice_beam,
        min_active=min(active),
        max_active=max(active),
        max_arcs=max_arcs,
        nbest=3,
        recombine=recombine,
    )
    expected = all_scores(entries, GRAMS[1], log_probs_PV, narrow)
    nbest = Decoder.from_dir(lm_of(entries, GRAMS[1]), narrow).decode(log_probs_PV, RELEASE)
    assert 1 <= len(nbest) <= 3
    assert [each.score for each in nbest] == sorted((each.score for each in nbest), reverse=True)
    for hypothesis in nbest:
        assert hypothesis.score == pytest.approx(expected[hypothesis.text], abs=1e-4)


A = [("a", "AA", 1.0)]
TWO = [("a", "AA", 1.0), ("b", "B", 1.0)]


def best(lm_of, frames, entries, grams=GRAMS[0], **options):
    return Decoder.from_dir(lm_of(entries, grams), WIDE | options).decode(spoken(frames), RELEASE)[
        0
    ]


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ("AA AA", "a"),  # a repeat is one phoneme
        ("AA BLANK AA", "a a"),  # a blank makes it two, across a word boundary too
        ("AA SIL AA", "a a"),
        ("SIL AA SIL", "a"),  # silence around the words is free
        ("SIL BLANK SIL", ""),  # and may come any number of times
        ("AA SIL BLANK SIL AA", "a a"),
        ("BLANK BLANK", ""),
    ],
)
def test_blanks_repeats_and_silence_follow_the_rules_of_ctc(lm_of, frames, text):
    assert best(lm_of, frames, A, lm_weight=0.1, blank_penalty=1.0).text == text


def test_a_word_may_be_the_beginning_of_another(lm_of):
    entries = [("a", "AA", 1.0), ("b", "AA B", 1.0)]
    assert best(lm_of, "AA B", entries, lm_weight=0.1).text == "b"
    assert best(lm_of, "AA SIL", entries, lm_weight=0.1).text == "a"
    assert best(lm_of, "AA SIL AA B", entries, lm_weight=0.1).text == "a b"


@pytest.mark.parametrize("recombine", ["logadd", "max"])
def test_homophones_are_kept_apart_and_ranked_by_the_ngram(lm_of, recombine):
    entries = [("a", "AA", 1.0), ("b", "B", 1.0), ("c", "B", 1.0), ("d", "B", 1.0)]
    grams = GRAMS[1]
    log_probs_PV = spoken("AA SIL B")
    nbest = Decoder.from_dir(lm_of(entries, grams), WIDE | dict(recombine=recombine)).decode(
        log_probs_PV, RELEASE
    )
    scores = {each.text: each for each in nbest}
    by_ngram = sorted(("a b", "a c", "a d"), key=lambda text: -grams.sentence(text.split()))
    assert [each for each in nbest.texts if each in by_ngram] == by_ngram
    assert scores["a b"].acoustic_score == pytest.approx(scores["a d"].acoustic_score, abs=1e-9)
    difference = grams.sentence(["a", "b"]) - grams.sentence(["a", "d"])
    assert scores["a b"].score - scores["a d"].score == pytest.approx(difference, abs=1e-5)


def test_the_weight_of_a_pronunciation_is_part_of_the_acoustic_score(lm_of):
    weighted, plain = (
        best(lm_of, "AA B", [("a", "AA B", weight)], recombine="max", acoustic_scale=0.5)
        for weight in (0.25, 1.0)
    )
    assert plain.acoustic_score - weighted.acoustic_score == pytest.approx(math.log(4), abs=1e-6)
    assert plain.score - weighted.score == pytest.approx(0.5 * math.log(4), abs=1e-6)


def test_words_are_timed_by_the_frames_of_their_phonemes(lm_of):
    found = best(
        lm_of,
        "BLANK AA AA BLANK B BLANK SIL AA",
        [("a", "AA B", 1.0), ("b", "AA", 1.0)],
        lm_weight=0.1,
    )
    assert [(word.word, word.start_ms, word.end_ms) for word in found.words] == [
        ("a", 80, 400),
        ("b", 560, 640),
    ]


def test_only_boundaries_between_words_without_silence_cost(lm_of):
    plain = best(lm_of, "AA B SIL", TWO, recombine="max", lm_weight=0.1)
    costly = best(lm_of, "AA B SIL", TWO, sil_cost=2.0, recombine="max", lm_weight=0.1)
    assert plain.text == costly.text == "a b"
    assert costly.sil_score == -2.0
    assert plain.score - costly.score == pytest.approx(2.0)
    assert (
        best(lm_of, "AA SIL B", TWO, sil_cost=2.0, recombine="max", lm_weight=0.1).sil_score == 0.0
    )


def test_silence_between_words_can_be_required(lm_of):
    options = dict(sil_required=True, lm_weight=0.1)
    assert best(lm_of, "AA SIL B", TWO, **options).text == "a b"
    log_probs_PV = in_release_order(np.log(np.full((2, 4), 0.25)))
    every = Decoder.from_dir(lm_of(TWO, GRAMS[0]), WIDE | options).decode(log_probs_PV, RELEASE)
    assert sorted(every.texts) == ["", "a", "b"]


def test_a_frame_that_is_passed_over_keeps_equal_phonemes_apart(lm_of):
    sure = spoken("AA BLANK AA", strength=20.0)
    options = WIDE | dict(blank_skip=0.99, lm_weight=0.1)
    assert Decoder.from_dir(lm_of(A, GRAMS[0]), options).decode(sure, RELEASE)[0].text == "a a"


def test_frames_that_are_passed_over_change_no_result(sentence_lm):
    """Blanks of which the frames are sure.

    To pass over them must leave the sentences, and move scores little.
    """
    log_probs_PV = np.concatenate([posteriors(text, 0.5, strength=12.0) for text in TEXTS[:2]])
    plain, passing = (
        Decoder.from_dir(sentence_lm, NEUTRAL | dict(blank_skip=skip)).decode(log_probs_PV, RELEASE)
        for skip in (1.0, 0.99)
    )
    assert (np.exp(log_probs_PV[:, RELEASE.blank]) > 0.99).mean() > 0.3
    assert passing.texts[0] == plain.texts[0] == " ".join(TEXTS[:2])
    assert passing[0].score == pytest.approx(plain[0].score, abs=0.05)
    assert passing[0].score != plain[0].score


def test_an_unfinished_word_is_dropped(lm_of):
    entries = [("a", "AA", 1.0), ("b", "B AA B", 1.0)]
    found = Decoder.from_dir(
        lm_of(entries, GRAMS[1]), NEUTRAL | dict(beam=5.0, min_active=1, blank_penalty=1.0)
    ).decode(spoken("AA SIL B AA"), RELEASE)
    assert found.texts == ["a"]


def test_the_order_of_the_tokens_does_not_matter(sentence_lm):
    log_probs_PV = posteriors(TEXTS[3], 1.5)
    reordered_PV = np.ascontiguousarray(log_probs_PV[:, LM.order_from(RELEASE)])
    decoder = Decoder.from_dir(sentence_lm)
    assert not np.array_equal(reordered_PV, log_probs_PV)
    assert decoder.decode(reordered_PV, LM) == decoder.decode(log_probs_PV, RELEASE)


WORDS_OF_NOISE = st.tuples(
    st.sampled_from(["noise", "speech"]), st.integers(0, 1000), st.sampled_from([0.5, 1.5, 2.5])
)


def heard(kind, seed, spread):
    return (
        posteriors(TEXTS[seed % len(TEXTS)], spread, seed)
        if kind == "speech"
        else noise(40, spread, seed)
    )


narrow_options = st.builds(
    DecoderOptions,
    acoustic_scale=st.sampled_from([1.0, 0.3]),
    beam=st.sampled_from([4.0, 18.0]),
    max_active=st.sampled_from([5, 200]),
    min_active=st.sampled_from([1, 20]),
    lattice_beam=st.sampled_from([0.5, 8.0]),
    max_arcs=st.sampled_from([1, 30, 100_000]),
    sil_cost=st.sampled_from([0.0, 1.0]),
    blank_skip=st.sampled_from([1.0, 0.9]),
    recombine=st.sampled_from(["logadd", "max"]),
    nbest=st.sampled_from([1, 20]),
    history_words=st.sampled_from([0, 2]),
)


@settings(many, max_examples=60)
@given(frames=WORDS_OF_NOISE, options=narrow_options, cuts=st.lists(st.integers(0, 60), max_size=8))
def test_streams_equal_the_whole_and_stable_words_never_change(sentence_lm, frames, options, cuts):
    log_probs_PV = heard(*frames)
    decoder = decoder_of(sentence_lm).with_options(**vars(options))
    stream, stable = decoder.stream(RELEASE), ""
    for chunk_PV in np.split(log_probs_PV, sorted(cuts)):
        partial = stream.step(chunk_PV)
        assert f"{partial.stable} ".startswith(f"{stable} ".lstrip())
        assert f"{partial.stable} {partial.tail}".strip() == partial.text
        stable = partial.stable
    nbest = stream.finish()
    whole = decoder.decode(log_probs_PV, RELEASE)
    assert nbest == whole
    assert all(f"{text} ".startswith(f"{stable} ".lstrip()) for text in nbest.texts)


DECODERS = {}


def decoder_of(directory):
    """One decoder for all examples, so that what it remembers of earlier utterances is tested
    too.
    """
    if directory not in DECODERS:
        DECODERS[directory] = Decoder.from_dir(directory)
    return DECODERS[directory]


@settings(many, max_examples=20)
@given(frames=WORDS_OF_NOISE, cuts=st.lists(st.integers(0, 60), max_size=8))
def test_chunks_of_which_no_partial_result_is_asked_equal_the_whole(sentence_lm, frames, cuts):
    log_probs_PV, engine = heard(*frames), native_engine(sentence_lm)
    stream = engine.start(DecoderOptions(), RELEASE, WordChanges())
    for chunk_PV in np.split(log_probs_PV, sorted(cuts)):
        stream.advance(chunk_PV)
    assert stream.finish() == decoder_of(sentence_lm).decode(log_probs_PV, RELEASE)


ENGINES = {}


def native_engine(directory):
    if directory not in ENGINES:
        ENGINES[directory] = NativeEngine.from_dir(directory)
    return ENGINES[directory]


def test_words_become_stable_soon_after_they_were_said(sentence_lm):
    stream = Decoder.from_dir(sentence_lm, dict(beam=5.0, min_active=1)).stream(RELEASE)
    log_probs_PV = posteriors("we went there two days ago", noise=0.3)
    stable = [
        stream.step(log_probs_PV[frame : frame + 1]).stable for frame in range(len(log_probs_PV))
    ]
    nbest = stream.finish()
    spans = {word.word: (word.start_ms / 80, word.end_ms / 80) for word in nbest[0].words}
    assert stable[0] == ""
    for word in ("we", "went"):
        frame = next(frame for frame, words in enumerate(stable) if word in words.split())
        assert spans[word][0] <= frame <= spans[word][1] + 12


def test_the_tail_is_the_best_guess_so_far(sentence_lm):
    log_probs_PV = posteriors("are you there", noise=0.5)
    stream = Decoder.from_dir(sentence_lm).stream(RELEASE)
    partial = stream.step(log_probs_PV)
    assert partial.text == stream.finish()[0].text == "are you there"


def test_results_do_not_depend_on_what_was_decoded_before(sentence_lm):
    batch = [posteriors(text, 2.0, seed) for seed, text in enumerate(TEXTS)]
    fresh = [Decoder.from_dir(sentence_lm).decode(log_probs_PV, RELEASE) for log_probs_PV in batch]
    used = Decoder.from_dir(sentence_lm)
    for order in (batch, batch[::-1], [noise(60, 1.0, seed) for seed in range(3)], batch):
        found = [used.decode(log_probs_PV, RELEASE) for log_probs_PV in order]
    assert found == fresh
    assert used.decode_batch(batch, RELEASE, threads=3) == fresh


@pytest.mark.parametrize(
    "options", [dict(sil_required=True), dict(sil_cost=12.0), dict(sil_cost=-12.0)], ids=str
)
def test_the_search_itself_weighs_silence(lm_of, options):
    """A list of one from a lattice of many.

    Sentences without SIL would crowd out the best, were they not held back.
    """
    entries = [
        (word, phoneme, 1.0) for word, phoneme in zip("abcd", ["AA", "B", "AA", "B"], strict=True)
    ]
    for seed in range(6):
        log_probs_PV = random_frames(np.random.default_rng(seed), 6, 1.5)
        chosen = DecoderOptions.of(WIDE | dict(nbest=1, blank_penalty=7.0, lm_weight=0.2) | options)
        expected = max(all_scores(entries, GRAMS[1], log_probs_PV, chosen).values())
        (best,) = Decoder.from_dir(lm_of(entries, GRAMS[1]), chosen).decode(log_probs_PV, RELEASE)
        assert best.score == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("recombine", ["logadd", "max"])
def test_sentences_without_the_silence_required_do_not_crowd_out_the_others(lm_of, recombine):
    """Two frames say sixteen sentences of two words, which leave no room for SIL.

    A list of one looks at nine.
    """
    entries = [(word, "AA" if word in "abcd" else "B", 1.0) for word in "abcdefgh"]
    grams = Grams.random(2, seed=1, words="abcdefgh")
    options = DecoderOptions.of(
        WIDE | dict(nbest=1, recombine=recombine, lm_weight=0.1, sil_required=True)
    )
    log_probs_PV = in_release_order(np.log([[0.01, 0.01, 0.97, 0.01], [0.01, 0.01, 0.01, 0.97]]))
    scores = all_scores(entries, grams, log_probs_PV, options)
    assert max(len(text.split()) for text in scores) == 1
    (best,) = Decoder.from_dir(lm_of(entries, grams), options).decode(log_probs_PV, RELEASE)
    assert best.text == max(scores, key=scores.__getitem__)
    assert best.score == pytest.approx(max(scores.values()), abs=1e-4)
