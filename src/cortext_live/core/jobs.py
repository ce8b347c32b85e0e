"""A thread that does jobs in the order in which they were asked for."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from cortext.errors import LiveError

Result = TypeVar("Result")


class Jobs:
    """A thread that does jobs in order, and has work of its own in between. It begins at once.

    Args:
        name: Name of the thread.
        wait_s: Returns in how many seconds its own work is due; None: when a job was done, ask
            again.
        work: Does that work; it may not raise.
        last: Ends the thread's work; it may not raise.
    """

    def __init__(
        self,
        name: str,
        wait_s: Callable[[], float | None],
        work: Callable[[], None],
        last: Callable[[], None],
    ) -> None:
        self._wait_s = wait_s
        self._work = work
        self._last = last
        self._asked: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._mutex = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(
        self, work: Callable[[], Result], then: Callable[[], None] | None = None
    ) -> Future[Result]:
        """Queue a job, and a job `then` unless it fails.

        Returns:
            The result; it is there after both.
        """
        answer: Future[Result] = Future()

        def job() -> None:
            if not answer.set_running_or_notify_cancel():  # its client has left meanwhile
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
                answer.set_exception(LiveError("the server is stopping"))
            else:
                self._asked.put(job)
        return answer

    def close(self, timeout_s: float) -> None:
        """Do the jobs that are queued, and end the thread."""
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
