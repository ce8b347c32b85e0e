"""Access to the server: tokens and their rights, host names, origins, sizes and rates.

`cortext.live.page.connections` bounds the connections and their time.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Literal
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Right = Literal["read", "rate", "control"]
RIGHTS: tuple[Right, ...] = ("read", "rate", "control")
"""Rights of a token; each includes those before it."""
MAY: dict[Right, str] = {"read": "read", "rate": "read and rate", "control": "do everything"}
"""Each right in words: "this token may only read"."""

MAX_BODY = 64 * 1024
"""Bytes of a request's body."""
MAX_MESSAGE = 1024 * 1024
"""Bytes of a web-socket message."""
MAX_READERS = 32
"""Pages that may watch at a time."""
MAX_STRANGE_READERS = 24
"""Pages without the token among them (`open_view`): the others must always get in."""
REQUESTS_PER_S = 20.0
"""Changes a second that are let through in the long run."""
REQUESTS_AT_ONCE = 60.0
"""Changes that are let through in a burst."""

POLICY = "; ".join(
    (
        "default-src 'self'",
        "connect-src 'self'",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-cache",
}


def new_token() -> str:
    """Return a random token of 256 bits."""
    return secrets.token_urlsafe(32)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def address(host: str, port: int, token: str) -> str:
    """Return the page's address for a browser.

    The token is in the fragment, which is never sent or logged.

    Args:
        host: Address that the server listens on; an unspecified one becomes this machine's name.
        port: Port of the server.
        token: Token that allows changes.
    """
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        shown = host
    else:
        named = socket.gethostname() if parsed.is_unspecified else host
        shown = f"[{named}]" if ":" in named else named
    return f"http://{shown}:{port}/#token={token}"


class Access:
    """The rules of access.

    Args:
        token: The token that a client must show to change anything, to feed, and to watch unless
            `open_view`.
        host: The address that the server listens on.
        open_view: Whether anybody who reaches the server may watch.
    """

    def __init__(self, token: str, host: str, open_view: bool = False) -> None:
        self.token = token
        self.open_view = open_view
        self._names = {"localhost", host.lower(), socket.gethostname().lower()}
        self._tokens = REQUESTS_AT_ONCE
        self._last_s = time.monotonic()

    def rights(self, token: str | None) -> Right | None:
        """Return what a token allows; None for a wrong one, which takes as long."""
        return "control" if _same(token, self.token) else None

    def allows_host(self, host: str | None) -> bool:
        """Return whether a request that names this host was meant for us.

        A foreign site that had its name point to this machine (DNS rebinding) is known by that
        name: only addresses and the names of this machine are let through. The port is left open,
        for tunnels.
        """
        name = _hostname(host)
        if name is None:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True

    def allows_origin(self, origin: str | None, host: str | None) -> bool:
        """Return whether a browser's request comes from our own page; programs send no origin."""
        if origin is None:
            return True
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.netloc.lower() == (host or "").lower()

    def allows_another_change(self) -> bool:
        """Count a change; return whether the rate of changes is within its limit."""
        now_s = time.monotonic()
        self._tokens = min(self._tokens + (now_s - self._last_s) * REQUESTS_PER_S, REQUESTS_AT_ONCE)
        self._last_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def allows(has: Right, needed: Right) -> bool:
    """Return whether a token of one right may do what needs another."""
    return RIGHTS.index(has) >= RIGHTS.index(needed)


def _same(token: str | None, right: str) -> bool:
    return hmac.compare_digest((token or "").encode(), right.encode())


def _hostname(host: str | None) -> str | None:
    """Return the name or address in a Host header, in lower case and without brackets, or None."""
    try:
        return urlsplit(f"//{host}").hostname if host else None
    except ValueError:
        return None


class Guard:
    """Rejects requests against the rules, and adds the headers that keep a browser strict.

    `scope["state"]["connection"]` is the `cortext.live.page.connections.Connection` of the request.
    """

    def __init__(self, app: App, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        else:
            with scope["state"]["connection"].request():
                await self._handle(scope, receive, send)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = self._refusal(scope)
        if reason is None:
            await self._app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
        else:
            body = f'{{"error": "{reason}"}}'.encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
            ]
            send = _with_headers(send)
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Scope) -> str | None:
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        origins = [value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"]
        host = hosts[0] if len(hosts) == 1 else None
        if not self._access.allows_host(host):
            return "this server has another host name; use the address that cortext serve printed"
        changes = scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD")
        if changes and not all(self._access.allows_origin(origin, host) for origin in origins):
            return "requests from other sites are refused"
        return None


def _with_headers(send: Send) -> Send:
    extra = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]

    async def wrapped(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *extra]
        await send(message)

    return wrapped
