"""Printing that all commands share: tables, progress bars, JSON, results."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cortext.describe import percent as percent
from cortext.errors import plain

if TYPE_CHECKING:
    from cortext.data.checks import Problem
    from cortext.evaluation import Metrics

JSON = typer.Option(False, "--json", help="Print one JSON object instead of tables.")
OVERRIDES = typer.Option(
    [], "--set", metavar="KEY=VALUE", help="Override one setting; may be given several times."
)
DEVICE = typer.Option("cpu", "--device", help="Where the model runs: cpu, cuda or cuda:N.")
PLUGINS = typer.Option(
    [], "--plugin", metavar="FILE", help="Python file that registers own models and the like."
)
MOST_PRINTED = 2_000
"""Most characters of a printed line, or of a table's cell."""
SKIP_BAD = typer.Option(
    False, "--skip-bad", help="Leave unusable trials out, and report how many and why."
)


def is_given(call: typer.Context, name: str) -> bool:
    """Return whether the user has given this parameter."""
    source = call.get_parameter_source(name)
    return source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")


def print_lines(*lines: object, err: bool = False) -> None:
    """Print each value as one line; all plain output of the commands goes through this function.

    Names, texts and messages come from files, servers and other programs: each line is escaped and
    cut.
    """
    for line in lines:
        typer.echo(plain(line, MOST_PRINTED), err=err)


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], right_from: int = 1
) -> None:
    """Print a table; the columns from number `right_from` on are numbers, aligned to the right."""
    # Rich takes 40 ms to load: only commands that draw load it.
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=plain(title, MOST_PRINTED) or None, title_justify="left", title_style="bold"
    )
    for number, column in enumerate(columns):
        table.add_column(
            plain(column, MOST_PRINTED), justify="right" if number >= right_from else "left"
        )
    for row in rows:
        table.add_row(*(plain(cell, MOST_PRINTED) for cell in row))
    # Cells are texts of users and other programs: nothing in them is markup.
    console = Console(markup=False, emoji=False)
    # A pipe has no width: give the table the width that it needs, instead of folding it to 80
    # columns.
    wide = console.options.update(max_width=10_000)
    if not console.is_terminal:
        console.width = max(console.measure(table, options=wide).maximum, 80)
    console.print(table)


def print_json(mapping: dict[str, Any]) -> None:
    """Print one JSON object; NaN and infinities, which JSON lacks, become null."""
    typer.echo(json.dumps(finite(mapping), indent=2, default=str, allow_nan=False))


def finite(value: Any) -> Any:
    """Return plain values with null for NaN and infinities, which JSON lacks."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_metrics(metrics: Metrics) -> None:
    """Print the error rates of an evaluation with their intervals."""
    from cortext.evaluation.logits_origin import conventions_of

    rows = []
    crossed = ("wer", "cer") if metrics.n_cross_fitted else ()
    inventory = conventions_of(metrics.provenance).inventory
    for name in ("per", "wer", "cer"):
        rate = getattr(metrics, name)
        interval = getattr(metrics, f"{name}_ci95")
        low, high = (percent(bound) for bound in interval) if interval else ("", "")
        label = inventory.error_rate if name == "per" else name.upper()
        label += ", cross-fitted" if name in crossed else ""
        rows.append((label, percent(rate), f"{low} to {high}" if interval else "-"))
    trials = f"{metrics.n_trials} {metrics.split} trials, {metrics.n_words} words"
    print_table("", [trials, "rate", "95 % interval"], rows)
    print_lines(*metrics.caveats)
    if metrics.n_skipped:
        from cortext.data.checks import Problem

        print_left_out(
            [Problem(**{k: v for k, v in trial.items() if k != "id"}) for trial in metrics.skipped]
        )


def print_left_out(problems: Sequence[Problem]) -> None:
    """Print how many trials and files were left out, and why each was."""
    if problems:
        from cortext.data.checks import SKIP_HINT

        print_lines(f"left out as unusable: {len(problems)}")
        print_lines(*(f"  {str(problem).removesuffix(f', {SKIP_HINT}')}" for problem in problems))


def print_notes(notes: Sequence[str]) -> None:
    """Print notes on stderr."""
    print_lines(*(f"note: {note}" for note in notes), err=True)


@contextmanager
def progress_bar(task: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on stderr, if that is a terminal; yield `report(done, total)`."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    name = TextColumn("{task.description}", markup=False)  # a stage may name a file
    columns = (name, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        number = bar.add_task(plain(task, 80), total=None)
        yield lambda done, total: bar.update(number, completed=done, total=total)


Out = Annotated[Path | None, typer.Option("--out", help="Write the JSON object to this file, too.")]


def stage(name: str) -> None:
    """Print the name of the stage that begins, on stderr."""
    print_lines(f"{name} ...", err=True)


def make_folder_of(out: Path | None) -> None:
    """Make the folder of a result's file, before the work that the result takes."""
    from cortext.files import disk_errors

    if out is not None:
        with disk_errors(out):
            out.parent.mkdir(parents=True, exist_ok=True)


def hand_over(
    result: dict[str, Any], out: Path | None, as_json: bool, show: Callable[[dict[str, Any]], None]
) -> None:
    """Write a result to its file, if one is named; print it as JSON, or by `show`."""
    from cortext.files import atomic_stream, disk_errors

    if out is not None:
        with disk_errors(out), atomic_stream(out) as file:
            file.write((json.dumps(result, indent=2, default=str) + "\n").encode())
    if as_json:
        print_json(result)
    else:
        show(result)


def stages(bars: ExitStack) -> Callable[[str], Callable[[int, int], None]]:
    """Return a function that shows a stage's progress bar in place of the one before."""

    def stage(name: str) -> Callable[[int, int], None]:
        bars.close()
        return bars.enter_context(progress_bar(name))

    return stage
