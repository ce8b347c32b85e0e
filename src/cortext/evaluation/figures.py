"""The report's figures as inline SVG.

They need no fonts, scripts or files of their own, and are legible on light and dark paper.

Lines and letters are drawn in placeholder colours that become the page's CSS variables, so that a
figure follows the reader's colour scheme; heat maps are images whose opacity carries the value.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import IO, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import Collection, PolyCollection
from matplotlib.colors import to_hex, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cortext.decoding.options import is_finite
from cortext.errors import plain
from cortext.evaluation.scores import Confusion, Rates
from cortext.text.inventory import Groups

INK, MUTED, RULE, BLUE, ORANGE, PAPER = (f"#0{n}0{n}0{n}" for n in range(1, 7))
_VARIABLES = dict(
    zip(
        (INK, MUTED, RULE, BLUE, ORANGE, PAPER),
        "ink muted rule blue orange paper".split(),
        strict=True,
    )
)
_LIGHT = "#18222b #5a6873 #d9dfe4 #1f6fae #c24e1a #ffffff".split()
_ON_WHITE = dict(zip((INK, MUTED, RULE, BLUE, ORANGE, PAPER), _LIGHT, strict=True))
_COLOURS = ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor")
# Heat maps carry their value in the opacity of one colour, legible on light and dark paper: CSS
# variables do not reach into an image.
BLUE_RGB = (45 / 255, 128 / 255, 196 / 255)
ORANGE_RGB = (232 / 255, 104 / 255, 42 / 255)
FULL_ERROR = 0.25  # share of a token's occurrences at which an error is drawn in full colour
WIDTH_IN = 9.6
STYLE: Any = {  # Any: matplotlib types the keys as a literal of all its settings
    "svg.fonttype": "none",
    "text.parse_math": False,  # words and names may hold a $
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.facecolor": "none",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.6,
    "figure.facecolor": "none",
}


def to_svg(figure: Figure, name: str, label: str) -> str:
    """Return the figure as an `<svg>` element for an HTML page.

    Args:
        figure: Figure to convert.
        name: Name of the figure, from which its ids are derived.
        label: Text that a screen reader speaks.
    """
    file = io.StringIO()
    # The same figure gives the same bytes: its ids follow from its name, and it has no date.
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": name}), warnings.catch_warnings():
        # Letters stay letters, which the browser draws with fonts of its own.
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")
        figure.savefig(file, format="svg", metadata={"Date": None})
    svg = file.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # Other ids can go: only clip paths and markers are referred to by id.
    svg = re.sub(r'<(g|text|svg) id="[^"]*"', r"<\1", svg)
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    # Without width and height, which would keep the page from scaling it.
    opening = f'<svg {box.group(0)} role="img" aria-label="{escape(plain(label))}">'
    svg = re.sub(r"<svg [^>]*>", lambda match: opening, svg, count=1)
    svg = svg.replace("font-family: 'DejaVu Sans'", "font-family: var(--sans)")
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    return re.sub(r">\s+<", "><", svg).strip()


def save_picture(figure: Figure, file: Path | IO[bytes]) -> None:
    """Write the figure as a picture (PNG, or by the name's ending), in the report's colours."""
    for artist in figure.findobj():
        for name in _COLOURS:
            if (get := getattr(artist, f"get_{name}", None)) is None:
                continue
            drawn = to_rgba_array(get())  # collections have several
            if any(to_hex(one) in _ON_WHITE for one in drawn):
                on_white = [(_ON_WHITE.get(to_hex(one), to_hex(one)), one[3]) for one in drawn]
                artist.set(**{name: on_white if isinstance(artist, Collection) else on_white[0]})
    with matplotlib.rc_context(STYLE):
        figure.savefig(file, dpi=150, facecolor="white")


def panels(
    heights_in: Sequence[float],
    *,
    columns: int = 1,
    left: float,
    top: float,
    bottom: float,
    gap: float = 0.1,
) -> tuple[Figure, Any]:
    """Return a figure and its axes [rows, columns].

    The margins are fixed because matplotlib draws everything twice to find them.

    Args:
        heights_in: Height of each row in inches.
        columns: Number of columns.
        left: Left margin in inches.
        top: Upper margin in inches.
        bottom: Lower margin in inches.
        gap: Space between rows in inches.
    """
    total_in = sum(heights_in) + gap * (len(heights_in) - 1) + top + bottom
    figure = Figure(figsize=(WIDTH_IN, total_in))
    axes = figure.subplots(
        len(heights_in),
        columns,
        sharex=columns == 1,
        squeeze=False,
        height_ratios=heights_in,
        gridspec_kw={
            "left": left / WIDTH_IN,
            "right": 1 - 0.05 / WIDTH_IN,
            "top": 1 - top / total_in,
            "bottom": bottom / total_in,
            "hspace": gap * len(heights_in) / sum(heights_in),
            "wspace": 0.13,
        },
    )
    return figure, axes


@dataclass(frozen=True)
class DailyRates:
    """Rates along the recording days: `x_N` days, one `Rates` each.

    Attributes:
        hollow: Draw rings instead of dots.
    """

    name: str
    x_N: Sequence[float]
    rates: Sequence[Rates]
    hollow: bool = False


def rates_by_day(
    series: Sequence[DailyRates],
    x_label: str,
    ticks: Mapping[float, str] | None = None,
    tokens: str = "PER",
) -> Figure:
    """Draw PER and WER with 95 % intervals along the recording days, a line per series.

    Args:
        series: Rates to draw.
        x_label: Label of the days' axis.
        ticks: Labels of positions on that axis; None for numbers.
        tokens: Name of the rate of the model's tokens.
    """
    names = [
        name
        for name in ("per", "wer")
        if any(getattr(rate, name) is not None for s in series for rate in s.rates)
    ]
    with matplotlib.rc_context(STYLE):
        figure, axes = panels([1.6] * len(names), left=0.35, top=0.3, bottom=0.45, gap=0.35)
        axes = axes[:, 0]
        for axis, name in zip(axes, names, strict=True):
            for number, one in enumerate(series):
                _rate_line(axis, one, name, number, len(series))
            axis.set_title(f"{tokens if name == 'per' else name.upper()}, %", color=INK)
            axis.set_ylim(bottom=0)
            axis.yaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
            axis.margins(x=0.03)
        if len(series) > 1 and len(axes):
            legend_above(axes[0], len(series), drawn=axes[-1])
        axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        if ticks is not None:
            axes[-1].set_xticks(list(ticks), [plain(name, 60) for name in ticks.values()])
        axes[-1].set_xlabel(x_label)
    return figure


def reliability(bins: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the share of right words over their confidence, and the number of words below it.

    Args:
        bins: Fields of each `ReliabilityBin`.
    """
    filled = [each for each in bins if each["n"]]
    with matplotlib.rc_context(STYLE):
        figure, axes = panels([2.4, 0.8], left=0.45, top=0.2, bottom=0.45, gap=0.35)
        above, below = axes[:, 0]
        above.plot([0, 100], [0, 100], color=RULE, linewidth=1)
        confidence = [100 * each["confidence"] for each in filled]
        right = [100 * each["right"] for each in filled]
        above.plot(confidence, right, color=BLUE, marker="o", markersize=4)
        above.set_title("right, %", color=INK)
        above.set_ylim(0, 102)
        middle = [50 * (each["low"] + each["high"]) for each in bins]
        below.bar(middle, [each["n"] for each in bins], width=8, color=MUTED)
        below.set_title("words", color=INK)
        below.set_xlabel("confidence, %")
        for axis in (above, below):
            axis.set_xlim(0, 100)
    return figure


def _rate_line(axis: Axes, series: DailyRates, name: str, number: int, of: int) -> None:
    points = [
        (x, getattr(r, name), getattr(r, f"{name}_ci95"))
        for x, r in zip(series.x_N, series.rates, strict=True)
    ]
    points = [point for point in points if point[1] is not None]
    if not points:
        return
    x_N = np.array([point[0] for point in points], dtype=float)
    span = float(np.ptp(x_N)) or 1.0
    x_N = x_N + (number - (of - 1) / 2) * 0.006 * span  # intervals of one day stand side by side
    rate_N = 100 * np.array([point[1] for point in points])
    bounds = 100 * np.array([point[2] or (point[1], point[1]) for point in points])
    errors = np.abs(np.stack([rate_N - bounds[:, 0], bounds[:, 1] - rate_N]))
    colour, marker = ((BLUE, "o"), (ORANGE, "s"), (MUTED, "^"))[number % 3]
    axis.plot(x_N, rate_N, color=colour, linewidth=0.8, alpha=0.45)
    axis.errorbar(
        x_N,
        rate_N,
        errors,
        color=colour,
        marker=marker,
        markersize=4.5,
        linestyle="none",
        elinewidth=1.3,
        label=series.name,
        markerfacecolor=PAPER if series.hollow else colour,
        markeredgewidth=1.0 if series.hollow else 0,
    )


def stacked_bars(
    axis: Axes,
    sides: tuple[np.ndarray, np.ndarray],
    heights: Sequence[tuple[str, np.ndarray, tuple[str, float]]],
) -> None:
    """Draw bars that stand on each other.

    Args:
        axis: Axes to draw in.
        sides: Left and right side of each bar, [N] each.
        heights: Name of each part, its heights [N], and its colour and opacity; from below.
    """
    left_N, right_N = sides
    below_N = np.zeros(len(left_N))
    for name, height_N, (colour, alpha) in heights:
        above_N = below_N + height_N
        corners = [(left_N, below_N), (left_N, above_N), (right_N, above_N), (right_N, below_N)]
        bars = np.stack([np.column_stack(corner) for corner in corners], axis=1)
        # One collection: a patch for each bar takes a minute for the days of a lifetime.
        axis.add_collection(
            PolyCollection(list(bars), facecolor=colour, alpha=alpha, linewidth=0, label=name)
        )
        below_N = above_N


@dataclass(frozen=True)
class Curve:
    """A quantity along the training steps."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]


def is_drawable(value: Any) -> bool:
    """Return whether an axis can show this number: it is finite and of a size that runs have."""
    return is_finite(value) and abs(value) < 1e12


def learning_curves(losses: Sequence[Curve], errors: Sequence[Curve]) -> Figure:
    """Draw losses on the left, error rates in % on the right, along the training steps.

    Each side has at most two curves.
    """
    with matplotlib.rc_context(STYLE):
        figure, axes = panels([2.0], columns=2, left=0.35, top=0.3, bottom=0.45)
        for axis, curves, title in zip(
            axes[0], (losses, errors), ("loss", "validation errors, %"), strict=True
        ):
            for number, curve in enumerate(curves):
                colour = (BLUE, ORANGE)[number % 2]
                faint = (
                    {"linewidth": 1.0, "alpha": 0.8}
                    if len(curve.steps) > 60
                    else {"marker": "o", "markersize": 3}
                )
                axis.plot(
                    curve.steps,
                    curve.values,
                    color=colour,
                    label=curve.name,
                    markeredgewidth=0,
                    **faint,
                )
            axis.set_title(title, color=INK)
            axis.set_xlabel("training step")
            axis.set_ylim(*_robust_limits(curves))
            axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            legend_above(axis, max(len(curves), 1))
    return figure


def legend_above(axis: Axes, columns: int, drawn: Axes | None = None) -> None:
    """Put a legend in the margin above the axes, to the right of the title.

    Args:
        axis: Axes below the legend.
        columns: Number of columns.
        drawn: Axes whose curves the legend names; those below it by default.
    """
    handles, names = (drawn or axis).get_legend_handles_labels()
    axis.legend(
        handles, names, loc="lower right", bbox_to_anchor=(1, 1), ncols=columns, borderaxespad=0
    )


def _robust_limits(curves: Sequence[Curve]) -> tuple[float, float]:
    """Return limits from zero to just above the curves, without their towering first steps."""
    late = [value for curve in curves for value in list(curve.values)[len(curve.values) // 20 :]]
    return (0.0, 1.08 * max(late)) if late and max(late) > 0 else (0.0, 1.0)


def confusion_matrix(confusion: Confusion) -> Figure:
    """Draw the shares in which each reference token (row) was decoded as another (column).

    Right ones are blue, errors orange. Opacity grows with the square root of the share, so that an
    error of a few per cent shows; for errors it is full at `FULL_ERROR`.
    """
    n = len(confusion.symbols)
    counts_RH = confusion.counts_RH[:n]  # insertions have no reference to be a share of
    share_RH = counts_RH / np.maximum(counts_RH.sum(axis=1, keepdims=True), 1)
    image = np.zeros((*share_RH.shape, 4))
    image[..., :3] = ORANGE_RGB
    image[..., 3] = np.sqrt(np.minimum(share_RH / FULL_ERROR, 1))
    image[range(n), range(n)] = np.column_stack(
        [np.tile(BLUE_RGB, (n, 1)), np.sqrt(np.diag(share_RH))]
    )
    with matplotlib.rc_context(
        STYLE | {"axes.grid": False, "axes.spines.left": False, "axes.spines.bottom": False}
    ):
        figure, axes = panels([7.9], left=0.6, top=0.3, bottom=0.65)
        axis = axes[0, 0]
        axis.imshow(image, interpolation="none", aspect="auto")
        letters = min(10, 280 / n)
        turned = 90 if max(map(len, confusion.symbols)) > 2 or n > 30 else 0
        names = [*confusion.symbols, "missing"]
        axis.set_xticks(range(n + 1), names, rotation=turned, fontsize=letters)
        axis.set_yticks(range(n), confusion.symbols, fontsize=letters)
        axis.tick_params(length=0)
        axis.set_xlabel("decoded")
        axis.set_ylabel("said")
        _group_lines(axis, confusion.inventory.grouped)
    return figure


def _group_lines(axis: Axes, groups: Groups) -> None:
    """Name the groups of tokens, and draw lines between them."""
    n = sum(len(symbols) for _, symbols in groups)
    edge = -0.5
    for name, symbols in groups:
        axis.text(
            edge + len(symbols) / 2,
            -0.9,
            name if len(symbols) > 2 else "",
            ha="center",
            va="bottom",
            fontsize=8,
            color=MUTED,
        )
        edge += len(symbols)
        axis.axvline(edge, color=RULE, linewidth=0.8)
        axis.axhline(edge, color=RULE, linewidth=0.8)
    axis.add_patch(
        matplotlib.patches.Rectangle(
            (-0.5, -0.5), n + 1, n, fill=False, edgecolor=RULE, linewidth=0.8
        )
    )
