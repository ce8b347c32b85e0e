"""Tables and the picture of `year.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cortext.bench.harness import markdown_table

PUBLISHED_PER = (0.25, 0.39, 0.58)
"""Frozen PER of participant T12 after 26 to 30 days, in three cases."""
PUBLISHED_DAY = 28
DISTURBED = ("lost", "garbage")
"""Beginnings of the names of events on whose day no decoder is expected to work."""
GOAL_PER = 0.2
"""The PER that daily labels are to stay under on every undisturbed day."""
QUARTERS = 4
COLOURS = {"frozen": "tab:red", "daily": "tab:blue"}


def rate(days: Sequence[Mapping[str, Any]], unit: str) -> float:
    """Return the error rate over some days.

    Args:
        days: Rows of a piece, one a day.
        unit: `phoneme` or `word`.
    """
    return sum(day[f"{unit}_errors"] for day in days) / sum(day[f"{unit}s"] for day in days)


def undisturbed(days: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the days on which neither is an array lost nor the recording garbage."""
    return [day for day in days if not any(name.startswith(DISTURBED) for name in day["events"])]


def at_day(days: Sequence[Mapping[str, Any]], day: float) -> float:
    """Return the PER at a day after training, interpolated between undisturbed recording days."""
    kept = undisturbed(days)
    return float(
        np.interp(day, [each["day"] for each in kept], [rate([e], "phoneme") for e in kept])
    )


def summary(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a row for each participant and course over the year.

    Args:
        results: Results of the pieces.

    Returns:
        `rows`: `published_day`, the PER at the day of the published figures; `per` and `wer` by
        quarter; of undisturbed days, `worst_per`, the largest PER, and `missed_days`, those not under
        `GOAL_PER`; `disturbed`, PER by event.
    """
    rows = []
    for result in results:
        days = result["days"]
        kept = undisturbed(days)
        quarters = np.array_split(np.arange(len(days)), QUARTERS)
        by_quarter = [undisturbed([days[n] for n in quarter]) for quarter in quarters]
        rows.append(
            {
                **{key: result[key] for key in ("method", "drift", "seed")},
                "published_day": at_day(days, PUBLISHED_DAY),
                "per": [rate(quarter, "phoneme") for quarter in by_quarter],
                "wer": [rate(quarter, "word") for quarter in by_quarter],
                "worst_per": max(rate([day], "phoneme") for day in kept),
                "missed_days": [day["day"] for day in kept if rate([day], "phoneme") >= GOAL_PER],
                "disturbed": {
                    name: rate([day], "phoneme")
                    for day in days
                    for name in day["events"]
                    if name.startswith(DISTURBED)
                },
            }
        )
    return {"rows": rows}


def print_tables(found: Mapping[str, Any]) -> None:
    """Print a table for each drift and method: a line for each participant."""
    columns = ["participant", f"PER at day {PUBLISHED_DAY}", "PER by quarter", "WER by quarter"]
    columns += ["worst day's PER", f"days not under {100 * GOAL_PER:.0f} %"]
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in found["rows"]:
        groups.setdefault((row["drift"], row["method"]), []).append(row)
    for (drift, method), rows in groups.items():
        lines = [
            [
                row["seed"],
                percent([row["published_day"]]),
                percent(row["per"]),
                percent(row["wer"]),
                percent([row["worst_per"]]),
                len(row["missed_days"]),
            ]
            for row in rows
        ]
        print(f"\n{drift} drift, {method}\n\n{markdown_table(columns, lines)}")


def percent(rates: Sequence[float]) -> str:
    """Return rates in percent, for people."""
    return ", ".join(f"{100 * each:.1f}" for each in rates)


def plot(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw PER and word errors over the year, a line for each participant.

    Args:
        results: Results of the pieces; those of the usual drift are drawn.
        path: The picture.
    """
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    units = {"phoneme": "phoneme error rate, %", "word": "word error rate, %"}
    for axes, (unit, label) in zip(panels, units.items(), strict=True):
        named: set[str] = set()
        for result in results:
            if result["drift"] != "usual":
                continue
            method = result["method"]
            kept = undisturbed(result["days"])
            axes.plot(
                [day["day"] for day in kept],
                [100 * rate([day], unit) for day in kept],
                color=COLOURS[method],
                alpha=0.5,
                linewidth=1,
                label=None if method in named else method,
            )
            named.add(method)
        axes.set(xlabel="days after training", ylabel=label, ylim=(0, 100))
        axes.spines[["top", "right"]].set_visible(False)
    for number, published in enumerate(PUBLISHED_PER):
        panels[0].plot(
            PUBLISHED_DAY, 100 * published, "k*", label=None if number else "published, frozen"
        )
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
