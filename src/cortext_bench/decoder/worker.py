"""One search in a process of its own: answers requests, one JSON object a line.

    python -m cortext_bench.decoder.worker NAME PATHS POSTERIORS

PATHS is JSON, POSTERIORS an .npz of float32 [P, V].
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from cortext.memory import memory
from cortext.provenance import version_of
from cortext_bench.decoder.searcher import INVENTORY, Paths, Searcher, Settings, searcher
from cortext_bench.workers import ONE_THREAD, WorkerProcess, own_stdout, serve


class DecoderWorker:
    """A search and the utterances to decode."""

    def __init__(self, name: str, paths: Paths, posteriors: Path) -> None:
        with np.load(posteriors) as arrays:
            self.utterances = [arrays[str(number)] for number in range(len(arrays.files))]
        kind = searcher(name)
        before = memory()
        started = time.perf_counter()
        self.search: Searcher = kind(paths)
        self.facts = {
            "load_s": time.perf_counter() - started,
            "memory_before": before,
            "memory_loaded": memory(),
            "version": version_of(kind.package),
        }

    def decode(
        self, settings: Settings, chosen: Sequence[int], texts: bool = True
    ) -> dict[str, Any]:
        """Decode utterances one after the other.

        Args:
            settings: Settings of the search.
            chosen: Numbers of the utterances.
            texts: Whether to return the sentences found.

        Returns:
            For each utterance `seconds` by the clock, `busy` seconds of the processor and `texts`;
            and `memory` of the process.
        """
        self.search.configure(settings)
        seconds = []
        busy = []
        found = []
        for number in chosen:
            clock = time.perf_counter()
            processor = time.thread_time()
            result = self.search.decode(self.utterances[number])
            seconds.append(time.perf_counter() - clock)
            busy.append(time.thread_time() - processor)
            found.append(self.search.texts(result) if texts else [])
        return {"seconds": seconds, "busy": busy, "texts": found, "memory": memory()}

    def step(self, settings: Settings, chosen: Sequence[int]) -> dict[str, Any]:
        """Decode frame by frame, in a stream of our own search.

        Returns:
            `frames` and `ends`, seconds by the clock for each frame and for each utterance's end;
            `busy`, seconds of the processor for each frame.
        """
        self.search.configure(settings)
        decoder = self.search.decoder  # type: ignore[attr-defined]
        frames = []
        busy = []
        ends = []
        for number in chosen:
            stream = decoder.stream(INVENTORY)
            for frame_V in self.utterances[number]:
                started = time.perf_counter()
                processor = time.thread_time()
                stream.step(frame_V[None])
                busy.append(time.thread_time() - processor)
                frames.append(time.perf_counter() - started)
            started = time.perf_counter()
            stream.finish()
            ends.append(time.perf_counter() - started)
        return {"frames": frames, "busy": busy, "ends": ends}

    def threads(
        self, settings: Settings, chosen: Sequence[int], counts: Sequence[int]
    ) -> dict[str, Any]:
        """Measure our search with several threads in one process.

        Args:
            settings: Settings of the search.
            chosen: Numbers of the utterances, the same for each number of threads.
            counts: Numbers of threads.

        Returns:
            `seconds` for all utterances, by number of threads.
        """
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


class SearchProcess(WorkerProcess):
    """A search that has loaded its models; `loaded` is what `DecoderWorker.facts` returns."""

    def __init__(self, name: str, paths: Paths, posteriors: Path) -> None:
        self.kind = searcher(name)
        places = json.dumps({key: str(path) for key, path in asdict(paths).items()})
        log = posteriors.with_name(f"{name}.log")
        super().__init__(name, "decoder.worker", [name, places, str(posteriors)], log, ONE_THREAD)

    def decode(
        self, settings: Mapping[str, Any], chosen: Sequence[int], texts: bool = True
    ) -> dict[str, Any]:
        """See `DecoderWorker.decode`."""
        return self.ask("decode", settings=dict(settings), chosen=list(chosen), texts=texts)

    def step(self, settings: Mapping[str, Any], chosen: Sequence[int]) -> dict[str, Any]:
        """See `DecoderWorker.step`."""
        return self.ask("step", settings=dict(settings), chosen=list(chosen))

    def threads(
        self, settings: Mapping[str, Any], chosen: Sequence[int], counts: Sequence[int]
    ) -> dict[str, Any]:
        """See `DecoderWorker.threads`."""
        return self.ask(
            "threads", settings=dict(settings), chosen=list(chosen), counts=list(counts)
        )


def main(arguments: Sequence[str], requests: TextIO, answers: TextIO) -> None:
    """Serve one search until the requests end.

    Args:
        arguments: Name of the search, its `Paths` as JSON, file of the posteriors.
        requests: One JSON object a line.
        answers: One JSON object a line.
    """
    name, paths, posteriors = arguments

    def begin() -> tuple[DecoderWorker, dict[str, Any]]:
        places = Paths(**{key: Path(path) for key, path in json.loads(paths).items()})
        worker = DecoderWorker(name, places, Path(posteriors))
        return worker, worker.facts

    serve(begin, requests, answers)


if __name__ == "__main__":
    main(sys.argv[1:], sys.stdin, own_stdout())
