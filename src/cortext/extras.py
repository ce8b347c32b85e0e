"""Imports on demand: libraries that an extra brings, and names of a package on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from cortext.errors import MissingLibrary


def install_hint(extra: str) -> str:
    """Return how to install an extra of cortext.

    The name `cortext` on the public index is another project's, so the way leads over a checkout.
    """
    return f"in a checkout of cortext: pip install '.[{extra}]'"


def need(module: str, extra: str) -> Any:
    """Import a library. Raises MissingLibrary, which names the extra, where it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError:
        raise MissingLibrary(f"{module} is not installed", fix=install_hint(extra)) from None


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package whose names load on first use.

    Importing the package then does not wait for torch and others that one of its names needs.

    Args:
        package: Its `__name__`.
        homes: The module of each name; with a dot before it, one of the package's own.
    """

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(homes[name], package), name)

    return load
