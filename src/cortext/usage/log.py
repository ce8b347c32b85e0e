"""The usage log: one JSON object a line, read here.

Lines are only ever appended, unless somebody deletes what was said (`usage.deletion`). A line is an
utterance, `{id, when, session, duration_s, n_words, words_per_minute, text, source}`
and, where it was kept, `nbest`, `degraded` (why) where a large model had no part in it, `language`
where that is not English, `model` where a chain of them spoke, `confidence`, and `shown`, the text
as people saw it with capitals and marks; or what a partner said, `{when, partner}`; or a person's
feedback, `{id, when, correction}` or `{id, when, rating}`. An `id` means the last utterance above
it that has it, and of several corrections or ratings the last one counts.

Utterances and partners' turns are the log's entries, numbered from 0. A deleted one leaves a line
without its text, `{id, when, deleted}`, so that the others keep their numbers: kept features and
recordings are named after them, and after the second of the first entry.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from cortext.data.trial import is_plain_name
from cortext.errors import DataError, TextError, shown
from cortext.files import lines_within, parse_json
from cortext.text.language import EN, Language
from cortext.text.prose import sentences

LOG = "utterances.jsonl"
RATINGS = ("right", "mostly right", "wrong")
MOST_LINE_BYTES = 16 << 20
"""Longest line that is parsed: JSON takes up to 25 times its length in memory."""
MOST_CHARACTERS = 100_000
"""Longest text of a line.

It holds eight hours of speech, and is still compared with its correction in a second.
"""
MOST_SECONDS = 86_400.0
"""Longest utterance."""
MOST_NOTES = 20
"""Damaged lines of a log that are named one by one; the others are counted."""


def spoken(text: str, language: Language = EN) -> str:
    """Return typed text as spoken words.

    In English numbers are written out; in other languages the text is normalised.
    """
    return " ".join(sentences([text])) if language.is_benchmark else language.normalize(text)


@dataclass
class LoggedUtterance:
    """An utterance with its feedback.

    Attributes:
        id: Its id in the log.
        when: Time at which its text was there, with the offset from UTC of the place.
        session: Recording day that its features belong to.
        duration_s: Its seconds.
        text: The decoded text.
        source: Source of its features.
        correction: The sentence that was meant, as typed; None without a correction.
        rating: One of `RATINGS`, or None.
        degraded: Whether something that was asked for, such as a large model, had no part in it.
        language: Language of its text.
        model: Name that a chain of models has for the one that spoke; None without a chain.
        confidence: Confidence of the text, 0 to 1; None where the log lacks it.
        shown: The text as people saw it; None where the log lacks it.
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
    language: Language = EN
    model: str | None = None
    confidence: float | None = None
    shown: str | None = None

    @property
    def n_words(self) -> int:
        """Number of words of the decoded text."""
        return self.language.n_words(self.text)

    @property
    def label(self) -> str | None:
        """The words that were meant: the correction, or the text that was rated right; or None."""
        if self.correction is not None:
            return spoken(self.correction, self.language)
        return self.text if self.rating == "right" and self.text.split() else None


@dataclass(frozen=True)
class PartnerTurn:
    """A turn of the participant's partner, as typed on the page.

    Attributes:
        when: Time at which it was sent, with the offset from UTC of the place.
        text: The turn.
    """

    when: datetime
    text: str


@dataclass(frozen=True)
class Deleted:
    """An entry that was deleted, or that could not be written. It counts nowhere.

    Attributes:
        when: Time of the entry.
        id: Id of the utterance; None for a turn.
    """

    when: datetime
    id: str | None = None


Entry = LoggedUtterance | PartnerTurn | Deleted


@dataclass(frozen=True)
class Feedback:
    """A correction or a rating (the other is None) of the last utterance that has the id."""

    id: str
    correction: str | None
    rating: str | None


@dataclass
class LogContents:
    """The contents of a log: its entries in the order of writing, and notes on damaged lines."""

    entries: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    damaged: int = 0
    """Number of lines that were passed over."""
    last: int | None = None
    """Number of the utterance that the last line is about."""
    utterances: dict[int, LoggedUtterance] = field(default_factory=dict)
    """The utterances among the entries by their numbers, in order."""
    _number: dict[str, int] = field(default_factory=dict, repr=False)

    @property
    def began(self) -> int | None:
        """Second of the first entry, which tells one log from another; None for an empty log."""
        return int(self.entries[0].when.timestamp()) if self.entries else None

    @property
    def deleted(self) -> set[int]:
        """Numbers of the deleted entries."""
        return {n for n, entry in enumerate(self.entries) if isinstance(entry, Deleted)}

    def find(self, id_: str) -> int | None:
        """Return the number of the last utterance with that id."""
        return self._number.get(id_)

    def check(self, line: dict[str, Any]) -> Entry | Feedback:
        """Return the content of a line, every field checked. Raises ValueError for a wrong one."""
        parsed = _parsed(line)
        if isinstance(parsed, Feedback):
            number = self.find(parsed.id)
            if number is None:
                raise ValueError(f"nothing above it has the id {shown(repr(parsed.id), 40)}")
            if number not in self.utterances:
                raise ValueError(f"the utterance {shown(repr(parsed.id), 40)} was deleted")
            meant = parsed.correction
            if meant is not None and not spoken(meant, self.utterances[number].language):
                raise ValueError("the correction has no words")
        return parsed

    def add(self, parsed: Entry | Feedback) -> None:
        """Add the content of a checked line."""
        if isinstance(parsed, Feedback):
            self.last = self._number[parsed.id]
            entry = self.utterances[self.last]
            if parsed.correction is not None:
                entry.correction = parsed.correction
            else:
                entry.rating = parsed.rating
            return
        number = len(self.entries)
        if isinstance(parsed, LoggedUtterance):
            self.last = number
            self.utterances[number] = parsed
        if not isinstance(parsed, PartnerTurn) and parsed.id is not None:
            self._number[parsed.id] = number
        self.entries.append(parsed)

    def forget(self, numbers: Iterable[int]) -> None:
        """Put deleted entries in the place of others."""
        for number in numbers:
            entry = self.entries[number]
            id_ = None if isinstance(entry, PartnerTurn) else entry.id
            self.entries[number] = Deleted(entry.when, id_)
            self.utterances.pop(number, None)
            if self.last == number:
                self.last = None


def read_log(folder: str | Path) -> LogContents:
    """Read the log in a directory, which a decoder may be writing at this moment.

    Damaged lines, such as one that a killed process left unfinished, are passed over, counted, and
    the first of them named in notes.

    Raises:
        DataError: There is no log, or it cannot be read.
    """
    path = Path(folder) / LOG
    log = LogContents()
    for _ in read_lines(path, log):
        pass
    if log.damaged > MOST_NOTES:
        log.notes.append(f"{path}: {log.damaged - MOST_NOTES} more lines passed over")
    return log


def read_lines(path: Path, log: LogContents) -> Iterator[tuple[bytes, Entry | Feedback]]:
    """Add each usable line of a file to the contents of a log; yield it and what it says.

    Raises:
        DataError: There is no log, or it cannot be read.
    """
    try:
        with _open(path) as file:
            for number, raw, ends in lines_within(file, MOST_LINE_BYTES):
                try:
                    parsed = log.check(_object(raw))
                except ValueError as error:
                    log.damaged += 1
                    if log.damaged <= MOST_NOTES:
                        what = str(error) if ends else "unfinished"
                        log.notes.append(f"{path}: line {number} passed over: {what}")
                    continue
                log.add(parsed)
                yield raw, parsed
    except OSError as error:
        fix = "give a directory that a decoder wrote with --session-log"
        raise DataError(f"no log of use: {error.strerror}", where=path, fix=fix) from None


def _open(path: Path) -> BinaryIO:
    """Open a regular file: a pipe would be waited for, and a device has no end."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(0, "not a file")
    return file


def _object(raw: bytes) -> dict[str, Any]:
    if len(raw) > MOST_LINE_BYTES:
        raise ValueError(f"it has more than {MOST_LINE_BYTES >> 20} MiB")
    try:
        line = parse_json(raw)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise ValueError("it is no JSON") from None
    if not isinstance(line, dict):
        raise ValueError("it is no JSON object")
    return line


def _parsed(line: dict[str, Any]) -> Entry | Feedback:
    if "deleted" in line:
        if line["deleted"] is not True:
            raise ValueError(f"deleted is {_found(line['deleted'])}")
        id_ = None if line.get("id") is None else _text(line, "id")
        return Deleted(_time(line), id_)
    if "partner" in line:
        text = _text(line, "partner")
        if not text.strip():
            raise ValueError("the partner's turn has no words")
        return PartnerTurn(_time(line), text)
    return _feedback(line) if "correction" in line or "rating" in line else _entry(line)


def _entry(line: dict[str, Any]) -> LoggedUtterance:
    id_ = _text(line, "id")
    when = _time(line)
    session = _text(line, "session")
    if problem := wrong_with_session(session):
        raise ValueError(problem)
    duration_s = line.get("duration_s")
    if (
        isinstance(duration_s, bool)
        or not isinstance(duration_s, int | float)
        or not 0 <= duration_s <= MOST_SECONDS
    ):
        raise ValueError(f"duration_s is {_found(duration_s)}")
    text = _text(line, "text")
    source, degraded, model, seen = (
        None if line.get(key) is None else _text(line, key)
        for key in ("source", "degraded", "model", "shown")
    )
    confidence = line.get("confidence")
    if confidence is not None and (
        isinstance(confidence, bool)
        or not isinstance(confidence, int | float)
        or not 0 <= confidence <= 1
    ):
        raise ValueError(f"confidence is {_found(confidence)}")
    return LoggedUtterance(
        id_,
        when,
        session,
        float(duration_s),
        text,
        source or "",
        degraded=bool(degraded),
        language=_language(json.dumps(line.get("language", EN.name))),
        model=model,
        confidence=None if confidence is None else float(confidence),
        shown=seen,
    )


@lru_cache(maxsize=16)
def _language(written: str) -> Language:
    try:
        return Language.from_json(json.loads(written))
    except TextError as error:
        raise ValueError(error.what) from None


def _feedback(line: dict[str, Any]) -> Feedback:
    id_ = _text(line, "id")
    _time(line)  # not used, but a line without a time is damaged
    if "correction" in line:
        return Feedback(id_, _text(line, "correction"), None)
    return Feedback(id_, None, _rating(line))


def _text(line: dict[str, Any], key: str) -> str:
    value = line.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key} is {_found(value)} and not a text")
    if len(value) > MOST_CHARACTERS:
        raise ValueError(f"{key} has {len(value)} characters; at most {MOST_CHARACTERS} are read")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{key} holds half a character (a lone surrogate)") from None
    return value


def _found(value: Any) -> str:
    """Return a value in a few characters, however long or deep it is."""
    return f"a {type(value).__name__}" if isinstance(value, list | dict) else shown(value, 40)


def _time(line: dict[str, Any]) -> datetime:
    text = _text(line, "when")
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"when is {text[:40]!r} and not a time") from None
    if problem := wrong_with(when):
        raise ValueError(f"when is {text[:40]!r}, {problem}")
    return when


def wrong_with(when: datetime) -> str | None:
    """Return why this is no time of use; None if it is one."""
    if not 1969 <= when.year < 3000:  # a clock that was never set shows 1970, in America still 1969
        return "which no clock shows"
    return "a time without its offset from UTC" if when.utcoffset() is None else None


def wrong_with_session(name: str) -> str | None:
    """Return why no folder of recordings can have this name; None if one can."""
    if is_plain_name(name) and not name.startswith("."):
        return None
    return f"session {shown(repr(name), 60)} cannot name a folder"


def _rating(line: dict[str, Any]) -> str:
    rating = _text(line, "rating")
    if rating not in RATINGS:
        raise ValueError(f"rating is {rating[:40]!r}")
    return rating
