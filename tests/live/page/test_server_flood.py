"""A flood from an address without a token: it gets its own share, and the owner all of theirs."""

import socket
import threading
import time

import pytest
from serving import HTTP, TOKEN, make_session, serving
from websockets.exceptions import WebSocketException

from cortext_live.page.access import shares as shares_module
from cortext_live.page.access.shares import (
    BYTES,
    MOST_ADDRESSES,
    OF_ADDRESS,
    OF_ALL,
    PAGE,
    REQUEST,
    Shares,
)
from cortext_live.page.access.tokens import Holder
from cortext_live.page.server import WEB

FLOOD_S = 0.8
MOST_TRIES = 4000
"""Connections of each attacking thread: the test ends on any machine."""
FLOODER = "127.0.0.2"
LARGEST = b"GET /atkinson-next.woff2 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
WATCH = (
    b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@pytest.fixture
def small_share(monkeypatch):
    """A share that a few tenths of a second use up, and its size."""
    monkeypatch.setattr(shares_module, "OF_ADDRESS", (20.0, 100.0))
    return 20.0, 100.0


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def test_an_address_has_its_share_and_takes_nothing_from_another():
    clock = Clock()
    shares = Shares(clock)
    per_s, at_once = OF_ADDRESS
    assert sum(shares.allows(1, 1.0) for _ in range(5000)) == at_once
    clock.now_s += 2
    assert sum(shares.allows(1, 1.0) for _ in range(5000)) == 2 * per_s
    assert shares.allows(2, 1.0)


def test_a_family_of_five_behind_one_address_may_open_the_page_at_once_and_again():
    """Every file of the page, each with a connection of its own, and a page that watches."""
    clock = Clock()
    shares = Shares(clock)
    sizes = [file.stat().st_size for file in WEB.rglob("*") if file.is_file()]
    for _ in range(2):  # all of them open it again after ten seconds
        for _ in range(5):
            for size in sizes:
                assert shares.accepts(1)
                assert shares.allows(1, REQUEST)
                shares.use(1, size * BYTES)
            assert shares.allows(1, PAGE)
        clock.now_s += 10


def test_all_addresses_together_have_a_share_and_known_ones_come_in_beyond_it():
    shares = Shares(Clock())
    shares.know(7)
    n_allowed = sum(shares.allows(1000 + n // 100, 1.0) for n in range(10_000))
    assert n_allowed == OF_ALL[1]
    assert not shares.accepts(5)
    assert shares.accepts(7)


def test_an_answer_larger_than_the_share_is_paid_for_later_and_not_for_ever():
    clock = Clock()
    shares = Shares(clock)
    shares.use(1, 1e9)
    assert not shares.allows(1, 1.0)
    clock.now_s += 2 * OF_ADDRESS[1] / OF_ADDRESS[0]
    assert shares.allows(1, 1.0)


def test_many_addresses_take_no_memory():
    shares = Shares(Clock())
    for network in range(2 * MOST_ADDRESSES):
        shares.allows(network, 1.0)
        shares.know(network)
    assert len(shares._shares) == len(shares._known) == MOST_ADDRESSES


def test_a_guests_pages_count_as_changes():
    """Five each, of 60 at once."""
    guest = Holder("token", "read", id=1)
    assert sum(guest.allows_another_change(5.0) for _ in range(50)) == 12


def flood(port, request, stop, answered):
    """Connect again and again, ask, and read a little; count the answers."""
    for _ in range(MOST_TRIES):
        if stop.is_set():
            return
        try:
            with socket.create_connection(
                ("127.0.0.1", port), timeout=1, source_address=(FLOODER, 0)
            ) as client:
                client.sendall(request)
                if client.recv(64).startswith((b"HTTP/1.1 200", b"HTTP/1.1 101")):
                    answered.append(1)
        except OSError:
            pass


def test_the_owner_decodes_and_is_answered_while_strangers_flood_an_open_view(
    page_root, small_share
):
    stop, answered = threading.Event(), []
    with (
        serving(make_session(page_root, loop=True), open_view=True) as served,
        served.page(close_timeout=0.1) as page,
    ):
        served.post("start")
        attackers = [
            threading.Thread(target=flood, args=(served.port, request, stop, answered), daemon=True)
            for request in (LARGEST, LARGEST, WATCH, WATCH)
        ]
        begin_s = time.monotonic()
        for each in attackers:
            each.start()
        n_asked = n_said = 0
        while time.monotonic() - begin_s < FLOOD_S:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            found = HTTP.get(served.url("/api/state"), headers=headers, timeout=5)
            assert found.status_code == 200
            n_asked += 1
            n_said += page.next("utterance")["text"] != ""
        with served.page(close_timeout=0.1) as another:  # the owner opens one more
            assert another.next("hello")["can_control"]
        stop.set()
        for each in attackers:
            each.join(5)
        took_s = time.monotonic() - begin_s
    assert n_asked > 1
    assert n_said == n_asked
    per_s, at_once = small_share
    # An answer that was given takes a connection and a request.
    assert len(answered) <= (at_once + per_s * took_s) / 2


def test_a_page_of_a_stranger_beyond_the_share_is_closed_and_the_owners_is_not(
    page_root, small_share
):
    closed = 0
    with serving(make_session(page_root), open_view=True) as served:
        for _ in range(20):  # a page takes ten of 100, and its connection and request one each
            try:
                with served.page(token=None) as page:
                    page.next("hello")
            except (WebSocketException, OSError, EOFError):
                closed += 1
        assert closed
        with served.page() as page:
            assert page.next("hello")["can_control"]
