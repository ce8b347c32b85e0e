"""Outliers do not spoil a mean and a deviation, and real changes are followed."""

import numpy as np
import pytest

from cortext.data.outliers import Outliers, features_named
from cortext.data.scaling import Moments, RollingZScore, by_bin, trial_moments

N = 20
"""Features: eight of them far out are enough for a bin to count for nothing."""


def utterances(n, seed=0, n_bins=100, n_features=N):
    rng = np.random.default_rng(seed)
    return [rng.normal(5, 2, (n_bins, n_features)).astype(np.float32) for _ in range(n)]


def after(recorded, normaliser=None):
    normaliser = normaliser or RollingZScore(recorded[0].shape[1])
    for x_TC in recorded:
        normaliser.push(x_TC)
        normaliser.end_utterance()
    return normaliser


def moments_of(recorded):
    x_TC = np.concatenate(recorded).astype(np.float64)
    return x_TC.mean(axis=0), x_TC.std(axis=0)


@pytest.mark.parametrize("value", [1e3, 1e9, -1e9])
@pytest.mark.parametrize("bin_", [0, 63, 99])
def test_a_bin_with_many_features_far_out_counts_for_nothing(value, bin_):
    recorded = utterances(10)
    recorded[7][bin_, :8] = value
    mean_C, std_C = moments_of([*recorded[:7], np.delete(recorded[7], bin_, 0), *recorded[8:]])
    normaliser = after(recorded)
    np.testing.assert_allclose(normaliser.statistics[0], mean_C, rtol=1e-12)
    np.testing.assert_allclose(normaliser.statistics[1], std_C, rtol=1e-12)


def test_a_far_value_of_one_feature_counts_as_ten_deviations():
    recorded = utterances(10)
    recorded[7][5, 3] = 1e9
    mean_C, std_C = moments_of(recorded[:7])
    near = [x_TC.astype(np.float64) for x_TC in recorded]
    near[7][5, 3] = mean_C[3] + 10 * std_C[3]
    expected = moments_of(near)
    normaliser = after(recorded)
    np.testing.assert_allclose(normaliser.statistics[0], expected[0], rtol=1e-9)
    np.testing.assert_allclose(normaliser.statistics[1], expected[1], rtol=1e-9)


@pytest.mark.parametrize("features", [1, N])
@pytest.mark.parametrize("bin_", [0, 3, 30, 130])
def test_an_artefact_of_a_cold_start_is_found_as_good_bins_come(features, bin_):
    """The median knows by the 25th bin; a far value of one feature then counts as the median."""
    x_TC = utterances(1, n_bins=225)[0]
    clean_mean_C, clean_std_C = moments_of([x_TC])
    x_TC[bin_, :features] = 1e9
    normaliser = RollingZScore(N, least_bins=200)
    normaliser.push(x_TC[:60])
    normaliser.end_utterance()
    normaliser.push(x_TC[60:])
    normaliser.end_utterance()
    np.testing.assert_allclose(normaliser.statistics[0], clean_mean_C, atol=0.05)
    np.testing.assert_allclose(normaliser.statistics[1], clean_std_C, rtol=0.05)


def test_a_warm_start_is_never_taken_from_spoilt_statistics():
    recorded = utterances(5)
    recorded[4][50] = 1e9
    normaliser = after(recorded)
    normaliser.start_block()
    assert (normaliser.statistics[1] < 2.5).all()


def test_a_given_warm_start_that_is_spoilt_is_dropped_once_the_block_is_known():
    normaliser = RollingZScore(N)
    normaliser.start_block(np.full(N, 500.0), np.full(N, 1e5))
    recorded = utterances(3)
    after(recorded, normaliser)
    mean_C, std_C = moments_of(recorded)
    np.testing.assert_allclose(normaliser.statistics[0], mean_C, rtol=1e-9)
    np.testing.assert_allclose(normaliser.statistics[1], std_C, rtol=1e-9)
    assert normaliser.n_changes == 1


def test_a_new_level_of_one_feature_is_followed_within_the_window():
    recorded = utterances(10)
    changed = utterances(23, seed=1)
    for x_TC in changed:
        x_TC[:, 3] = 1000 * x_TC[:, 3]
    normaliser = after(changed, after(recorded))
    expected = moments_of(changed[-20:])
    np.testing.assert_allclose(normaliser.statistics[0], expected[0], rtol=0.01)
    np.testing.assert_allclose(normaliser.statistics[1], expected[1], rtol=0.03)


def test_a_new_gain_of_all_features_is_followed_after_three_utterances():
    normaliser = after(utterances(20))
    changed = [1000 * x_TC for x_TC in utterances(6, seed=1)]
    after(changed[:3], normaliser)
    assert normaliser.n_changes == 1
    expected = moments_of(changed[:3])
    np.testing.assert_allclose(normaliser.statistics[0], expected[0], rtol=1e-6)
    after(changed[3:], normaliser)
    expected = moments_of(changed)
    np.testing.assert_allclose(normaliser.statistics[1], expected[1], rtol=1e-6)


def test_sparse_spikes_are_no_outliers():
    """A spike of a unit with one in 200 bins lies 14 deviations from the mean.

    Of a unit that fired twice in one bin only once, the second spike may count as less.
    """
    rng = np.random.default_rng(0)
    recorded = [rng.poisson(0.005, (150, 200)).astype(np.float32) for _ in range(60)]
    normaliser = after(recorded)
    mean_C, std_C = moments_of(recorded[-20:])
    same_C = np.isclose(normaliser.statistics[0], mean_C, rtol=0.01)
    same_C &= np.isclose(normaliser.statistics[1], std_C, rtol=0.01)
    assert same_C.mean() > 0.9


def test_statistics_without_outliers_are_those_of_all_bins_to_the_bit():
    recorded = utterances(8)
    expected = sum(map(Moments.of, recorded[1:]), Moments.of(recorded[0]))
    parts = [trial_moments(x_TC) for x_TC in recorded]
    found = sum((part for part, _ in parts[1:]), parts[0][0])
    assert found.mean_C.tobytes() == expected.mean_C.tobytes()
    assert found.squares_C.tobytes() == expected.squares_C.tobytes()
    assert not any(outliers for _, outliers in parts)


@pytest.mark.parametrize("kind", [RollingZScore, by_bin])
@pytest.mark.parametrize("sizes", [[1], [7, 2], [64], [1000]])
def test_scores_with_outliers_are_the_same_bits_in_any_chunking(kind, sizes):
    recorded = utterances(6)
    recorded[0][2, :] = 1e6
    recorded[3][40, 2] = 1e4
    recorded[4][70:90, :] = -1e5
    whole, pieces = kind(N), kind(N)
    for x_TC in recorded:
        found, first, turn = [], 0, 0
        while first < len(x_TC):
            size = sizes[turn % len(sizes)]
            found.append(pieces.push(x_TC[first : first + size]))
            first, turn = first + size, turn + 1
        assert np.concatenate(found).tobytes() == whole.push(x_TC).tobytes()
        assert str(whole.outliers) == str(pieces.outliers)
        whole.end_utterance()
        pieces.end_utterance()


def test_outliers_are_counted_and_named():
    recorded = utterances(6)
    normaliser = after(recorded[:4])
    recorded[4][10, 17] = 1e5
    recorded[4][80:83] = 1e5
    after(recorded[4:5], normaliser)
    found = normaliser.outliers
    assert (found.n_bins, found.first_bin, found.first_value) == (3, 80, 10)
    assert str(found) == "3 bins with many features far out, 1 value far out in feature 17"
    after(recorded[5:], normaliser)
    assert not normaliser.outliers
    assert str(Outliers()) == ""


def test_many_features_are_named_by_the_first():
    assert features_named([3]) == "feature 3"
    assert features_named(range(12)) == "features 0, 1, 2, 3, 4 and 7 more"


def test_an_artefact_of_a_trial_does_not_count_in_the_trials_moments():
    x_TC = utterances(1)[0]
    mean_C, std_C = moments_of([np.delete(x_TC, [4, 5], 0)])
    x_TC[4:6] = 1e9
    found, outliers = trial_moments(x_TC)
    np.testing.assert_allclose(found.mean_C, mean_C, rtol=1e-12)
    np.testing.assert_allclose(found.std_C, std_C, rtol=1e-12)
    assert outliers.n_bins == 2


def test_values_among_zeros_are_their_features_own_in_a_trial():
    """Nine in ten values are zero, the others spread from small to large: no outliers."""
    rng = np.random.default_rng(3)
    x_TC = np.where(rng.random((300, 4)) < 0.1, rng.lognormal(0, 1, (300, 4)), 0)
    found, outliers = trial_moments(x_TC)
    np.testing.assert_allclose(found.std_C, x_TC.std(axis=0), rtol=1e-12)
    assert not outliers


@pytest.mark.parametrize("first", [0, 30])
def test_features_that_stand_still_for_a_minute_do_not_change_the_statistics(first):
    """A plug that falls out, or a server that sends zeros: what comes back is scored as before."""
    rng = np.random.default_rng(4)
    recorded = [rng.poisson(2, (150, N)).astype(np.float32) for _ in range(20)]
    normaliser = after(recorded)
    mean_C, std_C = normaliser.statistics
    for x_TC in (still := [x_TC.copy() for x_TC in recorded]):
        x_TC[first:, :12] = 0
    after(still, normaliser)
    # Until 50 equal values they may be a silence, and count.
    np.testing.assert_allclose(normaliser.statistics[0], mean_C, atol=0.25 if first == 0 else 1.2)
    if first == 0:
        np.testing.assert_allclose(normaliser.statistics[1], std_C, rtol=0.05)
        assert not normaliser.outliers


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_long_artefact_taken_for_a_change_is_left_behind_three_utterances_later(share):
    """All of three utterances is an artefact of many features; then all is as before."""
    n_features = 80
    recorded = utterances(20, n_features=n_features)
    normaliser = after(recorded)
    for x_TC in (spoilt := utterances(3, seed=1, n_features=n_features)):
        x_TC[:, : int(share * n_features)] = 1e6 * np.where(np.arange(100) % 2, 1, -1)[:, None]
    after(spoilt, normaliser)
    assert (normaliser.statistics[1][: int(share * n_features)] > 1e5).all()
    later = utterances(3, seed=2, n_features=n_features)
    after(later, normaliser)
    mean_C, std_C = moments_of(later)
    np.testing.assert_allclose(normaliser.statistics[0], mean_C, rtol=1e-6)
    np.testing.assert_allclose(normaliser.statistics[1], std_C, rtol=1e-6)
    assert normaliser.n_changes == 2


def test_the_rare_spikes_of_silent_units_are_not_named():
    """A nurse reads a line for each fault: a usual day has none."""
    rng = np.random.default_rng(0)
    rate_C = np.where(np.arange(40) < 10, 0.001, 0.5)
    normaliser = RollingZScore(40)
    for _ in range(40):
        normaliser.push(rng.poisson(rate_C, (200, 40)).astype(np.float32))
        assert not normaliser.outliers
        normaliser.end_utterance()
    x_TC = rng.poisson(rate_C, (200, 40)).astype(np.float32)
    x_TC[30, 20] = 65535
    normaliser.push(x_TC)
    normaliser.end_utterance()
    assert str(normaliser.outliers) == "1 value far out in feature 20"
