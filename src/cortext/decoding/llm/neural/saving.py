"""Directories of models and adapters that were trained here."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cortext.decoding.llm.loading import quiet
from cortext.errors import LanguageModelError
from cortext.extras import need

FACTS = "cortext.json"
"""Says how a model was made; a directory with this file may be replaced."""


def check_target(out: Path, keep: Iterable[str | Path] = ()) -> None:
    """Raise LanguageModelError for a directory that cannot be written or may not be.

    It may be absent, empty, or hold what was trained here. Called before anything takes time.

    Args:
        out: The directory.
        keep: Files and directories that may not be in it.
    """
    if out.exists() and not out.is_dir():
        raise LanguageModelError("is a file; a directory to write is needed", where=out)
    if out.resolve() == Path.cwd():
        raise LanguageModelError(
            "is the current directory", where=out, fix="give a directory in it"
        )
    if out.is_dir() and any(out.iterdir()) and not (out / FACTS).is_file():
        raise LanguageModelError(
            f"is not empty and has no {FACTS}", where=out, fix="give a new directory"
        )
    for path in keep:
        if Path(path).resolve().is_relative_to(out.resolve()):
            raise LanguageModelError(
                f"would take the place of {path}", where=out, fix="give another directory"
            )
    parent = next(folder for folder in out.resolve().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise LanguageModelError(
            f"cannot be made in {parent}", where=out, fix="give a folder that can be written"
        )


def save_model(directory: Path, network: Any, tokenizer: Any, facts: dict[str, Any]) -> None:
    """Write a model as transformers does (safetensors), and how it was made."""
    with quiet(need("transformers", "llm")):
        network.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
    write_facts(directory, facts)


def write_facts(directory: Path, facts: dict[str, Any]) -> None:
    """Write how a model was made."""
    (directory / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
