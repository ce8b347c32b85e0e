"""Python that takes part in the search.

A hook sees the live hypotheses and adds to their scores.
"""

import numpy as np
import pytest
from engine_cases import (
    TEXTS,
    WIDE,
    Grams,
    posteriors,
    random_frames,
    sentence_entries,
    spoken,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search_oracle import all_scores

from cortext.decoding import Decoder
from cortext.errors import DecodingError
from cortext.text.inventory import RELEASE

FIRST, SECOND = Grams.random(3, seed=1), Grams.random(3, seed=2)
WEIGHT = 0.7
ENTRIES = [("a", "AA", 1.0), ("b", "B", 0.3), ("c", "AA B", 1.0), ("d", "B", 1.0)]
seldom = settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def wanted(words, is_last):
    """What the second model adds to a beginning of a sentence, or to a whole one."""
    said = ["<s>", *words, *(["</s>"] if is_last else [])]
    return WEIGHT * sum(SECOND.log_prob(said[:place], said[place]) for place in range(1, len(said)))


def second_model(batch):
    """A hook that brings each hypothesis to what the second model adds to its words."""
    scores = [wanted(words, batch.is_last) for words in batch.words]
    return (np.array(scores) - batch.added).astype(np.float32)


def decode(decoder, log_probs_PV, chunk=3, **arguments):
    stream = decoder.stream(RELEASE, **arguments)
    for first in range(0, len(log_probs_PV), chunk):
        stream.step(log_probs_PV[first : first + chunk])
    return stream.finish()


@pytest.fixture(scope="module")
def decoders(lm_of):
    """With the first model alone, and with the interpolated one."""
    return [
        Decoder.from_dir(lm_of(ENTRIES, grams), WIDE | dict(history_words=10))
        for grams in (FIRST, FIRST.plus(SECOND, WEIGHT))
    ]


@seldom
@given(
    seed=st.integers(0, 2**32),
    n_frames=st.integers(0, 5),
    chunk=st.integers(1, 5),
    recombine=st.sampled_from(["logadd", "max"]),
    lm_weight=st.sampled_from([1.0, 0.5]),
)
def test_a_hook_with_a_second_ngram_equals_the_interpolated_model(
    decoders, seed, n_frames, chunk, recombine, lm_weight
):
    changes = dict(recombine=recombine, lm_weight=lm_weight)
    first, both = (decoder.with_options(**changes) for decoder in decoders)
    log_probs_PV = random_frames(np.random.default_rng(seed), n_frames, 1.0)
    mixed = FIRST.plus(SECOND, WEIGHT / lm_weight)
    expected = all_scores(ENTRIES, mixed, log_probs_PV, first.options)
    nbest = decode(first, log_probs_PV, chunk, hook=second_model)
    assert {each.text: each.score for each in nbest} == pytest.approx(expected, abs=1e-4)
    for each in nbest:
        assert each.lm_score == pytest.approx(FIRST.sentence(each.text.split()), abs=1e-5)
        assert each.llm_score == pytest.approx(wanted(each.text.split(), is_last=True), abs=1e-4)
        assert each.score == pytest.approx(
            each.acoustic_score + lm_weight * each.lm_score + each.llm_score, abs=1e-9
        )
    if lm_weight == 1.0:
        other = both.decode(log_probs_PV, RELEASE)
        assert [each.score for each in nbest] == pytest.approx(
            [each.score for each in other], abs=1e-4
        )
        if len(other) > 1 and other[0].score - other[1].score > 1e-4:
            assert nbest[0].text == other[0].text


@pytest.mark.parametrize("text", TEXTS[:3])
def test_usual_beams_with_a_hook_equal_the_interpolated_model(lm_of, text):
    """Both models hold the same n-grams, with frequencies of different texts."""
    plain = Grams.counted(TEXTS, 3)
    generator = np.random.default_rng(5)
    other = Grams(
        3,
        {
            gram: value + float(generator.normal()) * 0.5 - 1
            for gram, value in plain.log_probs.items()
        },
        {
            gram: value + float(generator.normal()) * 0.5 - 1
            for gram, value in plain.backoffs.items()
        },
    )

    def hook(batch):
        said = [["<s>", *words, *(["</s>"] if batch.is_last else [])] for words in batch.words]
        scores = [
            sum(other.log_prob(each[:n], each[n]) for n in range(1, len(each))) for each in said
        ]
        return (WEIGHT * np.array(scores) - batch.added).astype(np.float32)

    log_probs_PV = posteriors(text, 1.5)
    options = dict(history_words=8, beam=25.0, max_active=2000)
    found = decode(
        Decoder.from_dir(lm_of(sentence_entries(), plain), options), log_probs_PV, hook=hook
    )
    mixed = Decoder.from_dir(lm_of(sentence_entries(), plain.plus(other, WEIGHT)), options)
    expected = mixed.decode(log_probs_PV, RELEASE)
    assert found[0].text == expected[0].text
    assert found[0].score == pytest.approx(expected[0].score, abs=1e-4)


def test_scores_of_beginnings_are_handed_on_to_their_continuations(decoders):
    """A hook that adds what the newest word brings, once for each hypothesis that it has not
    seen.
    """
    first, _ = decoders
    log_probs_PV = random_frames(np.random.default_rng(4), 5, 1.0)
    seen = set()

    def hook(batch):
        scores = np.zeros(len(batch.ids), dtype=np.float32)
        for row, (number, words) in enumerate(zip(batch.ids, batch.words, strict=True)):
            if number not in seen and words:
                scores[row] = WEIGHT * SECOND.log_prob(["<s>", *words[:-1]], words[-1])
            if batch.is_last:
                scores[row] += WEIGHT * SECOND.log_prob(["<s>", *words], "</s>")
            seen.add(number)
        return scores

    expected = all_scores(ENTRIES, FIRST.plus(SECOND, WEIGHT), log_probs_PV, first.options)
    nbest = decode(first, log_probs_PV, hook=hook)
    assert {each.text: each.score for each in nbest} == pytest.approx(expected, abs=1e-4)


def test_scores_of_beginnings_reach_continuations_that_were_dropped_before(lm_of):
    """`a b` is tried in the second frame and dropped; then `a` is given 2; then `a b` is said.

    By its unigram `b` would have been within the beam in the second frame; after `a` it is not.
    """
    unigrams = {("<unk>",): -3.0, ("<s>",): -99.0, ("</s>",): -1.0, ("a",): -1.0, ("b",): -1.0}
    entries = [("a", "AA", 1.0), ("b", "B", 1.0)]
    directory = lm_of(entries, Grams(2, unigrams | {("a", "b"): -6.0}, {("a",): 0.0}))
    decoder = Decoder.from_dir(
        directory, dict(history_words=4, beam=10.0, min_active=1, blank_penalty=1.0)
    )
    seen = []

    def hook(batch):
        seen.append(dict(zip(batch.words, batch.added.tolist(), strict=True)))
        return np.array(
            [2.0 * (words == ("a",) and batch.frame == 2) for words in batch.words],
            dtype=np.float32,
        )

    nbest = decode(decoder, spoken("AA SIL SIL B SIL"), hook=hook)
    assert all(("a",) in batch for batch in seen[:3])
    assert not any(("a", "b") in batch for batch in seen[:3])
    assert seen[3]["a", "b"] == 2.0
    assert {each.text: each.llm_score for each in nbest}["a b"] == 2.0


def test_a_batch_describes_the_live_hypotheses(decoders):
    first, _ = decoders
    first = first.with_options(recombine="max", lm_weight=0.5, word_score=0.25)
    log_probs_PV = random_frames(np.random.default_rng(7), 5, 1.0)
    words_of, batches = {}, []

    def hook(batch):
        n_hypotheses = len(batch.ids)
        assert batch.ids.dtype == batch.parent_ids.dtype == np.uint32
        assert batch.acoustic.dtype == batch.lm.dtype == batch.added.dtype == np.float32
        for each in (batch.parent_ids, batch.words, batch.acoustic, batch.lm, batch.added):
            assert len(each) == n_hypotheses
        assert len(set(batch.ids.tolist())) == n_hypotheses
        for number, parent, words in zip(
            batch.ids.tolist(), batch.parent_ids.tolist(), batch.words, strict=True
        ):
            assert words_of.setdefault(number, words) == words
            assert words_of[parent] == words[:-1] if words else number == parent == 0
        batches.append(batch)

    nbest = decode(first, log_probs_PV, chunk=5, hook=hook)
    assert [(batch.frame, batch.is_last) for batch in batches] == [
        *((frame, False) for frame in range(1, 6)),
        (5, True),
    ]
    last = batches[-1]
    for words, acoustic, lm in zip(last.words, last.acoustic, last.lm, strict=True):
        said = ["<s>", *words]
        expected = sum(FIRST.log_prob(said[:place], said[place]) for place in range(1, len(said)))
        assert lm == pytest.approx(expected, abs=1e-4)
        # The best path of a hypothesis may be within one more word, so the best sentence is a bound
        # from below.
        (sentence,) = [each for each in nbest if tuple(each.text.split()) == words]
        assert acoustic >= sentence.acoustic_score - 1e-3
    assert {" ".join(words) for words in last.words} == set(nbest.texts)
    assert all(each.llm_score == 0.0 for each in nbest)
    assert not np.any(last.added)


def test_what_was_added_is_reported_again(decoders):
    first, _ = decoders
    added = []

    def hook(batch):
        added.append(dict(zip(batch.words, batch.added.tolist(), strict=True)))
        return np.array([1.5 if words == () else 0.0 for words in batch.words], dtype=np.float32)

    nbest = decode(first, spoken("BLANK BLANK"), hook=hook)
    assert [each[()] for each in added] == [0.0, 1.5, 3.0]
    assert nbest[0].llm_score == 4.5


@pytest.mark.parametrize("options", [dict(), dict(history_words=3), dict(blank_skip=0.9)])
@pytest.mark.parametrize("every_frames", [1, 4])
def test_a_hook_that_adds_nothing_changes_nothing(sentence_lm, options, every_frames):
    decoder = Decoder.from_dir(sentence_lm, options)
    log_probs_PV = posteriors(TEXTS[1], 2.0)
    plain = decoder.decode(log_probs_PV, RELEASE)
    for hook in (lambda batch: None, lambda batch: np.zeros(len(batch.ids), dtype=np.float32)):
        nbest = decode(decoder, log_probs_PV, 5, hook=hook, every_frames=every_frames)
        assert [(each.text, each.score, each.words) for each in nbest] == [
            (each.text, each.score, each.words) for each in plain
        ]
        assert all(each.llm_score == 0.0 for each in nbest)
    assert all(each.llm_score is None for each in plain)


@pytest.mark.parametrize("chunk", [1, 3, 7, 1000])
def test_a_hook_is_called_after_the_same_frames_in_any_chunking(sentence_lm, chunk):
    log_probs_PV = posteriors(TEXTS[0], 1.0)
    decoder, frames = Decoder.from_dir(sentence_lm, dict(history_words=2)), []

    def hook(batch):
        frames.append((batch.frame, batch.is_last))
        return np.array([-0.1 * len(words) for words in batch.words], dtype=np.float32)

    nbest = decode(decoder, log_probs_PV, chunk, hook=hook, every_frames=4)
    last = len(log_probs_PV)
    assert frames == [*((frame, False) for frame in range(4, last + 1, 4)), (last, True)]
    assert nbest == decode(
        decoder, log_probs_PV, last, hook=lambda batch: hook(batch), every_frames=4
    )


def test_scores_reach_the_search(sentence_lm):
    """A word that the hook hates is not said, though the frames and the n-gram want it."""
    decoder = Decoder.from_dir(sentence_lm, dict(history_words=3))
    log_probs_PV = posteriors("are you there", 0.5)

    def hook(batch):
        hated = [-20.0 * ("there" in words) for words in batch.words]
        return (np.array(hated) - batch.added).astype(np.float32)

    assert decoder.decode(log_probs_PV, RELEASE)[0].text == "are you there"
    assert decode(decoder, log_probs_PV, hook=hook)[0].text == "are you their"


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda n: [0.0] * n, r"^the hook returned list; float32 \[\d+\] or None is needed$"),
        (
            lambda n: np.zeros(n),
            r"^the hook returned float64 \[\d+\]; float32 \[\d+\] or None is needed$",
        ),
        (
            lambda n: np.zeros(n + 1, dtype=np.float32),
            r"^the hook returned float32 \[\d+\]; float32 \[\d+\] or None",
        ),
        (
            lambda n: np.zeros((n, 1), dtype=np.float32),
            r"^the hook returned float32 \[\d+, 1\]; float32 \[\d+\] or",
        ),
        (
            lambda n: np.full(n, np.nan, dtype=np.float32),
            "^the hook returned scores that are not finite",
        ),
        (
            lambda n: np.full(n, -np.inf, dtype=np.float32),
            "^the hook returned scores that are not finite",
        ),
        (
            lambda n: np.full(n, 3e38, dtype=np.float32),
            r"^the hook returned a score beyond 1e\+06$",
        ),
    ],
)
def test_what_is_no_scores_is_refused_by_name(sentence_lm, returned, message):
    stream = Decoder.from_dir(sentence_lm).stream(
        RELEASE, hook=lambda batch: returned(len(batch.ids))
    )
    with pytest.raises(DecodingError, match=message) as caught:
        stream.step(posteriors("go there"))
    assert "\n" not in str(caught.value)


def test_scores_need_not_be_contiguous(sentence_lm):
    decoder, log_probs_PV = Decoder.from_dir(sentence_lm), posteriors("go there")
    flat, strided = (
        decode(
            decoder,
            log_probs_PV,
            hook=lambda batch, step=step: np.ones(step * len(batch.ids), np.float32)[::step],
        )
        for step in (1, 2)
    )
    assert flat == strided
    assert flat[0].llm_score == len(log_probs_PV) + 1


def test_an_exception_of_a_hook_comes_through_and_the_stream_lives_on(sentence_lm):
    decoder, log_probs_PV = Decoder.from_dir(sentence_lm), posteriors("are you there", 0.5)
    fails = {10}

    def hook(batch):
        if batch.frame in fails:
            fails.clear()
            raise ZeroDivisionError("of the hook")

    stream = decoder.stream(RELEASE, hook=hook)
    with pytest.raises(ZeroDivisionError, match="of the hook"):
        stream.step(log_probs_PV)
    stream.step(log_probs_PV[10:])  # the frames up to the hook's are in
    nbest, plain = stream.finish(), decoder.decode(log_probs_PV, RELEASE)
    assert [(each.text, each.score) for each in nbest] == [
        (each.text, each.score) for each in plain
    ]


def test_hooks_need_a_frame_count_of_at_least_one(sentence_lm):
    for wrong in (0, -1, 2.5, "two"):
        with pytest.raises(
            DecodingError,
            match=f"^every_frames is {wrong!r}; a whole number of at least 1 is needed$",
        ):
            Decoder.from_dir(sentence_lm).stream(
                RELEASE, hook=lambda batch: None, every_frames=wrong
            )


def test_a_hook_cannot_step_or_finish_its_own_stream(sentence_lm):
    """A refused answer changes nothing, and the stream continues."""
    decoder, log_probs_PV, refused = Decoder.from_dir(sentence_lm), posteriors("go there"), []

    def hook(batch):
        for misuse in (lambda: stream.step(log_probs_PV), stream.finish):
            with pytest.raises(
                DecodingError, match=r"^the stream is in use by its hook; "
            ) as caught:
                misuse()
            refused.append(caught.value)

    stream = decoder.stream(RELEASE, hook=hook, every_frames=5)
    stream.step(log_probs_PV)
    nbest = stream.finish()
    assert len(refused) == 2 * (len(log_probs_PV) // 5 + 1)
    assert [(each.text, each.score) for each in nbest] == [
        (each.text, each.score) for each in decoder.decode(log_probs_PV, RELEASE)
    ]


def test_streams_after_one_with_a_hook_are_as_before(sentence_lm):
    decoder, log_probs_PV = Decoder.from_dir(sentence_lm), posteriors(TEXTS[2], 1.5)
    before = decoder.decode(log_probs_PV, RELEASE)
    decode(
        decoder, log_probs_PV, hook=lambda batch: np.full(len(batch.ids), -3.0, dtype=np.float32)
    )
    assert decoder.decode(log_probs_PV, RELEASE) == before
    decode(decoder, log_probs_PV, hook=lambda batch: np.ones(len(batch.ids), dtype=np.float32))
    assert decode(decoder, log_probs_PV, hook=lambda batch: None)[0].score == before[0].score


def test_the_second_models_scores_are_those_of_the_definition():
    """<s> a: the bigram if it is known, else the back-off of <s> and the unigram."""
    gram = ("<s>", "a")
    expected = SECOND.log_probs.get(
        gram, SECOND.backoffs.get(("<s>",), 0.0) + SECOND.log_probs["a",]
    )
    assert wanted(["a"], is_last=False) == pytest.approx(WEIGHT * expected)
    total = FIRST.plus(SECOND, WEIGHT).sentence(["a"])
    assert total == pytest.approx(FIRST.sentence(["a"]) + wanted(["a"], is_last=True))
