"""Provenance of a result: versions, commit, machine."""

from __future__ import annotations

import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import cortext

PACKAGES = ("cortext", "torch", "numpy", "safetensors", "rapidfuzz")
OF_EXTRAS = ("jax", "jaxlib", "torchax", "tensorflow", "keras", "transformers", "tokenizers")
"""Packages whose versions are named where they have been imported."""


def provenance() -> dict[str, Any]:
    """Return the versions that decide a result, git commit, machine and time (UTC).

    The commit is None unless cortext runs from a checkout.
    """
    versions = {"python": platform.python_version()} | {name: version_of(name) for name in PACKAGES}
    versions |= {name: sys.modules[name].__version__ for name in OF_EXTRAS if sys.modules.get(name)}
    return {
        "versions": versions,
        "commit": git_commit(),
        "platform": platform.platform(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def version_of(package: str) -> str:
    """Return the version of an installed package. Raises PackageNotFoundError if it is missing."""
    # Ours is installed under another name: `cortext` on the public index is another project's.
    return cortext.__version__ if package == "cortext" else metadata.version(package)


def git_commit() -> str | None:
    """Return the commit of the checkout that cortext runs from (`-dirty` where it has changes).

    None for an installed package.
    """
    package = Path(cortext.__file__).resolve().parent
    root = package.parents[1]
    if package != root / "src" / "cortext" or not (root / ".git").exists():
        return None  # installed below somebody else's repository, whose commit says nothing
    try:
        command = [
            "git",
            "-C",
            str(root),
            "describe",
            "--always",
            "--dirty",
            "--abbrev=40",
            "--exclude=*",
        ]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
