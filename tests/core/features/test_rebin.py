"""Rebinning, against hand computation and a slow reference in exact fractions."""

from fractions import Fraction

import numpy as np
import pytest

from cortext.errors import ConfigError, CortextError, DataError, WrongType
from cortext.features import rebin


def slow(x_TC: np.ndarray, from_ms: Fraction, to_ms: Fraction, sums: set[int]) -> np.ndarray:
    """Weigh every old bin with its overlap, one number after the other."""
    n_bins = int(len(x_TC) * from_ms / to_ms)
    found = np.zeros((n_bins, x_TC.shape[1]), np.float32)
    for j in range(n_bins):
        for c in range(x_TC.shape[1]):
            total = Fraction(0)
            for i in range(len(x_TC)):
                begin = max(i * from_ms, j * to_ms)
                end = min((i + 1) * from_ms, (j + 1) * to_ms)
                if end > begin:
                    total += Fraction(float(x_TC[i, c])) * (end - begin)
            found[j, c] = float(total / (from_ms if c in sums else to_ms))
    return found


def test_counts_are_summed_and_power_is_averaged() -> None:
    x_TC = np.array([[1, 1], [2, 2], [3, 3], [4, 4], [9, 9]])
    # The fifth bin fills no whole bin of 20 ms.
    assert rebin(x_TC, 10, 20, sums=[0]).tolist() == [[3, 1.5], [7, 3.5]]
    assert rebin(x_TC, 10, 20).tolist() == [[1.5, 1.5], [3.5, 3.5]]
    assert rebin(x_TC, 10, 20).dtype == np.float32


def test_bins_of_25_ms_are_parted_among_bins_of_20_ms() -> None:
    # 100 ms: 25 25 25 25 becomes 20 20 20 20 20; the second new bin has 5 and 15 ms of two old ones.
    x_TC = np.array([[5.0, 5.0], [10, 10], [20, 20], [40, 40]])
    means = [5, (5 * 5 + 15 * 10) / 20, (10 * 10 + 10 * 20) / 20, (15 * 20 + 5 * 40) / 20, 40]
    sums = [5 * 0.8, 5 * 0.2 + 10 * 0.6, 10 * 0.4 + 20 * 0.4, 20 * 0.6 + 40 * 0.2, 40 * 0.8]
    np.testing.assert_array_equal(
        rebin(x_TC, 25, 20, sums=[1]), np.array([means, sums], np.float32).T
    )


@pytest.mark.parametrize(
    ("from_ms", "to_ms"), [(10, 20), (5, 50), (20, 20), (7.5, 20), (25, 20), (20, 10), (1, 6.25)]
)
def test_it_agrees_with_the_slow_reference(from_ms: float, to_ms: float) -> None:
    x_TC = np.random.default_rng(int(to_ms)).standard_normal((61, 3), dtype=np.float32)
    expected = slow(x_TC, Fraction(from_ms), Fraction(to_ms), {0, 2})
    np.testing.assert_allclose(rebin(x_TC, from_ms, to_ms, sums=(2, 0)), expected, rtol=2e-7)


def test_whole_ratios_are_exact_and_sums_keep_all_counts() -> None:
    counts_TC = np.random.default_rng(0).integers(0, 2**20, (60_000, 2))
    expected = counts_TC.reshape(-1, 4, 2).sum(axis=1).astype(np.float32)
    np.testing.assert_array_equal(rebin(counts_TC, 5, 20, sums=[0, 1]), expected)
    np.testing.assert_array_equal(rebin(counts_TC, 20, 20), counts_TC.astype(np.float32))


def test_nothing_outside_a_bin_changes_it() -> None:
    x_TC = np.array([[1.0], [3.0], [np.inf], [1.0], [5.0]])
    assert rebin(x_TC, 10, 20).ravel().tolist() == [2, np.inf]
    assert rebin(x_TC[:1], 10, 20).shape == (0, 1)
    assert rebin(x_TC[:0], 10, 20).shape == (0, 1)
    assert rebin(x_TC, 0.001, 1000).shape == (0, 1)
    # Lengths that no fraction of small numbers has.
    assert rebin(np.ones((60_000, 1)), 33.3337, 19.99991).shape == (100_001, 1)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((np.ones(3), 10, 20), DataError, r"shape \[3\]"),
        ((np.ones((3, 1)), 0, 20), ConfigError, "from_ms is 0; 0.001 to 1,000 ms"),
        ((np.ones((3, 1)), 10, -20), ConfigError, "to_ms is -20"),
        ((np.ones((3, 1)), 10, float("nan")), CortextError, "to_ms"),
        ((np.ones((3, 1)), "10", 20), WrongType, "from_ms"),
        ((np.ones((3, 1)), 10, 20, [1]), ConfigError, "sums names feature 1; the data has 0 to 0"),
        ((np.ones((3, 1)), 10, 20, [-1]), ConfigError, "a feature of sums is -1"),
        ((np.ones((3, 1)), 10, 20, [0.5]), WrongType, "a feature of sums"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(
    arguments: tuple, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        rebin(*arguments)
    assert "\n" not in str(caught.value)
