"""The command `fetch`: public data sets and language models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import JSON, print_json, print_lines, progress_bar


def fetch(
    dataset: Annotated[
        str,
        typer.Argument(
            help=(
                "What to fetch: t15, the public recordings of participant T15, or lm-5gram, a"
                " 5-gram model."
            )
        ),
    ],
    out: Annotated[Path, typer.Argument(help="Directory to fetch into.")],
    part: Annotated[
        str | None, typer.Option(help="Of t15: only neural, baseline or figures.")
    ] = None,
    pruned: Annotated[
        bool, typer.Option("--pruned", help="Of lm-5gram: the pruned model, 5 GB instead of 50.")
    ] = False,
    from_dir: Annotated[
        Path | None, typer.Option("--from", help="Take files that you downloaded by hand.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Where a mirror of the archive answers.")
    ] = None,
    as_json: bool = JSON,
) -> None:
    """Download a public data set or language model, and check it.

    A download that broke off is resumed.

    Where the archive wants to know who downloads, put a token of your account into DRYAD_TOKEN
    (t15) or HF_TOKEN.

    Example: cortext fetch t15 data/t15 --part neural
    """
    from cortext_published.downloads import fetch as fetcher

    notes: list[str] = []
    with progress_bar("fetching") as progress:
        files = fetcher.fetch(
            dataset,
            out,
            part=part,
            pruned=pruned,
            from_dir=from_dir,
            base_url=base_url,
            progress=progress,
            note=notes.append,
        )
    for note in notes:
        print_lines(note, err=True)
    if as_json:
        print_json({"out": str(out), "files": [str(file) for file in files], "notes": notes})
    else:
        for file in files:
            print_lines(file)
