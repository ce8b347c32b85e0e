"""Outliers of recorded features: values and bins that must not spoil a mean and a deviation.

An artefact (a moved cable, a saturated amplifier) is a thousand deviations away, and one such bin
would make all others look alike. Two kinds are distinguished. A value that is far out in its own
feature counts as the farthest that is not. A bin in which many features are far out counts for
nothing: it says nothing of any of them.

T bins, C features.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

FAR = 10.0
"""Deviations from the mean beyond which a value is far out, where enough is known."""
FAR_AT_FIRST = 30.0
"""Robust deviations from the median beyond which a value is far out, where little is known."""
GAP = 3.0
"""Times that a far value lies farther out than all others of its feature, where little is known.

Sparse values (a few spikes among zeros) lie beyond any deviation, but near each other.
"""
RECURS = 3
"""Utterances with far values of a feature, or of most bins, after which these are no outliers."""
DOUBLES = 3.0
"""Squared distances over known squared deviations which double a deviation, if they counted."""
FEATURES_SHARE = 0.1
FEWEST_FEATURES = 8
"""Features, or their share, that must be far out in a bin for the bin to count for nothing.

They are the sum of squared distances, each in limits and at most 1: ten times that of usual bins.
"""
LEAST_JUDGED = 25
"""Bins from which on outliers are reported, half a second."""
FEATURES_AT_ONCE = 64
"""Features whose medians are taken together, which bounds the memory."""
FLAT_BINS = 50
"""Equal values in a row after which a feature is flat, a second."""
UNLIKELY = 25.0
"""Bins without a spike times the spikes expected in a bin, from which on zeros are flat, too."""


def many(n_features: int) -> float:
    """Return how many features are many, of so many."""
    return max(FEWEST_FEATURES, FEATURES_SHARE * n_features)


@dataclass(frozen=True, eq=False)
class UsualRange:
    """Values of each feature that are not far out.

    Attributes:
        centre_C: float64 [C].
        limit_C: float64 [C], largest distance from it, above 0.
        varies_C: bool [C], features that are not constant.
        unit_C: float64 [C], standard deviations, or robust ones.
        n_bins: Number of bins that these are of.
    """

    centre_C: np.ndarray
    limit_C: np.ndarray
    varies_C: np.ndarray
    unit_C: np.ndarray
    n_bins: int

    @classmethod
    def known(
        cls, n_bins: int, mean_C: np.ndarray, std_C: np.ndarray, usual_C: np.ndarray | float = 0.0
    ) -> UsualRange:
        """Return the range that a mean and a deviation give.

        Args:
            n_bins: Number of bins that they are of.
            mean_C: float64 [C].
            std_C: float64 [C]; 0 for a constant feature, whose other values are all far out.
            usual_C: Distances that recur, and so are not far out.
        """
        rounding_C = 1e-6 * np.abs(mean_C) + 1e-30
        limit_C = np.maximum(FAR * np.maximum(std_C, rounding_C), usual_C)
        varies_C = np.maximum(std_C, usual_C) > rounding_C
        return cls(mean_C, limit_C, varies_C, std_C, n_bins)

    @classmethod
    def found(cls, x_TC: np.ndarray) -> UsualRange:
        """Return the range of bins about which nothing else is known.

        The unit is the median distance from the median, at least the smallest distance (one spike
        among zeros). Fewer than half of a feature's values can move it.
        """
        n_features = x_TC.shape[1]
        parts = [
            cls._found(x_TC[:, first : first + FEATURES_AT_ONCE].astype(np.float64))
            for first in range(0, n_features, FEATURES_AT_ONCE)
        ]
        centre_C, limit_C, varies_C, unit_C = map(np.concatenate, zip(*parts, strict=True))
        return cls(centre_C, limit_C, varies_C, unit_C, len(x_TC))

    @staticmethod
    def _found(x_TC: np.ndarray) -> tuple[np.ndarray, ...]:
        centre_C = np.median(x_TC, axis=0)
        far_TC = np.abs(x_TC - centre_C)
        smallest_C = np.where(far_TC > 0, far_TC, np.inf).min(axis=0)
        unit_C = np.maximum(
            1.4826 * np.median(far_TC, axis=0), np.where(np.isfinite(smallest_C), smallest_C, 0)
        )
        limit_C = FAR_AT_FIRST * unit_C + 1e-6 * np.abs(centre_C) + 1e-30
        while (far_TC > limit_C).any():
            nearer_C = np.where(far_TC <= limit_C, far_TC, 0).max(axis=0)
            wider_C = np.maximum(limit_C, GAP * nearer_C)
            if (wider_C == limit_C).all():
                break
            limit_C = wider_C
        return centre_C, limit_C, unit_C > 0, unit_C


@dataclass(frozen=True, eq=False)
class JudgedBins:
    """Bins with what counts of them.

    Attributes:
        counted_KC: float64 or float32 [K, C], bins that count, far values brought in.
        kept_T: bool [T], bins that count.
        is_clean: Whether everything counts as it is.
        named_TC: bool [T, C], far values of bins that count, where those of a feature would double
            its deviation; None where none is far out.
        distance_C: float64 [C], largest distance of values in bins that count.
    """

    counted_KC: np.ndarray
    kept_T: np.ndarray
    is_clean: bool
    named_TC: np.ndarray | None
    distance_C: np.ndarray


def judged(x_TC: np.ndarray, range_: UsualRange, *, to_centre: bool = False) -> JudgedBins:
    """Tell outliers of bins [T, C] from what counts.

    Args:
        x_TC: Float [T, C].
        range_: Values that are not far out.
        to_centre: Far values count as the centre of the range, not as its edge.
    """
    distance_TC = np.abs(x_TC - range_.centre_C)
    share_TC = distance_TC / range_.limit_C
    far_TC = share_TC > 1
    is_far = bool(far_TC.any())
    if is_far:
        np.minimum(share_TC, 1, out=share_TC)
    weight_T = np.einsum("tc,tc->t", share_TC, share_TC)
    kept_T = weight_T <= many(x_TC.shape[1])
    counted_KC, named_TC = x_TC, None
    if is_far:
        named_TC = far_TC & range_.varies_C & kept_T[:, None]
        squares_C = np.square(distance_TC).sum(axis=0, where=named_TC)
        # A silent unit's first spikes would double its deviation, but not a usual feature's.
        unit_C = np.maximum(range_.unit_C, np.quantile(range_.unit_C, 0.25))
        named_TC &= squares_C > DOUBLES * range_.n_bins * np.square(unit_C)
        centre_C = range_.centre_C
        edge_C = 0 if to_centre else np.where(range_.varies_C, range_.limit_C, 0)
        near_TC = np.clip(x_TC, centre_C - edge_C, centre_C + edge_C)
        counted_KC = np.where(far_TC, near_TC, x_TC)
    keeps_all = bool(kept_T.all())
    if not keeps_all:
        counted_KC, distance_TC = counted_KC[kept_T], distance_TC[kept_T]
    distance_C = distance_TC.max(axis=0, initial=0.0)
    return JudgedBins(counted_KC, kept_T, keeps_all and not is_far, named_TC, distance_C)


class FlatFeatures:
    """Tells features that stand still: dead, cut off, or at the rail of an amplifier.

    Zeros are usual where a unit is silent. They count only where `UNLIKELY` spikes would have come:
    of Poisson counts the square of mean over deviation is the number expected in a bin.
    """

    def __init__(self, n_features: int) -> None:
        self._last_C = np.full(n_features, np.nan, dtype=np.float32)
        self._run_C = np.zeros(n_features, dtype=np.int64)
        self.flat_C = np.zeros(n_features, dtype=bool)

    def push(self, x_TC: np.ndarray, mean_C: np.ndarray, std_C: np.ndarray) -> np.ndarray | None:
        """Return which values of the next bins are of flat features, bool [T, C]; None for none.

        Args:
            x_TC: Float [T, C], T at least 1.
            mean_C: Known means of the features, float64 [C].
            std_C: Their deviations.
        """
        bin_T1 = np.arange(len(x_TC))[:, None]
        changes_TC = x_TC != np.concatenate((self._last_C[None], x_TC[:-1]))
        last_TC = np.maximum.accumulate(np.where(changes_TC, bin_T1, -1), axis=0)
        run_TC = np.where(last_TC < 0, self._run_C + bin_T1 + 1, bin_T1 - last_TC)
        self._last_C, self._run_C = np.array(x_TC[-1], dtype=np.float32), run_TC[-1]
        if run_TC.max() < FLAT_BINS - 1:
            self.flat_C = np.zeros_like(self.flat_C)
            return None
        expected_C = np.square(mean_C) / np.maximum(np.square(std_C), 1e-30)
        flat_TC: np.ndarray = (run_TC >= FLAT_BINS - 1) & (
            (x_TC != 0) | (run_TC * expected_C > UNLIKELY)
        )
        self.flat_C = flat_TC[-1]
        return flat_TC


@dataclass
class Outliers:
    """Count of outliers, for people.

    Attributes:
        n_bins: Bins that counted for nothing.
        first_bin: Number of the first of them, from 0; None if there is none.
        n_values: Far values in other bins, by feature.
        first_value: Bin of the first of these.
    """

    n_bins: int = 0
    first_bin: int | None = None
    n_values: dict[int, int] = field(default_factory=dict)
    first_value: int | None = None

    def __bool__(self) -> bool:
        return bool(self.n_bins or self.n_values)

    def add(self, bins: JudgedBins, first: int) -> None:
        """Count those of bins that were judged, of which the first has the number `first`."""
        left_out = np.flatnonzero(~bins.kept_T)
        if len(left_out):
            self.n_bins += len(left_out)
            if self.first_bin is None:
                self.first_bin = first + int(left_out[0])
        if bins.named_TC is None:
            return
        far_TC = bins.named_TC
        if self.first_value is None and far_TC.any():
            self.first_value = first + int(far_TC.any(axis=1).argmax())
        for feature in np.flatnonzero(far_TC.any(axis=0)).tolist():
            n = int(far_TC[:, feature].sum())
            self.n_values[feature] = self.n_values.get(feature, 0) + n

    @property
    def first(self) -> int | None:
        """Bin of the first outlier of either kind."""
        firsts = [bin_ for bin_ in (self.first_bin, self.first_value) if bin_ is not None]
        return min(firsts, default=None)

    def __add__(self, other: Outliers) -> Outliers:
        n_values = dict(self.n_values)
        for feature, n in other.n_values.items():
            n_values[feature] = n_values.get(feature, 0) + n
        first_bin = other.first_bin if self.first_bin is None else self.first_bin
        first_value = other.first_value if self.first_value is None else self.first_value
        return Outliers(self.n_bins + other.n_bins, first_bin, n_values, first_value)

    def __str__(self) -> str:
        parts = []
        if self.n_bins:
            parts.append(f"{_n(self.n_bins, 'bin')} with many features far out")
        if self.n_values:
            n = sum(self.n_values.values())
            parts.append(f"{_n(n, 'value')} far out in {features_named(self.n_values)}")
        return ", ".join(parts)


class UsualDistances:
    """Distances from the mean that recur, by feature: they are no outliers.

    Spikes of a silent unit lie beyond any number of deviations, and so does a new level.
    """

    def __init__(self, n_features: int, window_utterances: int) -> None:
        self.distance_C = self._start_C = np.zeros(n_features)
        self._latest: deque[np.ndarray] = deque(maxlen=window_utterances)

    def append(self, distance_C: np.ndarray) -> None:
        """Take the largest distances of an utterance, float64 [C]."""
        self._latest.append(distance_C)
        if len(self._latest) >= RECURS:
            ordered = np.partition(np.stack(self._latest), -RECURS, axis=0)
            self.distance_C = np.maximum(self._start_C, ordered[-RECURS])

    def start_block(self) -> None:
        """Keep those in force for the block that begins."""
        self._start_C = self.distance_C
        self._latest.clear()

    def clear(self) -> None:
        """Forget all."""
        self.distance_C = self._start_C = np.zeros_like(self._start_C)
        self._latest.clear()


def features_named(features: object, most: int = 5) -> str:
    """Return feature numbers, counted from 0, for a line: `features 3, 17 and 40 more`."""
    numbers = sorted(features)  # type: ignore[call-overload]
    listed = ", ".join(map(str, numbers[:most]))
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return f"feature{'s' if len(numbers) > 1 else ''} {listed}{more}"


def _n(n: int, unit: str) -> str:
    return f"{n:,} {unit}{'' if n == 1 else 's'}"
