"""The usage log: one JSON object a line, read here.

Lines are only ever appended, unless somebody deletes what was said (`usage.deletion`). A line is an
utterance, `{id, when, session, duration_s, n_words, words_per_minute, text, source}`
and, where it was kept, `nbest`, `degraded` (why) where a large model had no part in it, `language`
where that is not English, `model` where a chain of them spoke, `confidence`, and `shown`, the text
as people saw it with capitals and marks; or what a partner said, `{when, partner}`; or a person's
feedback, `{id, when, correction}` or `{id, when, rating}`. In a line without a number an `id` means
the last utterance above it that has it. Of several corrections or ratings the last one counts.

Utterances and partners' turns are the log's entries, numbered from 0. A deleted one leaves a line
without its text, `{id, when, deleted}`, so that the others keep their numbers: kept features and
recordings are named after them, and after the second of the first entry. Each line has its number
and a checksum (`usage.log_lines`); an entry whose line is damaged or missing keeps its number, too.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from cortext.data.trial import is_plain_name
from cortext.errors import DataError, TextError, shown
from cortext.files import lines_within, parse_json
from cortext.text.language import EN, Language
from cortext.text.prose import sentences
from cortext.usage.log_lines import MOST_ENTRIES, Remains, check_sum, remains

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
MOST_UNSURE = 10_000
"""Damaged lines one below the other that may be entries, and keep a number."""
NEVER = datetime.fromtimestamp(0, UTC)
"""Time of a damaged entry of which no time is known."""


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


@dataclass(frozen=True)
class Damaged(Deleted):
    """An entry whose line is damaged or missing. It counts nowhere.

    Attributes:
        when: Time of the entry above.
        id: Id of the utterance, as far as it can be read.
    """


Entry = LoggedUtterance | PartnerTurn | Deleted


@dataclass(frozen=True)
class Feedback:
    """A correction or a rating (the other is None) of an utterance.

    Attributes:
        id: Id of the utterance.
        correction: The sentence that was meant, as typed.
        rating: One of `RATINGS`.
        entry: Number of the utterance; None for the last one above that has the id.
    """

    id: str
    correction: str | None
    rating: str | None
    entry: int | None = None


class AboutDamaged(ValueError):
    """A line is about an entry that is damaged."""


@dataclass
class LogContents:
    """The contents of a log: its entries by their numbers, and notes on damaged lines."""

    entries: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    damaged: int = 0
    """Number of lines that were passed over."""
    last: int | None = None
    """Number of the utterance that the last line is about."""
    utterances: dict[int, LoggedUtterance] = field(default_factory=dict)
    """The utterances among the entries by their numbers, in order."""
    _number: dict[str, int] = field(default_factory=dict, repr=False)
    _began: int | None = field(default=None, repr=False)
    """Second of the first entry, as lines state it or by the first one."""
    _is_stated: bool = field(default=False, repr=False)
    _unsettled: list[Remains] = field(default_factory=list, repr=False)
    """Damaged lines at the end that may be entries: the next entry tells."""

    @property
    def began(self) -> int | None:
        """Second of the first entry, which tells one log from another; None for an empty log."""
        return self._began

    @property
    def deleted(self) -> set[int]:
        """Numbers of the deleted entries."""
        return {
            n
            for n, entry in enumerate(self.entries)
            if isinstance(entry, Deleted) and not isinstance(entry, Damaged)
        }

    def find(self, id_: str) -> int | None:
        """Return the number of the last utterance with that id."""
        return self._number.get(id_)

    def check(self, line: dict[str, Any]) -> Entry | Feedback:
        """Return the content of a line, every field checked.

        Raises:
            AboutDamaged: It is about an entry that is damaged.
            ValueError: A field is wrong.
        """
        parsed, number = _parsed(line), _entry_number(line)
        if number is not None:
            if self._is_stated and line["log"] != self._began:
                raise ValueError("it is a line of another log")
            self._began, self._is_stated = line["log"], True
        if isinstance(parsed, Feedback):
            return self._of_utterance(parsed, number)
        if number is not None and any(type(each) is not Damaged for each in self.entries[number:]):
            raise ValueError(f"entry {number} stands above it already")
        return parsed

    def _of_utterance(self, parsed: Feedback, number: int | None) -> Feedback:
        """Return feedback with the number of its utterance."""
        if number is None:
            if any(each.id == parsed.id for each in self._unsettled):
                self._unsettled = [
                    replace(each, is_sure=each.is_sure or each.id == parsed.id)
                    for each in self._unsettled
                ]
                raise AboutDamaged("its utterance is damaged")
            number = self.find(parsed.id)
        elif number >= len(self.entries):
            self._fill(number + 1)
        if number is None:
            raise ValueError(f"nothing above it has the id {shown(repr(parsed.id), 40)}")
        if isinstance(self.entries[number], Damaged):
            raise AboutDamaged("its utterance is damaged")
        if number not in self.utterances:
            raise ValueError(f"the utterance {shown(repr(parsed.id), 40)} was deleted")
        if self.utterances[number].id != parsed.id:
            raise ValueError(f"entry {number} has another id than {shown(repr(parsed.id), 40)}")
        meant = parsed.correction
        if meant is not None and not spoken(meant, self.utterances[number].language):
            raise ValueError("the correction has no words")
        return replace(parsed, entry=number)

    def add(self, parsed: Entry | Feedback, line: dict[str, Any]) -> int:
        """Add the content of a checked line; return the number of the entry that it is about."""
        if isinstance(parsed, Feedback):
            assert parsed.entry is not None, "it was checked"
            self.last = parsed.entry
            entry = self.utterances[self.last]
            if parsed.correction is not None:
                entry.correction = parsed.correction
            else:
                entry.rating = parsed.rating
            return self.last
        number = _entry_number(line)
        if number is None:
            self._settle_by_counting(parsed)
            number = len(self.entries)
        elif number < len(self.entries):  # damaged lines that seemed to be entries were none
            del self.entries[number:]
            self._number = {id_: n for id_, n in self._number.items() if n < number}
        self._fill(number)
        if self._began is None:
            self._began = int(parsed.when.timestamp())
        if isinstance(parsed, LoggedUtterance):
            self.last = number
            self.utterances[number] = parsed
        if not isinstance(parsed, PartnerTurn) and parsed.id is not None:
            self._number[parsed.id] = number
        self.entries.append(parsed)
        return number

    def add_remains(self, raw: bytes) -> None:
        """Note the entries that a damaged line seems to hold: they keep their numbers."""
        for each in remains(raw):
            if each.is_sure or len(self._unsettled) < MOST_UNSURE:
                self._unsettled.append(each)
            if each.is_sure and not each.is_known:
                self._number.clear()  # feedback below may be about it, and not about older ones

    def settle(self, least: int = 0) -> None:
        """Let all damaged lines at the end that may be entries keep a number, for a writer.

        Args:
            least: Least number of entries that there have been.
        """
        self._fill(max(len(self.entries) + len(self._unsettled), least))

    def settle_sure(self) -> None:
        """Let the damaged lines at the end that were whole entries keep a number."""
        unsure = [each for each in self._unsettled if not each.is_sure]
        self._settle_by_counting(None)
        self._unsettled = unsure

    def _settle_by_counting(self, following: Entry | None) -> None:
        """Tell which damaged lines above a line without a number were entries.

        A cut line was one where ids go on after it. After a kill they begin again, and the next
        entry had the number of the unfinished line.
        """
        id_ = following.id if isinstance(following, LoggedUtterance) else None
        found, self._unsettled = self._unsettled, []
        for each in found:
            if each.is_sure or (each.is_entry and _is_later(id_, each.id)):
                self._add_damaged(each)

    def _fill(self, end: int) -> None:
        """Put damaged entries in the place of those before a number that have no usable line."""
        n_missing = end - len(self.entries)
        known = self._unsettled[-n_missing:] if n_missing > 0 else []
        self._unsettled = []
        if n_missing > len(known):
            self._number.clear()  # their ids are not known: older ones may not be meant
            self.entries += [Damaged(self._when(None))] * (n_missing - len(known))
        for each in known:
            self._add_damaged(each)

    def _add_damaged(self, found: Remains) -> None:
        when = self._when(found.when)
        if self._began is None and when is not NEVER:
            self._began = int(when.timestamp())
        if found.id is not None:
            self._number[found.id] = len(self.entries)
        elif not found.is_known:
            self._number.clear()
        self.entries.append(Damaged(when, found.id))

    def _when(self, written: str | None) -> datetime:
        """Return the time of a damaged entry: that of the entry above, or else as it is written."""
        if self.entries:
            return self.entries[-1].when
        if self._began is not None:
            return datetime.fromtimestamp(self._began, UTC)
        try:
            return _time({"when": written})
        except ValueError:
            return NEVER

    def forget(self, numbers: Iterable[int]) -> None:
        """Put deleted entries in the place of others."""
        for number in numbers:
            entry = self.entries[number]
            id_ = None if isinstance(entry, PartnerTurn) else entry.id
            self.entries[number] = Deleted(entry.when, id_)
            self.utterances.pop(number, None)
            if self.last == number:
                self.last = None


def _is_later(id_: str | None, other: str | None) -> bool:
    """Tell whether an id is a greater number than another."""
    if id_ is None or other is None:
        return False
    return all(each.isdecimal() for each in (id_, other)) and int(id_) > int(other)


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


def read_lines(path: Path, log: LogContents) -> Iterator[tuple[int, bytes, Entry | Feedback]]:
    """Add each usable line of a file to the contents of a log.

    Yields:
        The number of the entry that it is about, the line, and what it says.

    Raises:
        DataError: There is no log, or it cannot be read.
    """
    try:
        with _open(path) as file:
            for number, raw, ends in lines_within(file, MOST_LINE_BYTES):
                try:
                    line = _object(raw)
                    parsed = log.check(line)
                except AboutDamaged:
                    continue  # the entry's own line is named
                except ValueError as error:
                    log.add_remains(raw)
                    log.damaged += 1
                    if log.damaged <= MOST_NOTES:
                        what = str(error) if ends else "unfinished"
                        log.notes.append(f"{path}: line {number} passed over: {what}")
                    continue
                yield log.add(parsed, line), raw, parsed
        log.settle_sure()
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
    check_sum(raw, line)
    return line


def _entry_number(line: dict[str, Any]) -> int | None:
    """Return the number that a line has; None for a line without one."""
    if not any(key in line for key in ("entry", "log")):
        return None
    number, log = line.get("entry"), line.get("log")
    if type(number) is not int or not 0 <= number < MOST_ENTRIES:
        raise ValueError(f"entry is {_found(number)}")
    if type(log) is not int:
        raise ValueError(f"log is {_found(log)}")
    return number


def _parsed(line: dict[str, Any]) -> Entry | Feedback:
    for key, kind in (("deleted", Deleted), ("damaged", Damaged)):
        if key in line:
            if line[key] is not True:
                raise ValueError(f"{key} is {_found(line[key])}")
            id_ = None if line.get("id") is None else _text(line, "id")
            return kind(_time(line), id_)
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
