"""`cortext lm-server` as a process.

Killed, ended by signals, started late, on a full disk, with wrong arguments.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from commands import Command
from engine_cases import SENTENCES, sentence_entries, write_lm
from lm_cases import Log, normalised, spoken_logits
from redis_process import wait_for
from release_client import ReleaseClient

from cortext.cli import run as run_command
from cortext.decoding import Decoder, DecoderOptions
from cortext_live.lm_server.published_options import PublishedOptions

TEXT = "i would like water too"
LOGITS = spoken_logits(TEXT)
HALF = len(LOGITS) // 2


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return Decoder.from_dir(
        write_lm(tmp_path_factory.mktemp("lm") / "lm", sentence_entries(), SENTENCES)
    )


@pytest.fixture
def process(decoder, tmp_path):
    """Starts `cortext lm-server` in a process of its own; all are ended with the test."""
    started = []

    def start(redis, *arguments):
        log = Log(tmp_path / f"process-{len(started)}.log")
        files = ["--lm", decoder.lm_dir, "--log", log.path]
        options = ["--preset", "published", "--redis-port", str(redis.port), *arguments]
        started.append(Command("lm-server", *files, *options))
        wait_for(lambda: log.path.exists() and log.lines("serving"), "server")
        return started[-1], log

    yield start
    for one in started:
        one.kill()


def end(server, number=signal.SIGTERM):
    """End a server with a signal; return how it ended."""
    os.kill(server.process.pid, number)
    return server.wait(10)


@pytest.mark.slow
def test_a_server_that_was_killed_goes_on_where_it_ended(redis_server, decoder, process):
    options = PublishedOptions().options(DecoderOptions())
    expected = decoder.with_options(**vars(options)).decode(normalised(LOGITS), "lm")
    client = ReleaseClient(redis_server.client())
    first, _ = process(redis_server)
    client.decode(LOGITS)
    client.reset()
    client.send(LOGITS[:5])
    client.send(LOGITS[5:HALF])
    first.kill()
    client.redis.xadd("remote_lm_input", {"logits": LOGITS[HALF:].tobytes()})
    client.redis.xadd("remote_lm_finalize", {"done": 0})
    _, log = process(redis_server)
    assert log.lines("resuming")[0]["answered"]["remote_lm_output_partial"] == 2
    final = client.wait("remote_lm_output_final")
    assert final[b"scoring"].decode().split(";")[4] == repr(expected[0].score)
    assert client.redis.xlen("remote_lm_output_partial") == 1 + 3
    assert client.wait("remote_lm_output_partial")[b"lm_response_partial"].decode() == TEXT
    assert client.decode(LOGITS).text == TEXT


@pytest.mark.slow
def test_a_client_that_was_there_before_the_server_is_served(redis_server, process):
    client = ReleaseClient(redis_server.client())
    # Nobody's: a reset comes after it.
    client.redis.xadd("remote_lm_finalize", {"done": 0}, id="1-0")
    client.redis.xadd("remote_lm_reset", {"done": 0})
    process(redis_server)
    assert client.wait("remote_lm_done_resetting") == {b"done": b"1"}
    client.send(LOGITS)
    assert client.finalize().text == TEXT
    assert client.redis.xlen("remote_lm_output_final") == 1


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_and_what_it_leaves_undone_is_named(redis_server, process, number):
    client = ReleaseClient(redis_server.client())
    server, log = process(redis_server)
    client.reset()
    client.send(LOGITS[:HALF])
    start = time.monotonic()
    ended = end(server, number)
    assert time.monotonic() - start < 3
    assert (ended.status, ended.stderr) == (0, "")
    assert [line["event"] for line in log.lines()][-1] == "stopped"
    assert log.lines("utterance_dropped")[0]["why"] == "the server stops"
    assert client.redis.xrange("remote_lm_errors")[-1][1] == {
        b"error": b"the server stopped in mid-utterance"
    }


def test_a_server_without_redis_says_that_it_waits_and_for_what(decoder, tmp_path):
    with socket.socket() as held:  # bound, and listening to nobody
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        files = ["--lm", decoder.lm_dir, "--log", tmp_path / "log"]
        server = Command("lm-server", *files, "--redis-port", str(port))
        wait_for(lambda: server.stderr, "a line")
        ended = end(server)
    says = f"Redis at localhost:{port} does not answer; waiting for it (Ctrl-C ends this)\n"
    assert (ended.status, ended.stderr) == (0, says)


@pytest.mark.slow
def test_a_signal_ends_a_server_that_waits_for_redis_or_searches_for_long(redis_server, process):
    server, log = process(redis_server)
    redis_server.client().xadd("remote_lm_input", {"logits": np.tile(LOGITS, (4000, 1)).tobytes()})
    time.sleep(0.1)
    assert end(server).status == 0
    assert log.lines("utterance_dropped")
    server, log = process(redis_server)
    redis_server.stop()
    log.wait("redis_unreachable")
    assert end(server).status == 0


@pytest.mark.slow
def test_a_full_disk_under_the_log_ends_nothing(redis_server, decoder):
    command = [
        Path(sys.executable).parent / "cortext",
        "lm-server",
        "--lm",
        decoder.lm_dir,
        "--log",
        "/dev/full",
    ]
    with subprocess.Popen(
        [*command, "--redis-port", str(redis_server.port)], stderr=subprocess.PIPE
    ) as server:
        redis = redis_server.client()
        wait_for(lambda: redis.xlen("remote_lm_args"), "announcement")
        assert ReleaseClient(redis).decode(LOGITS).text == TEXT
        server.terminate()
        assert (server.wait(timeout=10), server.stderr.read()) == (0, b"")


def test_wrong_arguments_are_one_line(tmp_path, decoder, capfd):
    def run(*arguments):
        status = run_command(["lm-server", *map(str, arguments)])
        told = capfd.readouterr().err
        assert (status, told.count("\n")) == (2, 1), told
        return told

    assert "lexicon.txt" in run("--lm", tmp_path)
    assert "unknown preset 'publised'; did you mean 'published'?" in run(
        "--lm", decoder.lm_dir, "--preset", "publised"
    )
    assert "did you mean 'beam'?" in run("--lm", decoder.lm_dir, "--set", "beem=3")
    assert "the log cannot be written" in run(
        "--lm", decoder.lm_dir, "--log", tmp_path / "no" / "log"
    )


@pytest.mark.slow
def test_a_server_killed_over_and_over_gives_every_sentence_once(redis_server, process):
    client = ReleaseClient(redis_server.client())
    for _ in range(3):
        server, _ = process(redis_server)
        client.reset()
        client.redis.xadd("remote_lm_input", {"logits": LOGITS.tobytes()})
        client.redis.xadd("remote_lm_finalize", {"done": 0})
        server.kill()  # before, while or after it answers
        server, _ = process(redis_server)
        final = client.wait("remote_lm_output_final")
        assert final[b"lm_response_final"].decode() == TEXT
        server.kill()
    assert client.redis.xlen("remote_lm_output_final") == 3
    assert client.redis.xlen("remote_lm_output_partial") == 3


@pytest.mark.slow
def test_a_killed_server_of_json_messages_goes_on_too(redis_server, process):
    redis = redis_server.client()

    def say(kind, **logits):
        redis.xadd(
            "cortext_lm_input",
            {"message": json.dumps({"type": kind, "utterance": "one"}), **logits},
        )

    def heard():
        return [json.loads(fields[b"message"]) for _, fields in redis.xrange("cortext_lm_output")]

    first, _ = process(redis_server, "--profile", "json")
    say("begin")
    say("frames", logits=LOGITS[:HALF].tobytes())
    wait_for(lambda: heard()[-1]["type"] == "partial", "partial")
    first.kill()
    say("frames", logits=LOGITS[HALF:].tobytes())
    say("end")
    process(redis_server, "--profile", "json")
    wait_for(lambda: heard()[-1]["type"] == "final", "final")
    assert [message["type"] for message in heard()] == [
        "ready",
        "begun",
        "partial",
        "ready",
        "partial",
        "final",
    ]
    assert (heard()[-1]["text"], heard()[-1]["error"]) == (TEXT, None)


@pytest.mark.slow
def test_parameters_outlive_a_kill_but_not_an_end(redis_server, process):
    client = ReleaseClient(redis_server.client())

    def announced():
        newest = client.redis.xrevrange("remote_lm_args", count=1)[0][1]
        return newest[b"nbest"], newest[b"beam"]

    server, _ = process(redis_server)
    client.update(nbest=3, beam="wide")
    assert announced() == (b"3", b"17.0")
    server.kill()
    server, log = process(redis_server, "--set", "beam=12")
    assert log.lines("parameters_restored")
    assert announced() == (b"3", b"12.0")
    end(server)
    process(redis_server)
    assert announced() == (b"100", b"17.0")
