"""Utterances through live servers that are killed at random moments.

Every text must be complete, or come with an error that names the missing part.

    python benchmarks/killed_live.py [--utterances 1000] [--keep 1,100,1000] [--seed 0] [--json
    FILE]

A redis-server and one `cortext lm-server --keep N`, or one `cortext brand-node`, run on this
machine. A client speaks one utterance after the other: it waits for each answer, as clients of the
public release do, or writes all at once. Meanwhile the server is killed with SIGKILL at random
moments and started again after a random pause; entries of the client wait meanwhile. The texts are
compared with those of the same utterances before the first kill.

Each utterance ends in one of four ways: the same text; a result whose `error` names the missing
part; another text without an error (silent); no result within a minute (none). The last two must
not occur, nor two results of one utterance.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS / "support"))

from brand_rig import N_FEATURES, Rig, make_world  # noqa: E402
from commands import Command  # noqa: E402
from engine_cases import SENTENCES, sentence_entries, write_lm  # noqa: E402
from lm_cases import SAID, spoken_logits  # noqa: E402
from redis_process import RedisServer, wait_for  # noqa: E402
from release_client import ReleaseClient  # noqa: E402

from cortext.provenance import provenance  # noqa: E402
from cortext_bench.harness import markdown_table, study_arguments, write_result  # noqa: E402

N_TEXTS = 24
"""Different utterances; each is spoken undisturbed first."""
ALIVE_S = (0.05, 1.5)
AWAY_S = (0.0, 0.5)
"""Seconds that a server lives before it is killed, and seconds that it is away."""
PATIENCE_S = 60.0


@dataclass
class Counts:
    """Fate of the utterances that were spoken to one kind of server."""

    server: str
    utterances: int = 0
    entries: int = 0
    kills: int = 0
    same: int = 0
    named: int = 0
    silent: int = 0
    none: int = 0
    twice: int = 0
    seconds: float = 0.0

    def judge(self, expected: str, results: list[tuple[str, str]]) -> None:
        """Count one utterance by its results, pairs of text and error."""
        self.utterances += 1
        self.none += not results
        self.twice += len(results) > 1
        for text, error in results[:1]:
            self.same += text == expected and not error
            self.named += bool(error)
            self.silent += text != expected and not error


class Killer:
    """Runs a server, kills it at random moments and starts it again. Use as a context.

    Args:
        start: Starts the server, and returns once it serves.
    """

    def __init__(self, start: Callable[[], Command], rng: random.Random) -> None:
        self._start = start
        self._rng = rng
        self._over = threading.Event()
        self.n_kills = 0
        self.error = ""
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            server = self._start()
            self._over.wait(self._rng.uniform(*ALIVE_S))
            if not server.running():
                self.error = f"the server ended by itself: {server.wait().stderr[-2000:]}"
                return
            server.kill()
            self.n_kills += 1
            self._over.wait(self._rng.uniform(*AWAY_S))


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    """Yield a Redis server of this run alone."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder)).start()
        try:
            yield server
        finally:
            server.close()


def started(redis: RedisServer, name: str, *arguments: str) -> Command:
    """Start a server and wait until its connection to Redis of that name is open.

    A server that does not start ends the run with its output.
    """
    client = redis.client()

    def connections() -> set[str]:
        return {each["id"] for each in client.client_list() if each["name"].startswith(name)}

    before = connections()
    command = Command(*arguments)
    wait_for(
        lambda: not command.running() or connections() - before, f"connection of {name}", PATIENCE_S
    )
    client.close()
    if not command.running():
        raise SystemExit(f"the server did not start: {command.wait().said[-2000:]}")
    return command


# The language-model server


def kill_lm_server(lm: Path, keep: int, n_utterances: int, seed: int) -> Counts:
    """Speak to `cortext lm-server --keep N` while it is killed again and again.

    Args:
        lm: Language-model directory.
        keep: N, the number of entries that it keeps.
        n_utterances: Number of utterances.
        seed: Seed of the sentences and of the moments.
    """
    rng = random.Random(seed)
    counts = Counts(f"lm-server --keep {keep}")
    spoken = [
        spoken_logits(" ".join(rng.choices(SAID, k=1 + number % 4)), number)
        for number in range(N_TEXTS)
    ]
    with redis_server() as redis:

        def start() -> Command:
            arguments = ["--lm", str(lm), "--redis-port", str(redis.port), "--keep", str(keep)]
            return started(redis, "cortext-lm-server", "lm-server", *arguments)

        client = ReleaseClient(redis.client(), patience_s=PATIENCE_S)
        server = start()
        expected = [client.decode(logits_PV, 1).text for logits_PV in spoken]
        server.kill()
        begin = time.monotonic()
        with Killer(start, rng) as killer:
            for number in range(n_utterances):
                logits_PV = spoken[number % N_TEXTS]
                counts.entries += len(logits_PV)
                said = say_to_lm_server(client, logits_PV, hurried=rng.random() < 0.5)
                counts.judge(expected[number % N_TEXTS], [said] if said else [])
                if killer.error:
                    raise SystemExit(killer.error)
        counts.kills = killer.n_kills
        counts.seconds = round(time.monotonic() - begin, 1)
        server = start()  # messages that a last kill delayed come now
        client.decode(spoken[0], 1)
        n_finals = redis.client().xinfo_stream("remote_lm_output_final")["entries-added"]
        counts.twice = max(n_finals - N_TEXTS - n_utterances + counts.none - 1, 0)
        server.kill()
    return counts


def say_to_lm_server(
    client: ReleaseClient, logits_PV: np.ndarray, hurried: bool
) -> tuple[str, str] | None:
    """Return the text and the error of an utterance; None where no result came.

    Args:
        client: Client of the language-model server.
        logits_PV: Logits of the utterance, float32 [P, V].
        hurried: Whether to send all frames without waiting for partial results.
    """
    seconds, micros = client.redis.time()
    client.seen = dict.fromkeys(client.seen, seconds * 1000 + micros // 1000)
    try:
        if not hurried:
            final = client.decode(logits_PV, 1)
        else:
            client.redis.xadd("remote_lm_reset", {"done": 0})
            for logits_V in logits_PV:
                client.redis.xadd("remote_lm_input", {"logits": logits_V.tobytes()})
            final = client.finalize()
    except AssertionError:
        return None
    return final.fields[b"lm_response_final"].decode(), final.fields.get(b"error", b"").decode()


# The BRAND node


def kill_brand_node(root: Path, n_utterances: int, seed: int) -> Counts:
    """Speak to `cortext brand-node` while it is killed again and again.

    Args:
        root: Folder for the model and language model that are made.
        n_utterances: Number of utterances.
        seed: Seed of the features and of the moments.
    """
    rng = random.Random(seed)
    counts = Counts("brand-node")
    generator = np.random.default_rng(seed)
    spoken = [
        generator.normal(size=(40 + 6 * n, N_FEATURES)).astype(np.float32) for n in range(N_TEXTS)
    ]
    with redis_server() as redis:
        rig = Rig(redis, make_world(root))
        rig.publish()

        def start() -> Command:
            n_before = rig.states().count("NODE_READY")
            node = started(
                redis,
                "speech",
                "brand-node",
                "-n",
                "speech",
                "-i",
                "127.0.0.1",
                "-p",
                str(redis.port),
            )
            if rng.random() < 0.8:  # else it may be killed while it loads its model
                wait_for(
                    lambda: not node.running() or rig.states().count("NODE_READY") > n_before,
                    "NODE_READY",
                    60,
                )
            return node

        server = start()
        wait_for(lambda: "NODE_READY" in rig.states(), "NODE_READY", 60)
        expected = []
        for trial, bins_TC in enumerate(spoken):
            rig.say(bins_TC, f"first-{trial}")
            expected.append(results_of(rig, f"first-{trial}")[0][0])
        server.kill()
        begin = time.monotonic()
        with Killer(start, rng) as killer:
            for number in range(n_utterances):
                bins_TC = spoken[number % N_TEXTS]
                counts.entries += len(bins_TC)
                say_to_brand_node(rig, bins_TC, str(number), rng.uniform(0, 0.003))
                if rng.random() < 0.7:
                    results_of(rig, str(number))
                if killer.error:
                    raise SystemExit(killer.error)
        counts.kills = killer.n_kills
        counts.seconds = round(time.monotonic() - begin, 1)
        server = start()
        results_of(rig, str(n_utterances - 1))
        finals: dict[str, list[tuple[str, str]]] = {}
        for fields in rig.entries("speech_final"):
            finals.setdefault(fields[b"trial"].decode(), []).append(text_and_error(fields))
        for number in range(n_utterances):
            counts.judge(expected[number % N_TEXTS], finals.get(str(number), []))
        server.kill()
    return counts


def say_to_brand_node(rig: Rig, bins_TC: np.ndarray, trial: str, pause_s: float) -> None:
    """Write a trial between its marks, one bin an entry.

    Args:
        rig: The rig, whose streams the node reads.
        bins_TC: Features of the trial, float32 [T, C].
        trial: Name of the trial.
        pause_s: Seconds between bins.
    """
    rig.mark("start", trial, rig.i)
    for x_C in bins_TC:
        rig.send(x_C.tobytes())
        time.sleep(pause_s)
    rig.mark("stop", trial, rig.i - 1)


def text_and_error(fields: dict[bytes, bytes]) -> tuple[str, str]:
    """Return the text and the error in a final entry of the node."""
    return fields[b"text"].decode(), fields[b"error"].decode()


def results_of(rig: Rig, trial: str) -> list[tuple[str, str]]:
    """Wait for results of a trial and return them; an empty list where none comes."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        newest = [fields for _, fields in rig.redis.xrevrange("speech_final", count=50)]
        if found := [
            text_and_error(fields) for fields in newest if fields[b"trial"].decode() == trial
        ]:
            return found
        time.sleep(0.01)
    return []


# The table


def table(rows: list[Counts]) -> str:
    """Return the counts as a table."""
    columns = [field.name for field in fields(Counts)]
    return markdown_table(columns, [[getattr(row, name) for name in columns] for row in rows])


def main() -> int:
    parser = study_arguments(__doc__)
    parser.add_argument("--utterances", type=int, default=1000)
    parser.add_argument("--keep", default="1,100,1000")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows: list[Counts] = []
    with tempfile.TemporaryDirectory() as folder:
        lm = write_lm(Path(folder) / "lm", sentence_entries(), SENTENCES)
        for keep in map(int, options.keep.split(",")):
            rows.append(kill_lm_server(lm, keep, options.utterances, options.seed))
            print(table(rows[-1:]), flush=True)
        rows.append(kill_brand_node(Path(folder) / "brand", options.utterances, options.seed))
    print("\n" + table(rows))
    result: dict[str, Any] = {"seed": options.seed, "rows": [asdict(row) for row in rows]}
    write_result(options.json, result | provenance())
    return int(any(row.silent or row.none or row.twice for row in rows))


if __name__ == "__main__":
    sys.exit(main())
