"""Attacks on the BRAND node: what others write into its streams, its graph and its position.

An attack on the streams changes the messages of one utterance: a start, 90 bins, a stop. The node
must answer with one result, say what was wrong, and decode the next utterance as ever.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from brand_rig import Node, Process, Rig, make_world
from redis_process import RedisServer, wait_for

from cortext.errors import CortextError
from cortext_live.brand.process import read_parameters
from cortext_live.core.redis_link import RedisLink

pytestmark = pytest.mark.redis
N_BINS = 90
START, STOP = 0, N_BINS + 1
Messages = list[tuple[str, dict[str, Any]]]


def u64(number: int) -> bytes:
    return np.uint64(number).tobytes()


class Bench(Rig):
    """A rig whose node is there, whatever an attack did to the one before."""

    def __init__(self, server: RedisServer, world: Any) -> None:
        super().__init__(server, world)
        self.texts: dict[tuple[int, ...], str] = {}

    def ready(self) -> Bench:
        if not self.nodes or self.nodes[-1].ended():
            self.redis.flushall()
            self.begin()
        return self

    def begin(self, process: bool = True) -> Node:
        node = self.start(process)
        assert not node.ended(), self.messages(b"NODE_FATAL_ERROR")
        return node

    def messages_of(self, x_TC: np.ndarray, trial: str) -> Messages:
        """An utterance as it should be."""
        first, self.i = self.i, self.i + len(x_TC)
        bins = [
            {"samples": x_C.tobytes(), "i": u64(first + n), "sync": f'{{"n": {n}}}'}
            for n, x_C in enumerate(x_TC)
        ]
        start = {"command": "start", "i": u64(first), "trial": trial}
        stop = {"command": "stop", "i": u64(self.i - 1), "trial": trial}
        return [("marks", start), *(("binned_spikes", fields) for fields in bins), ("marks", stop)]

    def write(self, messages: Messages) -> None:
        pipe = self.redis.pipeline()
        for stream, fields in messages:
            pipe.xadd(stream, fields)
        pipe.execute()

    def text(self, without: tuple[int, ...] = ()) -> str:
        """The text of the utterance less some bins, as evaluation finds it."""
        if without not in self.texts:
            x_TC = np.delete(self.world.trials()[0], without, axis=0)
            self.texts[without] = self.world.offline(x_TC)[1][0].text if len(x_TC) else ""
        return self.texts[without]

    def results(self, n: int) -> list[dict[bytes, bytes]]:
        """All results, once there are as many."""
        node = self.nodes[-1]
        wait_for(lambda: self.n_results() >= n or node.ended(), f"{n} results", 30)
        assert not node.ended(), self.messages(b"NODE_FATAL_ERROR")
        return self.entries("speech_final")

    def n_results(self) -> int:
        return self.redis.xlen("speech_final")


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    bench = Bench(server.start(), make_world(tmp_path_factory.mktemp("brand")))
    yield bench
    bench.close()
    server.close()


@pytest.fixture(scope="module")
def link(bench):
    link = RedisLink(bench.server.url, "graphs")
    yield link
    link.close()


@dataclass(frozen=True)
class Attack:
    """Messages of an utterance that are changed, and what its result must be.

    change:  called with the messages, of which those of bin n stand in place n + 1
    error:   what the result's `error` begins with; empty for a sound result
    without: bins that are not in the text
    counts:  fields of the result
    n_more:  foreign bins in it, which make its text another one
    """

    name: str
    change: Callable[[Messages], Any]
    error: str = ""
    without: tuple[int, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    n_more: int = 0

    def __str__(self) -> str:
        return self.name


def put(place: int, **fields: Any) -> Callable[[Messages], Any]:
    return lambda messages: messages[place][1].update(fields)


def again(place: int, n_later: int = 1, **fields: Any) -> Callable[[Messages], Any]:
    return lambda messages: messages.insert(
        place + n_later, (messages[place][0], messages[place][1] | fields)
    )


def move(place: int, to: int) -> Callable[[Messages], Any]:
    return lambda messages: messages.insert(to, messages.pop(place))


def renumber(first: int) -> Callable[[Messages], Any]:
    """Another source continues in mid-utterance."""
    return lambda m: (
        [m[n + 1][1].update(i=u64(first + n)) for n in range(45, N_BINS)] + [m[STOP][1].pop("i")]
    )


def unusable(name: str, number: bytes | str) -> list[Attack]:
    counts = {"n_unusable": 1, "n_lost": 0}
    rows = [Attack(f"{name} in a bin", put(41, i=number), "entry ", (40,), counts)]
    rows += [Attack(f"{name} in the first bin", put(1, i=number), "entry ", (0,), counts)]
    rows += [Attack(f"{name} in the last bin", put(90, i=number), "entry ", (89,), counts)]
    rows += [Attack(f"{name} in a start", put(START, i=number), "the start ", (), counts)]
    return [*rows, Attack(f"{name} in a stop", put(STOP, i=number), "the stop ", (), counts)]


DUPLICATE = {"n_duplicates": 1, "n_lost": 0, "n_unusable": 0}
UNUSABLE = {"n_unusable": 1, "n_lost": 0}
ATTACKS = [
    *unusable("-1 in eight bytes", b"\xff" * 8),
    Attack("5,000 digits in a start", put(START, i="7" * 5000), "the start ", (), UNUSABLE),
    *unusable("a number that no bins reach", u64(2**52)),
    Attack("one flipped bit in a number", lambda m: put(41, i=bytes([m[41][1]["i"][0] ^ 16]) + m[41][1]["i"][1:])(m),
           "entry ", (40,), UNUSABLE),
    Attack("a number without meaning", put(41, i="abc"), "entry ", (40,), UNUSABLE),
    Attack("5,000 digits in every bin", lambda m: [put(n, i="7" * 5000)(m) for n in range(1, 91)], "entry ",
           tuple(range(90)), {"n_unusable": 90}),
    Attack("a bin twice, at another time", again(41, ts=u64(5)), counts=DUPLICATE),
    Attack("the last bin twice, around the stop", again(90, 2), counts={"n_lost": 0}),
    Attack("each bin twice", lambda m: m.__setitem__(slice(1, 90), [e for e in m[1:90] for _ in (0, 1)]),
           counts={"n_duplicates": 89}),
    Attack("twenty bins twice", lambda m: m.__setitem__(slice(31, 31), m[11:31]), counts={"n_duplicates": 20}),
    Attack("the first two swapped", move(1, 2), counts={"n_lost": 0}),
    Attack("the last two swapped", move(89, 90), counts={"n_lost": 0}),
    Attack("all bins swapped in pairs", lambda m: [move(n, n + 1)(m) for n in range(1, 91, 2)],
           counts={"n_lost": 0, "n_duplicates": 0}),
    Attack("swapped and twice", lambda m: (move(41, 42)(m), again(42)(m)), counts=DUPLICATE),
    Attack("a bin three bins late", move(41, 44), "1 entries lost (i ", (40,), {"n_lost": 1}),
    Attack("a bin lost and the next twice", lambda m: (again(42)(m), m.pop(41)), "1 entries lost (i ", (40,),
           {"n_lost": 1, "n_duplicates": 1}),
    Attack("a bin without a number", lambda m: m[41][1].pop("i"), "i is missing in entry ", (), {"n_lost": 0}),
    Attack("another bin of the same number", again(41, samples=bytes(32)), "i ", (), {"n_duplicates": 0}, 1),
    Attack("another source with lower numbers", renumber(0), "i begins anew at 45 after "),
    Attack("another source with large numbers", renumber(2**40), "i jumps from "),
    Attack("labels of 2 MB in a bin", put(41, sync="x" * 2 * 10**6), "entry i ", (), {"n_lost": 0}),
    Attack("labels that are no JSON", put(90, sync=b"\xff\x1b[2J")),
    Attack("a trial of 2 MB", put(START, trial="x" * 2 * 10**6), "the start "),
    Attack("a context of 2 MB", put(START, context=b"\xff" * 2 * 10**6)),
    Attack("a command of 2 MB between", lambda m: m.insert(40, ("marks", {"command": "x" * 2 * 10**6}))),
    Attack("commands without sense", lambda m: m.insert(40, ("marks", {"command": b"\xff\0", "i": "-1"}))),
    Attack("2 MB of samples", lambda m: put(41, samples=bytes(2 * 10**6))(m), "entry i ", (40,), UNUSABLE),
]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_damaged_entries_cost_no_more_than_themselves(bench, attack):
    bench.ready()
    x_TC = bench.world.trials()[0]
    before = bench.n_results()
    messages = bench.messages_of(x_TC, attack.name)
    attack.change(messages)
    bench.write(messages)
    [final] = bench.results(before + 1)[before:]
    error = final[b"error"].decode()
    assert error.startswith(attack.error) if attack.error else not error
    assert len(error) < 6000
    if attack.n_more == 0:
        assert final[b"text"].decode() == bench.text(attack.without)
    assert int(final[b"n_bins"]) == N_BINS - len(attack.without) + attack.n_more
    assert {name: int(final[name.encode()]) for name in attack.counts} == attack.counts
    bench.write(bench.messages_of(x_TC, "sound"))
    [_, sound] = bench.results(before + 2)[before:]
    assert (sound[b"trial"], sound[b"error"]) == (b"sound", b"")
    assert sound[b"text"].decode() == bench.text()


def test_a_node_starts_behind_an_entry_whose_number_has_5000_digits(bench):
    bench.ready().nodes[-1].end()
    bench.send(bench.world.trials()[0][0].tobytes(), i="7" * 5000)
    node = bench.begin()
    before = bench.n_results()
    bench.write(bench.messages_of(bench.world.trials()[0], "next"))
    assert bench.results(before + 1)[-1][b"error"] == b""
    assert not node.ended()


SOUND = {
    "id_in": "5-0",
    "i_in": "7",
    "control_id": "4-0",
    "utterance": "3",
    "i_out": "9",
    "running": "0",
    "clean": "1",
    "trial": "heard before",
}
POSITIONS = {
    "a text": "nothing",
    "a negative number": SOUND | {"i_in": "-5"},
    "an i_out beyond 64 bits": SOUND | {"i_out": str(2**64)},
    "no text": SOUND | {"utterance": b"\xff\xfe"},
    "an id that is none": SOUND | {"id_in": "x-y"},
    "an id of the far future": SOUND | {"id_in": "9999999999999-0"},
    "marks of the far future": SOUND | {"control_id": "9999999999999-0"},
    "a field alone": {"utterance": "3"},
    "no trial": {name: value for name, value in SOUND.items() if name != "trial"},
}


@pytest.mark.parametrize("position", POSITIONS)
def test_a_position_that_cannot_be_read_is_set_aside_and_the_node_starts(bench, position):
    if bench.nodes:
        bench.nodes[-1].end()
    bench.redis.flushall()
    value = POSITIONS[position]
    if isinstance(value, str):
        bench.redis.set("speech_position", value)
    else:
        bench.redis.hset("speech_position", mapping=value)
    kept = bench.redis.dump("speech_position")
    bench.begin(process=False)
    assert bench.redis.dump("speech_position:unreadable") == kept
    assert (
        "speech_position cannot be read and was renamed to speech_position:unreadable"
        in bench.messages()
    )
    bench.write(bench.messages_of(bench.world.trials()[0], "heard"))
    [final] = bench.results(1)
    assert (final[b"trial"], final[b"error"]) == (b"heard", b"")


def test_a_position_that_is_replaced_by_a_text_is_written_anew(bench):
    bench.ready()
    bench.redis.set("speech_position", "nothing")
    wait_for(
        lambda: bench.redis.type("speech_position") == b"hash" or bench.nodes[-1].ended(),
        "a position",
    )
    assert bench.redis.get("speech_position:unreadable") == b"nothing"
    before = bench.n_results()
    bench.write(bench.messages_of(bench.world.trials()[0], "heard"))
    assert bench.results(before + 1)[-1][b"error"] == b""


def graph(**parameters: Any) -> str:
    return json.dumps({"nodes": {"speech": {"nickname": "speech", "parameters": parameters}}})


GRAPHS = {
    "nested 100,000 deep": '{"nodes": ' + "[" * 100_000,
    "a parameter nested 900 deep": (
        f'{{"nodes": {{"speech": {{"parameters": {"[" * 900 + "]" * 900}}}}}}}'
    ),
    "20 MB": json.dumps({"nodes": {"speech": {"parameters": {"run": "x" * 20_000_000}}}}),
    "a number of 5,000 digits": (
        '{"nodes": {"speech": {"parameters": {"run": "r", "n_features": ' + "7" * 5000 + "}}}}"
    ),
    "10,000 other nodes": json.dumps({"nodes": {f"n{n}\x1b[2J": {} for n in range(10_000)}}),
    "a nickname that is a list": '{"nodes": {"speech": {"nickname": ["speech"]}}}',
    "a node that is a text": '{"nodes": {"speech": "speech"}}',
    "parameters that are a list": '{"nodes": {"speech": {"parameters": [1, 2]}}}',
    "a NUL in a path": graph(run="run\0s"),
    "half a character in a name": graph(run="runs", input_stream="\ud800"),
    "half a character in a hotword": graph(run="runs", hotwords={"\udfff": 1.0}),
    "an unfinished dtype": graph(run="runs", input_dtype="{'names':"),
    "a dtype of a terabyte": graph(run="runs", input_dtype="(1000000,1000000)f4"),
    "a length that is no number": (
        '{"nodes": {"speech": {"parameters": {"run": "r", "max_ms": NaN}}}}'
    ),
    "a length of 10^400": (
        '{"nodes": {"speech": {"parameters": {"run": "r", "max_ms": 1' + "0" * 400 + "}}}}"
    ),
    "no JSON": b"\xff\xfe\0",
}


IN_A_PROCESS = ("nested 100,000 deep", "20 MB", "no JSON")
"""Graphs that the command is started with: it must not crash, nor take more than its memory."""


@pytest.mark.parametrize("name", IN_A_PROCESS)
def test_a_command_whose_graph_cannot_be_read_ends_with_one_line(bench, name):
    bench.redis.xadd("supergraph_stream", {"data": GRAPHS[name]})
    Process(bench.server.port).command.wait().check_refused("supergraph_stream ")


@pytest.mark.parametrize("name", [name for name in GRAPHS if name not in IN_A_PROCESS])
def test_a_graph_that_cannot_be_read_is_refused_in_one_line(bench, link, name):
    bench.redis.xadd("supergraph_stream", {"data": GRAPHS[name]})
    with pytest.raises(CortextError, match=r"^supergraph_stream ") as refused:
        read_parameters(link, "speech")
    line = str(refused.value)
    assert line.isprintable()
    assert len(line) <= 1000
