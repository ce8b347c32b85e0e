"""The command `fit-gate`: an idle gate for a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import JSON, print_json, print_lines, print_table
from cortext.cli.options import Data, Run


def fit_gate(
    run: Run,
    data: Data,
    idle: Annotated[
        Path | None,
        typer.Option(help="Recordings without attempted speech: session files, or a packed one."),
    ] = None,
    split: Annotated[str, typer.Option(help="What of --data: train, val or test.")] = "val",
    as_json: bool = JSON,
) -> None:
    """Fit the idle gate of a run, which tells attempted speech from idle time, and keep it there.

    The figures are cross-fitted: no recording is judged by a gate that was fitted on it.

    Example: cortext fit-gate runs/demo/run --data runs/demo/packed --idle runs/idle
    """
    from cortext.models.participants import run_for
    from cortext_live.core.gate_fit import fit_gate as fit

    run = run_for(run, data)
    card = fit(run, data, idle, split)
    if as_json:
        print_json(asdict(card))
        return
    rows = []
    for m in card.measured:
        false = "-" if m.false_per_hour is None else f"{m.false_per_hour:.2f}"
        high = "-" if m.false_high is None else f"{m.false_high:.2f}"
        missed = [f"{100 * m.missed:.1f} %", f"{100 * m.missed_high:.1f} %"]
        rows.append([f"{m.threshold:.6f}", false, high, *missed])
    columns = ["threshold", "false openings/h", "at most", "missed beginnings", "at most"]
    print_table(f"{card.idle_hours:g} h idle, {card.beginnings} beginnings", columns, rows)
    print_lines(f"threshold: {card.threshold:.6f}", f"gate: {run / 'gate.yaml'}")
