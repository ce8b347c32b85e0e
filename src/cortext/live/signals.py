"""SIGINT and SIGTERM as an event that a loop looks at, so that what is under way is finished or
named.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_event() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets.

    The second one acts as if nobody had listened.

    Only the main thread can listen; elsewhere the event is for the caller to set.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before: dict[signal.Signals, signal._HANDLER] = {}

    def on_signal(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    for name in (signal.SIGINT, signal.SIGTERM):
        before[name] = signal.signal(name, on_signal)
    try:
        yield stop
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
