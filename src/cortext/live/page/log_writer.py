"""Keeps utterances in the session log from a thread of its own.

A slow or full disk never holds up decoding.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import Any

import numpy as np

from cortext.live.core.log import event, internal_error
from cortext.live.page.messages import Event, Message
from cortext.usage.writer import UsageLog, UtteranceRecord, now

MAX_WAITING = 32
"""Utterances that wait for the disk before the next is given up."""


class LogWriter:
    """Appends to a session log, in order."""

    def __init__(self, log: UsageLog) -> None:
        self._log = log
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="session-log")
        self._waiting = queue.Queue[None](MAX_WAITING)

    def append(
        self,
        told: dict[str, Any],
        source: str,
        features_TC: np.ndarray | None,
        tell: Callable[[Message], None],
    ) -> None:
        """Log an utterance, as its message tells it.

        A failure is told as an `error` message, with its number.
        """
        when = now()
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            _tell_failure(told["id"], "the disk is too slow", tell)
            return

        def write() -> None:
            try:
                self._log.append(_utterance(told, source, when), features_TC)
            # nobody waits for this thread: without a word the utterance would be missing
            except Exception as error:
                _tell_failure(told["id"], internal_error(error), tell)
            finally:
                self._waiting.get_nowait()

        self._pool.submit(write)

    def correct(self, utterance: int, text: str) -> Future[bool]:
        """Log what was meant, after all that was appended before.

        Whether the recording is kept with it.
        """
        return self._pool.submit(self._log.correct, utterance, text)

    def rate(self, utterance: int, rating: str) -> Future[bool]:
        """Log how well it was decoded, after all that was appended before.

        Whether the recording is kept with it.
        """
        return self._pool.submit(self._log.rate, utterance, rating)

    def close(self) -> None:
        """Write what waits, and let go of the log."""
        self._pool.shutdown()
        self._log.close()


def _utterance(told: dict[str, Any], source: str, when: datetime) -> UtteranceRecord:
    return UtteranceRecord(
        told["id"],
        told["session"],
        told["duration_s"],
        told["text"],
        source=source,
        nbest=told["nbest"],
        when=when,
        degraded=told["degraded"],
    )


def _tell_failure(utterance: int, why: str, tell: Callable[[Message], None]) -> None:
    event("utterance_not_logged", "error", utterance=utterance)
    tell(Event("error", {"what": f"utterance {utterance} is not in the session log: {why}"}))
