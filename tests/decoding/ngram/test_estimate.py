"""Modified Kneser-Ney estimation against hand computation and the axioms of probability."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortext.decoding.ngram.estimate import BOS_ID, EOS_ID, FALLBACK_DISCOUNTS, SPECIAL, UNK_ID, estimate
from cortext.errors import LanguageModelError

A, B, C = range(len(SPECIAL), len(SPECIAL) + 3)


def table(level):
    """Probability and back-off weight by n-gram."""
    rows = zip(level.ngrams.tolist(), 10**level.log10_prob, 10**level.log10_backoff, strict=True)
    return {tuple(ngram): (prob, backoff) for ngram, prob, backoff in rows}


def test_a_bigram_model_of_two_sentences_is_what_the_formulas_give_by_hand():
    # <s> a b </s> and <s> a </s>; the counts are too few for discounts, so 0.5, 1, 1.5 are used.
    (unigrams, bigrams), discounts = estimate([np.array([A, B]), np.array([A])], len(SPECIAL) + 2, 2)
    assert [each.values for each in discounts] == [FALLBACK_DISCOUNTS] * 2
    assert all(each.fallback for each in discounts)
    # Continuation counts: a after <s> only: 1; b after a: 1; </s> after b and after a: 2. Sum 4.
    # Discounts 0.5, 0.5, 1: the mass 2 / 4 is spread evenly over a, b, </s> and <unk>.
    uniform = 0.5 / 4
    p = table(unigrams)
    assert p[A,][0] == pytest.approx(0.5 / 4 + uniform)
    assert p[B,][0] == pytest.approx(0.5 / 4 + uniform)
    assert p[EOS_ID,][0] == pytest.approx(1.0 / 4 + uniform)
    assert p[UNK_ID,][0] == pytest.approx(uniform)
    # <s> is followed by a twice: (2 - 1) / 2 + 1 / 2 p(a).
    q = table(bigrams)
    assert q[BOS_ID, A][0] == pytest.approx(0.5 + 0.5 * p[A,][0])
    assert p[BOS_ID,][1] == pytest.approx(0.5)
    # a is followed by b once and by </s> once: (1 - 0.5) / 2 + (0.5 + 0.5) / 2 p(w).
    assert q[A, B][0] == pytest.approx(0.25 + 0.5 * p[B,][0])
    assert q[A, EOS_ID][0] == pytest.approx(0.25 + 0.5 * p[EOS_ID,][0])
    assert p[A,][1] == pytest.approx(0.5)
    assert q[B, EOS_ID][0] == pytest.approx(0.5 + 0.5 * p[EOS_ID,][0])
    assert len(q) == 4


def test_lower_orders_count_different_predecessors_but_keep_plain_counts_at_the_sentence_start():
    # Three times "a b": the bigram <s> a is kept as 3, a b has one predecessor (<s>), b </s> has one (a).
    (unigrams, bigrams, trigrams), _ = estimate([np.array([A, B])] * 3, len(SPECIAL) + 2, 3)
    p, q, r = table(unigrams), table(bigrams), table(trigrams)
    assert q[BOS_ID, A][0] == pytest.approx((3 - 1.5) / 3 + 1.5 / 3 * p[A,][0])
    assert q[A, B][0] == pytest.approx((1 - 0.5) / 1 + 0.5 * p[B,][0])
    assert r[BOS_ID, A, B][0] == pytest.approx((3 - 1.5) / 3 + 1.5 / 3 * q[A, B][0])


def test_discounts_follow_equation_26_of_chen_and_goodman():
    # A unigram model keeps plain counts: four words once, three twice, two three times, one four times; </s> 20 times.
    words = np.arange(len(SPECIAL), len(SPECIAL) + 10)
    text = np.repeat(words, [1, 1, 1, 1, 2, 2, 2, 3, 3, 4])
    _, (discounts,) = estimate([np.array([word]) for word in text], len(SPECIAL) + 10, 1)
    y = 4 / (4 + 2 * 3)
    assert discounts.values == pytest.approx((1 - 2 * y * 3 / 4, 2 - 3 * y * 2 / 3, 3 - 4 * y * 1 / 2))
    assert not discounts.fallback


@settings(max_examples=40, deadline=None)
@given(
    sentences=st.lists(st.lists(st.integers(len(SPECIAL), len(SPECIAL) + 5), max_size=6), min_size=1, max_size=30),
    order=st.integers(1, 4),
)
def test_the_probabilities_after_every_context_sum_to_one(sentences, order):
    sentences = [np.array(sentence, dtype=int) for sentence in [*sentences, [A, B, A, C]]]
    n_words = len(SPECIAL) + 7  # one of them never occurs
    levels, _ = estimate(sentences, n_words, order)
    tables = {ngram: values for level in levels for ngram, values in table(level).items()}

    def prob(context, word):
        if (*context, word) in tables:
            return tables[*context, word][0]
        return tables.get(context, (0, 1.0))[1] * prob(context[1:], word)

    contexts = {ngram[:-1] for ngram in tables} | {(A, B, C)[: order - 1]}
    for context in contexts:
        assert sum(prob(context, word) for word in range(n_words) if word != BOS_ID) == pytest.approx(1.0)


def test_every_ngram_has_its_beginning_and_its_end_among_the_shorter_ones():
    rng = np.random.default_rng(1)
    levels, _ = estimate([rng.integers(3, 9, size=n) for n in rng.integers(1, 9, size=50)], 9, 4)
    listed = [set(map(tuple, level.ngrams.tolist())) for level in levels]
    for shorter, longer in itertools.pairwise(listed):
        assert {ngram[:-1] for ngram in longer} <= shorter
        assert {ngram[1:] for ngram in longer} <= shorter
    assert all(math.isfinite(value) for level in levels for value in level.log10_prob)


@pytest.mark.parametrize("order", [0, 7])
def test_an_order_that_is_not_supported_is_refused(order):
    with pytest.raises(LanguageModelError, match="orders 1 to 6"):
        estimate([np.array([A])], 4, order)


def test_an_order_longer_than_any_sentence_is_refused():
    with pytest.raises(LanguageModelError, match="order 4; use a lower order"):
        estimate([np.array([A])], 4, 4)
