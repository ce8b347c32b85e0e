"""Z-scores of recorded features: over a block, and causal ones."""

import numpy as np
import pytest

from cortext.data.scaling import ROLLING_TRIALS, Moments, by_bin


def trials(n, seed=0, n_features=3, scale=1.0, offset=0.0):
    rng = np.random.default_rng(seed)
    return [
        offset + scale * rng.normal(size=(int(rng.integers(5, 30)), n_features)) for _ in range(n)
    ]


def test_moments_by_hand():
    found = Moments.of(np.array([[1.0, 5.0], [3.0, 5.0], [8.0, 5.0]]))
    assert found.n == 3
    assert found.mean_C.tolist() == [4.0, 5.0]
    assert found.squares_C.tolist() == [26.0, 0.0]  # 9 + 1 + 16


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_moments_of_parts_are_those_of_all_their_bins(offset):
    parts = trials(7, offset=offset)
    whole = np.concatenate(parts)
    found = Moments.total(map(Moments.of, parts)).scale()
    np.testing.assert_allclose(found.mean_C, whole.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.sd_C, whole.std(axis=0), rtol=1e-6)


def test_a_constant_feature_becomes_zero():
    x_TC = np.array([[2.0, 0.1], [4.0, 0.1], [6.0, 0.1]], np.float32)
    z_TC = Moments.of(x_TC).scale()(x_TC)
    expected = np.sqrt(1.5)
    np.testing.assert_allclose(z_TC, [[-expected, 0], [0, 0], [expected, 0]], rtol=1e-6)


def oracle(recorded, number):
    """Z-score each bin over the last trials and the trial so far, by their definition."""
    before = recorded[max(0, number - ROLLING_TRIALS) : number]
    rows = []
    for t in range(len(recorded[number])):
        seen = np.concatenate([*before, recorded[number][: t + 1]])
        sd = seen.std(axis=0)
        rest = recorded[number][t] - seen.mean(axis=0)
        rows.append(np.where(sd > 1e-6, rest / np.maximum(sd, 1e-6), 0))
    return np.array(rows)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_causal_scores_are_those_of_the_last_trials_and_the_bins_so_far(offset):
    recorded = trials(ROLLING_TRIALS + 4, offset=offset)
    scale = by_bin(3)
    for number, x_TC in enumerate(recorded):
        np.testing.assert_allclose(scale.push(x_TC), oracle(recorded, number), atol=1e-4)
        scale.end_utterance()


def test_causal_scores_are_the_same_bit_for_bit_in_any_pieces():
    recorded = trials(5, seed=3)
    whole, pieces = by_bin(3), by_bin(3)
    rng = np.random.default_rng(4)
    for x_TC in recorded:
        cuts = np.sort(rng.integers(0, len(x_TC), size=3))
        found = [pieces.push(part) for part in np.split(x_TC, cuts)]
        assert np.array_equal(np.concatenate(found), whole.push(x_TC))
        whole.end_utterance()
        pieces.end_utterance()


def test_a_start_stands_for_earlier_trials():
    recorded = trials(6, seed=5)
    started = by_bin(3, map(Moments.of, recorded[:5]))
    np.testing.assert_allclose(started.push(recorded[5]), oracle(recorded, 5), atol=1e-5)


def test_the_first_bin_of_all_is_zero():
    assert by_bin(2).push(np.array([[3.0, -7.0]])).tolist() == [[0.0, 0.0]]
