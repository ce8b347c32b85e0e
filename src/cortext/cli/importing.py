"""Commands that write recordings of other formats as session files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cortext.cli.console import (
    print_json,
    print_left_out,
    print_lines,
    print_notes,
    progress_bar,
)
from cortext.errors import DataError

if TYPE_CHECKING:
    from cortext.data.readers.recording import Source

Folder = Annotated[Path, typer.Argument(help="Directory that the release was unpacked in.")]
Out = Annotated[
    Path, typer.Option(help="Directory of session files to write; a second call goes on in it.")
]
Normalise = Annotated[
    str | None,
    typer.Option(
        help="How features are scaled: block (z-scores over each block), rolling (causal z-scores,"
        " as live decoding has them), published (as the release does it, where it differs) or none."
    ),
]
BinMs = Annotated[
    float | None,
    typer.Option(
        "--bin-ms",
        min=5,
        max=50,
        help="Length of the bins to write in ms; counts are summed, powers averaged, before they"
        " are z-scored. Default: the recordings' own.",
    ),
]


def write(
    source: Source,
    out: Path,
    normalise: str | None,
    bin_ms: float | None,
    skip_bad: bool,
    as_json: bool,
) -> None:
    """Import recordings, and print what was written as `cortext inspect` does.

    Raises DataError after that where there were problems, unless they are to be left out.
    """
    from cortext.data.inspect import inspect
    from cortext.data.readers.importing import import_source

    with progress_bar("importing") as progress:
        done = import_source(
            source,
            out,
            normalise=normalise,
            bin_ms=bin_ms,
            skip_bad=skip_bad,
            progress=progress,
        )
    report = None
    if done.n_written or done.n_kept:
        with progress_bar("reading") as progress:
            report = inspect(out, progress=progress)
    if as_json:
        print_json(
            {
                "out": str(out),
                "written": done.n_written,
                "kept": done.n_kept,
                "refused": done.n_refused,
                "notes": done.notes,
                "problems": [problem.to_json() for problem in done.problems],
                "data": None if report is None else report.plain(),
            }
        )
    else:
        if report is not None:
            print_lines(*str(report).split("\n"))
        if done.n_kept:
            print_lines(f"{done.n_kept} recordings were there already")
        print_notes(done.notes)
    if done.problems and (done.n_incomplete or not skip_bad):
        print_lines(*done.problems, err=True)
        fix = "repair them, or leave these trials and files out with --skip-bad"
        if done.n_incomplete and skip_bad:
            fix = "repair those whose trials all have a place in a submission"
        raise DataError(
            f"{len(done.problems)} problems; {done.n_refused} recordings were not written",
            where=out,
            fix=fix,
        )
    if not as_json:
        print_left_out(done.problems)
