"""The log of daily use: one JSON object a line, only ever appended to, read here.

A line is an utterance, `{id, when, session, duration_s, n_words, words_per_minute, text, source}` and, where it was
kept, `nbest`, and `degraded` (why) where a large model had no part in it; or what a person said of one, `{id, when,
correction}` or `{id, when, rating}`. An `id` means the last utterance above it that has it, and of several corrections
or ratings the last one counts.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from cortext.errors import DataError
from cortext.text.prose import sentences

LOG = "utterances.jsonl"
RATINGS = ("right", "mostly right", "wrong")


def spoken(text: str) -> str:
    """What was typed as the words that were said: small letters, numbers written out, typographic marks plain."""
    return " ".join(sentences([text]))


@dataclass
class Entry:
    """An utterance with what was said of it.

    when:       when its text was there, with the offset from UTC of the place
    session:    the recording day that its features belong to
    correction: what was meant, as typed; None where nobody said
    degraded:   whether something that was asked for, such as a large model, had no part in it
    """

    id: str
    when: datetime
    session: str
    duration_s: float
    text: str
    source: str = ""
    correction: str | None = None
    rating: str | None = None
    degraded: bool = False

    @property
    def n_words(self) -> int:
        """Words of the decoded text."""
        return len(self.text.split())

    @property
    def label(self) -> str | None:
        """The words that were meant: the correction, or the text that was rated right; None where nobody said."""
        if self.correction is not None:
            return spoken(self.correction)
        return self.text if self.rating == "right" and self.text.split() else None


@dataclass
class Log:
    """What a log holds: utterances in the order of writing, and a note on each damaged line that was passed over."""

    entries: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    last: int | None = None
    """Number of the utterance that the last line is about."""
    _number: dict[str, int] = field(default_factory=dict, repr=False)

    def find(self, id_: str) -> int | None:
        """Number of the last utterance with that id."""
        return self._number.get(id_)

    def add(self, line: dict[str, Any]) -> None:
        """Take in one line. Raises ValueError saying what is wrong with it."""
        id_, when = _text(line, "id"), _time(line)
        if "correction" in line or "rating" in line:
            number = self.find(id_)
            if number is None:
                raise ValueError(f"nothing above it has the id {id_!r}")
            if "correction" in line:
                self.entries[number].correction = _words(line)
            else:
                self.entries[number].rating = _rating(line)
            self.last = number
            return
        duration_s = line.get("duration_s")
        if isinstance(duration_s, bool) or not isinstance(duration_s, int | float) or not 0 <= duration_s < math.inf:
            raise ValueError(f"duration_s is {duration_s!r}")
        source = line.get("source")
        entry = Entry(id_, when, _text(line, "session"), float(duration_s), _text(line, "text"),
                      source if isinstance(source, str) else "", degraded=bool(line.get("degraded")))  # fmt: skip
        self.last = self._number[id_] = len(self.entries)
        self.entries.append(entry)


def read_log(folder: str | Path) -> Log:
    """The log in a directory, which a decoder may be writing at this moment.

    Damaged lines, such as one that a killed process left unfinished, are passed over with a note. Raises DataError
    where there is no log or it cannot be read.
    """
    path = Path(folder) / LOG
    try:
        content = path.read_bytes()
    except OSError as error:
        fix = "give a directory that a decoder wrote with --session-log"
        raise DataError(f"no log of use: {error.strerror}", where=path, fix=fix) from None
    log = Log()
    lines = content.split(b"\n")
    for number, raw in enumerate(lines, 1):
        if not raw.strip():
            continue
        try:
            log.add(_object(raw))
        except ValueError as error:
            what = "unfinished" if number == len(lines) else str(error)
            log.notes.append(f"{path}: line {number} passed over: {what}")
    return log


def _object(raw: bytes) -> dict[str, Any]:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        raise ValueError("it is no JSON") from None
    if not isinstance(line, dict):
        raise ValueError("it is no JSON object")
    return line


def _text(line: dict[str, Any], key: str) -> str:
    value = line.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key} is {str(value)[:40]!r} and not a text")
    return value


def _time(line: dict[str, Any]) -> datetime:
    text = _text(line, "when")
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"when is {text[:40]!r} and not a time") from None
    if problem := wrong_with(when):
        raise ValueError(f"when is {text!r}, {problem}")
    return when


def wrong_with(when: datetime) -> str | None:
    """What makes this no time of use, if anything does."""
    if not 1969 <= when.year < 3000:  # a clock that was never set shows 1970, in America still 1969
        return "which no clock shows"
    return "a time without its offset from UTC" if when.utcoffset() is None else None


def _words(line: dict[str, Any]) -> str:
    text = _text(line, "correction")
    if not spoken(text):
        raise ValueError("the correction has no words")
    return text


def _rating(line: dict[str, Any]) -> str:
    rating = _text(line, "rating")
    if rating not in RATINGS:
        raise ValueError(f"rating is {rating[:40]!r}")
    return rating
