"""The report of daily use: one HTML file with figures, in the manner of the evaluation's report."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib import dates
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cortext.evaluation import figures
from cortext.evaluation.figures import BLUE, INK, ORANGE, STYLE, legend_above, panels
from cortext.evaluation.report import render
from cortext.evaluation.summary import DAYS_RULE
from cortext.files import atomic_write
from cortext.provenance import provenance
from cortext_live.usage.log_entries import RATINGS
from cortext_live.usage.statistics import PAUSE_S, Day, Use
from cortext_live.usage.summary import amount, summary


def write_use_report(path: Path, use: Use) -> None:
    """Write the page; it holds numbers and dates, and no decoded sentence.

    Raises:
        RunError: The page cannot be written.
    """
    growth_svg = by_day_svg = None
    if use.days:
        growth_svg = Markup(
            figures.to_svg(growth(use.days), "growth", "Hours of use and sentences, added up")
        )
        label = "Ratings, words per minute and word error rates of each day"
        by_day_svg = Markup(figures.to_svg(by_day(use.days), "by-day", label))
    page = render(
        "use.html.j2",
        "cortext_live.usage",
        use=use,
        overall=use.overall,
        ratings=RATINGS,
        period=_period([day.date for day in use.days]),
        simulated=sum(
            count for source, count in use.sources.items() if source.startswith("simulat")
        ),
        growth=growth_svg,
        by_day=by_day_svg,
        pause_minutes=PAUSE_S / 60,
        amount=amount,
        summary=summary(use),
        days_rule=DAYS_RULE,
        origin=provenance(),
    )
    atomic_write(path, page.encode())


def _period(dates: list[str]) -> str:
    """Return `on 21 November 2026`, or from when to when."""
    if not dates:
        return ""
    first, last = (f"{date.fromisoformat(day):%-d %B %Y}" for day in (dates[0], dates[-1]))
    return f"on {first}" if first == last else f"from {first} to {last}"


_FILLS = dict(zip(RATINGS, ((BLUE, 1.0), (BLUE, 0.35), (ORANGE, 0.9)), strict=True))
_EACH_DAY_NAMED = 10  # days up to which each has a tick of its own


def growth(days: Sequence[Day]) -> Figure:
    """Return a figure of hours and sentences added up: flat between days of use, rising in each."""
    starts = _numbers(days)
    x = np.ravel(np.column_stack([starts, starts + 1]))
    unit, factor = ("hours", 1) if days[-1].use_hours_so_far >= 1 else ("minutes", 60)
    in_use = [factor * day.use_hours_so_far for day in days]
    speech = [factor * day.spoken_hours_so_far for day in days]
    lines: list[tuple[str, list[tuple[str, Sequence[float], str]]]] = [
        (unit, [("in use", in_use, BLUE), ("of attempted speech", speech, ORANGE)]),
        ("sentences", [("", [day.sentences_so_far for day in days], BLUE)]),
    ]
    with matplotlib.rc_context(STYLE):
        figure, axes = panels([2.1], columns=2, left=0.45, top=0.3, bottom=0.45)
        for axis, (title, curves) in zip(axes[0], lines, strict=True):
            for name, totals, colour in curves:
                y = np.ravel(np.column_stack([[0, *totals[:-1]], totals]))
                axis.plot(x, y, color=colour, label=name)
                axis.fill_between(x, y, color=colour, alpha=0.12, linewidth=0)
            axis.set_title(title, color=INK)
            axis.set_ylim(0, max(axis.get_ylim()[1], 1e-3))
            axis.yaxis.set_major_locator(
                MaxNLocator(5, steps=[1, 2, 5, 10], integer=title == "sentences")
            )
            if len(curves) > 1:
                legend_above(axis, len(curves))
            _date_axis(axis, starts, most=5)
    return figure


def by_day(days: Sequence[Day]) -> Figure:
    """Return a figure of ratings, words per minute and, with corrections, error rates by day."""
    starts = _numbers(days)
    has_wer = any(day.tally.wer is not None for day in days)
    with matplotlib.rc_context(STYLE):
        figure, axes = panels(
            [1.9, 1.5, 1.5][: 2 + has_wer], left=0.45, top=0.3, bottom=0.45, gap=0.4
        )
        axes = axes[:, 0]
        _shares(axes[0], starts, days)
        axes[1].set_title("words per minute", color=INK)
        _points(
            axes[1],
            starts,
            [(d.tally.words_per_minute, d.tally.words_per_minute_quartiles) for d in days],
        )
        if has_wer:
            axes[2].set_title("word error rate against corrections, %", color=INK)
            percents = [
                (100 * t.wer, [100 * bound for bound in t.wer_ci95 or (t.wer,)])
                if t.wer is not None
                else (None, None)
                for t in (day.tally for day in days)
            ]
            _points(axes[2], starts, percents)
        _date_axis(axes[-1], starts, most=9)
    return figure


def _numbers(days: Sequence[Day]) -> np.ndarray:
    """Return the beginning of each day on matplotlib's axis of dates."""
    return np.array([dates.date2num(date.fromisoformat(day.date)) for day in days])  # type: ignore[no-untyped-call]


def _shares(axis: Axes, starts: np.ndarray, days: Sequence[Day]) -> None:
    width = 0.4 if starts[-1] - starts[0] < _EACH_DAY_NAMED else 0.82
    sides = (starts + 0.5 - width / 2, starts + 0.5 + width / 2)
    shares = [
        (rating, np.array([100 * (day.tally.share(rating) or 0) for day in days]), _FILLS[rating])
        for rating in RATINGS
    ]
    figures.stacked_bars(axis, sides, shares)
    axis.set_ylim(0, 100)
    axis.set_title("utterances rated, %", color=INK)
    legend_above(axis, len(RATINGS))


def _points(
    axis: Axes, starts: np.ndarray, values: Sequence[tuple[float | None, Sequence[float] | None]]
) -> None:
    """Draw a point for each day with a value, and a bar between its bounds."""
    shown = [
        (x + 0.5, value, bounds or (value,))
        for x, (value, bounds) in zip(starts, values, strict=True)
        if value is not None
    ]
    if shown:
        x = [point[0] for point in shown]
        axis.vlines(
            x,
            [min(point[2]) for point in shown],
            [max(point[2]) for point in shown],
            color=BLUE,
            alpha=0.4,
            linewidth=1.3,
        )
        axis.plot(
            x,
            [point[1] for point in shown],
            color=BLUE,
            marker="o",
            markersize=3.5,
            markeredgewidth=0,
            linewidth=0.8,
        )
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 5, 10]))


def _date_axis(axis: Axes, starts: np.ndarray, most: int) -> None:
    """Label days as dates: each one where there are few, and none in between."""
    axis.set_xlim(starts[0] - 0.15, starts[-1] + 1.15)
    if starts[-1] - starts[0] < min(most, _EACH_DAY_NAMED):
        names = [f"{dates.num2date(start):%b %-d}" for start in starts]  # type: ignore[no-untyped-call]
        axis.set_xticks(starts + 0.5, names)
        return
    locator = dates.AutoDateLocator(minticks=3, maxticks=most)  # type: ignore[no-untyped-call]
    # Without 12, matplotlib warns where two and a half years are shown.
    locator.intervald[dates.MONTHLY] = [1, 2, 3, 4, 6, 12]
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
