"""Words that are favoured, added and taken away."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from engine_cases import (
    NEUTRAL,
    SENTENCES,
    TEXTS,
    WIDE,
    Grams,
    in_release_order,
    posteriors,
    random_frames,
    sentence_entries,
    spoken,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search_oracle import all_scores

from cortext.decoding import Decoder, DecoderOptions
from cortext.errors import DecodingError, LanguageModelError
from cortext.text.inventory import RELEASE
from cortext.text.pronunciation import pronounce

GRAMS = Grams.random(3, seed=3)
ENTRIES = [("a", "AA", 1.0), ("b", "B", 0.3), ("c", "AA B", 1.0), ("d", "B", 1.0)]
seldom = settings(
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def toy(lm_of):
    return Decoder.from_dir(lm_of(ENTRIES, GRAMS), WIDE)


@pytest.fixture
def decoder(sentence_lm):
    return Decoder.from_dir(sentence_lm, NEUTRAL)


@seldom
@given(
    bonuses=st.dictionaries(
        st.sampled_from("abcd"), st.sampled_from([-2.5, 0.0, 1.25, 4.0]), max_size=3
    ),
    seed=st.integers(0, 2**32),
    n_frames=st.integers(0, 5),
    recombine=st.sampled_from(["logadd", "max"]),
    scale=st.sampled_from([1.0, 0.4]),
)
def test_each_time_a_hotword_is_said_the_score_rises_by_its_bonus(
    toy, bonuses, seed, n_frames, recombine, scale
):
    toy = toy.with_options(recombine=recombine, acoustic_scale=scale)
    log_probs_PV = random_frames(np.random.default_rng(seed), n_frames, 1.0)
    plain = all_scores(ENTRIES, GRAMS, log_probs_PV, toy.options)
    expected = {
        text: score + sum(bonuses.get(word, 0.0) for word in text.split())
        for text, score in plain.items()
    }
    nbest = toy.decode(log_probs_PV, RELEASE, hotwords=bonuses)
    assert {each.text: each.score for each in nbest} == pytest.approx(expected, abs=1e-4)
    assert [each.score for each in nbest] == sorted((each.score for each in nbest), reverse=True)
    for each in nbest:
        assert each.hotword_score == sum(bonuses.get(word, 0.0) for word in each.text.split())
    assert toy.decode(log_probs_PV, RELEASE)[0].score == pytest.approx(
        max(plain.values()), abs=1e-4
    )


def test_a_bonus_makes_a_rare_word_win(decoder):
    log_probs_PV = posteriors("they would like to see their sea", 0.5, strength=12.0)
    plain = decoder.decode(log_probs_PV, RELEASE)
    favoured = decoder.decode(log_probs_PV, RELEASE, hotwords={"sea": 14.0})
    assert plain[0].text == "they would like to see their sea"
    assert favoured[0].text == "they would like to sea their sea"
    assert favoured[0].hotword_score == 28.0
    assert decoder.decode(log_probs_PV, RELEASE) == plain


@pytest.mark.parametrize("bonus", [10.0, 20.0, 1e6])
def test_a_bonus_that_fills_the_time_with_one_word_leaves_a_sentence(decoder, bonus):
    """`i` needs a blank or SIL after another `i`, which the lattice does not always know."""
    for seed, text in enumerate(TEXTS):
        stream = decoder.stream(RELEASE, hotwords={"i": bonus})
        stable = stream.step(posteriors(text, 2.0, seed)).stable
        nbest = stream.finish()
        assert len(nbest) >= 1
        assert np.isfinite([each.score for each in nbest]).all()
        assert all(f"{each} ".startswith(f"{stable} ".lstrip()) for each in nbest.texts)


def test_a_bonus_helps_from_the_first_phoneme_of_a_word_on(lm_of):
    """One hypothesis may live, and of two long words the n-gram prefers the other.

    The frames leave both open until the end. Only what the bonus promises for the unfinished word
    keeps it alive so long.
    """
    entries = [("a", "AA B AA B AA", 1.0), ("b", "B AA B AA B", 1.0)]
    grams = Grams(
        2,
        {
            ("<unk>",): -9.0,
            ("<s>",): -99.0,
            ("</s>",): -1.0,
            ("a",): -1.0,
            ("b",): -7.0,
            ("<s>", "a"): -1.0,
        },
        {("<s>",): 0.0},
    )
    decoder = Decoder.from_dir(
        lm_of(entries, grams), dict(max_active=1, min_active=1, blank_penalty=1.0)
    )
    both = [[0.04, 0.01, 0.50, 0.45], [0.04, 0.01, 0.45, 0.50]]
    log_probs_PV = in_release_order(
        np.log([both[frame % 2] for frame in range(5) for _ in range(2)])
    )
    assert decoder.decode(log_probs_PV, RELEASE).texts == ["a"]
    assert decoder.decode(log_probs_PV, RELEASE, hotwords={"b": 8.0}).texts == ["b"]


def test_the_words_of_a_stream_are_known_to_it_alone(decoder):
    log_probs_PV = posteriors("we went to zanzibar two days ago", 0.5)
    stream = decoder.stream(RELEASE, words=["zanzibar"])
    stream.step(log_probs_PV)
    assert stream.finish()[0].text == "we went to zanzibar two days ago"
    assert "zanzibar" not in " ".join(decoder.decode(log_probs_PV, RELEASE).texts)
    with pytest.raises(DecodingError, match="the word 'zanzibar' is not in the lexicon"):
        decoder.score(log_probs_PV, RELEASE, "zanzibar")


def test_a_word_the_ngram_does_not_know_scores_as_unknown(toy):
    log_probs_PV = spoken("B AA B SIL AA")
    stream = toy.with_options(unk_score=-3.0).stream(RELEASE, words={"zed": [("B", "AA", "B")]})
    stream.step(log_probs_PV)
    found = {each.text: each for each in stream.finish()}
    assert found["zed a"].lm_score == pytest.approx(GRAMS.sentence(["zed", "a"], -3.0), abs=1e-5)


def test_words_added_to_a_decoder_are_for_utterances_that_begin_later(decoder):
    log_probs_PV = posteriors("we went to zanzibar", 0.5)
    begun = decoder.stream(RELEASE)
    decoder.add_words(["zanzibar"])
    begun.step(log_probs_PV)
    assert "zanzibar" not in " ".join(begun.finish().texts)
    assert decoder.decode(log_probs_PV, RELEASE)[0].text == "we went to zanzibar"
    assert decoder.decode_batch([log_probs_PV], RELEASE)[0][0].text == "we went to zanzibar"
    assert decoder.score(log_probs_PV, RELEASE, "we went to zanzibar").score == pytest.approx(
        decoder.decode(log_probs_PV, RELEASE)[0].score
    )
    begun = decoder.stream(RELEASE)
    decoder.remove_words(["zanzibar"])
    begun.step(log_probs_PV)
    assert begun.finish()[0].text == "we went to zanzibar"
    assert "zanzibar" not in " ".join(decoder.decode(log_probs_PV, RELEASE).texts)


def test_words_of_the_lexicon_can_be_removed_and_come_back(decoder):
    log_probs_PV = posteriors("are you there", 0.5)
    before = decoder.with_options(nbest=50).decode(log_probs_PV, RELEASE)
    decoder.remove_words(["there"])
    without = decoder.with_options(nbest=50).decode(log_probs_PV, RELEASE)
    assert before[0].text == "are you there"
    assert without[0].text == "are you their"
    assert not any("there" in text.split() for text in without.texts)
    with pytest.raises(DecodingError, match="the word 'there' is not in the lexicon"):
        decoder.score(log_probs_PV, RELEASE, "are you there")
    decoder.add_words(["there"])
    after = decoder.with_options(nbest=50).decode(log_probs_PV, RELEASE)
    assert after.texts == before.texts
    assert [each.score for each in after] == pytest.approx(
        [each.score for each in before], abs=1e-5
    )


def test_all_words_can_be_removed(toy):
    other = toy.with_options()
    other.remove_words(["a", "b", "c", "d"])
    assert other.decode(spoken("AA B SIL"), RELEASE).texts == [""]


@seldom
@given(
    seed=st.integers(0, 2**32),
    n_frames=st.integers(0, 5),
    removed=st.sampled_from(["", "a", "bd"]),
    added=st.sampled_from(
        [[], [("a", "B AA", 1.0)], [("e", "AA", 1.0), ("e", "B B", 1.0)], [("b", "AA", 1.0)]]
    ),
)
def test_changed_words_are_as_if_the_lexicon_had_them(toy, seed, n_frames, removed, added):
    log_probs_PV = random_frames(np.random.default_rng(seed), n_frames, 1.0)
    entries = [
        entry
        for entry in ENTRIES
        if entry[0] not in removed or entry[0] in [word for word, _, _ in added]
    ]
    expected = all_scores([*entries, *added], GRAMS, log_probs_PV, toy.options)
    other = toy.with_options()
    other.remove_words(list(removed))
    words = {
        word: [tuple(each[1].split()) for each in added if each[0] == word] for word, _, _ in added
    }
    other.add_words(words)
    nbest = other.decode(log_probs_PV, RELEASE)
    assert {each.text: each.score for each in nbest} == pytest.approx(expected, abs=1e-4)
    assert len(nbest) == len(set(nbest.texts))


def test_a_known_word_may_get_another_pronunciation(toy):
    log_probs_PV = spoken("B AA B SIL AA")
    plain = {each.text: each for each in toy.decode(log_probs_PV, RELEASE)}
    stream = toy.stream(RELEASE, words={"a": [("B", "AA", "B")]})
    stream.step(log_probs_PV)
    found = {each.text: each for each in stream.finish()}
    expected = all_scores([*ENTRIES, ("a", "B AA B", 1.0)], GRAMS, log_probs_PV, toy.options)["a a"]
    assert found["a a"].score == pytest.approx(expected, abs=1e-4)
    assert plain["a a"].score < expected - 5  # as AA twice, or with one of its phonemes wrong


def test_streams_with_different_words_live_side_by_side(decoder):
    names = {
        "zanzibar": "went to zanzibar",
        "timbuktu": "went to timbuktu",
        "havana": "went to havana",
    }
    streams = {name: decoder.stream(RELEASE, words=[name], hotwords={name: 3.0}) for name in names}
    frames = {name: posteriors(text, 0.5) for name, text in names.items()}
    for chunk in range(3):
        for name, stream in streams.items():
            stream.step(np.array_split(frames[name], 3)[chunk])
    assert {name: stream.finish()[0].text for name, stream in streams.items()} == names


def test_threads_may_each_have_words_of_their_own(decoder):
    names = ["zanzibar", "timbuktu", "havana", "lisbon"] * 6

    def decode(name):
        stream = decoder.stream(RELEASE, words=[name])
        stream.step(posteriors(f"we went to {name}", 0.5))
        return stream.finish()[0].text

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(decode, names)) == [f"we went to {name}" for name in names]


def test_hotwords_and_added_words_go_together(toy):
    log_probs_PV = spoken("B AA B SIL AA")
    stream = toy.stream(RELEASE, words={"zed": [("B", "AA", "B")]}, hotwords={"zed": 2.0, "a": 0.5})
    stream.step(log_probs_PV)
    found = {each.text: each for each in stream.finish()}
    assert found["zed a"].hotword_score == 2.5
    entries = [*ENTRIES, ("zed", "B AA B", 1.0)]
    expected = all_scores(entries, GRAMS, log_probs_PV, toy.options)["zed a"] + 2.5
    assert found["zed a"].score == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(hotwords={"zebra": 1.0}), "^the word 'zebra' is not in the lexicon; add it first$"),
        (dict(hotwords={"go": math.nan}), "^the bonus of 'go' is nan; a finite number is needed$"),
        (dict(hotwords={"go": math.inf}), "^the bonus of 'go' is inf; a finite number is needed$"),
        (
            dict(hotwords={"go": 1e39}),
            r"^the bonus of 'go' is 1e\+39; at most 1e\+06 can be added or taken$",
        ),
        (
            dict(hotwords={"go": -1e300}),
            r"^the bonus of 'go' is -1e\+300; at most 1e\+06 can be added or taken$",
        ),
        (dict(hotwords={"go": 10**400}), "^the bonus of 'go' is 10+; a finite number is needed$"),
        (dict(hotwords={3: 1.0}), "^3 is not a word"),
        (dict(hotwords={"go\ud800": 1.0}), "is not a word"),
        (dict(words={"go\ud800": [("G",)]}), "is not a word"),
        (dict(hotwords={"go": "much"}), "^the bonus of 'go' is 'much'; a finite number is needed$"),
        (dict(words=["two words"]), "^'two words' is not a word; give words without blanks$"),
        (dict(words=[""]), "^'' is not a word"),
        (dict(words={"zed": [("Z", "XX")]}), "^word 'zed': unknown phoneme 'XX'"),
        (dict(words={"zed": [()]}), "^word 'zed': empty pronunciation"),
        (dict(words={"zed": []}), "^no pronunciation for the word 'zed'"),
        (dict(words={"zed": [("Z", "SIL")]}), "^word 'zed': unknown phoneme 'SIL'"),
    ],
)
def test_words_that_cannot_be_are_refused_in_one_line(decoder, arguments, message):
    with pytest.raises(DecodingError, match=message) as caught:
        decoder.stream(RELEASE, **arguments)
    assert "\n" not in str(caught.value)


def test_a_word_is_pronounced_as_it_is_spelt(decoder):
    """`blik` is in no dictionary."""
    phonemes, *_ = pronounce("blik")
    log_probs_PV = spoken(" ".join(f"{phoneme} BLANK" for phoneme in phonemes))
    stream = decoder.stream(RELEASE, words="blik")
    stream.step(log_probs_PV)
    assert stream.finish()[0].text == "blik"


def test_the_sentences_of_the_shared_model_hold_homophones():
    """What several tests here rest on.

    `see` and `sea` sound alike, and the model prefers `to see`.
    """
    sounds = {}
    for word, phonemes, _ in sentence_entries():
        sounds.setdefault(phonemes, set()).add(word)
    assert {"see", "sea"} <= sounds["S IY"]
    assert SENTENCES.log_prob(["like", "to"], "see") > SENTENCES.log_prob(["like", "to"], "sea") + 1
    assert DecoderOptions().history_words == 0


def test_a_decoder_tells_which_words_its_utterances_can_hold(lm_of):
    decoder = Decoder.from_dir(lm_of(ENTRIES, GRAMS), WIDE)
    assert "c" in decoder
    assert "zanzibar" not in decoder
    decoder.add_words(["zanzibar"])
    decoder.remove_words(["c"])
    assert "zanzibar" in decoder
    assert "c" not in decoder


def test_a_decoder_of_some_words_finds_no_others(lm_of):
    whole = Decoder.from_dir(lm_of(ENTRIES, GRAMS), WIDE)
    log_probs_PV = random_frames(np.random.default_rng(1), 4, 1.0)
    kept = [entry for entry in ENTRIES if entry[0] in "bc"]  # b has a weight
    expected = all_scores(kept, GRAMS, log_probs_PV, whole.options)
    nbest = whole.only(["c", "b", "b"]).decode(log_probs_PV, RELEASE)
    assert {each.text: each.score for each in nbest} == pytest.approx(expected, abs=1e-4)
    assert "a" in whole
    assert "a" not in whole.only(["b"])


def test_a_decoder_of_some_words_pronounces_those_that_the_lexicon_lacks(decoder):
    some = decoder.only(["went", "to", "zanzibar"])
    assert some.decode(posteriors("went to zanzibar", 0.5), RELEASE)[0].text == "went to zanzibar"
    with pytest.raises(LanguageModelError, match="word 'x2': no pronunciation"):
        decoder.only(["x2"])
    with pytest.raises(LanguageModelError, match="no words to restrict the search to"):
        decoder.only([])
