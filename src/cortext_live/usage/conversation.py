"""The conversation that a usage log holds: the participant's sentences and the partner's turns."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from cortext.errors import plain
from cortext.tables import csv_table, json_text
from cortext_live.usage.log_entries import MOST_CHARACTERS, Deleted, Entry, LoggedUtterance

PARTICIPANT, PARTNER = "participant", "partner"
FORMATS = {"text": "txt", "csv": "csv", "jsonl": "jsonl"}
"""Formats of an export, and the ends of the names of their files."""
MEDIA_TYPES = {
    "text": "text/plain; charset=utf-8",
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
}
COLUMNS = ("entry", "when", "who", "text", "decoded", "rating")
CONVERSATION_S = 3600.0
"""Silence longer than this ends a conversation."""


@dataclass(frozen=True)
class ConversationEntry:
    """A sentence or a turn.

    Attributes:
        entry: Its number in the log.
        who: `PARTICIPANT` or `PARTNER`.
        when: Time at which its text was there, with the offset from UTC.
        text: The decoded sentence, or the turn as typed.
        shown: The decoded sentence as it is shown, with capitals and punctuation.
        correction: The sentence that was meant; None without a correction.
        rating: Its rating; None without one.
    """

    entry: int
    who: str
    when: datetime
    text: str
    shown: str
    correction: str | None = None
    rating: str | None = None

    @property
    def meant(self) -> str:
        """The sentence that was meant, as far as it is known."""
        return self.shown if self.correction is None else self.correction

    @property
    def is_as_decoded(self) -> bool:
        """Whether it is a sentence whose capitals and marks the log lacks."""
        return self.who == PARTICIPANT and self.shown == self.text

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values; a correction and a rating only where there are."""
        facts = {
            "entry": self.entry,
            "who": self.who,
            "when": self.when.isoformat(timespec="milliseconds"),
            "text": self.text,
            "shown": self.shown,
        }
        feedback = {"correction": self.correction, "rating": self.rating}
        return facts | {name: value for name, value in feedback.items() if value is not None}


def as_it_is(text: str) -> str:
    """Return a text."""
    return text


def latest(
    entries: Sequence[Entry],
    most: int,
    *,
    before: int | None = None,
    search: str = "",
    show: Callable[[str], str] = as_it_is,
) -> list[ConversationEntry]:
    """Return the latest entries, the oldest first.

    Args:
        entries: Entries of a log by their numbers.
        most: Most entries.
        before: Number before which they are; None for the end of the log.
        search: Only those that hold this text, in small letters or capitals.
        show: Returns a decoded sentence as it is shown.
    """
    chosen: list[ConversationEntry] = []
    wanted = folded(search)
    end = len(entries) if before is None else max(0, min(before, len(entries)))
    for number in range(end - 1, -1, -1):
        if len(chosen) == most:
            break
        each = _entry_of(number, entries[number])
        if each is not None and holds(each, wanted):
            chosen.append(replace(each, shown=show(each.text)) if each.is_as_decoded else each)
    return chosen[::-1]


def newest_conversation(entries: Sequence[Entry], most: int) -> list[ConversationEntry]:
    """Return the latest entries, the oldest first, back to the last long silence."""
    newest = latest(entries, most)
    for i in range(len(newest) - 1, 0, -1):
        if (newest[i].when - newest[i - 1].when).total_seconds() > CONVERSATION_S:
            return newest[i:]
    return newest


def _entry_of(number: int, entry: Entry) -> ConversationEntry | None:
    """Return an entry of a log; None for a deleted one, and for an utterance without words."""
    if isinstance(entry, Deleted):
        return None
    if not isinstance(entry, LoggedUtterance):
        return ConversationEntry(number, PARTNER, entry.when, entry.text, entry.text)
    if not entry.text.strip() and entry.correction is None:
        return None
    return ConversationEntry(
        number,
        PARTICIPANT,
        entry.when,
        entry.text,
        entry.shown or entry.text,
        entry.correction,
        entry.rating,
    )


def folded(text: str) -> str:
    """Return a text as a search compares it: composed, in small letters, with single spaces."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def holds(entry: ConversationEntry, wanted: str) -> bool:
    """Tell whether an entry holds a text that `folded` returned; all hold the empty text."""
    return not wanted or any(
        wanted in folded(text) for text in (entry.text, entry.shown, entry.correction or "")
    )


def export(entries: Iterable[ConversationEntry], form: str) -> bytes:
    """Return a conversation as a file in UTF-8.

    Args:
        entries: The entries.
        form: One of `FORMATS`: `text` has a line for each entry, the meant sentence where it is
            known; `csv` has the columns `COLUMNS`; `jsonl` has an object for each entry, as the
            server sends them.
    """
    if form == "jsonl":
        return b"".join(json_text(each.to_json()).encode() + b"\n" for each in entries)
    if form == "csv":
        return csv_table(
            COLUMNS,
            (
                (
                    each.entry,
                    each.when.isoformat(timespec="seconds"),
                    each.who,
                    each.meant,
                    each.text if each.who == PARTICIPANT else "",
                    each.rating or "",
                )
                for each in entries
            ),
        )
    return "".join(
        f"{each.when:%Y-%m-%d %H:%M:%S}  {each.who}: {plain(each.meant, MOST_CHARACTERS)}\n"
        for each in entries
    ).encode()
