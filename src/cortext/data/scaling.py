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
        self._own: list[np.ndarray] = []
        self._all: _Running | None = None

    def push(self, x_TC: np.ndarray) -> np.ndarray:
        """Return the z-scores of the next bins of the trial, float32 [T, C].

        The result does not depend on how the bins are cut into calls.
        """
        if self._all is None:
            self._all = _Running(x_TC.shape[1], self._trials)
        self._own.append(np.array(x_TC))
        z_TC = np.empty(x_TC.shape, np.float32)
        for x_C, z_C in zip(x_TC, z_TC, strict=True):
            self._all.add(x_C)
            self._all.scale(x_C, out=z_C)
        return z_TC

    def end(self) -> None:
        """End the trial: its bins become one of the trials that the next ones look back on."""
        if self._own:
            self._trials.append(Moments.of(np.concatenate(self._own)))
        self._own, self._all = [], None


class _Running:
    """Moments that grow by one bin at a time (Welford 1962)."""

    def __init__(self, n_features: int, trials: Iterable[Moments] = ()) -> None:
        trials = list(trials)
        start = Moments.total(trials) if trials else None
        self.n = start.n if start else 0
        self.mean_C = start.mean_C.copy() if start else np.zeros(n_features)
        self.squares_C = start.squares_C.copy() if start else np.zeros(n_features)
        self._rest_C = np.empty(n_features)

    def add(self, x_C: np.ndarray) -> None:
        self.n += 1
        rest_C = np.subtract(x_C, self.mean_C, out=self._rest_C)
        self.mean_C += rest_C / self.n
        rest_C *= x_C - self.mean_C
        self.squares_C += rest_C

    def scale(self, x_C: np.ndarray, out: np.ndarray) -> None:
        sd_C = np.sqrt(self.squares_C / self.n)
        constant = sd_C <= MIN_SD
        sd_C[constant] = np.inf
        np.divide(x_C - self.mean_C, sd_C, out=out, casting="same_kind")
