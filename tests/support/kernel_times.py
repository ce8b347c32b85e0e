"""Our compiled kernels beside torch's, timed in a process of its own."""

from __future__ import annotations

import resource

from vectors import vectors_of

from cortext_bench.kernels import kernel_work


def slower_than_torch(lanes: int) -> str | None:
    """Time our kernels in vectors of this many numbers; return what to say, None if nothing."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    with vectors_of(lanes):
        work = kernel_work(steps=60)
    if work.live_no_more and work.training_no_more:
        return None
    medians_ms = {
        name: round(times["p50"], 2) for name, times in (work.live_ms | work.training_ms).items()
    }
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return f"{medians_ms} ms on {work.processor}, {faults} page faults"
