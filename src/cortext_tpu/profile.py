"""Traces of training steps for TensorBoard's profiler.

It has the traces of JAX and TensorFlow; torch's is in `training.torch_backend`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cortext.extras import need


@contextmanager
def traced_jax(folder: Path, first: int, end: int) -> Iterator[Callable[[], None]]:
    """Trace batches `first` to `end - 1` of the body into a folder with JAX.

    Args:
        folder: Folder to write.
        first: First traced batch, counted from the start of the body.
        end: Batch after the last traced one.

    Yields:
        A function to call after each batch.
    """
    jax = need("jax", "tpu")

    def wait() -> None:
        """Wait for the devices: a step returns before they have finished it."""
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
    """Trace batches `first` to `end - 1` of the body with TensorFlow; see `traced_jax`.

    Args:
        folder: Folder to write.
        first: First traced batch, counted from the start of the body.
        end: Batch after the last traced one.
    """
    profiler = need("tensorflow", "tensorflow").profiler.experimental
    with _window(first, end, lambda: profiler.start(str(folder)), profiler.stop) as stepped:
        yield stepped


@contextmanager
def _window(
    first: int, end: int, start: Callable[[], None], stop: Callable[[], None]
) -> Iterator[Callable[[], None]]:
    """Start before batch `first` and stop after batch `end - 1`, or after the last batch."""
    count = 0
    running = False

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
