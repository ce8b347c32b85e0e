"""Tables and the picture of `year.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cortext_bench.harness import markdown_table
from cortext_live.recalibration.promotion import student

PUBLISHED_PER = (0.25, 0.39, 0.58)
"""Frozen PER of participant T12 after 26 to 30 days, in three cases."""
PUBLISHED_DAY = 28
DISTURBED = ("lost", "garbage")
"""Beginnings of the names of events on whose day no decoder is expected to work."""
GOAL_PER = 0.2
"""The PER that daily labels are to stay under on every undisturbed day."""
QUARTERS = 4
COLOURS = {
    "frozen": "tab:red",
    "one-step": "tab:orange",
    "replay": "tab:olive",
    "service": "tab:green",
    "daily": "tab:blue",
}
"""Colours of the methods that are drawn."""


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
        `GOAL_PER`; `disturbed`, PER by event; `retained`, PER and WER on the first days at the end of
        the year, None where that was not measured.
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
                "retained": _rates(days[-1].get("retained")),
            }
        )
    return {"rows": rows}


def _rates(errors: Mapping[str, Any] | None) -> list[float] | None:
    return None if errors is None else [rate([errors], "phoneme"), rate([errors], "word")]


def beside_daily(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compare the word errors of courses with those of daily labels, by participant.

    Args:
        results: Results of the pieces; those of the usual drift are compared.

    Returns:
        `method`, `seed`, and by quarter, of the undisturbed days in it, `points`: the mean over
        days of the difference of word error rates, and half the width of its 95 % interval of
        Student's t.
    """
    usual = [each for each in results if each["drift"] == "usual"]
    daily = {each["seed"]: each["days"] for each in usual if each["method"] == "daily"}
    rows = []
    for each in usual:
        if each["seed"] not in daily or len(each["days"]) != len(daily[each["seed"]]):
            continue
        if each["method"] == "daily":
            continue
        pairs = list(zip(each["days"], daily[each["seed"]], strict=True))
        quarters = np.array_split(np.arange(len(pairs)), QUARTERS)
        points = []
        for quarter in quarters:
            more = [
                100 * (rate([own], "word") - rate([labelled], "word"))
                for own, labelled in (pairs[n] for n in quarter)
                if undisturbed([own])
            ]
            points.append(mean_and_half_width(more))
        rows.append({"method": each["method"], "seed": each["seed"], "points": points})
    return rows


def mean_and_half_width(values: Sequence[float]) -> tuple[float, float | None]:
    """Return a mean and half the width of its 95 % interval of Student's t; None of one value."""
    x = np.asarray(values)
    if len(x) < 2:
        return float(x.mean()), None
    width = student(0.975, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x))
    return float(x.mean()), float(width)


def paired(own: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Return the difference of two word error rates, and half the width of its 95 % interval.

    The interval is Student's for a ratio of sentences (Cochran 1977, section 6.4).

    Args:
        own: Word errors and words of each sentence.
        other: The same of what it is compared with.
    """
    own_S2, other_S2 = np.asarray(own, float), np.asarray(other, float)
    more_S, words_S = own_S2[:, 0] - other_S2[:, 0], own_S2[:, 1]
    ratio, n = more_S.sum() / words_S.sum(), len(more_S)
    error = np.sqrt(n / (n - 1) * np.square(more_S - ratio * words_S).sum()) / words_S.sum()
    return float(100 * ratio), float(100 * student(0.975, n - 1) * error)


def promotions(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compare the promoted models of a service with their parents, on the sentences that judge.

    Args:
        result: Result of a piece.

    Returns:
        A row for each model that was the parent at the end of a day: its number `model`, `points`
        of word errors more than its own parent on the days on which it was, the lower bound `low`
        of their 95 % interval (a ratio of sentences, Cochran 1977), and the number of `days`.
    """
    by_model: dict[int, list[Mapping[str, Any]]] = {}
    for day in result["days"]:
        if day.get("promoted"):
            by_model.setdefault(day["promoted"], []).append(day)
    rows = []
    for model, days in by_model.items():
        own = [pair for day in days for pair in day["promoted_by_sentence"]]
        parent = [pair for day in days for pair in day["parent_by_sentence"]]
        points, half = paired(own, parent)
        rows.append({"model": model, "days": len(days), "points": points, "low": points - half})
    return rows


def day_after(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compare courses whose sentences of one day were disturbed with the undisturbed service.

    Args:
        results: Results of the pieces.

    Returns:
        `method`, `seed`, and `points`: word errors more on the day after, with half the width of
        the 95 % interval over its sentences.
    """
    service = {each["seed"]: each["days"] for each in results if each["method"] == "service"}
    rows = []
    for each in results:
        if not each["method"].startswith("after-") or each["seed"] not in service:
            continue
        last = len(each["days"]) - 1
        both = (course[last]["by_sentence"] for course in (each["days"], service[each["seed"]]))
        rows.append({"method": each["method"], "seed": each["seed"], "points": paired(*both)})
    return rows


def print_tables(found: Mapping[str, Any]) -> None:
    """Print a table for each drift and method: a line for each participant."""
    columns = ["participant", f"PER at day {PUBLISHED_DAY}", "PER by quarter", "WER by quarter"]
    columns += ["worst day's PER", f"days not under {100 * GOAL_PER:.0f} %", "retained PER, WER"]
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
                percent(row["retained"]) if row["retained"] else "-",
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
            if result["drift"] != "usual" or result["method"] not in COLOURS:
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
    figure.legend(loc="outside upper center", ncols=6, frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
