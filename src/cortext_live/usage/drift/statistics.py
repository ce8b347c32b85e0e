"""Means, standard deviations and dead electrodes by day, block and array.

T bins, C features, E electrodes, A arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property

import numpy as np

from cortext.data.scaling import Moments
from cortext.data.trial import Session
from cortext.errors import ConfigError

N_ARRAYS = 4
DEAD_HZ = 2.0
"""Threshold crossings a second below which an electrode is dead.

Noise alone crosses -4.5 standard deviations about 0.1 times a second (Rice's formula, for a band up
to 5 kHz).
"""
NORMALISED = 0.1
"""Largest mean and deviation from 1 of the standard deviation of features that were z-scored."""


@dataclass(frozen=True)
class Layout:
    """The features that belong to each array.

    Arrays have equally many electrodes, one after another. Features come in kinds: threshold
    crossings of all electrodes, then spike-band power of all, as in the public releases.

    Attributes:
        names: Names of the arrays.
        n_features: Number of features, C.
        n_kinds: Features of an electrode, 1 or 2.
    """

    names: tuple[str, ...]
    n_features: int
    n_kinds: int

    @classmethod
    def of(cls, arrays: str | None, n_features: int, n_kinds: int | None = None) -> Layout:
        """Return the layout of an option's text.

        Args:
            arrays: Number of arrays, or their names with commas between them; None for 4 arrays,
                or one where they would be of unequal size.
            n_features: Number of features, C.
            n_kinds: Features of an electrode; None for 2, or 1 where that is impossible.

        Raises:
            ConfigError: The features cannot be divided so.
        """
        if n_kinds is None:
            n_kinds = 1 if n_features % 2 else 2
        n_electrodes = n_features // n_kinds
        if arrays is None:
            arrays = "1" if n_features % (n_kinds * N_ARRAYS) else str(N_ARRAYS)
        parts = [part.strip() for part in arrays.split(",")]
        if len(parts) == 1 and parts[0].isdecimal():
            parts = [f"array {number}" for number in range(1, min(int(parts[0]), n_features) + 1)]
        if not parts or not all(parts) or len(set(parts)) < len(parts):
            raise ConfigError(
                f"--arrays is {arrays!r}",
                fix="give a number, or different names with commas between them",
            )
        if n_features % n_kinds or n_electrodes % len(parts):
            raise ConfigError(
                f"{n_features} features cannot be {n_kinds} of each electrode of {len(parts)}"
                " arrays of equal size",
                fix="give --arrays and --per-electrode",
            )
        return cls(tuple(parts), n_features, n_kinds)

    @property
    def n_electrodes(self) -> int:
        """Number of electrodes of all arrays, E."""
        return self.n_features // self.n_kinds

    def electrodes(self, array: int) -> slice:
        """Return the electrodes of an array."""
        size = self.n_electrodes // len(self.names)
        return slice(array * size, (array + 1) * size)


class FeatureSums:
    """Running statistics of features, for one block.

    Args:
        n_features: Number of features, C.
    """

    def __init__(self, n_features: int) -> None:
        self.moments = Moments(0, np.zeros(n_features), np.zeros(n_features))
        self.low_C = np.full(n_features, np.inf)
        self.high_C = np.full(n_features, -np.inf)
        self.counts_C = np.ones(n_features, dtype=bool)

    def add(self, x_TC: np.ndarray) -> None:
        """Add bins, float [T, C]; T is at least 1."""
        self.moments = self.moments + Moments.of(x_TC)
        np.minimum(self.low_C, x_TC.min(axis=0), out=self.low_C)
        np.maximum(self.high_C, x_TC.max(axis=0), out=self.high_C)
        # A feature that is no count is found in its first bins; later ones are not looked at.
        left = np.flatnonzero(self.counts_C)
        if len(left):
            some_TC = x_TC[:, left]
            self.counts_C[left] = ((some_TC >= 0) & (some_TC == np.rint(some_TC))).all(axis=0)


@dataclass(frozen=True, eq=False)
class BlockStatistics:
    """Statistics of a block.

    Attributes:
        name: Number of the block, or the time at which a stretch of use began.
        moments: Number, means and squared deviations of its bins.
        low_C: Least values, float64 [C].
        high_C: Greatest values, float64 [C].
        counts_C: Bool [C], features of which all values are whole numbers from 0 on.
    """

    name: str
    moments: Moments
    low_C: np.ndarray
    high_C: np.ndarray
    counts_C: np.ndarray

    @classmethod
    def of(cls, name: str, sums: FeatureSums) -> BlockStatistics:
        """Return the statistics of a finished block."""
        return cls(name, sums.moments, sums.low_C, sums.high_C, sums.counts_C)


@dataclass(frozen=True, eq=False)
class DayStatistics:
    """Statistics of a recording day.

    Attributes:
        session: Name of the day.
        blocks: Its blocks, at least one.
        bin_ms: Length of a bin.
    """

    session: str
    blocks: tuple[BlockStatistics, ...]
    bin_ms: float

    @property
    def date(self) -> date | None:
        """The date that its name states, or None."""
        return Session(self.session, {}).date

    @cached_property
    def moments(self) -> Moments:
        """Number, means and squared deviations of all bins."""
        return Moments.total(block.moments for block in self.blocks)

    @cached_property
    def is_normalised(self) -> bool:
        """Tell whether most features have mean 0 and standard deviation 1, as z-scores have."""
        mean = np.median(np.abs(self.moments.mean_C))
        return bool(mean < NORMALISED and abs(np.median(self.moments.std_C) - 1) < NORMALISED)

    def dead_E(self, layout: Layout, dead_hz: float = DEAD_HZ) -> np.ndarray:
        """Return which electrodes are dead, bool [E].

        All features of a dead electrode are constant, or it has counts, and fewer than `dead_hz` a
        second.
        """
        low_C = np.min([block.low_C for block in self.blocks], axis=0)
        high_C = np.max([block.high_C for block in self.blocks], axis=0)
        counts_C = np.all([block.counts_C for block in self.blocks], axis=0)
        rate_C = self.moments.mean_C * 1000 / self.bin_ms
        shape = layout.n_kinds, layout.n_electrodes
        constant_E = (low_C == high_C).reshape(shape).all(axis=0)
        silent_E = (counts_C & (rate_C < dead_hz)).reshape(shape).any(axis=0)
        dead: np.ndarray = constant_E | silent_E
        return dead


def collect(bins: Iterable[tuple[str, str, np.ndarray]], bin_ms: float) -> Iterator[DayStatistics]:
    """Yield the statistics of days; one day's sums are in memory at a time.

    Args:
        bins: Session, block and bins, float [T, C], in the order of sessions.
        bin_ms: Length of a bin.
    """
    session, sums = None, dict[str, FeatureSums]()
    for of, block, x_TC in bins:
        if session is not None and of != session:
            yield _day(session, sums, bin_ms)
            sums = {}
        session = of
        if block not in sums:
            sums[block] = FeatureSums(x_TC.shape[1])
        sums[block].add(x_TC)
    if session is not None:
        yield _day(session, sums, bin_ms)


def _day(session: str, sums: dict[str, FeatureSums], bin_ms: float) -> DayStatistics:
    blocks = tuple(BlockStatistics.of(name, of_block) for name, of_block in sums.items())
    return DayStatistics(session, blocks, bin_ms)


@dataclass(frozen=True, eq=False)
class Levels:
    """Statistics of arrays against the reference days.

    Attributes:
        shift_A: Median over living features of the change of their mean, in standard deviations of
            the reference days; NaN for an array without a living feature. Not the mean: an artefact
            of one bin on one electrode can be a million times the rest.
        moved_A: Median size of these changes.
        spread_A: Median over living features of the logarithm to base 2 of their standard
            deviation over that of the reference days.
    """

    shift_A: np.ndarray
    moved_A: np.ndarray
    spread_A: np.ndarray


class Reference:
    """The first days, against which others are compared.

    Args:
        days: Days of the reference, at least one.
        layout: The arrays.
        dead_hz: Threshold crossings a second of a dead electrode.
    """

    def __init__(
        self, days: Sequence[DayStatistics], layout: Layout, dead_hz: float = DEAD_HZ
    ) -> None:
        self._layout = layout
        self._mean_C = np.mean([day.moments.mean_C for day in days], axis=0)
        self._std_C = np.sqrt(np.mean([np.square(day.moments.std_C) for day in days], axis=0))
        dead_E = np.any([day.dead_E(layout, dead_hz) for day in days], axis=0)
        self._usable_C = ~np.tile(dead_E, layout.n_kinds) & (self._std_C > 0)

    def levels(self, moments: Moments, dead_E: np.ndarray) -> Levels:
        """Return the levels of a day or block.

        Args:
            moments: Its moments.
            dead_E: Its day's dead electrodes, bool [E]; they are left out.
        """
        layout = self._layout
        usable_C = self._usable_C & ~np.tile(dead_E, layout.n_kinds) & (moments.std_C > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            shift_C = np.where(usable_C, (moments.mean_C - self._mean_C) / self._std_C, np.nan)
            spread_C = np.where(usable_C, np.log2(moments.std_C / self._std_C), np.nan)
        levels_3A = np.full((3, len(layout.names)), np.nan)
        for array in range(len(layout.names)):
            of = layout.electrodes(array)
            shift = shift_C.reshape(layout.n_kinds, -1)[:, of]
            if np.isfinite(shift).any():
                spread = spread_C.reshape(layout.n_kinds, -1)[:, of]
                levels_3A[:, array] = (
                    np.nanmedian(shift),
                    np.nanmedian(np.abs(shift)),
                    np.nanmedian(spread),
                )
        return Levels(*levels_3A)
