"""A thread that does what it is asked, one thing after the other, and has work of its own in
between.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from cortext.errors import LiveError

Result = TypeVar("Result")


class Jobs:
    """The thread, which begins at once.

    Args:
        wait_s: In how many seconds its own work is due; None: when something else was done, ask
            again.
        work: That work; it may not raise.
        last: What it does when it is ended; it may not raise.
    """

    def __init__(
        self,
        name: str,
        wait_s: Callable[[], float | None],
        work: Callable[[], None],
        last: Callable[[], None],
    ) -> None:
        self._wait_s, self._work, self._last = wait_s, work, last
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._mutex, self._closing = threading.Lock(), False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(
        self, work: Callable[[], Result], then: Callable[[], None] | None = None
    ) -> Future[Result]:
        """Have something done, and something `then` unless it failed.

        The answer is there after both.
        """
        answer: Future[Result] = Future()

        def job() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                result = work()
            except BaseException as error:
                answer.set_exception(error)
                return
            if then:
                then()
            answer.set_result(result)

        with self._mutex:
            if self._closing:
                answer.set_exception(LiveError("the server is ending"))
            else:
                self._asked.put(job)
        return answer

    def close(self, timeout_s: float) -> None:
        """Have done what was asked for, and end the thread."""
        with self._mutex:
            self._closing = True
        self._asked.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            try:
                job = self._asked.get(timeout=self._wait_s())
            except queue.Empty:
                self._work()
                continue
            if job is None:
                self._last()
                return
            job()
