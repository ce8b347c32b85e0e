"""One connection to Redis that outlives restarts, flushes, stalls and full memory.

A call waits until Redis answers; the log has what happened meanwhile. An entry is added exactly
once, even where a command is repeated: its id is decided before it is sent, and Redis takes no id
twice.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from cortext.errors import LiveError
from cortext.extras import need
from cortext.live.core.log import event
from cortext.live.core.redis_streams import (
    LAST,
    AnsweredEntries,
    Entry,
    StreamId,
    address,
    bad_url,
    format_id,
    in_order,
    milliseconds,
    next_id,
    parse_id,
    read_info,
)

T = TypeVar("T")

SLOW_S = 1.0
"""A command that takes longer is mentioned in the log."""
LONGEST_WAIT_S = 1.0
"""Between two attempts to reach a Redis that does not answer."""
_PAGE = 500
"""Most entries that are asked for at once."""
_MOST_AHEAD_MS = 86_400_000
"""An id further ahead of Redis's clock is no time: a client made it up."""
_REFUSING = ("OOM", "MISCONF", "NOREPLICAS")
"""How replies begin that refuse to write for now.

Memory or disk are full, or copies are missing.
"""


class Stopped(Exception):
    """The process was asked to stop while it waited for Redis."""


class RedisLink:
    """A connection that is made again whenever it breaks. For one thread.

    Args:
        url: redis://[user:password@]host[:port][/db], rediss:// for TLS, unix:///path; never
            logged.
        name: Of the work; other processes that do the same are found by it. The connection's name
            is this and a number.
        stop: Set it, and waiting for Redis ends with `Stopped`.
        timeout_s: Seconds that Redis may take for an answer before the connection is made anew.
        keep: Most entries and most bytes that a stream keeps of those added or retired here; older
            ones are deleted.
        patience_s: Seconds that Redis may be away before it is a LiveError; None: any time.

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
        redis = need("redis", "live")
        self.where = address(url)
        self.name = f"{name}:{secrets.token_hex(4)}"
        self.n_connections = 0
        self.stop = stop or threading.Event()
        self._errors = redis.exceptions
        self.newest: dict[str, StreamId] = {}
        """Ids of the newest entries that were added here."""
        self.n_deleted: dict[str, int] = {}
        """Number of entries of each stream that were deleted here, as Redis has confirmed."""
        self._kept = AnsweredEntries(*keep)
        self._made_room = False
        self.in_use: Callable[[], list[tuple[str, list[StreamId]]]] | None = None
        """Gives entries that were read and are not retired.

        Where Redis has no memory left they are deleted, too.
        """
        self._patience_s = patience_s
        self._down_since: float | None = None
        is_socket = url.startswith("unix:")
        over_tcp = (
            {} if is_socket else {"socket_connect_timeout": timeout_s, "socket_keepalive": True}
        )
        try:
            self._redis = redis.Redis.from_url(
                url,
                client_name=self.name,
                protocol=2,
                socket_timeout=timeout_s,
                **over_tcp,
                redis_connect_func=self._on_connect,
                # Repeated unseen, a command could act twice.
                retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
            )
            pool = self._redis.connection_pool
            # Rejects unknown options in the URL.
            pool.connection_class(**pool.connection_kwargs)
        except (ValueError, TypeError, AttributeError):
            raise bad_url() from None

    def call(self, do: Callable[[Any], T], expected_s: float = 0.0) -> T:
        """Return the result of `do`, which is repeated until Redis answers, and must bear that.

        Args:
            do: Called with the client (`redis.Redis`).
            expected_s: Seconds that it may take by itself (a blocking read).

        Raises:
            LiveError: Redis refuses (a password, a permission, a key of another kind), or
                `patience_s` is over.
            Stopped: `stop` was set.
        """
        wait_s = 0.02
        while True:
            start = time.monotonic()
            try:
                value = do(self._redis)
            except self._errors.RedisError as error:
                self._bear(error, start)
            else:
                self._mention(start, expected_s)
                return value
            if self.stop.wait(wait_s):
                raise Stopped
            down_s = time.monotonic() - (self._down_since or start)
            if self._patience_s is not None and down_s > self._patience_s:
                fix = "is it running, and is this its address?"
                raise LiveError(
                    f"Redis did not answer for {down_s:.0f} s", where=self.where, fix=fix
                )
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def read(self, after: Mapping[str, StreamId], block_ms: int, count: int = 16) -> list[Entry]:
        """Return the entries of streams after given ids, in the order in which they were added.

        Within a millisecond the streams' order decides. A stream with more than `count` new entries
        holds back the other streams' later ones until the next call.

        Args:
            after: Id by stream.
            block_ms: Milliseconds to wait for the first entry.
            count: Most entries of a stream.
        """
        asked = {stream: format_id(entry_id) for stream, entry_id in after.items()}
        found = self.call(
            lambda redis: redis.xread(asked, count=count, block=block_ms), block_ms / 1000
        )
        return in_order(found, list(after), count)

    def read_and_save(
        self,
        keys: Sequence[str],
        after: Mapping[str, StreamId],
        block_ms: int,
        save: tuple[str, Mapping[str, str]],
        count: int = 16,
    ) -> tuple[bool, list[Entry]]:
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
            pipeline = redis.pipeline(transaction=False)
            if save[1]:
                pipeline.hset(save[0], mapping=save[1])
            pipeline.xread(asked, count=count, block=block_ms)
            pipeline.exists(*keys)
            replies = pipeline.execute(raise_on_error=False)
            if save[1] and str(replies[0]).startswith("WRONGTYPE"):
                self.set_aside(save[0])
                replies[0] = len(save[1])
            for reply in replies:
                if isinstance(reply, Exception):
                    raise reply
            return replies[0] if save[1] else 0, replies[-2], replies[-1]

        n_new, found, n_keys = self.call(all_three, block_ms / 1000)
        return n_new == 0 and n_keys == len(keys), in_order(found, list(after), count)

    def add(
        self,
        stream: str,
        fields: Mapping[str, Any],
        answers: StreamId = (0, 0),
        now: StreamId | None = None,
    ) -> StreamId:
        """Add an entry exactly once; return its id, a time of Redis's clock, later than `answers`.

        A client that waits for entries after the time of its request so misses no answer.

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
                    self.newest[stream] = parse_id(redis.xinfo_stream(stream)["last-generated-id"])
                    sent, again = None, False
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
        found = self.call(lambda redis: redis.xrevrange(stream, count=1))
        return parse_id(found[0][0]) if found else None

    def count(self, stream: str, after: StreamId, last: StreamId = (LAST, LAST)) -> int:
        """Return the number of entries of a stream after an id, up to another one."""
        return sum(1 for _ in self.entries(stream, after, last))

    def entries(
        self, stream: str, after: StreamId, last: StreamId = (LAST, LAST)
    ) -> Iterator[Entry]:
        """Yield the entries of a stream after an id, up to another one."""
        while after < last:
            found = self.call(
                partial(self._page, stream, format_id(next_id(after)), format_id(last))
            )
            yield from (Entry(stream, parse_id(entry_id), fields) for entry_id, fields in found)
            if len(found) < _PAGE:
                return
            after = parse_id(found[-1][0])

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
            try:
                if (redis.memory_usage(key, samples=0) or 0) > most_bytes:
                    return None
            except self._errors.NoPermissionError:
                # An older edition of docs/redis.md did not list this permission.
                pass
            try:
                found: dict[bytes, bytes] = redis.hgetall(key)
            except self._errors.ResponseError as error:
                if not str(error).startswith("WRONGTYPE"):
                    raise
                return None
            return found

        return self.call(ask)

    def read_end(self, key: str, most_bytes: int) -> bytes:
        """Return the end of a text, at most so many bytes; empty where the key holds none."""

        def ask(redis: Any) -> bytes:
            if redis.type(key) != b"string":
                return b""
            try:
                found: bytes = redis.getrange(key, -most_bytes, -1)
            except self._errors.NoPermissionError:
                # An older edition of docs/redis.md did not list this permission.
                found = (redis.get(key) or b"")[-most_bytes:]
            return found

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
            Whether the key was there before: where fields are always the same, False tells that it
                was
            deleted.
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
        """Rename a key that cannot be read, so that nothing of it is lost; return its new name.

        A key that was set aside before is replaced. The log says it.
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

    def rivals(self) -> list[str]:
        """Return the addresses of older connections to this database that do the same work.

        A process that has died has no connection.
        """

        def ask(redis: Any) -> tuple[int, list[dict[str, str]]]:
            try:
                return redis.client_id(), redis.client_list()
            except self._errors.NoPermissionError:
                event(
                    "rivals_unknown",
                    "warning",
                    redis=self.where,
                    reason="the Redis user may not use CLIENT LIST",
                )
                return 0, []

        own, clients = self.call(ask)
        databases = {client["db"] for client in clients if int(client["id"]) == own}
        work = self.name.rpartition(":")[0]
        return [
            client["addr"]
            for client in clients
            if client["db"] in databases
            and int(client["id"]) < own
            and client["name"]
            != self.name  # a connection of ours that broke, and that Redis still holds
            and client["name"].rpartition(":")[0] == work
        ]

    def end_connection(self, rival: str) -> None:
        """Close the connection of another process; Redis does it, by its address."""
        self.call(lambda redis: redis.client_kill_filter(addr=rival))

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()

    def _on_connect(self, connection: Any) -> None:
        connection.on_connect()
        self.n_connections += 1

    def _next_id(self, stream: str, now_ms: int, answers: StreamId) -> StreamId:
        if answers[0] > now_ms + _MOST_AHEAD_MS:  # after the last possible id there is none
            answers = (0, 0)
        milliseconds = max(now_ms, answers[0])
        newest = max(self.newest.get(stream, (0, 0)), answers)
        return (milliseconds, 0) if milliseconds > newest[0] else (newest[0], newest[1] + 1)

    def _bear(self, error: Exception, start: float) -> None:
        """Log an error that will pass; raise LiveError for one that will not."""
        what, errors = str(error), self._errors
        if isinstance(
            error, errors.AuthenticationError | errors.AuthorizationError | errors.NoPermissionError
        ):
            raise LiveError(
                f"Redis refuses: {what}", where=self.where, fix="check user and password"
            ) from None
        if isinstance(error, errors.ConnectionError | errors.TimeoutError):
            self._redis.connection_pool.disconnect()
            self._down("redis_unreachable", start)
        elif isinstance(
            error, errors.OutOfMemoryError | errors.ReadOnlyError | errors.MasterDownError
        ) or what.startswith(_REFUSING):
            if self._down("redis_refuses_to_write", start, reason=what):
                self._delete_all(self._kept.all_inputs())
            elif (
                self.in_use is not None
                and isinstance(error, errors.OutOfMemoryError)
                and not self._made_room
            ):
                self._made_room = True
                self._delete_all(self.in_use())
        else:  # a reply may quote arguments, which are private
            what = what.partition(", with args")[0]
            taken = what.startswith("WRONGTYPE")
            fix = (
                "delete that key, or choose other streams"
                if taken
                else "it must be Redis 5 or newer"
            )
            raise LiveError(f"Redis refuses: {what}", where=self.where, fix=fix) from None

    def _down(self, name: str, start: float, **facts: Any) -> bool:
        """Log the first failure in a row; return whether this is it."""
        if self._down_since is not None:
            return False
        self._down_since = start
        event(name, "error", redis=self.where, **facts)
        return True

    def _mention(self, start: float, expected_s: float) -> None:
        now = time.monotonic()
        if self._down_since is not None:
            event(
                "redis_answers_again",
                "warning",
                redis=self.where,
                after_s=round(now - self._down_since, 3),
            )
            self._down_since = None
            self._made_room = False
        elif now - start > SLOW_S + expected_s:
            event("redis_slow", "warning", redis=self.where, took_s=round(now - start, 3))

    def _delete_all(self, found: Iterable[tuple[str, list[StreamId]]]) -> None:
        for stream, ids in found:
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
