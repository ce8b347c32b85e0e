"""The options of every verb that can work on a Ray cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from cortext.errors import ConfigError

Ray = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Work on this Ray cluster, or on a `local` one."),
]
GpusPerWorker = Annotated[
    float, typer.Option(min=0, help="Share of a GPU for each task on Ray, for a large model.")
]


def check_ray(
    ray: str | None,
    gpus_per_worker: float = 0.0,
    threads: int | None = None,
    llm_device: str = "auto",
) -> None:
    """Raise ConfigError for what would be passed over with a cluster, or without one."""
    if ray is None and gpus_per_worker:
        raise ConfigError(
            "--gpus-per-worker is given without --ray", fix="name a cluster, or `--ray local`"
        )
    if ray is not None and threads is not None:
        raise ConfigError(
            "--threads is given with --ray, whose tasks have one each", fix="leave out one of them"
        )
    if ray is not None and llm_device.startswith("cuda:"):
        what = (
            f"--llm-device is {llm_device}, and a task on Ray sees only the GPUs that it is given"
        )
        raise ConfigError(what, fix="leave it out, and give --gpus-per-worker")
