"""Connections in front of uvicorn: bounds on number, time and bytes until the token is shown.

uvicorn limits none of these. asyncio's own loop of `accept` answers a lack of file descriptors with
a traceback for each attempt, thousands in a second.

When too many strangers are connected, the oldest of them is disconnected, not the newest refused:
an attacker who holds connections open would otherwise keep everybody out for nothing, while a
client that sends its request at once needs its connection for a moment only. The address with the
most connections loses one first, so that a flood from one machine costs the others nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

from cortext_live.core.log import repeated_event
from cortext_live.page.access.shares import Shares

HEAD_S = 10.0
"""Seconds in which a whole request head must come, from the connection or the last answer on."""
ANSWER_S = 30.0
"""Seconds in which a client without the token must take its answer."""
MAX_STRANGERS = 64
"""Connections at a time whose request in progress has not shown the token, or that have no
request in progress.
"""
SPARE_FILES = 32
"""File descriptors that connections leave to the work: recordings, the usage log, libraries."""
MAX_UNREAD = 2 * 1024 * 1024
"""Bytes of answers that may wait for a client that keeps sending and does not read."""
MAX_RECEIVED = 2 * 1024 * 1024
"""Bytes that may come between one whole request or message and the next.

Fragments without end are none.
"""
CLOSE_S = 5.0
"""Seconds in which the other end must take part in the end of an encrypted connection."""
FAREWELL_S = 2.0
"""Seconds in which a page whose token was revoked may close its web socket by itself."""
BACKLOG = 1024
"""Connections that the system keeps until they are accepted."""
RETRY_S = 0.1
"""Pause after the system had no descriptor or no memory for a connection."""


class Listener:
    """Accepts connections; uvicorn takes it for an `asyncio.Server`.

    Args:
        listener: A bound socket.
        make_protocol: Makes uvicorn's protocol of a connection; its argument becomes
            `scope["state"]` of each request.
        tls: Certificate and rules of encryption; None to encrypt nothing.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[dict[str, Any]], asyncio.Protocol],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._make_protocol = make_protocol
        self._tls = tls
        self._strangers: dict[Connection, None] = {}  # the oldest first
        self.shares = Shares()
        self._opening: set[asyncio.Task[Any]] = set()
        self._open = True
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Accept no more connections."""
        self._open = False
        self._loop.remove_reader(self._listener)
        self._listener.close()

    async def wait_closed(self) -> None:
        """Return at once: there is nothing to wait for."""

    def add_stranger(self, connection: Connection) -> None:
        """Count a connection without the token; disconnect another where there are too many."""
        self._strangers[connection] = None
        # The lowest free number is taken: a high one says that nearly all of them are in use.
        most_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if (
            len(self._strangers) > MAX_STRANGERS
            or 0 <= most_files - SPARE_FILES <= connection.descriptor
        ):
            self._disconnect_one()

    def remove_stranger(self, connection: Connection) -> None:
        """Count a connection no more: it has shown the token, or is gone."""
        self._strangers.pop(connection, None)

    def _accept(self) -> None:
        """Accept one connection.

        One in each turn of the event loop: a request that was sent at once is read long before so
        many others have come that its connection would be the oldest.
        """
        try:
            accepted, _ = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            repeated_event("connection_not_accepted", error=error.strerror)
            self._disconnect_one()
            self._loop.remove_reader(self._listener)
            self._loop.call_later(RETRY_S, self._resume)
            return
        if not self.shares.accepts(_peer(accepted)):
            repeated_event("too_many_connections")
            accepted.close()
            return
        # Counted from now on: a handshake that never ends is a stranger's, too.
        connection = Connection(self, self._make_protocol, accepted)
        opening = self._loop.create_task(self._open_connection(connection, accepted))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def _open_connection(self, connection: Connection, accepted: socket.socket) -> None:
        """Shake hands, where connections are encrypted; give the connection to its protocol."""
        times: dict[str, Any] = {}
        if self._tls is not None:
            times = {"ssl_handshake_timeout": HEAD_S, "ssl_shutdown_timeout": CLOSE_S}
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, **times
            )
        except OSError as error:  # among them ssl.SSLError; no warning: a port scan, plain HTTP
            # Its frames refer to it: a cycle that would hold 256 KiB until garbage is collected.
            error.__traceback__ = None
            repeated_event("handshake_failed", "info")
        finally:
            connection.opened()

    def _resume(self) -> None:
        if self._open:
            self._loop.add_reader(self._listener, self._accept)

    def _disconnect_one(self) -> None:
        """Disconnect the oldest connection of the address that has the most."""
        if not self._strangers:
            return
        crowd = Counter(connection.address for connection in self._strangers)
        # `max` returns the first of equals, the oldest.
        oldest = max(self._strangers, key=lambda connection: crowd[connection.address])
        oldest.disconnect("too_many_connections")


class Connection(asyncio.Protocol):
    """A connection, between asyncio and the protocol of uvicorn that reads it.

    It is a stranger's until the request in progress has shown the token, and again when that
    request is over. That begins when it is accepted: before its handshake, if it is encrypted.
    """

    def __init__(
        self,
        listener: Listener,
        make_protocol: Callable[[dict[str, Any]], asyncio.Protocol],
        accepted: socket.socket,
    ) -> None:
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._make_protocol = make_protocol
        self._protocol: asyncio.Protocol
        self._accepted = accepted
        self._deadline: asyncio.TimerHandle | None = None
        self._n_received = 0
        self._connected = False
        self._holder: set[Connection] | None = None
        self._tell_withdrawn: Callable[[], None] | None = None
        self._transport: asyncio.Transport | None = None
        self.descriptor = accepted.fileno()
        self.address = _peer(accepted)
        self._allow(HEAD_S)
        self._listener.add_stranger(self)

    # Called by requests

    @contextmanager
    def request(self) -> Iterator[None]:
        """Handle a request or web socket inside, whose whole head has come."""
        self.received_whole()
        self._allow(ANSWER_S)
        try:
            yield
        finally:
            self._leave_holder()
            self._become_stranger()

    def trust(self, holder: set[Connection]) -> None:
        """Let the request in progress last: it has shown a token, or a stranger may watch.

        Args:
            holder: Connections of the token, among which it is while the request is in progress.
        """
        self._listener.remove_stranger(self)
        self._allow(None)
        self._holder = holder
        holder.add(self)

    @property
    def shares(self) -> Shares:
        """The shares of work of those without a token."""
        return self._listener.shares

    def when_withdrawn(self, tell: Callable[[], None]) -> None:
        """Call `tell` if the token is revoked, and disconnect only some time later."""
        self._tell_withdrawn = tell

    def withdraw(self) -> None:
        """End the request in progress, because its token was revoked."""
        if self._tell_withdrawn is None:
            self._end_withdrawn()
        else:
            self._tell_withdrawn()
            self._loop.call_later(FAREWELL_S, self._end_withdrawn)

    def _end_withdrawn(self) -> None:
        if self._connected:
            self.disconnect("access_withdrawn", "info")

    def received_whole(self) -> None:
        """Note that a whole request head or message has come."""
        self._n_received = 0

    # Between asyncio and uvicorn

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)
        self._connected = True
        self._protocol = self._make_protocol({"connection": self})
        self._protocol.connection_made(cast(asyncio.Transport, _Transport(self, self._transport)))

    def opened(self) -> None:
        """Count the connection no more unless it was made: its handshake has failed."""
        if self._transport is None:
            self._allow(None)
            self._listener.remove_stranger(self)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._n_received += len(data)
        if self._n_received > MAX_RECEIVED:
            self.disconnect("message_without_end")
            return
        self._protocol.data_received(data)
        assert self._transport is not None
        if self._transport.get_write_buffer_size() > MAX_UNREAD:
            self.disconnect("client_does_not_read")

    def eof_received(self) -> bool | None:
        """See `asyncio.Protocol`."""
        return self._protocol.eof_received()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._protocol.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._connected = False
        self._allow(None)
        self._leave_holder()
        self._listener.remove_stranger(self)
        self._protocol.connection_lost(error)

    def disconnect(self, event: str, level: str = "warning") -> None:
        """End the connection at once, without the bytes that wait, and log why."""
        self._listener.remove_stranger(self)
        self._allow(None)
        repeated_event(event, level)
        if self._transport is not None:
            self._transport.abort()
            return
        with suppress(OSError):  # in its handshake, which ends with this
            self._accepted.shutdown(socket.SHUT_RDWR)

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Pass the connection to another protocol: a request has become a web socket."""
        self._protocol = protocol

    def _leave_holder(self) -> None:
        if self._holder is not None:
            self._holder.discard(self)
        self._holder = self._tell_withdrawn = None

    def _become_stranger(self) -> None:
        # Also while it closes: that may wait for a client that does not read.
        if self._connected and self._transport is not None:
            self._allow(ANSWER_S if self._transport.get_write_buffer_size() else HEAD_S)
            self._listener.add_stranger(self)

    def _allow(self, seconds: float | None) -> None:
        """Disconnect in so many seconds, unless something changes that; None: not at all."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None
        if seconds is not None:  # no warning: browsers connect before they have anything to ask
            self._deadline = self._loop.call_later(
                seconds, self.disconnect, "client_too_slow", "info"
            )


class _Transport:
    """The transport of a connection as uvicorn sees it.

    Another protocol takes over behind the `Connection`.
    """

    def __init__(self, connection: Connection, transport: asyncio.Transport) -> None:
        self._connection = connection
        self._transport = transport

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self._connection.hand_over(protocol)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _peer(accepted: socket.socket) -> int:
    """Return a number for the owner of a connection's address; see `_network`."""
    try:
        return _network(accepted.getpeername())
    except OSError:  # it was reset before it was accepted
        return 0


def _network(peer: tuple[Any, ...] | None) -> int:
    """Return a number for the owner of an address: IPv4, or the 64 bits of an IPv6 network.

    A connection that was reset before it was accepted has no address any more: 0.
    """
    if not peer:
        return 0
    address = ipaddress.ip_address(peer[0].partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        return int(address.ipv4_mapped or int(address) >> 64)
    return int(address)
