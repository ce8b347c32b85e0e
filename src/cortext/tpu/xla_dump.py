"""What XLA compiles, written to a folder: the programs before and after every optimisation."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Container, MutableMapping
from pathlib import Path

from cortext.data.disk import disk_errors
from cortext.errors import ConfigError


def dump_xla(
    folder: str | Path,
    env: MutableMapping[str, str] = os.environ,
    loaded: Container[str] = sys.modules,
) -> None:
    """Let XLA write every program that it compiles to the folder; flags that were set stay.

    XLA reads its flags once. Raises ConfigError where JAX or TensorFlow is loaded already.
    """
    for engine in ("jax", "tensorflow"):
        if engine in loaded:
            what = f"--xla-dump comes too late: {engine} is loaded, and has read XLA_FLAGS"
            raise ConfigError(what, fix="start a new process (restart the kernel of a notebook)")
    path = Path(folder).resolve()
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    env["XLA_FLAGS"] = (
        f"{env.get('XLA_FLAGS', '')} --xla_dump_to={shlex.quote(str(path))}"
        " --xla_dump_hlo_as_text".strip()
    )
    env["JAX_ENABLE_COMPILATION_CACHE"] = (
        "false"  # what comes out of the cache is not compiled, so nothing is written
    )
