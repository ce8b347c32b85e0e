"""The command `evaluate`: error rates of a split."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import (
    DEVICE,
    JSON,
    PLUGINS,
    SKIP_BAD,
    is_given,
    print_json,
    print_lines,
    print_metrics,
    print_notes,
    progress_bar,
)
from cortext.cli.options import Data, Participant, PromptedModelOptions, Run, searching
from cortext.errors import ConfigError
from cortext.evaluation.settings import SearchSettings
from cortext.plugins import load_plugins

SEARCHING = ("options", "engine", "threads", "fit")
"""Parameters of `evaluate` that say how words are searched for."""


def evaluate(
    call: typer.Context,
    run: Run,
    data: Data,
    out: Annotated[Path, typer.Option(help="Evaluation directory to write.")],
    *,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "val",
    lm: Annotated[
        Path | None, typer.Option(help="Language-model directory; without it only PER is reported.")
    ] = None,
    description: Annotated[
        Path | None, typer.Option(help="CSV of blocks: post-implant day and corpus.")
    ] = None,
    search: SearchSettings,
    fit: Annotated[
        bool,
        typer.Option(
            "--fit", help="Fit decoder options to this split first, and keep them in the run."
        ),
    ] = False,
    large: PromptedModelOptions,
    participant: Participant = None,
    skip_bad: bool = SKIP_BAD,
    device: str = DEVICE,
    plugins: list[Path] = PLUGINS,
    as_json: bool = JSON,
) -> None:
    """Decode a split, measure PER, WER and CER, and write predictions, n-best lists and a report.

    Example: cortext evaluate runs/first --data runs/packed --lm runs/lm --out runs/eval

    Example: cortext evaluate runs/first --data runs/packed --lm runs/lm --llm facebook/opt-6.7b
    --out runs/eval
    """
    from cortext import evaluation

    for name in SEARCHING:
        if lm is None and is_given(call, name):
            raise ConfigError(
                f"--{name} is given without --lm, and no words are searched for",
                fix="give an n-gram, too",
            )
    search = searching(search, lm, large)
    load_plugins(plugins)
    with progress_bar("evaluating") as progress:
        metrics = evaluation.evaluate(
            run,
            data,
            split,
            out=out,
            fit=fit,
            device=device,
            skip_bad=skip_bad,
            description=description,
            progress=progress,
            participant=participant,
            **vars(search),
        )
    if metrics.decoder_options is not None:
        print_lines(metrics.decoder_options, err=True)
    if metrics.confidence is not None and metrics.confidence["note"] is not None:
        print_lines(metrics.confidence["note"], err=True)
    print_notes(metrics.notes)
    if as_json:
        print_json(asdict(metrics))
        return
    print_metrics(metrics)
    print_lines(f"report: {out / 'report.html'}")
