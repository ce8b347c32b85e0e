"""A search's directory: nothing else may be in it, and only the same search goes on there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cortext.config import first_difference
from cortext.errors import RunError

ANOTHER = "give another --out"
CORRECT = f"correct that and add --retry-failed, or search elsewhere and {ANOTHER}"
"""What to do where every trial failed."""


def make(out: Path) -> None:
    """Make the directory. Raises RunError for a file, and where it cannot be made."""
    if out.exists() and not out.is_dir():
        raise RunError("is a file; a directory is needed", where=out, fix=ANOTHER)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot be written: {error.strerror}", where=out, fix=ANOTHER) from None


def refuse_strangers(out: Path, is_ours: Callable[[str], bool]) -> None:
    """Raise RunError where something lies in the directory whose name no search would give.

    Hidden files may.
    """
    strangers = sorted(
        path.name for path in out.iterdir() if not (path.name.startswith(".") or is_ours(path.name))
    )
    if strangers:
        raise RunError(
            f"there is something else than a search: {strangers[0]}", where=out, fix=ANOTHER
        )


def refuse_another(out: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise RunError, which names what has changed, where two searches are described
    differently.
    """
    if changed := first_difference(before, now):
        key, old, new = changed
        fix = f"go on with the command it was begun with, or {ANOTHER}"
        raise RunError(
            f"the search was begun with {key} = {old!r}, now it is {new!r}", where=out, fix=fix
        )
