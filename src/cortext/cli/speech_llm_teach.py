"""The verb speech-llm teach: a small language model learns to read phonemes from text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import JSON, PLUGINS, print_json, print_table, progress_bar
from cortext.plugins import load_plugins


def add_verbs(app: typer.Typer) -> None:
    """Add this file's verb to the group."""
    app.command()(teach)


def teach(
    run: Annotated[Path, typer.Argument(help="Run directory of `cortext train`, with a CTC loss.")],
    texts: Annotated[
        list[Path], typer.Argument(metavar="TEXT...", help="Files of a sentence in each line.")
    ],
    data: Annotated[
        Path, typer.Option(help="What the run was trained on: session files, or packed.")
    ],
    audio_llm: Annotated[
        Path, typer.Option(help="Audio language model of `cortext speech-llm assemble`.")
    ],
    out: Annotated[Path, typer.Option(help="Run directory of a speech LLM to write.")],
    batches: Annotated[int, typer.Option(help="Batches of sentences.")] = 600,
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = 0.004,
    threads: Annotated[int, typer.Option(help="Threads to compute with.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the projector's weights and of what is read.")] = 0,
    plugins: list[Path] = PLUGINS,
    as_json: bool = JSON,
) -> None:
    """Teach a small language model to read what an encoder hears, from text alone.

    All of it is trained, on a CPU.

    The sentences of an evaluation must not be in TEXT. Needs the extra `speechllm`.

    Example: cortext speech-llm teach runs/first prompts.txt --data runs/packed --audio-llm
    runs/audio-llm --out runs/reads
    """
    from cortext.speechllm.teach import ReadingOptions, teach_reading

    load_plugins(plugins)
    options = ReadingOptions(batches=batches, lr=lr, seed=seed, threads=threads)
    with progress_bar("reading") as progress:
        facts = teach_reading(run, texts, data, audio_llm, out, options, progress=progress)
    if as_json:
        print_json(facts)
        return
    rows = [
        ("sentences", f"{facts['sentences']:,}"),
        ("batches", f"{batches:,}"),
        ("loss of the first tenth", f"{facts['loss_first']:.2f}"),
        ("and of the last", f"{facts['loss_last']:.2f}"),
        ("seconds", f"{facts['seconds']:.0f}"),
    ]
    print_table("", [str(out), ""], rows)
