"""Survey of recorded features: their range, outliers, and features that stand still.

Features of another unit, a spoilt block and a dead channel pass every check of a single trial. They
show beside the other sessions, or beside the range of z-scores. A finding is a note, no problem:
recordings may be so.

T bins, C features.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from cortext.data.conventions import FeatureRange, Features
from cortext.data.outliers import FAR_AT_FIRST, Outliers, features_named
from cortext.data.scaling import LEAST_BINS, Moments, trial_moments
from cortext.data.trial import Trial

Z_SCORES = FeatureRange(0.0, 1.0, 1.0, -math.inf)
"""Range of z-scores."""
LEAVE_OUT = "dataset.feature_subset of the training, or columns: of an import's mapping"
"""Setting that leaves a feature out for good."""
OTHER = 10.0
"""Times that a deviation may be another one before the features are of another range."""


def range_of(moments: Moments, lowest: float) -> FeatureRange:
    """Return the range of features with these moments and this lowest value."""
    std_C = moments.std_C
    high = float(np.quantile(std_C, 0.9))
    return FeatureRange(float(np.median(moments.mean_C)), float(np.median(std_C)), high, lowest)


def difference(own: FeatureRange, expected: FeatureRange) -> str | None:
    """Return how a range differs from the expected one in words, with both; None if alike."""
    if own.largest_sd == 0:
        return None  # nothing has come but silence
    both = f"{own} here, {expected} expected"
    if own.lowest >= 0 > expected.lowest:
        return f"no value is below 0 ({both})"
    if own.lowest < 0 <= expected.lowest:
        return f"values are below 0 ({both})"
    pairs = ((own.sd, expected.sd), (own.largest_sd, expected.largest_sd))
    ratios = [mine / theirs for mine, theirs in pairs if mine > 0 and theirs > 0]
    if any(not 1 / OTHER <= ratio <= OTHER for ratio in ratios):
        return f"the deviations are of another size ({both})"
    if abs(own.mean - expected.mean) > OTHER * max(expected.largest_sd, own.largest_sd):
        return f"the means are elsewhere ({both})"
    return None


@dataclass
class _Session:
    moments: Moments
    low_C: np.ndarray
    high_C: np.ndarray

    @property
    def range(self) -> FeatureRange:
        return range_of(self.moments, float(self.low_C.min()))

    @property
    def constant(self) -> set[int]:
        """Features that have one value throughout, other than 0."""
        same_C = (self.low_C == self.high_C) & (self.low_C != 0)
        return set(np.flatnonzero(same_C).tolist())


@dataclass
class FeatureSurvey:
    """Counts while the trials pass by once.

    Attributes:
        outliers: Outliers of all trials.
        where: Trial and bin of the first of them.
        absent: Trials without any value of a feature, by the feature.
        n_trials: Number of trials.
    """

    outliers: Outliers = field(default_factory=Outliers)
    where: str | None = None
    absent: Counter[int] = field(default_factory=Counter)
    n_trials: int = 0
    _sessions: dict[str, _Session] = field(default_factory=dict)

    def add(self, trial: Trial) -> None:
        """Count the features of a trial."""
        self.n_trials += 1
        self.absent.update(trial.absent)
        x_TC, session = trial.features_TC, trial.session
        low_C, high_C = x_TC.min(axis=0), x_TC.max(axis=0)
        known = self._sessions.get(session)
        if known is not None and self._is_near(known.moments, low_C, high_C):
            moments = Moments.of(x_TC)
        else:  # takes a median
            moments, outliers = trial_moments(x_TC)
            self._count(outliers, trial.name)
        if known is None:
            self._sessions[session] = _Session(moments, low_C, high_C)
            return
        known.moments = known.moments + moments
        known.low_C = np.minimum(known.low_C, low_C)
        known.high_C = np.maximum(known.high_C, high_C)

    @staticmethod
    def _is_near(known: Moments, low_C: np.ndarray, high_C: np.ndarray) -> bool:
        farthest_C = np.maximum(high_C - known.mean_C, known.mean_C - low_C)
        return known.n >= LEAST_BINS and bool((farthest_C <= FAR_AT_FIRST * known.std_C).all())

    def _count(self, outliers: Outliers, where: str) -> None:
        if outliers and self.where is None:
            self.where = f"{where}, bin {outliers.first}"
        self.outliers += outliers

    @property
    def range(self) -> FeatureRange | None:
        """Range of all trials; None without any."""
        sessions = list(self._sessions.values())
        if not sessions:
            return None
        lowest = min(float(one.low_C.min()) for one in sessions)
        return range_of(Moments.total(one.moments for one in sessions if one.moments.n), lowest)

    def notes(self, features: Features, *, with_range: bool = True) -> list[str]:
        """Return what people should know, a line each.

        Args:
            features: What the features are to be; raw ones are compared with those of the other
                sessions.
            with_range: Compare the range of the features, too.
        """
        z_scored = features == "z-scored"
        notes = []
        if self.outliers:
            use = "z-scores by block are spoilt by them" if z_scored else "they count for less"
            notes.append(f"{self.outliers}, the first at {self.where}; {use}")
        if self.absent:
            n = max(self.absent.values())
            notes.append(
                f"{features_named(set(self.absent))}: NaN throughout {n} of {self.n_trials} trials,"
                f" left out (0); leave out for good with {LEAVE_OUT}"
            )
        notes += self._range_notes(z_scored) if with_range else ()
        constant: set[int] = set()
        for session in self._sessions.values():
            constant |= session.constant
        if constant:
            n = sum(bool(session.constant) for session in self._sessions.values())
            notes.append(
                f"{features_named(constant)}: one value throughout, in {n} of"
                f" {len(self._sessions)} sessions; leave out with {LEAVE_OUT}"
            )
        return notes

    def _range_notes(self, z_scored: bool) -> Iterator[str]:
        ranges = {name: one.range for name, one in self._sessions.items() if one.moments.n}
        if not ranges:
            return
        by_size = sorted(ranges.values(), key=lambda one: one.sd)
        expected = Z_SCORES if z_scored else by_size[len(by_size) // 2]
        differing = {
            name: differs for name, one in ranges.items() if (differs := difference(one, expected))
        }
        if differing:
            first = next(iter(differing))
            kind = "features are no z-scores" if z_scored else "features of another range"
            advice = 'z-score them, or state "features": "raw"' if z_scored else "check their unit"
            places = f"in {len(differing)} of {len(ranges)} sessions, the first {first}"
            yield f"{kind} {places}: {differing[first]}; {advice}"
        elif not z_scored and by_size[0].looks_z_scored:
            yield (
                f"raw features look like z-scores ({by_size[0]}); where they are, state"
                ' "features": "z-scored"'
            )
