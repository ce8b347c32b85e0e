"""What the verbs that measure share: what is under way, and where a result goes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from cortext.cli.console import print_json, print_lines

Out = Annotated[Path | None, typer.Option("--out", help="Write the JSON object to this file, too.")]


def stage(name: str) -> None:
    """Say what begins now."""
    print_lines(f"{name} ...", err=True)


def make_room(out: Path | None) -> None:
    """Make the folder of a result's file, before the work that the result takes."""
    from cortext.data.disk import disk_errors

    if out is not None:
        with disk_errors(out):
            out.parent.mkdir(parents=True, exist_ok=True)


def hand_over(
    result: dict[str, Any], out: Path | None, as_json: bool, show: Callable[[dict[str, Any]], None]
) -> None:
    """Write a result to its file, where one is named, and print it: as JSON, or as `show` does."""
    from cortext.data.disk import disk_errors

    if out is not None:
        with disk_errors(out):
            out.write_text(json.dumps(result, indent=2, default=str) + "\n", encoding="utf-8")
    if as_json:
        print_json(result)
    else:
        show(result)
