"""When a recalibrated model may speak: bounds by hand, by another library and by simulation."""

import numpy as np
import pytest
from scipy import stats

from cortext.errors import ConfigError
from cortext_live.recalibration.promotion import (
    Comparison,
    PromotionOptions,
    compare,
    decide,
    spent,
    student,
)


@pytest.mark.parametrize("degrees", [20, 40, 150, 1000])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.975, 0.999, 0.9999])
def test_quantiles_of_student(degrees, level):
    assert student(level, degrees) == pytest.approx(stats.t.ppf(level, degrees), abs=2e-3)


def test_bound_by_hand():
    # Four sentences of 5 words with 1, 0, -1 and 2 more errors, and one that is imagined with 2.5:
    # 4.5 errors in 25 words are 0.18. Deviations from 0.9 a sentence: 0.1, -0.9, -1.9, 1.1, 1.6,
    # whose squares add up to 8.2. The ratio's error is sqrt(5/4 * 8.2) / 25 = 0.12806.
    found = compare([0, 1, 2, 0], [1, 1, 1, 2], [5, 5, 5, 5], 0.5)
    assert (found.sentences, found.words) == (4, 20)
    assert found.difference == pytest.approx(10)
    assert found.upper == pytest.approx(18)
    # 0.95 of the normal distribution is 1.644854; the expansion for 4 degrees gives 2.1297.
    upper = compare([0, 1, 2, 0], [1, 1, 1, 2], [5, 5, 5, 5], 0.95).upper
    assert upper == pytest.approx(18 + 100 * 2.1297 * 0.128062, abs=0.05)


def test_the_lower_bound_is_the_upper_one_of_the_exchanged_models():
    parent, candidate, words = [0, 1, 2, 0, 3], [1, 1, 1, 2, 3], [5, 4, 5, 6, 5]
    there, back = compare(parent, candidate, words, 0.9), compare(candidate, parent, words, 0.9)
    assert (there.lower, there.difference) == (-back.upper, -back.difference)


def test_a_long_sentence_counts_by_its_words():
    """The difference is that of the whole text's error rates, not the mean of sentences."""
    found = compare([0, 0], [9, 0], [90, 10], 0.95)
    assert found.difference == pytest.approx(9)


@pytest.mark.parametrize(
    ("n", "bound", "below"), [(10, 5.0, False), (40, 5.0, True), (60, 2.0, False), (150, 2.0, True)]
)
def test_sentences_that_both_decode_alike_prove_little(n, bound, below):
    """Ten equal sentences are no proof; 40 are enough for 5 points and 150 for 2."""
    assert (compare([1] * n, [1] * n, [6] * n, 0.975).upper < bound) is below


def drawn(rng, n, points, changed):
    """Word errors of n sentences, of which a share changes by a word; the mean is given."""
    words = rng.integers(3, 12, n)
    parent = rng.binomial(words, 0.2)
    more = (changed + points / 100 * words) / 2
    u = rng.random(n)
    change = np.where(u < more, 1, np.where(u < changed, -1, 0))
    return parent, parent + change, words


@pytest.mark.parametrize(("n", "points"), [(40, 5.0), (150, 2.0)])
@pytest.mark.parametrize("changed", [0.45, 0.7])
def test_a_worse_candidate_seldom_passes(n, points, changed):
    """Of 1,000 candidates that are worse by the bound itself, at most 5 % are below it."""
    rng = np.random.default_rng(0)
    found = [compare(*drawn(rng, n, points, changed), 0.95).upper < points for _ in range(1000)]
    assert np.mean(found) <= 0.05


@pytest.mark.parametrize(("n", "bound"), [(40, 5.0), (150, 2.0)])
def test_an_equal_candidate_mostly_passes(n, bound):
    """If a fifth of the sentences changes by a word, the sizes that are promised suffice."""
    rng = np.random.default_rng(1)
    found = [compare(*drawn(rng, n, 0.0, 0.2), 0.975).upper < bound for _ in range(1000)]
    assert np.mean(found) > 0.6


def test_many_judgements_of_one_parent():
    """The errors of all levels add up to 5 %: 1/2 + 1/6 + 1/12 + ... is 1."""
    rule = PromotionOptions()
    errors = [1 - rule.level(k) for k in range(1, 100_000)]
    assert errors[0] == pytest.approx(0.025)
    assert errors[1] == pytest.approx(0.05 / 6)
    assert sum(errors) == pytest.approx(0.05, rel=1e-4)


def test_peeking_every_night_is_allowed():
    """Judged 30 times as sentences come in, a worse candidate is promoted in at most 5 %."""
    rng = np.random.default_rng(2)
    rule = PromotionOptions()
    promoted = 0
    for _ in range(300):
        parent, candidate, words = drawn(rng, 300, 2.0, 0.45)
        sizes = range(10, 301, 10)
        promoted += any(
            compare(parent[:n], candidate[:n], words[:n], rule.level(k)).upper < rule.promotion
            for k, n in enumerate(sizes, 1)
        )
    assert promoted <= 15


def found(difference, upper, sentences=100):
    lower = 2 * difference - upper
    return Comparison(sentences, 6 * sentences, difference, lower, upper, 0.975)


def test_decisions():
    rule = PromotionOptions()
    assert decide(None, rule).action == "wait"
    assert decide(found(0, 5.0), rule).action == "wait"
    assert decide(found(0, 4.9), rule).action == "speak"
    assert decide(found(0, 2.0), rule).action == "speak"
    assert decide(found(0, 1.9), rule).action == "promote"
    assert decide(found(3, 5.9), rule).action == "reject"
    assert decide(found(3, 6.1), rule).action == "wait"


def test_the_budget_of_a_chain():
    rule = PromotionOptions()
    assert spent([1.5, 1.5, 1.5]) == pytest.approx(4.5)
    # An improvement gives back, and never more than was spent.
    assert spent([1.5, -4, 1.0]) == pytest.approx(1.0)
    assert decide(found(0, 1.5), rule, spent([1.5, 1.5, 1.5])).action == "promote"
    refused = decide(found(0, 1.6), rule, 4.5)
    assert refused.action == "speak"
    assert "1.5 left" in refused.reason
    assert decide(found(-3, -1), rule, 6.0).action == "promote"


def test_the_number_of_sentences_that_are_missing():
    """A bound that is 4 points from its difference is 2 points from it at four times the size."""
    assert "about 300 more" in decide(found(0.0, 4.0), PromotionOptions()).reason
    # Of a difference that is larger than the bound no number of sentences makes one below it.
    assert "more" not in decide(found(3.0, 4.0), PromotionOptions()).reason


@pytest.mark.parametrize(
    "wrong", [{"promotion": 6.0}, {"error": 0.0}, {"fewest": 1}, {"hours": 0.0}]
)
def test_rules_that_cannot_be(wrong):
    with pytest.raises(ConfigError):
        PromotionOptions(**wrong)
