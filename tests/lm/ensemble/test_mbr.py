"""Weights of candidates, and the candidate with the least expected number of word errors."""

import functools
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cortext.errors import DecodingError
from cortext.text.normalize import normalize
from cortext_lm.ensemble import Candidate, Candidates, EnsembleOptions
from cortext_lm.ensemble.candidates import Weighted, least_risk, risks, sentence_of, weighted


def of(text, weight):
    words = tuple(text.split())
    return Weighted(words, weight, (1.0,) * len(words))


@functools.cache
def distance(one, two):
    """Word edit distance by its definition."""
    if not one or not two:
        return len(one) + len(two)
    return min(
        distance(one[1:], two) + 1,
        distance(one, two[1:]) + 1,
        distance(one[1:], two[1:]) + (one[0] != two[0]),
    )


sentences = st.lists(st.sampled_from("abc"), max_size=4).map(tuple)
lists = st.lists(
    st.tuples(sentences, st.integers(1, 5)), min_size=1, max_size=5, unique_by=lambda pair: pair[0]
)


def test_the_sentence_between_the_others_wins_over_the_likeliest():
    # distances: abc-ab 1, abc-ad 2, ab-ad 1; so the risks are .35 + .5, .4 + .25 and .8 + .35
    candidates = [of("a b c", 0.4), of("a b", 0.35), of("a d", 0.25)]
    assert risks([c.words for c in candidates], candidates).tolist() == pytest.approx(
        [0.85, 0.65, 1.15]
    )
    assert least_risk(candidates) == 1


def test_of_equal_risks_the_first_sentence_is_taken():
    assert least_risk([of("a", 0.5), of("b", 0.5)]) == 0
    assert least_risk([of("b", 0.5), of("a", 0.5)]) == 0


def test_saying_nothing_can_be_the_best():
    # Risks .4 * 2 + .3 * 2, .3 * 2 + .3, .3 * 2 + .4.
    candidates = [
        of("a b", 0.3),
        of("", 0.4),
        of("c", 0.3),
    ]
    assert risks([(), ("c",)], candidates).tolist() == pytest.approx([0.9, 1.0])
    assert least_risk(candidates) == 1


@settings(max_examples=50)
@given(lists)
def test_risks_are_those_of_the_definition(pairs):
    total = sum(weight for _, weight in pairs)
    candidates = [Weighted(words, weight / total, (1.0,) * len(words)) for words, weight in pairs]
    expected = [
        sum(distance(words, other) * weight / total for other, weight in pairs)
        for words, _ in pairs
    ]
    assert risks([words for words, _ in pairs], candidates).tolist() == pytest.approx(expected)
    chosen = least_risk(candidates)
    assert expected[chosen] == pytest.approx(min(expected))
    assert all(expected[n] > expected[chosen] for n in range(chosen))


@settings(max_examples=30)
@given(lists, st.randoms())
def test_the_order_of_candidates_decides_nothing_but_ties(pairs, random):
    total = sum(weight for _, weight in pairs)
    candidates = [Weighted(words, weight / total, (1.0,) * len(words)) for words, weight in pairs]
    shuffled = random.sample(candidates, len(candidates))
    one, two = candidates[least_risk(candidates)], shuffled[least_risk(shuffled)]
    assert risks([one.words], candidates) == pytest.approx(risks([two.words], candidates))


def test_each_system_shares_its_weight_by_its_own_scores():
    # one system's scores lie far below the other's: only differences within a list may count
    first = (Candidate(("a",), -1000.0), Candidate(("b",), -1000.0 - math.log(3)))  # 3 : 1
    second = (Candidate(("b",), 5.0), Candidate(("c",), 5.0))
    found = weighted(Candidates((first, second)), EnsembleOptions())
    assert {one.words: one.weight for one in found} == pytest.approx(
        {("a",): 3 / 8, ("b",): 1 / 8 + 1 / 4, ("c",): 1 / 4}
    )
    halved = weighted(Candidates((first,)), EnsembleOptions(score_scale=0.5))
    assert halved[0].weight / halved[1].weight == pytest.approx(math.sqrt(3))
    flat = weighted(Candidates((first,)), EnsembleOptions(score_scale=0))
    assert [one.weight for one in flat] == [0.5, 0.5]


def test_a_sentence_without_a_score_counts_only_where_none_has_one():
    both = (Candidate(("a",), None), Candidate(("b",), -3.0))
    assert [
        (one.words, one.weight) for one in weighted(Candidates((both,)), EnsembleOptions())
    ] == [(("b",), 1.0)]
    neither = (Candidate(("a",)), Candidate(("b",)))
    assert [one.weight for one in weighted(Candidates((neither,)), EnsembleOptions())] == [0.5, 0.5]


def test_weights_of_systems_and_lengths_of_lists_are_options():
    trial = Candidates(((Candidate(("a",)), Candidate(("b",))), (Candidate(("c",)),)))
    found = weighted(trial, EnsembleOptions(weights=(1, 3)))
    assert [(one.words, one.weight) for one in found] == [
        (("a",), 0.125),
        (("b",), 0.125),
        (("c",), 0.75),
    ]
    assert [one.words for one in weighted(trial, EnsembleOptions(nbest=1))] == [("a",), ("c",)]
    assert [one.words for one in weighted(trial, EnsembleOptions(weights=(0, 1)))] == [("c",)]
    with pytest.raises(DecodingError, match="3 weights for 2 systems"):
        weighted(trial, EnsembleOptions(weights=(1, 1, 1)))


def test_confidences_of_equal_sentences_are_averaged_by_weight():
    trial = Candidates(
        ((Candidate(("a", "b"), None, (0.2, 0.4)),), (Candidate(("a", "b"), None, (0.8, 1.0)),))
    )
    assert weighted(trial, EnsembleOptions(weights=(3, 1)))[0].confidences == pytest.approx(
        (0.35, 0.55)
    )


def test_texts_are_normalised_before_they_vote():
    trial = Candidates.of(["I'd say - well, no.", "i'd say well no"])
    assert weighted(trial, EnsembleOptions()) == [
        Weighted(("i'd", "say", "well", "no"), 1.0, (1.0,) * 4)
    ]


@given(st.text("ab-' ."))
@example("told -- yes")
@example("yes-- no-")
@example("say  'no")
@settings(max_examples=300)
def test_what_was_normalised_survives_being_normalised_again(text):
    words = normalize(text).split()
    assert normalize(sentence_of(words)).split() == words


@pytest.mark.parametrize("systems", [(), ((),), ((Candidate(("a",)),), ())])
def test_a_system_without_sentences_is_refused(systems):
    with pytest.raises(DecodingError, match="trial 7: a system without a sentence"):
        weighted(Candidates(systems, 7), EnsembleOptions())
