"""The web server: its addresses, its socket, and its process.

The page loads nothing from other servers. This module needs the extra `live`; callers check it
(`cortext.extras.need`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import uvicorn
from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import Response
from websockets.protocol import State

from cortext.errors import LiveError
from cortext_live.core.log import internal_error, repeated_event
from cortext_live.page.access.connections import Listener
from cortext_live.page.access.rules import MAX_MESSAGE, Access, Guard
from cortext_live.page.decoding_thread import DecodingThread
from cortext_live.page.drift import DriftReports
from cortext_live.page.requests import (
    COUNTED,
    NEEDS,
    Refused,
    answer,
    check_rate,
    check_token,
    conversation_file,
    conversation_page,
    error_response,
    guest_handlers,
    guest_list,
    handlers,
    read_body,
)
from cortext_live.page.speech import sound_of
from cortext_live.page.web_sockets import serve_feed, serve_page

WEB = Path(__file__).parent / "web"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
"""Media types of the files that are served: these of the page's folders, and no others."""
VIEWS = {"": "index.html", "participant": "participant.html"}
"""Files of the views by their addresses."""


def build_app(decoding: DecodingThread, access: Access) -> Guard:
    """Return the application: pages, `/ws`, `/feed`, `/api/...`, behind the rules of `access`."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    # Read once: a request takes no file descriptor, and no spelling of a path leads anywhere else.
    pages = {
        file.relative_to(WEB).as_posix(): (file.read_bytes(), TYPES[file.suffix])
        for file in WEB.rglob("*")
        if file.suffix in TYPES
    }
    pages |= {address: pages[name] for address, name in VIEWS.items()}
    _add_requests(app, decoding, access)

    @app.websocket("/ws")
    async def page_socket(ws: WebSocket) -> None:
        await serve_page(ws, decoding, access)

    @app.websocket("/feed")
    async def feed_socket(ws: WebSocket) -> None:
        await serve_feed(ws, decoding, access)

    @app.get("/{name:path}")
    async def page(name: str) -> Response:
        if name not in pages:
            return error_response(404, "no such page")
        content, media_type = pages[name]
        return Response(content, media_type=media_type)

    return Guard(app, access)


def _add_requests(app: FastAPI, decoding: DecodingThread, access: Access) -> None:
    """Add what GET and POST do under /api/."""
    changes = handlers(decoding) | guest_handlers(access)
    log = decoding.log_writer.folder if decoding.log_writer else None
    drift = DriftReports(log, decoding.run, decoding.chain)

    async def guests(_: Request) -> dict[str, Any]:
        return guest_list(access)

    readings: dict[str, Callable[[Request], Awaitable[dict[str, Any] | Response]]] = {
        "state": lambda _: asyncio.wrap_future(decoding.state()),
        "drift": lambda _: drift.report(),
        "guests": guests,
        "conversation": lambda request: conversation_page(decoding, request),
        "export": lambda request: conversation_file(decoding, request),
    }

    async def read(action: str, request: Request) -> dict[str, Any] | Response:
        holder = check_token(request, access, NEEDS[action])
        if action in COUNTED or holder.id:  # of guests all are
            check_rate(holder)
        return await readings[action](request)

    async def speak(request: Request) -> Response:
        holder = check_token(request, access, NEEDS["speak"])
        check_rate(holder)
        return sound_of(decoding.speech, await read_body(request), holder)

    async def change(action: str, request: Request) -> dict[str, Any]:
        known = action in changes
        holder = check_token(request, access, NEEDS[action] if known else "read")
        if not known:
            raise Refused(404, "no such request")
        check_rate(holder)
        return {"ok": True, **await changes[action](await read_body(request))}

    @app.get("/api/{action}")
    async def get(action: str, request: Request) -> Response:
        if action not in readings:
            return error_response(404, "no such page")
        return await answer(read(action, request))

    @app.post("/api/{action}")
    async def post(action: str, request: Request) -> Response:
        return await answer(speak(request) if action == "speak" else change(action, request))


# The process


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes a free one. Raises LiveError where that fails."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # UnicodeError: no name of a host is written so
        reason = error.strerror if isinstance(error, OSError) else "not the name of a host"
        raise LiveError(f"cannot listen on {host!r}: {reason}", fix="give another --host") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise LiveError(
            f"cannot listen on {host} port {port}: {error.strerror}",
            fix="give another --port or --host",
        ) from None
    return listener


class _Server(uvicorn.Server):
    """uvicorn's server with bounded connections; it ends the utterance before it closes them."""

    def __init__(
        self, config: uvicorn.Config, decoding: DecodingThread, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(config)
        self._decoding = decoding
        self._tls = tls

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_log_failure)
        await super().startup(sockets=[])
        self.servers += [
            cast(Any, Listener(listener, self._protocol, self._tls)) for listener in sockets or []
        ]

    def _protocol(self, state: dict[str, Any]) -> asyncio.Protocol:
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.to_thread(self._decoding.close)
        # A page that is just leaving has closed: uvicorn would close again, which is an error.
        for connection in list(self.server_state.connections):
            if getattr(getattr(connection, "conn", None), "state", None) is State.CLOSING:
                cast(Any, connection).transport.abort()
                self.server_state.connections.discard(connection)
        await super().shutdown(sockets)
        self._captured_signals.clear()  # else they would be raised again: to end so is no error


def _log_failure(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the event loop; asyncio itself would write a traceback, however often."""
    error = context.get("exception")
    known = internal_error(error) if isinstance(error, Exception) else context["message"]
    repeated_event("connection_failed", "error", error=known)


def make_server(
    decoding: DecodingThread, access: Access, tls: ssl.SSLContext | None = None
) -> uvicorn.Server:
    """Return a server to run with a socket that listens; `tls` encrypts its connections.

    SIGINT and SIGTERM end the utterance, then all connections.
    """
    config = uvicorn.Config(
        build_app(decoding, access),
        log_config=None,
        # it would log addresses with tokens in them; what matters is logged here
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # what a client says about its address decides nothing
        loop="asyncio",
        http="h11",
        ws_max_size=MAX_MESSAGE,
        ws_max_queue=1,
        ws_per_message_deflate=False,
        ws_ping_interval=20,
        ws_ping_timeout=20,
        timeout_graceful_shutdown=1,
        lifespan="off",
    )
    config.load()  # imports its protocols
    return _Server(config, decoding, tls)


def run_server(
    decoding: DecodingThread,
    access: Access,
    listener: socket.socket,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        decoding: Thread that decodes.
        access: Token and bounds.
        listener: Socket that listens; it is closed at the end.
        tls: Certificate and rules of encryption; None to encrypt nothing.
    """
    with listener:
        make_server(decoding, access, tls).run(sockets=[listener])
