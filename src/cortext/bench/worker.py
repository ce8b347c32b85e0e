"""One search in a process of its own.

Reads requests, one JSON object a line, and answers each with one.

    python -m cortext.bench.worker NAME PATHS POSTERIORS        (PATHS is JSON, POSTERIORS an .npz
    of float32 [P, V])

A process of its own keeps memory, threads and crashes apart. Peers print to stdout and stderr;
answers therefore go to a copy of stdout that only this file knows.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from cortext.bench.memory import memory
from cortext.bench.searcher import INVENTORY, Missing, Paths, Searcher, Settings, searcher


class Worker:
    """A search and the utterances to decode."""

    def __init__(self, name: str, paths: Paths, posteriors: Path) -> None:
        with np.load(posteriors) as arrays:
            self.utterances = [arrays[str(number)] for number in range(len(arrays.files))]
        kind = searcher(name)
        before, started = memory(), time.perf_counter()
        self.search: Searcher = kind(paths)
        self.facts = {
            "load_s": time.perf_counter() - started,
            "memory_before": before,
            "memory_loaded": memory(),
            "version": metadata.version(kind.package),
        }

    def decode(
        self, settings: Settings, chosen: Sequence[int], texts: bool = True
    ) -> dict[str, Any]:
        """Decode utterances.

        Seconds of each by the clock and by the processor, and the sentences found.
        """
        self.search.configure(settings)
        seconds, busy, found = [], [], []
        for number in chosen:
            clock, processor = time.perf_counter(), time.thread_time()
            result = self.search.decode(self.utterances[number])
            seconds.append(time.perf_counter() - clock)
            busy.append(time.thread_time() - processor)
            found.append(self.search.texts(result) if texts else [])
        return {"seconds": seconds, "busy": busy, "texts": found, "memory": memory()}

    def step(self, settings: Settings, chosen: Sequence[int]) -> dict[str, Any]:
        """Decode frame by frame in a session.

        Seconds of every frame by the clock and by the processor, and of ending the utterance. Ours
        only.
        """
        self.search.configure(settings)
        decoder = self.search.decoder  # type: ignore[attr-defined]
        frames, busy, ends = [], [], []
        for number in chosen:
            session = decoder.session(INVENTORY)
            for frame_V in self.utterances[number]:
                started, processor = time.perf_counter(), time.thread_time()
                session.step(frame_V[None])
                busy.append(time.thread_time() - processor)
                frames.append(time.perf_counter() - started)
            started = time.perf_counter()
            session.finish()
            ends.append(time.perf_counter() - started)
        return {"frames": frames, "busy": busy, "ends": ends}

    def threads(
        self, settings: Settings, chosen: Sequence[int], counts: Sequence[int]
    ) -> dict[str, Any]:
        """Seconds for the same utterances by each number of threads in one process. Ours only."""
        self.search.configure(settings)
        taken = {}
        for count in counts:
            with ThreadPoolExecutor(count) as pool:
                list(
                    pool.map(
                        self.search.decode, [self.utterances[number] for number in chosen[:count]]
                    )
                )
                started = time.perf_counter()
                list(pool.map(self.search.decode, [self.utterances[number] for number in chosen]))
                taken[str(count)] = time.perf_counter() - started
        return {"seconds": taken}


def serve(
    begin: Callable[[], tuple[Any, dict[str, Any]]], requests: TextIO, answers: TextIO
) -> None:
    """Answer requests until there are no more.

    Args:
        begin: Makes the object whose methods requests name, and the first answer.
    """

    def answer(call: Callable[[], dict[str, Any]]) -> None:
        try:
            result = call()
        except Missing as error:
            result = {"missing": str(error)}
        print(json.dumps(result), file=answers, flush=True)

    served: list[Any] = []

    def first() -> dict[str, Any]:
        worker, result = begin()
        served.append(worker)
        return result

    answer(first)
    for line in requests if served else ():
        request = json.loads(line)
        answer(lambda: getattr(served[0], request.pop("do"))(**request))  # noqa: B023  (called at once)


def own_stdout() -> TextIO:
    """A copy of stdout for answers; from now on what is printed goes nowhere."""
    mine = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return mine


def main(arguments: Sequence[str], requests: TextIO, answers: TextIO) -> None:
    """Serve one search."""
    name, paths, posteriors = arguments

    def begin() -> tuple[Worker, dict[str, Any]]:
        places = Paths(**{key: Path(path) for key, path in json.loads(paths).items()})
        worker = Worker(name, places, Path(posteriors))
        return worker, worker.facts

    serve(begin, requests, answers)


if __name__ == "__main__":
    main(sys.argv[1:], sys.stdin, own_stdout())
