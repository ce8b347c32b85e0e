"""Compare the trials of a search: the ranking, `trials.csv`, best first, and `trials.png`."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cortext.evaluation.figures import is_drawable
from cortext.files import atomic_write, json_lines
from cortext.tables import csv_table
from cortext_tune.search import TuningTrial
from cortext_tune.space import Choice, Range, Space, label, short

METRICS = ("val_per", "val_wer", "val_loss")
COLUMNS = (*METRICS, "best_step", "steps", "seconds")
NAMES = {
    "val_per": "validation PER (%)",
    "val_wer": "validation WER (%)",
    "val_loss": "validation loss",
}
COLOURS = ("#d1495b", "#2d80c4", "#3c9d6b", "#e8a02a", "#7d5ba6")
"""Colours of the best trials, in this order."""
OTHERS = "#b5bac0"
"""Colour of all other trials."""
STYLE: Any = {  # Any: matplotlib types the keys as a literal of all its settings
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e8ea",
    "legend.frameon": False,
    "legend.fontsize": 8,
}


@dataclass(frozen=True)
class Study:
    """The trials of a search over training settings.

    Attributes:
        out: The search directory.
        metric: Metric that is minimised, of the weights that each run keeps.
        description: Identity of the search: two searches with the same one are the same.
        total: Number of trials once all are done.
        trials: Trials begun so far, by number. The `metrics` of a finished one are `val_per`,
            `val_wer` and `val_loss` of the batch `best_step`, and all its `steps` and `seconds`.
    """

    out: Path
    metric: str
    description: Mapping[str, Any]
    total: int
    trials: list[TuningTrial]

    def folder(self, trial: TuningTrial) -> Path:
        """Return the trial's run directory."""
        safe = re.sub(r"[^A-Za-z0-9._=-]+", "_", label(trial.settings).replace(" ", "-"))
        return self.out / "trials" / f"{trial.number:04d}-{safe[:80]}"

    def value(self, trial: TuningTrial) -> float:
        """Return the trial's value of the metric; infinity where it has none."""
        return metric_value(trial.metrics, self.metric)

    def ranked(self) -> list[TuningTrial]:
        """Return finished trials from best to worst, then the others by number."""

        def rank(trial: TuningTrial) -> tuple[Any, ...]:
            # Equal rates are common on a small validation split: the loss decides.
            loss = metric_value(trial.metrics, "val_loss")
            return trial.state != "finished", self.value(trial), loss, trial.number

        return sorted(self.trials, key=rank)

    @property
    def best(self) -> TuningTrial | None:
        """The best of the finished trials."""
        return next((trial for trial in self.ranked() if trial.state == "finished"), None)

    def count(self, state: str) -> int:
        """Return the number of trials in this state."""
        return sum(trial.state == state for trial in self.trials)

    def to_json(self) -> dict[str, Any]:
        """Return the search and its trials from best to worst, for `--json`."""
        trials = [
            {
                "number": trial.number,
                "name": self.folder(trial).name,
                "settings": trial.settings,
                "state": trial.state,
                "metrics": trial.metrics,
                "reason": trial.reason,
                "run": str(self.folder(trial)),
            }
            for trial in self.ranked()
        ]
        return {
            "out": str(self.out),
            **self.description,
            "n_trials": self.total,
            "best": trials[0] if self.best else None,
            "trials": trials,
        }


def metric_value(metrics: Mapping[str, Any], name: str) -> float:
    """Return a metric; infinity where it is missing or not a number."""
    value = metrics.get(name)
    return math.inf if value is None or math.isnan(value) else float(value)


def write_table(study: Study) -> Path:
    """Write `trials.csv`: settings and metrics of every trial, best first."""
    keys = list(study.trials[0].settings) if study.trials else []
    rows = []
    for trial in study.ranked():
        settings = [trial.settings[key] for key in keys]
        metrics = [trial.metrics.get(name) for name in COLUMNS]
        run = str(study.folder(trial).relative_to(study.out))
        rows.append([trial.number, trial.state, *settings, *metrics, run, trial.reason or ""])
    return write_rows(
        study.out / "trials.csv", ["trial", "state", *keys, *COLUMNS, "run", "reason"], rows
    )


def write_rows(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    """Write a CSV file.

    Args:
        path: The file.
        header: Names of the columns.
        rows: Cells of each row; None is empty, lists and mappings are written as JSON.

    Returns:
        The path.
    """
    atomic_write(path, csv_table(header, ([_cell(value) for value in row] for row in rows)))
    return path


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return value if isinstance(value, int | float | str) else json.dumps(value)


def write_picture(study: Study, space: Space) -> Path | None:
    """Write `trials.png`: the metric over batches and over each setting; None without a curve."""
    curves = {
        trial.number: _curve(study.folder(trial) / "metrics.jsonl", study.metric)
        for trial in study.trials
    }
    if not any(curves.values()):
        return None
    ranked = study.ranked()
    colours = {trial.number: OTHERS for trial in ranked}
    finished = [trial for trial in ranked if trial.state == "finished"]
    colours |= {trial.number: colour for trial, colour in zip(finished, COLOURS, strict=False)}
    points = [
        TrialPoint(trial.settings, _drawn(study.metric, study.value(trial)), colours[trial.number])
        for trial in finished
    ]
    return draw(
        study.out / "trials.png",
        lambda axes: _draw_curves(axes, study, ranked, curves, colours),
        space,
        points,
        NAMES[study.metric],
    )


@dataclass(frozen=True)
class TrialPoint:
    """A trial in a picture."""

    settings: Mapping[str, Any]
    value: float
    colour: str


def draw(
    path: Path,
    draw_top: Callable[[Axes], None],
    space: Space,
    points: Sequence[TrialPoint],
    name: str,
) -> Path:
    """Write a picture: `draw_top` draws the upper axes, the trials over each setting are below.

    Args:
        path: PNG file to write.
        draw_top: Draws on the upper axes.
        space: The searched settings.
        points: The trials, best first.
        name: Axis label of their values.
    """
    columns = min(len(space), 3)
    rows = 1 + math.ceil(len(space) / columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 3.4 + 2.6 * (rows - 1)), layout="constrained")
        grid = figure.add_gridspec(rows, columns, height_ratios=[3.4] + [2.6] * (rows - 1))
        draw_top(figure.add_subplot(grid[0, :]))
        for index, (key, values) in enumerate(space.items()):
            axes = figure.add_subplot(grid[1 + index // columns, index % columns])
            _draw_setting(axes, points, key, values, name)
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=130)
    atomic_write(path, picture.getvalue())
    return path


def _curve(path: Path, metric: str) -> list[tuple[int, float]]:
    """Return batch and metric of every validation so far."""
    points = []
    for entry in json_lines(path):
        step: Any = entry.get("step")
        value: Any = entry.get(metric)
        if entry.get("kind") == "val" and is_drawable(step) and is_drawable(value):
            points.append((int(step), _drawn(metric, value)))
    return points


def _drawn(metric: str, value: float) -> float:
    return value if metric == "val_loss" else 100 * value


def _draw_curves(
    axes: Axes,
    study: Study,
    ranked: Sequence[TuningTrial],
    curves: Mapping[int, Sequence[tuple[int, float]]],
    colours: Mapping[int, str],
) -> None:
    for trial in reversed(ranked):  # the best on top
        if curve := curves[trial.number]:
            marked = colours[trial.number] != OTHERS
            name = f"{trial.number}: {label(trial.settings)}" if marked else None
            steps, values = zip(*curve, strict=True)
            width = 1.8 if marked else 0.9
            axes.plot(
                steps, values, "o-", color=colours[trial.number], label=name, lw=width, ms=2 * width
            )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="batch", ylabel=NAMES[study.metric], title=f"{study.count('finished')} trials")
    handles, names = axes.get_legend_handles_labels()
    if handles:
        axes.legend(handles[::-1], names[::-1], title="best")


def _draw_setting(
    axes: Axes, points: Sequence[TrialPoint], key: str, values: Choice | Range, name: str
) -> None:
    for point in reversed(points):  # the best on top
        if key in point.settings:
            value = point.settings[key]
            x = value if isinstance(values, Range) else values.values.index(value)
            axes.plot(x, point.value, "o", color=point.colour, ms=5)
    if isinstance(values, Choice):
        axes.set_xticks(range(len(values.values)), [short(value)[:24] for value in values.values])
        axes.set_xlim(-0.5, len(values.values) - 0.5)
    elif values.log:
        axes.set_xscale("log")
    axes.set(xlabel=key, ylabel=name)
