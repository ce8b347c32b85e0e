"""Time that a client waits for the Redis language-model server: a frame's answer, the text.

    python benchmarks/redis_latency.py [--demo runs/demo] [--utterances 60] [--pace MS] [--json
    FILE]
    python benchmarks/redis_latency.py --llm MODEL --pace 80 [--budgets 10,20,40,60]

A redis-server and a `cortext lm-server` process are started on this machine. The client sends the
logits of a demo run's validation trials (`cortext demo`) one frame of 80 ms at a time, waits for
each answer by a blocking read, and finalizes. Times are round trips as the client sees them; the
server's own times are from its log. `--llm` compares three servers: without the large model, with
the model ranking at the end, and with the model in the search within a budget. It also counts the
final sentences that equal those of a search without a budget.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import redis

from cortext.provenance import provenance
from cortext.text.inventory import LM, RELEASE
from cortext_bench.harness import percentiles, study_arguments, write_result


@contextmanager
def processes(lm: Path, arguments: list[str]) -> Iterator[tuple[redis.Redis, Path]]:
    """Yield a client of a Redis server with a language-model server on it, and the server's log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        binary = shutil.which("redis-server") or "/usr/bin/redis-server"
        redis_command = [
            binary,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
            folder,
        ]
        server_command = [
            str(Path(sys.executable).parent / "cortext"),
            "lm-server",
            "--lm",
            str(lm),
        ]
        server_command += ["--redis-port", str(port), "--log", str(log), *arguments]
        started = [
            subprocess.Popen(redis_command, stdout=subprocess.DEVNULL),
            subprocess.Popen(server_command),
        ]
        try:
            client = redis.Redis(port=port)
            while not (log.exists() and '"serving"' in log.read_text()):
                if any(process.poll() is not None for process in started):
                    raise SystemExit("a server ended; its message is above")
                time.sleep(0.05)
            yield client, log
        finally:
            for process in reversed(started):
                process.terminate()
                process.wait()


class TimedClient:
    """Asks, and waits for the answer."""

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._seen = {}

    def ask(self, stream: str, fields: dict[str, Any], answers: str) -> float:
        """Send a request and return the milliseconds until its answer arrived.

        Args:
            stream: Stream of the request.
            fields: Fields of the request.
            answers: Stream of the answer.
        """
        start = time.perf_counter()
        self._redis.xadd(stream, fields)
        found = self._redis.xread({answers: self._seen.get(answers, "0-0")}, block=60_000, count=1)
        self._seen[answers] = found[0][1][0][0]
        return 1000 * (time.perf_counter() - start)


def measure(
    client: TimedClient, logits: list[np.ndarray], pace_ms: float
) -> dict[str, list[float]]:
    """Measure round trips in milliseconds, by kind of request.

    Args:
        client: Client of the server.
        logits: Utterances, each float32 [P, V].
        pace_ms: Least time between frames, in milliseconds.
    """
    times: dict[str, list[float]] = {"reset": [], "frame": [], "finalize": []}
    for logits_PV in logits:
        times["reset"].append(
            client.ask("remote_lm_reset", {"done": 0}, "remote_lm_done_resetting")
        )
        for logits_V in logits_PV:
            frame_ms = client.ask(
                "remote_lm_input", {"logits": logits_V.tobytes()}, "remote_lm_output_partial"
            )
            times["frame"].append(frame_ms)
            time.sleep(max(pace_ms - frame_ms, 0) / 1000)
        times["finalize"].append(
            client.ask("remote_lm_finalize", {"done": 0}, "remote_lm_output_final")
        )
    return times


def with_llm(model: str, budgets_ms: list[float], folder: Path) -> dict[str, list[str]]:
    """Return the arguments of servers with and without a large model, by name of the comparison.

    Args:
        model: Name or directory of the large model.
        budgets_ms: Budgets of fusion in the search, in milliseconds.
        folder: Folder for option files.
    """
    found = {"no large model": [], "large model at the end": ["--llm", model]}
    for budget_ms in budgets_ms:
        file = folder / f"{budget_ms:g}.yaml"
        file.write_text(f"llm: {{mode: fusion, budget_ms: {budget_ms}}}\n")
        found[f"in the search, {budget_ms:g} ms"] = ["--llm", model, "--options", str(file)]
    return found


def texts_without_hurry(model: str, lm: Path, logits: list[np.ndarray]) -> list[str]:
    """Return the sentences of a search that waits for the large model.

    Args:
        model: Name or directory of the large model.
        lm: Language-model directory.
        logits: Utterances, each float32 [P, V].
    """
    from cortext.decoding import Decoder
    from cortext.decoding.saved import to_log_probs
    from cortext_lm.llm.large_model import LLM

    decoder = Decoder.from_dir(lm, {"llm": {"mode": "fusion"}}).with_llm(LLM.load(model))
    return [decoder.decode(to_log_probs(logits_PV), "lm")[0].text for logits_PV in logits]


def main() -> None:
    parser = study_arguments(__doc__)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"))
    parser.add_argument("--utterances", type=int, default=60)
    parser.add_argument("--pace", type=float, default=0.0, help="ms between frames; 80 is a rig's")
    parser.add_argument("--llm", metavar="MODEL")
    parser.add_argument("--budgets", default="10,20,40,60")
    options = parser.parse_args()
    files = sorted((options.demo / "eval" / "logits").glob("*.npy"))[: options.utterances]
    columns = LM.order_from(RELEASE)
    logits = [np.ascontiguousarray(np.load(file)[:, columns], dtype=np.float32) for file in files]
    results: dict[str, Any] = {"pace_ms": options.pace, "n_frames": sum(map(len, logits))}
    servers = {"published parameters": ["--preset", "published"], "the search's own": []}
    expected: list[str] = []
    folder = tempfile.TemporaryDirectory()
    if options.llm:
        servers = with_llm(
            options.llm, [float(budget) for budget in options.budgets.split(",")], Path(folder.name)
        )
        expected = texts_without_hurry(options.llm, options.demo / "lm", logits)
    for name, arguments in servers.items():
        with processes(options.demo / "lm", arguments) as (connection, log):
            times = measure(TimedClient(connection), logits, options.pace)
            finals = connection.xrange("remote_lm_output_final")
            lines = [json.loads(line) for line in log.read_text().splitlines()]
        done = [line for line in lines if line["event"] == "utterance_finished"]
        times["of which search, per frame"] = [
            line["search_ms"] / max(line["n_frames"], 1) for line in done
        ]
        times["of which finishing"] = [line["finish_ms"] for line in done]
        results[name] = {
            what: {label: round(value, 3) for label, value in percentiles(ms).items()}
            for what, ms in times.items()
        }
        if expected:
            texts = [fields[b"lm_response_final"].decode() for _, fields in finals]
            results[name]["as without hurry"] = sum(map(str.__eq__, texts, expected))
        print(f"\n{name}: {len(logits)} utterances, {results['n_frames']} frames, ms")
        for what, row in results[name].items():
            shown = (
                row
                if isinstance(row, int)
                else "".join(f"{label:>6} {value:8.2f}" for label, value in row.items())
            )
            print(f"  {what:28}{shown}", flush=True)
    folder.cleanup()
    write_result(options.json, results | {"provenance": provenance()})


if __name__ == "__main__":
    main()
