"""Z-scores of recorded features, by block or causal.

Over the bins of a block each feature gets a mean of 0 and a standard deviation of 1, as in the
public releases. That needs the whole block, which live decoding does not have. Causal z-scores of a
bin need only what was recorded up to that bin: the last trials, and the bins of its own trial so
far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

MIN_SD = 1e-6
"""Features with a smaller standard deviation are constant: their z-scores are 0."""
ROLLING_TRIALS = 20
"""Finished trials that causal z-scores look back on."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Number, mean and squared deviations of bins.

    Attributes:
        n: Number of bins.
        mean_C: float64 [C].
        squares_C: float64 [C], sum of the squared deviations from the mean.
    """

    n: int
    mean_C: np.ndarray
    squares_C: np.ndarray

    @classmethod
    def of(cls, x_TC: np.ndarray) -> Moments:
        """Return the moments of the bins of an array [T, C]; T is at least 1."""
        mean_C = x_TC.mean(axis=0, dtype=np.float64)
        rest_TC = x_TC - mean_C
        return cls(len(x_TC), mean_C, np.einsum("tc,tc->c", rest_TC, rest_TC))

    @classmethod
    def total(cls, parts: Iterable[Moments]) -> Moments:
        """Return the moments of all bins of several parts, at least one (Chan et al. 1979)."""
        parts = list(parts)
        n = sum(part.n for part in parts)
        mean_C = sum(part.n / n * part.mean_C for part in parts)
        squares_C = sum(part.squares_C + part.n * np.square(part.mean_C - mean_C) for part in parts)
        return cls(n, np.asarray(mean_C), np.asarray(squares_C))

    def scale(self) -> Scale:
        """Return the scale that gives these bins a mean of 0 and a standard deviation of 1."""
        return Scale(self.mean_C, np.sqrt(self.squares_C / self.n))


@dataclass(frozen=True, eq=False)
class Scale:
    """Offset and unit of each feature.

    Attributes:
        mean_C: float64 [C].
        sd_C: float64 [C]; features with less than `MIN_SD` become 0.
    """

    mean_C: np.ndarray
    sd_C: np.ndarray

    def __call__(self, x_TC: np.ndarray) -> np.ndarray:
        """Return z-scores, float32 [T, C]."""
        return _scaled(x_TC - self.mean_C, self.sd_C)


def _scaled(rest: np.ndarray, sd: np.ndarray) -> np.ndarray:
    factor = np.where(sd > MIN_SD, 1 / np.maximum(sd, MIN_SD), 0)
    return (rest * factor).astype(np.float32)


class RollingScale:
    """Causal z-scores: over the last `ROLLING_TRIALS` trials and the trial's own bins so far.

    Args:
        start: Trials before the first one, such as those of a calibration.
    """

    def __init__(self, start: Iterable[Moments] = ()) -> None:
        self._trials = deque(start, maxlen=ROLLING_TRIALS)
        self._own: Moments | None = None

    def push(self, x_TC: np.ndarray) -> np.ndarray:
        """Return the z-scores of the next bins of the trial, float32 [T, C].

        The result does not depend on how the bins are cut into calls, but for rounding.
        """
        before = [*self._trials, *([] if self._own is None else [self._own])]
        n_T1 = np.arange(1, len(x_TC) + 1, dtype=np.float64)[:, None]
        # Deviations from a fixed point: squares of large numbers would lose the small differences.
        fixed_C = before[0].mean_C if before else x_TC[:1].mean(axis=0, dtype=np.float64)
        rest_TC = x_TC - fixed_C
        sum_TC = np.cumsum(rest_TC, axis=0)
        square_TC = np.cumsum(np.square(rest_TC), axis=0)
        if before:
            total = Moments.total(before)
            offset_C = total.mean_C - fixed_C
            n_T1 += total.n
            sum_TC += total.n * offset_C
            square_TC += total.squares_C + total.n * np.square(offset_C)
        mean_TC = sum_TC / n_T1
        variance_TC = square_TC / n_T1 - np.square(mean_TC)
        own = Moments.of(x_TC)
        self._own = own if self._own is None else Moments.total([self._own, own])
        return _scaled(rest_TC - mean_TC, np.sqrt(np.maximum(variance_TC, 0)))

    def end(self) -> None:
        """End the trial: its bins become one of the trials that the next ones look back on."""
        if self._own is not None:
            self._trials.append(self._own)
            self._own = None
