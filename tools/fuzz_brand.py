"""Damage the messages of a BRAND rig at random.

The node must live, answer each utterance once, and name the fault.

    python tools/fuzz_brand.py --seconds 60 --seed 0 --out build/fuzz-brand

A real node on a real redis-server hears utterances whose entries and marks are repeated, swapped,
lost, damaged or invented. Repeated and swapped entries must change nothing. In any other case the
result is the undisturbed text or its `error` says something. Messages that break this are kept
under `--out` and the command fails. `--file FILE` sends such messages again.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS / "support"))

from brand_rig import Rig, World, make_world  # noqa: E402
from redis_process import RedisServer  # noqa: E402

from cortext_live.brand import control as brand_control  # noqa: E402

HANG_SECONDS = 15.0
MOST_FAILURES = 10
# more than the numbers among which a repeated one is sought: a source begins anew with the same
# bins
N_BINS = 90
N_KEPT = 3
"""Utterances that are kept when one fails: it may be the fault of one before it."""
MOST_ENTRIES = 3_000
NUMBERS = [
    b"",
    b"\xff" * 8,
    b"\xff" * 4,
    b"\xff" * 2,
    b"\0" * 8,
    b"-1",
    b"1e3",
    b"9" * 23,
    b"7" * 5000,
    b"12345678",
    b"x",
]
NUMBERS += [
    (1 << bits).to_bytes(8, "little") for bits in (5, 7, 15, 16, 31, 32, 40, 52, 53, 62, 63)
]
VALUES = [b"", b"\0", b"\xff\xfe", b"0", b"nonsense", b"x" * 100_000, b"\x1b[2J", b"{", b"[" * 5000]

Message = tuple[str, dict[bytes, bytes]]


@dataclass
class FuzzedUtterance:
    """Messages of an utterance: a start, bins, a stop.

    Attributes:
        done: Names of the changes made to them.
        judged: `same`: it may change nothing; `named`: another text needs an error; `alive`: marks
            say something else now, so only the next utterance is judged.
    """

    number: int
    messages: list[Message]
    done: list[str] = field(default_factory=list)
    judged: Literal["same", "named", "alive"] = "same"


JUDGED = ("same", "named", "alive")
Change = Callable[[FuzzedUtterance, random.Random], None]


def main() -> int:
    """Fuzz, or send a kept file again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/fuzz-brand"))
    parser.add_argument("--file", type=Path)
    args = parser.parse_args()
    brand_control.PATIENCE_S = 0.1  # marks wait a tenth of a second for entries that do not come
    if args.file is None:
        shutil.rmtree(args.out, ignore_errors=True)
        args.out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder)).start()
        try:
            bench = Bench(server, make_world(Path(folder)))
            failures = (
                bench.replay(args.file)
                if args.file
                else fuzz(bench, args.out, args.seed, args.seconds)
            )
            bench.close()
        finally:
            server.close()
    return 1 if failures else 0


def fuzz(bench: Bench, out: Path, seed: int, seconds: float) -> int:
    """Send damaged utterances until the time is over; keep those that break something.

    Returns their number.
    """
    rng = random.Random(seed)
    end = time.monotonic() + seconds
    failures = 0
    latest = list[FuzzedUtterance]()
    while time.monotonic() < end and failures < MOST_FAILURES:
        utterance = bench.utterance(rng)
        for change in rng.choices([*SAFE, *SAFE, *OTHER], k=rng.choice((0, 1, 1, 1, 2, 5))):
            change(utterance, rng)
            utterance.done.append(change.__name__)
        # Together they may be further from their place.
        if "swap" in utterance.done and len(utterance.done) > 1:
            worse(utterance, "named")
        latest = [*latest[1 - N_KEPT :], utterance]
        fault = bench.fault(utterance)
        if not fault:
            continue
        failures += 1
        path = out / f"{seed}-{failures}.kept"
        path.write_text(json.dumps([as_json(one) for one in latest]))
        print(f"{fault} after {', '.join(utterance.done) or 'nothing'}: {path}")
        bench.begin_again()
        latest = []
    print(f"{bench.n_sent} utterances, {bench.n_named} with an error, {failures} failures")
    return failures


class Bench:
    """A node, and what it must answer."""

    def __init__(self, server: RedisServer, world: World) -> None:
        self._rig = Rig(server, world)
        self._x_TC = world.trials()[0][:N_BINS]
        self._text = world.offline(self._x_TC)[1][0].text
        self._next = self._number = self.n_sent = self.n_named = 0
        self._seen = "0-0"
        self._rig.start()

    def utterance(self, rng: random.Random | None) -> FuzzedUtterance:
        """An utterance of a source that continues, and by chance makes a pause or begins anew."""
        self._number += 1
        if rng is not None:
            self._next = rng.choice([*[self._next] * 8, self._next + rng.randrange(1000), 0])
        first, self._next = self._next, self._next + N_BINS
        trial = b"%d" % self._number
        bins = [
            {
                b"samples": x_C.tobytes(),
                b"i": uint64(first + n),
                b"sync": b'{"n": %d}' % n,
                b"ts": uint64(self._number),
            }
            for n, x_C in enumerate(self._x_TC)
        ]
        start = {b"command": b"start", b"i": uint64(first), b"trial": trial}
        stop = {b"command": b"stop", b"i": uint64(first + N_BINS - 1), b"trial": trial}
        messages = [
            ("marks", start),
            *(("binned_spikes", fields) for fields in bins),
            ("marks", stop),
        ]
        return FuzzedUtterance(self._number, messages)

    def fault(self, utterance: FuzzedUtterance) -> str:
        """Send an utterance and another, undisturbed one; return the faults of the answers."""
        self._write(utterance.messages)
        results = self._wait(0.5)
        guard = self.utterance(None)
        self._write(guard.messages)
        trial = b"%d" % guard.number
        results += self._wait(HANG_SECONDS, trial)
        self.n_sent += 1
        if self._rig.nodes[-1].ended():
            return f"the node died of {self._rig.nodes[-1].error!r}"
        own = [result for result in results if result[b"trial"] != trial]
        self.n_named += any(result[b"error"] for result in own)
        if not results or results[-1][b"trial"] != trial:
            return "the next utterance has no result"
        if self._wrong(results[-1]):
            return f"the next utterance is {self._wrong(results[-1])}"
        if utterance.judged == "alive":
            return ""
        if len(own) != 1:
            return f"{len(own)} results"
        if utterance.judged == "same" and (own[0][b"error"] or own[0][b"n_lost"] != b"0"):
            return f"the error {own[0][b'error'].decode()!r}"
        return self._wrong(own[0])

    def begin_again(self) -> None:
        """Another node, and empty streams."""
        self._rig.close()
        self._rig.redis.flushall()
        self._next = 0
        self._seen = "0-0"
        self._rig.start()

    def replay(self, path: Path) -> int:
        """Send the kept messages."""
        faults = [self.fault(from_json(kept)) for kept in json.loads(path.read_text())]
        print("\n".join(fault or "as it should be" for fault in faults))
        return sum(map(bool, faults))

    def close(self) -> None:
        """End the node."""
        self._rig.close()

    def _wrong(self, result: dict[bytes, bytes]) -> str:
        """Return why a result is wrong: another text, and no error that names the fault."""
        if result[b"error"] or result[b"text"].decode() == self._text:
            return ""
        return f"{result[b'text'].decode()!r} instead of {self._text!r}, and nothing is said"

    def _write(self, messages: list[Message]) -> None:
        pipe = self._rig.redis.pipeline()
        for stream, fields in messages:
            pipe.xadd(stream, fields or {b"_": b""}, maxlen=MOST_ENTRIES)
        pipe.execute()

    def _wait(self, seconds: float, trial: bytes | None = None) -> list[dict[bytes, bytes]]:
        """The results until there is one, or that of a trial.

        Fewer after a while, or without a node.
        """
        end = time.monotonic() + seconds
        results = list[dict[bytes, bytes]]()
        while time.monotonic() < end and not self._rig.nodes[-1].ended():
            for entry_id, result in self._rig.redis.xrange("speech_final", f"({self._seen}"):
                self._seen = entry_id.decode()
                results.append(result)
            if results and (trial is None or results[-1][b"trial"] == trial):
                break
            time.sleep(0.002)
        return results


def uint64(number: int) -> bytes:
    """A running number."""
    return np.uint64(number).tobytes()


def as_json(utterance: FuzzedUtterance) -> dict[str, Any]:
    """An utterance as JSON; bytes are written as Latin-1."""
    messages = [
        [
            stream,
            {name.decode("latin-1"): value.decode("latin-1") for name, value in fields.items()},
        ]
        for stream, fields in utterance.messages
    ]
    return vars(utterance) | {"messages": messages}


def from_json(kept: dict[str, Any]) -> FuzzedUtterance:
    """An utterance that was kept."""
    messages = [
        (
            stream,
            {name.encode("latin-1"): value.encode("latin-1") for name, value in fields.items()},
        )
        for stream, fields in kept["messages"]
    ]
    return FuzzedUtterance(**(kept | {"messages": messages}))


def a_bin(utterance: FuzzedUtterance, rng: random.Random) -> int:
    """Place of an entry of the data."""
    return rng.choice(
        [n for n, (stream, _) in enumerate(utterance.messages) if stream == "binned_spikes"]
    )


def a_mark(utterance: FuzzedUtterance, rng: random.Random) -> int:
    """Place of a mark."""
    return rng.choice([n for n, (stream, _) in enumerate(utterance.messages) if stream == "marks"])


def worse(utterance: FuzzedUtterance, judged: Literal["named", "alive"]) -> None:
    """Judge an utterance at most like this."""
    utterance.judged = max(utterance.judged, judged, key=JUDGED.index)


def repeat(utterance: FuzzedUtterance, rng: random.Random) -> None:
    """An entry comes again, at once or up to five entries later, perhaps with another time."""
    place = a_bin(utterance, rng)
    stream, fields = utterance.messages[place]
    to = min(place + rng.choice((1, 1, 2, 5)), len(utterance.messages) - 1)
    utterance.messages.insert(to, (stream, fields | rng.choice(({}, {b"ts": rng.randbytes(8)}))))


def repeat_many(utterance: FuzzedUtterance, rng: random.Random) -> None:
    """Some entries come again, one after the other."""
    first = a_bin(utterance, rng)
    last = min(first + rng.randrange(2, 30), len(utterance.messages) - 1)
    utterance.messages[last:last] = utterance.messages[first:last]


def swap(utterance: FuzzedUtterance, rng: random.Random) -> None:
    """Two entries that follow each other are swapped."""
    place = rng.randrange(1, len(utterance.messages) - 2)
    messages = utterance.messages
    messages[place], messages[place + 1] = messages[place + 1], messages[place]


def lose(utterance: FuzzedUtterance, rng: random.Random) -> None:
    """Some entries never come."""
    first = rng.randrange(1, len(utterance.messages) - 1)
    del utterance.messages[
        first : min(first + rng.choice((1, 1, 2, 10)), len(utterance.messages) - 1)
    ]
    # It may be taken for a lost one.
    worse(utterance, "alive" if "invent" in utterance.done else "named")


def delay(utterance: FuzzedUtterance, rng: random.Random) -> None:
    """An entry comes at another place."""
    message = utterance.messages.pop(rng.randrange(1, len(utterance.messages) - 1))
    utterance.messages.insert(rng.randrange(1, len(utterance.messages)), message)
    worse(utterance, "named")


def damage_number(utterance: FuzzedUtterance, rng: random.Random) -> None:
    """A number becomes another one."""
    _, fields = utterance.messages[a_bin(utterance, rng)]
    number = bytearray(fields[b"i"])
    if number:
        number[rng.randrange(len(number))] ^= 1 << rng.randrange(8)
    fields[b"i"] = rng.choice((bytes(number), rng.choice(NUMBERS), rng.randbytes(8)))
    worse(utterance, "named")


def damage_field(utterance: FuzzedUtterance, rng: random.Random) -> None:
    """A field of an entry is missing, or something else."""
    _, fields = utterance.messages[a_bin(utterance, rng)]
    name = rng.choice(list(fields))
    fields[name] = rng.choice(
        (*VALUES, fields[name][:-1], fields[name] * 2, rng.randbytes(len(fields[name])))
    )
    worse(utterance, "named")


def invent(utterance: FuzzedUtterance, rng: random.Random) -> None:
    """An entry that nobody recorded: a number of another one, or none; other samples, or none."""
    _, fields = utterance.messages[a_bin(utterance, rng)]
    _, other = utterance.messages[a_bin(utterance, rng)]
    entry = {
        b"i": rng.choice((fields[b"i"], rng.choice(NUMBERS))),
        b"samples": rng.choice((other[b"samples"], b"x")),
    }
    utterance.messages.insert(rng.randrange(1, len(utterance.messages)), ("binned_spikes", entry))
    worse(utterance, "alive" if "lose" in utterance.done else "named")


def damage_mark(utterance: FuzzedUtterance, rng: random.Random) -> None:
    """A mark says something else."""
    _, fields = utterance.messages[a_mark(utterance, rng)]
    name = rng.choice((b"i", b"i", b"i", b"command", b"trial", b"context"))
    fields[name] = rng.choice(
        (*NUMBERS, rng.randbytes(8)) if name == b"i" else (*VALUES, b"start", b"stop", b"block")
    )
    worse(utterance, "alive")


def invent_mark(utterance: FuzzedUtterance, rng: random.Random) -> None:
    """A mark that nobody gave."""
    _, fields = utterance.messages[a_bin(utterance, rng)]
    number = rng.choice((*NUMBERS, fields[b"i"], fields[b"i"]))
    mark = {b"command": rng.choice((*VALUES, b"start", b"stop", b"block")), b"i": number}
    utterance.messages.insert(rng.randrange(len(utterance.messages)), ("marks", mark))
    worse(utterance, "alive")


def lose_mark(utterance: FuzzedUtterance, rng: random.Random) -> None:
    """The start or the stop never comes."""
    if sum(stream == "marks" for stream, _ in utterance.messages) > 1:
        del utterance.messages[a_mark(utterance, rng)]
    worse(utterance, "alive")


SAFE: tuple[Change, ...] = (repeat, repeat_many, swap)
OTHER: tuple[Change, ...] = (lose, delay, damage_number, damage_number, damage_field, invent)
OTHER += (damage_mark, damage_mark, invent_mark, lose_mark)

if __name__ == "__main__":
    sys.exit(main())
