"""The command `check-plugin`: models, losses, augmentations and tasks of one's own."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import JSON, print_json, print_lines
from cortext.errors import ConfigError


def check_plugin(
    file: Annotated[Path, typer.Argument(help="Python file that registers own models and such.")],
    config: Annotated[
        str | None,
        typer.Option(help="YAML file that uses them: its settings are checked, not the defaults."),
    ] = None,
    no_onnx: Annotated[
        bool, typer.Option("--no-onnx", help="Do not export models to ONNX, which takes seconds.")
    ] = False,
    as_json: bool = JSON,
) -> None:
    """Check a file's own models, losses, augmentations and tasks on made-up data.

    Each requirement is one line: PASS, FAIL, or not checked and why.

    Example: cortext check-plugin my_lab.py --config my_lab.yaml
    """
    from cortext_checks import check_plugin as check_file

    checked = check_file(
        file, config, onnx=not no_onnx, report=None if as_json else lambda check: print_lines(check)
    )
    if as_json:
        print_json(dataclasses.asdict(checked))
    if checked.failed:
        problem = f"{len(checked.failed)} of {len(checked.checks)} checks failed"
        raise ConfigError(problem, where=file, fix="mend the lines with FAIL, first the first")
