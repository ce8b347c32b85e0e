"""One connection to Redis that outlives restarts, stalls and full memory.

A call waits until Redis answers; the log has what happened meanwhile.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from cortext.errors import LiveError
from cortext.extras import need
from cortext_live.core.log import event
from cortext_live.core.redis_refusals import no_connection, refusal
from cortext_live.core.redis_streams import address, bad_url

T = TypeVar("T")

SLOW_S = 1.0
"""Seconds after which the log mentions that a command was slow."""
LONGEST_WAIT_S = 1.0
"""Longest pause between two attempts to reach a Redis that does not answer."""
_REFUSING = ("OOM", "MISCONF", "NOREPLICAS")
"""First words of the replies with which Redis refuses to write for now.

Its memory or disk is full, or replicas are missing.
"""


class Stopped(Exception):
    """The process was asked to stop while it waited for Redis."""


class RedisConnection:
    """A connection that is made again whenever it breaks. For one thread.

    Args:
        url: redis://[user:password@]host[:port][/db], rediss:// for TLS, unix:///path; never
            logged.
        name: Name of the work; other processes that do the same are found by it. The connection's
            name is this and a random number.
        stop: Set it, and waiting for Redis ends with `Stopped`.
        timeout_s: Seconds that Redis may take for an answer before the connection is made anew.
        patience_s: Seconds that Redis may be away before it is a LiveError; None: any time.
        make_room: Called when Redis refuses to write, with False at the first refusal in a row.
            When its memory is full and the command is refused again, it is called once more, with
            True: then entries that are still in use may be deleted, too.

    Raises:
        MissingLibrary: The redis library is not installed.
        LiveError: The URL cannot be read.
    """

    def __init__(
        self,
        url: str,
        name: str,
        stop: threading.Event | None,
        timeout_s: float,
        patience_s: float | None,
        make_room: Callable[[bool], None],
    ) -> None:
        redis = need("redis", "live")
        self.where = address(url)
        self._url = url
        self._is_new = True
        self.name = f"{name}:{secrets.token_hex(4)}"
        self.n_connections = 0
        self.stop = stop or threading.Event()
        self._errors = redis.exceptions
        self._make_room = make_room
        self._made_room = False
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
                # Redis 5 has no protocol 3, which also gives XREAD's replies another form.
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
        """Call `do` until Redis answers, and return its result; `do` must be safe to repeat.

        Args:
            do: Called with the client (`redis.Redis`).
            expected_s: Seconds that it may take by itself (a blocking read).

        Raises:
            LiveError: Redis refuses (a password, a permission, encryption, a key of another kind),
                or `patience_s` is over.
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
        self._is_new = False
        self.n_connections += 1

    def _bear(self, error: Exception, start: float) -> None:
        """Log an error that will pass; raise LiveError for one that will not."""
        reason = str(error)
        errors = self._errors
        if (refused := refusal(error, self._url, errors)) is not None:
            raise refused from None
        if isinstance(error, errors.ConnectionError | errors.TimeoutError) and self._is_new:
            self._is_new = False  # the server is asked once: later it may be away
            if (refused := no_connection(error, self._url)) is not None:
                raise refused from None
        if isinstance(error, errors.ConnectionError | errors.TimeoutError):
            # A reply that comes late must not be taken for the next command's.
            self._redis.connection_pool.disconnect()
            self._down("redis_unreachable", start, does="waits until it answers")
        elif isinstance(
            error, errors.OutOfMemoryError | errors.ReadOnlyError | errors.MasterDownError
        ) or reason.startswith(_REFUSING):
            if self._down("redis_refuses_to_write", start, reason=reason):
                self._make_room(False)
            elif isinstance(error, errors.OutOfMemoryError) and not self._made_room:
                self._made_room = True
                self._make_room(True)
        else:  # a reply may quote arguments, which are private
            reason = reason.partition(", with args")[0]
            fix = "it must be Redis 5 or newer"
            if reason.startswith("WRONGTYPE"):
                fix = "delete that key, or choose other streams"
            raise LiveError(f"Redis refuses: {reason}", where=self.where, fix=fix) from None

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
