"""The commands `import checkpoint` and `export`: runs from other software, and for it."""

from __future__ import annotations

import dataclasses
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cortext.cli.console import (
    JSON,
    PLUGINS,
    percent,
    print_json,
    print_lines,
    print_table,
    progress_bar,
)
from cortext.plugins import load_plugins

if TYPE_CHECKING:
    from cortext_published.release.exchange import Exchanged


class Format(StrEnum):
    """Form of an exported run."""

    release = "release"
    onnx = "onnx"


def import_checkpoint(
    directory: Annotated[
        Path, typer.Argument(help="The release's directory, with checkpoint/best_checkpoint in it.")
    ],
    out: Annotated[Path, typer.Option(help="Run directory to write.")],
    name: Annotated[str, typer.Option(help="Which file in the folder.")] = "best_checkpoint",
    as_json: bool = JSON,
) -> None:
    """Make a run of a checkpoint of the public release. Nothing that the file may hold is run.

    Example: cortext import checkpoint t15_pretrained_rnn_baseline --out runs/published
    """
    from cortext_published.release.exchange import import_checkpoint as import_directory

    with progress_bar("importing"):
        imported = import_directory(directory, out, name)
    _print(imported, as_json)


def export(
    run: Annotated[Path, typer.Argument(help="Run directory of a trained model.")],
    format: Annotated[
        Format,
        typer.Option(
            help="release: for the scripts of the public release; onnx: a graph of one 80 ms step."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Directory to write.")],
    int8: Annotated[
        bool, typer.Option("--int8", help="onnx: also a graph with 8-bit weights.")
    ] = False,
    data: Annotated[
        Path | None, typer.Option(help="onnx: measure the errors of each graph on this.")
    ] = None,
    split: Annotated[str, typer.Option(help="The labelled split of --data.")] = "val",
    plugins: list[Path] = PLUGINS,
    as_json: bool = JSON,
) -> None:
    """Write a run for other software.

    Example: cortext export runs/demo/run --format onnx --out runs/demo/onnx --int8 --data
    runs/demo/packed
    """
    load_plugins(plugins)
    if format is Format.onnx:
        _export_onnx(run, out, int8, data, split, as_json)
        return
    if int8 or data is not None:
        raise typer.BadParameter("--int8 and --data go with --format onnx")
    from cortext_published.release.exchange import export_release

    with progress_bar("exporting"):
        exported = export_release(run, out)
    _print(exported, as_json)


def _export_onnx(
    run: Path, out: Path, int8: bool, data: Path | None, split: str, as_json: bool
) -> None:
    from cortext.evaluation.fit.options import FittedOptions
    from cortext.models.card import CARD, read_card
    from cortext.models.participants import run_for
    from cortext.training.participants.recordings import open_for
    from cortext_live.steps.onnx import export_onnx, record_errors
    from cortext_live.steps.onnx_stepper import OnnxStepper
    from cortext_live.steps.stepped import stepped_errors

    recordings = None
    if data is not None:  # what does not fit is reported before the work
        run = run_for(run, data)
        conventions = read_card(run / CARD).conventions
        recordings = open_for(conventions, data)
        recordings.split(split)
        recordings.conventions.require(
            conventions,
            mine="the data",
            theirs="the run",
            where=recordings.path,
            fix="give recordings like those the run was trained on",
        )
    with progress_bar("exporting"):
        exported = export_onnx(run, out, int8)
        FittedOptions.take_over(run, out)
    if recordings is not None:
        with progress_bar("measuring") as progress:
            steppers = {name: OnnxStepper(out, precision=name) for name in exported.graphs}
            exported = record_errors(
                out, exported, stepped_errors(steppers, recordings, split, progress)
            )
    if as_json:
        print_json(dataclasses.asdict(exported))
        return
    rows = [
        (
            graph["file"],
            name,
            f"{graph['largest_difference']:.1e}",
            f"{100 * exported.errors[name]['per']:.2f} %" if exported.errors else "-",
        )
        for name, graph in exported.graphs.items()
    ]
    errors = read_card(out / CARD).conventions.inventory.error_rate
    print_table("", [str(out), "precision", "logits differ by", errors], rows, right_from=2)
    for name, shape in (exported.inputs | exported.outputs).items():
        print_lines(f"{name}: {shape}")
    if int8:
        print_lines(
            "int8: ONNX Runtime's sums are exact here; with unsigned weights also elsewhere"
        )
    if int8 and data is None:
        print_lines("note: what int8 costs in phoneme errors has not been measured; give --data")


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
        print_lines(f"note: {note}")
