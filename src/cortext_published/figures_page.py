"""The page of the release's figures: errors of the copy task by day, and everyday use by day."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cortext.evaluation import figures
from cortext.evaluation.figures import BLUE, INK, MUTED, ORANGE, STYLE, legend_above, panels
from cortext.evaluation.report import render
from cortext.files import atomic_write, disk_errors
from cortext.provenance import provenance
from cortext_published.figures import (
    RATED,
    SHARES,
    DayRates,
    RatedDay,
    ReleaseNumbers,
    UseDay,
)

_FILLS = {
    "correct": (BLUE, 1.0),
    "mostly correct": (BLUE, 0.35),
    "incorrect": (ORANGE, 0.9),
    "blank trial": (MUTED, 0.45),
    "not rated": (MUTED, 0.18),
}
_X_LABEL = "days after implantation"


def write_release_report(page: Path, published: ReleaseNumbers) -> list[Path]:
    """Write the page, and each figure as a picture beside it; return the pictures.

    Raises:
        DataError: A file cannot be written.
    """
    drawn: dict[str, tuple[Figure, str]] = {}
    if published.points:
        label = "Phoneme and word error rates by day with 95 % intervals"
        drawn["errors"] = (errors_by_day(published.by_day), label)
    if published.use_days:
        drawn["use"] = (growth(published.use_days), "Hours of use and sentences, added up")
    if any(published.ratings.get(name) for name in RATED):
        drawn["ratings"] = (ratings_pie(published.ratings), "Share of each rating")
    if published.rated_days:
        label = "Ratings, sentences and words per minute by day"
        drawn["days"] = (rated_by_day(published.rated_days), label)
    svgs: dict[str, Markup | None] = dict.fromkeys(("errors", "use", "ratings", "days"))
    svgs |= {
        name: Markup(figures.to_svg(figure, name, label)) for name, (figure, label) in drawn.items()
    }
    html = render(
        "release.html.j2",
        "cortext_published",
        published=published,
        figures=svgs,
        shares=SHARES,
        origin=provenance(),
    )
    pictures = []
    with disk_errors(page):
        for name, (figure, _) in drawn.items():
            pictures.append(page.with_name(f"{page.stem}-{name}.png"))
            content = io.BytesIO()
            figures.save_picture(figure, content)
            atomic_write(pictures[-1], content.getvalue())
        atomic_write(page, html.encode())
    return pictures


def errors_by_day(points: Sequence[DayRates]) -> Figure:
    """Return a figure of PER and WER by day: 125,000 words blue, 50 words red, ours as rings."""
    series = []
    for hollow in (False, True):
        for size in (125_000, 50):
            shown = [
                (point.day, rates)
                for point in points
                if point.vocabulary == size
                and (rates := point.decoded if hollow else point.published) is not None
            ]
            name = f"{size:,} words{', decoded by cortext' if hollow else ''}"
            days = [float(day or 0) for day, _ in shown]
            series.append(figures.DailyRates(name, days, [rates for _, rates in shown], hollow))
    if not any(one.x_N for one in series[2:]):
        series = series[:2]
    return figures.rates_by_day(series, _X_LABEL)


def growth(days: Sequence[UseDay]) -> Figure:
    """Return a figure of the hours and sentences that have added up by each day."""
    x = [day.day for day in days]
    with matplotlib.rc_context(STYLE):
        figure, axes = panels([2.1], columns=2, left=0.45, top=0.3, bottom=0.45)
        for axis, title, totals in (
            (axes[0, 0], "hours of use", [day.hours_so_far for day in days]),
            (axes[0, 1], "sentences", [day.sentences_so_far for day in days]),
        ):
            axis.plot(x, totals, color=BLUE, marker="o", markersize=3, markeredgewidth=0)
            axis.fill_between(x, totals, color=BLUE, alpha=0.12, linewidth=0)
            axis.set_title(title, color=INK)
            axis.set_ylim(0, max(axis.get_ylim()[1], 1e-3))
            _day_axis(axis)
    return figure


def ratings_pie(ratings: Mapping[str, int]) -> Figure:
    """Return a pie of the rated sentences."""
    n = sum(ratings[name] for name in RATED)
    with matplotlib.rc_context(STYLE):
        figure, axes = panels([2.6], left=0.1, top=0.1, bottom=0.1)
        axis = axes[0, 0]
        wedges, *_ = axis.pie(
            [ratings[name] for name in RATED],
            labels=[f"{name}, {100 * ratings[name] / n:.1f} %" for name in RATED],
            colors=[_FILLS[name][0] for name in RATED],
            startangle=90,
            counterclock=False,
            textprops={"color": INK},
        )
        for wedge, name in zip(wedges, RATED, strict=True):
            wedge.set_alpha(_FILLS[name][1])
    return figure


def rated_by_day(days: Sequence[RatedDay]) -> Figure:
    """Return a figure of the shares of ratings, of sentences, and of words per minute by day."""
    x = np.array([day.day for day in days], dtype=float)
    sides = (x - 0.41, x + 0.41)
    with matplotlib.rc_context(STYLE):
        figure, axes = panels([1.9, 1.4, 1.4], left=0.45, top=0.3, bottom=0.45, gap=0.4)
        shares, sentences, speed = axes[:, 0]
        figures.stacked_bars(
            shares,
            sides,
            [
                (name, np.array([100 * day.share(name) for day in days]), _FILLS[name])
                for name in SHARES
            ],
        )
        shares.set_title("sentences, %", color=INK)
        shares.set_ylim(0, 100)
        legend_above(shares, len(SHARES))
        for axis, title, heights in (
            (sentences, "sentences a day", [float(day.sentences) for day in days]),
            (speed, "words per minute, mean of a day", [day.words_per_minute for day in days]),
        ):
            figures.stacked_bars(axis, sides, [(title, np.array(heights), (BLUE, 1.0))])
            axis.set_title(title, color=INK)
            axis.set_ylim(0, 1.05 * max(*heights, 1e-3))
            axis.yaxis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 5, 10]))
        speed.set_xlim(x[0] - 1, x[-1] + 1)
        _day_axis(speed)
    return figure


def _day_axis(axis: Axes) -> None:
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axis.set_xlabel(_X_LABEL)
