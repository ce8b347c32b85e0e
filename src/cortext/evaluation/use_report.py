"""The page about daily use.

One HTML file with everything in it, in the manner of the evaluation's report.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path

from markupsafe import Markup

from cortext.evaluation import figures, use_figures
from cortext.evaluation.report import render
from cortext.evaluation.use import PAUSE_S, Use
from cortext.evaluation.use_log import RATINGS
from cortext.files import write_whole
from cortext.provenance import provenance


def write_use_report(path: Path, use: Use) -> None:
    """Write the page. It holds numbers and dates, and no sentence that anybody said.

    Raises RunError.
    """
    growth = by_day = None
    if use.days:
        growth = Markup(
            figures.to_svg(
                use_figures.growth(use.days), "growth", "Hours of use and sentences, added up"
            )
        )
        label = "Ratings, words per minute and word error rates of each day"
        by_day = Markup(figures.to_svg(use_figures.by_day(use.days), "by-day", label))
    page = render(
        "use.html.j2",
        use=use,
        overall=use.overall,
        ratings=RATINGS,
        period=_period([day.date for day in use.days]),
        simulated=sum(
            count for source, count in use.sources.items() if source.startswith("simulat")
        ),
        growth=growth,
        by_day=by_day,
        pause_minutes=PAUSE_S / 60,
        amount=_amount,
        origin=provenance(),
    )
    write_whole(path, page.encode())


def _amount(hours: float) -> tuple[str, str]:
    """A length of time and its unit, the largest that it fills: hours, minutes or seconds."""
    for unit, factor in (("h", 1), ("min", 60)):
        if hours * factor >= 1:
            return f"{hours * factor:.1f}", unit
    return f"{hours * 3600:.0f}", "s"


def _period(dates: list[str]) -> str:
    """`on 21 November 2026`, or from when to when."""
    if not dates:
        return ""
    first, last = (f"{date.fromisoformat(day):%-d %B %Y}" for day in (dates[0], dates[-1]))
    return f"on {first}" if first == last else f"from {first} to {last}"
