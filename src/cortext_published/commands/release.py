"""Commands for the files published beside the recordings of participant T15."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import (
    JSON,
    percent,
    print_json,
    print_lines,
    print_metrics,
    print_table,
    progress_bar,
)


def import_analyses(
    file: Annotated[Path, typer.Argument(help="The published t15_copyTask.pkl.")],
    out: Annotated[Path, typer.Option(help="Evaluation directory to write.")],
    order: Annotated[
        str,
        typer.Option(
            help=(
                "Order of the tokens in the file: release, lm, or auto for the one that gives the"
                " published phonemes."
            )
        ),
    ] = "auto",
    as_json: bool = JSON,
) -> None:
    """Make an evaluation directory of the published copy task: logits, sentences and prompts.

    Nothing that the file may hold is run. `cortext decode --logits` then decodes the participant's
    logits beside the published sentences.

    Example: cortext import t15-analyses t15_copyTask.pkl --out runs/copy-task

    Example: cortext decode --logits runs/copy-task --lm runs/lm --out decoded.csv
    """
    from cortext_published.copy_task import import_copy_task

    with progress_bar("importing") as progress:
        metrics = import_copy_task(file, out, order, progress=progress)
    if as_json:
        print_json(asdict(metrics))
        return
    print_metrics(metrics)
    imported = metrics.provenance["imported"]
    verified = "gives" if imported["verified"] else "was given, and need not give"
    print_lines(f"the order {imported['order']} {verified} the published phonemes")
    print_lines(f"report: {out / 'report.html'}")


def report(
    files: Annotated[
        list[Path], typer.Argument(help="The published t15_copyTask.pkl, t15_personalUse.pkl.")
    ],
    out: Annotated[
        Path, typer.Option(help="Page to write; its figures are written beside it, too.")
    ] = Path("release.html"),
    predictions: Annotated[
        Path | None,
        typer.Option(help="What `cortext decode --logits` has made of the copy task's logits."),
    ] = None,
    as_json: bool = JSON,
) -> None:
    """Draw the release's figures: errors by day, and hours, ratings and speed of everyday use.

    Nothing that the files may hold is run.

    Example: cortext report release t15_copyTask.pkl t15_personalUse.pkl --out release.html
    """
    from cortext_published.figures import read_published

    with progress_bar("measuring") as progress:
        published = read_published(files, predictions, progress=progress)
    from cortext_published.figures_page import write_release_report

    pictures = write_release_report(out, published)
    if as_json:
        named = {"page": str(out), "pictures": [str(picture) for picture in pictures]}
        print_json(published.to_json() | named)
        return
    rows = [
        (
            f"{point.vocabulary:,} words",
            point.published.n_trials,
            percent(point.published.per),
            percent(point.published.wer),
            "-" if point.decoded is None else percent(point.decoded.wer),
        )
        for point in published.totals
    ]
    if rows:
        columns = ["copy task", "sentences", "PER", "WER, capitals and marks counted"]
        columns += ["WER of the predictions, normalised"]
        print_table("", columns, rows)
    if published.use_days:
        last = published.use_days[-1]
        print_lines(
            f"personal use: {last.hours_so_far:.1f} hours, {last.sentences_so_far:,} sentences on"
            f" {len(published.use_days)} days"
        )
    if n := sum(published.ratings.values()):
        shares = ", ".join(
            f"{name} {percent(number / n)}" for name, number in published.ratings.items()
        )
        print_lines(f"{n:,} sentences: {shares}")
    print_lines(f"page: {out}")
