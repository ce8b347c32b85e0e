"""The few shapes of a run's batches: XLA compiles a step anew for every one."""

from __future__ import annotations

import numpy as np

from cortext.data.packed import PackedSplit
from cortext.data.sampler import DayBalancedSampler
from cortext.training.backend import Job
from cortext.training.batches import TrainBatch

BATCHES = 1000
"""Batches of the sampler by whose lengths the shapes are chosen."""


class Shapes:
    """Lengths to one of which every batch of a split is padded: those that add least padding.

    Args:
        split: The trials.
        count: Most lengths.
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
        """The lengths in bins, shortest first."""
        self.labels = max(1, int(split.n_labels_N.max(initial=0)))
        """Tokens to which every label is padded."""

    @classmethod
    def of(cls, job: Job) -> Shapes:
        """Choose the lengths of a run."""
        model = job.model.network.config
        return cls(
            job.split,
            job.config.tpu.length_shapes,
            model.patch_size,
            model.patch_stride,
            job.sampler,
        )

    def bins(self, indices: np.ndarray) -> int:
        """Return the length in bins of a batch of the trials of `indices`."""
        return self.padded(int(self._n_bins_N[indices].max()))

    def padded(self, n_bins: int) -> int:
        """Return the shortest length that holds `n_bins`, or a multiple of the longest."""
        fitting = [length for length in self.all if length >= n_bins]
        return fitting[0] if fitting else self.all[-1] * -(-n_bins // self.all[-1])

    def pad(self, batch: TrainBatch, least: int, cores: int) -> dict[str, np.ndarray]:
        """Pad a batch to one of the lengths, and to trials that cores share evenly.

        Args:
            batch: The batch.
            least: Fewest trials.
            cores: Cores that share them.

        Returns:
            features float32 [B, T, C], day and n_patches int32 [B]. Added trials are one patch of
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
        """Bins, rounded up to the end of a patch."""
        beyond_N = np.maximum(0, n_bins_N - self._size)
        rounded_N: np.ndarray = self._size + -(-beyond_N // self._stride) * self._stride
        return rounded_N


def least_padding(lengths_N: np.ndarray, count: int) -> list[int]:
    """Choose the lengths, the longest among them, that add least padding; at most `count`.

    Each trial is padded to the next of them. This is dynamic programming over the different
    lengths: the cheapest way to cover the first j of them with k.
    """
    lengths, trials = np.unique(lengths_N, return_counts=True)
    before = np.concatenate([[0], np.cumsum(trials)])
    # padded[i, j]: cost of padding lengths i to j to the j-th
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
