"""Modified Kneser-Ney estimation against hand computation, a slow oracle and the axioms of
probability.
"""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortext.decoding.ngram.vocabulary import BOS_ID, EOS_ID, SPECIAL, UNK_ID
from cortext.errors import LanguageModelError
from cortext_lm.ngram.counts import Keys, count
from cortext_lm.ngram.database import Database
from cortext_lm.ngram.estimate import FALLBACK_DISCOUNTS, Discounts, estimate

A, B, C = range(len(SPECIAL), len(SPECIAL) + 3)
FEW = len(SPECIAL) + 3


def unpacked(keys, key, order):
    return tuple((int(key) >> (keys.bits * back)) & keys.mask for back in range(order - 1, -1, -1))


@pytest.fixture(scope="module")
def estimated(tmp_path_factory):
    """Estimates of sentences of word numbers.

    For each n-gram its probability and back-off, and the model.
    """
    directory = tmp_path_factory.mktemp("estimate")
    names = (f"m{number}" for number in itertools.count())

    def run(sentences, order, prune=(0,), n_words=FEW, keys=None):
        """Words from `n_words` on are outside the vocabulary."""
        prune = (*prune, *prune[-1:] * (order - len(prune)))
        text = np.array(
            [word for sentence in sentences for word in (BOS_ID, *sentence, EOS_ID)], np.int32
        )
        file = directory / "text.i32"
        text.tofile(file)
        highest = max(n_words, int(text.max()) + 1)
        keys = keys or Keys.of(highest, order)
        name = next(names)
        count(database, name, keys, file, np.arange(highest), n_words, prune)
        model = estimate(database, name, keys, n_words, order)
        table = {}
        for number in range(1, order + 1):
            backoffs = {}
            if number < order:
                backoffs = dict(database.rows(f"SELECT key, backoff FROM {name}_b{number + 1}"))
            for key, p in database.rows(f"SELECT key, p FROM {name}_p{number}"):
                table[unpacked(keys, key, number)] = (p, backoffs.get(key, 1.0))
        return table, model

    with Database(directory, 256 << 20) as database:
        yield run


def oracle(sentences, order, prune, n_words):
    """The formulas of estimate.py word for word, on dictionaries.

    For each n-gram its probability and back-off.
    """
    prune = (*prune, *prune[-1:] * (order - len(prune)))
    plain = Counter()
    for sentence in sentences:
        words = (BOS_ID, *sentence, EOS_ID)
        for number in range(1, order + 1):
            plain.update(words[start : start + number] for start in range(len(words) - number + 1))
    del plain[BOS_ID,]
    before = Counter(ngram[1:] for ngram in plain if len(ngram) > 1)
    adjusted = {
        ngram: times if len(ngram) == order or ngram[0] == BOS_ID else before[ngram]
        for ngram, times in plain.items()
    }
    kept = {
        ngram
        for ngram, times in plain.items()
        if times > prune[len(ngram) - 1] and all(w < n_words for w in ngram)
    }
    discounts = {}
    for number in range(1, order + 1):
        counts = Counter(value for ngram, value in adjusted.items() if len(ngram) == number)
        discounts[number] = (0.0, *Discounts.of([counts[value] for value in (1, 2, 3, 4)]).values)
    total, mass = Counter(), Counter()
    for ngram, value in adjusted.items():
        total[ngram[:-1]] += value
        mass[ngram[:-1]] += discounts[len(ngram)][min(value, 3)] if ngram in kept else value

    def backoff(context):
        return mass[context] / total[context] if total[context] else 1.0

    table = {(word,): 1 / (n_words - 1) * backoff(()) for word in range(n_words)}
    for ngram in sorted(kept, key=len):
        value = adjusted[ngram]
        own = (value - discounts[len(ngram)][min(value, 3)]) / total[ngram[:-1]]
        shorter = table[ngram[1:]] * backoff(ngram[:-1]) if len(ngram) > 1 else table[ngram]
        table[ngram] = own + shorter
    table[BOS_ID,] = 1.0
    return {ngram: (p, backoff(ngram) if len(ngram) < order else 1.0) for ngram, p in table.items()}


def test_a_bigram_model_of_two_sentences_is_what_the_formulas_give_by_hand(estimated):
    # <s> a b </s> and <s> a </s>; the counts are too few for discounts, so 0.5, 1, 1.5 are used.
    p, model = estimated([[A, B], [A]], 2, n_words=len(SPECIAL) + 2)
    assert model.discounts == (Discounts(FALLBACK_DISCOUNTS, fallback=True),) * 2
    # Continuation counts: a after <s> only: 1; b after a: 1; </s> after b and after a: 2. Sum 4.
    # Discounts 0.5, 0.5, 1: the mass 2 / 4 is spread evenly over a, b, </s> and <unk>.
    uniform = 0.5 / 4
    assert p[A,][0] == pytest.approx(0.5 / 4 + uniform)
    assert p[B,][0] == pytest.approx(0.5 / 4 + uniform)
    assert p[EOS_ID,][0] == pytest.approx(1.0 / 4 + uniform)
    assert p[UNK_ID,][0] == pytest.approx(uniform)
    # <s> is followed by a twice: (2 - 1) / 2 + 1 / 2 p(a).
    assert p[BOS_ID, A][0] == pytest.approx(0.5 + 0.5 * p[A,][0])
    assert p[BOS_ID,][1] == pytest.approx(0.5)
    # a is followed by b once and by </s> once: (1 - 0.5) / 2 + (0.5 + 0.5) / 2 p(w).
    assert p[A, B][0] == pytest.approx(0.25 + 0.5 * p[B,][0])
    assert p[A, EOS_ID][0] == pytest.approx(0.25 + 0.5 * p[EOS_ID,][0])
    assert p[A,][1] == pytest.approx(0.5)
    assert p[B, EOS_ID][0] == pytest.approx(0.5 + 0.5 * p[EOS_ID,][0])
    assert model.kept == (5, 4)


def test_lower_orders_count_different_predecessors_but_keep_plain_counts_at_the_sentence_start(
    estimated,
):
    # Three times "a b": the bigram <s> a is kept as 3, a b has one predecessor (<s>), b </s> has
    # one (a).
    p, _ = estimated([[A, B]] * 3, 3)
    assert p[BOS_ID, A][0] == pytest.approx((3 - 1.5) / 3 + 1.5 / 3 * p[A,][0])
    assert p[A, B][0] == pytest.approx((1 - 0.5) / 1 + 0.5 * p[B,][0])
    assert p[BOS_ID, A, B][0] == pytest.approx((3 - 1.5) / 3 + 1.5 / 3 * p[A, B][0])


def test_the_mass_of_pruned_ngrams_goes_to_the_shorter_context(estimated):
    # a is followed by b three times and by c once; the bigram a c is pruned, as is c </s>.
    p, model = estimated([[A, B]] * 3 + [[A, C]], 2, prune=(0, 1))
    assert model.seen[1] - model.kept[1] == 2
    assert (A, C) not in p
    assert p[A,][1] == pytest.approx((1.5 + 1) / 4)  # the discount of a b, and all of a c
    assert p[A, B][0] == pytest.approx((3 - 1.5) / 4 + 2.5 / 4 * p[B,][0])
    assert p[C,][1] == pytest.approx(1.0)


def test_ngrams_with_words_outside_the_vocabulary_count_but_are_left_out(estimated):
    # b is outside: its unigram counts in the sum (a, b, </s> after two words each once: 1 + 1 + 2).
    p, _ = estimated([[A, B + 1], [A]], 2, n_words=len(SPECIAL) + 1)
    assert set(p) == {(UNK_ID,), (BOS_ID,), (EOS_ID,), (A,), (BOS_ID, A), (A, EOS_ID)}
    uniform = (0.5 + 1.0 + 1) / 4 / 3  # the discounts of a and </s>, all of b; three words but <s>
    assert p[A,][0] == pytest.approx(0.5 / 4 + uniform)
    assert p[UNK_ID,][0] == pytest.approx(uniform)
    assert p[A, EOS_ID][0] == pytest.approx(0.5 / 2 + (0.5 + 1) / 2 * p[EOS_ID,][0])


def test_a_model_of_single_words_counts_how_often_they_occur(estimated):
    # a three times, </s> once; of their discounts 1.5 and 0.5, each of a, b, c, </s> and <unk> gets
    # a fifth
    p, _ = estimated([[A, A, A]], 1)
    assert p[A,][0] == pytest.approx(1.5 / 4 + 2 / 4 / 5)
    assert p[EOS_ID,][0] == pytest.approx(0.5 / 4 + 2 / 4 / 5)
    assert p[B,][0] == p[C,][0] == p[UNK_ID,][0] == pytest.approx(2 / 4 / 5)


def test_discounts_follow_equation_26_of_chen_and_goodman():
    y = 4 / (4 + 2 * 3)
    discounts = Discounts.of((4, 3, 2, 1))
    assert discounts.values == pytest.approx(
        (1 - 2 * y * 3 / 4, 2 - 3 * y * 2 / 3, 3 - 4 * y * 1 / 2)
    )
    assert not discounts.fallback
    assert Discounts.of((4, 3, 0, 1)).fallback  # nothing occurs three times
    assert Discounts.of((9, 1, 9, 1)).fallback  # more is taken from one than there is


SENTENCES = st.lists(
    st.lists(st.integers(len(SPECIAL), len(SPECIAL) + 5), max_size=6), min_size=1, max_size=30
)


@settings(max_examples=20)
@given(
    sentences=SENTENCES,
    order=st.integers(1, 4),
    third=st.integers(0, 2),
    n_words=st.integers(5, 10),
)
def test_estimates_are_those_of_the_formulas_and_sum_to_one(
    estimated, sentences, order, third, n_words
):
    sentences = [*sentences, [A, B, A, C]]
    prune = (0, 0, third)[:order]
    table, _ = estimated(sentences, order, prune, n_words)
    expected = oracle(sentences, order, prune, n_words)
    assert table.keys() == expected.keys()
    for ngram, values in expected.items():
        assert table[ngram] == pytest.approx(values, rel=1e-9)

    def prob(context, word):
        if (*context, word) in table:
            return table[*context, word][0]
        return table.get(context, (0, 1.0))[1] * prob(context[1:], word)

    for context in {ngram[:-1] for ngram in table} | {(A, B, C)[: order - 1]}:
        assert sum(
            prob(context, word) for word in range(n_words) if word != BOS_ID
        ) == pytest.approx(1.0)


def test_every_ngram_has_its_beginning_and_its_end_among_the_shorter_ones(estimated):
    rng = np.random.default_rng(1)
    sentences = [rng.integers(3, 9, size=n).tolist() for n in rng.integers(1, 9, size=50)]
    listed = set(estimated(sentences, 4, prune=(0, 0, 1), n_words=8)[0])
    for ngram in listed:
        assert len(ngram) == 1 or {ngram[:-1], ngram[1:]} <= listed


def test_ngrams_that_need_128_bits_are_counted_like_those_that_need_64(estimated):
    rng = np.random.default_rng(2)
    sentences = [rng.integers(3, 6, size=n).tolist() for n in rng.integers(1, 9, size=60)]
    narrow, _ = estimated(sentences, 6)
    wide, _ = estimated(sentences, 6, keys=Keys(20))
    assert Keys(20).type(6) == "HUGEINT" != Keys.of(FEW, 6).type(6)
    assert narrow.keys() == wide.keys()
    for ngram, values in wide.items():
        assert narrow[ngram] == pytest.approx(values)


def test_texts_longer_than_a_block_are_counted_across_its_border(estimated, monkeypatch):
    rng = np.random.default_rng(3)
    sentences = [rng.integers(3, 6, size=n).tolist() for n in rng.integers(1, 9, size=60)]
    whole, _ = estimated(sentences, 4)
    monkeypatch.setattr("cortext.decoding.ngram.corpus._BLOCK", 7)
    assert estimated(sentences, 4)[0] == whole


def test_too_many_different_words_for_an_order_are_refused():
    assert Keys.of(1 << 20, 6).bits == 20
    with pytest.raises(
        LanguageModelError, match="1,048,577 different words are too many for order 6"
    ):
        Keys.of((1 << 20) + 1, 6)


def test_an_order_longer_than_any_sentence_is_refused(estimated):
    with pytest.raises(LanguageModelError, match="order 4; use a lower order"):
        estimated([[A]], 4)


def test_probabilities_are_never_below_zero_nor_infinite(estimated):
    rng = np.random.default_rng(4)
    table, _ = estimated([rng.integers(3, 6, size=5).tolist() for _ in range(100)], 3)
    for values in table.values():
        assert all(math.isfinite(value) and value > 0 for value in values)


def test_the_order_of_the_sentences_does_not_matter(estimated):
    sentences = [[A, B, C], [C], [B, B], [A]]
    first = estimated(sentences, 3)[0]
    assert all(
        estimated(list(each), 3)[0] == first
        for each in itertools.islice(itertools.permutations(sentences), 3)
    )
