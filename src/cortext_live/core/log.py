"""The event log of live decoding: one JSON object a line, through the logger "cortext.live".

A line holds facts about the work (counts, times, names of options). Decoded text and neural data
come into a line only as `private` facts, and only when the log was opened for them.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cortext.errors import CortextError, LiveError, plain

LOGGER = logging.getLogger("cortext.live")


def event(
    name: str, level: str = "info", private: Mapping[str, Any] | None = None, **facts: Any
) -> None:
    """Log an event.

    Args:
        name: Its name in snake_case ("utterance_finished").
        level: Debug, info, warning or error.
        private: Texts and the like, left out unless the log was opened with `with_text`.
        facts: Values that JSON can hold; anything else is written as its `str`. Texts are escaped
            and cut: names and messages of other programs are among them.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    if LOGGER.isEnabledFor(number):
        LOGGER.log(number, name, extra={"facts": facts, "private": dict(private or {})})


_REPEATED: dict[str, tuple[float, int]] = {}
"""By name of a repeated event, the time of its last line and the number left out since."""


def repeated_event(name: str, level: str = "warning", **facts: Any) -> None:
    """Log an event that a stranger can cause at will, at most once a second for each name.

    A line says in `left_out` how many there were between it and the line before.
    """
    now_s = time.monotonic()
    logged_s, left_out = _REPEATED.get(name, (-math.inf, 0))
    if now_s - logged_s < 1:
        _REPEATED[name] = logged_s, left_out + 1
        return
    _REPEATED[name] = now_s, 0
    event(name, level, **(facts | {"left_out": left_out} if left_out else facts))


@contextmanager
def open_log(
    path: str | Path | None = None, with_text: bool = False, level: str = "info"
) -> Iterator[JsonLines]:
    """Write events to a file or to stderr within the context; a full disk loses only lines.

    Args:
        path: File to which lines are appended; None for stderr.
        with_text: Whether events may hold decoded text.
        level: Lowest level that is written.

    Raises:
        LiveError: The file cannot be opened.
    """
    handler = JsonLines(path, with_text)
    _REPEATED.clear()
    before = LOGGER.level, LOGGER.propagate
    LOGGER.addHandler(handler)
    LOGGER.setLevel(level.upper())
    LOGGER.propagate = False
    try:
        yield handler
    finally:
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(before[0])
        LOGGER.propagate = before[1]
        handler.close()


class JsonLines(logging.Handler):
    """A handler that writes each event as one line with one call of the system.

    So processes may share a file, and a full disk tears no more than the line that did not fit.
    `lost` counts the lines that could not be written; the next one that can be written says so.
    """

    def __init__(self, path: str | Path | None, with_text: bool) -> None:
        super().__init__()
        self._with_text = with_text
        self.lost = 0
        self._torn = False
        self._own = path is not None
        if path is None:
            self._file = 2
            return
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LiveError(
                f"the log cannot be written: {error.strerror}", where=path, fix="choose another"
            ) from None

    def emit(self, record: logging.LogRecord) -> None:
        """Write one event."""
        if self.lost and self._write(self._line("warning", "log_lines_lost", {"lines": self.lost})):
            self.lost = 0
        facts = getattr(record, "facts", {})
        facts = {
            name: plain(fact) if isinstance(fact, str) else fact for name, fact in facts.items()
        }
        if self._with_text:
            facts |= getattr(record, "private", {})
        if not self._write(self._line(record.levelname.lower(), record.getMessage(), facts)):
            self.lost += 1

    def close(self) -> None:
        """Close the file."""
        if self._own:
            os.close(self._file)
            self._own = False
        super().close()

    @staticmethod
    def _line(level: str, name: str, facts: dict[str, Any]) -> bytes:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        start = {"time": now, "level": level, "event": name}
        try:
            line = json.dumps(start | facts, default=plain)
        except (
            TypeError,
            ValueError,
            RecursionError,
        ) as error:  # an integer of 5,000 digits, keys of another kind
            line = json.dumps(start | {"not_written": type(error).__name__})
        return line.encode() + b"\n"

    def _write(self, line: bytes) -> bool:
        """Write bytes; return whether all of them could be written."""
        try:
            written = os.write(self._file, b"\n" + line if self._torn else line)
        except OSError:
            return False
        written -= self._torn
        self._torn = written < len(line)
        return not self._torn


def internal_error(error: BaseException) -> str:
    """Return one line about an unexpected error, without its message, which may quote speech."""
    if isinstance(error, CortextError):
        return str(error)
    places = traceback.extract_tb(error.__traceback__)
    place = f" in {Path(places[-1].filename).name}, line {places[-1].lineno}" if places else ""
    return f"internal error ({type(error).__name__}{place})"
