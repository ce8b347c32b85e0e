"""Smoothing of features as they arrive; chunks of any size give the same bits.

T bins of 20 ms, C features, K taps.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from cortext.features.smooth import gaussian_kernel


class StreamSmoother:
    """Gaussian smoothing over time of an endless recording.

    The first smoothed bin is returned once a full kernel of bins has been pushed.

    Args:
        std_bins: Standard deviation of the kernel, in bins.
        size: Points of the kernel before its tails are cut; see `gaussian_kernel`.
        kind: `published` is the symmetric kernel with padding 'valid', as at evaluation. `causal`
            is its past half and its centre, renormalised: it waits for no later bin, and smooths
            less.

    Attributes:
        look_ahead_bins: Number of later bins that a smoothed bin needs.
        lost_bins: Number of bins pushed less bins returned, K - 1.
    """

    def __init__(
        self,
        std_bins: float = 2,
        size: int = 100,
        kind: Literal["published", "causal"] = "published",
    ) -> None:
        kernel_K = gaussian_kernel(std_bins, size)
        self.look_ahead_bins = len(kernel_K) - 1 - (len(kernel_K) - 1) // 2
        if kind == "causal":
            kernel_K = kernel_K[: len(kernel_K) - self.look_ahead_bins]
            kernel_K = kernel_K / kernel_K.sum()
            self.look_ahead_bins = 0
        self._kernel_K: list[np.float32] = list(kernel_K)
        self.lost_bins = len(kernel_K) - 1
        self._last_TC: np.ndarray | None = None

    def reset(self) -> None:
        """Forget all bins: the next bin is the first of a recording."""
        self._last_TC = None

    def push(self, x_TC: np.ndarray) -> np.ndarray:
        """Take the next bins, float32 [T, C]; return the bins smoothed by them, float32 [T', C]."""
        x_TC = x_TC if self._last_TC is None else np.concatenate((self._last_TC, x_TC))
        n_out = max(len(x_TC) - self.lost_bins, 0)
        self._last_TC = x_TC[n_out:].copy()
        # Each number is the sum of the same products in the same order, whatever the size of the
        # chunk. A matrix product or a convolution does not promise that.
        sum_TC = x_TC[:n_out] * self._kernel_K[0]
        product_TC = np.empty_like(sum_TC)
        for lag, tap in enumerate(self._kernel_K[1:], start=1):
            np.multiply(x_TC[lag : lag + n_out], tap, out=product_TC)
            sum_TC += product_TC
        return sum_TC
