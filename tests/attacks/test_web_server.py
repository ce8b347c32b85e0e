"""Attacks on `cortext serve`: bytes over real sockets to a real process.

A row: what is sent, what must happen.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from commands import Command
from page_process import DAYS, N_FEATURES, prepare
from serving import HTTP, Page
from untrained import untrained_run
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

TOKEN = "the-token-of-the-attacked"
OURS = {"Authorization": f"Bearer {TOKEN}"}
DESCRIPTORS = 128
TRIAL_BINS = 110
HEAD_S = 10.0
HALF_HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: "
WHOLE_HEAD = b"GET /atkinson-next.woff2 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
HANDSHAKE = (
    b"GET /%s HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
WATCH, FEED = (HANDSHAKE % (path + TOKEN.encode()) for path in (b"ws?token=", b"feed?token="))
V = b" HTTP/1.1\r\n"
END = b"Host: 127.0.0.1\r\nConnection: close\r\n\r\n"
OURS_RAW = b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"
POST = b"POST /api/stop" + V + OURS_RAW
STATE = b"GET /api/state" + V


@dataclass
class Server:
    """A `cortext serve` under way."""

    command: Command | subprocess.Popen[str]
    port: int
    began_s: float = field(default_factory=time.monotonic)

    @property
    def pid(self) -> int:
        pid = self.command.process.pid
        assert pid is not None
        return pid

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def get(self, path: str) -> httpx.Response:
        return HTTP.get(f"http://127.0.0.1:{self.port}{path}", headers=OURS)

    def post(self, action: str, content: bytes) -> httpx.Response:
        """Ask for a change; waits where the rate of changes is at its limit."""
        url = f"http://127.0.0.1:{self.port}/api/{action}"
        while True:
            answer = HTTP.post(url, content=content, headers=OURS, timeout=20)
            if answer.status_code != 429:
                return answer
            time.sleep(0.05)

    @contextmanager
    def page(self) -> Iterator[Page]:
        with connect(f"ws://127.0.0.1:{self.port}/ws?token={TOKEN}", max_size=None) as web_socket:
            yield Page(web_socket)

    def resident_mb(self) -> float:
        (line,) = (
            s
            for s in Path(f"/proc/{self.pid}/status").read_text().splitlines()
            if s.startswith("VmRSS")
        )
        return int(line.split()[1]) / 1024

    def check_whole(self, most_lines: int = 20) -> None:
        """Check what holds after any attack.

        It runs, it answers, it has written few lines and no traceback.
        """
        assert self.command.running()
        assert self.get("/").status_code == 200
        assert self.get("/api/state").json()["state"] in ("idle", "running", "ended")
        assert "Traceback" not in self.command.stderr, self.command.stderr[-3000:]
        # warnings of each name come at most once a second
        most_lines += round(4 * (time.monotonic() - self.began_s))
        assert len(self.command.stderr.splitlines()) <= most_lines, self.command.stderr[-3000:]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings, a language model, and a model that has learnt nothing."""
    path = tmp_path_factory.mktemp("web")
    prepare(path)
    untrained_run(path / "run", DAYS, N_FEATURES)
    return path


@contextmanager
def serving(
    root: Path, log: Path, *more: str, data: bool = True, descriptors: int | None = None
) -> Iterator[Server]:
    folders = [
        "--lm",
        root / "lm",
        "--session-log",
        log,
        *(["--data", root / "data"] if data else []),
    ]
    command = Command("serve", root / "run", *folders, "--port", "0", "--token", TOKEN, *more)
    try:
        deadline_s = time.monotonic() + 60
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/#token=", command.stdout)):
            assert command.running(), command.stderr
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        server = Server(command, int(found[1]))
        if descriptors is not None:
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (descriptors, descriptors))
        server.check_whole()
        yield server
        assert command.interrupt().status == 0
    finally:
        command.kill()


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that plays recordings at twice their speed."""
    more = "--speed", "2", "--voice", "formant"
    with serving(root, tmp_path_factory.mktemp("log"), *more) as server:
        with server.page() as page:
            assert decode(server, page, lambda: None)[0]["id"] == 1  # which is corrected and rated
        yield server


@pytest.fixture(scope="module")
def fed(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with few file descriptors that takes a feed, which anybody may watch."""
    log = tmp_path_factory.mktemp("log")
    with serving(root, log, "--feed", "--open-view", descriptors=DESCRIPTORS, data=False) as server:
        yield server


@pytest.fixture(scope="module")
def small(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with few file descriptors that plays a trial in half a second."""
    with serving(
        root, tmp_path_factory.mktemp("log"), "--speed", "4", descriptors=DESCRIPTORS
    ) as server:
        yield server


@pytest.fixture(scope="module")
def undisturbed_text(small: Server) -> str:
    """The text of the first trial while nobody else is connected."""
    with small.page() as page:
        greet(page)
        return decode(small, page, lambda: None)[0]["text"]


# Connections of strangers


@dataclass(frozen=True)
class Crowd:
    """Many connections that never show the token.

    sends:   by each of them at the beginning
    trickle: sent by each of them again and again
    reset:   they are reset at once
    """

    name: str
    sends: bytes = b""
    trickle: bytes = b""
    n: int = 300
    reset: bool = False


CROWDS = (
    Crowd("silent"),
    Crowd("half a request head", HALF_HEAD),
    Crowd("a head of which a byte comes now and then", HALF_HEAD, b"x"),
    Crowd("half a web-socket handshake", HANDSHAKE[:100]),
    Crowd("a web-socket handshake without the token", HANDSHAKE % b"ws?token=wrong"),
    Crowd("a body of which a byte comes now and then", b"POST /api/stop" + V + b"Content-Length: 9999\r\n" + END, b"x"),
    Crowd("requests whose answers nobody reads", 40 * WHOLE_HEAD, n=70),
    Crowd("one request after another", WHOLE_HEAD, WHOLE_HEAD),
    Crowd("2,000 silent connections", n=2000),
    Crowd("connections that are reset", n=1000, reset=True),
    Crowd("requests that are reset", WHOLE_HEAD, n=500, reset=True),
)  # fmt: skip


def attack(server: Server, crowd: Crowd, stack: ExitStack) -> list[socket.socket]:
    """Open the connections and send what they send at the beginning.

    Those that are refused or ended are left out.
    """
    sockets = []
    for _ in range(crowd.n):
        with suppress(OSError):
            sockets.append(stack.enter_context(server.connect()))
            sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            sockets[-1].setblocking(False)
            sockets[-1].send(crowd.sends)
            if crowd.reset:
                sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sockets.pop().close()
    return sockets


def greet(page: Page) -> None:
    """Read until the last of the messages that greet a page."""
    while page.read()["type"] != "stats":
        pass


def decode(
    server: Server, page: Page, meanwhile: Callable[[], object]
) -> tuple[dict[str, Any], int]:
    """Play the first trial, and do something as soon as it has begun.

    Returns the utterance and its bins.
    """
    assert server.post("start", b'{"trial": 0}').status_code == 200
    n_bins, acted = 0, False
    while (message := page.read())["type"] != "utterance":
        if message["type"] == "step":
            n_bins += message["n_bins"] + message["dropped"]
            if not acted:
                meanwhile()
                acted = True
    assert acted
    return message, n_bins


@pytest.mark.parametrize("crowd", CROWDS, ids=lambda crowd: crowd.name)
def test_a_crowd_of_strangers_keeps_nobody_out_and_cuts_no_utterance(
    small: Server, undisturbed_text: str, crowd: Crowd
) -> None:
    undisturbed = (None, undisturbed_text, TRIAL_BINS)
    with small.page() as page, ExitStack() as stack:
        greet(page)
        sockets: list[socket.socket] = []

        def meanwhile() -> None:
            sockets.extend(attack(small, crowd, stack))
            assert small.get("/observer/app.js").status_code == 200
            assert small.get("/api/state").status_code == 200
            with small.page() as another:
                assert another.read()["type"] == "hello"
            for each in sockets:
                with suppress(OSError):
                    each.send(crowd.trickle)
            assert small.get("/api/state").status_code == 200

        utterance, n_bins = decode(small, page, meanwhile)
        assert (utterance["error"], utterance["text"], n_bins) == undisturbed
        utterance, n_bins = decode(small, page, lambda: None)  # while they are still connected
        assert (utterance["error"], utterance["text"], n_bins) == undisturbed
        assert len(list(Path(f"/proc/{small.pid}/fd").iterdir())) < DESCRIPTORS - 20
    small.check_whole(most_lines=60)


def test_a_crowd_from_one_address_costs_another_address_nothing(small: Server) -> None:
    target, elsewhere = ("127.0.0.1", small.port), ("127.0.0.2", 0)
    with (
        ExitStack() as stack,
        socket.create_connection(target, timeout=10, source_address=elsewhere) as oldest,
    ):
        oldest.sendall(b"GET / HTTP/1.1\r\n")
        attack(small, CROWDS[0], stack)
        assert small.get("/api/state").status_code == 200  # all of them have been accepted
        oldest.sendall(END)
        assert oldest.recv(12) == b"HTTP/1.1 200"
    small.check_whole(most_lines=60)


@pytest.mark.slow
def test_what_takes_longer_than_ten_seconds_is_given_up(server: Server) -> None:
    slow_body = POST + b"Content-Length: 9999\r\n" + END
    began_s = time.monotonic()
    with ExitStack() as stack, server.page() as page:
        kept = {
            crowd: attack(server, replace(crowd, n=1), stack)[0]
            for crowd in CROWDS
            if crowd.n == 300
        }
        (body,) = attack(server, Crowd("a body with the token", slow_body, n=1), stack)
        while kept and time.monotonic() - began_s < HEAD_S + 40:
            for crowd, each in list(kept.items()):
                try:
                    each.send(crowd.trickle if crowd.trickle != WHOLE_HEAD else b"")
                    if each.recv(65536) == b"":
                        del kept[crowd]
                except BlockingIOError:
                    pass
                except OSError:
                    del kept[crowd]
            time.sleep(0.2)
        assert not kept
        assert time.monotonic() - began_s > HEAD_S - 1  # and none of those that send no sooner
        body.settimeout(40)
        assert body.recv(12) == b"HTTP/1.1 408"
        assert page.socket.ping().wait(30)  # a page that shows the token stays
    server.check_whole()


# Requests


@dataclass(frozen=True)
class Body:
    """A request with the token, and the status of its answer; `says` is a part of the line."""

    name: str
    action: str
    content: bytes
    status: int = 400
    says: str = ""


HALF_A_PAIR = "half of a surrogate pair"
DEEP = 900  # what the parser takes just so
BODIES = (
    Body("a number for llm", "options", b'{"llm": 5}', says="llm is 5"),
    Body("a list for llm", "options", b'{"llm": [1]}', says="llm is [1]"),
    Body("null for llm", "options", b'{"llm": null}', says="llm is None"),
    Body("a list for llm.mode", "options", b'{"llm": {"mode": []}}', says="llm.mode is []"),
    Body("a text for llm.weight", "options", b'{"llm": {"weight": "0.5"}}', says="llm.weight"),
    Body("infinity for llm.weight", "options", b'{"llm": {"weight": 1e999}}', says="llm.weight is inf"),
    Body("an object in llm", "options", b'{"llm": {"llm": {"llm": 5}}}', says="unknown option llm.llm"),
    Body("a list of lists for label_priors", "options", b'{"label_priors": [[[], 1], [{}, 2]]}', says="label_priors"),
    Body("a text for label_priors", "options", b'{"label_priors": "abc"}', says="label_priors"),
    Body("mixed label_priors", "options", b'{"label_priors": [["AA", 1], [5, 2]]}', says="label_priors"),
    Body("infinity", "options", b'{"beam": 1e999}', says="beam is inf"),
    Body("NaN", "options", b'{"beam": NaN}', says="no JSON"),
    Body("a number of 400 digits", "options", b'{"beam": 1%s}' % (b"0" * 400), says="beam is 1000"),
    Body("a number of 5,000 digits", "options", b'{"beam": 1%s}' % (b"0" * 5000), says="no JSON"),
    Body("a boolean", "options", b'{"nbest": true}', says="nbest is True"),
    Body("a name of 60,000 letters", "options", b'{"%s": 1}' % (b"x" * 60_000), says="unknown decoder option"),
    Body("half a pair in an option's name", "options", b'{"\\ud800": 1}', says=HALF_A_PAIR),
    Body("half a pair, not escaped", "options", b'{"\xed\xa0\x80": 1}', says=HALF_A_PAIR),
    Body("deep lists", "options", b'{"llm": %s1%s}' % (b"[" * DEEP, b"]" * DEEP)),
    Body("deep objects", "options", b'{"llm": %s1%s}' % (b'{"llm":' * DEEP, b"}" * DEEP)),
    Body("lists too deep to parse", "options", b"[" * 60_000, says="no JSON"),
    Body("an object as a bonus", "hotwords", b'{"sea": {"sea": 1}}', says="bonus of 'sea'"),
    Body("infinity as a bonus", "hotwords", b'{"sea": -1e999}', says="bonus of 'sea'"),
    Body("400 digits as a bonus", "hotwords", b'{"sea": 1%s}' % (b"0" * 400), says="bonus of 'sea'"),
    Body("an empty word", "hotwords", b'{"": 1}', says="is not a word"),
    Body("NUL in a word", "hotwords", b'{"a\\u0000b": 1}', says="no pronunciation"),
    Body("half a pair in a word", "hotwords", b'{"\\udfff": 1}', says=HALF_A_PAIR),
    Body("1,200 words", "hotwords", json.dumps({chr(97 + i // 50) + (i % 50) * "a": 1 for i in range(1200)}).encode()),
    Body("half a pair in a correction", "correction", b'{"utterance": 1, "text": "i \\ud83d see"}', says=HALF_A_PAIR),
    Body("NUL in a correction", "correction", b'{"utterance": 1, "text": "i \\u0000 see"}', status=0),
    Body("escapes in a correction", "correction", b'{"utterance": 1, "text": "i \\u001b[2J see"}', status=0),
    Body("an emoji in a correction", "correction", '{"utterance": 1, "text": "i see \U0001f600"}'.encode(), status=0),
    Body("a correction of 20,000 words", "correction", b'{"utterance": 1, "text": "%s"}' % (b"ab " * 20_000), status=0),
    Body("no words in a correction", "correction", b'{"utterance": 1, "text": "..."}', status=409),
    Body("an utterance of 400 digits", "correction", b'{"utterance": 1%s, "text": "i"}' % (b"0" * 400), status=409),
    Body("an utterance that is a text", "correction", b'{"utterance": "1", "text": "i see"}', says="must be a number"),
    Body("a fraction of an utterance", "rating", b'{"utterance": 1.0, "rating": "right"}', says="must be a number"),
    Body("a rating that is a list", "rating", b'{"utterance": 1, "rating": ["right"]}', says="must be a string"),
    Body("an unknown rating of 60,000 letters", "rating", b'{"utterance": 1, "rating": "%s"}' % (b"x" * 60_000)),
    Body("a choice of what was never decoded", "choose", b'{"utterance": 1, "text": "x y z"}', status=0),
    Body("a choice that is an object", "choose", b'{"utterance": 1, "text": {}}', says="must be a string"),
    Body("half a pair in a choice", "choose", b'{"utterance": 1, "text": "\\udc00"}', says=HALF_A_PAIR),
    Body("a choice for an utterance of 400 digits", "choose", b'{"utterance": 1%s, "text": "i"}' % (b"0" * 400), status=409),
    Body("a trial below zero", "start", b'{"trial": -1}', says="no trial -1"),
    Body("a trial of 400 digits", "start", b'{"trial": 1%s}' % (b"0" * 400), says="no trial 1000"),
    Body("a session that is a path", "start", b'{"session": "../../../etc"}', says="no trials of session"),
    Body("a day that is an object", "day", b'{"session": {}}', says="must be a string"),
    Body("a day with escapes", "day", b'{"session": "\\u001b]0;x\\u0007"}', says="unknown to the run"),
    Body("half a pair in a day", "day", b'{"session": "\\udc00"}', says=HALF_A_PAIR),
    Body("a turn of 60,000 letters", "turn", b'{"text": "%s"}' % (b"x" * 60_000), says="at most 2000"),
    Body("half a pair in a turn", "turn", b'{"text": "\\udc00"}', says=HALF_A_PAIR),
    Body("NUL and escapes in a turn", "turn", b'{"text": "a\\u0000\\u001b[2J"}', status=0),
    Body("an entry that is no number", "forget", b'{"entries": [NaN]}', says="no JSON"),
    Body("an entry of 400 digits", "forget", b'{"entries": [1%s]}' % (b"0" * 400), says="there is no entry"),
    Body("10,000 entries", "forget", b'{"entries": [%s9]}' % (b"9," * 10_000), says="there is no entry"),
    Body("entries within entries", "forget", b'{"entries": [[1]]}', says="whole numbers"),
    Body("a time of 60,000 letters", "forget", b'{"since": "%s"}' % (b"2" * 60_000), says="since is"),
    Body("all as a text", "forget", b'{"all": "true"}', says="true or false"),
    Body("private as a number", "private", b'{"on": 0}', says="true or false"),
    Body("a context without a model", "context", b'{"text": "x"}', status=409),
    Body("half a pair in a context", "context", b'{"text": "\\udc00"}', says=HALF_A_PAIR),
    Body("a text to speak of 1,001 letters", "speak", b'{"text": "%s"}' % (b"a" * 1001), says="at most 1000"),
    Body("a text to speak of 60,000 letters", "speak", b'{"text": "%s"}' % (b"a" * 60_000), says="at most 1000"),
    Body("NUL alone to speak", "speak", b'{"text": "\\u0000"}', says="no text"),
    Body("an emoji to speak", "speak", '{"text": "\U0001f600"}'.encode(), says="can speak nothing"),
    Body("half a pair to speak", "speak", b'{"text": "i \\ud83d see"}', says=HALF_A_PAIR),
    Body("a list to speak", "speak", b'{"text": ["i see"]}', says="must be a string"),
    Body("a speed of 400 digits", "speak", b'{"text": "i", "rate": 1%s}' % (b"0" * 400), says="a number from 0.5"),
    Body("infinity as a pitch", "speak", b'{"text": "i", "pitch": 1e999}', says="a number from 0"),
    Body("a voice that is a path", "speak", b'{"text": "i", "voice": "/etc/passwd"}', says="unknown field"),
    Body("markup to speak", "speak", b'{"text": "<audio src=\'/etc/passwd\'/>hi [[h@loU]]"}', status=200),
    Body("a body that is a text", "stop", b'"stop"', says="no JSON object"),
    Body("a body in UTF-16", "stop", "{}".encode("utf-16"), status=200),
    Body("a body of another kind", "stop", b"\x93NUMPY\x01\x00", says="no JSON"),
    Body("another action", "nonsense", b"{}", status=404, says="no such request"),
    Body("an action with half a pair", "%ED%A0%80", b"{}", status=404, says="no such request"),
)  # fmt: skip
"""Status 0: refused or taken, as the text may be; the server says so in a line, and continues."""


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.name)
def test_a_request_is_answered_in_one_line(server: Server, body: Body) -> None:
    answer = server.post(body.action, body.content)
    assert answer.status_code in ((body.status,) if body.status else (200, 400, 409)), answer.text[
        :500
    ]
    if answer.status_code != 200:
        line = answer.json()["error"]
        assert body.says in line
        assert len(line) <= 1000
        assert line.isprintable()
    server.check_whole()


@pytest.mark.slow
def test_clients_that_ask_for_sound_and_never_read_it_take_little_memory(server: Server) -> None:
    text = json.dumps({"text": ("well known cats " * 63)[:1000]}).encode()
    asks = b"POST /api/speak" + V + OURS_RAW + b"Content-Length: %d\r\n" % len(text) + END + text
    before_mb = server.resident_mb()
    with ExitStack() as stack:
        for _ in range(40):
            each = stack.enter_context(server.connect())
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            each.sendall(asks)
        time.sleep(3)
        grown_mb = server.resident_mb() - before_mb
        assert server.get("/api/state").status_code == 200
    assert grown_mb < 40, f"{grown_mb:.0f} MB"
    deadline_s = time.monotonic() + 20
    while server.post("speak", b'{"text": "i see"}').status_code != 200:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    server.check_whole(most_lines=60)


@dataclass(frozen=True)
class Raw:
    """Bytes of a connection, and a pattern that the beginning of what comes back must match
    (empty: it is closed).
    """

    name: str
    sends: bytes
    answer: str = "HTTP/1.1 400 "


UPGRADE = b"Upgrade: websocket\r\nConnection: Upgrade\r\nHost: localhost\r\n\r\n"
RAWS = (
    Raw("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
    Raw("another version", b"GET / HTTP/9.9\r\n" + END, "HTTP/1.1 200 "),
    Raw("no host", b"GET /" + V + b"Connection: close\r\n\r\n"),
    Raw("two hosts", b"GET /" + V + b"Host: localhost\r\n" + END),
    Raw("a host of 10,000 letters", b"GET / HTTP/1.0\r\nHost: " + b"a" * 10_000 + b"\r\n\r\n", "HTTP/1.1 403 "),
    Raw("a host that is no text", b"GET / HTTP/1.0\r\nHost: \xff\xfe[\r\n\r\n", "HTTP/1.1 40[03] "),
    Raw("a head of 1 MiB", b"GET /" + V + b"X: " + b"x" * 2**20 + b"\r\n" + END, "HTTP/1.1 400 |$"),
    Raw("100,000 headers", b"GET /" + V + 100_000 * b"A: b\r\n" + END, "HTTP/1.1 400 |$"),
    Raw("a path of 15,000 letters", b"GET /" + b"x" * 15_000 + V + END, "HTTP/1.1 404 "),
    Raw("a path outside", b"GET /../../../../etc/passwd" + V + END, "HTTP/1.1 404 "),
    Raw("a path with NUL", b"GET /%00/%2e%2e/index.html" + V + END, "HTTP/1.1 404 "),
    Raw("a path that is no text", b"GET /%ff%fe%ed%a0%80" + V + END, "HTTP/1.1 404 "),
    Raw("another server's address", b"GET http://127.0.0.1:22/" + V + END, "HTTP/1.1 404 "),
    Raw("a tunnel", b"CONNECT 127.0.0.1:22" + V + END, "HTTP/1.1 40[45] "),
    Raw("another method", b"DELETE /api/stop" + V + OURS_RAW + END, "HTTP/1.1 405 "),
    Raw("a method of 10,000 letters", b"G" * 10_000 + b" /" + V + END, "HTTP/1.1 (400|403|405) "),
    Raw("a negative length", POST + b"Content-Length: -1\r\n" + END),
    Raw("a length of 5,000 digits", POST + b"Content-Length: " + b"9" * 5000 + b"\r\n" + END, "HTTP/1.1 4"),
    Raw("two lengths", POST + b"Content-Length: 2\r\nContent-Length: 3\r\n" + END),
    Raw("a chunk of 2^132 bytes", POST + b"Transfer-Encoding: chunked\r\n" + END + b"1" + 33 * b"0" + b"\r\nx"),
    Raw("a length beyond the limit", POST + b"Content-Length: 999999\r\n" + END + b" " * 70_000, "HTTP/1.1 413 "),
    Raw("a body too late", b"POST /" + V + b"Content-Length: 9999999\r\n" + END + bytes(2**22), "HTTP/1.1 405 |$"),
    Raw("a long token", STATE + b"Authorization: Bearer " + b"x" * 10_000 + b"\r\n" + END, "HTTP/1.1 401 "),
    Raw("a token that is no text", STATE + b"Authorization: Bearer \xff\xed\xa0\x80\r\n" + END, "HTTP/1.1 401 "),
    Raw("a handshake without a key", b"GET /ws" + V + UPGRADE, "HTTP/1.1 [45]"),
    Raw("a handshake of another version", WATCH.replace(b"13", b"99"), "HTTP/1.1 4"),
    Raw("a handshake to another path", HANDSHAKE % b"etc", "HTTP/1.1 40[34] "),
    Raw("a handshake with a token that is no text", HANDSHAKE % b"ws?token=%ff%ed%a0%80", "HTTP/1.1 403 "),
    Raw("a handshake that is posted", WATCH.replace(b"GET", b"POST"), "HTTP/1.1 4"),
)  # fmt: skip


@pytest.mark.parametrize("raw", RAWS, ids=lambda raw: raw.name)
def test_bytes_that_are_no_good_request_are_refused(server: Server, raw: Raw) -> None:
    with server.connect() as connection:
        answer = b""
        with suppress(OSError):
            connection.sendall(raw.sends)
        with suppress(OSError):
            while b"\r\n" not in answer and (more := connection.recv(65536)):
                answer += more
    assert re.match(raw.answer, answer.decode("latin-1")), answer[:300]
    server.check_whole()


# Web sockets


def frame(opcode: int, content: bytes = b"", fin: bool = True) -> bytes:
    """A masked frame of at most 125 bytes; the mask is zero."""
    return struct.pack("!BBI", opcode | 0x80 * fin, len(content) | 0x80, 0) + content


@dataclass(frozen=True)
class Flood:
    """Bytes that a client with the token sends, as many as it is let or 64 MiB.

    It never reads its answers.
    """

    name: str
    begins: bytes
    goes_on: bytes


PING, FRAGMENT, TEXT, BYTES = frame(9, b"x" * 125), frame(0, fin=False), frame(1, b"x"), frame(2)
FLOODS = (
    Flood("pings to a page", WATCH, 500 * PING),
    Flood("pings without content to a page", WATCH, 10_000 * frame(9)),
    Flood("messages and pings to a page", WATCH, 20 * (TEXT + 25 * PING)),
    Flood("fragments without content to a page", WATCH + frame(1, fin=False), 10_000 * FRAGMENT),
    Flood(
        "pings among fragments to a page",
        WATCH + frame(1, b"x", fin=False),
        500 * (FRAGMENT + PING),
    ),
    Flood("messages to a page", WATCH, 10_000 * TEXT),
    Flood("pongs to a page", WATCH, 500 * frame(10, b"x" * 125)),
    Flood("pings to a feed", FEED, 500 * PING),
    Flood("messages and pings to a feed", FEED, 20 * (BYTES + 250 * PING)),
    Flood("wrong messages to a feed", FEED, 10_000 * TEXT),
    Flood("fragments without content to a feed", FEED + frame(2, fin=False), 10_000 * FRAGMENT),
)


@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.name)
def test_a_client_that_sends_and_never_reads_takes_no_memory(fed: Server, flood: Flood) -> None:
    before_mb, n_sent = fed.resident_mb(), 0
    with fed.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(flood.begins)
        assert connection.recv(12) == b"HTTP/1.1 101"
        connection.settimeout(0.5)
        until_s = time.monotonic() + 15
        with suppress(OSError):  # it is disconnected, or read no further
            while time.monotonic() < until_s and n_sent < 64 * 2**20:
                n_sent += connection.send(flood.goes_on)
        grown_mb = fed.resident_mb() - before_mb
    assert n_sent > 0
    assert grown_mb < 16, f"{grown_mb:.0f} MB for {n_sent / 2**20:.0f} MiB"
    fed.check_whole(most_lines=60)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (b"\x83\x80\0\0\0\0", 1002),  # a reserved opcode
        (b"\x81\x01x", 1002),  # not masked
        (b"\xf1\x80\0\0\0\0", 1002),  # reserved bits
        (frame(0, b"x"), 1002),  # the rest of nothing
        (frame(1, b"\xff"), 1007),  # no text
        (b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0", 1009),  # 2^63 - 1 bytes
    ],
)
def test_frames_that_are_wrong_end_the_web_socket_with_their_code(
    server: Server, bad: bytes, code: int
) -> None:
    with server.connect() as connection:
        connection.sendall(WATCH)
        assert connection.recv(12) == b"HTTP/1.1 101"
        connection.sendall(bad)
        read = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b"\x88" in read
    assert struct.pack("!H", code) in read[-125:], read[-125:]
    server.check_whole()


def test_of_five_hundred_pages_at_the_same_moment_as_many_as_may_are_let_in(server: Server) -> None:
    with ExitStack() as stack:
        sockets = []
        for _ in range(500):
            sockets.append(stack.enter_context(server.connect()))
            sockets[-1].sendall(WATCH)
        deadline_s, read = time.monotonic() + 30, dict.fromkeys(sockets, b"")
        waiting = set(sockets)
        while waiting and time.monotonic() < deadline_s:
            for each in list(waiting):
                each.setblocking(False)
                try:
                    part = each.recv(65536)
                except BlockingIOError:
                    continue
                except OSError:
                    part = b""
                read[each] += part
                frames = read[each].partition(b"\r\n\r\n")[2]
                if not part or b'"hello"' in frames or frames.startswith(b"\x88"):
                    waiting.remove(each)
            time.sleep(0.01)
        assert not waiting  # each is let in or sent away
        assert sum(b'"hello"' in content for content in read.values()) == 32
    server.check_whole()


def test_strangers_who_may_watch_leave_places_for_those_who_show_the_token(fed: Server) -> None:
    with ExitStack() as stack:
        for _ in range(40):
            with suppress(OSError):
                stack.enter_context(fed.connect()).sendall(HANDSHAKE % b"ws")
        with fed.page() as page:
            assert page.read()["can_control"] is True
    fed.check_whole(most_lines=60)


FRAMES_TC = np.zeros((TRIAL_BINS, N_FEATURES), dtype="<f4")


def feed_frames(server: Server, meanwhile: Callable[[], object]) -> None:
    """Feed an utterance frame by frame, and do something in the middle of it."""
    with connect(f"ws://127.0.0.1:{server.port}/feed?token={TOKEN}") as feed:
        for t, frame_C in enumerate(FRAMES_TC):
            feed.send(frame_C.tobytes())
            if t == TRIAL_BINS // 2:
                meanwhile()
        feed.send('{"end": true}')


def test_a_feed_is_decoded_while_strangers_hold_what_connections_they_can(fed: Server) -> None:
    half_open = Crowd("half-open", HALF_HEAD)
    with ExitStack() as stack, fed.page() as page:
        attack(fed, half_open, stack)
        while fed.get("/api/state").json()["state"] != "idle":  # another test's feed is still there
            time.sleep(0.05)
        feed_frames(fed, lambda: attack(fed, half_open, stack))
        utterance = page.next("utterance", ended="end of trial")
    assert (utterance["error"], utterance["duration_s"]) == (None, TRIAL_BINS * 0.02)
    fed.check_whole(most_lines=60)


@pytest.mark.slow
@pytest.mark.parametrize("is_fed", [False, True])
def test_nothing_is_imported_once_the_server_listens(
    root: Path, tmp_path: Path, is_fed: bool
) -> None:
    """An import needs a file descriptor, and may find none.

    In a process of its own, which has imported nothing yet.
    """
    program = "from cortext.cli import main; main()"
    options = [
        "--lm",
        root / "lm",
        "--session-log",
        tmp_path / "log",
        "--token",
        TOKEN,
        "--port",
        "0",
    ]
    options += ["--public-url", "https://lab.example"]
    options += ["--feed", "--normalise", "rolling"] if is_fed else ["--data", root / "data"]
    command = [sys.executable, "-X", "importtime", "-c", program, "serve", root / "run", *options]
    with (tmp_path / "imports").open("w") as imports:
        process = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=imports, text=True
        )
    assert process.stdout is not None
    try:
        address = [process.stdout.readline() for _ in range(3)][-1]
        server = Server(process, int(address.partition("/#")[0].rpartition(":")[2]))
        with server.connect() as connection:  # which the system keeps until the server accepts it
            connection.settimeout(60)
            connection.sendall(b"GET / HTTP/1.0\r\nHost: elsewhere\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 403"
        before = (tmp_path / "imports").read_text()
        with server.page() as page:
            if is_fed:
                feed_frames(server, lambda: server.get("/observer/app.js"))
                page.next("utterance")
            else:
                decode(server, page, lambda: server.get("/observer/app.js"))
            for action, content in (
                ("correction", b'{"utterance": 1, "text": "i see"}'),
                ("rating", b'{"utterance": 1, "rating": "right"}'),
                ("options", b'{"nbest": 3}'),
                ("hotwords", b'{"kiwi": 3}'),
                ("day", b'{"session": "nowhere"}'),
                ("invite", b'{"rights": "read", "name": "tablet"}'),
                ("revoke", b'{"id": 1}'),
                ("stop", b"nonsense"),
            ):
                server.post(action, content)
        with suppress(InvalidStatus), connect(f"ws://127.0.0.1:{server.port}/feed"):
            pass
        imported = (tmp_path / "imports").read_text().removeprefix(before)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert [line for line in imported.splitlines() if line.startswith("import time:")] == []
