"""The verb lm import: published Kaldi folders."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import JSON, print_json, print_table, progress_bar
from cortext.cli.lm import lm


def add_verbs(app: typer.Typer) -> None:
    """Add this file's verb to the group `lm`."""
    lm.command("import")(import_folder)


def import_folder(
    folder: Annotated[
        Path, typer.Argument(help="Kaldi folder with G.fst or G_no_prune.fst, and words.txt.")
    ],
    out: Annotated[Path, typer.Option(help="Language-model directory to write.")],
    grammar: Annotated[
        str | None, typer.Option(help="Which grammar in it; by default G_no_prune.fst, else G.fst.")
    ] = None,
    binary: Annotated[
        str, typer.Option(help="File type of lm.bin: trie, probing, or quantised (smallest).")
    ] = "trie",
    as_json: bool = JSON,
) -> None:
    """Convert a published Kaldi folder into a language-model directory.

    Example: cortext lm import languageModel/ --out runs/lm
    """
    from cortext.decoding.ngram.kaldi import import_kaldi

    with ExitStack() as bars:

        def stage(name: str) -> Callable[[int, int], None]:
            bars.close()
            return bars.enter_context(progress_bar(name))

        facts = import_kaldi(folder, out, grammar, binary, stage).info()
    if as_json:
        print_json(facts)
        return
    rows = [
        ("order", facts["order"]),
        ("n-grams", "  ".join(f"{count:,}" for count in facts["counts"])),
        ("bytes", f"{facts['bytes']:,}"),
        ("vocabulary", f"{facts['vocabulary']:,}"),
        *(
            (f"pronunciations {name.replace('_', ' ')}", f"{count:,}")
            for name, count in facts["pronunciations"].items()
        ),
    ]
    print_table("", [str(out), ""], rows, right_from=2)
