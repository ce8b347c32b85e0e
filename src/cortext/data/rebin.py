"""Longer or shorter bins: features of a trial, summed or averaged over time.

Counts of a longer bin are the sum of its parts, powers their mean. A sum or mean of z-scored bins
is still linear in the recorded values, but no longer z-scored: over k bins a mean has a standard
deviation between 1 / sqrt(k), where the bins are independent, and 1. Rebin recorded values and
z-score them afterwards where you can. Otherwise take means: a model's day layers learn the scale.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from cortext.arguments import as_count, as_number, check_list
from cortext.data.conventions import Conventions, checked_bin_ms
from cortext.data.trial import as_features
from cortext.errors import ConfigError, shown

_MOST_DENOMINATOR = 10_000  # with 60,000 bins, products stay far within 64 bits
_MOST_NOTE = 400
_RUN = r"[0-9]{1,5}(?:-[0-9]{1,5})?"
_NOTED = re.compile(
    r"rebinned from (?P<ms>[0-9]{1,2}(?:\.[0-9]{1,5})?) ms,"
    rf" (?:averaged|features (?P<sums>{_RUN}(?:, {_RUN})*) summed, others averaged)"
)
"""The note of a rebinning; see `Rebinning.conventions`."""


def rebin(x_TC: np.ndarray, from_ms: float, to_ms: float, sums: Iterable[int] = ()) -> np.ndarray:
    """Return features in bins of another length.

    A new bin takes the old bins that it overlaps, each weighted with the part of it that lies in
    the new bin. So a ratio that is no whole number works, too; shorter bins divide the old ones and
    say nothing new. Time at the end that fills no whole new bin is dropped. Computed in float64.

    Args:
        x_TC: Numbers [T, C]: counts, power or z-scored features.
        from_ms: Length of their bins in milliseconds.
        to_ms: Length of the new bins in milliseconds.
        sums: Numbers of the features to sum, such as spike counts. All others are averaged.

    Returns:
        float32 [floor(T * from_ms / to_ms), C].

    Raises:
        DataError, ConfigError, WrongType: For another type or shape of array, length or feature.
    """
    x_TC = as_features(x_TC)
    ratio = _fraction(to_ms, "to_ms") / _fraction(from_ms, "from_ms")
    n_bins, n_features = x_TC.shape
    summed_C = np.zeros(n_features, dtype=bool)
    summed_C[_numbers(sums, n_features)] = True
    # In units in which an old bin has length `old` and a new one `new`, both whole numbers.
    new, old = ratio.numerator, ratio.denominator
    begin_N = np.arange(n_bins * old // new, dtype=np.int64) * new
    first_N = begin_N // old
    total_NC = np.zeros((len(begin_N), n_features))
    for k in range(min(-(-new // old) + 1, n_bins)):
        at_N = first_N + k
        overlap_N = np.minimum((at_N + 1) * old, begin_N + new) - np.maximum(at_N * old, begin_N)
        inside = overlap_N > 0  # the last bins of a trial have no neighbour to weigh with 0
        rows = slice(None) if inside.all() else inside
        total_NC[rows] += overlap_N[rows, None].astype(np.float64) * x_TC[at_N[rows]]
    return (total_NC / np.where(summed_C, old, new)).astype(np.float32)


def _fraction(value: float, name: str) -> Fraction:
    number = as_number(value, name)
    if not 0.001 <= number <= 1000:
        raise ConfigError(f"{name} is {number:g}; 0.001 to 1,000 ms are possible")
    return Fraction(number).limit_denominator(_MOST_DENOMINATOR)


def _numbers(sums: Iterable[int], n_features: int) -> list[int]:
    given = check_list(sums, "sums", "a list of features' numbers")
    numbers = [as_count(number, "a feature of sums") for number in given]
    if numbers and max(numbers) >= n_features:
        raise ConfigError(f"sums names feature {max(numbers)}; the data has 0 to {n_features - 1}")
    return numbers


@dataclass(frozen=True)
class Rebinning:
    """Rebinning of all trials of a data set.

    Attributes:
        from_ms: Length of the bins in the files.
        to_ms: Length of the bins that trials get, 5 to 50 ms.
        sums: Numbers of the features to sum.
    """

    from_ms: float
    to_ms: float
    sums: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, conventions: Conventions, bin_ms: float, sums: Iterable[int], n_features: int
    ) -> Rebinning:
        """Return the rebinning of a data set.

        Args:
            conventions: Conventions of the data.
            bin_ms: Length of the new bins.
            sums: Numbers of the features to sum.
            n_features: Number of features of the data.

        Raises:
            DataError, ConfigError, WrongType: For a length or a feature that is not possible.
        """
        summed = tuple(_numbers(sums, n_features))
        return cls(conventions.bin_ms, checked_bin_ms(bin_ms), summed)

    @classmethod
    def noted(cls, conventions: Conventions) -> Rebinning | None:
        """Return the last rebinning that conventions note.

        None where they note none, or where its note was too long to be kept whole.
        """
        last = (conventions.normalised or "").rpartition("; ")[2]
        if not (match := _NOTED.fullmatch(last)):
            return None
        sums: list[int] = []
        for run in match["sums"].split(", ") if match["sums"] else ():
            first, _, end = run.partition("-")
            sums += range(int(first), int(end or first) + 1)
        return cls(float(match["ms"]), conventions.bin_ms, tuple(sums))

    @property
    def options(self) -> str:
        """Options of `cortext pack` that join bins so."""
        sums = f" --sums {as_ranges(self.sums).replace(' ', '')}" if self.sums else ""
        return f" --bin-ms {self.to_ms}{sums}"  # all digits: lengths are compared exactly

    def __call__(self, x_TC: np.ndarray) -> np.ndarray:
        """Return a trial's features in the new bins."""
        return rebin(x_TC, self.from_ms, self.to_ms, self.sums)

    def conventions(self, source: Conventions) -> Conventions:
        """Return the conventions of the rebinned data: their bins, and a note of the rebinning."""
        how = (
            f"features {as_ranges(self.sums)} summed, others averaged" if self.sums else "averaged"
        )
        notes = (source.normalised, f"rebinned from {self.from_ms:g} ms, {how}")
        text = shown("; ".join(filter(None, notes)), _MOST_NOTE)
        return replace(source, bin_ms=self.to_ms, normalised=text)


def as_ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges: `0-3, 7`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)
