"""Tables and the picture of `models_on_simulation.py`: means over participants, with intervals."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from scipy.stats import t as student

from cortext_bench.harness import markdown_table

KEY = ("part", "condition", "setting", "budget", "given", "start")
"""Properties that the trainings of a row share."""
RATES = ("per", "wer")
MODELS = "models"
BASE_START = "fresh"
DRIFTS = ("no drift", "usual drift", "double drift")
COLOURS = {"GRU": "tab:blue", "Transformer": "tab:orange"}
STYLES = ("o-", "o--", "o:")
"""Of the lines of a colour, one after another."""


def mean_and_interval(values: Sequence[float]) -> dict[str, Any]:
    """Return the mean over participants with its 95 % interval (Student's t).

    Args:
        values: One value for each participant.

    Returns:
        `mean`, and `interval` [low, high]; None for the interval of a single value.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return {"mean": mean, "interval": None}
    reach = float(student.ppf(0.975, len(values) - 1))
    reach *= statistics.stdev(values) / len(values) ** 0.5
    return {"mean": mean, "interval": [mean - reach, mean + reach]}


def compare(
    results: Sequence[Mapping[str, Any]], beside: Mapping[str, str | None]
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the table.

    Args:
        results: Results of trainings.
        beside: The setting that each setting is compared with; None for none.

    Returns:
        `rows`: for each kind of training its values by participant, their means and intervals, and
        the difference to the row beside it, participant by participant. That row may be one of
        the part `models`. A start from another participant's weights is compared with fresh
        weights.
    """
    groups: dict[tuple[Any, ...], dict[int, Mapping[str, Any]]] = {}
    for result in results:
        groups.setdefault(_key(result), {})[result["seed"]] = result
    rows = []
    for key, found in groups.items():
        row = dict(zip(KEY, key, strict=True))
        if row["start"] != BASE_START:
            other = row | {"start": BASE_START}
        else:
            other = row | {"setting": beside[row["setting"]]}
        row |= {"seeds": sorted(found), "batches": next(iter(found.values()))["batches"]}
        others = groups.get(_key(other)) or groups.get(_key(other | {"part": MODELS}), {})
        named = other["setting"] if row["start"] == BASE_START else BASE_START
        row["beside"] = named if others else None
        for rate in RATES:
            row[rate] = mean_and_interval([found[seed][rate] for seed in row["seeds"]])
            row[rate]["values"] = [found[seed][rate] for seed in row["seeds"]]
            shared = sorted(found.keys() & others.keys())
            differences = [found[seed][rate] - others[seed][rate] for seed in shared]
            row[f"{rate}_difference"] = mean_and_interval(differences) if differences else None
        rows.append(row)
    return {"rows": rows}


def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def print_tables(compared: Mapping[str, Any]) -> None:
    """Print a table for each part: rates, and differences to the row beside."""
    columns = ["setting", "seeds", "batches", "PER", "95 %", "WER", "95 %"]
    columns += ["compared with", "PER, points", "95 %", "WER, points", "95 %"]
    parts = {row["part"]: None for row in compared["rows"]}
    for part in parts:
        rows = [
            [_named(row), len(row["seeds"]), row["batches"], *_rates(row), *_differences(row)]
            for row in compared["rows"]
            if row["part"] == part
        ]
        print(f"\n{part}\n\n{markdown_table(columns, rows)}")


def _named(row: Mapping[str, Any]) -> str:
    named = f"{row['setting']}; {row['condition']}; {row['budget']}"
    if row["part"] != "participants":
        return named
    return f"{row['setting']}; {row['given']} trials; {row['start']}"


def _rates(row: Mapping[str, Any]) -> list[str]:
    cells = []
    for rate in (row["per"], row["wer"]):
        low_high = (
            ""
            if rate["interval"] is None
            else "{:.1f} to {:.1f}".format(*(100 * each for each in rate["interval"]))
        )
        cells += [f"{100 * rate['mean']:.1f} %", low_high]
    return cells


def _differences(row: Mapping[str, Any]) -> list[str]:
    cells = [row["beside"] or ""]
    for found in (row["per_difference"], row["wer_difference"]):
        if found is None:
            cells += ["", ""]
            continue
        low_high = (
            ""
            if found["interval"] is None
            else "{:+.1f} to {:+.1f}".format(*(100 * each for each in found["interval"]))
        )
        cells += [f"{100 * found['mean']:+.1f}", low_high]
    return cells


def plot(compared: Mapping[str, Any], path: Path) -> None:
    """Plot PER against drift, and PER of a new participant against its training trials.

    Args:
        compared: Rows of `compare`.
        path: The picture to write.
    """
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    rows = compared["rows"]
    drifting = {row["setting"] for row in rows if row["part"] == "drift"}
    drift: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["part"] in ("models", "drift") and row["budget"] == "short":
            drift.setdefault(row["setting"], {})[row["condition"]] = row
    _lines(left, DRIFTS, {name: at for name, at in drift.items() if name in drifting})
    new: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["part"] == "participants":
            new.setdefault(f"{row['setting']}, {row['start']}", {})[f"{row['given']} trials"] = row
    places = list({place: None for at in new.values() for place in at})
    _lines(right, places, new)
    left.set_ylabel("phoneme error rate, %")
    figure.savefig(path, dpi=150)


def _lines(axes: Any, places: Sequence[str], lines: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw a line through the means at each place, with their intervals side by side."""
    drawn = Counter[str]()
    for number, (label, at) in enumerate(lines.items()):
        colour = COLOURS[label.split(",")[0]]
        shown = [place for place in places if place in at]
        rates = [at[place]["per"] for place in shown]
        reach = [
            0 if rate["interval"] is None else 100 * (rate["interval"][1] - rate["mean"])
            for rate in rates
        ]
        axes.errorbar(
            [places.index(place) + 0.04 * number for place in shown],
            [100 * rate["mean"] for rate in rates],
            reach,
            fmt=STYLES[drawn[colour]],
            color=colour,
            label=label,
            capsize=3,
        )
        drawn[colour] += 1
    axes.set_xticks(range(len(places)), places)
    axes.set_ylim(bottom=0)
    if lines:
        axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
