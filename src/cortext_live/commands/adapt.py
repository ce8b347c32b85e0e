"""The command `adapt`: a model learns a recording day, with labels or from what it decodes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    print_table,
)
from cortext.cli.options import Participant
from cortext.cli.train import print_fitted, print_unlabelled, word_errors
from cortext.errors import ConfigError
from cortext.plugins import load_plugins

if TYPE_CHECKING:
    from cortext_live.recalibration.adapting import UnlabelledSummary

LABELLED = ("batches", "device")
"""Parameters of `adapt` that learning without labels does not have."""
UNLABELLED = ("hear", "corrections")
"""Parameters of `adapt` that only learning without labels has."""
HEAR = typer.Option(
    [],
    "--hear",
    metavar="SPLIT",
    help="With --unlabelled: learn from this split; may be given several times. By default train.",
)


def adapt(
    call: typer.Context,
    run: Annotated[
        Path, typer.Argument(help="Run directory of a trained model; it is not changed.")
    ],
    data: Annotated[Path, typer.Option(help="Session files with the day, or a packed directory.")],
    out: Annotated[Path, typer.Option(help="Run directory to write.")],
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="The day's first trials to use; all without it."),
    ] = None,
    session: Annotated[
        str | None, typer.Option(help="The day, where the data have several.")
    ] = None,
    participant: Participant = None,
    whole_model: Annotated[
        bool,
        typer.Option("--whole-model", help="Everything learns, not the new day's layer alone."),
    ] = False,
    old_data: Annotated[
        Path | None,
        typer.Option(
            help="Labelled recordings of known days to mix in; needs --whole-model, or --unlabelled"
            " replay."
        ),
    ] = None,
    old_trials: Annotated[int, typer.Option(min=1, help="Trials of known days to mix in.")] = 200,
    batches: Annotated[int, typer.Option(min=1, help="Batches of 16 trials of the new day.")] = 60,
    lm: Annotated[
        Path | None,
        typer.Option(
            help="Language-model directory to fit decoder options to; the run's own without it."
            " With --unlabelled: to decode with."
        ),
    ] = None,
    unlabelled: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="Learn from what the model decodes, without labels: one-step or replay.",
        ),
    ] = None,
    hear: list[str] = HEAR,
    corrections: Annotated[
        bool,
        typer.Option(
            "--corrections",
            help="With --unlabelled: learn from the labels that some trials have; they are"
            " corrections.",
        ),
    ] = False,
    skip_bad: bool = SKIP_BAD,
    device: str = DEVICE,
    plugins: list[Path] = PLUGINS,
    overrides: list[str] = OVERRIDES,
    as_json: bool = JSON,
) -> None:
    """Fit a trained model to a new day, or to more trials of a known one.

    A new day starts from the layer of the nearest day that the model knows; with --unlabelled, from
    that of the last one.

    Example: cortext adapt runs/first --data new-day --trials 50 --out runs/adapted

    Example: cortext adapt runs/first --data new-day --unlabelled one-step --lm runs/lm --out
    runs/adapted
    """
    from cortext.evaluation.fit.callback import FitDecoder
    from cortext.models.participants import run_for
    from cortext_live.adapt import adapt as adapt_model

    _check(call, unlabelled, lm)
    load_plugins(plugins)
    run = run_for(run, data, participant)
    if unlabelled is not None:
        from cortext_live.recalibration.adapting import adapt_unlabelled

        assert lm is not None  # `_check` has seen to it
        learnt = adapt_unlabelled(
            run,
            data,
            out,
            unlabelled,
            lm,
            session=session,
            trials=trials,
            learn_from=hear or ["train"],
            corrections=corrections,
            old_data=old_data,
            old_trials=old_trials,
            overrides=[*overrides, *(["whole_model=true"] if whole_model else [])],
            skip_bad=skip_bad,
        )
        _print_learnt(learnt, as_json)
        return
    fit = FitDecoder(lm, data, source=run)
    fit.check()
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
        then=fit.on_trained,
    )
    if as_json:
        print_json(summary.to_json() | word_errors(fit.found))
        return
    ranked = sorted(summary.loss_by_session.items(), key=lambda item: item[1])
    rows = [
        (name, f"{loss:.2f}", "nearest" if name == summary.nearest else "")
        for name, loss in ranked[:5]
    ]
    if rows:
        print_table("", ["layer of", f"CTC loss on {summary.session}", ""], rows)
    print_lines(summary)
    print_fitted(fit.found)
    print_left_out(summary.skipped)
    print_unlabelled(summary.n_unlabelled)


def _check(call: typer.Context, unlabelled: str | None, lm: Path | None) -> None:
    """Raise ConfigError for options that do not go together."""
    for name in UNLABELLED if unlabelled is None else LABELLED:
        if is_given(call, name):
            if unlabelled is None:
                raise ConfigError(
                    f"--{name} is given without --unlabelled", fix="give a method, too"
                )
            raise ConfigError(f"--{name} does not go with --unlabelled", fix="leave it out")
    if unlabelled is not None and lm is None:
        raise ConfigError("--unlabelled learns from decoded sentences", fix="give --lm, too")


def _print_learnt(summary: UnlabelledSummary, as_json: bool) -> None:
    if as_json:
        print_json(summary.to_json())
        return
    print_lines(summary.decoder_options, err=True)
    print_lines(summary)
    if not summary.n_learnt:
        print_lines("no sentence was sure enough: the run decodes as before")
    print_left_out(summary.skipped)
