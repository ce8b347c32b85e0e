"""Verbs about checkpoints of other projects: import-checkpoint, export."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cortext.cli.console import JSON, percent, print_json, print_table, progress_bar

if TYPE_CHECKING:
    from cortext.training.release.exchange import Exchanged


class Format(StrEnum):
    """What a run can be exported to."""

    release = "release"


def add_verbs(app: typer.Typer) -> None:
    """Add this file's verbs to the command line."""
    app.command("import-checkpoint")(import_checkpoint)
    app.command("export")(export)


def import_checkpoint(
    directory: Annotated[Path, typer.Argument(help="The release's directory, with checkpoint/best_checkpoint in it.")],
    out: Annotated[Path, typer.Option(help="Run directory to write.")],
    name: Annotated[str, typer.Option(help="Which file in the folder.")] = "best_checkpoint",
    as_json: bool = JSON,
) -> None:
    """Make a run of a checkpoint of the public release. Nothing that the file may hold is run.

    Example: cortext import-checkpoint t15_pretrained_rnn_baseline --out runs/published
    """
    from cortext.training.release.exchange import import_checkpoint as import_directory

    with progress_bar("importing"):
        imported = import_directory(directory, out, name)
    _print(imported, as_json)


def export(
    run: Annotated[Path, typer.Argument(help="Run directory of a trained model.")],
    format: Annotated[Format, typer.Option(help="release: for the scripts of the public release.")],
    out: Annotated[Path, typer.Option(help="Directory to write.")],
    as_json: bool = JSON,
) -> None:
    """Write a run for other software.

    Example: cortext export runs/first --format release --out runs/first-release
    """
    from cortext.training.release.exchange import export_release

    with progress_bar("exporting"):
        exported = {Format.release: export_release}[format](run, out)
    _print(exported, as_json)


def _print(exchanged: Exchanged, as_json: bool) -> None:
    if as_json:
        print_json(dataclasses.asdict(exchanged))
        return
    loss = "-" if exchanged.val_loss is None else f"{exchanged.val_loss:.3f}"
    rows = [
        ("files", "  ".join(exchanged.files)),
        ("sessions", exchanged.n_sessions),
        ("parameters", f"{exchanged.n_parameters:,}"),
        ("batches trained on", f"{exchanged.step:,}"),
        ("validation PER", percent(exchanged.val_per)),
        ("validation loss", loss),
    ]
    print_table("", [exchanged.path, ""], rows, right_from=2)
    for note in exchanged.notes:
        typer.echo(f"note: {note}")
