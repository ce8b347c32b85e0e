"""Few lengths hold all batches, with as little padding as so few can have."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cortext.data.sampler import DayBalancedSampler
from cortext.training.batches import TrainBatch
from cortext_tpu.shapes import Shapes, least_padding


def make_shapes(n_bins, count, n_labels=(3, 7, 5), sampler=None):
    split = SimpleNamespace(n_bins_N=np.array(n_bins), n_labels_N=np.array(n_labels))
    return Shapes(split, count, 14, 4, sampler)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_no_other_lengths_would_pad_less(count):
    rng = np.random.default_rng(count)
    for _ in range(20):
        lengths = rng.integers(1, 12, rng.integers(1, 30))
        different = np.unique(lengths)

        def padded(chosen, lengths=lengths):
            return sum(min(edge for edge in chosen if edge >= length) for length in lengths)

        others = itertools.chain(*(itertools.combinations(different, k) for k in range(count)))
        best = min(padded({*chosen, different[-1]}) for chosen in others)
        found = least_padding(lengths, count)
        assert len(found) <= count
        assert found[-1] == different[-1]
        assert padded(found) == best


def test_a_batch_is_padded_to_the_shortest_length_that_holds_its_longest_trial():
    shapes = make_shapes([20, 30, 30, 60, 90, 90], 2)
    assert shapes.all == (30, 90)  # 14 + 4 x 4, 14 + 19 x 4
    assert shapes.bins(np.array([0, 1])) == 30
    assert shapes.bins(np.array([0, 3])) == 90


def test_lengths_end_with_a_whole_patch():
    assert make_shapes([15, 61], 2).all == (18, 62)  # 14 + 4, 14 + 12 x 4


def test_longer_trials_than_any_of_training_get_a_multiple_of_the_longest():
    shapes = make_shapes([20, 30, 60, 90], 2)
    assert shapes.padded(91) == 180
    assert shapes.padded(200) == 270


@pytest.mark.parametrize(
    ("least", "cores", "n_rows"),
    # Three trials never are fewer, and cores have as many each.
    [
        (4, 2, 4),
        (2, 1, 3),
        (2, 2, 4),
        (6, 4, 8),
    ],
)
def test_a_batch_is_padded_to_rows_that_the_cores_share(least, cores, n_rows):
    x_BTC = np.random.default_rng(0).normal(size=(3, 50, 2)).astype(np.float32)
    day_B, n_patches_B, none = torch.tensor([2, 0, 1]), torch.tensor([10, 4, 7]), torch.zeros(3)
    batch = TrainBatch(
        torch.from_numpy(x_BTC), day_B, none, n_patches_B, none, none, np.arange(3), none
    )
    padded = make_shapes([20, 30, 60, 90], 2).pad(batch, least, cores)
    assert padded["features"].shape == (n_rows, 90, 2)
    assert np.array_equal(padded["features"][:3, :50], x_BTC)
    assert np.abs(padded["features"]).sum() == pytest.approx(np.abs(x_BTC).sum(), rel=1e-6)
    assert padded["day"].tolist() == [2, 0, 1] + [0] * (n_rows - 3)
    assert padded["n_patches"].tolist() == [10, 4, 7] + [1] * (n_rows - 3)


def test_labels_are_padded_to_the_longest():
    assert make_shapes([50, 60], 3).labels == 7


def test_lengths_are_those_of_the_samplers_batches():
    """Batches of 8 of these trials have one of the longest.

    A length for short trials would be in vain.
    """
    n_bins = np.arange(100, 200)
    days = np.repeat([0, 1], 50)
    sampler = DayBalancedSampler(days, 8, 2, 0, n_bins_N=n_bins)
    alone, drawn = make_shapes(n_bins, 2), make_shapes(n_bins, 2, sampler=sampler)
    assert alone.all[0] < 160 < drawn.all[0]
    assert alone.all[-1] == drawn.all[-1] == 202
