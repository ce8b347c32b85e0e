"""Changes between days: a value of an array or a day that leaves its usual range.

The rule. A day's value is compared with the median of the 5 days before. It has changed if it is
farther from it than a floor, and farther than 4 times the usual distance of earlier days (1.4826
times their median). The floor keeps changes out that are certain and of no consequence. If the
next day is nearer to the new value than to the old ones, the change lasts, and later days are
compared with those since; otherwise that day stood alone. Later days never change which day is
found: a report that is written each day says the same as one that is written at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise
from typing import Annotated

import numpy as np

from cortext.settings import Setting

LEAST_DAYS = 3
"""Days that are needed before one can be compared."""
WINDOW_DAYS = 5
TIMES_USUAL = 4.0
MAD_TO_SD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
LEAST_GAP_DAYS = 7
"""Days without a recording that are worth a sentence, if they are twice the usual, too."""


@dataclass(frozen=True)
class Floors:
    """Smallest changes that are reported and that alert."""

    min_shift: Annotated[
        float,
        Setting(minimum=0, help="Smallest change of an array's mean, in standard deviations."),
    ] = 0.2
    min_spread: Annotated[
        float,
        Setting(minimum=0, help="Smallest change of an array's standard deviation: 0.15 is 15 %."),
    ] = 0.15
    min_dead: Annotated[
        float,
        Setting(minimum=0, maximum=1, help="Smallest change of the share of dead electrodes."),
    ] = 0.25
    min_confidence: Annotated[
        float, Setting(minimum=0, maximum=1, help="Smallest change of the mean confidence.")
    ] = 0.15
    min_corrected: Annotated[
        float, Setting(minimum=0, maximum=1, help="Smallest change of the share of corrections.")
    ] = 0.25

    def of(self, kind: str) -> float:
        """Return the floor of a kind of value, in the unit in which it is compared."""
        floor = float(getattr(self, f"min_{kind}"))
        return float(np.log2(1 + floor)) if kind == "spread" else floor


@dataclass(frozen=True)
class Change:
    """A value that has changed.

    Attributes:
        kind: `shift`, `spread`, `dead`, `confidence`, `corrected` or `gap`.
        day: Number of the day on which it began, from 0; of a gap, the day after it.
        last: Number of the last changed day; None where the change lasts.
        before: Median of the days before.
        value: Value on the day.
        array: Number of the array, or None for a value of the whole day.
    """

    kind: str
    day: int
    last: int | None
    before: float
    value: float
    array: int | None = None


def find_changes(
    values_N: Sequence[float], kind: str, floor: float, array: int | None = None
) -> list[Change]:
    """Return the changes in a series of days.

    Args:
        values_N: A value for each of N days; NaN where there is none.
        kind: Kind of the value.
        floor: Distance up to which nothing counts as a change.
        array: Number of the array.
    """
    changes: list[Change] = []
    level: list[float] = []
    distances: list[float] = []
    pending: tuple[int, float, float] | None = None
    for day, value in enumerate(values_N):
        if not np.isfinite(value):
            continue
        if pending is not None:
            first, changed, before = pending
            pending = None
            # The day after decides whether a change lasts: one bad day (a loose plug) shifts no
            # level.
            if abs(value - changed) < abs(value - before):
                # The days before the change would widen and shift the median for weeks.
                level = [changed, value]
                continue
            changes[-1] = Change(kind, first, first, before, changed, array)
        if len(level) < LEAST_DAYS:
            level.append(value)
            continue
        before = float(np.median(level[-WINDOW_DAYS:]))
        # Distances of unchanged days alone: an earlier jump does not widen the usual.
        usual = MAD_TO_SD * float(np.median(distances)) if distances else 0.0
        if abs(value - before) > max(floor, TIMES_USUAL * usual):
            changes.append(Change(kind, day, None, before, value, array))
            pending = day, value, before
            continue
        distances.append(abs(value - before))
        level.append(value)
    return changes


def find_gaps(dates: Sequence[date | None]) -> list[Change]:
    """Return the stretches without a recording that are long beside the others, in days."""
    known = [(number, day) for number, day in enumerate(dates) if day is not None]
    gaps = [((b - a).days - 1, number) for (_, a), (number, b) in pairwise(known)]
    usual = float(np.median([days for days, _ in gaps])) if gaps else 0.0
    return [
        Change("gap", number, number, usual, float(days))
        for days, number in gaps
        if days >= LEAST_GAP_DAYS and days > 2 * usual
    ]


def sentences(
    changes: Sequence[Change],
    sessions: Sequence[str],
    dates: Sequence[date | None],
    arrays: Sequence[str],
    per_array: int,
) -> list[tuple[int, str]]:
    """Return a sentence for each change, with the number of its day; equal ones of arrays in one.

    Args:
        changes: The changes.
        sessions: Names of the days.
        dates: Their dates, as far as they are known.
        arrays: Names of the arrays.
        per_array: Electrodes of an array.
    """
    groups: dict[tuple[int, str, int | None, bool], list[Change]] = {}
    for change in changes:
        rises = change.value > change.before
        groups.setdefault((change.day, change.kind, change.last, rises), []).append(change)
    lines = []
    for (day, kind, last, _), group in sorted(groups.items(), key=lambda item: item[0][:2]):
        if kind == "gap":
            lines.append((day, _gap(group[0], dates)))
            continue
        name = sessions[day] if dates[day] is None else str(dates[day])
        when = f"{name} (recording day {day + 1})"
        opening = f"Since {when}" if last is None else f"On {when} alone"
        lines.append((day, f"{opening}, {_what(group, arrays, per_array)}."))
    return lines


def _gap(change: Change, dates: Sequence[date | None]) -> str:
    end = dates[change.day]
    assert end is not None
    first, last = end - timedelta(days=int(change.value)), end - timedelta(days=1)
    return f"Nothing was recorded from {first} to {last} ({change.value:.0f} days)."


def _what(group: Sequence[Change], arrays: Sequence[str], per_array: int) -> str:
    """Return what has changed, for changes of one kind and direction."""
    first = group[0]
    rises = first.value > first.before
    if first.kind in ("confidence", "corrected"):
        name = {"confidence": "mean confidence", "corrected": "share of corrected sentences"}
        percent = f"{100 * first.value:.0f} %, after {100 * first.before:.0f} %"
        return f"the {name[first.kind]} is {percent}"
    names = [arrays[change.array] for change in group if change.array is not None]
    whose = "all arrays" if len(names) == len(arrays) > 1 else " and ".join(names)
    if first.kind == "dead":
        counts = _range([per_array * change.value for change in group], "{:.0f}")
        before = _range([per_array * change.before for change in group], "{:.0f}")
        of = f"{counts} of {per_array} electrodes of {whose}"
        return f"{of} are dead, after {before}"
    if first.kind == "shift":
        size = _range([abs(change.value - change.before) for change in group], "{:.1f}")
        return (
            f"the means of {whose} lie {size} standard deviations {'higher' if rises else 'lower'}"
            " than on the days before"
        )
    size = _range([100 * abs(2 ** (c.value - c.before) - 1) for c in group], "{:.0f}")
    return f"the features of {whose} vary {size} % {'more' if rises else 'less'} than before"


def _range(values: Sequence[float], how: str) -> str:
    low, high = how.format(min(values)), how.format(max(values))
    return low if low == high else f"{low} to {high}"
