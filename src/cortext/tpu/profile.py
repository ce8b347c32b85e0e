"""Traces of training steps for TensorBoard's profiler, and the programs that XLA compiles.

Here are the traces by JAX and by TensorFlow; torch's is in `training.torch_backend`.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Container, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path

from cortext.errors import ConfigError
from cortext.extras import need
from cortext.files import disk_errors


@contextmanager
def traced_jax(folder: Path, first: int, end: int) -> Iterator[Callable[[], None]]:
    """A context that traces batches `first` to `end - 1` into the folder.

    Call its value after each batch.
    """
    jax = need("jax", "tpu")

    def wait() -> None:
        """Steps are only handed to the device: let it finish what it was given."""
        for device in jax.local_devices():
            (jax.device_put(0.0, device) + 1).block_until_ready()

    def start() -> None:
        wait()
        jax.profiler.start_trace(str(folder))

    def stop() -> None:
        wait()
        jax.profiler.stop_trace()

    with _window(first, end, start, stop) as stepped:
        yield stepped


@contextmanager
def traced_tensorflow(folder: Path, first: int, end: int) -> Iterator[Callable[[], None]]:
    """A context that traces batches `first` to `end - 1` into the folder.

    Call its value after each batch.
    """
    profiler = need("tensorflow", "tensorflow").profiler.experimental
    with _window(first, end, lambda: profiler.start(str(folder)), profiler.stop) as stepped:
        yield stepped


@contextmanager
def _window(
    first: int, end: int, start: Callable[[], None], stop: Callable[[], None]
) -> Iterator[Callable[[], None]]:
    """Start before batch `first` and stop after batch `end - 1`, or where the batches end."""
    count, running = 0, False

    def stepped() -> None:
        nonlocal count, running
        count += 1
        if count == first:
            start()
            running = True
        if count == end and running:
            running = False
            stop()

    if first == 0:
        start()
        running = True
    try:
        yield stepped
    finally:
        if running:
            stop()


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
