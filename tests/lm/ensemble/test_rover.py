"""Word transition networks and the votes over them."""

import itertools
import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortext.text.metrics import edit_counts
from cortext_lm.ensemble import Candidate, Candidates, EnsembleOptions, combine
from cortext_lm.ensemble.candidates import Weighted, weighted
from cortext_lm.ensemble.rover import NULL, build_network, vote, vote_with_lm, word_scores

PLAIN = EnsembleOptions()


def network_of(*texts, options=PLAIN):
    return build_network(weighted(Candidates.of(texts), options))


def votes_of(slots):
    return [{word: pytest.approx(share) for word, share in slot.votes.items()} for slot in slots]


@dataclass
class Bigram:
    """A bigram model from a table of log-probabilities; what it lacks costs `other`."""

    log_probs: dict[tuple[str, str], float]
    other: float = -3.0

    def begin(self):
        return "<s>"

    def score(self, state, word):
        return self.log_probs.get((state, word), self.other), word

    def end(self, state):
        return self.log_probs.get((state, "</s>"), self.other)

    def sentence(self, words):
        return sum(
            self.log_probs.get(pair, self.other)
            for pair in itertools.pairwise(("<s>", *words, "</s>"))
        )


sentences = st.lists(st.sampled_from("abcd"), max_size=4).map(tuple)
pairs_of_words = st.tuples(st.sampled_from(("<s>", *"abcd")), st.sampled_from((*"abcd", "</s>")))
tables = st.dictionaries(pairs_of_words, st.floats(-6, -0.1))
networks = st.lists(
    st.tuples(sentences, st.integers(1, 9)), min_size=1, max_size=4, unique_by=lambda pair: pair[0]
)


def candidates_of(pairs):
    total = sum(weight for _, weight in pairs)
    return [Weighted(words, weight / total, (1.0,) * len(words)) for words, weight in pairs]


def all_paths(slots, options):
    """Every path with the sum of the logarithms of its normalised scores."""
    tables = [word_scores(slot, options) for slot in slots]
    for chosen in itertools.product(*tables):
        log_share = sum(
            math.log(max(table[word], 1e-12) / sum(table.values()))
            for table, word in zip(tables, chosen, strict=True)
        )
        yield tuple(word for word in chosen if word != NULL), log_share


def test_a_network_of_three_sentences():
    slots = network_of("a b c", "a d c", "a b c e")
    assert votes_of(slots) == [
        {"a": 1.0},
        {"b": 2 / 3, "d": 1 / 3},
        {"c": 1.0},
        {NULL: 2 / 3, "e": 1 / 3},
    ]
    assert vote(slots, PLAIN) == ("a", "b", "c")


def test_a_left_out_and_an_inserted_word_have_slots_of_their_own():
    slots = network_of("the cat sat", "the cat sat", "cat sat", "the big cat sat")
    assert votes_of(slots) == [
        {"the": 0.75, NULL: 0.25},
        {NULL: 0.75, "big": 0.25},
        {"cat": 1.0},
        {"sat": 1.0},
    ]


def test_the_vote_may_be_a_sentence_that_nobody_said():
    assert vote(network_of("a b x", "a y c", "z b c"), PLAIN) == ("a", "b", "c")


def test_a_majority_attracts_words_more_than_odd_ones_do():
    # after "b c" (two votes) and "x c" (one), "b" must be set against {b, x}, not make a new slot
    # and delete c
    slots = network_of("b c", "b c", "x c", "b")
    assert votes_of(slots) == [{"b": 0.75, "x": 0.25}, {"c": 0.75, NULL: 0.25}]


def test_of_equal_votes_the_heavier_sentence_decides_then_the_first():
    assert vote(network_of("a", "b"), PLAIN) == ("a",)
    assert vote(network_of("b", "a"), PLAIN) == ("b",)
    # "c d" is said twice, and what is said twice comes first: its words win the ties with those of
    # two others
    assert vote(network_of("a b", "a d", "c d", "c d", "a e", "f b"), PLAIN) == ("a", "d")
    assert vote(network_of("a", ""), PLAIN) == ("a",)
    assert vote(network_of("", "a"), PLAIN) == ()


def test_scores_are_those_of_the_paper():
    first = (Candidate(("a",), None, (0.9,)),)
    second = (Candidate(("b",), None, (0.3,)),)
    third = (Candidate(("b",), None, (0.4,)),)
    slots = build_network(weighted(Candidates((first, second, third, (Candidate(()),))), PLAIN))
    options = EnsembleOptions(alpha=0.6, null_confidence=0.5)
    # alpha * N(w) / N + (1 - alpha) * mean confidence
    expected = {"a": 0.6 / 4 + 0.4 * 0.9, "b": 0.6 / 2 + 0.4 * 0.35, NULL: 0.6 / 4 + 0.4 * 0.5}
    assert word_scores(slots[0], options) == pytest.approx(expected)
    assert vote(slots, options) == ("a",)
    assert vote(slots, PLAIN) == ("b",)
    assert vote(slots, EnsembleOptions(alpha=0.6, null_confidence=0.5, null_weight=2)) == ()
    assert word_scores(slots[0], PLAIN)[NULL] == pytest.approx(0.25)


@given(networks)
def test_votes_of_every_slot_are_those_of_all(pairs):
    slots = build_network(candidates_of(pairs))
    for slot in slots:
        assert sum(slot.votes.values()) == pytest.approx(1)
        assert set(slot.votes) != {NULL}
    words = {word for text, _ in pairs for word in text}
    assert {word for slot in slots for word in slot.votes} - {NULL} == words
    for word in words:
        said = sum(weight * text.count(word) for text, weight in pairs) / sum(
            weight for _, weight in pairs
        )
        assert sum(slot.votes.get(word, 0) for slot in slots) == pytest.approx(said)


@given(networks)
def test_every_sentence_is_a_path(pairs):
    slots = build_network(candidates_of(pairs))
    readable = {words for words, _ in all_paths(slots, PLAIN)}
    assert {words for words, _ in pairs} <= readable


@given(sentences, sentences)
def test_two_sentences_differ_in_as_many_slots_as_words(one, two):
    slots = build_network(
        [Weighted(one, 0.6, (1.0,) * len(one)), Weighted(two, 0.4, (1.0,) * len(two))]
    )
    assert sum(len(slot.votes) > 1 for slot in slots) == edit_counts(one, two).errors


@given(st.permutations(["a b c", "a c", "d b c", "a b"]))
def test_the_order_of_systems_of_different_weights_does_not_matter(texts):
    weight = {"a b c": 1.0, "a c": 2.1, "d b c": 4.3, "a b": 3.6}
    options = EnsembleOptions(weights=tuple(weight[text] for text in texts))
    same = network_of(*weight, options=EnsembleOptions(weights=tuple(weight.values())))
    assert votes_of(network_of(*texts, options=options)) == [slot.votes for slot in same]


@settings(max_examples=40)
@given(networks, tables, st.sampled_from([0.1, 1.0]), st.sampled_from([-1.0, 0.0, 2.0]))
def test_the_search_with_an_ngram_finds_the_best_of_all_paths(pairs, table, lm_weight, word_score):
    options, lm = EnsembleOptions(lm_weight=lm_weight, word_score=word_score), Bigram(table)
    slots = build_network(candidates_of(pairs))

    def score(words, log_share):
        return log_share + lm_weight * lm.sentence(words) + word_score * len(words)

    scores = {}
    for words, log_share in all_paths(slots, options):
        scores[words] = max(score(words, log_share), scores.get(words, -math.inf))
    found = vote_with_lm(slots, options, lm)
    assert scores[found] == pytest.approx(max(scores.values()))


def test_the_ngram_turns_a_narrow_vote():
    slots = network_of("see you", "sea you", "sea you")
    lm = Bigram({("<s>", "see"): -1.0, ("see", "you"): -0.5, ("you", "</s>"): -0.5}, other=-5.0)
    # votes: log 2/3 against log 1/3, so 0.69 for "sea"; the n-gram: -2 against -10.5
    assert vote(slots, PLAIN) == ("sea", "you")
    assert vote_with_lm(slots, EnsembleOptions(lm_weight=0.05), lm) == ("sea", "you")
    assert vote_with_lm(slots, EnsembleOptions(lm_weight=0.1), lm) == ("see", "you")


def test_only_the_method_says_whether_the_ngram_counts():
    trial = Candidates.of(["see you", "sea you", "sea you"])
    lm = Bigram({("<s>", "see"): -1.0, ("see", "you"): -0.5, ("you", "</s>"): -0.5}, other=-5.0)
    said = [
        combine([trial], EnsembleOptions(method=method, lm_weight=0.1), lm=lm)[0].text
        for method in ("rover", "rover-lm")
    ]
    assert said == ["sea you", "see you"]


@given(networks)
def test_an_ngram_without_weight_leaves_the_best_path(pairs):
    slots, options = build_network(candidates_of(pairs)), EnsembleOptions(lm_weight=0)
    scores = {}
    for words, score in all_paths(slots, options):
        scores[words] = max(score, scores.get(words, -math.inf))
    assert scores[vote_with_lm(slots, options, Bigram({}))] == pytest.approx(
        scores[vote(slots, options)]
    )


@given(st.lists(sentences, min_size=1, max_size=6), st.sampled_from(["rover", "rover-lm", "mbr"]))
def test_an_ensemble_of_one_is_itself(texts, method):
    trials = [Candidates.of([" ".join(words)]) for words in texts]
    found = combine(trials, EnsembleOptions(method=method), lm=Bigram({}))
    assert [combined.words for combined in found] == texts
