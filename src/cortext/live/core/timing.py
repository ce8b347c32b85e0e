"""How long each stage of live decoding takes."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.ma

STAGES = ("normalise", "smooth", "model", "search")
"""Of a step: from the arrival of the bin that completes a frame to its words."""
TOTAL = "total"
"""What a step takes in all: the stages and what lies between them."""
AHEAD = "ahead"
"""What has been done for the step with the bins that came before: nobody waits for that."""
TIMES = (*STAGES, TOTAL, AHEAD)


class Stopwatch:
    """Adds up what stages take until the times are taken away, in milliseconds."""

    def __init__(self) -> None:
        self._spent_ns, self._laps_ns = dict.fromkeys(TIMES, 0), dict.fromkeys(STAGES, 0)
        self._began_ns = self._last_ns = 0

    def start(self) -> None:
        """Work begins; what lay before counts for nothing."""
        self._laps_ns = dict.fromkeys(STAGES, 0)
        self._began_ns = self._last_ns = time.perf_counter_ns()

    def lap(self, stage: str) -> None:
        """The stage has ended; it took the time since the last call."""
        now_ns = time.perf_counter_ns()
        self._laps_ns[stage] += now_ns - self._last_ns
        self._last_ns = now_ns

    def stop(self, completes: bool) -> None:
        """Work pauses; it was the step itself where it `completes` a frame, and otherwise done
        ahead.
        """
        whole_ns = time.perf_counter_ns() - self._began_ns
        if not completes:
            self._spent_ns[AHEAD] += whole_ns
            return
        self._spent_ns[TOTAL] += whole_ns
        for stage, lap_ns in self._laps_ns.items():
            self._spent_ns[stage] += lap_ns

    def take(self) -> dict[str, float]:
        """Milliseconds by stage since the last call."""
        taken = {stage: spent_ns / 1e6 for stage, spent_ns in self._spent_ns.items()}
        self._spent_ns = dict.fromkeys(self._spent_ns, 0)
        return taken


class StageTimes:
    """Percentiles of the latest times of each stage; the memory it takes does not grow."""

    def __init__(self, n_latest: int = 8192) -> None:
        self._n_latest = n_latest
        self._ms: dict[str, np.ndarray] = {}
        self._n: dict[str, int] = {}
        self._max: dict[str, float] = {}

    def add(self, stage_ms: dict[str, list[float]]) -> None:
        """Add times, as `Update.stage_ms` gives them."""
        for stage, times in stage_ms.items():
            ring = self._ms.setdefault(stage, np.empty(self._n_latest))
            for ms in times:
                n = self._n.get(stage, 0)
                ring[n % self._n_latest] = ms
                self._n[stage] = n + 1
                self._max[stage] = max(self._max.get(stage, 0.0), ms)

    def n(self, stage: str = TOTAL) -> int:
        """How many times were added to a stage."""
        return self._n.get(stage, 0)

    def percentiles(self) -> dict[str, dict[str, float]]:
        """By stage p50, p95 and p99 of the latest times and the largest of all, in milliseconds."""
        found = {}
        for stage, ring in self._ms.items():
            latest = ring[: min(self._n.get(stage, 0), self._n_latest)]
            if len(latest):
                p50, p95, p99 = np.percentile(latest, (50, 95, 99)).tolist()
                found[stage] = {"p50": p50, "p95": p95, "p99": p99, "max": self._max[stage]}
        return found


@contextmanager
def no_long_pauses() -> Iterator[None]:
    """A context for what decodes live, to be entered when everything is loaded.

    Now and then Python looks through all objects for those that nothing refers to any more.
    Libraries and models are so many that this takes longer than the 80 ms of a frame, so what is
    there on entering is passed over from then on.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
