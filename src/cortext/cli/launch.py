"""The verb that rents a machine: launch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import JSON, OVERRIDES, PLUGINS, print_json, print_lines


def add_verbs(app: typer.Typer) -> None:
    """Add this file's verbs to the command line."""
    app.command()(launch)


def launch(
    config: Annotated[
        str,
        typer.Option(
            help="YAML file, or the name of a shipped recipe: gru_tpu, triple_gru_tpu ..."
        ),
    ],
    data: Annotated[
        str | None, typer.Option(metavar="gs://...", help="Folder in a bucket with packed data.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="gs://...", help="Folder in a bucket for the run directory."),
    ] = None,
    accelerator: Annotated[
        str,
        typer.Option(help="TPU or GPUs of one machine: tpu-v5litepod-8, v6e-4, H100, A100:8 ..."),
    ] = "tpu-v5litepod-8",
    lm: Annotated[
        str | None,
        typer.Option(metavar="gs://...", help="Folder in a bucket with a language model, for WER."),
    ] = None,
    spot: Annotated[
        bool,
        typer.Option(
            "--spot", help="On machines that may be taken away: cheaper; goes on with the next."
        ),
    ] = False,
    infra: Annotated[
        str | None,
        typer.Option(metavar="CLOUD[/REGION[/ZONE]]", help="Where; what is cheapest without it."),
    ] = None,
    idle_minutes: Annotated[
        int, typer.Option(min=1, help="Give the machine back so long after training.")
    ] = 10,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|git+URL@REV",
            help="The cortext to install there; the one that runs here without it.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the machine; after the run's folder without it.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Task file to write; launch/NAME/task.yaml without it.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--yes", help="Write and show the task only, or start it.")
    ] = True,
    plugins: list[Path] = PLUGINS,
    overrides: list[str] = OVERRIDES,
    as_json: bool = JSON,
) -> None:
    """Train on a rented TPU or GPU, through SkyPilot.

    Without --yes it only writes and shows what would be done.

    Example: cortext launch --config gru_tpu --data gs://lab/packed --out gs://lab/runs/first --spot
    """
    from cortext import cloud

    job = cloud.launch(
        config,
        accelerator,
        data,
        out,
        lm=lm,
        spot=spot,
        infra=infra,
        idle_minutes=idle_minutes,
        source=source,
        name=name,
        file=file,
        overrides=overrides,
        plugins=plugins,
    )
    if not as_json:
        print_lines(*job.text.split("\n"))
        print_lines(f"written: {job.file}")
    if not dry_run:
        job.submit()
    if as_json:
        print_json(
            {
                "file": job.file,
                "name": job.name,
                "started": not dry_run,
                "stop": job.stop,
                "task": job.text,
            }
        )
    elif dry_run:
        print_lines("nothing was started and nothing costs money yet")
        print_lines(
            f"prices:  {job.prices}", f"start:   the same command with --yes, or {job.start}"
        )
    else:
        print_lines(f"watch:  {job.watch}", f"stop:   {job.stop}")
