"""Values of a recording's features, and notes on those that cannot be right.

A channel that is NaN, flat or saturated is left out: it becomes 0, the mean of z-scores. Values
that fit no z-score, no count or no other recording are noted with both ranges.

T bins, C features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cortext.data.rebin import as_ranges
from cortext_data.readers.recording import FeatureGroup

_LEAST_BINS = 250
"""Bins from which on a feature that never changes is a dead channel."""
_STUCK = 0.5
"""Part of all bins at the highest, or a far lower lowest, value from which on it is saturated."""
_LARGEST_MEAN = 10.0
"""Mean magnitude that no z-scores have: theirs is 0.8."""
_OTHER_UNIT = 100.0
"""Ratio of mean magnitudes of two recordings from which on one has another unit."""

_VALUES = "values from"
"""Beginning of a note on the range of the values, after the name of the features."""

Ranges = dict[str, list[float]]
"""Lowest, highest and mean magnitude of the values of each group of features, by its name."""


@dataclass
class _Values:
    """Values of each feature, counted over trials; NaN counts for nothing.

    Attributes:
        n_bins: Bins of all trials.
        low_C: Lowest value of each feature.
        high_C: Highest value.
        sum_C: Sum of the magnitudes.
        n_low_C: Bins at the lowest value.
        n_high_C: Bins at the highest value.
        fraction_C: Whether a feature has values that are no whole numbers.
    """

    n_bins: int
    low_C: np.ndarray
    high_C: np.ndarray
    sum_C: np.ndarray
    n_low_C: np.ndarray
    n_high_C: np.ndarray
    fraction_C: np.ndarray

    @classmethod
    def of(cls, x_TC: np.ndarray) -> _Values:
        """Return those of one trial."""
        low_C = np.fmin.reduce(x_TC, axis=0).astype(np.float64)
        high_C = np.fmax.reduce(x_TC, axis=0).astype(np.float64)
        sum_C = np.nansum(np.abs(x_TC, dtype=np.float64), axis=0)
        fraction_C = np.zeros(len(low_C), bool)
        if x_TC.dtype.kind == "f":
            fraction_C = ((x_TC != np.rint(x_TC)) & ~np.isnan(x_TC)).any(axis=0)
        n_low_C = np.count_nonzero(x_TC == low_C, axis=0)
        n_high_C = np.count_nonzero(x_TC == high_C, axis=0)
        return cls(len(x_TC), low_C, high_C, sum_C, n_low_C, n_high_C, fraction_C)

    def __add__(self, other: _Values) -> _Values:
        low_C, high_C = np.fmin(self.low_C, other.low_C), np.fmax(self.high_C, other.high_C)
        return _Values(
            self.n_bins + other.n_bins,
            low_C,
            high_C,
            self.sum_C + other.sum_C,
            np.where(self.low_C == low_C, self.n_low_C, 0)
            + np.where(other.low_C == low_C, other.n_low_C, 0),
            np.where(self.high_C == high_C, self.n_high_C, 0)
            + np.where(other.high_C == high_C, other.n_high_C, 0),
            self.fraction_C | other.fraction_C,
        )


@dataclass
class Survey:
    """Values of the features of one recording, trial by trial.

    Attributes:
        groups: The parts of the file that the features come from.
    """

    groups: Sequence[FeatureGroup]
    _n_trials: Counter[int] = field(default_factory=Counter)
    _absent: dict[int, np.ndarray] = field(default_factory=dict)
    _values: _Values | None = None

    def add(self, block: int, x_TC: np.ndarray) -> bool:
        """Count a trial; return whether it has NaN or Inf.

        A part of the file that is NaN as a whole was lost in the trial: it counts for no channel.
        """
        n_features = x_TC.shape[1]
        is_alike = self._values is None or len(self._values.low_C) == n_features
        if not (x_TC.size and x_TC.dtype.kind in "fiub" and is_alike):
            return False  # refused when the trial is checked
        is_whole = bool(np.isfinite(x_TC.min() + x_TC.max()))  # much faster than isfinite of all
        absent_C = np.zeros(n_features, bool)
        if not is_whole:
            x_TC = np.where(np.isfinite(x_TC), x_TC, np.nan)
            absent_C = np.isnan(x_TC).all(axis=0)
            for _, part in self._parts(n_features):
                absent_C[part] &= not absent_C[part].all()
        self._n_trials[block] += 1
        self._absent[block] = self._absent.get(block, 0) + absent_C.astype(np.int64)
        values = _Values.of(x_TC)
        self._values = values if self._values is None else self._values + values
        return not is_whole

    def absent(self) -> np.ndarray:
        """Return which features are NaN throughout most trials of a block, bool [C]."""
        parts = [2 * n_C > self._n_trials[block] for block, n_C in self._absent.items()]
        return np.asarray(np.any(parts, axis=0))

    def dead(self) -> dict[str, np.ndarray]:
        """Return which features are left out, bool [C], by their fault."""
        if (all_ := self._values) is None:
            return {}
        absent_C = self.absent()
        is_long = all_.n_bins >= _LEAST_BINS
        flat_C = ~absent_C & (all_.low_C == all_.high_C) & is_long
        stuck_C = all_.n_high_C > _STUCK * all_.n_bins
        # Most bins of a sparse feature have its lowest value, which z-scores make negative.
        is_rail_C = -all_.low_C > np.abs(all_.high_C)
        stuck_C |= (all_.n_low_C > _STUCK * all_.n_bins) & is_rail_C
        # Counts of 0 and 1 are what a sparse threshold or a fast unit gives.
        stuck_C &= (all_.high_C - all_.low_C > 1) & ~flat_C & ~absent_C & is_long
        return {"NaN": absent_C, "flat": flat_C, "saturated": stuck_C}

    def is_dead(self) -> bool:
        """Return whether no feature is left that says anything."""
        dead = self.dead()
        return bool(dead) and bool(np.any(list(dead.values()), axis=0).all())

    def ranges(self) -> Ranges:
        """Return lowest, highest and mean magnitude of the features that are not left out."""
        if (all_ := self._values) is None:
            return {}
        alive_C = ~np.any(list(self.dead().values()), axis=0) & ~np.isnan(all_.low_C)
        by_group = {}
        for group, part in self._parts(len(alive_C)):
            inner_C = alive_C[part]
            if inner_C.any():
                low = float(all_.low_C[part][inner_C].min())
                high = float(all_.high_C[part][inner_C].max())
                mean = float(all_.sum_C[part][inner_C].mean() / all_.n_bins)
                by_group[group.name] = [low, high, mean]
        return by_group

    def _parts(self, n_features: int) -> Iterator[tuple[FeatureGroup, slice]]:
        """Yield each group with its place among the features."""
        groups = self.groups
        if sum(len(group.columns) for group in groups) != n_features:
            groups = [FeatureGroup("", range(n_features))]
        first = 0
        for group in groups:
            yield group, slice(first, first + len(group.columns))
            first += len(group.columns)

    def notes(self, scaling: str, others: Mapping[str, Any], rebinned: bool) -> list[str]:
        """Return what the user should know of the values, one line each.

        Args:
            scaling: One of `importing.NORMALISATIONS`.
            others: Ranges of the recordings before this one, by their names.
            rebinned: Whether bins were divided, which makes fractions of counts.
        """
        if (all_ := self._values) is None:
            return []
        ranges = self.ranges()
        notes = self._dead_notes()
        for group, part in self._parts(len(all_.low_C)):
            if group.name not in ranges:
                continue
            low, high, mean = ranges[group.name]
            is_fraction = bool(all_.fraction_C[part].any()) and not (rebinned or group.is_divided)
            before = f"{group.name}: " if group.name else "features: "
            values = f"{before}{_VALUES} {_short(low)} to {_short(high)}"
            if group.is_counts and (low < 0 or is_fraction):
                notes.append(
                    f"{values} found for `kind: counts`, whole numbers from 0 expected; power has"
                    " `kind: power`, and raw voltages are not read"
                )
            if scaling == "none" and mean > _LARGEST_MEAN:
                notes.append(
                    f"{values} left as they are, -3 to 3 expected of most z-scores; `--normalise"
                    " block` z-scores them"
                )
            notes += _other_units(group.name, values, ranges[group.name], others)
        return notes

    def _dead_notes(self) -> list[str]:
        """Return a line for each group of features with some that are left out."""
        dead = self.dead()
        every_C = np.any(list(dead.values()), axis=0)
        notes = []
        for group, part in self._parts(len(every_C)):
            columns = np.asarray(group.columns)
            if not every_C[part].any():
                continue
            unit = "column" if group.name else "feature"
            parts = []
            for why, dead_C in dead.items():
                if (of_it := columns[dead_C[part]]).size:
                    s = "s" if len(of_it) > 1 else ""
                    parts.append(f"{unit}{s} {as_ranges(of_it.tolist())} ({why})")
            before = f"{group.name}: " if group.name else ""
            kept = columns[~every_C[part]].tolist()
            line = f"{before}left out (0): {', '.join(parts)}"
            if not kept:
                line += f"; no {unit} is left that says anything"
            elif group.name:
                line += f"; `columns: {as_ranges(kept)}` leaves them out for good"
            notes.append(line)
        return notes


def states_range(note: str) -> bool:
    """Return whether a note of an import gives the range of a recording's values."""
    return f": {_VALUES} " in note


def _other_units(
    name: str, values: str, own: Sequence[float], others: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a note where the values of the latest other recording have another size."""
    for session, ranges in reversed(list(others.items())):
        other = ranges.get(name)
        if not other or not other[2] or not own[2]:
            continue
        ratio = own[2] / other[2]
        if max(ratio, 1 / ratio) > _OTHER_UNIT:
            times = f"{ratio:,.4g} times"
            yield (
                f"{values}, {_short(other[0])} to {_short(other[1])} in {session}: on average"
                f" {times} as large; check their unit"
            )
        return


def _short(number: float) -> str:
    return f"{number:,.4g}" if abs(number) < 10_000 else f"{number:,.0f}"
