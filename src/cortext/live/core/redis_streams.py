"""Ids and entries of streams of Redis, as they are sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

StreamId = tuple[int, int]
"""Id of a stream's entry: milliseconds of Redis's clock, and a number within the millisecond."""
LAST = 2**64 - 1
"""Largest value of either."""


@dataclass(frozen=True)
class Entry:
    """An entry of a stream."""

    stream: str
    id: StreamId
    fields: dict[bytes, bytes]

    @property
    def n_bytes(self) -> int:
        """Its size."""
        return sum(len(name) + len(value) for name, value in self.fields.items())


def parse_id(text: bytes | str) -> StreamId:
    """The id of an entry."""
    milliseconds, _, number = (text.decode() if isinstance(text, bytes) else text).partition("-")
    return int(milliseconds), int(number or 0)


def format_id(entry_id: StreamId) -> str:
    """The id as Redis writes it."""
    return f"{entry_id[0]}-{entry_id[1]}"


def milliseconds(time: tuple[int, int]) -> int:
    """The reply of TIME in milliseconds."""
    return time[0] * 1000 + time[1] // 1000


def before(entry_id: StreamId) -> StreamId:
    """The id just before another one; before the first one that one itself."""
    if entry_id[1]:
        return entry_id[0], entry_id[1] - 1
    return (entry_id[0] - 1, LAST) if entry_id[0] else entry_id


def next_id(entry_id: StreamId) -> StreamId:
    """The id just after another one that is not the last."""
    return (entry_id[0], entry_id[1] + 1) if entry_id[1] < LAST else (entry_id[0] + 1, 0)


def read_info(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Read the reply of XINFO STREAM of any version of Redis, as `RedisLink.stream_info` gives
    it.
    """
    first, max_deleted = reply["first-entry"], reply.get("max-deleted-entry-id")
    return {
        "first": parse_id(first[0]) if first else None,
        "last": parse_id(reply["last-generated-id"]),
        "length": reply["length"],
        "added": reply.get("entries-added"),
        "max_deleted": parse_id(max_deleted) if max_deleted else None,
    }


class Kept:
    """The answered entries that streams still hold, oldest first."""

    def __init__(self, most_entries: int, most_bytes: int) -> None:
        self.most_entries, self._most_bytes = most_entries, most_bytes
        self._inputs: set[str] = set()
        self._entries: dict[str, deque[tuple[StreamId, int]]] = {}
        self._n_bytes: dict[str, int] = {}

    def add(self, stream: str, entry_id: StreamId, n_bytes: int, is_input: bool) -> list[StreamId]:
        """Take note of an entry; returns the surplus, a tenth or more at once."""
        if is_input:
            self._inputs.add(stream)
        kept = self._entries.setdefault(stream, deque())
        kept.append((entry_id, n_bytes))
        self._n_bytes[stream] = self._n_bytes.get(stream, 0) + n_bytes
        if len(kept) <= self.most_entries and self._n_bytes[stream] <= self._most_bytes:
            return []
        surplus = []
        while len(kept) > 1 and (
            len(kept) > 0.9 * self.most_entries or self._n_bytes[stream] > 0.9 * self._most_bytes
        ):
            oldest, size = kept.popleft()
            self._n_bytes[stream] -= size
            surplus.append(oldest)
        return surplus

    def all_inputs(self) -> list[tuple[str, list[StreamId]]]:
        """Ids of all entries of input streams, by stream; they are forgotten here."""
        found = [
            (stream, [entry_id for entry_id, _ in self._entries[stream]]) for stream in self._inputs
        ]
        for stream in self._inputs:
            self._entries[stream].clear()
            self._n_bytes[stream] = 0
        return found
