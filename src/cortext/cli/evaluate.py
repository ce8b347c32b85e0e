"""The command `evaluate`: error rates of a split."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import (
    DEVICE,
    JSON,
    OVERRIDES,
    PLUGINS,
    SKIP_BAD,
    is_given,
    print_json,
    print_left_out,
    print_lines,
    print_metrics,
    print_notes,
    print_table,
    progress_bar,
)
from cortext.cli.options import Data, Participant, PromptedModelSettings, Run, searching
from cortext.describe import percent
from cortext.entry_points import load
from cortext.errors import ConfigError
from cortext.evaluation.settings import SearchSettings
from cortext.plugins import load_plugins

SEARCHING = ("options", "threads", "fit")
"""Parameters of `evaluate` that say how words are searched for."""
ONLINE = ("hear", "corrected", "overrides")
"""Parameters of `evaluate` for a model that continues to learn."""
OFFLINE = ("fit", "llm", "ray", "description", "participant", "device")
"""Parameters of `evaluate` that a model that continues to learn does not have."""
HEAR = typer.Option(
    [],
    "--hear",
    metavar="SPLIT",
    help="With --online: learn from this split; may be given several times. By default the decoded"
    " one.",
)


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
    large: PromptedModelSettings,
    online: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="Let the model learn from what it decodes, in the order of recording: one-step or"
            " replay. Compares it with the frozen model and with daily labels.",
        ),
    ] = None,
    hear: list[str] = HEAR,
    corrected: Annotated[
        float,
        typer.Option(min=0, max=1, help="With --online: share of sentences that are corrected."),
    ] = 0.0,
    overrides: list[str] = OVERRIDES,
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

    _check(call, online, lm)
    search = searching(search, lm, large)
    load_plugins(plugins)
    if online is not None:
        assert lm is not None  # `_check` has seen to it
        _evaluate_online(
            run, data, out, split, lm, online, search, hear, corrected, overrides, skip_bad, as_json
        )
        return
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
    print_notes(metrics.notes)
    if as_json:
        print_json(asdict(metrics))
        return
    if metrics.confidence is not None and metrics.confidence["note"] is not None:
        print_lines(metrics.confidence["note"], err=True)
    print_metrics(metrics)
    print_lines(f"report: {out / 'report.html'}")


def _check(call: typer.Context, online: str | None, lm: Path | None) -> None:
    """Raise ConfigError for options that do not go together."""
    for name in SEARCHING:
        if lm is None and is_given(call, name):
            raise ConfigError(
                f"--{name} is given without --lm, and no words are searched for",
                fix="give an n-gram, too",
            )
    if online is None:
        for name in ONLINE:
            if is_given(call, name):
                option = {"overrides": "set"}.get(name, name)
                raise ConfigError(f"--{option} is given without --online", fix="give a method, too")
        return
    for name in OFFLINE:
        if is_given(call, name):
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} does not go with --online", fix="leave it out")
    if lm is None:
        raise ConfigError("--online learns from decoded sentences", fix="give --lm, too")


def _evaluate_online(
    run: Path,
    data: Path,
    out: Path,
    split: str,
    lm: Path,
    method: str,
    search: SearchSettings,
    hear: list[str],
    corrected: float,
    overrides: list[str],
    skip_bad: bool,
    as_json: bool,
) -> None:
    evaluate_online = load("cortext.evaluations", "online")
    with progress_bar("learning") as progress:
        _, online = evaluate_online(
            run,
            data,
            split,
            lm,
            out,
            method,
            learn_from=hear,
            corrected=corrected,
            overrides=overrides,
            options=search.options,
            threads=search.threads,
            skip_bad=skip_bad,
            progress=progress,
        )
    if as_json:
        print_json(asdict(online))
        return
    rows = [
        (name, *map(percent, (rates.per, rates.wer, online.last_quarter(name))))
        for name, rates in online.overall.items()
    ]
    print_table("", ["model", "PER", "WER", "WER, last quarter of the days"], rows)
    print_left_out(online.skipped)
    print_lines(f"report: {out / 'report.html'}")
