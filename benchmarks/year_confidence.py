"""Measures of confidences over the simulated year, by quarter.

A piece of `year.py` has the confidence of each decoded word and sentence, as it was calibrated on
the first six days, and the posterior of the search. Words of all participants are measured
together, and each participant's alone; so are sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cortext.evaluation.calibration import Calibration, calibration
from cortext_bench.harness import markdown_table
from year_tables import QUARTERS

KINDS = ("calibrated", "posterior")
"""Confidences of a word or sentence in a piece, in their order."""
UNITS = {"confidences": "words", "sentences": "sentences"}
"""Names of what has confidences, by its key in a day of a piece."""


def confidence_by_quarter(
    results: Sequence[Mapping[str, Any]], unit: str = "confidences"
) -> list[dict[str, Any]]:
    """Return measures of confidences by method, kind and quarter.

    Args:
        results: Results of the pieces; those of the usual drift that have confidences count.
        unit: A key of `UNITS`; for sentences, read "sentences" for "words" below.

    Returns:
        `method`, `kind`, `quarter` from 1, `participants`, and of all their words together `right`,
        `mean`, `brier_skill`, `auroc`, `ece`, `ece_ci95`, `n_sure`, `sure_right`,
        `sure_right_ci95` and `bins` (see `Calibration`); of each participant's words, the
        `least_skill`, and the `seed`s whose skill is not above 0.
    """
    pieces = [each for each in results if each["drift"] == "usual"]
    pieces = [each for each in pieces if all(unit in day for day in each["days"])]
    rows = []
    for method in dict.fromkeys(each["method"] for each in pieces):
        own = [each for each in pieces if each["method"] == method]
        if len(own[0]["days"]) < QUARTERS:
            continue
        for quarter in range(QUARTERS):
            words = [_words(each, quarter, unit) for each in own]
            together = [np.concatenate(part) for part in zip(*words, strict=True)]
            for column, kind in enumerate(KINDS):
                found = _measured(together, column)
                skills = {
                    each["seed"]: _measured(part, column).brier_skill
                    for each, part in zip(own, words, strict=True)
                }
                known = {seed: skill for seed, skill in skills.items() if skill is not None}
                rows.append(
                    {
                        "method": method,
                        "kind": kind,
                        "quarter": quarter + 1,
                        "participants": len(own),
                        **{name: getattr(found, name) for name in MEASURES},
                        "bins": [(each.confidence, each.right, each.n) for each in found.bins],
                        "least_skill": min(known.values(), default=None),
                        "not_above_0": [seed for seed, skill in known.items() if skill <= 0],
                    }
                )
    return rows


MEASURES = ("n", "right", "mean", "brier_skill", "auroc", "ece", "ece_ci95")
MEASURES += ("n_sure", "sure_right", "sure_right_ci95")


def _words(piece: Mapping[str, Any], quarter: int, unit: str) -> tuple[np.ndarray, np.ndarray]:
    """Return confidences, posteriors and right ones, [N, 3], of a quarter, and each word's day."""
    days = np.array_split(np.arange(len(piece["days"])), QUARTERS)[quarter]
    rows = [(*word, 1000 * piece["seed"] + n) for n in days for word in _of(piece, n, unit)]
    words_N4 = np.asarray(rows, np.float64)
    return words_N4[:, :3], words_N4[:, 3].astype(np.int64)


def _of(piece: Mapping[str, Any], n: int, unit: str) -> Sequence[tuple[float, float, int]]:
    words: Sequence[tuple[float, float, int]] = piece["days"][n][unit]
    return words


def _measured(words: Sequence[np.ndarray], column: int) -> Calibration:
    """Measure confidences; whole days are resampled for the intervals."""
    words_N3, day_N = words
    p_N = np.clip(words_N3[:, column], 0, 1)
    return calibration(p_N, words_N3[:, 2] > 0, day_N)


def print_confidences(rows: Sequence[Mapping[str, Any]], unit: str = "confidences") -> None:
    """Print a table: a line for each method, quarter and kind."""
    columns = ["method", "quarter", "confidence", "right", "mean", "Brier skill", "AUROC", "ECE"]
    columns += [f"at 0.9 or more: {UNITS[unit]}", "right"]
    lines = []
    for row in rows:
        ece, sure = (
            f"{_percent(row[name])} ({', '.join(map(_percent, row[f'{name}_ci95'] or ()))})"
            for name in ("ece", "sure_right")
        )
        lines.append(
            [
                *(row["method"], row["quarter"], row["kind"], _percent(row["right"])),
                *(_percent(row["mean"]), _number(row["brier_skill"]), _number(row["auroc"])),
                *(ece, row["n_sure"], sure),
            ]
        )
    print(f"\nconfidences of {UNITS[unit]}\n\n{markdown_table(columns, lines)}")


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def plot_confidences(rows: Sequence[Mapping[str, Any]], method: str) -> Figure:
    """Return a reliability diagram of a method's words: a panel a quarter, a line a kind."""
    figure = Figure(figsize=(9, 2.6), layout="constrained")
    panels = figure.subplots(1, QUARTERS, sharex=True, sharey=True)
    for row in rows:
        if row["method"] != method:
            continue
        axes = panels[row["quarter"] - 1]
        kept = [(p, right) for p, right, n in row["bins"] if n]
        axes.plot(*zip(*kept, strict=True), marker="o", markersize=3, label=row["kind"])
        axes.set(title=f"quarter {row['quarter']}", xlabel="confidence", xlim=(0, 1), ylim=(0, 1))
    for axes in panels:
        axes.plot([0, 1], [0, 1], color="grey", linewidth=0.8, linestyle=":")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("share of right words")
    panels[0].legend(frameon=False, fontsize=8)
    return figure
