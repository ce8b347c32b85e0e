"""Commands for what was published beside the recordings of participant T15."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import JSON, print_json, print_lines, print_metrics, progress_bar


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
    from cortext.evaluation.published import import_copy_task

    with progress_bar("importing") as progress:
        metrics = import_copy_task(file, out, order, progress=progress)
    if as_json:
        print_json(asdict(metrics))
        return
    print_metrics(metrics)
    found = metrics.provenance["imported"]
    verified = "gives" if found["verified"] else "was given, and need not give"
    print_lines(f"the order {found['order']} {verified} the published phonemes")
    print_lines(f"report: {out / 'report.html'}")
