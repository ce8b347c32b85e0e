"""The programs that XLA compiles, written as text for `--xla-dump`.

It stands apart from the backends, which import JAX and TensorFlow: XLA reads its flags once, when
the first of them is loaded, which a user's plug-in may do, too.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Container, MutableMapping
from pathlib import Path

from cortext.errors import ConfigError
from cortext.files import disk_errors


def dump_xla(
    folder: str | Path,
    env: MutableMapping[str, str] = os.environ,
    loaded: Container[str] = sys.modules,
) -> None:
    """Let XLA write every program that it compiles to a folder, before and after optimising.

    Args:
        folder: Folder to write.
        env: Environment; its XLA_FLAGS are extended.
        loaded: Names of the loaded modules.

    Raises:
        ConfigError: If JAX or TensorFlow is already loaded, because XLA reads its flags once.
    """
    for backend in ("jax", "tensorflow"):
        if backend in loaded:
            problem = f"--xla-dump comes too late: {backend} is loaded, and has read XLA_FLAGS"
            raise ConfigError(problem, fix="start a new process (restart the kernel of a notebook)")
    path = Path(folder).resolve()
    with disk_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    env["XLA_FLAGS"] = (
        f"{env.get('XLA_FLAGS', '')} --xla_dump_to={shlex.quote(str(path))}"
        " --xla_dump_hlo_as_text".strip()
    )
    # A program from the cache is not compiled, and nothing would be written.
    env["JAX_ENABLE_COMPILATION_CACHE"] = "false"
