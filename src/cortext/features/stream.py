"""Smoothing and normalisation of features as they arrive; chunks of any size give the same bits.

T bins of 20 ms, C features, K taps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from cortext.errors import DataError
from cortext.features.smooth import gaussian_kernel

BLOCK_BINS = 64
"""Number of bins whose moments are taken together, in whatever chunks they arrive."""

SMALLEST_STD = 1e-6
"""Ratio of a feature's standard deviation to its mean up to which the feature counts as constant.

Such a deviation is only the rounding of float32.
"""


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


@dataclass
class _Moments:
    """Number of bins, their mean and the sum of squared distances from it, float64 [C]."""

    n_bins: int
    mean_C: np.ndarray
    squares_C: np.ndarray

    @classmethod
    def of(cls, x_TC: np.ndarray) -> _Moments:
        mean_C = x_TC.mean(axis=0, dtype=np.float64)
        return cls(len(x_TC), mean_C, np.square(x_TC - mean_C).sum(axis=0))

    def __add__(self, other: _Moments) -> _Moments:
        # Chan, Golub & LeVeque (1983). A plain sum of squares loses its digits to large means.
        n_bins = self.n_bins + other.n_bins
        if not n_bins:
            return self
        apart_C = other.mean_C - self.mean_C
        share = other.n_bins / n_bins
        return _Moments(
            n_bins,
            self.mean_C + apart_C * share,
            self.squares_C + other.squares_C + np.square(apart_C) * (self.n_bins * share),
        )

    @cached_property
    def std_C(self) -> np.ndarray:
        return np.sqrt(self.squares_C / max(self.n_bins, 1))

    @cached_property
    def scale_C(self) -> np.ndarray:
        """Factors that make the standard deviations 1; 0 for a constant feature."""
        scale_C = np.zeros_like(self.std_C)
        np.divide(
            1.0, self.std_C, out=scale_C, where=self.std_C > SMALLEST_STD * np.abs(self.mean_C)
        )
        return scale_C


class RollingZScore:
    """Z-scores of features by a rolling mean and standard deviation.

    The statistics combine three parts: the block's latest utterances; the utterance in progress up
    to its last whole `BLOCK_BINS`; and the statistics that the block began with (warm start), which
    count as `least_bins` bins. The last are those of the block before, or given ones. Until
    `least_bins` bins are known (cold start), every bin is scored against all bins up to itself. A
    constant feature gives 0.

    The statistics of utterances are summed anew each time. A running sum, from which old utterances
    are subtracted, would gather rounding errors over hours.

    Args:
        n_features: Features of a bin, C.
        window_utterances: Number of latest utterances that count.
        least_bins: Fewest bins for statistics to be used.
        limit: Largest absolute value of a z-score; larger ones are clipped.
    """

    def __init__(
        self,
        n_features: int,
        *,
        window_utterances: int = 20,
        least_bins: int = 250,
        limit: float = 10.0,
    ) -> None:
        self.n_features = n_features
        self.limit = limit
        self._least_bins = least_bins
        self._utterances: deque[_Moments] = deque(maxlen=window_utterances)
        self._nothing = _Moments(0, np.zeros(n_features), np.zeros(n_features))
        self._warm = self._before = self._nothing
        self._pending_TC = np.empty((BLOCK_BINS, n_features), dtype=np.float32)
        self.drop_utterance()

    @property
    def statistics(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Mean and standard deviation in force, float64 [C] each; None until enough is known."""
        return (self._known.mean_C.copy(), self._known.std_C.copy()) if self._is_known else None

    def start_block(
        self, mean_C: np.ndarray | None = None, std_C: np.ndarray | None = None
    ) -> None:
        """Begin a block with given statistics, or with those in force.

        Args:
            mean_C: Float [C], means; None, with `std_C`, keeps the statistics in force.
            std_C: Float [C], standard deviations.

        Raises:
            DataError: For statistics that are not finite, negative or of another shape.
        """
        statistics = self.statistics
        if mean_C is not None or std_C is not None:
            statistics = _checked_statistics(mean_C, std_C, self.n_features)
        if statistics is not None:
            self._warm = _Moments(
                self._least_bins, statistics[0], np.square(statistics[1]) * self._least_bins
            )
        self._utterances.clear()
        self._before = self._warm
        self.drop_utterance()

    def push(self, x_TC: np.ndarray) -> np.ndarray:
        """Return the z-scores of the next bins, float32 [T, C]."""
        z_TC = np.empty_like(x_TC, dtype=np.float32)
        first = 0
        while first < len(x_TC):
            if self._is_known:
                until = min(first + BLOCK_BINS - self._n_pending, len(x_TC))
                z_TC[first:until] = self._normalised(x_TC[first:until])
                self._remember(x_TC[first:until])
            else:
                until = first + 1
                self._add(x_TC[first:until])
                z_TC[first] = self._normalised(x_TC[first])
            first = until
        return z_TC

    def end_utterance(self) -> None:
        """Count the bins since the last call as an utterance."""
        if self._n_pending:
            self._add(self._pending_TC[: self._n_pending])
        if self._utterance.n_bins:
            self._utterances.append(self._utterance)
        self._before = sum(self._utterances, self._warm)
        self.drop_utterance()

    def drop_utterance(self) -> None:
        """Forget the bins since the last utterance."""
        self._known = self._before
        self._utterance = self._nothing
        self._n_pending = 0

    @property
    def _is_known(self) -> bool:
        return self._known.n_bins >= self._least_bins

    def _remember(self, x_TC: np.ndarray) -> None:
        """Collect bins until there are `BLOCK_BINS`; `push` passes no more than are missing."""
        self._pending_TC[self._n_pending : self._n_pending + len(x_TC)] = x_TC
        self._n_pending += len(x_TC)
        if self._n_pending == BLOCK_BINS:
            self._add(self._pending_TC)
            self._n_pending = 0

    def _add(self, x_TC: np.ndarray) -> None:
        self._utterance += _Moments.of(x_TC)
        self._known = self._before + self._utterance

    def _normalised(self, x_TC: np.ndarray) -> np.ndarray:
        z_TC: np.ndarray = x_TC - self._known.mean_C
        z_TC *= self._known.scale_C
        np.minimum(z_TC, self.limit, out=z_TC)
        np.maximum(z_TC, -self.limit, out=z_TC)
        return z_TC


def _checked_statistics(
    mean_C: np.ndarray | None, std_C: np.ndarray | None, n_features: int
) -> tuple[np.ndarray, np.ndarray]:
    if mean_C is None or std_C is None:
        raise DataError(
            "a warm start needs a mean and a standard deviation", fix="give both, or neither"
        )
    mean_C = np.array(mean_C, dtype=np.float64)
    std_C = np.array(std_C, dtype=np.float64)
    if mean_C.shape != (n_features,) or std_C.shape != (n_features,):
        found = (
            f"a mean of shape {list(mean_C.shape)} and a standard deviation of shape"
            f" {list(std_C.shape)}"
        )
        raise DataError(f"{found}; [{n_features}] is needed")
    if not (np.isfinite(mean_C).all() and np.isfinite(std_C).all() and (std_C >= 0).all()):
        raise DataError(
            "the statistics of a warm start are not finite, or a standard deviation is negative"
        )
    return mean_C, std_C
