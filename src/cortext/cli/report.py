"""Verbs that draw what was recorded in use: report use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cortext.cli.console import JSON, percent, print_json, print_lines, print_table

if TYPE_CHECKING:
    from cortext.usage.statistics import UseStatistics

report = typer.Typer(help="Draw what was recorded in daily use.", rich_markup_mode=None)


def add_verbs(app: typer.Typer) -> None:
    """Add this file's verbs to the command line."""
    report.command()(use)
    app.add_typer(report, name="report")


def use(
    logs: Annotated[
        list[Path], typer.Argument(help="Directories that a decoder wrote with --session-log.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Page to write. Default: use.html in the first directory.")
    ] = None,
    as_json: bool = JSON,
) -> None:
    """Hours of use, sentences, correctness, words per minute and word error rates by day, as a
    page.

    Example: cortext report use runs/log --out use.html
    """
    from cortext.usage.report import write_use_report
    from cortext.usage.statistics import read_use

    found = read_use(logs)
    page = out or logs[0] / "use.html"
    write_use_report(page, found)
    if as_json:
        print_json(found.to_json() | {"page": str(page)})
        return
    rows = [(day.date, *_cells(day.tally)) for day in found.days]
    columns = [
        "day",
        "use, h",
        "sentences",
        "words/min",
        "rated",
        "right",
        "mostly right",
        "wrong",
        "WER",
    ]
    print_table("", columns, [*rows, ("all", *_cells(found.overall))])
    for note in found.notes:
        print_lines(note)
    print_lines(f"page: {page}")


def _cells(tally: UseStatistics) -> tuple[str, ...]:
    speed = "-" if tally.words_per_minute is None else f"{tally.words_per_minute:.1f}"
    shares = (percent(tally.share(rating)) for rating in tally.ratings)
    return (
        f"{tally.use_hours:.2f}",
        str(tally.sentences),
        speed,
        str(tally.rated),
        *shares,
        percent(tally.wer),
    )
