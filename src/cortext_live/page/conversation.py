"""The conversation in the memory of a server: what pages are sent when they connect.

It holds the latest entries alone. The usage log, where there is one, has all of them, under the
same numbers. Private sentences are in neither.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from cortext.errors import DataError
from cortext_live.usage.conversation import (
    CONVERSATION_S,
    PARTICIPANT,
    PARTNER,
    ConversationEntry,
    folded,
    holds,
    newest_conversation,
)
from cortext_live.usage.deletion import Selection
from cortext_live.usage.log_entries import Entry
from cortext_live.usage.writer import now

MOST_KEPT = 500
"""Entries in memory."""
MOST_SENT = 50
"""Entries that a page is sent when it connects."""
MOST_LISTED = 500
"""Entries of one answer."""
MOST_TURN = 2000
"""Characters of a partner's turn."""
MOST_SEARCH = 200
"""Characters of a text to search for."""
CONTEXT_ENTRIES = 10
CONTEXT_CHARACTERS = 1000
"""The end of the conversation that a large model reads."""


class Conversation:
    """The latest entries. For the decoding thread.

    Args:
        entries: Entries of the usage log; none without a log.
        show: Returns decoded sentences as they are shown.

    Attributes:
        private: Whether nothing is kept.
        is_context: Whether a large model reads the end of the conversation.
    """

    def __init__(
        self, entries: Sequence[Entry], show: Callable[[Sequence[str]], Sequence[str]]
    ) -> None:
        self.private = False
        self.is_context = False
        self._next = len(entries)
        self._kept: deque[ConversationEntry] = deque(maxlen=MOST_KEPT)
        newest = newest_conversation(entries, MOST_SENT)
        # Together, which takes a network less time than one after the other.
        shown = iter(show([each.text for each in newest if each.is_as_decoded]))
        for each in newest:
            self._kept.append(replace(each, shown=next(shown)) if each.is_as_decoded else each)
        self._entry_of: dict[int, int] = {}
        self._private: set[int] = set()

    def add_utterance(self, utterance: int, text: str, shown: str, when: datetime) -> int:
        """Add a decoded sentence; return its entry. One without words only takes a number."""
        number = self._take_number()
        if text.strip():
            self._add(ConversationEntry(number, PARTICIPANT, when, text, shown))
            self._entry_of[utterance] = number
        return number

    def add_turn(self, text: str, when: datetime) -> int:
        """Add a partner's words; return their entry."""
        number = self._take_number()
        self._add(ConversationEntry(number, PARTNER, when, text, text))
        return number

    def add_private(self, utterance: int) -> None:
        """Note that nothing of an utterance is kept."""
        self._private.add(utterance)

    def is_private(self, utterance: int) -> bool:
        """Tell whether nothing of an utterance is kept."""
        return utterance in self._private

    def note(self, utterance: int, **feedback: Any) -> None:
        """Add a correction or a rating of an utterance."""
        number = self._entry_of.get(utterance)
        for i, each in enumerate(self._kept):
            if each.entry == number:
                self._kept[i] = replace(each, **feedback)

    def forget(self, numbers: Collection[int]) -> None:
        """Forget entries."""
        kept = [each for each in self._kept if each.entry not in numbers]
        self._kept = deque(kept, MOST_KEPT)
        left = {each.entry for each in kept}
        self._entry_of = {u: n for u, n in self._entry_of.items() if n in left}

    def selected(self, selection: Selection) -> set[int]:
        """Return the numbers of the selected entries that are in memory."""
        wanted = set(selection.entries or ())
        return {e.entry for e in self._kept if e.entry in wanted or selection.covers(e.when)}

    def history(self) -> list[dict[str, Any]]:
        """Return the entries that a page is sent when it connects."""
        return [each.to_json() for each in list(self._kept)[-MOST_SENT:]]

    def found(self, search: str, before: int | None, most: int) -> list[ConversationEntry]:
        """Return the latest entries that hold a text, the oldest first; see `latest`."""
        wanted = folded(search)
        matching = [
            each
            for each in self._kept
            if holds(each, wanted) and (before is None or each.entry < before)
        ]
        return matching[max(0, len(matching) - most) :]

    def context(self) -> str:
        """Return the end of the conversation as a text; empty after a long silence."""
        since = now()
        recent = [
            " ".join(each.meant.split())
            for each in list(self._kept)[-CONTEXT_ENTRIES:]
            if (since - each.when).total_seconds() < CONVERSATION_S
        ]
        while recent and sum(map(len, recent)) + len(recent) > CONTEXT_CHARACTERS:
            del recent[0]
        return " ".join(recent)

    def _take_number(self) -> int:
        self._next += 1
        return self._next - 1

    def _add(self, entry: ConversationEntry) -> None:
        if len(self._kept) == MOST_KEPT:
            oldest = self._kept[0].entry
            self._entry_of = {u: n for u, n in self._entry_of.items() if n != oldest}
        self._kept.append(entry)


def checked_turn(text: str) -> str:
    """Return a partner's turn as it is kept. Raises DataError for one without words."""
    text = text.strip()
    if not text:
        raise DataError("the turn has no words")
    if len(text) > MOST_TURN:
        raise DataError(f"the turn has {len(text)} characters; at most {MOST_TURN} are taken")
    return text


def query_of(values: Iterable[tuple[str, str]], **known: str) -> dict[str, str]:
    """Return the fields of an address, with defaults. Raises DataError for others."""
    query = dict(known)
    for name, value in values:
        if name not in known:
            raise DataError(f"unknown field {name[:40]!r}; known: {', '.join(known)}")
        query[name] = value
    if len(query.get("search", "")) > MOST_SEARCH:
        raise DataError(f"a text to search for has at most {MOST_SEARCH} characters")
    return query


def whole_number(name: str, text: str, most: int) -> int:
    """Return a number of an address. Raises DataError for another text."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 15 and int(text) <= most):
        raise DataError(f"{name} is {text[:40]!r}; a whole number up to {most} is needed")
    return int(text)


def selection_of(body: dict[str, Any]) -> Selection:
    """Return what a `forget` request asks to delete. Raises DataError for a wrong one."""
    entries = body.get("entries")
    if entries is not None:
        usable = isinstance(entries, list) and all(type(n) is int and n >= 0 for n in entries)
        if not usable or not entries:
            raise DataError("entries must be a list of whole numbers, and not empty")
        entries = tuple(entries)
    since, until = (_time(name, body.get(name)) for name in ("since", "until"))
    return Selection(entries, since, until, bool(body.get("all")))


def _time(name: str, text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        example = "2026-11-21T10:00:00+01:00"
        raise DataError(f"{name} is {text!r:.40}; a time such as {example} is needed") from None
