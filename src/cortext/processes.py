"""Worker processes and Ctrl-C."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def uninterrupted() -> Iterator[None]:
    """A context in which SIGINT is ignored, and so it is in the processes started there.

    Ctrl-C goes to every process of the terminal; workers that obeyed it too would each print a traceback.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interrupts(
    signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
) -> Iterator[threading.Event]:
    """While inside, the first of these signals only sets the event, so that no step is cut in two; a second is obeyed.

    Schedulers and torchrun end a process with SIGTERM, and wait a while before they kill it.
    """
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def note(number: int, frame: Any) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    before = {number: signal.signal(number, note) for number in signals}
    try:
        yield interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
