"""The web server: the page, web sockets to watch and to feed, requests to control.

The page loads nothing from other servers. This module needs the extra `live`; callers check it
(`cortext.extras.need`).
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import uvicorn
from fastapi import FastAPI, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import Response
from starlette.requests import HTTPConnection
from websockets.protocol import State

from cortext.errors import DataError, LiveError, shown
from cortext.live.core.log import event, internal_error, repeated_event
from cortext.live.page.access.connections import Listener
from cortext.live.page.access.rules import (
    MAX_GUEST_READERS,
    MAX_MESSAGE,
    MAX_READERS,
    MAX_STRANGE_READERS,
    Access,
    Guard,
)
from cortext.live.page.access.tokens import MAY, Holder, Right
from cortext.live.page.decoding_thread import DecodingThread
from cortext.live.page.drift import DriftReports
from cortext.live.page.messages import Reader
from cortext.live.page.requests import (
    NEEDS,
    Handler,
    Refused,
    answer,
    conversation_file,
    conversation_page,
    error_response,
    guest_handlers,
    guest_list,
    handlers,
    read_body,
)
from cortext.live.page.speech import speak

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
POLICY_VIOLATION = 1008
TRY_AGAIN = 1013
PATIENCE_S = 30.0
"""Seconds that one message may wait for a client that does not read."""


def build_app(decoding: DecodingThread, access: Access) -> Guard:
    """Return the application: pages, `/ws`, `/feed`, `/api/...`, behind the rules of `access`."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    actions = handlers(decoding) | guest_handlers(access)
    drift = DriftReports(decoding.log_writer.folder if decoding.log_writer else None)
    # Read once: a request takes no file descriptor, and no spelling of a path leads anywhere else.
    pages = {
        file.relative_to(WEB).as_posix(): (file.read_bytes(), TYPES[file.suffix])
        for file in WEB.rglob("*")
        if file.suffix in TYPES
    }
    pages |= {address: pages[name] for address, name in VIEWS.items()}

    @app.get("/api/state")
    async def state(request: Request) -> Response:
        return await answer(_state(request, decoding, access))

    @app.get("/api/drift")
    async def drift_report(request: Request) -> Response:
        return await answer(_drift(request, drift, access))

    @app.get("/api/guests")
    async def guests(request: Request) -> Response:
        return await answer(_guests(request, access))

    @app.post("/api/speak")
    async def sound(request: Request) -> Response:
        return await speak(decoding.speech, _asked("speak", request, access))

    @app.get("/api/conversation")
    async def conversation(request: Request) -> Response:
        return await answer(_conversation(request, decoding, access))

    @app.get("/api/export")
    async def exported(request: Request) -> Response:
        return await answer(_export(request, decoding, access))

    @app.post("/api/{action}")
    async def change(action: str, request: Request) -> Response:
        return await answer(_change(action, request, access, actions))

    @app.websocket("/ws")
    async def page_socket(ws: WebSocket) -> None:
        await _serve_page(ws, decoding, access)

    @app.websocket("/feed")
    async def feed_socket(ws: WebSocket) -> None:
        await _serve_feed(ws, decoding, access)

    @app.get("/{name:path}")
    async def page(name: str) -> Response:
        if name not in pages:
            return error_response(404, "no such page")
        content, media_type = pages[name]
        return Response(content, media_type=media_type)

    return Guard(app, access)


def _holder(client: HTTPConnection, token: str | None, access: Access) -> Holder | None:
    """Return who has the token, and trust the connection if somebody has.

    Raises Refused where one guest asks for too much at a time.
    """
    holder = access.holder(token)
    if holder is not None:
        if len(holder.connections) >= holder.most_requests:
            raise Refused(429, "too many requests with this token at a time")
        client.state.connection.trust(holder.connections)
    return holder


def _check_token(request: Request, access: Access, needed: Right = "control") -> Holder:
    """Return who has the token. Raises Refused unless it allows what needs this right."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    holder = _holder(request, token.strip() if scheme.lower() == "bearer" else None, access)
    if holder is None:
        raise Refused(401, "the token is missing or wrong")
    if not holder.may(needed):
        raise Refused(403, f"this token may only {MAY[holder.rights]}")
    return holder


# Requests


async def _state(request: Request, decoding: DecodingThread, access: Access) -> dict[str, Any]:
    _check_token(request, access, NEEDS["state"])
    return await asyncio.wrap_future(decoding.state())


async def _drift(request: Request, drift: DriftReports, access: Access) -> dict[str, Any]:
    _check_token(request, access, NEEDS["drift"])
    return await drift.report()


async def _guests(request: Request, access: Access) -> dict[str, Any]:
    _check_token(request, access, NEEDS["guests"])
    return guest_list(access)


async def _conversation(
    request: Request, decoding: DecodingThread, access: Access
) -> dict[str, Any]:
    _check_rate(_check_token(request, access, NEEDS["conversation"]))
    return await conversation_page(decoding, request)


async def _export(request: Request, decoding: DecodingThread, access: Access) -> Response:
    _check_rate(_check_token(request, access, NEEDS["export"]))
    return await conversation_file(decoding, request)


def _check_rate(holder: Holder) -> None:
    if not holder.allows_another_change():
        raise Refused(429, "too many requests; wait a second")


async def _change(
    action: str, request: Request, access: Access, actions: dict[str, Handler]
) -> dict[str, Any]:
    known = action in actions
    holder = _check_token(request, access, NEEDS[action] if known else "read")
    if not known:
        raise Refused(404, "no such request")
    if not holder.allows_another_change():
        raise Refused(429, "too many requests; wait a second")
    return {"ok": True, **await actions[action](await read_body(request))}


async def _asked(action: str, request: Request, access: Access) -> dict[str, Any]:
    """Return the body of a request, where its sender may ask for that."""
    if not _check_token(request, access, NEEDS[action]).allows_another_change():
        raise Refused(429, "too many requests; wait a second")
    return await read_body(request)


# The web socket of a page


async def _serve_page(ws: WebSocket, decoding: DecodingThread, access: Access) -> None:
    try:
        holder = _holder(ws, ws.query_params.get("token"), access)
    except Refused:
        await ws.close(TRY_AGAIN)
        return
    if holder is None:
        if not access.open_view:
            await ws.close(POLICY_VIOLATION)
            return
        holder = Holder("", "read")  # a stranger, who may watch
        most = MAX_STRANGE_READERS
        ws.state.connection.trust(holder.connections)
    else:
        most = MAX_READERS if holder.may("control") else MAX_GUEST_READERS
    reader = Reader(asyncio.get_running_loop())
    most_of_holder = holder.pages >= holder.most_pages
    if most_of_holder or not decoding.readers.admit(reader, most):
        n_open = holder.pages if most_of_holder else most
        await ws.accept()
        await ws.close(TRY_AGAIN, f"{n_open} pages are open already")
        return
    tasks: list[asyncio.Task[Any]] = []
    withdrawn = asyncio.Event()
    ws.state.connection.when_withdrawn(withdrawn.set)
    holder.pages += 1
    try:
        await ws.accept()
        await asyncio.wrap_future(decoding.subscribe(reader, holder.rights, not holder.token))
        event("page_connected", pages=len(decoding.readers))
        jobs = (_send(ws, reader), _until_it_leaves(ws), withdrawn.wait())
        tasks += [asyncio.create_task(job) for job in jobs]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if withdrawn.is_set():
            decoding.readers.remove(reader)
            tasks[0].cancel()
            await _close_withdrawn(ws, tasks[1])
    finally:
        holder.pages -= 1
        decoding.readers.remove(reader)
        for task in tasks:
            task.cancel()
        event("page_disconnected", pages=len(decoding.readers))


async def _until_it_leaves(ws: WebSocket) -> None:
    while (await ws.receive())["type"] != "websocket.disconnect":
        pass  # a page has nothing to say here


async def _close_withdrawn(ws: WebSocket, leaving: asyncio.Task[None]) -> None:
    """Tell a page that its access was withdrawn; its connection soon ends, if it does not read."""
    with suppress(WebSocketDisconnect, RuntimeError):  # it has left
        await ws.close(POLICY_VIOLATION, "access was withdrawn")
        await leaving


async def _send(ws: WebSocket, reader: Reader) -> None:
    """Send the reader's messages until the page leaves or is given up."""
    with suppress(WebSocketDisconnect, RuntimeError):  # it has left
        try:
            while True:
                text = await reader.get()
                async with asyncio.timeout(PATIENCE_S):
                    await ws.send_text(text)
        except TimeoutError:
            repeated_event("page_too_slow")
        except LiveError as error:
            repeated_event("page_too_slow")
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await ws.close(TRY_AGAIN, str(error))


# The web socket of a feed


async def _serve_feed(ws: WebSocket, decoding: DecodingThread, access: Access) -> None:
    try:
        holder = _holder(ws, ws.query_params.get("token"), access)
    except Refused:
        holder = None  # a guest's, which may not feed
    if holder is None or not holder.may("control"):
        await ws.close(POLICY_VIOLATION)
        return
    await ws.accept()
    try:
        _check_bins_of_feed(ws.query_params.get("bin_ms"), decoding.bin_ms)
        await asyncio.wrap_future(decoding.open_feed(ws))
    except (LiveError, DataError) as error:
        repeated_event("feed_refused")
        may_come_again = decoding.is_feed and isinstance(error, LiveError)
        await ws.close(TRY_AGAIN if may_come_again else POLICY_VIOLATION, str(error))
        return
    event("feed_connected")
    why: str | None = "the feed was disconnected in mid-utterance"
    try:
        while (message := await ws.receive())["type"] != "websocket.disconnect":
            ws.state.connection.received_whole()
            await _take_in(ws, decoding, message)
        if message.get("code") == 1009:
            why = f"the feed sent a message of more than {MAX_MESSAGE} bytes and was disconnected"
    except TimeoutError:
        why = "the feed did not read its answers and was disconnected"
    except (WebSocketDisconnect, RuntimeError):
        pass
    finally:
        event("feed_disconnected")
        decoding.close_feed(ws, why)  # not awaited: it is to happen even if this task is cancelled


def _check_bins_of_feed(stated: str | None, bin_ms: float) -> None:
    """Raise DataError for a feed that states bins of another length than the model's."""
    try:
        same = stated is None or float(stated) == bin_ms
    except ValueError:
        same = False
    if not same:
        found = f"bin_ms is {shown(stated, 20)}; the model reads bins of {bin_ms:g} ms"
        raise DataError(found, fix="join bins before they are sent")


async def _take_in(ws: WebSocket, decoding: DecodingThread, message: Any) -> None:
    """Take one message of a feed: bins, or the end of its utterance; answer errors."""
    try:
        content = message.get("bytes")
        if content is not None:
            await asyncio.wrap_future(decoding.feed(_bins(content, decoding.n_features)))
        elif _is_end(message.get("text")):
            await asyncio.wrap_future(decoding.end_fed_utterance())
        else:
            raise DataError('a text message of the feed is not {"end": true}')
    except DataError as error:
        repeated_event(
            "feed_message_refused", n_bytes=len(message.get("bytes") or message.get("text") or "")
        )
        await asyncio.wrap_future(decoding.refuse_fed(str(error)))
        async with asyncio.timeout(PATIENCE_S):
            await ws.send_json({"type": "error", "what": str(error)})


def _bins(content: bytes, n_features: int) -> np.ndarray:
    """Return the bins [T, C] of a message: float32, little-endian."""
    if len(content) % (4 * n_features):
        found = f"a message of {len(content)} bytes; a multiple of {4 * n_features} is needed"
        raise DataError(f"{found} ({n_features} float32 a bin)")
    return np.frombuffer(content, dtype="<f4").astype(np.float32).reshape(-1, n_features)


def _is_end(text: str | None) -> bool:
    try:
        return bool(json.loads(text or "") == {"end": True})
    except (ValueError, RecursionError):
        return False


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
        # A page that is just leaving has said so: uvicorn would say it again, which is an error.
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
