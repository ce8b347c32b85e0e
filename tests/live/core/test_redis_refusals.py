"""A Redis that lets nobody in: each reason is one line that says what to do."""

import socket
import subprocess
import threading
from contextlib import closing

import pytest
import redis.exceptions
from certificates import make_certificate

from cortext.cli import run as cortext
from cortext.errors import LiveError
from cortext_live.brand.process import node_url, run_node
from cortext_live.core.redis_link import RedisLink
from cortext_live.core.redis_refusals import no_connection, refusal


def refused(url):
    """What a node and a link say at their start; both say the same."""
    with pytest.raises(LiveError) as of_node:
        run_node("speech", url, threading.Event())
    with closing(RedisLink(url, "test", timeout_s=2)) as link, pytest.raises(LiveError) as of_link:
        link.now()
    assert str(of_node.value) == str(of_link.value)
    return str(of_link.value)


def test_a_password_is_asked_for_with_the_way_to_give_it(make_redis):
    server = make_redis(requirepass="s3cret").start()
    at = f"127.0.0.1:{server.port}"
    assert refused(server.url) == (
        f"{at}: Redis asks for a password; give it as redis://[USER]:PASSWORD@{at}/0"
        " to --redis-url or in the environment variable CORTEXT_REDIS_URL"
    )
    wrong = refused(f"redis://:guess3d@{at}/0")
    assert wrong.startswith(f"{at}: Redis refuses: invalid username-password pair")
    assert wrong.endswith("; check user and password")
    assert "guess3d" not in wrong
    assert refused(f"redis://:s3cret@{at}/99").endswith(
        "DB index is out of range; give another number after the last / of the address"
    )


def test_a_password_that_redis_does_not_have_is_named(redis_server):
    assert "a password was given, and Redis has none; leave it out" in refused(
        f"redis://:s3cret@127.0.0.1:{redis_server.port}/0"
    )


def test_a_user_without_rights_is_told_which_one_is_missing(redis_server):
    redis_server.client().acl_setuser(
        "lab", enabled=True, passwords=["+x"], keys=["*"], commands=["+ping", "+client|setname"]
    )
    url = f"redis://lab:x@127.0.0.1:{redis_server.port}/0"
    with pytest.raises(LiveError, match=r"no permissions to run the 'time' command; .*ACL"):
        run_node("speech", url, threading.Event())
    with closing(RedisLink(url, "test")) as link, pytest.raises(LiveError, match="'time' command"):
        link.now()


def test_a_node_needs_no_right_to_ping(redis_server):
    redis_server.client().acl_setuser(
        "lab", enabled=True, passwords=["+x"], keys=["*"], commands=["+client|setname"]
    )
    url = f"redis://lab:x@127.0.0.1:{redis_server.port}/0"
    with pytest.raises(LiveError, match="'time' command"):
        run_node("speech", url, threading.Event())


def test_protected_mode_is_named():
    """The reply of Redis 7.0 to a client of another machine, its beginning."""
    denied = redis.exceptions.ResponseError(
        "DENIED Redis is running in protected mode because protected mode is enabled and no"
        " password is set for the default user."
    )
    line = str(refusal(denied, "redis://10.0.0.5:6379/0", redis.exceptions))
    assert line.startswith("10.0.0.5:6379: Redis is in protected mode")
    assert "set a password in Redis (requirepass)" in line


def test_protected_mode_of_a_real_server_is_named(make_redis):
    (address,) = subprocess.run(
        ["hostname", "-I"], capture_output=True, text=True, check=True
    ).stdout.split()[:1] or [None]
    if address is None:
        pytest.skip("THIS MACHINE HAS NO ADDRESS BUT LOOPBACK: PROTECTED MODE IS NOT TESTED")
    server = make_redis(bind="0.0.0.0", **{"protected-mode": "yes"}).start()
    assert "Redis is in protected mode" in refused(f"redis://{address}:{server.port}/0")


def test_encryption_of_one_side_alone_is_named(make_redis, tmp_path):
    cert, key = make_certificate(tmp_path / "tls")
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = {"tls-cert-file": str(cert), "tls-key-file": str(key), "tls-ca-cert-file": str(cert)}
    server = make_redis(**files, **{"tls-port": str(port)}).start()
    plain, encrypted = f"redis://127.0.0.1:{port}/0", f"rediss://127.0.0.1:{port}/0"
    line = refused(plain)
    assert "Redis encrypts at this port; give it as rediss://127.0.0.1" in line
    assert "certificate of Redis is not accepted: self-signed certificate" in refused(encrypted)
    with_authority = f"{encrypted}?ssl_ca_certs={cert}"
    assert "may ask for a certificate; append ?ssl_certfile=FILE" in refused(with_authority)
    line = no_connection(TimeoutError("Timeout"), f"rediss://127.0.0.1:{server.port}/0")
    assert "does not encrypt at this port; write redis:// in place of rediss://" in str(line)


@pytest.mark.parametrize(
    ("named", "found", "expected"),
    [
        ((None, None, None), None, "redis://127.0.0.1:6379/0"),
        ((None, None, None), "redis://:x@10.0.0.5/2", "redis://:x@10.0.0.5/2"),
        (("127.0.0.1", 6379, None), "redis://:x@localhost/0", "redis://:x@localhost/0"),
        (("10.0.0.5", 6379, None), "redis://:x@localhost/0", "redis://10.0.0.5:6379/0"),
        ((None, 6380, None), "redis://:x@127.0.0.1:6380/0", "redis://:x@127.0.0.1:6380/0"),
        ((None, 6380, "/r.sock"), "redis://:x@127.0.0.1:6380/0", "unix:///r.sock"),
        ((None, None, "/r.sock"), "unix:///r.sock?password=x", "unix:///r.sock?password=x"),
    ],
)
def test_the_variable_gives_a_node_the_password_of_the_redis_that_it_was_named(
    monkeypatch, named, found, expected
):
    monkeypatch.delenv("CORTEXT_REDIS_URL", raising=False)
    if found:
        monkeypatch.setenv("CORTEXT_REDIS_URL", found)
    assert node_url(*named) == expected


def test_the_command_takes_the_password_from_the_variable(make_redis, monkeypatch, capsys):
    """With it the node comes as far as looking for its graph."""
    server = make_redis(requirepass="s3cret").start()
    command = ["brand-node", "-n", "decoder", "-i", "127.0.0.1", "-p", str(server.port)]
    assert cortext(command) == 2
    assert "Redis asks for a password" in capsys.readouterr().err
    monkeypatch.setenv("CORTEXT_REDIS_URL", f"redis://:s3cret@127.0.0.1:{server.port}/0")
    assert cortext(command) == 2
    assert "no graph was published" in capsys.readouterr().err
