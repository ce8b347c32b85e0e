"""The verb speech-llm assemble."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import JSON, print_json, print_table


def add_verbs(app: typer.Typer) -> None:
    """Add this file's verb to the group `speech-llm`."""
    app.command()(assemble)


def assemble(
    language_model: Annotated[
        str,
        typer.Argument(
            help=(
                "Causal language model: a directory, as of lm train-neural, or OWNER/NAME of the"
                " Hub."
            )
        ),
    ],
    out: Annotated[Path, typer.Option(help="Directory of the audio language model to write.")],
    width: Annotated[
        int, typer.Option(help="Width of the audio tower, a multiple of 2 x heads.")
    ] = 128,
    layers: Annotated[int, typer.Option(help="Layers of the audio tower.")] = 2,
    heads: Annotated[int, typer.Option(help="Attention heads of a layer.")] = 4,
    mels: Annotated[int, typer.Option(help="Bands of the spectrum.")] = 80,
    window: Annotated[int, typer.Option(help="Longest sound, in seconds.")] = 30,
    seed: Annotated[int, typer.Option(help="Of the tower's and the projector's weights.")] = 0,
    as_json: bool = JSON,
) -> None:
    """Make an audio language model of a causal one, with a random audio tower.

    Nothing is downloaded or trained.

    Example: cortext speech-llm assemble runs/neural --out runs/audio-llm
    """
    from cortext.speechllm.audio_llm.assemble import TowerOptions
    from cortext.speechllm.audio_llm.assemble import assemble as assembled

    options = TowerOptions(
        width=width, layers=layers, heads=heads, mels=mels, window_s=window, seed=seed
    )
    facts = assembled(language_model, out, options)
    if as_json:
        print_json(facts)
        return
    rows = [
        ("parameters", f"{facts['n_parameters']:,}"),
        ("of which the language model", f"{facts['language_model']['n_parameters']:,}"),
    ]
    print_table("", [str(out), ""], rows)
