"""Directories of models and adapters that were trained here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cortext.decoding.llm.model import quiet
from cortext.errors import LanguageModelError
from cortext.extras import need

FACTS = "cortext.json"
"""Says how a model was made; a directory with this file may be replaced."""


def refuse_foreign(out: Path) -> None:
    """A directory to write may be absent, empty, or hold what was trained here."""
    if out.exists() and not out.is_dir():
        raise LanguageModelError("is a file; a directory to write is needed", where=out)
    if out.resolve() == Path.cwd():
        raise LanguageModelError("is the current directory", where=out, fix="give a directory in it")
    if out.is_dir() and any(out.iterdir()) and not (out / FACTS).is_file():
        raise LanguageModelError(f"is not empty and has no {FACTS}", where=out, fix="give a new directory")


def save_model(directory: Path, network: Any, tokenizer: Any, facts: dict[str, Any]) -> None:
    """Write a model as transformers does (safetensors), and how it was made."""
    with quiet(need("transformers", "llm")):
        network.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
    write_facts(directory, facts)


def write_facts(directory: Path, facts: dict[str, Any]) -> None:
    """Write how a model was made."""
    (directory / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
