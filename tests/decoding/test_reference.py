"""The search against the enumeration of all token paths."""

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from engine_cases import NEUTRAL
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ngram_oracle import NGram, read_arpa
from path_oracle import enumerated, lm_score

from cortext.decoding.engine_reference import ReferenceEngine
from cortext.decoding.ngram import LanguageModel
from cortext.decoding.options import DecoderOptions
from cortext.text.inventory import RELEASE, Inventory
from cortext.text.lexicon import Lexicon

TOY = Inventory("toy", ("BLANK", "AA", "B", "SIL"))
BARE = Inventory("bare", ("BLANK", "AA", "B"), silence=None)
SPACED = Inventory("spaced", ("BLANK", "AA", "|", "B"), silence=None, boundary="|")
TOY_LM_ORDER = Inventory("toy-lm", ("BLANK", "SIL", "AA", "B"))
UNLIMITED = dict(beam=1e9, lattice_beam=1e9, max_active=10**9, max_arcs=10**9, nbest=10**9)
WIDE = NEUTRAL | UNLIMITED
TEXT = "a b", "a a b c", "b", "c a d", "d a b", "a c", "b b a", "c"


def ngram(order):
    """A small model of the words a, b, c and d."""
    with tempfile.TemporaryDirectory() as directory:
        LanguageModel.build(TEXT, order, Path(directory) / "lm", keep_arpa=True)
        return NGram(read_arpa(Path(directory) / "lm" / "lm.arpa"))


NGRAMS = [ngram(order) for order in (1, 2, 3)]


def engine(lexicon, model):
    return ReferenceEngine(LanguageModel(Path("toy"), model, lexicon, TOY.symbols))


def decode(lexicon, model, log_probs_PV, options, inventory=TOY):
    stream = engine(lexicon, model).start(options, inventory)
    stream.advance(log_probs_PV)
    return stream.finish()


def lexicon_of(entries, inventory=RELEASE):
    lexicon = Lexicon(inventory=inventory)
    for word, pronunciation, weight in entries:
        lexicon.add(word, pronunciation.split(), weight)
    return lexicon


def random_log_probs(generator, n_frames, spread, n_tokens=len(TOY)):
    x_PV = generator.normal(size=(n_frames, n_tokens)) * spread
    return x_PV - np.logaddexp.reduce(x_PV, axis=1, keepdims=True)


pronunciations = st.lists(st.sampled_from(["AA", "B"]), min_size=1, max_size=3).map(" ".join)
lexicons = st.lists(
    st.tuples(st.sampled_from("abcde"), pronunciations, st.sampled_from([1.0, 0.3])),
    min_size=1,
    max_size=7,
)
settings_of_the_search = st.builds(
    DecoderOptions,
    acoustic_scale=st.sampled_from([1.0, 0.4, 0.8]),
    lm_weight=st.sampled_from([1.0, 0.0, 2.5]),
    word_score=st.sampled_from([0.0, 0.7, -1.0]),
    sil_cost=st.sampled_from([0.0, 1.3, 10.0]),
    sil_required=st.booleans(),
    unk_score=st.sampled_from([-10.0, -1.0]),
    blank_penalty=st.sampled_from([1.0, 7.0, 32.0]),
    blank_skip=st.sampled_from([1.0, 0.6]),
    recombine=st.sampled_from(["logadd", "max"]),
    **{name: st.just(value) for name, value in UNLIMITED.items()},
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    inventory=st.sampled_from([TOY, SPACED, BARE]),
    entries=lexicons,
    model=st.sampled_from(NGRAMS),
    options=settings_of_the_search,
    n_frames=st.integers(0, 5),
    seed=st.integers(0, 2**32),
    spread=st.sampled_from([0.5, 3.0]),
    impossible=st.booleans(),
)
def test_a_wide_search_finds_every_sentence_with_its_exact_score(
    inventory, entries, model, options, n_frames, seed, spread, impossible
):
    lexicon = lexicon_of(entries, inventory)
    generator = np.random.default_rng(seed)
    log_probs_PV = random_log_probs(generator, n_frames, spread, len(inventory))
    if impossible and n_frames:
        log_probs_PV[0, 1] = -np.inf
        log_probs_PV -= np.logaddexp.reduce(log_probs_PV, axis=1, keepdims=True)
    expected = enumerated(lexicon, model, log_probs_PV, options, inventory)

    stream = engine(lexicon, model).start(options, inventory)
    stream.advance(log_probs_PV)
    found = {" ".join(history.words()): score for score, history in stream._search.finish()}
    assert found == pytest.approx(expected, abs=1e-9)

    nbest = stream.finish()
    assert {hypothesis.text: hypothesis.score for hypothesis in nbest} == pytest.approx(
        expected, abs=1e-9
    )
    assert len({hypothesis.text for hypothesis in nbest}) == len(nbest)
    assert [each.score for each in nbest] == sorted((each.score for each in nbest), reverse=True)
    for hypothesis in nbest:
        words = tuple(hypothesis.text.split())
        assert hypothesis.lm_score == pytest.approx(lm_score(model, words, options), abs=1e-9)
        assert hypothesis.score == pytest.approx(
            options.acoustic_scale * hypothesis.acoustic_score
            + options.lm_weight * hypothesis.lm_score
            + options.word_score * len(words)
            + hypothesis.sil_score,
            abs=1e-9,
        )
        assert hypothesis.sil_score == 0.0 or inventory.separator is not None
        assert [word.word for word in hypothesis.words] == list(words)
        times = [time for word in hypothesis.words for time in (word.start_ms, word.end_ms)]
        assert times == sorted(times)


def spoken(frames, strength=8.0, inventory=TOY):
    """Log-probabilities that clearly say one token per frame."""
    x_PV = np.zeros((len(frames.split()), len(inventory)))
    x_PV[np.arange(len(x_PV)), [inventory.index[token] for token in frames.split()]] = strength
    return x_PV - np.logaddexp.reduce(x_PV, axis=1, keepdims=True)


def best(frames, lexicon, model=NGRAMS[0], **options):
    return decode(lexicon_of(lexicon), model, spoken(frames), DecoderOptions.of(WIDE | options))[0]


A = [("a", "AA", 1.0)]


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
def test_blanks_repeats_and_silence_follow_the_rules_of_ctc(frames, text):
    assert best(frames, A).text == text


AMBIGUOUS = [("a", "AA", 1.0), ("b", "B", 1.0), ("c", "AA B", 1.0), ("d", "B AA", 1.0)]


def heard(frames, lexicon=AMBIGUOUS, **options):
    """All texts where nothing stands between words, with their scores."""
    found = decode(
        lexicon_of(lexicon, BARE),
        NGRAMS[0],
        spoken(frames, inventory=BARE),
        DecoderOptions.of(WIDE | options),
        BARE,
    )
    return {each.text: each for each in found}


def test_without_a_separator_words_may_be_read_in_several_ways():
    found = heard("AA B AA", recombine="max", lm_weight=0.0)
    clear = 3 * float(spoken("AA", inventory=BARE)[0, 1])
    likeliest = {text for text, each in found.items() if each.score == pytest.approx(clear)}
    assert likeliest == {"a b a", "c a", "a d"}
    by_ngram = max(likeliest, key=NGRAMS[0].sentence)
    assert next(iter(heard("AA B AA", recombine="max"))) == by_ngram


def test_without_a_separator_equal_phonemes_that_meet_need_a_blank():
    once = [("a", "AA", 1.0)]
    assert next(iter(heard("AA AA", once, lm_weight=0.0))) == "a"
    assert next(iter(heard("AA BLANK AA", once, lm_weight=0.0))) == "a a"
    # c and d end and begin with B: "AA B B AA" is not both of them.
    frames = "AA B B AA"
    assert "c d" not in heard(frames, beam=1.0, min_active=1, lm_weight=0.0)
    assert next(iter(heard("AA B BLANK B AA", AMBIGUOUS[2:], lm_weight=0.0))) == "c d"


def test_without_a_separator_words_that_meet_cost_nothing():
    plain = heard("AA B")
    costly = heard("AA B", sil_cost=5.0, sil_required=True)
    assert {text: each.score for text, each in costly.items()} == {
        text: each.score for text, each in plain.items()
    }
    assert all(each.sil_score == 0.0 for each in costly.values())


def test_a_word_may_be_the_beginning_of_another():
    lexicon = [("a", "AA", 1.0), ("b", "AA B", 1.0)]
    assert best("AA B", lexicon, lm_weight=0.1).text == "b"
    assert best("AA SIL", lexicon, lm_weight=0.1).text == "a"
    assert best("AA SIL AA B", lexicon, lm_weight=0.1).text == "a b"


def test_the_ngram_chooses_among_homophones():
    lexicon = [("a", "AA", 1.0), ("b", "B", 1.0), ("d", "B", 1.0)]
    model = NGRAMS[1]
    by_ngram = max(("a b", "a d"), key=model.sentence)
    assert best("AA SIL B", lexicon, model).text == by_ngram
    both = decode(lexicon_of(lexicon), model, spoken("AA SIL B"), DecoderOptions.of(WIDE))
    scores = {each.text: each for each in both}
    assert scores["a b"].acoustic_score == pytest.approx(scores["a d"].acoustic_score)
    assert scores["a b"].score - scores["a d"].score == pytest.approx(
        model.sentence("a b") - model.sentence("a d")
    )


def test_the_weight_of_a_pronunciation_is_part_of_the_acoustic_score():
    weighted, plain = (
        best("AA B", [("a", "AA B", weight)], recombine="max", acoustic_scale=0.5)
        for weight in (0.25, 1.0)
    )
    assert plain.acoustic_score - weighted.acoustic_score == pytest.approx(math.log(4))
    assert plain.score - weighted.score == pytest.approx(0.5 * math.log(4))


def test_words_are_timed_by_the_frames_of_their_phonemes():
    found = best("BLANK AA AA BLANK B BLANK SIL AA", [("a", "AA B", 1.0), ("b", "AA", 1.0)])
    assert [(word.word, word.start_ms, word.end_ms) for word in found.words] == [
        ("a", 80, 400),
        ("b", 560, 640),
    ]


def test_only_boundaries_between_words_without_silence_cost():
    with_cost = best("AA B SIL", [("a", "AA", 1.0), ("b", "B", 1.0)], sil_cost=2.0, recombine="max")
    without = best("AA B SIL", [("a", "AA", 1.0), ("b", "B", 1.0)], recombine="max")
    assert with_cost.text == without.text == "a b"
    assert with_cost.sil_score == -2.0
    assert without.score - with_cost.score == pytest.approx(2.0)
    assert (
        best(
            "AA SIL B", [("a", "AA", 1.0), ("b", "B", 1.0)], sil_cost=2.0, recombine="max"
        ).sil_score
        == 0.0
    )


def test_the_blank_penalty_is_subtracted_as_a_logarithm_per_blank():
    plain, penalised = (
        best("BLANK AA BLANK", A, recombine="max", blank_penalty=p) for p in (1.0, 9.0)
    )
    assert plain.acoustic_score - penalised.acoustic_score == pytest.approx(2 * math.log(9.0))


def test_a_frame_that_is_passed_over_keeps_equal_phonemes_apart():
    sure = spoken("AA BLANK AA", strength=20.0)
    options = DecoderOptions.of(WIDE | dict(blank_skip=0.99))
    assert decode(lexicon_of(A), NGRAMS[0], sure, options)[0].text == "a a"


def test_a_word_that_the_ngram_does_not_know_scores_as_unknown():
    found = best("AA", [("zebra", "AA", 1.0)], unk_score=-3.0)
    assert found.lm_score == pytest.approx(NGRAMS[0].sentence("zebra") - 3.0)


def test_an_unfinished_word_is_dropped():
    options = DecoderOptions.of(NEUTRAL | dict(beam=5.0, min_active=1))
    nbest = decode(
        lexicon_of([("a", "AA", 1.0), ("b", "B AA B", 1.0)]),
        NGRAMS[0],
        spoken("AA SIL B AA"),
        options,
    )
    assert [each.text for each in nbest] == ["a"]
    assert nbest[0].score == pytest.approx(
        dict(enumerated(lexicon_of(A), NGRAMS[0], spoken("AA SIL B AA"), options, TOY))["a"]
    )


def test_impossible_frames_are_survived():
    """The frames say something that no word allows, with certainty."""
    log_probs_PV = np.full((3, len(TOY)), -np.inf)
    log_probs_PV[[0, 1, 2], [2, 1, 2]] = 0.0
    nbest = decode(lexicon_of(A), NGRAMS[0], log_probs_PV, DecoderOptions())
    assert nbest[0].text == "a"
    assert np.isfinite(nbest[0].score)


def test_the_order_of_the_tokens_does_not_matter():
    lexicon = lexicon_of([("a", "AA B", 1.0), ("b", "B", 1.0), ("b", "AA", 0.5)])
    log_probs_PV = random_log_probs(np.random.default_rng(3), 6, 2.0)
    reordered_PV = log_probs_PV[:, TOY_LM_ORDER.order_from(TOY)]
    one = decode(lexicon, NGRAMS[2], log_probs_PV, DecoderOptions.of(WIDE))
    other = decode(lexicon, NGRAMS[2], reordered_PV, DecoderOptions.of(WIDE), TOY_LM_ORDER)
    assert {each.text: each.score for each in one} == pytest.approx(
        {each.text: each.score for each in other}
    )


@settings(max_examples=40)
@given(
    lexicon=lexicons.map(lexicon_of),
    seed=st.integers(0, 2**32),
    beam=st.sampled_from([0.0, 2.0, 6.0]),
    active=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    recombine=st.sampled_from(["logadd", "max"]),
)
def test_a_narrow_search_keeps_to_its_limits_and_scores_exactly(
    lexicon, seed, beam, active, recombine
):
    log_probs_PV = random_log_probs(np.random.default_rng(seed), 5, 1.0)
    narrow = DecoderOptions(
        beam=beam, min_active=min(active), max_active=max(active), nbest=3, recombine=recombine
    )
    expected = enumerated(lexicon, NGRAMS[1], log_probs_PV, narrow, TOY)
    stream = engine(lexicon, NGRAMS[1]).start(narrow, TOY)
    for frame_V in log_probs_PV:
        stream.advance(frame_V[None])
        assert 1 <= len(stream._search._live) <= max(active)
    nbest = stream.finish()
    assert 1 <= len(nbest) <= 3
    assert nbest[0].score >= nbest[-1].score
    for hypothesis in nbest:
        assert hypothesis.score == pytest.approx(expected[hypothesis.text], abs=1e-9)


def test_at_least_min_active_hypotheses_live_whatever_the_beam():
    lexicon = lexicon_of([("a", "AA B", 1.0), ("b", "B", 1.0), ("c", "AA", 1.0)])
    stream = engine(lexicon, NGRAMS[1]).start(DecoderOptions(beam=0.0, min_active=7), TOY)
    stream.advance(random_log_probs(np.random.default_rng(0), 4, 1.0))
    assert len(stream._search._live) == 7


@pytest.mark.parametrize("acoustic_scale", [1.0, 0.5])
def test_alternatives_outside_the_lattice_beam_are_left_out(acoustic_scale):
    lexicon = lexicon_of([("a", "AA B", 1.0), ("b", "B", 1.0), ("c", "AA", 1.0)])
    log_probs_PV = random_log_probs(np.random.default_rng(0), 4, 1.0)

    def found(**options):
        options = DecoderOptions.of(WIDE | dict(acoustic_scale=acoustic_scale) | options)
        return list(decode(lexicon, NGRAMS[1], log_probs_PV, options))

    every, near = found(), found(lattice_beam=2.0)
    assert 1 < len(near) < len(every)
    least = every[0].score - 2.0 * acoustic_scale
    assert near == [each for each in every if each.score >= least]
    assert found(max_arcs=3) == every[:3]
