"""The few shapes of a run's batches: XLA compiles a step for every shape."""

from __future__ import annotations

import numpy as np

from cortext.data.packed import PackedSplit
from cortext.data.sampler import DayBalancedSampler
from cortext.training.backend import Job
from cortext.training.batches import TrainBatch

BATCHES = 1000
"""Number of the sampler's batches whose lengths the shapes are chosen for."""


class Shapes:
    """Lengths that the batches of a split are padded to, chosen to add the least padding.

    Args:
        split: The trials.
        count: Most lengths to choose.
        patch_size: Bins of a patch.
        patch_stride: Bins from one patch to the next; a length ends with a whole patch.
        sampler: Draws the batches; None takes every trial as a batch of its own.
    """

    def __init__(
        self,
        split: PackedSplit,
        count: int,
        patch_size: int,
        patch_stride: int,
        sampler: DayBalancedSampler | None = None,
    ) -> None:
        self._n_bins_N = split.n_bins_N
        self._size = max(patch_size, 1)
        self._stride = patch_stride
        lengths = split.n_bins_N
        if sampler is not None:
            batches = [int(split.n_bins_N[sampler.indices(step)].max()) for step in range(BATCHES)]
            lengths = np.array([*batches, int(split.n_bins_N.max())])
        self.all = tuple(least_padding(self._rounded_up(lengths), count))
        """Lengths in bins, shortest first."""
        self.labels = max(1, int(split.n_labels_N.max(initial=0)))
        """Number of tokens that every label is padded to."""

    @classmethod
    def of(cls, job: Job) -> Shapes:
        """Choose the lengths for a run."""
        model = job.model.network.config
        return cls(
            job.split,
            job.config.tpu.length_shapes,
            model.patch_size,
            model.patch_stride,
            job.sampler,
        )

    def bins(self, indices: np.ndarray) -> int:
        """Return the length in bins that a batch of the trials `indices` is padded to."""
        return self.padded(int(self._n_bins_N[indices].max()))

    def padded(self, n_bins: int) -> int:
        """Return the shortest length that holds `n_bins`, or a multiple of the longest."""
        fitting = [length for length in self.all if length >= n_bins]
        return fitting[0] if fitting else self.all[-1] * -(-n_bins // self.all[-1])

    def pad(self, batch: TrainBatch, least: int, cores: int) -> dict[str, np.ndarray]:
        """Pad a batch to one of the lengths, and to a number of trials that cores share evenly.

        Args:
            batch: The batch.
            least: Fewest trials.
            cores: Number of cores that share the trials.

        Returns:
            features float32 [B, T, C], day and n_patches int32 [B]. Added trials have one patch of
            zeros.
        """
        n_trials, n_bins, n_features = batch.x_BTC.shape
        n_rows = -(-max(n_trials, least) // cores) * cores
        features_BTC = np.zeros((n_rows, self.padded(n_bins), n_features), np.float32)
        features_BTC[:n_trials, :n_bins] = batch.x_BTC.numpy()
        day_B = np.zeros(n_rows, np.int32)
        n_patches_B = np.ones(n_rows, np.int32)
        day_B[:n_trials] = batch.day_B.numpy()
        n_patches_B[:n_trials] = batch.n_patches_B.numpy()
        return {"features": features_BTC, "day": day_B, "n_patches": n_patches_B}

    def _rounded_up(self, n_bins_N: np.ndarray) -> np.ndarray:
        """Return the bins, rounded up to the end of a patch."""
        beyond_N = np.maximum(0, n_bins_N - self._size)
        rounded_N: np.ndarray = self._size + -(-beyond_N // self._stride) * self._stride
        return rounded_N


def least_padding(lengths_N: np.ndarray, count: int) -> list[int]:
    """Choose at most `count` lengths, the longest among them, that add the least padding.

    Each trial is padded to the next chosen length. The method is dynamic programming over the
    different lengths: the cheapest way to cover the first j lengths with k chosen ones.
    """
    lengths, trials = np.unique(lengths_N, return_counts=True)
    before = np.concatenate([[0], np.cumsum(trials)])
    # padded[i, j]: cost of padding the i-th to j-th length to the j-th
    padded = np.where(
        np.tri(len(lengths), dtype=bool).T, (before[1:] - before[:-1, None]) * lengths, np.inf
    )
    cost = padded[0]
    begins = []
    for _ in range(min(count, len(lengths)) - 1):
        # The last length covers the trials i to j.
        through = np.concatenate([[0.0], cost[:-1]])[:, None] + padded
        begins.append(through.argmin(0))
        cost = through.min(0)
    chosen = []
    last = len(lengths) - 1
    for begin in reversed(begins):
        chosen.append(last)
        last = int(begin[last]) - 1
        if last < 0:
            break
    else:
        chosen.append(last)
    return [int(lengths[i]) for i in reversed(chosen)]
