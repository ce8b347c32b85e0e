"""The usage log: one JSON object a line, read here.

Lines are only ever appended, unless somebody deletes sentences (`usage.deletion`). A line is an
utterance, `{id, when, session, duration_s, n_words, words_per_minute, text, source}`
and, where it was kept, `nbest`, `degraded` (why) where a large model had no part in it, `language`
where that is not English, `model` where a chain of them spoke, `confidence`, and `shown`, the text
as people saw it with capitals and marks; or a partner's words, `{when, partner}`; or a person's
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
from pathlib import Path
from typing import Any, BinaryIO

from cortext.errors import DataError, TextError, shown
from cortext.files import lines_within, parse_json
from cortext.text.language import Language
from cortext_live.usage.log_entries import (
    Damaged,
    Deleted,
    Entry,
    Feedback,
    LoggedUtterance,
    PartnerTurn,
    found_value,
    parsed_line,
    spoken,
    time_of,
)
from cortext_live.usage.log_lines import MOST_ENTRIES, Remains, check_sum, remains

LOG = "utterances.jsonl"
MOST_LINE_BYTES = 16 << 20
"""Longest line that is parsed: JSON takes up to 25 times its length in memory."""
MOST_NOTES = 20
"""Damaged lines of a log that are named one by one; the others are counted."""
MOST_UNSURE = 10_000
"""Damaged lines one below the other that may be entries, and keep a number."""
NEVER = datetime.fromtimestamp(0, UTC)
"""Time of a damaged entry of which no time is known."""


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
        parsed, number = parsed_line(line), _entry_number(line)
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
        if parsed.correction is not None:
            _check_correction(parsed.correction, self.utterances[number].language)
        return replace(parsed, entry=number)

    def add(self, parsed: Entry | Feedback, line: dict[str, Any]) -> int:
        """Add the content of a checked line; return the number of the entry that it is about."""
        if isinstance(parsed, Feedback):
            assert parsed.entry is not None, "it was checked"
            self.last = parsed.entry
            self.utterances[self.last].take(parsed)
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

        A cut line was one where ids continue after it. After a kill they begin again, and the
        program that continues counts no unfinished line.
        """
        id_ = following.id if isinstance(following, LoggedUtterance) else None
        unsettled, self._unsettled = self._unsettled, []
        for each in unsettled:
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

    def _add_damaged(self, remains: Remains) -> None:
        when = self._when(remains.when)
        if self._began is None and when is not NEVER:
            self._began = int(when.timestamp())
        if remains.id is not None:
            self._number[remains.id] = len(self.entries)
        elif not remains.is_known:
            self._number.clear()
        self.entries.append(Damaged(when, remains.id))

    def _when(self, written: str | None) -> datetime:
        """Return the time of a damaged entry: that of the entry above, or else as it is written."""
        if self.entries:
            return self.entries[-1].when
        if self._began is not None:
            return datetime.fromtimestamp(self._began, UTC)
        try:
            return time_of({"when": written})
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


def _check_correction(text: str, language: Language) -> None:
    try:
        words = spoken(text, language)
    except TextError as error:
        raise ValueError(f"the correction cannot be read: {error.what}") from None
    if not words:
        raise ValueError("the correction has no words")


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
                        problem = str(error) if ends else "unfinished"
                        log.notes.append(f"{path}: line {number} passed over: {problem}")
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
        raise ValueError(f"entry is {found_value(number)}")
    if type(log) is not int:
        raise ValueError(f"log is {found_value(log)}")
    return number
