"""The search over other tokens than the published: other separators, none, many, and characters.

Expected scores come from the oracle.
"""

import itertools
import json

import numpy as np
import pytest
from engine_cases import UNLIMITED, WIDE, Grams, write_lm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search_oracle import Oracle, all_scores

from cortext.decoding import Decoder, DecoderOptions
from cortext.decoding.nbest import Partial
from cortext.decoding.open_vocabulary import TokenText
from cortext.errors import DecodingError, LanguageModelError, TextError
from cortext.text.inventory import CHARACTERS, LM, RELEASE, Inventory
from cortext.text.language import get_language

SILENT = Inventory("silent", ("_", "#", "a", "b"), "_", "#")
SPACED = Inventory("spaced", ("_", "a", "|", "b"), "_", None, "|", "character")
BARE = Inventory("bare", ("_", "a", "b"), "_", None)
GRAMS = [Grams.random(order, seed=order, words="wxyz") for order in (1, 2, 3)]
TOKEN_GRAMS = [Grams.random(order, seed=order, words="ab|") for order in (1, 2, 4)]
TOKEN_ENTRIES = [("a", "a", 1.0), ("|", "|", 1.0), ("b", "b", 1.0)]

entries_of_lexicons = st.lists(
    st.tuples(
        st.sampled_from("wxyzu"),  # the n-grams do not know u
        st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map(" ".join),
        st.sampled_from([1.0, 0.3]),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda entry: entry[:2],
).filter(lambda entries: any(word != "u" for word, _, _ in entries))
options_of_the_search = st.builds(
    DecoderOptions,
    acoustic_scale=st.sampled_from([1.0, 0.4]),
    lm_weight=st.sampled_from([1.0, 2.5]),
    word_score=st.sampled_from([0.7, -1.0]),
    sil_cost=st.sampled_from([0.0, 1.3, 10.0]),
    sil_required=st.booleans(),
    blank_penalty=st.sampled_from([1.0, 32.0]),
    blank_skip=st.sampled_from([1.0, 0.6]),
    recombine=st.sampled_from(["logadd", "max"]),
    **{name: st.just(value) for name, value in UNLIMITED.items()},
)
few = settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def lm_of(tmp_path_factory):
    """Makes language-model directories of any inventory."""
    root, numbers = tmp_path_factory.mktemp("lms"), itertools.count()
    return lambda *given: write_lm(root / str(next(numbers)), *given)


def random_frames(seed, n_frames, spread, inventory):
    x_PV = np.random.default_rng(seed).normal(size=(n_frames, len(inventory))) * spread
    return (x_PV - np.logaddexp.reduce(x_PV, axis=1, keepdims=True)).astype(np.float32)


def spoken(tokens, inventory, strength=12.0):
    """Log-probabilities that clearly say one token per frame."""
    symbols = tokens.split()
    x_PV = np.zeros((len(symbols), len(inventory)))
    x_PV[np.arange(len(symbols)), [inventory.index[symbol] for symbol in symbols]] = strength
    return (x_PV - np.logaddexp.reduce(x_PV, axis=1, keepdims=True)).astype(np.float32)


@few
@given(
    inventory=st.sampled_from([SILENT, SPACED, BARE]),
    entries=entries_of_lexicons,
    grams=st.sampled_from(GRAMS),
    options=options_of_the_search,
    n_frames=st.integers(0, 5),
    seed=st.integers(0, 2**32),
)
def test_a_wide_search_finds_every_sentence_with_its_exact_score(
    lm_of, inventory, entries, grams, options, n_frames, seed
):
    log_probs_PV = random_frames(seed, n_frames, 2.0, inventory)
    expected = all_scores(entries, grams, log_probs_PV, options, inventory)
    decoder = Decoder.from_dir(lm_of(entries, grams, inventory), options)
    nbest = decoder.decode(log_probs_PV, inventory)
    assert {each.text: each.score for each in nbest} == pytest.approx(expected, abs=1e-4)
    for found in nbest[:5]:
        assert found.score == pytest.approx(
            options.acoustic_scale * found.acoustic_score
            + options.lm_weight * found.lm_score
            + options.word_score * len(found.words)
            + found.sil_score,
            abs=1e-9,
        )
        given_score = decoder.score(log_probs_PV, inventory, found.text)
        assert given_score.score == pytest.approx(expected[found.text], abs=1e-4)
        assert found.sil_score == 0.0 or inventory.separator


@few
@given(
    inventory=st.sampled_from([SPACED, BARE]),
    entries=entries_of_lexicons,
    grams=st.sampled_from(GRAMS),
    options=options_of_the_search,
    beam=st.sampled_from([3.0, 15.0]),
    n_frames=st.integers(5, 40),
    seed=st.integers(0, 2**32),
    cuts=st.lists(st.integers(1, 7), min_size=1, max_size=6),
    unit=st.sampled_from(["word", "character"]),
)
def test_any_chunking_gives_the_same_bit_for_bit(
    lm_of, inventory, entries, grams, options, beam, n_frames, seed, cuts, unit
):
    if unit == "character":
        inventory, entries, grams = SPACED, TOKEN_ENTRIES, TOKEN_GRAMS[2]
    options = options.changed(
        dict(beam=beam, max_active=300, lattice_beam=8.0, max_arcs=500, nbest=5)
    )
    log_probs_PV = random_frames(seed, n_frames, 2.0, inventory)
    decoder = Decoder.from_dir(lm_of(entries, grams, inventory, unit), options)
    whole = decoder.decode(log_probs_PV, inventory)
    stream = decoder.stream(inventory)
    at = 0
    for cut in itertools.cycle(cuts):
        partial = stream.step(log_probs_PV[at : at + cut])
        at += cut
        for text in whole.texts:
            assert text.split()[: len(partial.stable.split())] == partial.stable.split()
        if at >= n_frames:
            break
    chunked = stream.finish()
    assert chunked == whole
    assert repr(list(chunked)) == repr(list(whole))


@pytest.mark.parametrize("seed", range(6))
def test_the_best_sentence_is_the_oracles_with_the_usual_beam(lm_of, seed):
    entries = [("w", "a", 1.0), ("x", "b", 1.0), ("y", "a b", 1.0), ("z", "b b a", 0.5)]
    for words, grams, inventory, unit in (
        (entries, GRAMS[2], BARE, "word"),
        (TOKEN_ENTRIES, TOKEN_GRAMS[2], SPACED, "character"),
    ):
        log_probs_PV = random_frames(seed, 30, 3.0, inventory)
        decoder = Decoder.from_dir(lm_of(words, grams, inventory, unit), dict(nbest=5))
        best = decoder.decode(log_probs_PV, inventory)[0]
        tokens = inventory if unit == "word" else inventory.without_separator
        expected = Oracle(words, grams, decoder.options, tokens).search(log_probs_PV)[0]
        assert best.text == (expected.text if unit == "word" else text_of(expected.text))
        assert best.score == pytest.approx(expected.score, abs=1e-4)


def text_of(sentence):
    """The text of a sentence of tokens."""
    return " ".join(sentence.replace(" ", "").replace("|", " ").split())


@few
@given(
    grams=st.sampled_from(TOKEN_GRAMS),
    options=options_of_the_search,
    n_frames=st.integers(0, 5),
    seed=st.integers(0, 2**32),
)
def test_an_open_vocabulary_has_the_best_sentence_of_tokens_for_each_text(
    lm_of, grams, options, n_frames, seed
):
    log_probs_PV = random_frames(seed, n_frames, 2.0, SPACED)
    tokens = SPACED.without_separator
    of_tokens = all_scores(TOKEN_ENTRIES, grams, log_probs_PV, options, tokens)
    expected = {}
    for sentence, score in of_tokens.items():
        text = text_of(sentence)
        expected[text] = max(score, expected.get(text, -np.inf))
    directory = lm_of(TOKEN_ENTRIES, grams, SPACED, "character")
    decoder = Decoder.from_dir(directory, options)
    nbest = decoder.decode(log_probs_PV, SPACED)
    assert {each.text: each.score for each in nbest} == pytest.approx(expected, abs=1e-4)
    assert len(set(nbest.texts)) == len(nbest)
    for found in nbest[:5]:
        assert " ".join(word.word for word in found.words) == found.text
        assert found.score == pytest.approx(
            options.acoustic_scale * found.acoustic_score
            + options.lm_weight * found.lm_score
            + options.word_score * len(found.words),
            abs=1e-9,
        )
        sentence = " ".join("|".join(found.text.split()))
        assert sentence.replace(" ", "").replace("|", " ") == found.text
        score = decoder.score(log_probs_PV, SPACED, found.text)
        assert score.score == pytest.approx(of_tokens[sentence], abs=1e-4)
        assert score.text == found.text
        assert score.lm_score == pytest.approx(
            grams.sentence(sentence.split(), options.unk_score), abs=1e-5
        )


@pytest.fixture(scope="module")
def spelling(lm_of):
    """A decoder of characters whose n-gram finds all of them alike."""
    words = {(word,): np.log(0.25) for word in ("a", "b", "|", "</s>")}
    grams = Grams(1, words | {("<unk>",): -9.0, ("<s>",): -99.0}, {})
    directory = lm_of(TOKEN_ENTRIES, grams, SPACED, "character")
    return Decoder.from_dir(directory, WIDE | dict(nbest=20, recombine="max", beam=25.0))


def test_characters_are_merged_to_words_with_their_times(spelling):
    best = spelling.decode(spoken("_ a a b | | _ | b _ b _", SPACED), SPACED)[0]
    assert best.text == "ab bb"
    assert [(word.word, word.start_ms, word.end_ms) for word in best.words] == [
        ("ab", 80, 320),
        ("bb", 640, 880),
    ]


def test_boundaries_at_the_edges_count_nothing(spelling):
    assert spelling.decode(spoken("| a _ | _", SPACED), SPACED)[0].text == "a"
    assert spelling.decode(spoken("| _ | _", SPACED), SPACED)[0].text == ""
    assert spelling.decode(spoken("| _ |", SPACED), SPACED)[0].words == ()


def test_a_partial_result_holds_whole_words_and_the_letters_after_them(spelling):
    stream = spelling.with_options(beam=6.0, lattice_beam=4.0, min_active=1).stream(SPACED)
    heard = [stream.step(frame_V[None]) for frame_V in spoken("a b | b a | _", SPACED)]
    assert [each.text for each in heard] == ["a", "ab", "ab", "ab b", "ab ba", "ab ba", "ab ba"]
    assert heard[1].stable == ""
    assert heard[3].stable in ("", "ab")
    assert heard[-1].stable in ("ab", "ab ba")
    assert stream.finish()[0].text == "ab ba"


def test_characters_that_are_words_stay_apart():
    signs = Inventory("signs", ("_", "\u4f60", "\u597d"), "_", None, unit="character")
    chinese = TokenText(signs, get_language("zh"))
    assert chinese.text("\u4f60\u597d") == "\u4f60 \u597d"
    assert chinese.tokens("\u4f60 \u597d") == ["\u4f60", "\u597d"]
    assert chinese.partial(["\u4f60"], ["\u597d"]) == Partial("\u4f60", "\u597d")
    latin = TokenText(BARE, get_language("en"))
    assert latin.partial(["a"], ["b"]) == Partial("", "ab")


def test_words_cannot_be_favoured_added_or_removed_in_an_open_vocabulary(spelling):
    frames_PV = spoken("a", SPACED)
    for attempt in (
        lambda: spelling.decode(frames_PV, SPACED, hotwords={"ab": 1.0}),
        lambda: spelling.stream(SPACED, hotwords={"a": 1.0}),
        lambda: spelling.stream(SPACED, words=["ab"]),
        lambda: spelling.add_words({"ab": [("a", "b")]}),
        lambda: spelling.remove_words(["a"]),
    ):
        with pytest.raises(DecodingError, match="the language model is of characters") as caught:
            attempt()
        assert "\n" not in str(caught.value)
    with pytest.raises(LanguageModelError, match="the vocabulary is open: it has no words"):
        spelling.only(["ab"])
    with pytest.raises(DecodingError, match="a hook and a large model in fusion score words"):
        spelling.stream(SPACED, hook=lambda batch: None)
    assert spelling.decode(frames_PV, SPACED, hotwords={})[0].text == "a"


def test_a_sentence_that_cannot_be_spelt_is_refused_in_one_line(spelling):
    with pytest.raises(DecodingError, match="has no token for 'c' of 'abc'"):
        spelling.score(spoken("a", SPACED), SPACED, "abc")
    with pytest.raises(DecodingError, match="the sentence 'ab b' does not fit into 1 frames"):
        spelling.score(spoken("a", SPACED), SPACED, "ab b")
    assert "ab" in spelling
    assert "abc" not in spelling
    assert "a b" not in spelling


def test_a_given_sentence_is_read_in_the_language_of_the_model(lm_of):
    letters = Inventory("letters", ("_", "s", "\u00ed", "|"), "_", None, "|")
    entries = [("s\u00ed", "s \u00ed", 1.0), ("w", "s s", 1.0)]  # the n-gram knows w
    directory = lm_of(entries, GRAMS[0], letters)
    facts = json.loads((directory / "lm.json").read_text())
    (directory / "lm.json").write_text(json.dumps(facts | {"language": "es"}))
    decoder = Decoder.from_dir(directory)
    frames_PV = spoken("s \u00ed", letters)
    assert decoder.score(frames_PV, letters, "Si\u0301").text == "s\u00ed"
    with pytest.raises(TextError, match="language 'es' would lose \u00e0"):
        decoder.score(frames_PV, letters, "s\u00e0")


def many_tokens(n_tokens, separator):
    """An inventory whose last tokens are the three that tests speak, beyond any 64."""
    others = [f"s{number}" for number in range(n_tokens - (4 if separator else 3))]
    symbols = ("_", *others, *(["#"] if separator else []), "a", "b")
    return Inventory(f"many{n_tokens}", symbols, "_", "#" if separator else None)


@few
@given(
    separator=st.booleans(),
    n_tokens=st.sampled_from([60, 67, 130, 250]),
    entries=entries_of_lexicons,
    grams=st.sampled_from(GRAMS),
    options=options_of_the_search,
    n_frames=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_up_to_250_tokens_are_searched(
    lm_of, separator, n_tokens, entries, grams, options, n_frames, seed
):
    few_tokens = SILENT if separator else BARE
    inventory = many_tokens(n_tokens, separator)
    small_PV = random_frames(seed, n_frames, 2.0, few_tokens)
    expected = all_scores(entries, grams, small_PV, options, few_tokens)
    log_probs_PV = np.full((n_frames, n_tokens), -np.inf, np.float32)
    log_probs_PV[:, [inventory.index[symbol] for symbol in few_tokens.symbols]] = small_PV
    nbest = Decoder.from_dir(lm_of(entries, grams, inventory), options).decode(
        log_probs_PV, inventory
    )
    assert {each.text: each.score for each in nbest} == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_a_narrow_search_does_not_hang_on_the_number_of_other_tokens(lm_of, seed):
    """With more than 64 tokens the tree is searched child by child, and gives the same bits."""
    generator = np.random.default_rng(seed)
    sounds = [f"s{number}" for number in range(55)]
    entries = [
        (f"w{number}", " ".join(generator.choice(sounds, generator.integers(1, 6))), 1.0)
        for number in range(400)
    ]
    texts = [" ".join(f"w{n}" for n in generator.integers(0, 400, 6)) for _ in range(60)]
    grams = Grams.counted([*texts, " ".join(word for word, *_ in entries)], 2)
    found = []
    x_PV = generator.normal(size=(50, 57)) * 3
    x_PV -= np.logaddexp.reduce(x_PV, axis=1, keepdims=True)
    for more in ([], [f"t{number}" for number in range(120)]):
        inventory = Inventory("tokens", ("_", "#", *sounds, *more), "_", "#")
        log_probs_PV = np.full((50, len(inventory)), -np.inf, np.float32)
        log_probs_PV[:, :57] = x_PV
        decoder = Decoder.from_dir(lm_of(entries, grams, inventory))
        found.append(repr(list(decoder.decode(log_probs_PV, inventory))))
    assert found[0] == found[1]
    assert found[0].count("w") > 20


def test_another_inventory_is_refused_in_one_line(lm_of):
    decoder = Decoder.from_dir(lm_of([("w", "a b", 1.0)], GRAMS[0], SILENT))
    assert (decoder.inventory, decoder.lm.unit, decoder.language.name) == (SILENT, "word", "en")
    permuted = Inventory("permuted", ("_", "#", "b", "a"), "_", "#")
    frames_PV = spoken("a b", SILENT)
    for attempt in (
        lambda: decoder.decode(frames_PV, permuted),
        lambda: decoder.decode_batch([frames_PV], permuted),
        lambda: decoder.search_batch([frames_PV], permuted),
        lambda: decoder.stream(permuted),
        lambda: decoder.score(frames_PV, permuted, "w"),
    ):
        said = "the language model and the log-probabilities differ: .* token 2 is a, not b; build"
        with pytest.raises(LanguageModelError, match=said) as caught:
            attempt()
        assert "\n" not in str(caught.value)
    with pytest.raises(LanguageModelError, match="the blank is _, not BLANK"):
        decoder.decode(frames_PV, RELEASE)
    published = Decoder.from_dir(lm_of([("w", "AA", 1.0)], GRAMS[0]))
    for inventory in (RELEASE, LM):
        assert published.decode(spoken("AA", inventory), inventory)[0].text == "w"
    with pytest.raises(LanguageModelError, match="the tokens are phonemes, not characters"):
        published.stream(CHARACTERS)


def test_a_second_language_model_is_of_the_same_tokens_and_unit(lm_of):
    words = lm_of([("w", "a b", 1.0)], GRAMS[0], SPACED)
    characters = lm_of(TOKEN_ENTRIES, TOKEN_GRAMS[0], SPACED, "character")
    silent = lm_of([("w", "a b", 1.0)], GRAMS[0], SILENT)
    assert Decoder.from_dir(characters, second_lm=characters).lm.unit == "character"
    with pytest.raises(LanguageModelError, match="has words and the second one characters; take"):
        Decoder.from_dir(words, second_lm=characters)
    with pytest.raises(LanguageModelError, match="the language model and the second one differ"):
        Decoder.from_dir(words, second_lm=silent)


def test_label_priors_are_those_of_the_inventory(lm_of):
    directory = lm_of([("w", "a b", 1.0)], GRAMS[0], SILENT)
    decoder = Decoder.from_dir(directory, dict(label_priors={"a": 0.5, "#": 0.1}))
    plain = Decoder.from_dir(directory)
    frames_PV = spoken("a b", SILENT)
    more = decoder.score(frames_PV, SILENT, "w").acoustic_score
    less = plain.score(frames_PV, SILENT, "w").acoustic_score
    assert more - less == pytest.approx(np.log(2), abs=1e-3)
    said = "label_priors names an unknown token 'AA'; "
    with pytest.raises(DecodingError, match=said):
        Decoder.from_dir(directory, dict(label_priors={"AA": 0.5}))
    with pytest.raises(DecodingError, match=said):
        decoder.with_options(label_priors={"AA": 0.5})
    with pytest.raises(DecodingError, match=said):
        decoder.stream(SILENT).set_options(label_priors={"AA": 0.5})


def test_added_words_are_pronounced_in_the_tokens_of_the_language_model(lm_of):
    decoder = Decoder.from_dir(lm_of([("w", "a b", 1.0)], GRAMS[0], SILENT), dict(unk_score=0.0))
    decoder.add_words({"new": [("b", "a")]})
    assert decoder.decode(spoken("b a #", SILENT), SILENT)[0].text == "new"
    with pytest.raises(DecodingError, match="word 'x': unknown phoneme 'AA'"):
        decoder.add_words({"x": [("AA",)]})
    with pytest.raises(DecodingError, match="no pronunciation of 'unheard'") as caught:
        decoder.add_words(["unheard"])
    assert "\n" not in str(caught.value)
    decoder.add_words(["w"])  # the lexicon knows it
    spelt = Decoder.from_dir(lm_of([("w", "a b", 1.0)], GRAMS[0], SPACED), dict(unk_score=0.0))
    spelt.add_words(["bab"])
    assert spelt.decode(spoken("b a b | a b", SPACED), SPACED)[0].text == "bab w"
    with pytest.raises(DecodingError, match="no token for 'c' of 'cab'"):
        spelt.add_words(["cab"])
