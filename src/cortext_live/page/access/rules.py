"""Rules of access: whose token allows a request, from which host names and origins, how large."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from cortext.errors import ConfigError, LiveError
from cortext_live.page.access.shares import BYTES, REQUEST
from cortext_live.page.access.tokens import Guests, Holder

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 64 * 1024
"""Bytes of a request's body."""
MAX_MESSAGE = 1024 * 1024
"""Bytes of a web-socket message."""
MAX_READERS = 32
"""Pages that may watch at a time."""
MAX_GUEST_READERS = 28
"""Pages of guests and strangers among them: those of the owner must always get in."""
MAX_STRANGE_READERS = 24
"""Pages without a token among them (`open_view`): the others must always get in."""

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


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def address(host: str, port: int, is_tls: bool = False) -> str:
    """Return the server's address for a browser, without a slash at the end.

    Args:
        host: Address that the server listens on; an unspecified one becomes this machine's name.
        port: Port of the server.
        is_tls: Whether the server encrypts.
    """
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        shown = host
    else:
        named = socket.gethostname() if parsed.is_unspecified else host
        shown = f"[{named}]" if ":" in named else named
    return f"{'https' if is_tls else 'http'}://{shown}:{port}"


def public_address(url: str) -> str:
    """Return the address of a proxy in front of the server, without a slash at the end.

    Raises:
        ConfigError: It is none that encrypts, or holds more than a name, a port and a path.
    """
    fix = "give --public-url https://NAME, the address that browsers open"
    try:
        parts = urlsplit(url)
        known = parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        known = None
    if not known or parts.scheme != "https":
        raise ConfigError(f"--public-url is {url[:80]!r}, which is no https:// address", fix=fix)
    odd = quote(url, safe="/:[]-._~") != url or parts.username is not None or len(url) > 200
    if odd or parts.query or parts.fragment:
        raise ConfigError("--public-url holds more than a name, a port and a path", fix=fix)
    return url.rstrip("/")


class Access:
    """The rules of access.

    Args:
        token: The token that a client must show to change anything, to feed, and to watch unless
            `open_view`; guests have others.
        host: The address that the server listens on.
        open_view: Whether anybody who reaches the server may watch.
        outside: Encrypted address of the page for other devices, which can be invited then.
        is_tls: Whether the server itself encrypts.
        is_proxied: Whether a proxy encrypts in front of it, at `outside`.
    """

    def __init__(
        self,
        token: str,
        host: str,
        open_view: bool = False,
        *,
        outside: str | None = None,
        is_tls: bool = False,
        is_proxied: bool = False,
    ) -> None:
        self.owner = Holder(token)
        self.guests = Guests()
        self.open_view = open_view
        self._outside = outside
        self._schemes = ("https",) if is_tls else ("http", "https")
        self._names = {"localhost", host.lower(), socket.gethostname().lower()}
        self._proxied: tuple[str, str] | None = None
        if is_proxied and outside is not None:
            parts = urlsplit(outside.lower())
            self._proxied = parts.hostname or "", f"https://{parts.netloc}".removesuffix(":443")

    def holder(self, token: str | None) -> Holder | None:
        """Return who has a token; None for a wrong one.

        It is compared with every token, so that the time tells nothing about which one is right.
        """
        return next(iter([each for each in (self.owner, *self.guests) if each.shows(token)]), None)

    def check_outside(self) -> None:
        """Raise LiveError where other devices have no encrypted way to the page.

        A token that is sent unencrypted could be read on the way.
        """
        if self._outside is None:
            raise LiveError(
                "other devices have no encrypted way to this page",
                fix="start the server with --host ADDRESS --tls CERT KEY, or with --public-url",
            )

    def invitation(self, token: str) -> str:
        """Return the address that a guest opens; the fragment with the token is never sent."""
        self.check_outside()
        return f"{self._outside}/participant#token={token}"

    def allows_host(self, host: str | None) -> bool:
        """Return whether a request that names this host was meant for us.

        A foreign site that had its name point to this machine (DNS rebinding) is known by that
        name: only addresses and the names of this machine are let through. The port is left open,
        for tunnels.
        """
        name = _hostname(host)
        if name is None:
            return False
        if self._proxied is not None and name == self._proxied[0]:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True

    def allows_origin(self, origin: str | None, host: str | None) -> bool:
        """Return whether a browser's request comes from our own page; programs send no origin.

        A proxy may name another host to us than the browser does; the origin is the browser's.
        """
        if origin is None:
            return True
        if self._proxied is not None:
            if origin.lower().removesuffix(":443") == self._proxied[1]:
                return True
            if _hostname(host) == self._proxied[0]:
                return False
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in self._schemes and parts.netloc.lower() == (host or "").lower()


def _hostname(host: str | None) -> str | None:
    """Return the name or address in a Host header, in lower case and without brackets, or None."""
    try:
        return urlsplit(f"//{host}").hostname if host else None
    except ValueError:
        return None


class Guard:
    """Rejects requests against the rules, and adds the headers that keep a browser strict.

    `scope["state"]["connection"]` is the request's `Connection` (`access/connections.py`).
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
        connection = scope["state"]["connection"]
        if self._access.holder(token_of(scope)) is not None:
            connection.shares.know(connection.address)
        elif connection.shares.allows(connection.address, REQUEST):
            send = _counted(send, lambda work: connection.shares.use(connection.address, work))
        else:
            connection.disconnect("too_many_requests")
            return
        reason = self._refusal(scope)
        if reason is None:
            await self._app(scope, receive, _with_headers(scope, send))
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
        else:
            body = f'{{"error": "{reason}"}}'.encode()
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
            ]
            send = _with_headers(scope, send)
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


def token_of(scope: Scope) -> str | None:
    """Return the token that a request or a web socket shows; None for none."""
    if scope["type"] == "websocket":
        shown = parse_qs(scope["query_string"].decode("latin-1")).get("token")
        return shown[-1] if shown else None
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, token = (values[0] if values else b"").decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _counted(send: Send, use: Callable[[float], None]) -> Send:
    """Return `send` that counts the bytes of answers and messages as work."""

    async def counted(message: MutableMapping[str, Any]) -> None:
        content = message.get("body") or message.get("text") or message.get("bytes") or b""
        use(len(content) * BYTES)
        await send(message)

    return counted


def _with_headers(scope: Scope, send: Send) -> Send:
    headers = HEADERS
    if scope["path"].startswith("/api/"):
        # A browser would keep sentences in its cache, where deleting does not reach.
        headers = HEADERS | {"Cache-Control": "no-store"}
    extra = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def wrapped(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *extra]
        await send(message)

    return wrapped
