"""The oracle that the search is compared with, by hand and against PyTorch's CTC loss."""

import itertools
import math

import numpy as np
import pytest
import torch
from engine_cases import NEUTRAL, UNLIMITED, Grams
from hypothesis import given, settings
from hypothesis import strategies as st
from search_oracle import Oracle, scaled

from cortext.decoding import DecoderOptions
from cortext.text.inventory import Inventory

TOY = Inventory("toy", ("BLANK", "AA", "B", "SIL"))
BARE = Inventory("bare", ("BLANK", "AA", "B"), silence=None)
SPACED = Inventory("spaced", ("BLANK", "AA", "|", "B"), silence=None, boundary="|")
WIDE = NEUTRAL | UNLIMITED
GRAMS = [Grams.random(order, seed=order) for order in (1, 2, 3)]
A, B = ("a", "AA", 1.0), ("b", "B", 1.0)
C, D = ("c", "AA B", 1.0), ("d", "B AA", 1.0)


def spoken(frames, strength=8.0, inventory=TOY):
    """Log-probabilities that clearly say one token per frame."""
    x_PV = np.zeros((len(frames.split()), len(inventory)))
    x_PV[np.arange(len(x_PV)), [inventory.index[token] for token in frames.split()]] = strength
    return x_PV - np.logaddexp.reduce(x_PV, axis=1, keepdims=True)


def uniform(n_frames):
    return np.log(np.full((n_frames, 4), 0.25))


def random_frames(seed, n_frames, spread, inventory=TOY):
    x_PV = np.random.default_rng(seed).normal(size=(n_frames, len(inventory))) * spread
    return x_PV - np.logaddexp.reduce(x_PV, axis=1, keepdims=True)


def said(entries, log_probs_PV, grams=None, inventory=TOY, **options):
    """All sentences, best first."""
    chosen = DecoderOptions.of(WIDE | dict(blank_penalty=1.0) | options)
    found = Oracle(entries, grams, chosen, inventory).sentences(log_probs_PV)
    return dict(sorted(found.items(), key=lambda item: -item[1].score))


def best(*given, **options):
    return next(iter(said(*given, **options).values()))


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
    assert best([A], spoken(frames)).text == text


def test_required_silence_leaves_only_paths_with_silence_between_words():
    """In three frames AA SIL B.

    In four one of these repeated, or a blank or SIL at an end, or a blank beside SIL.

    The paths of three frames without the obligation: AA SIL B; AA B with one of them repeated (2),
    a blank before, between or after (3), SIL before or after (2).
    """
    assert "a b" not in said([A, B], uniform(2), sil_required=True)
    for n_frames, is_required, n_paths in ((3, True, 1), (3, False, 8), (4, True, 9)):
        found = said([A, B], uniform(n_frames), sil_required=is_required)["a b"]
        assert found.paths == pytest.approx(math.log(n_paths / 4**n_frames))


def test_required_silence_is_not_required_at_the_start_and_the_end():
    found = said([A], uniform(1), sil_required=True)
    assert found["a"].paths == pytest.approx(math.log(0.25))
    assert found[""].paths == pytest.approx(math.log(0.5))  # blank or SIL


def test_required_silence_makes_its_cost_meaningless():
    plain, costly = (
        said([A, B], uniform(5), sil_required=True, sil_cost=cost)["a b"] for cost in (0.0, 3.0)
    )
    assert (plain.paths, plain.courses) == (costly.paths, costly.courses)
    assert {boundaries for _, boundaries, _ in costly.courses} == {0}


def test_required_silence_decides_the_times():
    """The likeliest path says AA B B; with SIL between, B begins a frame later."""
    log_probs_PV = np.log(
        np.array([[0.1, 0.7, 0.1, 0.1], [0.1, 0.1, 0.5, 0.3], [0.1, 0.1, 0.7, 0.1]])
    )
    free = said([A, B], log_probs_PV)["a b"]
    assert [spans for spans, _, _ in free.courses] == [((0, 1), (1, 3))]
    required = said([A, B], log_probs_PV, sil_required=True)["a b"]
    assert [spans for spans, _, _ in required.courses] == [((0, 1), (2, 3))]
    assert required.paths == pytest.approx(math.log(0.7 * 0.3 * 0.7))


def test_words_are_timed_by_the_frames_of_their_phonemes():
    found = best([("a", "AA B", 1.0), ("b", "AA", 1.0)], spoken("BLANK AA AA BLANK B B SIL AA"))
    assert found.words == ("a", "b")
    (parts,) = found.parts()
    assert parts[4:] == [80, 480, 560, 640]


def test_readings_that_are_equally_good_are_all_known():
    """AA B AA is `AA B` and `AA`, or `AA` and `B AA`."""
    entries = [A, ("a", "AA B", 1.0), ("b", "AA", 1.0), ("b", "B AA", 1.0)]
    found = said(entries, np.log(np.eye(4)[[1, 2, 1]] + 1e-9))["a b"]
    assert {spans for spans, _, _ in found.courses} == {((0, 2), (2, 3)), ((0, 1), (1, 3))}
    assert found.paths == pytest.approx(math.log(2), abs=1e-6)


def test_only_boundaries_between_words_without_silence_cost():
    costly = best([A, B], spoken("AA B SIL"), sil_cost=2.0, recombine="max")
    plain = best([A, B], spoken("AA B SIL"), recombine="max")
    assert costly.text == plain.text == "a b"
    assert costly.parts()[0][1] == pytest.approx(plain.parts()[0][1])
    assert costly.parts()[0][3] == -2.0
    assert plain.score - costly.score == pytest.approx(2.0)
    assert best([A, B], spoken("AA SIL B"), sil_cost=2.0, recombine="max").parts()[0][3] == 0.0


def test_the_weight_of_a_pronunciation_is_part_of_the_acoustic_score():
    weighted, plain = (
        best([("a", "AA B", weight)], spoken("AA B"), recombine="max", acoustic_scale=0.5)
        for weight in (0.25, 1.0)
    )
    assert plain.parts()[0][1] - weighted.parts()[0][1] == pytest.approx(math.log(4))
    assert plain.score - weighted.score == pytest.approx(0.5 * math.log(4))


def test_penalty_priors_floor_and_scale_of_a_frame_by_hand():
    probs_PV = np.array([[0.5, 0.25, 0.25, 0.0], [0.9, 0.05, 0.05, 0.0]])
    options = DecoderOptions(
        acoustic_scale=0.5, blank_penalty=4.0, blank_skip=0.8, label_priors={"AA": 0.1}
    ).changed({"prior_weight": 2.0})
    with np.errstate(divide="ignore"):
        scores_PV = scaled(np.log(probs_PV), options, TOY)
    first = [0.5 * math.log(0.5 / 4), 0.5 * math.log(0.25 / 0.1**2), 0.5 * math.log(0.25), -500.0]
    assert scores_PV[0].tolist() == pytest.approx(first)
    assert scores_PV[1].tolist() == pytest.approx([0.5 * math.log(0.9 / 4), *[-math.inf] * 3])


def test_a_frame_that_is_passed_over_keeps_equal_phonemes_apart():
    assert best([A], spoken("AA BLANK AA", strength=20.0), blank_skip=0.99).text == "a a"


def test_scores_of_words_are_those_of_the_ngram():
    grams, entries, log_probs_PV = GRAMS[1], [A, ("zed", "B", 1.0)], spoken("AA SIL B")
    scored = said(entries, log_probs_PV, grams, unk_score=-3.0, word_score=0.5, lm_weight=0.6)
    expected = grams.sentence(["a", "zed"]) - 3.0
    assert scored["a zed"].lm_score == pytest.approx(expected)
    plain = said(entries, log_probs_PV)["a zed"].score
    assert scored["a zed"].score == pytest.approx(plain + 0.6 * expected + 2 * 0.5)


def heard(frames, entries=(A, B, C, D), **options):
    """All sentences where nothing stands between words."""
    return said(entries, spoken(frames, inventory=BARE), inventory=BARE, **options)


def test_without_a_separator_words_may_be_read_in_several_ways():
    found = heard("AA B AA", recombine="max")
    clear = 3 * float(spoken("AA", inventory=BARE)[0, 1])
    likeliest = {text for text, each in found.items() if each.score == pytest.approx(clear)}
    assert likeliest == {"a b a", "c a", "a d"}


def test_without_a_separator_equal_phonemes_that_meet_need_a_blank():
    assert next(iter(heard("AA AA", [A]))) == "a"
    assert next(iter(heard("AA BLANK AA", [A]))) == "a a"
    assert next(iter(heard("AA B BLANK B AA", [C, D]))) == "c d"
    assert "c d" not in heard("AA B B AA", [C, D])


def test_without_a_separator_words_that_meet_cost_nothing():
    plain, costly = heard("AA B"), heard("AA B", sil_cost=5.0, sil_required=True)
    assert {text: each.score for text, each in plain.items()} == {
        text: each.score for text, each in costly.items()
    }
    assert {parts[3] for each in costly.values() for parts in each.parts()} == {0.0}


def labels_of(words, entries, separator, n_frames):
    """All sequences of tokens that say words within so many frames.

    With the number of boundaries without separator and the log of the pronunciations' weights.
    """
    own = [[(each[1].split(), each[2]) for each in entries if each[0] == word] for word in words]
    most = range(n_frames + 1 if separator else 1)
    for variants in itertools.product(*own):
        for counts in itertools.product(most, repeat=len(words) + 1):
            labels = [separator] * counts[0]
            for (pronunciation, _), count in zip(variants, counts[1:], strict=True):
                labels += [*pronunciation, *[separator] * count]
            if len(labels) <= n_frames:
                direct = sum(count == 0 for count in counts[1:-1]) if separator else 0
                yield labels, direct, sum(math.log(weight) for _, weight in variants)


def by_ctc_loss(words, entries, scores_PV, options, inventory):
    """The joined score of all paths of a sentence; None where none fits."""
    total = []
    for labels, direct, log_weight in labels_of(
        words, entries, inventory.separator, len(scores_PV)
    ):
        if options.sil_required and direct:
            continue
        targets = torch.tensor([[inventory.index[label] for label in labels]], dtype=torch.long)
        loss = torch.nn.functional.ctc_loss(
            torch.from_numpy(scores_PV)[:, None],
            targets,
            [len(scores_PV)],
            [len(labels)],
            blank=inventory.blank,
            reduction="none",
        )
        cost = options.sil_cost * direct
        total.append(options.acoustic_scale * log_weight - cost - float(loss))
    joined = np.logaddexp.reduce(total) if total else -np.inf
    return None if joined == -np.inf else float(joined)


@settings(max_examples=40, deadline=None)
@given(
    inventory=st.sampled_from([TOY, SPACED, BARE]),
    entries=st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.lists(st.sampled_from(["AA", "B"]), min_size=1, max_size=3).map(" ".join),
            st.sampled_from([1.0, 0.3]),
        ),
        min_size=1,
        max_size=4,
        unique_by=lambda entry: entry[:2],
    ),
    scale=st.sampled_from([1.0, 0.4]),
    sil_cost=st.sampled_from([0.0, 1.3]),
    sil_required=st.booleans(),
    n_frames=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_all_paths_together_score_as_by_the_ctc_loss_of_pytorch(
    inventory, entries, scale, sil_cost, sil_required, n_frames, seed
):
    options = DecoderOptions.of(
        WIDE | dict(acoustic_scale=scale, sil_cost=sil_cost, sil_required=sil_required)
    )
    log_probs_PV = random_frames(seed, n_frames, 1.5, inventory)
    scores_PV = scaled(log_probs_PV, options, inventory)
    known = sorted({word for word, _, _ in entries})
    expected = {
        " ".join(words): by_ctc_loss(words, entries, scores_PV, options, inventory)
        for n_words in range(n_frames + 1)
        for words in itertools.product(known, repeat=n_words)
    }
    found = Oracle(entries, None, options, inventory).sentences(log_probs_PV)
    assert {text: each.paths for text, each in found.items()} == pytest.approx(
        {text: score for text, score in expected.items() if score is not None}, abs=1e-9
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_best_path_is_all_paths_at_a_temperature_of_zero(seed):
    """Of fewer than 4^5 paths and 4 readings, the sum is above the best by their logarithm."""
    entries = [A, B, C, D, ("a", "B B", 0.3)]
    log_probs_PV = random_frames(seed, 5, 2.0)
    at_best = said(entries, log_probs_PV, recombine="max", blank_penalty=7.0)
    total = said(entries, log_probs_PV, blank_penalty=7.0, acoustic_scale=1e3)
    assert at_best.keys() == total.keys()
    for text, each in at_best.items():
        assert -1e-9 < total[text].paths / 1e3 - each.paths < math.log(4**6) / 1e3
        assert list(each.courses.values()) == pytest.approx([each.paths] * len(each.courses))


def test_courses_add_up_to_their_sentence():
    oracle = Oracle([A, B, C, D], GRAMS[0], DecoderOptions.of(WIDE), TOY)
    found = oracle.sentences(random_frames(0, 4, 1.0), every_course=True)
    assert max(len(sentence.courses) for sentence in found.values()) > 3
    for sentence in found.values():
        total = np.logaddexp.reduce(list(sentence.courses.values()))
        assert total == pytest.approx(sentence.paths)


def test_a_given_sentence_scores_as_among_all():
    options = DecoderOptions.of(WIDE | dict(sil_cost=0.7))
    oracle = Oracle([A, B, C, D], GRAMS[2], options, TOY)
    log_probs_PV = random_frames(1, 5, 2.0)
    for text, sentence in oracle.sentences(log_probs_PV).items():
        (alone,) = oracle.sentences(log_probs_PV, given=sentence.words).values()
        assert (alone.text, alone.score) == (text, pytest.approx(sentence.score))
        assert alone.courses == pytest.approx(sentence.courses)
    assert oracle.sentences(log_probs_PV, given=["a"] * 6) == {}  # it does not fit


@pytest.mark.parametrize("seed", range(5))
def test_a_beam_loses_sentences_but_changes_no_score(seed):
    log_probs_PV = random_frames(seed, 6, 1.0)
    every = said([A, B, C, D], log_probs_PV, GRAMS[1], blank_penalty=32.0)

    def search(**options):
        oracle = Oracle([A, B, C, D], GRAMS[1], DecoderOptions.of(WIDE | options), TOY)
        return [(each.text, each.score) for each in oracle.search(log_probs_PV)]

    expected = [(text, pytest.approx(each.score)) for text, each in every.items()]
    assert dict(search()) == dict(expected)  # a few sentences are equally good
    assert search(nbest=3) == expected[:3]
    least = next(iter(every.values())).score - 2.0
    assert search(lattice_beam=2.0) == [each for each in expected if every[each[0]].score >= least]
    narrow = search(beam=2.0, min_active=1, max_active=4)
    assert 1 <= len(narrow) <= 4
    assert all(every[text].score == pytest.approx(score) for text, score in narrow)


def test_an_unfinished_word_is_dropped():
    options = DecoderOptions.of(NEUTRAL | dict(beam=5.0, min_active=1, lattice_beam=0.0))
    oracle = Oracle([A, ("b", "B AA B", 1.0)], GRAMS[0], options, TOY)
    found = oracle.search(spoken("AA SIL B AA"))
    assert [each.text for each in found] == ["a"]


def test_an_unfinished_word_is_judged_by_what_it_can_become():
    """One hypothesis may live; the first frame slightly prefers `d`, the n-gram by far `c`."""
    words = {("c",): -1.0, ("d",): -7.0, ("<unk>",): -9.0, ("<s>",): -99.0, ("</s>",): -1.0}
    options = DecoderOptions.of(NEUTRAL | dict(max_active=1, min_active=1))
    log_probs_PV = np.log([[0.04, 0.45, 0.5, 0.01], [0.05, 0.04, 0.9, 0.01]])
    found = Oracle([C, D], Grams(1, words, {}), options, TOY).search(log_probs_PV)
    assert [each.text for each in found] == ["c"]
