"""One connection to Redis that outlives restarts, flushes, stalls and full memory.

Whoever asks through it waits until Redis answers; what happened meanwhile is in the log. An entry
is added exactly once, whatever is repeated: its id is decided before it is sent, and Redis takes no
id twice.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from cortext.errors import LiveError
from cortext.extras import need
from cortext.live.core.log import event
from cortext.live.core.redis_streams import LAST, Kept, milliseconds, next_id, read_info
from cortext.live.core.redis_streams import Entry as Entry
from cortext.live.core.redis_streams import StreamId as StreamId
from cortext.live.core.redis_streams import format_id as format_id
from cortext.live.core.redis_streams import parse_id as parse_id

T = TypeVar("T")

SLOW_S = 1.0
"""A command that takes longer is mentioned in the log."""
LONGEST_WAIT_S = 1.0
"""Between two attempts to reach a Redis that does not answer."""
_PAGE = 500
"""Most entries that are asked for at once."""
_MOST_AHEAD_MS = 86_400_000
"""An id of a client that lies further ahead of Redis's clock is nobody's time."""
_REFUSING = ("OOM", "MISCONF", "NOREPLICAS")
"""How replies begin that refuse to write for now.

Memory or disk are full, or copies are missing.
"""


class Stopped(Exception):
    """The process was asked to stop while it waited for Redis."""


class RedisLink:
    """A connection that is made again whenever it breaks. For one thread.

    Raises MissingLibrary without the redis library, LiveError for a URL that is none.

    Args:
        url: redis://[user:password@]host[:port][/db], rediss:// for TLS, unix:///path; never
            logged.
        name: Of the work, by which others that do the same are found; the connection's name is this
            and a number.
        stop: Set it, and waiting for Redis ends with `Stopped`.
        timeout_s: How long Redis may take for an answer before the connection is made anew.
        patience_s: How long Redis may be away before it is a LiveError; None: as long as it takes.
        keep: Most entries and most bytes that a stream keeps of those added or retired here; older
            ones are deleted.
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
        self.where, self.name, self.n_connections = (
            address(url),
            f"{name}:{secrets.token_hex(4)}",
            0,
        )
        self.stop = stop or threading.Event()
        self._errors = redis.exceptions
        self.newest: dict[str, StreamId] = {}
        """Ids of the newest entries that were added here."""
        self.n_deleted: dict[str, int] = {}
        """How many entries of each stream were deleted here, as far as Redis has said."""
        self._kept, self._made_room = Kept(*keep), False
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
                retry=redis.retry.Retry(
                    redis.backoff.NoBackoff(), 0
                ),  # repeated unseen, a command could act twice
            )
            pool = self._redis.connection_pool
            pool.connection_class(
                **pool.connection_kwargs
            )  # refuses settings in the URL that there are not
        except (ValueError, TypeError, AttributeError):
            raise _bad_url() from None

    def call(self, do: Callable[[Any], T], expected_s: float = 0.0) -> T:
        """What `do` gives for the client (`redis.Redis`), repeated until Redis answers.

        It must bear repetition.

        Args:
            expected_s: How long it may take by itself (a blocking read).

        Raises:
            LiveError: Where Redis refuses (a password, a permission, a key of another kind) or
                patience has ended, Stopped after `stop`.
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
        """Entries of streams that come after the given ids, in the order in which they were added.

        Waits up to `block_ms` for the first. Within a millisecond the streams' order decides. A
        stream with more than `count` new entries holds back the other streams' later ones until the
        next call.
        """
        asked = {stream: format_id(entry_id) for stream, entry_id in after.items()}
        found = self.call(
            lambda redis: redis.xread(asked, count=count, block=block_ms), block_ms / 1000
        )
        return _in_order(found, list(after), count)

    def read_and_save(
        self,
        keys: Sequence[str],
        after: Mapping[str, StreamId],
        block_ms: int,
        save: tuple[str, Mapping[str, str]],
        count: int = 16,
    ) -> tuple[bool, list[Entry]]:
        """Write known fields of a hash, then `read`.

        Whether the keys were there all the time, and what was read.

        One round trip. A field that was not there before tells that the hash was deleted.
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
        return n_new == 0 and n_keys == len(keys), _in_order(found, list(after), count)

    def add(
        self,
        stream: str,
        fields: Mapping[str, Any],
        answers: StreamId = (0, 0),
        now: StreamId | None = None,
    ) -> StreamId:
        """Add an entry exactly once.

        Returns its id: the time of Redis's clock, and later than that of `answers`.

        A client that waits for what comes after the time at which it asked so misses no answer,
        however fast.

        Args:
            now: The time of Redis's clock, where it has just been asked.
        """
        sent = None if now is None else self._next_id(stream, now[0], answers)
        again = False

        def write(redis: Any) -> StreamId:
            nonlocal sent, again
            while True:
                sent, before, again = (
                    sent or self._next_id(stream, milliseconds(redis.time()), answers),
                    again,
                    True,
                )
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
        """Say that entries, by id and size, are done with.

        They stay for others until the stream holds too much.
        """
        surplus: list[StreamId] = []
        for entry_id, n_bytes in entries:
            surplus += self._kept.add(stream, entry_id, n_bytes, is_input=True)
            if len(surplus) >= _PAGE:
                self._delete(stream, surplus)
                surplus = []
        self._delete(stream, surplus)

    def retire_up_to(self, stream: str, last: StreamId) -> None:
        """`retire` what a stream holds up to an id, which those before have left."""
        self.retire(
            stream, ((entry.id, entry.n_bytes) for entry in self.entries(stream, (0, 0), last))
        )

    def now(self) -> StreamId:
        """The time of Redis's clock, as an id that all later entries come after."""
        return milliseconds(self.call(lambda redis: redis.time())), 0

    def newest_id(self, stream: str) -> StreamId | None:
        """Id of the newest entry of a stream, or None."""
        found = self.call(lambda redis: redis.xrevrange(stream, count=1))
        return parse_id(found[0][0]) if found else None

    def count(self, stream: str, after: StreamId, last: StreamId = (LAST, LAST)) -> int:
        """Number of entries of a stream after an id, up to another one."""
        return sum(1 for _ in self.entries(stream, after, last))

    def entries(
        self, stream: str, after: StreamId, last: StreamId = (LAST, LAST)
    ) -> Iterator[Entry]:
        """The entries of a stream after an id, up to another one."""
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
        """Ids of a stream's `first` entry (None: it is empty) and of its `last` one ever, and
        its `length`.

        How many were ever `added`, and the latest id that XDEL deleted (`max_deleted`): both None
        before Redis 7.
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
        """All fields of a hash.

        None where the key holds anything else, or more than so much memory.
        """

        def ask(redis: Any) -> dict[bytes, bytes] | None:
            try:
                if (redis.memory_usage(key, samples=0) or 0) > most_bytes:
                    return None
            except (
                self._errors.NoPermissionError
            ):  # older advice on the permissions of the Redis user
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
        """Read a text, of a longer one its end; empty where the key holds none."""

        def ask(redis: Any) -> bytes:
            if redis.type(key) != b"string":
                return b""
            try:
                found: bytes = redis.getrange(key, -most_bytes, -1)
            except (
                self._errors.NoPermissionError
            ):  # older advice on the permissions of the Redis user
                found = (redis.get(key) or b"")[-most_bytes:]
            return found

        return self.call(ask)

    def trim(self, streams: Iterable[str]) -> None:
        """Shorten streams that others have filled."""
        for stream in streams:
            self.call(partial(self._trim, stream))

    def _trim(self, stream: str, redis: Any) -> None:
        redis.xtrim(stream, self._kept.most_entries, approximate=True)

    def has(self, stream: str, entry_id: StreamId) -> bool:
        """Whether a stream holds that entry."""
        return bool(self.call(lambda redis: redis.xrange(stream, *2 * [format_id(entry_id)])))

    def write_hash(self, key: str, fields: Mapping[str, Any]) -> bool:
        """Write fields of a hash; anything else that the key holds is set aside.

        Returns whether the key was there before: where fields are always the same, False tells that
        it was deleted.
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
        """Rename a key that cannot be read, so that it can be made anew and nothing of it is lost.

        Returns its name.

        One that was set aside before is replaced. The log says it.
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
        """Addresses of connections to this database that were made before this one by others who
        do the same work.

        A process that has died has no connection.
        """

        def look(redis: Any) -> tuple[int, list[dict[str, str]]]:
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

        own, clients = self.call(look)
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
        """Close another's connection; Redis does it, by its address."""
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
        else:  # the arguments that a reply may quote are nobody's business
            what = what.partition(", with args")[0]
            taken = what.startswith("WRONGTYPE")
            fix = (
                "delete that key, or choose other streams"
                if taken
                else "it must be Redis 5 or newer"
            )
            raise LiveError(f"Redis refuses: {what}", where=self.where, fix=fix) from None

    def _down(self, name: str, start: float, **facts: Any) -> bool:
        """Whether this is the first failure in a row, which alone is logged."""
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
            self._down_since, self._made_room = None, False
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


def _in_order(found: Any, streams: list[str], count: int) -> list[Entry]:
    """What XREAD found, in the order of adding, up to where a stream may hold more than was
    read.
    """

    def order(entry: Entry) -> tuple[int, int, int]:
        return entry.id[0], streams.index(entry.stream), entry.id[1]

    entries, last = [], (LAST + 1, 0, 0)
    for stream, items in found or []:
        own = [Entry(stream.decode(), parse_id(item), fields or {}) for item, fields in items]
        if len(own) >= count:
            last = min(last, order(own[-1]))
        entries += own
    return sorted((entry for entry in entries if order(entry) <= last), key=order)


def redis_url(host: str, port: int, socket: str | None = None) -> str:
    """The URL of a Redis server without a password; a Unix socket goes before host and port."""
    return f"unix://{quote(socket)}" if socket else f"redis://{host}:{port}/0"


def address(url: str) -> str:
    """What may be shown of a Redis URL: host and port, or the path of the socket.

    Raises LiveError for no URL.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _bad_url() from None
    is_socket = parts.scheme == "unix"
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise _bad_url()
    if not is_socket and not re.fullmatch(
        r"(/[0-9]*)?", parts.path
    ):  # another database would be taken, silently
        raise _bad_url()
    return parts.path if is_socket else f"{host or 'localhost'}:{port or 6379}"


def _bad_url() -> LiveError:
    return LiveError(
        "the Redis URL cannot be read", fix="write redis[s]://[user:password@]host[:port][/db]"
    )
