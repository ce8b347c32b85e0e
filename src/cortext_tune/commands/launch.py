"""The command `launch`: training on a rented machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import JSON, OVERRIDES, PLUGINS, print_json, print_lines
from cortext_tune.cloud.job import LaunchSettings


def launch(
    config: Annotated[
        str,
        typer.Option(
            help="YAML file, or the name of a shipped recipe: gru_tpu, triple_gru_tpu ..."
        ),
    ],
    settings: LaunchSettings,
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
    from cortext_tune.cloud.job import write_task

    job = write_task(config, settings, overrides, plugins)
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
        print_lines(f"watch:  {job.logs}", f"stop:   {job.stop}")
