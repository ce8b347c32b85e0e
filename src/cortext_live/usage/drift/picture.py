"""The picture of drift: days across, arrays down, and lines of what belongs to whole days.

A arrays, N days.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cortext.evaluation.figures import (
    BLUE,
    BLUE_RGB,
    INK,
    ORANGE,
    ORANGE_RGB,
    STYLE,
    legend_above,
    panels,
    save_picture,
)
from cortext.files import atomic_stream, disk_errors
from cortext_live.usage.drift.report import DayReport, DriftReport

FULL = {"shift": 0.5, "spread": 0.7, "dead": 1.0}
"""Values in full colour: standard deviations, log2 (0.7 is a factor of 1.6), share."""
MOST_TICKS = 12
MISSING = (0.5, 0.5, 0.5, 0.25)


def save_drift(report: DriftReport, path: Path) -> None:
    """Write the picture as a PNG.

    Raises:
        DataError: It cannot be written.
    """
    figure = draw(report)
    with disk_errors(path), atomic_stream(path) as file:
        save_picture(figure, file)


def draw(report: DriftReport) -> Figure:
    """Return the figure."""
    days = report.days
    lines = [
        (title, curves)
        for title, curves in _lines(days)
        if any(value is not None for _, values, _ in curves for value in values)
    ]
    maps = _maps(report) if report.layout else []
    n_arrays = len(report.layout.names) if report.layout else 0
    heights = [0.22 * max(n_arrays, 3)] * len(maps) + [1.1] * len(lines)
    style = STYLE | {"axes.grid": False}
    with matplotlib.rc_context(style):
        figure, axes = panels(heights, left=1.0, top=0.35, bottom=0.8, gap=0.42)
        for axis, (title, image) in zip(axes[:, 0], maps, strict=False):
            axis.imshow(image, aspect="auto", interpolation="none")
            axis.set_title(title, color=INK)
            assert report.layout is not None
            axis.set_yticks(range(n_arrays), report.layout.names)
        for axis, (title, curves) in zip(axes[len(maps) :, 0], lines, strict=True):
            _draw_lines(axis, title, curves)
        last = axes[-1, 0]
        step = max(1, -(-len(days) // MOST_TICKS))
        ticks = list(range(0, len(days), step))
        names = [str(days[t].date or days[t].session) for t in ticks]
        last.set_xticks(ticks, names, rotation=30, ha="right", fontsize=7)
        last.set_xlim(-0.5, len(days) - 0.5)
        last.set_xlabel("recording day")
    return figure


def _maps(report: DriftReport) -> list[tuple[str, np.ndarray]]:
    """Return title and image, RGBA [A, N, 4], of each map."""
    assert report.layout is not None
    names = report.layout.names

    def values_AN(get: Callable[[dict[str, Any]], float]) -> np.ndarray:
        rows = [
            [get(day.arrays[name]) if day.arrays else np.nan for day in report.days]
            for name in names
        ]
        return np.array(rows, dtype=np.float64)

    n = len(report.reference)
    first = f"the first {n} days" if n > 1 else "the first day"
    return [
        (
            f"mean against {first}: orange higher, blue lower; full colour at"
            f" {FULL['shift']:g} standard deviations",
            _image(values_AN(lambda row: row["shift"]), FULL["shift"]),
        ),
        (
            f"standard deviation against {first}: orange more, blue less; full colour at a"
            f" factor of {2 ** FULL['spread']:.1f}",
            _image(values_AN(lambda row: row["spread"]), FULL["spread"]),
        ),
        (
            "dead electrodes: full colour where all are dead; grey is not measured",
            _image(values_AN(lambda row: row["dead"] / row["electrodes"]), FULL["dead"]),
        ),
    ]


def _image(values_AN: np.ndarray, full: float) -> np.ndarray:
    """Return RGBA [A, N, 4]: the sign as colour, the size as opacity."""
    image = np.empty((*values_AN.shape, 4))
    image[..., :3] = np.where(values_AN[..., None] > 0, ORANGE_RGB, BLUE_RGB)
    image[..., 3] = np.minimum(np.abs(values_AN) / full, 1)
    image[~np.isfinite(values_AN)] = MISSING
    return image


Curves = list[tuple[str, Sequence[float | None], str]]


def _lines(days: Sequence[DayReport]) -> list[tuple[str, Curves]]:
    """Return title and curves of each panel of lines."""

    def percent(value: float | None) -> float | None:
        return None if value is None else 100 * value

    use: Curves = [
        ("confidence", [percent(d.use.confidence) if d.use else None for d in days], BLUE),
        ("corrected", [percent(d.use.corrected) if d.use else None for d in days], ORANGE),
    ]
    layers: Curves = [
        (name, [d.layer_distance[part] if d.layer_distance else None for d in days], colour)
        for part, (name, colour) in enumerate((("weight", BLUE), ("bias", ORANGE)))
    ]
    return [
        ("mean confidence and share of corrected sentences, %", use),
        ("distance of the day layer from that of the day before (Frobenius)", layers),
    ]


def _draw_lines(axis: Axes, title: str, curves: Curves) -> None:
    for number, (name, values, colour) in enumerate(curves):
        y = np.array([np.nan if value is None else value for value in values])
        if np.isfinite(y).any():
            marker = "os"[number % 2]
            axis.plot(np.arange(len(y)), y, color=colour, marker=marker, markersize=3, label=name)
    axis.set_title(title, color=INK)
    axis.set_ylim(bottom=0)
    legend_above(axis, len(curves))
