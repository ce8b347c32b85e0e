"""Ids, entries and addresses of Redis streams, and bounds on the entries that they keep."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from cortext.errors import LiveError

StreamId = tuple[int, int]
"""Id of a stream's entry: milliseconds of Redis's clock, and a number within the millisecond."""
LAST = 2**64 - 1
"""Largest value of either part of an id."""


@dataclass(frozen=True)
class StreamEntry:
    """An entry of a stream."""

    stream: str
    id: StreamId
    fields: dict[bytes, bytes]

    @property
    def n_bytes(self) -> int:
        """Bytes of its field names and values."""
        return sum(len(name) + len(value) for name, value in self.fields.items())


def parse_id(text: bytes | str) -> StreamId:
    """Return the id of an entry from its text."""
    milliseconds, _, number = (text.decode() if isinstance(text, bytes) else text).partition("-")
    return int(milliseconds), int(number or 0)


def format_id(entry_id: StreamId) -> str:
    """Return the id as Redis writes it."""
    return f"{entry_id[0]}-{entry_id[1]}"


def milliseconds(time: tuple[int, int]) -> int:
    """Return the reply of TIME in milliseconds."""
    return time[0] * 1000 + time[1] // 1000


def before(entry_id: StreamId) -> StreamId:
    """Return the id just before another one; return the first id unchanged."""
    if entry_id[1]:
        return entry_id[0], entry_id[1] - 1
    return (entry_id[0] - 1, LAST) if entry_id[0] else entry_id


def next_id(entry_id: StreamId) -> StreamId:
    """Return the id just after another one that is not the last."""
    return (entry_id[0], entry_id[1] + 1) if entry_id[1] < LAST else (entry_id[0] + 1, 0)


def read_info(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply of XINFO STREAM, of any version of Redis, as `stream_info` does."""
    first = reply["first-entry"]
    max_deleted = reply.get("max-deleted-entry-id")  # since Redis 7
    return {
        "first": parse_id(first[0]) if first else None,
        "last": parse_id(reply["last-generated-id"]),
        "length": reply["length"],
        "added": reply.get("entries-added"),
        "max_deleted": parse_id(max_deleted) if max_deleted else None,
    }


class AnsweredEntries:
    """The answered entries that streams still hold, oldest first."""

    def __init__(self, most_entries: int, most_bytes: int) -> None:
        self.most_entries = most_entries
        self._most_bytes = most_bytes
        self._inputs: set[str] = set()
        self._entries: dict[str, deque[tuple[StreamId, int]]] = {}
        self._n_bytes: dict[str, int] = {}

    def add(self, stream: str, entry_id: StreamId, n_bytes: int, is_input: bool) -> list[StreamId]:
        """Note an entry; return the ids of the surplus, a tenth of the bound or more at once.

        Args:
            stream: Name of the stream.
            entry_id: Id of the entry.
            n_bytes: Size of the entry.
            is_input: Whether clients write the stream.
        """
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
        """Return the ids of all entries of input streams, by stream, and forget them."""
        inputs = [
            (stream, [entry_id for entry_id, _ in self._entries[stream]]) for stream in self._inputs
        ]
        for stream in self._inputs:
            self._entries[stream].clear()
            self._n_bytes[stream] = 0
        return inputs


def in_order(replies: Any, streams: list[str], count: int) -> list[StreamEntry]:
    """Return the entries that XREAD found, in the order of adding.

    Args:
        replies: Reply of XREAD.
        streams: Names of the streams; where times are equal, earlier names come first.
        count: Most entries of a stream in the reply. A stream with that many may hold more, so
            entries of other streams after its last one are left out.
    """

    def order(entry: StreamEntry) -> tuple[int, int, int]:
        return entry.id[0], streams.index(entry.stream), entry.id[1]

    entries = []
    last = (LAST + 1, 0, 0)  # later than any entry
    for stream, items in replies or []:
        own = [StreamEntry(stream.decode(), parse_id(item), fields or {}) for item, fields in items]
        if len(own) >= count:
            last = min(last, order(own[-1]))
        entries += own
    return sorted((entry for entry in entries if order(entry) <= last), key=order)


def redis_url(host: str, port: int, socket: str | None = None) -> str:
    """Return the URL of a Redis server without a password.

    Args:
        host: Name or address of the server.
        port: Port of the server.
        socket: Path of a Unix socket, which is used instead of host and port.
    """
    return f"unix://{quote(socket)}" if socket else f"redis://{host}:{port}/0"


def address(url: str) -> str:
    """Return the part of a Redis URL without secrets: host and port, or the path of the socket.

    Raises:
        LiveError: The URL cannot be read.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise bad_url() from None
    is_socket = parts.scheme == "unix"
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise bad_url()
    # A path that is no number would silently mean database 0.
    if not is_socket and not re.fullmatch(r"(/[0-9]*)?", parts.path):
        raise bad_url()
    return parts.path if is_socket else f"{host or 'localhost'}:{port or 6379}"


def bad_url() -> LiveError:
    """Return the error for a URL that cannot be read, without the URL: it may hold a password."""
    return LiveError(
        "the Redis URL cannot be read", fix="write redis[s]://[user:password@]host[:port][/db]"
    )
