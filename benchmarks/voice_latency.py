"""Time from a request to the first sound of the server's voice, and what speaking costs decoding.

    python benchmarks/voice_latency.py --demo runs/demo [--voice espeak-ng] [--sentences 250]
        [--json FILE]

`cortext serve` decodes the validation trials of a demo (`cortext demo`) at their own pace, without
end. Every half second a sentence of the demo's texts is asked for, as a page asks for it. Measured
are the milliseconds from the request to the first sample that has come, and to the last one, at
which sample the sound itself begins (a tenth of its largest amplitude), and the server's own times
of its live steps. Then the steps are measured for as long without any request: a server of its own
each time, in turn, so that both see the machine alike.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from websockets.sync.client import connect

from cortext.data.packed import open_packed
from cortext.provenance import provenance
from cortext_bench.harness import machine, markdown_table, study_arguments, write_result

PAUSE_S = 0.5
HEADER_BYTES = 44
LIMIT_MS = 300.0
TOKEN = "benchmark"


@contextmanager
def serving(demo: Path, *options: str) -> Iterator[int]:
    """Run `cortext serve` on a free port, which is given, and let it decode."""
    parts = ["serve", demo / "run", "--lm", demo / "lm", "--data", demo / "packed", "--loop"]
    command = [Path(sys.executable).with_name("cortext"), *map(str, parts), "--token", TOKEN]
    process = subprocess.Popen(
        [*command, "--port", "0", *options], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        url = next(line for line in process.stdout if "/#token=" in line)
        port = int(url.partition("/#")[0].rpartition(":")[2])
        with ask(port, "start", {}) as answer:
            answer.read()
        yield port
    finally:
        process.terminate()
        process.wait()


def ask(port: int, action: str, body: dict[str, Any]) -> Any:
    """Return the answer to a request; it can be read while it comes."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/{action}",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {TOKEN}"},
    )
    return urllib.request.urlopen(request, timeout=30)


def speak(port: int, text: str) -> dict[str, float]:
    """Ask for the sound of a text as a page does; return the times."""
    began_s = time.perf_counter()
    with ask(port, "speak", {"text": text}) as answer:
        start = answer.read(HEADER_BYTES + 2)  # the first sample
        first_ms = 1000 * (time.perf_counter() - began_s)
        sound = start[HEADER_BYTES:] + answer.read()
        whole_ms = 1000 * (time.perf_counter() - began_s)
    rate = int.from_bytes(start[24:28], "little")
    samples = np.abs(np.frombuffer(sound, "<i2").astype(int))
    silent_ms = 1000 * int(np.argmax(samples > 0.1 * samples.max())) / rate
    return {
        "first_ms": first_ms,
        "whole_ms": whole_ms,
        "silent_ms": silent_ms,
        "sound_s": len(samples) / rate,
    }


def steps(port: int) -> dict[str, float]:
    """Return the times of the latest live steps, as the server reports them to a page."""
    with connect(f"ws://127.0.0.1:{port}/ws?token={TOKEN}", max_size=None) as socket:
        while True:
            message = json.loads(socket.recv(timeout=30))
            if message["type"] == "stats" and message["latency"].get("total"):
                total: dict[str, float] = message["latency"]["total"]
                return total


def main() -> None:
    parser = study_arguments(__doc__)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"))
    parser.add_argument("--voice", default="espeak-ng")
    parser.add_argument("--sentences", type=int, default=250)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    trials = open_packed(arguments.demo / "packed").trials("val")
    texts = itertools.cycle([trial.sentence for trial in trials if trial.sentence])
    spoken: list[dict[str, float]] = []
    found: dict[str, list[dict[str, float]]] = {"alone": [], "beside speaking": []}
    each = -(-arguments.sentences // arguments.rounds)
    for _ in range(arguments.rounds):
        with serving(arguments.demo, "--voice", arguments.voice) as port:
            time.sleep(3.0)  # warms up
            began_s = time.monotonic()
            for text in itertools.islice(texts, each):
                spoken.append(speak(port, text))
                time.sleep(PAUSE_S)
            took_s = time.monotonic() - began_s
            found["beside speaking"].append(steps(port))
        with serving(arguments.demo) as port:
            time.sleep(3.0 + took_s)
            found["alone"].append(steps(port))
    times = {
        name: {
            "median": float(np.median([one[name] for one in spoken])),
            "p99": float(np.percentile([one[name] for one in spoken], 99)),
            "largest": max(one[name] for one in spoken),
        }
        for name in spoken[0]
    }
    of_steps = {
        name: {key: float(np.median([one[key] for one in rounds])) for key in ("p50", "p99", "max")}
        for name, rounds in found.items()
    }
    columns = ["time", "median", "p99", "largest"]
    rows = [[name, *(f"{value:.1f}" for value in row.values())] for name, row in times.items()]
    print(
        f"{len(spoken)} sentences by {arguments.voice}; limit {LIMIT_MS:g} ms to the first sample"
    )
    print(markdown_table(columns, rows))
    rows = [[name, *(f"{value:.2f}" for value in row.values())] for name, row in of_steps.items()]
    print(markdown_table(["live step, ms", "median", "p99", "largest"], rows))
    result = {
        "voice": arguments.voice,
        "sentences": len(spoken),
        "rounds": arguments.rounds,
        "times": times,
        "steps_ms": of_steps,
        "steps_ms_of_rounds": found,
    }
    write_result(arguments.json, {**result, **machine(), **provenance()})


if __name__ == "__main__":
    main()
