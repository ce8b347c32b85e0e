"""Training where other programs use some of the cores.

    python benchmarks/fewer_cores.py --demo runs/demo [--rounds 5] [--steps 6] [--precision fp32]
        [--json FILE]

Processes that train on a demo's data (`cortext demo`) take turns. They differ in how long a thread
that waits for others keeps its core. Beside them run no other program, one, or one on every core.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from cortext.cores import SPINS, available_cores
from cortext.provenance import provenance
from cortext_bench.harness import (
    Sides,
    machine,
    markdown_table,
    study_arguments,
    write_result,
)
from cortext_bench.training.sides import SidePlan
from cortext_bench.workers import WorkerProcess

SIDES = {
    "OpenMP's own, 300,000 turns": {"GOMP_SPINCOUNT": "300000"},
    f"cortext's, {int(SPINS):,} turns": {"GOMP_SPINCOUNT": SPINS},
    "none": {"GOMP_SPINCOUNT": "0"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}


@contextmanager
def busy_programs(n: int) -> Iterator[None]:
    """Keep `n` programs computing within the context."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def measure(demo: Path, out: Path, args: Any) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return the times of steps (ms) and the rates of small products by programs and side."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    with Sides() as sides:
        for number, (name, environment) in enumerate(SIDES.items()):
            own = str(out / str(number))
            plan = SidePlan("ours", str(demo), own, "demo", [], precision=args.precision)
            arguments = [json.dumps(asdict(plan))]
            log, threads = out / f"{number}.log", {"OMP_NUM_THREADS": str(available_cores())}
            sides.start(
                name,
                lambda name=name, arguments=arguments, log=log, env=threads | environment: (
                    WorkerProcess(name, "training.worker", arguments, log, env)
                ),
            )
        sides.ask("steps", n=2)  # caches are cold, and lengths are new
        for round_ in range(args.rounds):
            for n in sorted({0, 1, available_cores()}):
                print(f"round {round_ + 1}, {n} other programs", file=sys.stderr)
                with busy_programs(n):
                    steps = sides.ask("steps", n=args.steps)
                    products = sides.ask("small_products", seconds=1.0)
                for name in SIDES:
                    row = found.setdefault(str(n), {}).setdefault(name, {"ms": [], "rates": []})
                    row["ms"] += steps[name]["ms"]
                    row["rates"].append(products[name]["median"])
    return found


def main() -> None:
    """Measure, print the table and write the result."""
    parser = study_arguments(__doc__)
    parser.add_argument("--demo", type=Path, required=True, help="folder of a demo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--precision", default="auto", help="auto, fp32 or bf16")
    args = parser.parse_args()
    load = machine("cpu")
    with tempfile.TemporaryDirectory() as folder:
        found = measure(args.demo, Path(folder), args)
    rows = [
        [
            n,
            name,
            *(f"{value:.0f}" for value in (np.median(values["ms"]), max(values["ms"]))),
            *(f"{rate / 1e9:.0f}" for rate in (np.median(values["rates"]), min(values["rates"]))),
        ]
        for n, sides in found.items()
        for name, values in sides.items()
    ]
    columns = ["step, ms", "slowest", "small products, GFLOP/s", "slowest"]
    print(markdown_table(["other programs", "turns of waiting", *columns], rows))
    write_result(
        args.json,
        {"provenance": provenance(), "machine": load, "precision": args.precision, "cells": found},
    )


if __name__ == "__main__":
    os.environ.pop("OMP_WAIT_POLICY", None)
    main()
