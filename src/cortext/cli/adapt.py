"""The verb for a day that a model has never seen: adapt."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import (
    DEVICE,
    JSON,
    OVERRIDES,
    PLUGINS,
    SKIP_BAD,
    print_json,
    print_left_out,
    print_lines,
    print_table,
)
from cortext.plugins import load_plugins


def add_verbs(app: typer.Typer) -> None:
    """Add this file's verbs to the command line."""
    app.command()(adapt)


def adapt(
    run: Annotated[
        Path, typer.Argument(help="Run directory of a trained model; it is not changed.")
    ],
    data: Annotated[Path, typer.Option(help="Session files with the day, or a packed directory.")],
    out: Annotated[Path, typer.Option(help="Run directory to write.")],
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="The day's first training trials to use; all without it."),
    ] = None,
    session: Annotated[
        str | None, typer.Option(help="The day, where the data have several.")
    ] = None,
    whole_model: Annotated[
        bool,
        typer.Option("--whole-model", help="Everything learns, not the new day's layer alone."),
    ] = False,
    old_data: Annotated[
        Path | None, typer.Option(help="Recordings of known days to mix in; needs --whole-model.")
    ] = None,
    old_trials: Annotated[int, typer.Option(min=1, help="Trials of known days to mix in.")] = 200,
    batches: Annotated[int, typer.Option(min=1, help="Batches of 16 trials of the new day.")] = 60,
    skip_bad: bool = SKIP_BAD,
    device: str = DEVICE,
    plugins: list[Path] = PLUGINS,
    overrides: list[str] = OVERRIDES,
    as_json: bool = JSON,
) -> None:
    """Fit a trained model to a new day, from the nearest day that it knows, or to more trials of
    a known one.

    Example: cortext adapt runs/first --data new-day --trials 50 --out runs/adapted
    """
    from cortext.training import adapt as adapt_model

    load_plugins(plugins)
    summary = adapt_model(
        run,
        data,
        out,
        trials=trials,
        session=session,
        whole_model=whole_model,
        old_data=old_data,
        old_trials=old_trials,
        batches=batches,
        device=device,
        overrides=overrides,
        skip_bad=skip_bad,
    )
    if as_json:
        print_json(dataclasses.asdict(summary))
        return
    ranked = sorted(summary.loss_by_session.items(), key=lambda item: item[1])
    rows = [
        (name, f"{loss:.2f}", "nearest" if name == summary.nearest else "")
        for name, loss in ranked[:5]
    ]
    print_table("", ["layer of", f"CTC loss on {summary.session}", ""], rows)
    print_lines(summary)
    print_left_out(summary.skipped)
