"""The few shapes of a run's batches: XLA compiles a step anew for every one."""

from __future__ import annotations

import numpy as np

from cortext.data.packed import PackedSplit


class Shapes:
    """Lengths to one of which every batch of a split is padded.

    count:                    at most so many lengths, which as many trials each are no longer than
    patch_size, patch_stride: bins; a length ends with a whole patch
    """

    def __init__(self, split: PackedSplit, count: int, patch_size: int, patch_stride: int) -> None:
        self._n_bins_N, self._size, self._stride = split.n_bins_N, max(patch_size, 1), patch_stride
        longest = np.quantile(split.n_bins_N, np.arange(1, count + 1) / count, method="higher")
        self.all = tuple(sorted({self._whole(int(n_bins)) for n_bins in longest}))
        """The lengths in bins, shortest first."""
        self.labels = max(1, int(split.n_labels_N.max(initial=0)))
        """Tokens to which every label is padded."""

    def bins(self, indices: np.ndarray) -> int:
        """The length in bins of a batch of the trials of `indices`."""
        return self.padded(int(self._n_bins_N[indices].max()))

    def padded(self, n_bins: int) -> int:
        """The shortest length that holds `n_bins`; beyond the longest of all, as many times that as are needed."""
        fitting = [length for length in self.all if length >= n_bins]
        return fitting[0] if fitting else self.all[-1] * -(-n_bins // self.all[-1])

    def _whole(self, n_bins: int) -> int:
        """`n_bins` and what is missing to the end of a patch."""
        beyond = max(0, n_bins - self._size)
        return self._size + -(-beyond // self._stride) * self._stride
