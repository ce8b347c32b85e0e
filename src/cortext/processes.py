"""Ctrl-C and SIGTERM, worker processes, and progress reports of long work."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

Progress = Callable[[int, int], None]
"""Called with the number of items done and the number of all items."""
STOPS = (signal.SIGINT, signal.SIGTERM)
"""Ctrl-C, and what schedulers and torchrun send a while before they kill a process."""


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Keep torch at `count` threads within the context."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def handling(signals: Sequence[signal.Signals], handler: signal._HANDLER) -> Iterator[None]:
    """Handle signals within the context. Only the main thread can: elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore SIGINT within the context, and in the processes started there.

    Ctrl-C goes to every process of the terminal; workers that obeyed it too would each print a
    traceback.
    """
    with handling([signal.SIGINT], signal.SIG_IGN):
        yield


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt for a SIGINT within the context, whatever it does outside."""
    with handling([signal.SIGINT], signal.default_int_handler):
        yield


@contextmanager
def interrupts(signals: Sequence[signal.Signals] = STOPS) -> Iterator[threading.Event]:
    """Give an event that the first of these signals sets, so that it cuts no step in two.

    A second signal raises KeyboardInterrupt.
    """
    interrupted = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    with handling(signals, note):
        yield interrupted


@contextmanager
def stop_event() -> Iterator[threading.Event]:
    """Give an event that the first SIGINT or SIGTERM sets; a second one acts as it does outside.

    For programs that run until they are stopped: a second SIGTERM ends one that hangs.
    """
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in STOPS}

    def note(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    with handling(STOPS, note):
        yield stop


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Keep Ctrl-C pending within the context.

    A process started there keeps it pending until it unblocks the signal.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """End this worker process when its parent process ends, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait_for_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()


@contextmanager
def only_when_idle() -> Iterator[None]:
    """Let this process compute only where others leave a core idle, where the system can do so."""
    if not hasattr(os, "SCHED_IDLE"):
        yield
        return
    before = os.sched_getscheduler(0)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        yield
    finally:
        with suppress(PermissionError):  # not every system lets a process take its priority back
            os.sched_setscheduler(0, before, os.sched_param(0))
