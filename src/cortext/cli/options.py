"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cortext.errors import ConfigError

if TYPE_CHECKING:
    from cortext.evaluation.cluster import LargeModelFiles


DEVICE = "auto"

Llm = Annotated[
    str | None,
    typer.Option(
        "--llm",
        metavar="MODEL",
        help="Large language model: a directory, or its name at Hugging Face.",
    ),
]
LlmLora = Annotated[
    Path | None, typer.Option("--llm-lora", metavar="DIR", help="LoRA adapter for the large model.")
]
LlmDevice = Annotated[
    str, typer.Option("--llm-device", help="Where the large model runs: auto, cpu, cuda or cuda:N.")
]
Context = Annotated[
    str,
    typer.Option(
        "--context", metavar="TEXT", help="What was said before, for the large model to read first."
    ),
]


def check_llm(llm: str | None, lora: Path | None, context: str, device: str) -> None:
    """Raise ConfigError for what says something of a large model where none is named, and for
    what is no name or text.

    A `device` of `DEVICE` says nothing.
    """
    if llm is None and lora is not None:
        raise ConfigError(
            "--llm-lora is given without --llm", fix="name the model, too, that it was trained for"
        )
    if llm is None and context:
        raise ConfigError(
            "--context is given without --llm", fix="name the large model that is to read it"
        )
    if llm is None and device != DEVICE:
        raise ConfigError(
            "--llm-device is given without --llm", fix="name the large model that is to run there"
        )
    if llm is not None and not llm.strip():
        raise ConfigError("--llm is empty", fix="name a directory, or a model of Hugging Face")
    try:
        context.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"--context is no UTF-8 text from character {error.start} on", fix="write it anew"
        ) from None


def llm_files(
    llm: str | None, lora: Path | None, device: str, context: str
) -> LargeModelFiles | None:
    """The large model that is named, if any; checked as `check_llm` does."""
    from cortext.evaluation.cluster import LargeModelFiles

    check_llm(llm, lora, context, device)
    return None if llm is None else LargeModelFiles(llm, lora, device)


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


Run = Annotated[Path, typer.Argument(help="Run directory of a trained model.")]
Data = Annotated[Path, typer.Option(help="Directory of session files, or a packed one.")]
Options = Annotated[Path | None, typer.Option("--options", help="YAML file of decoder options.")]
Engine = Annotated[str, typer.Option(help="Search engine: native, or reference (slow, plain).")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads for the search; all cores without it.")
]
