"""The command `report drift`."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cortext.cli.console import (
    JSON,
    SKIP_BAD,
    finite,
    print_json,
    print_lines,
    print_notes,
    print_table,
    progress_bar,
)
from cortext.errors import CortextError
from cortext_live.usage.drift.changes import Floors

if TYPE_CHECKING:
    from cortext_live.recalibration.chain_entries import ChainContents
    from cortext_live.usage.drift.report import DayReport, DriftReport, LayerDistances

ALERT_STATUS = 3
"""Exit status of `--fail` where the newest day has changed."""


def drift(
    source: Annotated[
        Path, typer.Argument(help="Session files, packed data, or a usage log.", metavar="LOG|DATA")
    ],
    floors: Floors,
    out: Annotated[
        Path | None, typer.Option(help="Directory for drift.png and drift.json.", metavar="DIR")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="Run directory, for the distances of its day layers.")
    ] = None,
    chain: Annotated[
        Path | None,
        typer.Option(
            help="Chain of `recalibrate`, for the model that spoke; without --run also for the"
            " distances of day layers."
        ),
    ] = None,
    arrays: Annotated[
        str | None,
        typer.Option(help="Number of arrays, or their names with commas; 4 where possible."),
    ] = None,
    per_electrode: Annotated[
        int | None, typer.Option(min=1, help="Features of an electrode; 2 where possible.")
    ] = None,
    dead_hz: Annotated[
        float, typer.Option(min=0, help="Crossings a second below which an electrode is dead.")
    ] = 2.0,
    hook: Annotated[
        str | None,
        typer.Option(help="Post alerts there: http://127.0.0.1:PORT/PATH.", metavar="URL"),
    ] = None,
    fail: Annotated[
        bool, typer.Option("--fail", help="End with status 3 if the newest day has changed.")
    ] = False,
    skip_bad: bool = SKIP_BAD,
    as_json: bool = JSON,
) -> int:
    """Tell what has changed since when: means, variances, dead electrodes, confidence, corrections.

    The first five days are the reference. A change of the newest day is an alert.

    Example: cortext report drift runs/months --out runs/drift
    """
    from cortext_live.usage.drift.alerts import check_hook, send_alerts
    from cortext_live.usage.drift.report import drift_report
    from cortext_live.usage.drift.sources import read_source

    if hook is not None:
        check_hook(hook)
    notes: list[str] = []
    models = None if chain is None else _read_chain(chain, skip_bad, notes)
    distances = _layer_distances(run, chain, models, notes)
    model_in_use = None if models is None else _model_in_use(models)
    with progress_bar("reading") as progress:
        read = read_source(source, skip_bad=skip_bad, model_in_use=model_in_use, progress=progress)
    read.notes += notes
    report = drift_report(
        read,
        arrays=arrays,
        n_kinds=per_electrode,
        dead_hz=dead_hz,
        floors=floors,
        layer_distances=distances,
    )
    if out is not None:
        _write(report, out)
    if as_json:
        print_json(report.to_json())
    else:
        _show(report, out)
    if problem := send_alerts(report.alerts, source, hook):
        print_notes([problem])
    return ALERT_STATUS if fail and report.alerts else 0


def _read_chain(chain: Path, skip_bad: bool, notes: list[str]) -> ChainContents | None:
    """Read a chain; with `skip_bad`, note one that is damaged or missing, and return None."""
    from cortext_live.recalibration.chain import read_chain

    try:
        return read_chain(chain)
    except CortextError as error:
        if not skip_bad:
            raise
        notes.append(f"left out: the chain {chain}, because of: {error.what}")
        return None


def _model_in_use(models: ChainContents) -> Callable[[datetime], str]:
    """Return a function that names the model of a chain that spoke at a time."""

    def model_in_use(when: datetime) -> str:
        then = models.at(when)
        return models.entries[then.speaking(when)].model_name if then.entries else "before it"

    return model_in_use


def _layer_distances(
    run: Path | None, chain: Path | None, models: ChainContents | None, notes: list[str]
) -> LayerDistances | None:
    """Return the distances of the day layers of a run, or else of a model of a chain.

    The days of a log are known to the models that have learnt from it. Of those that were allowed
    to speak, the latest knows the most: a provisional one counts even when its time is over.

    `models` is None where the chain cannot be read. `notes` gets a line where the chain's model is
    damaged or has no day layers.

    Raises:
        RunError: The run has no model, or one without day layers.
    """
    from cortext_live.recalibration.chain import verify_model
    from cortext_live.usage.drift.report import layer_distances

    if run is not None:
        return layer_distances(run)
    if chain is None or models is None:
        return None
    number = models.parent if models.provisional is None else models.provisional
    try:
        return layer_distances(verify_model(chain, models.model(number)))
    except CortextError as error:
        notes.append(f"left out: distances of day layers, because {error.what}")
        return None


def _write(report: DriftReport, out: Path) -> None:
    from cortext.files import atomic_write, disk_errors
    from cortext_live.usage.drift.picture import save_drift

    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(finite(report.to_json()), indent=2)
    atomic_write(out / "drift.json", text.encode() + b"\n")
    save_drift(report, out / "drift.png")


def _show(report: DriftReport, out: Path | None) -> None:
    columns = ["day", "mean, SD", "SD", "dead", "back", "confidence", "corrected"]
    columns += ["day layer", "model"]
    title = "Largest change of an array against the reference days"
    print_table(title, columns, [_row(day) for day in report.days])
    print_lines(*(text for _, text in report.sentences))
    if not report.sentences:
        print_lines("Nothing has changed by more than usual.")
    print_notes(report.notes)
    if out is not None:
        print_lines(f"picture: {out / 'drift.png'}")


def _row(day: DayReport) -> list[str]:
    from cortext_live.usage.drift.report import models_of

    rows = list(day.arrays.values())
    shift, spread = (
        max((row[kind] for row in rows if row[kind] == row[kind]), key=abs, default=None)
        for kind in ("shift", "spread")
    )
    use = day.use
    confidence = None if use is None else use.confidence
    return [
        str(day.date or day.session),
        "-" if shift is None else f"{shift:+.2f}",
        "-" if spread is None else f"{100 * (2**spread - 1):+.0f} %",
        str(sum(row["dead"] for row in rows)) if rows else "-",
        str(sum(len(row["new"]) for row in rows)) if rows else "-",
        "-" if confidence is None else f"{100 * confidence:.0f} %",
        "-" if use is None else f"{100 * use.corrected:.0f} %",
        "-" if day.layer_distance is None else f"{day.layer_distance[0]:.2f}",
        models_of(use),
    ]
