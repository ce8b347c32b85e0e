"""Ids and entries of streams of Redis, as they are sent."""

from __future__ import annotations

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
