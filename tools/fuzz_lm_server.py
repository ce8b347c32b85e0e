"""Send damaged and random entries to `cortext lm-server`.

It must live, and answer sound entries as if alone.

    python tools/fuzz_lm_server.py --seconds 60 --seed 0 --out build/fuzz-lm-server

A redis-server and a server of each profile run on this machine. Damaged entries come between those
of sound utterances. Sometimes a server is killed and finds its position damaged. Checked are:

- the server lives, and its log names no internal error
- each finalize gets one result and one `done`; each sound utterance of the JSON profile one `final`
- sound utterances get the text, and the scores, that they get undisturbed
- the server's memory does not grow

The entries of the round in which a check fails are kept under `--out`, and the command fails.
`--file FILE` sends the entries of such a file again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS / "support"))

from engine_cases import SENTENCES, sentence_entries, write_lm  # noqa: E402
from lm_cases import SAID, spoken_logits  # noqa: E402
from redis_process import RedisServer, wait_for  # noqa: E402

PROFILES = ("published", "json")
PATIENCE_S = 20.0
MOST_GROWTH = 100 * 2**20
"""Bytes by which a server's memory may grow while it serves."""
PARAMETERS = (
    "max_active min_active beam lattice_beam acoustic_scale ctc_blank_skip_threshold length_penalty"
    " nbest"
)
PARAMETERS += " blank_penalty alpha do_opt rescore top_candidates_to_augment score_penalty_percent"
WEIRD: tuple[bytes, ...] = (
    b"", b"0", b"-1", b"1", b"2.5", b"nan", b"inf", b"-inf", b"1e400", b"9" * 5000, b"0x10", b"1_0", b"true", b"null",
    b"\xff\xfe", b"\0", b"\xed\xa0\x80", "\u202e".encode(), b"\x1b[31m", b"[" * 5000, b'{"a":' * 900, b"{}", b"[]",
    b"18446744073709551616-0", b"x" * 100_000, b"-" * 300,
)  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2.5, 1e300, float("nan"), float("inf"), 10**400, "", "x", "\ud800", "9" * 5000, [], [1], {},
    {"a": 1}, [[[[]]]], "lm", "release", "x" * 300, {"nbest": 3}, {"llm": {"weight": -1}}, {"see": 1e9},
)  # fmt: skip
Entry = tuple[str, dict[bytes, bytes]]


class Failure(Exception):
    """A check did not hold."""


class Server:
    """`cortext lm-server` of one profile, which can be killed and started again.

    position: the key under which it keeps its position
    """

    def __init__(self, redis: RedisServer, lm: Path, profile: str, folder: Path) -> None:
        self.db = redis.client()
        self._log = folder / f"{profile}.log"
        self._stderr = folder / f"{profile}.stderr"
        first = "remote_lm_reset" if profile == "published" else "cortext_lm_input"
        self.position = f"cortext_lm_position:{first}"
        self._command = [
            Path(sys.executable).parent / "cortext",
            "lm-server",
            "--lm",
            lm,
            "--profile",
            profile,
        ]
        self._command += ["--redis-port", str(redis.port), "--log", self._log, "--keep", "200"]
        self.start()

    def start(self) -> None:
        """Start it, and wait until it serves."""
        n_before = self._served()
        errors = self._stderr.open("ab")
        self.process = subprocess.Popen(
            self._command, stderr=errors, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        wait_for(
            lambda: self._served() > n_before or self.process.poll() is not None,
            "start of the server",
            60,
        )
        self._n_bytes = 0
        self.check()

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def check(self) -> None:
        """Raise Failure where it died, met an unexpected error or takes too much memory."""
        if self.process.poll() is not None:
            raise Failure(
                f"the server ended with {self.process.returncode}:"
                f" {self._stderr.read_text()[-2000:]}"
            )
        log = self._log.read_text()
        if "internal error" in log:
            raise Failure(log[log.index("internal error") - 200 :][:1000])
        n_bytes = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGESIZE"
        )
        self._n_bytes = self._n_bytes or n_bytes
        if n_bytes > self._n_bytes + MOST_GROWTH:
            raise Failure(f"the server's memory grew from {self._n_bytes} to {n_bytes} bytes")

    def log_text(self) -> str:
        """Lines that it has logged since it was emptied."""
        return self._log.read_text()

    def forget_log(self) -> None:
        """Empty the log, which is read as a whole."""
        os.truncate(self._log, 0)

    def _served(self) -> int:
        return self._log.read_text().count('"serving"') if self._log.exists() else 0


class Fuzzer:
    """Speaks to the servers of both profiles."""

    def __init__(self, db: Any, servers: dict[str, Server], rng: random.Random) -> None:
        self.db = db
        self.servers = servers
        self._rng = rng
        self.sent: list[Entry] = []
        self.n = dict.fromkeys(("entries", "utterances", "kills"), 0)
        self._number = 0
        self._logits = [spoken_logits(sentence, seed) for seed, sentence in enumerate(SAID)]
        self._defaults: dict[bytes, bytes] = {}
        self._expected = {
            profile: [self._sound(profile, logits) for logits in self._logits]
            for profile in PROFILES
        }

    def round(self) -> None:
        """Damaged entries, perhaps a kill, then a sound utterance."""
        self.sent = []
        profile = self._rng.choice(PROFILES)
        self.servers[profile].forget_log()
        if profile == "published":
            self._disturb_published()
        if self._rng.random() < 0.03:
            self._kill(self.servers[profile])
        which = self._rng.randrange(len(self._logits))
        found = self._sound(profile, self._logits[which], disturbed=True)
        if found != self._expected[profile][which]:
            expected = self._expected[profile][which]
            what = (
                f"text and error {found[0]!r}, {found[2]!r} instead of {expected[0]!r},"
                f" {expected[2]!r}"
            )
            raise Failure(f"{profile}: {what}; the same scores: {found[1] == expected[1]}")
        self.servers[profile].check()
        self.n["utterances"] += 1

    def send(self, entry: Entry) -> None:
        """Add an entry to its stream."""
        self.sent.append(entry)
        self.n["entries"] += 1
        self.db.xadd(entry[0], entry[1] or {b"": b""})

    def _sound(
        self, profile: str, logits_PV: np.ndarray, disturbed: bool = False
    ) -> tuple[Any, ...]:
        size = self._rng.choice((1, 7, 1000)) if disturbed else 1000
        chunks = [logits_PV[at : at + size].tobytes() for at in range(0, len(logits_PV), size)]
        return (
            self._say_published(chunks)
            if profile == "published"
            else self._say_json(chunks, disturbed)
        )

    # The published profile

    def _disturb_published(self) -> None:
        """An utterance of which every entry may be damaged. Then the parameters are as before."""
        newest = self._newest("remote_lm_output_final"), self._newest("remote_lm_done_finalizing")
        client = {b"client": self._rng.choice(WEIRD)} if self._rng.random() < 0.3 else {}
        self.send(("remote_lm_reset", client | self._fields()))
        for _ in range(self._rng.randrange(8)):
            stream = self._rng.choice(
                ("remote_lm_input", "remote_lm_input", "remote_lm_update_params")
            )
            logits = {b"logits": self._damaged(self._rng.choice(self._logits)[:30].tobytes())}
            self.send(
                (stream, (logits if stream == "remote_lm_input" else self._parameters()) | client)
            )
            if self._rng.random() < 0.1:  # another one, which is refused or begins anew
                self.send((stream, logits | {b"client": b"other"} if client else logits))
        self.db.set("contextual_decoding_current_context", self._rng.choice(WEIRD))
        time.sleep(0.002)  # within a millisecond a reset goes before the other client's frames
        self.send(("remote_lm_reset", client | self._fields()))
        n_ends = self._rng.randrange(1, 3)
        for _ in range(n_ends):
            self.send(("remote_lm_finalize", client | self._fields()))
        for stream, after in zip(
            ("remote_lm_output_final", "remote_lm_done_finalizing"), newest, strict=True
        ):
            self._answers(stream, after, n_ends)
        self.db.delete("contextual_decoding_current_context")
        after = self._newest("remote_lm_done_updating_params")
        self.send(("remote_lm_update_params", self._defaults))
        self._answers("remote_lm_done_updating_params", after, 1)

    def _say_published(self, chunks: list[bytes]) -> tuple[Any, ...]:
        if not self._defaults:
            announced = self.db.xrevrange("remote_lm_args", count=1)[0][1]
            self._defaults = {
                name: value for name, value in announced.items() if name != b"lm_path"
            }
        final = self._newest("remote_lm_output_final")
        done = self._newest("remote_lm_done_finalizing")
        self.send(("remote_lm_reset", {b"done": b"0"}))
        for chunk in chunks:
            self.send(("remote_lm_input", {b"logits": chunk}))
        self.send(("remote_lm_finalize", {b"done": b"0"}))
        self._answers("remote_lm_done_finalizing", done, 1)
        [fields] = self._answers("remote_lm_output_final", final, 1)
        return fields[b"lm_response_final"], fields[b"scoring"], fields.get(b"error")

    # The profile of JSON messages

    def _say_json(self, chunks: list[bytes], disturbed: bool) -> tuple[Any, ...]:
        self._number += 1
        name = f"sound-{self._number}"
        after = self._newest("cortext_lm_output")
        begun = set[str]()
        messages: list[tuple[str, dict[bytes, bytes]]] = [("begin", {})]
        messages += [*(("frames", {b"logits": chunk}) for chunk in chunks), ("end", {})]
        for kind, fields in messages:
            if disturbed and self._rng.random() < 0.5:
                self._disturb_json(begun)
            self.send(("cortext_lm_input", {b"message": _message(kind, name)} | fields))
        for other in begun:
            self.send(("cortext_lm_input", {b"message": _message("drop", other)}))
        finals = self._finals(name, after)
        return finals["text"], finals["hypotheses"], finals["error"]

    def _disturb_json(self, begun: set[str]) -> None:
        kind = self._rng.choice(("begin", "frames", "end", "drop"))
        name = f"other-{self._rng.randrange(3)}"
        message: dict[str, Any] = {"type": kind, "utterance": name}
        for _ in range(self._rng.randrange(3)):
            field = self._rng.choice(
                ("type", "utterance", "options", "order", "hotwords", "context")
            )
            message[field] = self._rng.choice(ODD)
        raw = json.dumps(message).encode()
        if self._rng.random() < 0.3:
            raw = self._damaged(raw)
        fields = {b"message": raw, b"logits": self._damaged(self._logits[0][:20].tobytes())}
        if self._rng.random() < 0.1:
            fields = self._fields()
        try:
            told = json.loads(fields.get(b"message", b""))
            begun |= {told["utterance"]} if told["type"] == "begin" else set()
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        self.send(("cortext_lm_input", fields))
        if len(begun) > 8:
            for other in begun:
                self.send(("cortext_lm_input", {b"message": _message("drop", other)}))
            begun.clear()

    def _finals(self, name: str, after: bytes) -> dict[str, Any]:
        """The one final message about an utterance.

        Everything else that comes must be JSON, too.
        """
        end = time.monotonic() + PATIENCE_S
        found = []
        while not found:
            if time.monotonic() > end:
                raise Failure(f"no final message came for {name}")
            for _, entries in self.db.xread({"cortext_lm_output": after}, block=200) or []:
                after = entries[-1][0]
                for _, fields in entries:
                    message = json.loads(fields[b"message"])
                    if (message["type"], message["utterance"]) == ("final", name):
                        found.append(message)
        if len(found) > 1:
            raise Failure(f"{len(found)} final messages came for {name}")
        return dict(found[0])

    # Both

    def _kill(self, server: Server) -> None:
        """Kill it, damage its position, start it again."""
        server.kill()
        self.n["kills"] += 1
        key = server.position
        how = self._rng.randrange(4)
        if how == 0:
            self.db.delete(key)
            self.db.set(key, self._rng.choice(WEIRD))
        elif how == 1:
            names = set(self.db.hkeys(key)) - {b"missing"}  # its text comes in the next result
            name = self._rng.choice(sorted(names) or [b"changes"])
            self.db.hset(key, name, self._rng.choice(WEIRD))
        elif how == 2:
            self.db.hset(key, self._rng.choice(WEIRD), self._rng.choice(WEIRD))
        server.start()

    def _newest(self, stream: str) -> bytes:
        found = self.db.xrevrange(stream, count=1)
        return bytes(found[0][0]) if found else b"0-0"

    def _answers(self, stream: str, after: bytes, number: int) -> list[dict[bytes, bytes]]:
        """So many entries of a stream, and no more than those."""
        end = time.monotonic() + PATIENCE_S
        found = []
        while len(found) < number:
            if time.monotonic() > end:
                raise Failure(f"{len(found)} of {number} answers came on {stream}")
            for _, entries in self.db.xread({stream: after}, block=200) or []:
                found += [fields for _, fields in entries]
                after = entries[-1][0]
        if len(found) > number:
            raise Failure(f"{len(found)} instead of {number} answers came on {stream}")
        return found

    def _fields(self) -> dict[bytes, bytes]:
        names = (b"done", b"logits", b"message", b"client2", b"\xff", b"")
        return {
            self._rng.choice(names): self._rng.choice(WEIRD) for _ in range(self._rng.randrange(3))
        }

    def _parameters(self) -> dict[bytes, bytes]:
        names = [*PARAMETERS.encode().split(), *WEIRD]
        return {
            self._rng.choice(names): self._rng.choice(WEIRD)
            for _ in range(self._rng.randrange(1, 4))
        }

    def _damaged(self, raw: bytes) -> bytes:
        """Bytes with something wrong: bits, length, type of the numbers, or everything."""
        data = bytearray(raw)
        how = self._rng.randrange(7)
        at = self._rng.randrange(len(data))
        if how == 0:
            data[at] ^= 1 << self._rng.randrange(8)
        elif how == 1:
            del data[at:]
        elif how == 2:
            data[at : at + 4] = self._rng.choice(
                (b"\xff\xff\xff\xff", b"\0\0\x80\x7f", b"\0\0\x80\xff", b"\0\0\xc0\x7f")
            )
        elif how == 3:
            data[at:at] = self._rng.randbytes(self._rng.choice((1, 4, 164)))
        elif how == 4:
            return self._rng.choice(WEIRD)
        elif how == 5 and len(data) % 4 == 0:
            with np.errstate(all="ignore"):
                kind = self._rng.choice(("<f8", "<f2", ">f4", "<i4", "<i8"))
                return np.frombuffer(raw, "<f4").astype(kind).tobytes()
        else:
            return self._rng.randbytes(164 * self._rng.randrange(1, 4))
        return bytes(data)


def _message(kind: str, name: str) -> bytes:
    return json.dumps({"type": kind, "utterance": name}).encode()


@contextmanager
def running(seed: int) -> Iterator[Fuzzer]:
    """A redis-server, a server of each profile, and what speaks to them."""
    with tempfile.TemporaryDirectory() as name:
        redis = RedisServer(Path(name)).start()
        servers: dict[str, Server] = {}
        try:
            lm = write_lm(Path(name) / "lm", sentence_entries(), SENTENCES)
            for profile in PROFILES:
                servers[profile] = Server(redis, lm, profile, Path(name))
            yield Fuzzer(redis.client(), servers, random.Random(seed))
        finally:
            for server in servers.values():
                server.kill()
            redis.close()


def write_entries(entries: list[Entry], path: Path) -> None:
    """Keep entries, one a line, in hexadecimal digits."""
    with path.open("w") as file:
        for stream, fields in entries:
            file.write(
                json.dumps([stream, {name.hex(): value.hex() for name, value in fields.items()}])
                + "\n"
            )


def read_entries(path: Path) -> list[Entry]:
    """Read the entries that `write_entries` has kept."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        (stream, {bytes.fromhex(n): bytes.fromhex(v) for n, v in fields.items()})
        for stream, fields in lines
    ]


def again(path: Path) -> int:
    """Send the entries of a file."""
    with running(0) as fuzzer:
        for entry in read_entries(path):
            fuzzer.send(entry)
        time.sleep(2)
        for server in fuzzer.servers.values():
            server.check()
    return 0


def main() -> int:
    """Fuzz until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/fuzz-lm-server"))
    parser.add_argument("--file", type=Path)
    args = parser.parse_args()
    if args.file:
        return again(args.file)
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    end = time.monotonic() + args.seconds
    failures = 0
    while time.monotonic() < end and failures < 10:
        with running(args.seed + failures) as fuzzer:
            try:
                while time.monotonic() < end:
                    fuzzer.round()
            except (Failure, AssertionError) as error:
                failures += 1
                kept = args.out / f"{args.seed}-{failures}.kept"
                write_entries(fuzzer.sent, kept)
                print(f"{error}\nthe entries are kept in {kept}")
                for profile, server in fuzzer.servers.items():
                    print(f"the end of the log of {profile}: {server.log_text()[-1500:]}")
            print("  ".join(f"{name}: {number}" for name, number in fuzzer.n.items()))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
