"""The real server on a free port, in a thread, and clients of it."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from page_process import Hearing
from websockets.sync.client import ClientConnection, connect

from cortext.decoding import Decoder
from cortext_live.core.acoustic_stream import EndpointOptions, PipelineOptions
from cortext_live.core.gate import IdleGate
from cortext_live.page.access.rules import Access
from cortext_live.page.day_pipeline import DayPipeline
from cortext_live.page.decoding_thread import DecodingThread
from cortext_live.page.server import listen, make_server
from cortext_live.page.sources import Replay

TOKEN = "the-token-of-the-tests"
DEADLINE_S = 15.0
# One client for all requests: httpx.get() makes one for each, and a client reads the system's
# certificates, which takes 30 ms. Each request still opens a connection of its own.
HTTP = httpx.Client(
    verify=False, trust_env=False, timeout=5, limits=httpx.Limits(max_keepalive_connections=0)
)


@dataclass
class Page:
    """A page that reads what it is sent."""

    socket: ClientConnection

    def read(self) -> dict[str, Any]:
        return json.loads(self.socket.recv(timeout=DEADLINE_S))

    def until(self, kind: str, **facts: Any) -> list[dict[str, Any]]:
        """All messages up to the first of the kind with these facts, that one last."""
        read, deadline_s = [], time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            read.append(self.read())
            if read[-1]["type"] == kind and all(
                read[-1][name] == value for name, value in facts.items()
            ):
                return read
        raise AssertionError(f"no {kind} with {facts} within {DEADLINE_S} s; the last: {read[-1]}")

    def next(self, kind: str, **facts: Any) -> dict[str, Any]:
        return self.until(kind, **facts)[-1]


@dataclass
class Served:
    """A server, and ways to talk to it."""

    session: DecodingThread
    port: int

    @contextmanager
    def page(self, token: str | None = TOKEN, **options: Any) -> Iterator[Page]:
        query = "" if token is None else f"?token={token}"
        with connect(f"ws://127.0.0.1:{self.port}/ws{query}", max_size=None, **options) as socket:
            yield Page(socket)

    @contextmanager
    def feed(self, token: str = TOKEN) -> Iterator[ClientConnection]:
        with connect(f"ws://127.0.0.1:{self.port}/feed?token={token}", max_size=None) as socket:
            yield socket

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def post(
        self, action: str, body: Any = None, headers: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        headers = {"Authorization": f"Bearer {TOKEN}"} if headers is None else headers
        more = {"json": {} if body is None else body, "headers": headers, "timeout": 20, **more}
        return HTTP.post(self.url(f"/api/{action}"), **more)

    def state(self) -> dict[str, Any]:
        return HTTP.get(self.url("/api/state"), headers={"Authorization": f"Bearer {TOKEN}"}).json()


@contextmanager
def serving(
    session: DecodingThread,
    send_buffer: int | None = None,
    tls: ssl.SSLContext | None = None,
    **access: Any,
) -> Iterator[Served]:
    """Serve on a free port.

    Args:
        session: The thread that decodes.
        send_buffer: Bytes that the system keeps for a client that does not read; None: as many as
            it likes, which are megabytes.
        tls: Certificate; None to encrypt nothing.
        access: More settings of `Access`.
    """
    listener = listen("127.0.0.1", 0)
    if send_buffer is not None:  # connections take it over from the socket that listens
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    rules = Access(TOKEN, "127.0.0.1", **access)
    server = make_server(session, rules, tls)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield Served(session, listener.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def make_session(
    root: Path,
    feed: bool = False,
    silence_ms: float | None = None,
    patch_size: int = 14,
    gate: IdleGate | None = None,
    **options: Any,
) -> DecodingThread:
    """A session with the model that hears what the recordings spell, as fast as can be."""
    endpoint = None if silence_ms is None else EndpointOptions(silence_ms)
    days = DayPipeline(
        Hearing("latest", patch_size),
        Decoder.from_dir(root / "lm"),
        PipelineOptions(endpoint=endpoint),
        gate=gate,
    )
    source = None if feed else Replay(root / "data", loop=options.pop("loop", False))
    return DecodingThread(days, source, **{"speed": float("inf")} | options)


def wait_until(true: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline_s, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.01)
