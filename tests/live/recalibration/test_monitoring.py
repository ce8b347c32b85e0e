"""Signs by which a model that speaks is stopped, and the service that stops it."""

from dataclasses import replace

import pytest
from scipy.stats import fisher_exact

from cortext_live.recalibration.monitoring import Ratings, chance, reason_to_stop
from cortext_live.recalibration.promotion import Comparison

NONE = Ratings(0, 0), Ratings(0, 0)
WORSE = Comparison(40, 200, 6.0, 0.5, 11.5, 0.975)


@pytest.mark.parametrize(
    ("before", "now"),
    [((2, 20), (9, 20)), ((0, 5), (5, 5)), ((3, 10), (0, 8)), ((0, 0), (4, 6)), ((7, 7), (7, 7))],
)
def test_chance_is_that_of_fishers_exact_test(before, now):
    (wrong, rated), (wrong_now, rated_now) = before, now
    table = [[wrong_now, rated_now - wrong_now], [wrong, rated - wrong]]
    expected = fisher_exact(table, alternative="greater").pvalue
    assert chance(Ratings(*before), Ratings(*now)) == pytest.approx(expected)


def test_each_sign_alone_stops_and_weaker_ones_do_not():
    stop = reason_to_stop(WORSE, None, NONE, 0.05, 0.025)
    assert stop == (
        "on 40 corrected sentences it makes 6.0 points more word errors than the model before it,"
        " at least 0.5"
    )
    assert not reason_to_stop(replace(WORSE, lower=0.0), None, NONE, 0.05, 0.025)
    stop = reason_to_stop(None, (0.9, 0.8), NONE, 0.05, 0.025)
    assert stop == "its confidence is 0.80, that of the model before it 0.90"
    assert not reason_to_stop(None, (0.9, 0.86), NONE, 0.05, 0.025)
    better = Comparison(40, 200, -1.0, -6.5, 4.5, 0.975)
    assert not reason_to_stop(better, (0.9, 0.8), NONE, 0.05, 0.025)
    assert reason_to_stop(replace(better, difference=0.0), (0.9, 0.8), NONE, 0.05, 0.025) == stop
    # One way of 252 draws all five wrong ones from ten: 0.004.
    stop = reason_to_stop(None, None, (Ratings(0, 5), Ratings(5, 5)), 0.05, 0.025)
    assert stop == "5 of its 5 rated sentences are wrong, and 0 of 5 of the model before it"
    assert not reason_to_stop(None, None, (Ratings(0, 5), Ratings(5, 5)), 0.05, 0.003)
    assert not reason_to_stop(None, None, NONE, 0.05, 0.025)
