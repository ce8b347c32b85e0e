"""Attacks on `cortext serve --tls`: bytes over real sockets to a real process, guests with tokens.

The bounds of `test_web_server.py` must hold from the accept on, also while hands are shaken.
"""

from __future__ import annotations

import json
import re
import resource
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from certificates import make_certificate
from commands import Command
from page_process import DAYS, N_FEATURES, prepare
from serving import HTTP, Page
from untrained import untrained_run
from websockets.sync.client import connect

TOKEN = "the-token-of-the-attacked"
OURS = {"Authorization": f"Bearer {TOKEN}"}
DESCRIPTORS = 128
HEAD_S = 10.0
UNTRUSTING = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
UNTRUSTING.check_hostname = False
UNTRUSTING.verify_mode = ssl.CERT_NONE


def client_hello() -> bytes:
    """The first message of a handshake, as a browser sends it."""
    to_server = ssl.MemoryBIO()
    client = UNTRUSTING.wrap_bio(ssl.MemoryBIO(), to_server)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return to_server.read()


@dataclass
class Server:
    """A `cortext serve --tls` under way that other machines could reach."""

    command: Command
    port: int
    log: Path
    began_s: float = field(default_factory=time.monotonic)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def url(self, path: str) -> str:
        return f"https://127.0.0.1:{self.port}{path}"

    def get(self, path: str) -> httpx.Response:
        return HTTP.get(self.url(path), headers=OURS)

    def post(self, action: str, body: Any, token: str = TOKEN) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"}
        return HTTP.post(self.url(f"/api/{action}"), json=body, headers=headers)

    @contextmanager
    def page(self, token: str = TOKEN) -> Iterator[Page]:
        url = f"wss://127.0.0.1:{self.port}/ws?token={token}"
        with connect(url, ssl=UNTRUSTING, max_size=None) as web_socket:
            yield Page(web_socket)

    def resident_mb(self) -> float:
        status = Path(f"/proc/{self.command.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def check_whole(self, most_lines: int = 60) -> None:
        """Check what holds after any attack: it runs, it answers, it has written little."""
        assert self.command.running()
        assert self.get("/").status_code == 200
        assert self.get("/api/state").json()["state"] == "idle"
        written = self.command.stderr + self.log.read_text()
        assert "Traceback" not in written, written[-3000:]
        most_lines += round(6 * (time.monotonic() - self.began_s))
        assert len(written.splitlines()) <= most_lines, written[-3000:]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with few file descriptors that listens on all addresses, encrypted."""
    root = tmp_path_factory.mktemp("tls")
    prepare(root)
    untrained_run(root / "run", DAYS, N_FEATURES)
    names = f"IP:127.0.0.1,DNS:{socket.gethostname()}"
    cert, key = make_certificate(root / "tls", names)
    options: list[Any] = ["--lm", root / "lm", "--data", root / "data", "--tls", cert, key]
    options += ["--host", "0.0.0.0", "--port", "0", "--token", TOKEN, "--log", root / "log"]
    command = Command("serve", root / "run", *options)
    try:
        deadline_s = time.monotonic() + 60
        while not (found := re.search(r"^https://[^/]*:(\d+)/#token=", command.stdout, re.M)):
            assert command.running(), command.stderr
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        assert "nothing is encrypted" not in command.stderr
        assert "warning" not in command.stderr  # the certificate is right for this name
        server = Server(command, int(found[1]), root / "log")
        pid = command.process.pid
        assert pid is not None
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        server.check_whole()
        yield server
        assert command.interrupt().status == 0
    finally:
        command.kill()


@dataclass(frozen=True)
class Crowd:
    """Many connections of strangers.

    sends:   by each of them at the beginning, unencrypted
    shakes:  whether each has shaken hands before, and sends encrypted
    reset:   they are reset at once
    """

    name: str
    sends: bytes = b""
    shakes: bool = False
    n: int = 300
    reset: bool = False


HELLO = client_hello()
CROWDS = (
    Crowd("silent"),
    Crowd("half a handshake", HELLO[:100]),
    Crowd("a handshake that is begun and left", HELLO),
    Crowd("handshakes that are reset", HELLO, n=500, reset=True),
    Crowd("plain HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    Crowd("plain HTTP of 1 MiB", b"GET /" + b"x" * 2**20, n=100),
    Crowd("no TLS", b"\x00" * 1000),
    Crowd("a record of an unknown type", b"\xff\x03\x03\x40\x00" + b"x" * 2**14),
    Crowd("a record that is too long", b"\x16\x03\x01\xff\xff" + b"x" * 2**16, n=100),
    Crowd("a handshake message of 16 MiB", b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + b"\0" * (2**14 - 4), n=100),
    Crowd("alerts without end", b"\x15\x03\x03\x00\x02\x01\x00" * 1000, n=100),
    Crowd("SSL 2", b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + b"x" * 37),
    Crowd("2,000 silent connections", n=2000),
    Crowd("hands shaken, then silent", shakes=True, n=100),
    Crowd("hands shaken, then half a head", b"GET / HTTP/1.1\r\nX-Half: ", shakes=True, n=100),
)  # fmt: skip


def attack(server: Server, crowd: Crowd, stack: ExitStack) -> list[socket.socket]:
    """Open the connections; those that are refused or ended are left out."""
    sockets = []
    for _ in range(crowd.n):
        with suppress(OSError):
            connection = stack.enter_context(server.connect())
            if crowd.shakes:
                connection.settimeout(10)
                connection = stack.enter_context(UNTRUSTING.wrap_socket(connection))
            connection.setblocking(False)
            connection.send(crowd.sends)
            sockets.append(connection)
            if crowd.reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
    return sockets


@pytest.mark.slow
@pytest.mark.parametrize("crowd", CROWDS, ids=lambda crowd: crowd.name)
def test_a_crowd_that_shakes_hands_badly_or_never_keeps_nobody_out(
    server: Server, crowd: Crowd
) -> None:
    before_mb = server.resident_mb()
    with server.page() as page, ExitStack() as stack:
        page.next("stats")
        attack(server, crowd, stack)
        assert server.get("/observer/app.js").status_code == 200
        with server.page() as another:
            assert another.read()["rights"] == "control"
        assert page.socket.ping().wait(10)
        n_open = len(list(Path(f"/proc/{server.command.process.pid}/fd").iterdir()))
        assert n_open < DESCRIPTORS - 20
        # asyncio takes half a MiB for each connection, of which 64 may be strangers'
        assert server.resident_mb() - before_mb < 100
    server.check_whole()


@pytest.mark.slow
def test_handshakes_that_trickle_are_given_up_after_ten_seconds(server: Server) -> None:
    rows = {"silent": b"", "half": HELLO[:50], "begun": HELLO}
    began_s = time.monotonic()
    with ExitStack() as stack, server.page() as page:
        waiting = {}
        for name, sends in rows.items():
            waiting[name] = stack.enter_context(server.connect())
            waiting[name].sendall(sends)
            waiting[name].setblocking(False)
        while waiting and time.monotonic() - began_s < 2 * HEAD_S:
            for name, each in list(waiting.items()):
                try:
                    if name == "half":
                        each.send(HELLO[50:51])
                    if each.recv(65536) == b"":
                        del waiting[name]
                except BlockingIOError:
                    pass
                except OSError:
                    del waiting[name]
            time.sleep(0.5)
        assert not waiting
        assert time.monotonic() - began_s > HEAD_S - 1
        assert page.socket.ping().wait(10)  # a page that shows a token stays
    server.check_whole()


@pytest.mark.slow
def test_an_encrypted_client_that_sends_and_never_reads_takes_no_memory(server: Server) -> None:
    ping = struct.pack("!BBI", 0x89, 125 | 0x80, 0) + b"x" * 125
    handshake = (
        f"GET /ws?token={TOKEN} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with server.connect() as plain, UNTRUSTING.wrap_socket(plain) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(handshake.encode())
        assert connection.recv(12) == b"HTTP/1.1 101"
        before_mb, n_sent, until_s = server.resident_mb(), 0, time.monotonic() + 15
        connection.settimeout(0.5)
        with suppress(OSError):  # it is disconnected, or read no further
            while time.monotonic() < until_s and n_sent < 64 * 2**20:
                n_sent += connection.send(100 * ping)
        assert n_sent > 0
        assert server.resident_mb() - before_mb < 16
    server.check_whole()


@pytest.mark.slow
def test_a_guest_is_invited_watches_is_revoked_and_leaves_no_token_behind(server: Server) -> None:
    made = server.post("invite", {"rights": "rate", "name": "a name of somebody"}).json()
    address, _, token = made["url"].partition("/participant#token=")
    assert address == f"https://{socket.gethostname()}:{server.port}"
    with server.page(token) as page:
        assert page.read()["rights"] == "rate"
        assert server.post("stop", {}, token).status_code == 403
        assert server.post("invite", {"rights": "rate", "name": "x"}, token).status_code == 403
        assert server.post("revoke", {"id": made["id"]}).status_code == 200
    assert server.post("rating", {"utterance": 1, "rating": "right"}, token).status_code == 401
    written = server.command.stdout + server.command.stderr + server.log.read_text()
    assert token not in written
    assert "a name of somebody" not in written
    events = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert {"guest_invited", "guest_revoked"} <= {event["event"] for event in events}
    server.check_whole()
