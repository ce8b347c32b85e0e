"""Streams of Redis over one connection: entries are read in order, added once, and bounded.

An entry is added exactly once, even where a command is repeated: its id is decided before it is
sent, and Redis takes no id twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from cortext_live.core.log import event
from cortext_live.core.redis_connection import RedisConnection
from cortext_live.core.redis_streams import (
    LAST,
    AnsweredEntries,
    StreamEntry,
    StreamId,
    format_id,
    in_order,
    milliseconds,
    next_id,
    parse_id,
    read_info,
)

_PAGE = 500
"""Most entries that are asked for at once."""
_MOST_AHEAD_MS = 86_400_000
"""Lead over Redis's clock beyond which an id is no time: a client made it up."""


class RedisLink(RedisConnection):
    """A connection that reads and adds entries of streams, and bounds the streams. For one thread.

    It is a `RedisConnection` because its users need both sides: entries, and calls of their own.

    Args:
        url: See `RedisConnection`.
        name: See `RedisConnection`.
        stop: See `RedisConnection`.
        timeout_s: See `RedisConnection`.
        keep: Most entries and most bytes that a stream keeps of those added or retired here; older
            ones are deleted.
        patience_s: See `RedisConnection`.

    Raises:
        MissingLibrary: The redis library is not installed.
        LiveError: The URL cannot be read.
    """

    def __init__(
        self,
        url: str,
        name: str,
        stop: threading.Event | None = None,
        timeout_s: float = 10.0,
        keep: tuple[int, int] = (10_000, 64 * 2**20),
        patience_s: float | None = None,
    ) -> None:
        super().__init__(url, name, stop, timeout_s, patience_s, self._delete_for_room)
        self.newest: dict[str, StreamId] = {}
        """Ids of the newest entries that were added here."""
        self.n_deleted: dict[str, int] = {}
        """Number of entries of each stream that were deleted here, as Redis has confirmed."""
        self._kept = AnsweredEntries(*keep)
        self.in_use: Callable[[], list[tuple[str, list[StreamId]]]] | None = None
        """Function that returns entries that were read and are not retired.

        They are deleted, too, when Redis has no memory left.
        """

    def read(
        self, after: Mapping[str, StreamId], block_ms: int, count: int = 16
    ) -> list[StreamEntry]:
        """Return the entries of streams after given ids, in the order in which they were added.

        Within a millisecond the streams' order decides. A stream with more than `count` new entries
        holds back the other streams' later ones until the next call.

        Args:
            after: Id by stream.
            block_ms: Milliseconds to wait for the first entry.
            count: Most entries of a stream.
        """
        asked = {stream: format_id(entry_id) for stream, entry_id in after.items()}
        entries = self.call(
            lambda redis: redis.xread(asked, count=count, block=block_ms), block_ms / 1000
        )
        return in_order(entries, list(after), count)

    def read_and_save(
        self,
        keys: Sequence[str],
        after: Mapping[str, StreamId],
        block_ms: int,
        save: tuple[str, Mapping[str, str]],
        count: int = 16,
    ) -> tuple[bool, list[StreamEntry]]:
        """Write known fields of a hash, then `read`, in one round trip.

        Args:
            keys: Keys that must exist.
            after: Id by stream.
            block_ms: Milliseconds to wait for the first entry.
            save: Key of the hash, and fields that it has already: a new one tells that it was
                deleted.
            count: Most entries of a stream.

        Returns:
            Whether the keys were there all the time, and the entries.
        """
        asked = {stream: format_id(entry_id) for stream, entry_id in after.items()}

        def all_three(redis: Any) -> tuple[int, Any, int]:
            pipeline = redis.pipeline(transaction=False)  # in a transaction XREAD would not wait
            if save[1]:
                pipeline.hset(save[0], mapping=save[1])
            pipeline.xread(asked, count=count, block=block_ms)
            # Asked last, so that keys which are deleted while XREAD waits are missed, too.
            pipeline.exists(*keys)
            replies = pipeline.execute(raise_on_error=False)
            if save[1] and str(replies[0]).startswith("WRONGTYPE"):
                self.set_aside(save[0])
                replies[0] = len(save[1])
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
            return replies[0] if save[1] else 0, replies[-2], replies[-1]

        n_new, entries, n_keys = self.call(all_three, block_ms / 1000)
        return n_new == 0 and n_keys == len(keys), in_order(entries, list(after), count)

    def add(
        self,
        stream: str,
        fields: Mapping[str, Any],
        answers: StreamId = (0, 0),
        now: StreamId | None = None,
    ) -> StreamId:
        """Add an entry exactly once; return its id, a time of Redis's clock, later than `answers`.

        A client that reads entries after the time of its request therefore misses no answer.

        Args:
            stream: Name of the stream.
            fields: The entry.
            answers: Id of the request that it answers.
            now: The time of Redis's clock, where it has just been asked.
        """
        sent = None if now is None else self._next_id(stream, now[0], answers)
        again = False

        def write(redis: Any) -> StreamId:
            nonlocal sent, again
            while True:
                sent = sent or self._next_id(stream, milliseconds(redis.time()), answers)
                before = again
                again = True
                try:
                    redis.xadd(stream, fields, id=format_id(sent))
                except self._errors.ResponseError as error:
                    if "equal or smaller" not in str(error):
                        raise
                    if before and redis.xrange(stream, *2 * [format_id(sent)]):
                        return sent  # by an attempt whose answer was lost
                    # Another program's entry is later, or Redis's clock was set back: begin anew
                    # behind the stream's newest id.
                    self.newest[stream] = parse_id(redis.xinfo_stream(stream)["last-generated-id"])
                    sent = None
                    again = False
                else:
                    return sent

        entry_id = self.newest[stream] = self.call(write)
        n_bytes = sum(
            len(value) if isinstance(value, bytes | str) else 8 for value in fields.values()
        )
        self._delete(stream, self._kept.add(stream, entry_id, n_bytes, is_input=False))
        return entry_id

    def retire(self, stream: str, entries: Iterable[tuple[StreamId, int]]) -> None:
        """Allow the deletion of entries, by id and size, once the stream holds too much."""
        surplus: list[StreamId] = []
        for entry_id, n_bytes in entries:
            surplus += self._kept.add(stream, entry_id, n_bytes, is_input=True)
            if len(surplus) >= _PAGE:
                self._delete(stream, surplus)
                surplus = []
        self._delete(stream, surplus)

    def retire_up_to(self, stream: str, last: StreamId) -> None:
        """Retire the entries up to an id, which earlier processes have left."""
        self.retire(
            stream, ((entry.id, entry.n_bytes) for entry in self.entries(stream, (0, 0), last))
        )

    def now(self) -> StreamId:
        """Return the time of Redis's clock, as an id that all later entries come after."""
        return milliseconds(self.call(lambda redis: redis.time())), 0

    def newest_id(self, stream: str) -> StreamId | None:
        """Return the id of the newest entry of a stream, or None."""
        newest = self.call(lambda redis: redis.xrevrange(stream, count=1))
        return parse_id(newest[0][0]) if newest else None

    def count(self, stream: str, after: StreamId, last: StreamId = (LAST, LAST)) -> int:
        """Count the entries of a stream after an id.

        Args:
            stream: Name of the stream.
            after: Id before the first entry.
            last: Id of the last entry that counts; by default all count.
        """
        return sum(1 for _ in self.entries(stream, after, last))

    def entries(
        self, stream: str, after: StreamId, last: StreamId = (LAST, LAST)
    ) -> Iterator[StreamEntry]:
        """Yield the entries of a stream after an id.

        Args:
            stream: Name of the stream.
            after: Id before the first entry.
            last: Id of the last entry that is yielded; by default all are.
        """
        while after < last:
            page = self.call(
                partial(self._page, stream, format_id(next_id(after)), format_id(last))
            )
            yield from (
                StreamEntry(stream, parse_id(entry_id), fields) for entry_id, fields in page
            )
            if len(page) < _PAGE:
                return
            after = parse_id(page[-1][0])

    @staticmethod
    def _page(stream: str, first: str, last: str, redis: Any) -> Any:
        return redis.xrange(stream, first, last, _PAGE)

    def stream_info(self, stream: str) -> dict[str, Any]:
        """Return facts about a stream.

        Returns:
            Ids of its `first` entry (None: it is empty) and of its `last` one ever, its `length`,
            the number of entries ever `added`, and the latest id that XDEL deleted (`max_deleted`).
            Before Redis 7 the last two are None.
        """

        def ask(redis: Any) -> Any:
            try:
                return redis.xinfo_stream(stream)
            except self._errors.ResponseError as error:
                if "no such key" not in str(error):
                    raise
                return {
                    "last-generated-id": b"0-0",
                    "first-entry": None,
                    "length": 0,
                    "entries-added": 0,
                }

        return read_info(self.call(ask))

    def read_hash(self, key: str, most_bytes: int) -> dict[bytes, bytes] | None:
        """Return all fields of a hash; None where the key holds anything else or too many bytes."""

        def ask(redis: Any) -> dict[bytes, bytes] | None:
            if (redis.memory_usage(key, samples=0) or 0) > most_bytes:
                return None
            try:
                fields: dict[bytes, bytes] = redis.hgetall(key)
            except self._errors.ResponseError as error:
                if not str(error).startswith("WRONGTYPE"):
                    raise
                return None
            return fields

        return self.call(ask)

    def read_end(self, key: str, most_bytes: int) -> bytes:
        """Return the end of a text, at most so many bytes; empty where the key holds none."""

        def ask(redis: Any) -> bytes:
            if redis.type(key) != b"string":
                return b""
            end: bytes = redis.getrange(key, -most_bytes, -1)
            return end

        return self.call(ask)

    def trim(self, streams: Iterable[str]) -> None:
        """Shorten streams that other processes have filled."""
        for stream in streams:
            self.call(partial(self._trim, stream))

    def _trim(self, stream: str, redis: Any) -> None:
        redis.xtrim(stream, self._kept.most_entries, approximate=True)

    def has(self, stream: str, entry_id: StreamId) -> bool:
        """Tell whether a stream holds that entry."""
        return bool(self.call(lambda redis: redis.xrange(stream, *2 * [format_id(entry_id)])))

    def write_hash(self, key: str, fields: Mapping[str, Any]) -> bool:
        """Write fields of a hash; anything else that the key holds is set aside.

        Returns:
            Whether the key was there before, if the fields are always the same: False then tells
            that it was deleted.
        """

        def write(redis: Any) -> bool:
            try:
                return not redis.hset(key, mapping=fields)
            except self._errors.ResponseError as error:
                if not str(error).startswith("WRONGTYPE"):
                    raise
                self.set_aside(key)
                redis.hset(key, mapping=fields)
                return True

        return self.call(write)

    def set_aside(self, key: str) -> str:
        """Rename a key that cannot be read, so that its content is kept; return its new name.

        A key that was set aside before is replaced. The log records this.
        """
        aside = f"{key}:unreadable"

        def rename(redis: Any) -> None:
            try:
                redis.rename(key, aside)
            except self._errors.ResponseError as error:
                if "no such key" not in str(error):  # renamed by an attempt whose answer was lost
                    raise

        self.call(rename)
        event("key_set_aside", "error", redis=self.where, key=key, aside=aside)
        return aside

    def _next_id(self, stream: str, now_ms: int, answers: StreamId) -> StreamId:
        if answers[0] > now_ms + _MOST_AHEAD_MS:  # after the last possible id there is none
            answers = (0, 0)
        milliseconds = max(now_ms, answers[0])
        newest = max(self.newest.get(stream, (0, 0)), answers)
        return (milliseconds, 0) if milliseconds > newest[0] else (newest[0], newest[1] + 1)

    def _delete_for_room(self, also_in_use: bool) -> None:
        """Delete the answered requests, or else the requests in use.

        Answers are kept: a client may not have read them yet.
        """
        if not also_in_use:
            deletable = self._kept.all_inputs()
        else:
            deletable = self.in_use() if self.in_use is not None else []
        for stream, ids in deletable:
            self._delete(stream, ids)

    def _delete(self, stream: str, ids: Sequence[StreamId]) -> None:
        if not ids:
            return
        names = [format_id(entry_id) for entry_id in ids]
        try:
            self.n_deleted[stream] = self.n_deleted.get(stream, 0) + self._redis.xdel(
                stream, *names
            )
        except self._errors.RedisError as error:  # they stay a little longer
            event("trimming_failed", "warning", redis=self.where, reason=type(error).__name__)
