"""The command `cortext lm train-case`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from cortext.cli.console import JSON, percent, print_json, print_lines, print_table, stages


def train_case(
    texts: Annotated[
        list[Path],
        typer.Argument(
            help="Files of text with capitals and marks, plain or .gz, a sentence a line."
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="File to write: its name ends in .safetensors.")
    ],
    language: Annotated[
        str,
        typer.Option(metavar="NAME|FILE", help="Language: en, es, de, fr, nl, or a JSON file."),
    ] = "en",
    epochs: Annotated[
        int | None,
        typer.Option(help="Readings of the texts. Default: 6, of short texts more."),
    ] = None,
    threads: Annotated[int, typer.Option(help="Threads to compute with.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the weights and the order of the text.")] = 0,
    as_json: bool = JSON,
) -> None:
    """Train a small model of capitals and punctuation, for sentences as they are shown and spoken.

    One sentence in twenty is held out and measured, beside the rules for English.

    Example: cortext lm train-case prompts.txt --out runs/case.safetensors
    """
    from cortext.text.language import read_language
    from cortext_live.casing.train import CasingSettings
    from cortext_live.casing.train import train_case as trained

    options = CasingSettings(epochs=epochs, threads=threads, seed=seed)
    with ExitStack() as bars:
        facts = trained(texts, out, read_language(language), options, stages(bars))
    if as_json:
        print_json(facts)
        return
    print_lines(
        f"{out}: {facts['bytes'] / 1e6:.1f} MB, learnt from {facts['sentences']:,} sentences in"
        f" {facts['seconds']:.0f} s"
    )
    measured: Mapping[str, Mapping[str, Any]] = facts["held_out"]
    size = f"{measured['model']['sentences']:,} held-out sentences"
    print_table("", [size, *measured], rows(measured))


def rows(measured: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return the rows of a table of figures, a column for each that was measured."""
    figures = list(measured.values())
    shown = [
        ("words with the right capitals", *(percent(each["case_accuracy"]) for each in figures)),
        ("capitals of names", *(percent(each["inner_capitals_right"]) for each in figures)),
    ]
    for mark in figures[0]["f1"]:
        shown.append((f"F1 of {mark}", *(percent(each["f1"][mark]) for each in figures)))
    right = (percent(each["sentences_right"]) for each in figures)
    return [*shown, ("sentences right to the letter", *right)]
