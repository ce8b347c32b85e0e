"""Libraries that only some work needs; the base installation is without them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from cortext.errors import MissingLibrary


def need(module: str, extra: str) -> Any:
    """The module; raises MissingLibrary, with the extra that brings it, where it is not
    installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise MissingLibrary(
            f"{module} is not installed", fix=f"pip install 'cortext[{extra}]'"
        ) from None
