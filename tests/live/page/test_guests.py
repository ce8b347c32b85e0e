"""Guests: what their tokens allow, how they are invited, and that revoking ends everything at once.

Asked of the real server.
"""

import json
import re
import socket
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest
from page_process import prepare
from serving import DEADLINE_S, HTTP, TOKEN, make_session, serving, wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from cortext.cli import run as run_command
from cortext.errors import ConfigError
from cortext_live.core.log_writer import LogWriter
from cortext_live.page.access.rules import MAX_GUEST_READERS, MAX_READERS, Access, public_address
from cortext_live.page.access.tokens import MAX_GUEST_PAGES, MAX_GUESTS, Guests
from cortext_live.page.requests import NEEDS
from cortext_live.usage.writer import UsageLog

OUTSIDE = "https://lab.example"
READERS_MAY = {"state", "speak"}
"""All that a token that reads may ask for: a new request must be added here on purpose."""
RATERS_MAY = READERS_MAY | {"rating", "choose"}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("guests")
    prepare(root)
    log_writer = LogWriter(UsageLog(root / "log"))
    session = make_session(root, log_writer=log_writer)
    with serving(session, outside=OUTSIDE, is_proxied=True) as served:
        yield served


@contextmanager
def guest(served, rights="read", name="tablet"):
    """The token and the number of a guest, who is revoked at the end."""
    made = served.post("invite", {"rights": rights, "name": name}).json()
    try:
        yield made["url"].partition("#token=")[2], made["id"]
    finally:
        served.post("revoke", {"id": made["id"]})


def bearer(token):
    return {"Authorization": f"Bearer {token}".strip()}


def until_it_ends(page):
    """Read what a page is still sent."""
    while True:
        page.read()


def listed(served):
    return HTTP.get(served.url("/api/guests"), headers=bearer(TOKEN)).json()


# Inviting


def test_an_invitation_is_an_address_and_a_picture_of_it(served):
    made = served.post("invite", {"rights": "rate", "name": " tablet "}).json()
    assert re.fullmatch(r"https://lab\.example/participant#token=[\w-]{43}", made["url"])
    assert made["url"].partition("=")[2] != TOKEN
    assert (made["name"], made["rights"]) == ("tablet", "rate")
    # 81 bytes need version 5-M (ISO/IEC 18004: up to 84), 37 squares, and 4 on each side
    assert 'viewBox="0 0 45 45"' in made["qr"]
    assert set(re.findall(r"<(\w+)", made["qr"])) == {"svg", "path"}
    (found,) = listed(served)["guests"]
    assert "token" not in json.dumps(found)
    assert (found["id"], found["name"], found["pages"]) == (made["id"], "tablet", 0)
    served.post("revoke", {"id": made["id"]})
    assert not listed(served)["guests"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "rights is missing"),
        ({"rights": "read"}, "name is missing"),
        ({"rights": "control", "name": "x"}, "unknown rights 'control'; known: read, rate"),
        ({"rights": "READ", "name": "x"}, "unknown rights"),
        ({"rights": "x" * 60_000, "name": "x"}, "unknown rights"),
        ({"rights": ["read"], "name": "x"}, "rights must be a string"),
        ({"rights": "read", "name": ""}, "1 to 40 characters"),
        ({"rights": "read", "name": "   "}, "1 to 40 characters"),
        ({"rights": "read", "name": "x" * 41}, "1 to 40 characters"),
        ({"rights": "read", "name": "a\nb"}, "1 to 40 characters"),
        ({"rights": "read", "name": "\x1b[2J"}, "1 to 40 characters"),
        ({"rights": "read", "name": "\u202etelbat"}, "1 to 40 characters"),
        ({"rights": "read", "name": "x", "token": "mine"}, "unknown field 'token'"),
        ({"rights": "read", "name": "x", "url": "https://evil.example"}, "unknown field 'url'"),
    ],
)
def test_invitations_that_are_wrong_are_refused_in_a_line(served, body, says):
    answer = served.post("invite", body)
    assert (answer.status_code, says in answer.json()["error"]) == (400, True), answer.text[:300]
    assert len(answer.json()["error"]) < 300
    assert not listed(served)["guests"]


@pytest.mark.parametrize(
    ("body", "status"),
    [({}, 400), ({"id": "1"}, 400), ({"id": True}, 400), ({"id": 0}, 409), ({"id": 10**400}, 409)],
)
def test_revoking_nobody_is_refused_in_a_line(served, body, status):
    answer = served.post("revoke", body)
    assert answer.status_code == status
    assert len(answer.json()["error"]) < 200
    assert served.state()["state"] == "idle"  # the owner, who has the number 0, is still let in


def test_no_more_guests_than_sixteen_and_each_name_once():
    guests = Guests()
    made = [guests.invite("read", f"tablet {n}") for n in range(MAX_GUESTS)]
    with pytest.raises(Exception, match="16 devices are invited already; revoke one first"):
        guests.invite("read", "one more")
    guests.revoke(made[3].id)
    with pytest.raises(Exception, match="there is a device named 'tablet 4'"):
        guests.invite("read", "tablet 4")
    assert guests.invite("read", "tablet 3").id == MAX_GUESTS + 1  # no number is used again
    assert len({guest.token for guest in guests}) == MAX_GUESTS
    assert all(guest.token not in repr(guest) for guest in guests)


def test_nobody_is_invited_where_the_way_is_not_encrypted(page_root):
    with serving(make_session(page_root)) as served:
        answer = served.post("invite", {"rights": "read", "name": "tablet"})
        says = (
            "other devices have no encrypted way to this page; start the server with"
            " --host ADDRESS --tls CERT KEY, or with --public-url"
        )
        assert (answer.status_code, answer.json()) == (409, {"error": says})
        found = HTTP.get(served.url("/api/guests"), headers=bearer(TOKEN)).json()
        assert (found["guests"], found["refusal"]) == ([], says)


# Rights


@pytest.mark.parametrize(("rights", "may"), [("read", READERS_MAY), ("rate", RATERS_MAY)])
def test_a_guest_may_ask_for_what_its_rights_allow_and_for_nothing_else(served, rights, may):
    only = "this token may only " + {"read": "read", "rate": "read and rate"}[rights]
    with guest(served, rights) as (token, _):
        for action in NEEDS:
            answers = [
                served.post(action, {}, headers=bearer(token)),
                HTTP.get(served.url(f"/api/{action}"), headers=bearer(token)),
            ]
            for answer in answers:  # 404, 405: asked for in the other way
                refused = (answer.status_code, answer.text) == (
                    403,
                    json.dumps({"error": only}, separators=(",", ":")),
                )
                if action in may:
                    assert answer.status_code not in (401, 403), (action, answer.text)
                else:
                    assert refused or answer.status_code in (404, 405), (action, answer.text)
            assert action in may or any(answer.status_code == 403 for answer in answers), action


def test_every_request_of_the_server_has_its_right(served):
    """A request without one would be everybody's, or an error of the server."""
    from cortext_live.page.requests import guest_handlers, handlers

    known = {*handlers(served.session), *guest_handlers(Access("t", "127.0.0.1"))}
    assert known <= set(NEEDS)


@pytest.mark.parametrize("rights", ["read", "rate"])
def test_a_guest_watches_as_its_rights_say(served, rights):
    with guest(served, rights) as (token, number):
        with served.page(token=token) as page:
            hello = page.read()
            assert (hello["rights"], hello["can_control"]) == (rights, False)
            (found,) = listed(served)["guests"]
            assert (found["id"], found["pages"]) == (number, 1)
        wait_until(lambda: listed(served)["guests"][0]["pages"] == 0, "the page is forgotten")
    with served.page() as page:
        assert page.read()["rights"] == "control"


def test_a_guest_cannot_feed_and_so_get_more_rights(served):
    ways = ["{0}", "{0}&token={1}", "wrong&token={0}", "{0}%00", "{0}&rights=control"]
    with guest(served, "rate") as (token, _):
        for way in ways:
            query = way.format(token, "control")
            with (
                pytest.raises(InvalidStatus, match="403"),
                connect(f"ws://127.0.0.1:{served.port}/feed?token={query}"),
            ):
                pass


def test_more_headers_give_a_guest_no_more_rights(served):
    with guest(served, "read") as (token, _):
        for more in (
            {"X-Rights": "control"},
            {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "https"},
            {"Cookie": f"token={TOKEN}"},
            {"X-HTTP-Method-Override": "GET"},
        ):
            assert served.post("stop", headers=bearer(token) | more).status_code == 403
        assert served.post("%73top", headers=bearer(token)).status_code == 403
        assert served.post("stop/", headers=bearer(token)).status_code in (404, 405)
        assert served.post("STOP", headers=bearer(token)).status_code == 404


def test_a_guest_uses_up_its_own_rate_of_changes_and_not_the_owners():
    access = Access("token", "127.0.0.1")
    guest = access.guests.invite("rate", "tablet")
    allowed = [guest.allows_another_change() for _ in range(200)]
    assert all(allowed[:60])
    assert not allowed[-1]
    assert access.owner.allows_another_change()


def test_guests_leave_places_for_the_owner(served):
    with ExitStack() as stack:
        tokens = [
            stack.enter_context(guest(served, name=f"tablet {n}"))[0]
            for n in range(MAX_GUEST_READERS // MAX_GUEST_PAGES + 1)
        ]
        for token in tokens[:-1]:
            for _ in range(MAX_GUEST_PAGES):
                stack.enter_context(served.page(token=token)).read()
        for token, most in ((tokens[0], MAX_GUEST_PAGES), (tokens[-1], MAX_GUEST_READERS)):
            with (
                served.page(token=token) as one_more,
                pytest.raises(ConnectionClosed, match=f"{most} pages are open already"),
            ):
                one_more.read()
        for _ in range(MAX_READERS - MAX_GUEST_READERS):
            assert stack.enter_context(served.page()).read()["rights"] == "control"
    wait_until(lambda: not len(served.session.readers), "the pages are forgotten")


# Revoking


@pytest.mark.parametrize("token", ["", "wrong", "revoked"])
def test_no_address_lets_a_wrong_or_revoked_token_in(served, token):
    if token == "revoked":
        with guest(served, "rate") as (token, _):
            assert HTTP.get(served.url("/api/state"), headers=bearer(token)).status_code == 200
    for action in NEEDS:
        for answer in (
            served.post(action, headers=bearer(token)),
            HTTP.get(served.url(f"/api/{action}"), headers=bearer(token)),
        ):
            assert answer.status_code in (401, 404, 405), (action, answer.text)
    for path in ("ws", "feed"):
        url = f"ws://127.0.0.1:{served.port}/{path}?token={token}"
        with pytest.raises(InvalidStatus, match="403"), connect(url):
            pass


def test_revoking_ends_the_guests_pages_at_once_and_no_others(served):
    with (
        served.page() as owners,
        guest(served, name="another") as (another, _),
        served.page(token=another) as others,
        guest(served) as (token, number),
        served.page(token=token) as page,
    ):
        page.next("stats")
        began_s = time.monotonic()
        assert served.post("revoke", {"id": number}).status_code == 200
        with pytest.raises(ConnectionClosed) as closed:
            until_it_ends(page)
        assert time.monotonic() - began_s < 1
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "access was withdrawn")
        for still in (owners, others):
            still.next("stats")
            assert still.socket.ping().wait(5)


def test_a_guest_who_is_revoked_while_it_connects_is_sent_nothing(served):
    go_on = threading.Event()
    busy = served.session._jobs.ask(lambda: go_on.wait(DEADLINE_S))
    with guest(served) as (token, number), served.page(token=token) as page:
        revoked = served.post("revoke", {"id": number}).status_code
        go_on.set()
        assert (revoked, busy.result(DEADLINE_S)) == (200, True)
        with pytest.raises(ConnectionClosed) as closed:
            page.read()
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "access was withdrawn")


def test_revoking_ends_an_answer_in_progress(served):
    with (
        guest(served, "rate") as (token, number),
        socket.create_connection(("127.0.0.1", served.port), timeout=DEADLINE_S) as half,
    ):
        head = f"POST /api/rating HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        half.sendall(f"{head}Content-Length: 99\r\n\r\n{{".encode())
        time.sleep(0.1)
        began_s = time.monotonic()
        served.post("revoke", {"id": number})
        try:
            rest = half.recv(4096)
        except ConnectionResetError:
            rest = b""
        assert rest == b""
        assert time.monotonic() - began_s < 1


@pytest.mark.slow
def test_revoking_ends_a_page_that_does_not_read(served):
    with guest(served) as (token, number):
        sleeper = socket.create_connection(("127.0.0.1", served.port), timeout=DEADLINE_S)
        sleeper.sendall(
            f"GET /ws?token={token} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
        )
        wait_until(lambda: len(served.session.readers) == 1, "it watches")
        served.post("revoke", {"id": number})
        wait_until(lambda: not len(served.session.readers), "it is sent nothing more")
        sleeper.settimeout(5)  # it never answers the close frame
        began_s = time.monotonic()
        with sleeper:
            try:
                while sleeper.recv(65536):
                    pass
            except ConnectionResetError:
                pass
        assert time.monotonic() - began_s < 4


def test_a_guest_holds_no_more_requests_than_sixteen_at_a_time(served):
    with guest(served, "rate") as (token, _), ExitStack() as stack:
        head = f"POST /api/rating HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        for _ in range(16):
            each = stack.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            each.sendall(f"{head}Content-Length: 99\r\n\r\n{{".encode())
        url = served.url("/api/state")
        wait_until(
            lambda: HTTP.get(url, headers=bearer(token)).status_code == 429, "no more are let in"
        )
        with pytest.raises(InvalidStatus), served.page(token=token):
            pass
        assert served.state()["state"] == "idle"


# Behind a proxy


@pytest.mark.parametrize(
    ("host", "origin", "let_in"),
    [
        ("lab.example", "https://lab.example", True),
        ("lab.example", None, True),
        ("LAB.example:443", "https://lab.example", True),
        ("127.0.0.1:8765", "https://lab.example", True),  # a proxy that names us by our address
        ("127.0.0.1:8765", "http://127.0.0.1:8765", True),  # on the machine itself
        ("lab.example", "http://lab.example", False),  # unencrypted: could be anybody on the way
        ("lab.example", "https://lab.example:8443", False),
        ("lab.example", "https://lab.example.evil.example", False),
        ("lab.example", "https://evil.example", False),
        ("lab.example", "null", False),
        ("127.0.0.1:8765", "https://evil.example", False),
        ("lab.example.evil.example", None, False),
        ("evil.example", "https://lab.example", False),
        ("evil.example", "https://evil.example", False),
        ("lab.example@evil.example", None, False),
        ("evil.example#lab.example", None, False),
        ("evil.example/lab.example", None, False),
        ("lab.example.", None, False),
    ],
)
def test_behind_a_proxy_its_name_is_let_in_and_no_other(served, host, origin, let_in):
    head = f"POST /api/stop HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\n"
    head += "" if origin is None else f"Origin: {origin}\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=DEADLINE_S) as connection:
        connection.sendall(f"{head}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    assert answer.startswith("HTTP/1.1 200" if let_in else ("HTTP/1.1 403", "HTTP/1.1 400")), answer


def test_with_a_certificate_only_encrypted_pages_are_ours():
    access = Access("t", "192.0.2.7", outside="https://192.0.2.7:8765", is_tls=True)
    assert access.allows_origin("https://192.0.2.7:8765", "192.0.2.7:8765")
    assert not access.allows_origin("http://192.0.2.7:8765", "192.0.2.7:8765")


@pytest.mark.parametrize(
    "url",
    [
        "http://lab.example",
        "lab.example",
        "https://",
        "https://:443",
        "https://lab.example?x=1",
        "https://lab.example/#token=x",
        "https://user:secret@lab.example",
        "https://lab example",
        "https://lab.example:99999",
        "https://lab.example:0",
        "https://[::1",
        "https://l\u00e4b.example",
        "https://lab.example/" + "x" * 200,
        "javascript:alert(1)//https://lab.example",
        'https://lab.example/"onload=x',
    ],
)
def test_public_addresses_that_are_none_are_refused(url):
    with pytest.raises(ConfigError, match="--public-url"):
        public_address(url)


def test_a_wrong_public_address_is_refused_before_anything_is_loaded(tmp_path, capsys):
    options = ["--lm", tmp_path, "--data", tmp_path, "--public-url", "http://lab.example"]
    assert run_command(["serve", str(tmp_path), *map(str, options)]) == 2
    assert "--public-url is 'http://lab.example', which is no https:// address" in (
        capsys.readouterr().err
    )


def test_public_addresses_may_have_a_path():
    assert public_address("https://lab.example:8443/cortext/") == "https://lab.example:8443/cortext"
