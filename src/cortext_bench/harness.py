"""The harness of all benchmarks: sides measured in turns, summaries, tables, results.

The commands of `cortext bench` and the studies in `benchmarks/` are built on it. Sides are compared
in one run and take turns, so that a machine that is busy for a while slows all of them; they are
compared by their medians. A side may be a function of this process or a process of its own
(`cortext_bench.workers`).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from cortext.files import atomic_write
from cortext_bench.workers import Missing, WorkerProcess

Side = TypeVar("Side", bound=Hashable)
Turn = TypeVar("Turn")
Answer = TypeVar("Answer")

Stage = Callable[[str], None]
"""Says what begins now."""

PERCENTILES = {"p50": 50, "p95": 95, "p99": 99, "max": 100}


def in_turns(
    sides: Mapping[Side, Callable[[Turn], Answer]], turns: Iterable[Turn], warmup: int = 0
) -> dict[Side, list[Answer]]:
    """Measure every side once in each turn.

    Args:
        sides: What measures each side, called with the turn.
        turns: What the turns differ in: a number of steps, a batch, an utterance.
        warmup: Turns at the beginning whose answers are dropped: caches and pages are cold.

    Returns:
        The answers of each side in the order of the turns.
    """
    answers: dict[Side, list[Answer]] = {side: [] for side in sides}
    for number, turn in enumerate(turns):
        for side, measure in sides.items():
            answer = measure(turn)
            if number >= warmup:
                answers[side].append(answer)
    return answers


class Sides:
    """Worker processes that are compared, each asked in its turn. Use as a context.

    Attributes:
        running: The processes by the name of their side.
        missing: The sides that cannot be measured here, and why.
    """

    def __init__(self) -> None:
        self.running: dict[str, WorkerProcess] = {}
        self.missing: dict[str, str] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, name: str, start: Callable[[], WorkerProcess]) -> None:
        """Start the process of a side, which ends with this context."""
        try:
            self.running[name] = self._stack.enter_context(start())
        except Missing as error:
            self.missing[name] = str(error)

    def ask(
        self, do: str, announce: Callable[[str], object] = lambda name: None, **request: Any
    ) -> dict[str, dict[str, Any]]:
        """Ask every side that runs; one that cannot continue is missing from then on.

        Args:
            do: Method of the workers.
            announce: Called with the name of each side before it is asked.
            request: Arguments of the method.
        """
        answers = {}
        for name in list(self.running):
            announce(name)
            try:
                answers[name] = self.running[name].ask(do, **request)
            except Missing as error:
                self.missing[name] = str(error)
                del self.running[name]
        return answers


class MeasuredCost(NamedTuple):
    """The cost of one call."""

    seconds: float
    cpu_seconds: float
    """Processor time of this process, which other work on the machine disturbs less."""
    fresh_pages: int
    """Pages of memory that the system had to give meanwhile."""


def cost_of(function: Callable[[], object]) -> MeasuredCost:
    """Call a function and return what it cost."""
    pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    cpu = time.process_time()
    clock = time.perf_counter()
    function()
    seconds = time.perf_counter() - clock
    cpu_seconds = time.process_time() - cpu
    return MeasuredCost(
        seconds, cpu_seconds, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - pages
    )


def median_and_spread(values: Sequence[float]) -> tuple[float, list[float]]:
    """Return the median, and the 10th and 90th percentile."""
    middle, low, high = (float(np.quantile(values, share)) for share in (0.5, 0.1, 0.9))
    return middle, [low, high]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return the median, the tail and the worst of some values, by the names in `PERCENTILES`."""
    found = np.percentile(values, list(PERCENTILES.values())).tolist()
    return dict(zip(PERCENTILES, found, strict=True))


def machine(device: str | None = None) -> dict[str, Any]:
    """Return what a result says of the machine: its device, cores and load."""
    facts = {} if device is None else {"device": device}
    return facts | {"cores": os.cpu_count(), "load": os.getloadavg()[0]}


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as the docs have it."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def study_arguments(
    description: str | None, *, json_help: str = "file to write the result to"
) -> argparse.ArgumentParser:
    """Return the command line of a study in `benchmarks/`: its docstring as help, and `--json`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help=json_help)
    return parser


def write_result(path: Path | None, result: Mapping[str, Any]) -> None:
    """Write a result as JSON, whole or not at all, where a file is named."""
    if path is not None:
        atomic_write(path, (json.dumps(result, indent=2, default=str) + "\n").encode())
