"""The command that converts a published Kaldi folder: `cortext lm import`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import JSON, print_json, print_table, stages


def import_folder(
    folder: Annotated[
        Path,
        typer.Argument(help="Kaldi folder: a grammar, or the graph of a 1-gram; and words.txt."),
    ],
    out: Annotated[Path, typer.Option(help="Language-model directory to write.")],
    grammar: Annotated[
        str | None,
        typer.Option(help="Which file in it; by default G_no_prune.fst, else G.fst, else TLG.fst."),
    ] = None,
    binary: Annotated[
        str, typer.Option(help="File type of lm.bin: trie, probing, or quantised (smallest).")
    ] = "trie",
    as_json: bool = JSON,
) -> None:
    """Convert a published Kaldi folder into a language-model directory.

    Example: cortext lm import languageModel/ --out runs/lm
    """
    from cortext_lm.kaldi.folder import import_kaldi

    with ExitStack() as bars:
        facts = import_kaldi(folder, out, grammar, binary, stages(bars)).info()
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
