"""A thread that writes utterances to the usage log: a slow or full disk never holds up decoding."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from cortext.live.core.log import event, internal_error
from cortext.live.page.messages import Event, Message
from cortext.usage.speaking import note_speaking
from cortext.usage.writer import UsageLog, UtteranceRecord, now

MAX_WAITING = 32
"""Utterances that wait for the disk before the next is given up."""


class LogWriter:
    """Appends to a usage log, in order."""

    def __init__(self, log: UsageLog) -> None:
        self._log = log
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="session-log")
        self._waiting = queue.Queue[None](MAX_WAITING)

    @property
    def folder(self) -> Path:
        """The usage log's directory."""
        return self._log.folder

    def append(
        self,
        body: dict[str, Any],
        source: str,
        features_TC: np.ndarray | None,
        send: Callable[[Message], None],
    ) -> None:
        """Log an utterance; a failure is sent as an `error` message with its number.

        Args:
            body: The body of its `utterance` message.
            source: Where its features came from.
            features_TC: float32 [T, C] in 20 ms bins, or None.
            send: Sends a message to the pages.
        """
        when = now()
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            _send_failure(body["id"], "the disk is too slow", send)
            return

        def write() -> None:
            # No one waits for this thread: without a message what failed would be missing unseen.
            try:
                self._log.append(_utterance(body, source, when), features_TC)
            except Exception as error:
                _send_failure(body["id"], internal_error(error), send)
            else:
                self._keep(body["id"], features_TC, send)
            finally:
                self._waiting.get_nowait()

        self._pool.submit(write)

    def _keep(
        self, utterance: int, features_TC: np.ndarray | None, send: Callable[[Message], None]
    ) -> None:
        """Keep the features of an utterance that was logged, where all are kept."""
        try:
            if features_TC is not None:
                self._log.keep_features(features_TC)
        except Exception as error:
            event("features_not_kept", "error", utterance=utterance)
            what = f"utterance {utterance} is logged, but its features are not: "
            send(Event("error", {"what": what + internal_error(error)}))

    def speaking(self, speaking: bool) -> None:
        """Tell programs that follow the log whether an utterance is being decoded."""

        def note() -> None:
            with suppress(OSError):  # they then compute during it, and nothing is lost
                note_speaking(self._log.folder, speaking)

        self._pool.submit(note)

    def correct(self, utterance: int, text: str) -> Future[bool]:
        """Log a correction, in order; return whether the recording is kept."""
        return self._pool.submit(self._log.correct, utterance, text)

    def rate(self, utterance: int, rating: str) -> Future[bool]:
        """Log a rating, in order; return whether the recording is kept."""
        return self._pool.submit(self._log.rate, utterance, rating)

    def close(self) -> None:
        """Write the utterances that wait, and close the log."""
        self._pool.shutdown()
        self._log.close()


def _utterance(body: dict[str, Any], source: str, when: datetime) -> UtteranceRecord:
    return UtteranceRecord(
        body["id"],
        body["session"],
        body["duration_s"],
        body["text"],
        source=source,
        nbest=body["nbest"],
        when=when,
        degraded=body["degraded"],
        model=body["model"],
        confidence=body["confidence"],
    )


def _send_failure(utterance: int, why: str, send: Callable[[Message], None]) -> None:
    event("utterance_not_logged", "error", utterance=utterance)
    send(Event("error", {"what": f"utterance {utterance} is not in the usage log: {why}"}))
