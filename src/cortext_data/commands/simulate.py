"""The command `simulate`: recordings without a participant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import JSON, OVERRIDES, print_json, print_lines, progress_bar


def simulate(
    out: Annotated[Path, typer.Argument(help="Directory to write; it must not exist or be empty.")],
    preset: Annotated[
        str,
        typer.Option(help="Size and difficulty: tiny, demo, t15, months, spanish or handwriting."),
    ] = "demo",
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes, as many as are worth it without this; the result is always the same.",
        ),
    ] = None,
    text: Annotated[Path | None, typer.Option(help="Your own sentences, one per line.")] = None,
    lexicon: Annotated[
        Path | None,
        typer.Option(help="Pronunciations of their words, one a line: WORD P1 P2 ..."),
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Their language: en, es, de, fr, nl, zh or a file."),
    ] = None,
    inventory: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Tokens to speak: arpabet, characters, handwriting or a file. Default: the symbols"
            " of the lexicon, or the preset's.",
        ),
    ] = None,
    bin_ms: Annotated[
        int | None, typer.Option(help="Length of a bin: 5 to 50 ms, in steps of 5. Default: 20.")
    ] = None,
    truth: Annotated[
        bool, typer.Option("--truth", help="Save articulators, alignments and drift too.")
    ] = False,
    overrides: list[str] = OVERRIDES,
    as_json: bool = JSON,
) -> None:
    """Write simulated session files of an attempted-speech experiment, and their texts.

    Example: cortext simulate runs/sim --preset tiny --seed 3
    """
    from cortext_data import simulate as simulator

    with progress_bar("simulating") as progress:
        dataset = simulator.simulate(
            out,
            preset,
            seed=seed,
            workers=workers,
            text=text,
            lexicon=lexicon,
            language=language,
            inventory=inventory,
            truth=truth,
            overrides=[*overrides, *([] if bin_ms is None else [f"bin_ms={bin_ms}"])],
            progress=progress,
        )
    if as_json:
        print_json(
            {
                "out": str(out),
                "preset": preset,
                "sessions": [session.name for session in dataset.sessions],
            }
        )
    else:
        print_lines(
            f"{out}: {len(dataset.sessions)} sessions; look at them with `cortext inspect {out}`"
        )
