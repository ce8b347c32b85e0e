"""Strangers, other sites and wrong requests get nothing.

Asked of the real server, byte by byte where need be.
"""

import socket
from contextlib import ExitStack

import pytest
from page_process import prepare
from serving import DEADLINE_S, HTTP, TOKEN, make_session, serving, wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from cortext_live.page.access.rules import (
    MAX_BODY,
    MAX_MESSAGE,
    MAX_READERS,
    Access,
    address,
    is_loopback,
)
from cortext_live.page.access.tokens import new_token

OURS = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def served(page_root):
    with serving(make_session(page_root)) as served:
        yield served


def raw(served, request: str) -> str:
    """The answer to a request as it stands here."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=DEADLINE_S) as connection:
        connection.sendall(request.replace("\n", "\r\n").encode())
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode(errors="replace")


@pytest.mark.parametrize(
    "action", ["start", "stop", "options", "hotwords", "correction", "rating", "day", "nonsense"]
)
@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}]
)
def test_nothing_changes_without_the_token(served, action, headers):
    answer = served.post(action, headers=headers)
    assert (answer.status_code, answer.json()) == (401, {"error": "the token is missing or wrong"})


def test_the_state_needs_the_token_too(served):
    assert HTTP.get(served.url("/api/state")).status_code == 401
    assert HTTP.get(served.url(f"/api/state?token={TOKEN}")).status_code == 401
    assert served.state()["state"] == "idle"


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", TOKEN[:-1]])
@pytest.mark.parametrize("path", ["ws", "feed"])
def test_web_sockets_need_the_token(served, path, token):
    query = "" if token is None else f"?token={token}"
    with (
        pytest.raises(InvalidStatus, match="403"),
        connect(f"ws://127.0.0.1:{served.port}/{path}{query}"),
    ):
        pass


def test_open_view_lets_strangers_watch_and_no_more(tmp_path):
    prepare(tmp_path)
    with serving(make_session(tmp_path), open_view=True) as served:
        with served.page(token=None) as page:
            assert page.read()["can_control"] is False
            assert served.post("start", headers={}).status_code == 401
        with pytest.raises(InvalidStatus, match="403"), served.feed(token=""):
            pass


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "[::1", "a@b:c@d"]
)
def test_names_that_are_not_ours_are_refused(served, host):
    for request in ("GET / HTTP/1.1", "GET /api/state HTTP/1.1", "POST /api/start HTTP/1.1"):
        answer = raw(
            served, f"{request}\nHost: {host}\nAuthorization: Bearer {TOKEN}\nConnection: close\n\n"
        )
        assert answer.startswith(("HTTP/1.1 403", "HTTP/1.1 400")), answer[:200]
    with pytest.raises(InvalidStatus), served.page(additional_headers={"Host": host or "nobody"}):
        pass


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:9000", "127.0.0.1", "[::1]:8765", "192.0.2.7:80"]
)
def test_addresses_and_names_of_this_machine_are_let_through(served, host):
    assert raw(served, f"GET / HTTP/1.1\nHost: {host}\nConnection: close\n\n").startswith(
        "HTTP/1.1 200"
    )


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://[", "file://"]
)
def test_requests_of_other_sites_are_refused(served, origin):
    answer = served.post("stop", headers=OURS | {"Origin": origin})
    assert (answer.status_code, answer.json()) == (
        403,
        {"error": "requests from other sites are refused"},
    )
    for path in ("ws", "feed"):
        url = f"ws://127.0.0.1:{served.port}/{path}?token={TOKEN}"
        with pytest.raises(InvalidStatus, match="403"), connect(url, origin=origin):
            pass


def test_our_own_page_is_let_through(served):
    origin = f"http://127.0.0.1:{served.port}"
    assert served.post("stop", headers=OURS | {"Origin": origin}).status_code == 200
    with served.page(origin=origin) as page:
        assert page.read()["type"] == "hello"


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/..%2fserver.py",
        "/%2e%2e/%2e%2e/cli/serve.py",
        "//etc/passwd",
        "/%2Fetc/hosts.html",
        "/web/index.html",
        "/index.html/",
        "/atkinson-next.LICENSE.txt",
        "/docs",
        "/openapi.json",
        "/index.html%00.js",
        "/.",
    ],
)
def test_nothing_but_the_page_is_served(served, path):
    assert raw(served, f"GET {path} HTTP/1.1\nHost: localhost\nConnection: close\n\n").startswith(
        "HTTP/1.1 404"
    )


def test_every_answer_tells_the_browser_to_be_strict(served):
    for answer in (
        HTTP.get(served.url("/")),
        HTTP.get(served.url("/nothing")),
        served.post("stop", headers={}),
    ):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers


def test_large_requests_are_refused(served):
    answer = served.post("hotwords", {"word": "x" * MAX_BODY})
    assert (answer.status_code, answer.json()["error"]) == (
        413,
        f"the request has more than {MAX_BODY} bytes",
    )


@pytest.mark.parametrize(
    "content", [b"{", b"\xff\xfe", b"nonsense", b"NaN", b'{"beam": NaN}', b"[" * 60_000]
)
def test_requests_that_are_no_json_are_refused(served, content):
    answer = HTTP.post(served.url("/api/options"), content=content, headers=OURS)
    assert (answer.status_code, answer.json()) == (400, {"error": "the request is no JSON"})


def test_a_web_socket_that_sends_too_much_is_closed(served):
    with served.page() as page:
        page.next("stats")
        # The header of a masked text (RFC 6455, 5.2) is answered. A text that came after it could
        # make the system reset the connection before the answer is read.
        length = (MAX_MESSAGE + 1).to_bytes(8, "big")
        page.socket.socket.sendall(bytes([0x81, 0x80 | 127]) + length + bytes(4))
        with pytest.raises(ConnectionClosed) as closed:
            page.read()
        assert closed.value.rcvd.code == 1009
    wait_until(lambda: not len(served.session.readers), "the page is forgotten")


def test_only_so_many_may_watch(served):
    with ExitStack() as pages:
        for _ in range(MAX_READERS):
            pages.enter_context(served.page()).read()
        with (
            served.page() as one_more,
            pytest.raises(ConnectionClosed, match="32 pages are open already"),
        ):
            one_more.read()
    wait_until(lambda: not len(served.session.readers), "the pages are forgotten")


def test_changes_are_limited_in_rate():
    owner = Access("token", "127.0.0.1").owner
    allowed = [owner.allows_another_change() for _ in range(200)]
    assert all(allowed[:60])
    assert not allowed[-1]


def test_tokens_are_long_and_new():
    assert len({new_token() for _ in range(100)}) == 100
    assert len(new_token()) == 43  # 256 bits in base64


@pytest.mark.parametrize(
    ("host", "alone"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_knows_which_addresses_are_of_this_machine_alone(host, alone):
    assert is_loopback(host) is alone


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8765"),
        ("::1", "http://[::1]:8765"),
        ("localhost", "http://localhost:8765"),
        ("0.0.0.0", f"http://{socket.gethostname()}:8765"),
    ],
)
def test_the_address_that_is_printed_is_one_that_a_browser_can_open_and_the_server_accepts(
    host, url
):
    assert address(host, 8765) == url
    assert address(host, 8765, is_tls=True) == url.replace("http:", "https:")
    assert Access("t", host).allows_host(url.removeprefix("http://"))
