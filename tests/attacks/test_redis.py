"""Attacks on the Redis language-model server.

Streams that others shorten, positions that are damaged, odd entries.

Each is done to `cortext lm-server` in a process of its own, through a real redis-server and nothing
else.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Command
from engine_cases import SENTENCES, sentence_entries, write_lm
from lm_cases import SAID, spoken_logits
from redis_process import RedisServer, wait_for
from release_client import ReleaseClient

pytestmark = pytest.mark.redis
SENTENCE = "i would like water too"
LOGITS = np.concatenate([spoken_logits(SAID[number % 3], number) for number in range(3)])
TEXT = " ".join(SAID[number % 3] for number in range(3))
HALF = len(LOGITS) // 2
KEY = "cortext_lm_position:remote_lm_reset"
JSON_KEY = "cortext_lm_position:cortext_lm_input"


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return write_lm(tmp_path_factory.mktemp("lm") / "lm", sentence_entries(), SENTENCES)


@dataclass
class Lab:
    """A redis-server, and servers on it that can be killed."""

    redis: RedisServer
    lm: Any
    server: Command | None = None

    def __post_init__(self) -> None:
        self.db = self.redis.client()
        self.client = ReleaseClient(self.db)

    def start(self, *arguments: str) -> None:
        """Start a server, and wait until it serves."""
        command = ["lm-server", "--lm", self.lm, "--redis-port", str(self.redis.port), *arguments]
        self.server = Command(*command)
        wait_for(lambda: '"serving"' in self.server.stderr or not self.server.running(), "server")
        assert self.server.running(), self.server.stderr

    def kill(self) -> None:
        """End it with SIGKILL."""
        assert self.server is not None
        self.server.kill()

    def send(self, logits_PV: np.ndarray, **options: Any) -> None:
        """Frames one by one, without waiting for answers."""
        for logits_V in logits_PV:
            self.db.xadd("remote_lm_input", {"logits": logits_V.tobytes()}, **options)

    def speak(self, logits_PV: np.ndarray) -> None:
        """Frames one by one, each with its answer."""
        for first in range(len(logits_PV)):
            self.client.send(logits_PV[first : first + 1])

    def final(self) -> tuple[str, str]:
        """Text and error of the utterance that is ended now."""
        final = self.client.finalize()
        assert self.client.wait("remote_lm_done_finalizing")
        return final.text, final.fields.get(b"error", b"").decode()

    def errors(self) -> list[str]:
        return [fields[b"error"].decode() for _, fields in self.db.xrange("remote_lm_errors")]


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.close()


@pytest.fixture
def lab(redis_server, lm):
    redis_server.set_maxmemory("0")
    lab = Lab(redis_server, lm)
    yield lab
    if lab.server is not None and lab.server.running():
        said = lab.server.interrupt().said
        assert "Traceback" not in said, said


# A small --keep loses no speech, and says nothing where nothing is lost


@pytest.mark.parametrize("keep", ["1", "100"])
def test_a_server_with_a_small_keep_that_is_killed_in_mid_utterance_loses_nothing(lab, keep):
    lab.start("--keep", keep)
    lab.client.reset()
    lab.speak(LOGITS[:-40])
    for first in (len(LOGITS) - 40, len(LOGITS) - 20):
        lab.kill()
        lab.start("--keep", keep)
        lab.speak(LOGITS[first : first + 20])
    assert lab.final() == (TEXT, "")
    assert lab.errors() == []
    assert lab.db.xinfo_stream("remote_lm_output_partial")["entries-added"] == len(LOGITS)
    lab.client.reset()
    lab.speak(LOGITS[:1])
    wait_for(
        lambda: lab.db.xlen("remote_lm_input") <= int(keep) + 1,
        "deleted entries, once nobody needs them",
    )


def test_what_waits_while_the_server_is_down_is_not_shortened(lab):
    lab.start("--keep", "100")
    lab.client.decode(LOGITS[:5])
    lab.kill()
    lab.db.xadd("remote_lm_reset", {"done": 0})
    lab.send(LOGITS)
    lab.start("--keep", "100")
    assert lab.final() == (TEXT, "")
    assert lab.errors() == []


def test_a_client_that_shortens_its_own_streams_gets_no_report_of_a_gap(lab):
    lab.start("--keep", "100")
    for _ in range(3):
        lab.db.xadd("remote_lm_reset", {"done": 0}, maxlen=1, approximate=False)
        for logits_V in LOGITS:
            lab.db.xadd(
                "remote_lm_input", {"logits": logits_V.tobytes()}, maxlen=1, approximate=False
            )
            lab.client.wait("remote_lm_output_partial")
        assert lab.final() == (TEXT, "")
        lab.db.delete("remote_lm_input")  # between utterances it belongs to nobody
        lab.db.xtrim("remote_lm_finalize", 0)
    assert lab.errors() == []


@pytest.mark.slow
def test_every_utterance_of_many_with_kills_between_is_whole(lab):
    rng = random.Random(0)
    lab.start("--keep", "100")
    for number in range(6):
        lab.client.reset()
        at = rng.randrange(1, len(LOGITS))
        lab.speak(LOGITS[:at])
        if number % 2:
            lab.kill()
            lab.send(LOGITS[at:])
            lab.start("--keep", "100")
            for _ in LOGITS[at:]:
                lab.client.wait("remote_lm_output_partial")
        else:
            lab.speak(LOGITS[at:])
        assert lab.final() == (TEXT, "")
    assert lab.errors() == []


# What others delete is named


@dataclass(frozen=True)
class Gap:
    """Entries that somebody deletes in mid-utterance.

    delete: does it, when half of the frames have been answered and the others wait for the server
    alive:  whether the server is there again, or only stopped for the moment
    says:   what the error of the result holds; empty: the text is whole
    slow:   whether it is tried in the slow tests alone
    """

    name: str
    delete: Callable[[Lab], Any]
    says: str = "deleted"
    alive: bool = False
    slow: bool = False


def waiting(lab: Lab) -> list[bytes]:
    """Ids of the frames that no server has read."""
    return [entry_id for entry_id, _ in lab.db.xrange("remote_lm_input")[HALF:]]


GAPS = [
    Gap("nothing", lambda lab: None, ""),
    Gap(
        "all but the last 5 frames",
        lambda lab: lab.db.xtrim("remote_lm_input", 5, approximate=False),
    ),
    Gap(
        "one that was read",
        lambda lab: lab.db.xdel("remote_lm_input", lab.db.xrange("remote_lm_input")[3][0]),
        slow=True,
    ),
    Gap(
        "one of the middle",
        lambda lab: lab.db.xdel("remote_lm_input", waiting(lab)[7]),
        "1 entry of remote_lm_input",
    ),
    Gap("all frames", lambda lab: lab.db.xtrim("remote_lm_input", 0), slow=True),
    Gap("the stream", lambda lab: lab.db.delete("remote_lm_input"), slow=True),
    Gap(
        "the newest frame", lambda lab: lab.db.xdel("remote_lm_input", waiting(lab)[-1]), slow=True
    ),
    Gap("all answers", lambda lab: lab.db.xtrim("remote_lm_output_partial", 0), ""),
    Gap(
        "the answers' stream", lambda lab: lab.db.delete("remote_lm_output_partial"), "", slow=True
    ),
    Gap(
        "what was read, live",
        lambda lab: lab.db.xtrim("remote_lm_input", len(LOGITS) - HALF),
        "",
        alive=True,
    ),
    Gap(
        "one of the middle, live",
        lambda lab: lab.db.xdel("remote_lm_input", waiting(lab)[7]),
        "1 entry",
        alive=True,
        slow=True,
    ),
    Gap(
        "all but the last 5, live",
        lambda lab: lab.db.xtrim("remote_lm_input", 5, approximate=False),
        alive=True,
    ),
    Gap("the stream, live", lambda lab: lab.db.delete("remote_lm_input"), alive=True, slow=True),
]


def position_is_saved(lab: Lab) -> bool:
    """Tell if the position that Redis has is that of the newest frame."""
    newest = lab.db.xinfo_stream("remote_lm_input")["last-generated-id"]
    return (lab.db.hget(KEY, "read:remote_lm_input") or b"- -").split()[1] == newest


@pytest.mark.parametrize(
    "gap",
    [pytest.param(gap, id=gap.name, marks=[pytest.mark.slow] if gap.slow else []) for gap in GAPS],
)
def test_what_others_delete_in_mid_utterance_is_named_in_the_result(lab, gap):
    lab.start("--keep", "100")
    lab.client.reset()
    lab.speak(LOGITS[:HALF])
    wait_for(lambda: position_is_saved(lab), "the position")
    if gap.alive:
        os.kill(lab.server.process.pid, signal.SIGSTOP)
    else:
        lab.kill()
    lab.send(LOGITS[HALF:])
    gap.delete(lab)
    if gap.alive:
        os.kill(lab.server.process.pid, signal.SIGCONT)
    else:
        lab.start("--keep", "100")
        lab.kill()  # what is missing is known to the next one, too
        lab.start("--keep", "100")
    text, error = lab.final()
    if not gap.says:
        assert (text, error) == (TEXT, "")
        return
    assert gap.says in error
    assert any(gap.says in one for one in lab.errors())
    lab.client.decode(LOGITS[:5])
    assert lab.client.decode(LOGITS).fields.get(b"error") is None  # and it is said once


def test_streams_shortened_before_the_first_server_came_are_named(lab):
    lab.db.xadd("remote_lm_reset", {"done": 0})
    lab.send(LOGITS, maxlen=20, approximate=False)
    lab.start("--keep", "100")
    assert "deleted" in lab.final()[1]


def test_where_redis_has_no_memory_left_answers_come_and_a_later_restart_names_what_it_lacks(lab):
    lab.start("--keep", "100")
    lab.client.reset()
    lab.speak(LOGITS[:HALF])
    pipeline = lab.db.pipeline(transaction=True)
    pipeline.xadd("remote_lm_input", {"logits": LOGITS[HALF].tobytes()})
    pipeline.config_set("maxmemory", "1")
    pipeline.execute()
    wait_for(lambda: lab.db.xlen("remote_lm_input") <= 1, "room")
    lab.redis.set_maxmemory("0")
    lab.client.wait("remote_lm_output_partial")
    lab.kill()
    lab.start("--keep", "100")
    lab.speak(LOGITS[HALF + 1 :])
    assert "were deleted" in lab.final()[1]


# A position that cannot be read

DAMAGE: dict[str, Callable[[Any, str], Any]] = {
    "wrong type": lambda db, key: (db.delete(key), db.set(key, "x")),
    "list": lambda db, key: (db.delete(key), db.rpush(key, "x")),
    "not UTF-8": lambda db, key: db.hset(key, "remote_lm_input", b"\xff\xfe"),
    "name not UTF-8": lambda db, key: db.hset(key, b"\xff\xfe", "1-1"),
    "no id": lambda db, key: db.hset(key, "remote_lm_input", "five"),
    "5,000 digits": lambda db, key: db.hset(key, "remote_lm_input", "9" * 5000 + "-0"),
    "an id beyond Redis's": lambda db, key: db.hset(key, "remote_lm_input", f"{2**64}-0"),
    "negative": lambda db, key: db.hset(key, "remote_lm_input", "-1-0"),
    "broken JSON": lambda db, key: db.hset(key, "changes", "{"),
    "deep JSON": lambda db, key: db.hset(key, "changes", "[" * 100_000),
    "JSON of another kind": lambda db, key: db.hset(key, "changes", "[1]"),
    "JSON with a number": lambda db, key: db.hset(key, "changes", '{"beam": 5}'),
    "5,000 digits in JSON": lambda db, key: db.hset(key, "changes", '{"beam": ' + "9" * 5000 + "}"),
    "huge": lambda db, key: db.hset(key, "announced", "x" * 50_000_000),
    "many fields": lambda db, key: db.hset(key, mapping={f"f{n}": "x" for n in range(50_000)}),
    "counts that are none": lambda db, key: db.hset(key, "read:remote_lm_input", "x"),
    "counts that are missing": lambda db, key: db.hdel(key, "read:remote_lm_input"),
}


OFTEN = ("wrong type", "not UTF-8", "5,000 digits", "broken JSON", "huge")
"""Tried in the fast tests, too."""


@pytest.mark.parametrize(
    "name",
    [name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow) for name in DAMAGE],
)
def test_a_position_that_cannot_be_read_is_set_aside_and_the_server_continues(lab, name):
    lab.start()
    lab.client.reset()
    lab.speak(LOGITS[:HALF])
    wait_for(lambda: lab.db.exists(KEY), "the position")
    lab.kill()
    DAMAGE[name](lab.db, KEY)
    damaged = lab.db.dump(KEY)
    lab.start()
    assert lab.db.dump(f"{KEY}:unreadable")[:-10] == damaged[:-10]
    assert lab.db.type(KEY) == b"hash"
    assert "key_set_aside" in lab.server.stderr
    lab.speak(LOGITS[HALF:])
    assert lab.final() == (TEXT, "")  # the newest reset tells where the utterance began
    assert lab.client.decode(LOGITS).text == TEXT
    ended = lab.server.interrupt()
    ended.check_harmless()
    assert ended.status == 0


def test_without_a_reset_to_begin_at_an_unreadable_position_is_named_in_the_result(lab):
    lab.start()
    lab.speak(LOGITS[:HALF])
    lab.kill()
    lab.db.set(KEY, "x")
    lab.start()
    lab.speak(LOGITS[HALF:])
    assert "could not be read" in lab.final()[1]
    lab.speak(LOGITS)
    assert lab.final() == (TEXT, "")


def test_a_json_server_starts_with_an_unreadable_position_too(lab):
    lab.start("--profile", "json")
    lab.kill()
    lab.db.set(JSON_KEY, "x")
    lab.start("--profile", "json")
    assert lab.db.get(f"{JSON_KEY}:unreadable") == b"x"
    assert (
        json.loads(lab.db.xrevrange("cortext_lm_output", count=1)[0][1][b"message"])["type"]
        == "ready"
    )


# Entries that are not what they should be

MANY = "x" * 2_000_000
BEGINS: dict[str, tuple[Any, str]] = {
    "order is an empty list": ({"order": []}, "it has 0 tokens"),
    "order is a list of numbers": ({"order": [1]}, "a list of texts is needed"),
    "order has no symbols": ({"order": {}}, "inventory.symbols is None"),
    "order is a number": ({"order": 5}, "order is no text"),
    "context is a number": ({"context": 5}, "context is no text"),
    "hotwords is a list": ({"hotwords": [1]}, "hotwords is no object"),
    "hotwords is false": ({"hotwords": False}, "hotwords is no object"),
    "a bonus is a text": ({"hotwords": {"see": "x"}}, "a finite number is needed"),
    "a bonus is a list": ({"hotwords": {"see": []}}, "a finite number is needed"),
    "a bonus is infinite": ({"hotwords": {"see": 10**400}}, "a finite number is needed"),
    "a lone surrogate": ({"hotwords": {"\ud800": 1}}, "is not a word"),
    "2,000 hotwords": ({"hotwords": {f"w{n}": 1 for n in range(2000)}}, "at most 1000"),
    "options is a text": ({"options": "x"}, "options is no object"),
    "nbest is 10^400": ({"options": {"nbest": 10**400}}, "a finite int is needed"),
    "nbest is a billion": ({"options": {"nbest": 10**9}}, "at most 1000"),
    "max_active is a billion": ({"options": {"max_active": 10**9}}, "at most 20000"),
    "beam is NaN": ({"options": {"beam": float("nan")}}, "a finite float is needed"),
    "recombine is a list": ({"options": {"recombine": []}}, "use 'logadd' or 'max'"),
    "llm is a number": ({"options": {"llm": 5}}, "llm is 5"),
    "llm.weight is a list": ({"options": {"llm": {"weight": []}}}, "llm.weight is"),
    "label priors are numbers": ({"options": {"label_priors": [1]}}, "a mapping of token symbols"),
    "the name is a list": ({"utterance": []}, "names no utterance"),
    "the name is long": ({"utterance": MANY[:1000]}, "names no utterance"),
    "the type is a list": ({"type": []}, "did you mean|known"),
    "2 MB": ({"context": MANY}, "at most 1048576 are read"),
    "nested deeply": (
        {"options": json.loads('{"a":' * 700 + "1" + "}" * 700)},
        "unknown decoder option|nested|no JSON",
    ),
}


def test_every_wrong_message_gets_one_error_that_names_it(lab):
    lab.start("--profile", "json")
    seen = lab.db.xrevrange("cortext_lm_output", count=1)[0][0]
    for name, (facts, says) in BEGINS.items():
        message = {"type": "begin", "utterance": "one"} | facts
        lab.db.xadd("cortext_lm_input", {"message": json.dumps(message)})
        [[_, [(seen, fields)]]] = lab.db.xread({"cortext_lm_output": seen}, block=20_000, count=1)
        answer = json.loads(fields[b"message"])
        assert (answer["type"], len(answer["error"]) <= 1000) == ("error", True), name
        assert re.search(says, answer["error"]), (name, answer["error"])
        assert "internal error" not in answer["error"], name


def answered(lab: Lab) -> str:
    """Id of the newest request that has its answer."""
    newest = lab.db.xrevrange("cortext_lm_output", count=1)[0][1][b"message"]
    return str(json.loads(newest).get("request"))


def resident_mb(pid: int) -> float:
    """Memory that a process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


@pytest.mark.slow
def test_names_of_utterances_that_never_began_are_not_kept(lab):
    lab.start("--profile", "json")
    numbers = []
    for number in range(6):
        pipeline = lab.db.pipeline(transaction=False)
        for each in range(6000):  # 24,000 names that are kept would take 10 MB
            name = f"{number}-{each}-".ljust(200, "x")
            pipeline.xadd(
                "cortext_lm_input", {"message": json.dumps({"type": "frames", "utterance": name})}
            )
        newest = pipeline.execute()[-1].decode()
        wait_for(lambda newest=newest: answered(lab) == newest, "answers")
        numbers.append(resident_mb(lab.server.process.pid))
    assert numbers[-1] - numbers[1] < 6, numbers


PARAMETERS: dict[str, dict[bytes, bytes]] = {
    "NaN": {b"beam": b"nan"},
    "5,000 digits": {b"nbest": b"9" * 5000},
    "10 MB of zeros": {b"beam": b"0" * 10_000_000 + b"5"},
    "a name of 10 MB": {b"x" * 10_000_000: b"1"},
    "not UTF-8": {b"\xff\xfe": b"\xff"},
    "deep": {b"beam": b"[" * 100_000},
    "1,000 names": {f"p{number}".encode(): b"1" for number in range(1000)},
}


def test_wrong_parameters_are_refused_by_name_and_change_nothing(lab):
    lab.start()
    expected = lab.client.decode(LOGITS).total
    for name, fields in PARAMETERS.items():
        assert lab.client.update(**{"rescore": 0}) == {b"done": b"1"}
        n_before = len(lab.errors())
        lab.db.xadd("remote_lm_update_params", fields)
        assert lab.client.wait("remote_lm_done_updating_params") == {b"done": b"1"}
        assert 1 <= len(lab.errors()) - n_before <= 21, name
        assert all(
            len(value) <= 1000
            for _, error in lab.db.xrange("remote_lm_errors")
            for value in error.values()
        )
    assert lab.client.decode(LOGITS).total == expected
    assert len(lab.db.hget(KEY, "changes")) < 1000


def test_odd_logits_clients_and_contexts_are_named_and_harm_nothing(lab):
    lab.start()
    lab.client.reset()
    for raw in (b"", b"x", b"\xff" * 164, bytes(68 * 2**20)):
        lab.db.xadd("remote_lm_input", {"logits": raw, "client": "y" * 5_000_000})
        lab.client.wait("remote_lm_output_partial")
    lab.db.xadd("remote_lm_input", {"logits": LOGITS[0].tobytes(), "client": "z" * 5_000_000})
    lab.db.set("contextual_decoding_current_context", b"\xff" * 5_000_000)
    lab.db.xadd("remote_lm_finalize", {"done": 0, "client": "y" * 5_000_000})
    final = lab.client.wait("remote_lm_output_final")
    assert b"at most 67108864 are read at once" in final[b"error"]
    assert len(final[b"context_str"]) <= 3 * 2**20 + 1
    assert all(
        len(value) <= 1000
        for _, error in lab.db.xrange("remote_lm_errors")
        for value in error.values()
    )
    lab.db.delete("contextual_decoding_current_context")
    lab.db.delete(KEY)
    lab.db.set(KEY, "x")
    # A position that is lost in the meantime is written anew.
    assert lab.client.decode(LOGITS).text == TEXT
    lab.server.interrupt().check_harmless()


def test_overlapping_utterances_of_json_messages_outlive_kills(lab):
    """One utterance is always in progress; what no utterance needs any more goes all the same."""
    n = len(LOGITS) // 4

    def say(kind, name, **logits):
        lab.db.xadd(
            "cortext_lm_input", {"message": json.dumps({"type": kind, "utterance": name}), **logits}
        )

    lab.start("--profile", "json", "--keep", "1")
    for number in range(12):
        say("begin", f"u{number}")
        for part in range(4):
            say(
                "frames",
                f"u{number}",
                logits=LOGITS[part * n : (part + 1) * n if part < 3 else None].tobytes(),
            )
            if part == 1 and number:
                say("end", f"u{number - 1}")
        if number % 4 == 3:
            lab.kill()
            lab.start("--profile", "json", "--keep", "1")
    say("end", "u11")

    def finals(found):
        messages = [json.loads(fields[b"message"]) for _, fields in found]
        return [
            message
            for message in messages
            if (message["type"], message["utterance"]) == ("final", "u11")
        ]

    wait_for(lambda: finals(lab.db.xrevrange("cortext_lm_output", count=1)), "the last final")
    [final] = finals(lab.db.xrange("cortext_lm_output"))
    assert (final["text"], final["error"]) == (TEXT, None)
    wait_for(lambda: lab.db.xlen("cortext_lm_input") <= 2, "deleted entries")
