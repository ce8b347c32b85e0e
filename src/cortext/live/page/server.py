"""The web server: the page, web sockets to watch and to feed, requests to control.

The page loads nothing from other servers. This module needs the extra `live`; callers check it
(`cortext.extras.need`).
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import uvicorn
from fastapi import FastAPI, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect, HTTPConnection

from cortext.errors import CortextError, DataError, LiveError
from cortext.live.core.log import event, internal_error, repeated_event
from cortext.live.page.access import (
    MAX_BODY,
    MAX_MESSAGE,
    MAX_READERS,
    MAX_STRANGE_READERS,
    Access,
    Guard,
)
from cortext.live.page.connections import Listener
from cortext.live.page.decoding_thread import DecodingThread
from cortext.live.page.log_writer import LogWriter
from cortext.live.page.messages import Reader
from cortext.usage.log import RATINGS

WEB = Path(__file__).parent / "web"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
"""What is served of the page's folder: nothing else, and nothing from elsewhere."""
POLICY_VIOLATION, TRY_AGAIN = 1008, 1013
PATIENCE_S = 30.0
"""How long one message may wait for a client that does not read."""
BODY_S = 10.0
"""How long the body of a request may take."""
Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class Refused(Exception):
    """A request that is answered with an error of this status."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(what)
        self.status = status


def build_app(decoding: DecodingThread, access: Access) -> Guard:
    """Return the application: pages, `/ws`, `/feed`, `/api/...`, behind the rules of `access`."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    actions = _actions(decoding)
    # Read once: a request takes no file descriptor, and no spelling of a path leads anywhere else.
    pages = {
        file.name: (file.read_bytes(), TYPES[file.suffix])
        for file in WEB.iterdir()
        if file.suffix in TYPES
    }

    @app.get("/api/state")
    async def state(request: Request) -> Response:
        return await _answer(_state(request, decoding, access))

    @app.post("/api/{action}")
    async def change(action: str, request: Request) -> Response:
        return await _answer(_change(action, request, access, actions))

    @app.websocket("/ws")
    async def page_socket(ws: WebSocket) -> None:
        await _serve_page(ws, decoding, access)

    @app.websocket("/feed")
    async def feed_socket(ws: WebSocket) -> None:
        await _serve_feed(ws, decoding, access)

    @app.get("/{name:path}")
    async def page(name: str) -> Response:
        if (name or "index.html") not in pages:
            return _error(404, "no such page")
        content, media_type = pages[name or "index.html"]
        return Response(content, media_type=media_type)

    return Guard(app, access)


async def _answer(result: Awaitable[dict[str, Any]]) -> Response:
    """Return the result of a request, or one line about its error."""
    try:
        return JSONResponse(await result)
    except Refused as refused:
        return _error(refused.status, str(refused))
    except LiveError as error:
        return _error(409, str(error))
    except CortextError as error:
        return _error(400, str(error))
    except Exception as error:
        repeated_event("request_failed", "error", error=internal_error(error))
        return _error(500, internal_error(error))


def _error(status: int, what: str) -> JSONResponse:
    return JSONResponse({"error": what}, status)


def _shows_token(client: HTTPConnection, token: str | None, access: Access) -> bool:
    """Return whether the token is right, and trust the connection if so."""
    right = access.knows(token)
    if right:
        client.state.connection.trust()
    return right


def _check_token(request: Request, access: Access) -> None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if not _shows_token(request, token.strip() if scheme.lower() == "bearer" else None, access):
        raise Refused(401, "the token is missing or wrong")


# Requests


async def _state(request: Request, decoding: DecodingThread, access: Access) -> dict[str, Any]:
    _check_token(request, access)
    return await asyncio.wrap_future(decoding.state())


async def _change(
    action: str, request: Request, access: Access, actions: dict[str, Handler]
) -> dict[str, Any]:
    _check_token(request, access)
    if action not in actions:
        raise Refused(404, "no such request")
    if not access.allows_another_change():
        raise Refused(429, "too many requests; wait a second")
    return {"ok": True, **await actions[action](await _body(request))}


async def _body(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request; an empty body is an empty object."""
    content = b""
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                content += chunk
                if len(content) > MAX_BODY:
                    raise Refused(413, f"the request has more than {MAX_BODY} bytes")
        body = json.loads(content or b"{}", parse_constant=_no_constant)
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Refused(
            400, "the request holds half of a surrogate pair, which is no character"
        ) from None
    except (ValueError, RecursionError):
        raise Refused(400, "the request is no JSON") from None
    except TimeoutError:
        raise Refused(408, f"the request takes longer than {BODY_S:g} s") from None
    except ClientDisconnect:
        raise Refused(400, "the request was broken off") from None
    if not isinstance(body, dict):
        raise Refused(400, "the request is no JSON object")
    return body


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _actions(decoding: DecodingThread) -> dict[str, Handler]:
    """Return the handler of each request by its name."""

    def handle(ask: Callable[[dict[str, Any]], Future[Any]]) -> Handler:
        async def handler(body: dict[str, Any]) -> dict[str, Any]:
            result = await asyncio.wrap_future(ask(body))
            return {"kept": result} if isinstance(result, bool) else {}

        return handler

    def start(body: dict[str, Any]) -> Future[None]:
        _check_fields(body, trial=int, session=str)
        return decoding.start(body.get("trial"), body.get("session"))

    def stop(body: dict[str, Any]) -> Future[None]:
        _check_fields(body)
        return decoding.stop()

    def day(body: dict[str, Any]) -> Future[None]:
        _check_fields(body, session=str)
        return decoding.choose_day(body.get("session"))

    def context(body: dict[str, Any]) -> Future[None]:
        _check_fields(body, text=str)
        return decoding.set_context(body.get("text") or "")

    def correction(body: dict[str, Any]) -> Future[bool]:
        _check_fields(body, utterance=int, text=str)
        return _log_writer(decoding).correct(_required(body, "utterance"), _required(body, "text"))

    def rating(body: dict[str, Any]) -> Future[bool]:
        _check_fields(body, utterance=int, rating=str)
        log_writer, given = _log_writer(decoding), _required(body, "rating")
        if given not in RATINGS:
            raise Refused(400, f"unknown rating {given[:40]!r}; known: {', '.join(RATINGS)}")
        return log_writer.rate(_required(body, "utterance"), given)

    asks: dict[str, Callable[[dict[str, Any]], Future[Any]]] = {
        "start": start,
        "stop": stop,
        "options": decoding.set_options,
        "hotwords": decoding.change_hotwords,
        "context": context,
        "day": day,
        "correction": correction,
        "rating": rating,
    }
    return {action: handle(ask) for action, ask in asks.items()}


def _log_writer(decoding: DecodingThread) -> LogWriter:
    if decoding.log_writer is None:
        raise LiveError("nothing is kept", fix="start the server with --session-log DIR")
    return decoding.log_writer


def _check_fields(body: dict[str, Any], **fields: type) -> None:
    """Refuse fields that are unknown or of another type; null stands for an absent field."""
    # By hand: pydantic's errors, put into these one-line messages, take more code than the checks.
    for name, value in body.items():
        if name not in fields:
            raise Refused(400, f"unknown field {name[:40]!r}; known: {', '.join(fields) or 'none'}")
        if value is not None and (not isinstance(value, fields[name]) or isinstance(value, bool)):
            raise Refused(
                400, f"{name} must be {'a number' if fields[name] is int else 'a string'}"
            )


def _required(body: dict[str, Any], name: str) -> Any:
    if body.get(name) is None:
        raise Refused(400, f"{name} is missing")
    return body[name]


# The web socket of a page


async def _serve_page(ws: WebSocket, decoding: DecodingThread, access: Access) -> None:
    can_control = _shows_token(ws, ws.query_params.get("token"), access)
    if not can_control and not access.open_view:
        await ws.close(POLICY_VIOLATION)
        return
    reader = Reader(asyncio.get_running_loop())
    most = MAX_READERS if can_control else MAX_STRANGE_READERS
    if not decoding.readers.admit(reader, most):
        await ws.accept()
        await ws.close(TRY_AGAIN, f"{most} pages are watching already")
        return
    tasks: list[asyncio.Task[None]] = []
    try:
        ws.state.connection.trust()
        await ws.accept()
        await asyncio.wrap_future(decoding.subscribe(reader, can_control))
        event("page_connected", pages=len(decoding.readers))
        tasks += [asyncio.create_task(_send(ws, reader)), asyncio.create_task(_until_it_leaves(ws))]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        decoding.readers.remove(reader)
        for task in tasks:
            task.cancel()
        event("page_disconnected", pages=len(decoding.readers))


async def _until_it_leaves(ws: WebSocket) -> None:
    while (await ws.receive())["type"] != "websocket.disconnect":
        pass  # a page has nothing to say here


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
    if not _shows_token(ws, ws.query_params.get("token"), access):
        await ws.close(POLICY_VIOLATION)
        return
    await ws.accept()
    try:
        await asyncio.wrap_future(decoding.open_feed(ws))
    except LiveError as error:
        repeated_event("feed_refused")
        await ws.close(TRY_AGAIN if decoding.is_feed else POLICY_VIOLATION, str(error))
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
        why = "the feed did not read what it was answered and was disconnected"
    except (WebSocketDisconnect, RuntimeError):
        pass
    finally:
        event("feed_disconnected")
        decoding.close_feed(ws, why)  # not awaited: it is to happen even if this task is cancelled


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

    def __init__(self, config: uvicorn.Config, decoding: DecodingThread) -> None:
        super().__init__(config)
        self._decoding = decoding

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_log_failure)
        await super().startup(sockets=[])
        self.servers += [
            cast(Any, Listener(listener, self._protocol)) for listener in sockets or []
        ]

    def _protocol(self, state: dict[str, Any]) -> asyncio.Protocol:
        make: Callable[..., asyncio.Protocol] = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=state)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.to_thread(self._decoding.close)
        await super().shutdown(sockets)
        self._captured_signals.clear()  # else they would be raised again: to end so is no error


def _log_failure(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the event loop; asyncio itself would write a traceback, however often."""
    error = context.get("exception")
    known = internal_error(error) if isinstance(error, Exception) else context["message"]
    repeated_event("connection_failed", "error", error=known)


def make_server(decoding: DecodingThread, access: Access) -> uvicorn.Server:
    """Return a server to run with a socket that listens.

    SIGINT and SIGTERM end the utterance, then all connections.
    """
    config = uvicorn.Config(
        build_app(decoding, access),
        log_config=None,
        # it would log addresses with tokens in them; what matters is logged here
        log_level="critical",
        access_log=False,
        server_header=False,
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
    return _Server(config, decoding)


def run_server(decoding: DecodingThread, access: Access, listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM."""
    with listener:
        make_server(decoding, access).run(sockets=[listener])
