"""Z-scores of features: by block, and rolling ones, which need nothing that comes later.

Over the bins of a block each feature gets a mean of 0 and a standard deviation of 1, as in the
public releases. That needs the whole block, which live decoding does not have. Rolling z-scores of
a bin need only the recording before its end: the last utterances, and the bins of its own so
far. `pack` and live decoding compute them with the same class, bin by bin.

T bins, C features.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cortext.data.outliers import (
    LEAST_JUDGED,
    RECURS,
    FlatFeatures,
    JudgedBins,
    Outliers,
    UsualDistances,
    UsualRange,
    judged,
    many,
)
from cortext.errors import DataError

MIN_SD = 1e-6
"""Features with a smaller standard deviation are constant: their z-scores over a block are 0."""
ROLLING_TRIALS = 20
"""Finished utterances, or trials of a recording, that rolling z-scores look back on."""
LEAST_BINS = 250
"""Bins that rolling statistics need before they are used, and weight of those of a warm start."""
LIMIT = 10.0
"""Largest absolute value of a rolling z-score."""
SPOILT = 10.0
"""Times that many deviations of all before exceed those of the latest utterances, if spoilt."""
BLOCK_BINS = 64
"""Number of bins whose moments are taken together, in whatever chunks they arrive."""
SMALLEST_STD = 1e-6
"""Ratio of a feature's standard deviation to its mean up to which the feature counts as constant.

Such a deviation is only the rounding of float32.
"""
ROLLING_NOTE = (
    f"rolling z-scores over the last {ROLLING_TRIALS} trials and the trial so far, from"
    f" {LEAST_BINS} bins on every {BLOCK_BINS} bins, at most {LIMIT:g}; outliers count for less"
)
"""Rolling z-scores in words, for the `normalised` of packed data and models."""


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

    def __add__(self, other: Moments) -> Moments:
        # Chan, Golub & LeVeque (1983). A plain sum of squares loses its digits to large means.
        n = self.n + other.n
        if not n:
            return self
        apart_C = other.mean_C - self.mean_C
        share = other.n / n
        return Moments(
            n,
            self.mean_C + apart_C * share,
            self.squares_C + other.squares_C + np.square(apart_C) * (self.n * share),
        )

    @cached_property
    def std_C(self) -> np.ndarray:
        """Standard deviations, float64 [C]; 0 without bins."""
        return np.sqrt(self.squares_C / max(self.n, 1))

    @cached_property
    def scale_C(self) -> np.ndarray:
        """Factors that make the standard deviations 1; 0 for a constant feature."""
        scale_C = np.zeros_like(self.std_C)
        np.divide(
            1.0, self.std_C, out=scale_C, where=self.std_C > SMALLEST_STD * np.abs(self.mean_C)
        )
        return scale_C

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
        factor_C = np.where(self.sd_C > MIN_SD, 1 / np.maximum(self.sd_C, MIN_SD), 0)
        z_TC: np.ndarray = (x_TC - self.mean_C) * factor_C
        return z_TC.astype(np.float32)


class RollingZScore:
    """Z-scores of features by a rolling mean and standard deviation, which outliers do not spoil.

    The statistics combine three parts: the block's latest utterances; the utterance in progress up
    to its last whole `BLOCK_BINS`; and the statistics that the block began with (warm start), which
    count as `least_bins` bins. The last are those of the block before, or given ones. Until
    `least_bins` bins are known (cold start), every bin is scored against all bins up to itself. A
    constant feature gives 0, and so does one that stands still (`outliers.FlatFeatures`).

    A value farther than `outliers.FAR` deviations from the mean counts as that far, unless `RECURS`
    of the utterances had values as far out. A bin in which many features are that far out counts
    for nothing, unless most bins of `RECURS` utterances are so: then the recordings have changed,
    and the statistics begin anew with these. They do so, too, with the latest utterances where many
    deviations of all before are `SPOILT` times as large: a given start may be spoilt, or a long
    artefact was taken for a change. In a cold start the median of the bins so far tells outliers,
    again every `LEAST_JUDGED` bins.

    The statistics of utterances are summed anew each time. A running sum, from which old utterances
    are subtracted, would gather rounding errors over hours.

    Args:
        n_features: Features of a bin, C.
        window_utterances: Number of latest utterances that count.
        least_bins: Fewest bins for statistics to be used; with None, every bin is scored against
            all bins up to itself.
        limit: Largest absolute value of a z-score; larger ones are clipped.
        start: Utterances before the first one, such as those of a calibration.

    Attributes:
        outliers: Outliers of the utterance in progress; those of a finished one until the next bin.
        n_changes: Times that the statistics have begun anew.
    """

    def __init__(
        self,
        n_features: int,
        *,
        window_utterances: int = ROLLING_TRIALS,
        least_bins: int | None = LEAST_BINS,
        limit: float = LIMIT,
        start: Iterable[Moments] = (),
    ) -> None:
        self.n_features = n_features
        self.limit = limit
        self.n_changes = 0
        self._least_bins = least_bins
        self._utterances = deque(start, maxlen=window_utterances)
        self._usual = UsualDistances(n_features, window_utterances)
        self._left_out: deque[tuple[Moments, int]] = deque(maxlen=RECURS)
        self._cold: deque[np.ndarray] = deque(maxlen=window_utterances)
        self._flat = FlatFeatures(n_features)
        self._nothing = self._warm = Moments(0, np.zeros(n_features), np.zeros(n_features))
        self._before = sum(self._utterances, self._warm)
        self._n_bins = self._n_pending = 0
        self._pending_TC = np.empty((BLOCK_BINS, n_features), dtype=np.float32)
        self.drop_utterance()

    @property
    def statistics(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Mean and standard deviation in force, float64 [C] each; None until enough is known."""
        return (self._known.mean_C.copy(), self._known.std_C.copy()) if self._is_known else None

    @property
    def flat_C(self) -> np.ndarray:
        """Features that stand still in the latest bin, bool [C]."""
        return self._flat.flat_C

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
            n_bins = self._least_bins or LEAST_BINS
            self._warm = Moments(n_bins, statistics[0], np.square(statistics[1]) * n_bins)
        self._utterances.clear()
        self._cold.clear()
        self._usual.start_block()
        self._before = self._warm
        self.drop_utterance()

    def push(self, x_TC: np.ndarray) -> np.ndarray:
        """Return the z-scores of the next bins, float32 [T, C]."""
        if len(x_TC) and not self._n_bins:
            self.outliers = Outliers()
        z_TC = np.empty_like(x_TC, dtype=np.float32)
        first = 0
        while first < len(x_TC):
            # Not with the block's last bin: a live frame often ends with it, and words wait for it.
            if self._n_pending == BLOCK_BINS:
                self._add(self._pending_TC)
                self._n_pending = 0
            if self._is_known:
                until = min(first + BLOCK_BINS - self._n_pending, len(x_TC))
                z_TC[first:until], flat_TC = self._normalised(x_TC[first:until])
                self._remember(x_TC[first:until], flat_TC)
            else:
                until = first + 1
                self._add(x_TC[first:until])
                z_TC[first:until], _ = self._normalised(x_TC[first:until])
            first = until
        return z_TC

    def end_utterance(self) -> None:
        """Count the bins since the last call as an utterance."""
        if self._n_pending:
            self._add(self._pending_TC[: self._n_pending])
        if self._n_bins:
            self._left_out.append((self._apart, self._n_bins))
        if self._utterance.n:
            self._utterances.append(self._utterance)
            self._usual.append(self._distance_C)
            if sum(map(len, self._raw)) == self._n_bins:
                self._cold.append(np.concatenate(self._raw))
            else:
                self._cold.clear()
        self._begin_anew_if_changed()
        self._begin_anew_if_spoilt()
        self._before = sum(self._utterances, self._warm)
        self._begin()

    def drop_utterance(self) -> None:
        """Forget the bins since the last utterance."""
        self.outliers = Outliers()
        self._begin()

    def _begin(self) -> None:
        self._known = self._before
        self._utterance = self._apart = self._nothing
        self._distance_C = np.zeros(self.n_features)
        self._range: UsualRange | None = None
        self._raw: list[np.ndarray] = []
        self._n_bins = self._n_pending = 0

    @property
    def _is_known(self) -> bool:
        return self._least_bins is not None and self._known.n >= self._least_bins

    def _remember(self, x_TC: np.ndarray, flat_TC: np.ndarray | None) -> None:
        """Collect bins until there are `BLOCK_BINS`; `push` passes no more than are missing.

        Values of features that stand still become, in turn, a deviation above and below the mean:
        such values change neither.
        """
        if flat_TC is not None:
            is_odd_T = (self._n_pending + np.arange(len(x_TC))) % 2
            usual_TC = self._known.mean_C + self._known.std_C * (2 * is_odd_T[:, None] - 1)
            x_TC = np.where(flat_TC, usual_TC, x_TC)
        self._pending_TC[self._n_pending : self._n_pending + len(x_TC)] = x_TC
        self._n_pending += len(x_TC)

    def _add(self, x_TC: np.ndarray) -> None:
        """Add bins to the utterance: one, or those that are pending."""
        known = self._known
        self._n_bins += len(x_TC)
        if known.n < LEAST_BINS:
            self._raw.append(np.array(x_TC))
            n_bins = sum(map(len, self._cold)) + self._n_bins
            if n_bins // LEAST_JUDGED > (n_bins - len(x_TC)) // LEAST_JUDGED:
                self._judge_again()
                return
            self._count(x_TC, self._range, to_centre=True)
        else:
            far = UsualRange.known(known.n, known.mean_C, known.std_C, self._usual.distance_C)
            self._count(x_TC, far, to_centre=False)
        self._known = self._before + self._utterance

    def _count(self, x_TC: np.ndarray, range_: UsualRange | None, to_centre: bool) -> None:
        """Add the moments of what counts of bins, the latest of the utterance."""
        if range_ is None:
            self._utterance += Moments.of(x_TC)
            return
        bins = judged(x_TC, range_, to_centre=to_centre)
        if not bins.is_clean:
            self.outliers.add(bins, self._n_bins - len(x_TC))
        if len(bins.counted_KC):
            self._utterance += Moments.of(bins.counted_KC)
            if not to_centre:
                np.maximum(self._distance_C, bins.distance_C, out=self._distance_C)
        if len(bins.counted_KC) < len(x_TC):
            self._apart += Moments.of(x_TC[~bins.kept_T])

    def _judge_again(self) -> None:
        """Tell outliers of all bins of the cold start anew, of finished utterances, too."""
        own_TC = np.concatenate(self._raw)
        self._range = UsualRange.found(np.concatenate((*self._cold, own_TC)))
        for number, x_TC in enumerate(self._cold):
            bins = judged(x_TC, self._range, to_centre=True)
            if not bins.is_clean:
                self._utterances[number - len(self._cold)] = _moments(bins, self._nothing)
        self._before = sum(self._utterances, self._warm)
        bins = judged(own_TC, self._range, to_centre=True)
        if bins.is_clean and not self.outliers:
            self._utterance += Moments.of(self._raw[-1])
        else:
            self.outliers, self._apart = Outliers(), self._nothing
            self.outliers.add(bins, 0)
            self._utterance = _moments(bins, self._nothing)
            if not bins.kept_T.all():
                self._apart = Moments.of(own_TC[~bins.kept_T])
        self._known = self._before + self._utterance

    def _begin_anew_if_changed(self) -> None:
        """Begin the statistics with the bins left out, where they were most of the latest."""
        n_bins = sum(n for _, n in self._left_out)
        parts = [part for part, _ in self._left_out if part.n]
        if len(parts) < RECURS or sum(part.n for part in parts) <= n_bins / 2:
            return
        self._begin_anew(parts)

    def _begin_anew_if_spoilt(self) -> None:
        """Keep only the latest utterances, where all before has far larger deviations."""
        parts = list(self._utterances)
        latest, n_latest = self._nothing, 0
        while n_latest < len(parts) and (n_latest < RECURS or latest.n < LEAST_BINS):
            n_latest += 1
            latest += parts[-n_latest]
        before = sum(parts[: len(parts) - n_latest], self._warm)
        if latest.n < LEAST_BINS or not before.n:
            return
        is_spoilt_C = (latest.std_C > 0) & (before.std_C > SPOILT * latest.std_C)
        if is_spoilt_C.sum() > min(many(self.n_features), self.n_features / 2):
            self._begin_anew(parts[-n_latest:])

    def _begin_anew(self, parts: list[Moments]) -> None:
        self._utterances.clear()
        self._utterances.extend(parts)
        self._left_out.clear()
        self._cold.clear()
        self._usual.clear()
        self._warm = self._nothing
        self.n_changes += 1

    def _normalised(self, x_TC: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the z-scores of bins, and which values stand still (None: none)."""
        known = self._known
        z_TC: np.ndarray = x_TC - known.mean_C
        z_TC *= known.scale_C
        np.minimum(z_TC, self.limit, out=z_TC)
        np.maximum(z_TC, -self.limit, out=z_TC)
        flat_TC = self._flat.push(x_TC, known.mean_C, known.std_C)
        if flat_TC is not None:
            z_TC[flat_TC] = 0
        return z_TC, flat_TC


def _moments(bins: JudgedBins, nothing: Moments) -> Moments:
    return Moments.of(bins.counted_KC) if len(bins.counted_KC) else nothing


def trial_moments(x_TC: np.ndarray) -> tuple[Moments, Outliers]:
    """Return the moments of a trial's bins without their outliers, and these.

    Where a trial has none, these are the moments of all of its bins, to the bit.
    """
    outliers = Outliers()
    if len(x_TC) < LEAST_JUDGED:
        return Moments.of(x_TC), outliers
    range_ = UsualRange.found(x_TC)
    counted, is_clean = [], True
    for first in range(0, len(x_TC), LEAST_BINS):  # a piece at a time: float64 takes memory
        bins = judged(x_TC[first : first + LEAST_BINS], range_, to_centre=True)
        outliers.add(bins, first)
        counted.append(bins.counted_KC)
        is_clean = is_clean and bins.is_clean
    counted_KC = x_TC if is_clean else np.concatenate(counted)
    if not len(counted_KC):
        return Moments(0, *np.zeros((2, x_TC.shape[1]))), outliers
    return Moments.of(counted_KC), outliers


def by_bin(n_features: int, start: Iterable[Moments] = ()) -> RollingZScore:
    """Return z-scores as `import --normalise rolling` writes them, without any limit.

    Each bin is scored over the last `ROLLING_TRIALS` trials and its own up to itself.

    Args:
        n_features: Features of a bin, C.
        start: Trials before the first one.
    """
    return RollingZScore(n_features, least_bins=None, limit=math.inf, start=start)


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
        problem = (
            f"a mean of shape {list(mean_C.shape)} and a standard deviation of shape"
            f" {list(std_C.shape)}"
        )
        raise DataError(f"{problem}; [{n_features}] is needed")
    if not (np.isfinite(mean_C).all() and np.isfinite(std_C).all() and (std_C >= 0).all()):
        raise DataError(
            "the statistics of a warm start are not finite, or a standard deviation is negative"
        )
    return mean_C, std_C
