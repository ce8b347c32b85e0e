"""The options of every verb that can ask a large language model."""

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
