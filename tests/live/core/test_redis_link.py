"""One connection to Redis: order, ids, one entry for one call, streams that stay short."""

import threading
import time

import pytest
from redis_process import wait_for

from cortext.errors import LiveError
from cortext_live.core.redis_connection import Stopped
from cortext_live.core.redis_link import RedisLink
from cortext_live.core.redis_streams import address, redis_url


@pytest.fixture
def link(redis_server):
    link = RedisLink(redis_server.url, "test", timeout_s=0.2, keep=(100, 10_000))
    yield link
    link.close()


def test_entries_of_several_streams_come_in_the_order_in_which_they_were_added(link, redis_server):
    redis = redis_server.client()
    for stream, entry_id in (("b", "4-0"), ("b", "5-0"), ("a", "3-0"), ("a", "5-1"), ("a", "6-0")):
        redis.xadd(stream, {"x": 1}, id=entry_id)
    found = link.read({"b": (0, 0), "a": (0, 0)}, 10)
    assert [(entry.stream, entry.id) for entry in found] == [
        ("a", (3, 0)), ("b", (4, 0)), ("b", (5, 0)), ("a", (5, 1)), ("a", (6, 0)),
    ]  # fmt: skip


def test_a_stream_with_more_to_come_holds_back_what_is_later(link, redis_server):
    redis = redis_server.client()
    for number in range(1, 6):
        redis.xadd("a", {"x": number}, id=f"{number}-0")
    redis.xadd("b", {"x": 9}, id="3-5")
    after = {"a": (0, 0), "b": (0, 0)}
    read = []
    while found := link.read(after, 1, count=2):
        for entry in found:
            after[entry.stream] = entry.id
            read.append(entry.id)
    assert read == [(1, 0), (2, 0), (3, 0), (3, 5), (4, 0), (5, 0)]


def test_an_answer_is_later_than_what_it_answers_even_if_the_clock_is_not(link):
    ahead = link.now()[0] + 60_000
    assert link.add("s", {"x": 1}, answers=(ahead, 4)) == (ahead, 5)
    assert link.add("s", {"x": 1}) == (ahead, 6)
    assert link.now() <= link.add("t", {"x": 1}) < (ahead, 0)


def test_another_writer_does_not_get_in_the_way(link, redis_server):
    redis = redis_server.client()
    ahead = link.now()[0] + 60_000
    redis.xadd("s", {"x": 1}, id=f"{ahead}-7")
    assert link.add("s", {"x": 2}) == (ahead, 8)
    assert redis.xlen("s") == 2


def test_an_entry_is_added_once_when_its_answer_is_lost(link, redis_server):
    redis = redis_server.client()
    redis.execute_command("CLIENT", "PAUSE", 700, "WRITE")
    first = link.add("s", {"x": 1})  # gives up waiting several times
    assert link.n_connections > 1
    assert link.add("s", {"x": 2}) > first
    assert [fields for _, fields in redis.xrange("s")] == [{b"x": b"1"}, {b"x": b"2"}]


def test_streams_are_shortened_by_number_and_by_size(link, redis_server):
    redis = redis_server.client()
    for number in range(500):
        link.add("small", {"x": number})
        link.add("large", {"x": "y" * 1000})
    assert 90 <= redis.xlen("small") <= 100
    assert redis.xlen("large") <= 10
    assert redis.xrevrange("small", count=1)[0][1] == {b"x": b"499"}


def test_what_others_have_left_is_shortened_up_to_an_id(link, redis_server):
    redis = redis_server.client()
    for number in range(1, 401):
        redis.xadd("s", {"x": number}, id=f"{number}-0")
    link.retire_up_to("s", (300, 5))
    left = [int(fields[b"x"]) for _, fields in redis.xrange("s")]
    assert left == list(range(left[0], 401))
    assert 201 <= left[0] <= 211


def test_waiting_ends_when_asked_to(redis_server):
    stop = threading.Event()
    link = RedisLink(redis_server.url, "test", stop)
    redis_server.stop()
    threading.Timer(0.2, stop.set).start()
    start = time.monotonic()
    with pytest.raises(Stopped):
        link.now()
    assert time.monotonic() - start < 5
    link.close()


def test_those_who_do_the_same_work_are_found(redis_server):
    first, second = RedisLink(redis_server.url, "work"), RedisLink(redis_server.url, "work")
    other, elsewhere = (
        RedisLink(redis_server.url, "other"),
        RedisLink(redis_server.url.replace("/0", "/1"), "work"),
    )
    assert [len(link.rivals()) for link in (first, second, other, elsewhere)] == [0, 1, 0, 0]
    second.end_connection(second.rivals()[0])
    assert second.rivals() == []
    assert len(first.rivals()) == 1  # it has come back, and is the later one
    for link in (first, second, other, elsewhere):
        link.close()


def test_a_key_of_another_kind_and_a_missing_permission_are_errors(link, redis_server):
    redis = redis_server.client()
    redis.set("s", "text")
    with pytest.raises(LiveError, match="Redis refuses: WRONGTYPE"):
        link.add("s", {"x": 1})
    redis.acl_setuser(
        "reader",
        enabled=True,
        passwords=["+pass"],
        keys=["*"],
        commands=["+xread", "+client|setname"],
    )
    limited = RedisLink(f"redis://reader:pass@127.0.0.1:{redis_server.port}/0", "test")
    assert limited.read({"nothing": (0, 0)}, 1) == []
    with pytest.raises(LiveError, match=r"Redis refuses: .*no permissions"):
        limited.now()
    limited.close()


def test_a_key_that_is_set_aside_keeps_what_it_holds(link, redis_server):
    redis = redis_server.client()
    redis.rpush("position", "x")
    assert link.set_aside("position") == "position:unreadable"
    assert redis.keys() == [b"position:unreadable"]
    link.set_aside("position")  # it is gone, as after an attempt whose answer was lost
    assert redis.lrange("position:unreadable", 0, -1) == [b"x"]


def test_a_read_only_server_is_waited_for(link, redis_server):
    redis = redis_server.client()
    redis.replicaof("127.0.0.1", 1)
    done = threading.Thread(target=lambda: link.add("s", {"x": 1}))
    done.start()
    wait_for(lambda: link._down_since is not None, "refusal")
    redis.replicaof("no", "one")
    done.join(timeout=10)
    assert redis.xlen("s") == 1


def test_a_database_that_is_no_number_is_refused():
    with pytest.raises(LiveError, match="the Redis URL cannot be read"):
        address("redis://localhost:6379/abc")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@rig:7000/2", "rig:7000"),
        ("rediss://:secret@rig", "rig:6379"),
        ("unix:///run/redis.sock?password=secret", "/run/redis.sock"),
        (redis_url("rig", 1234), "rig:1234"),
        (redis_url("rig", 1234, "/run/redis.sock"), "/run/redis.sock"),
    ],
)
def test_what_is_shown_of_an_address_holds_no_password(url, shown):
    assert address(url) == shown


def test_a_unix_socket_serves_too(make_redis, tmp_path):
    socket = f"/tmp/cortext-{time.time_ns()}.sock"
    make_redis(unixsocket=socket).start()
    link = RedisLink(redis_url("", 0, socket), "test")
    assert link.now() > (0, 0)
    link.close()
