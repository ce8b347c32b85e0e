"""One side of the training benchmark in a process of its own, with its own memory and threads.

python -m cortext_bench.training.worker PLAN        (a SideSettings as JSON)
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from cortext.memory import children_pss_mb, memory
from cortext_bench.training.restated import RestatedSide
from cortext_bench.training.sides import Ours, ReleaseSide, SideSettings
from cortext_bench.workers import own_stdout, serve

SIDES: dict[str, type[Ours] | type[ReleaseSide] | type[RestatedSide]] = {
    "ours": Ours,
    "release": ReleaseSide,
    "restated": RestatedSide,
}


class TrainingWorker:
    """A side, with the requests that both sides answer."""

    def __init__(self, plan: SideSettings) -> None:
        self.side = SIDES[plan.kind](plan)
        self.facts = {**self.side.facts, "threads": torch.get_num_threads()}
        if self.side.device.type == "cuda":
            self.facts["device_name"] = torch.cuda.get_device_name(self.side.device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.side, name)

    def memory(self) -> dict[str, Any]:
        """Return the peak megabytes of this process, of its loaders, and on the device."""
        found: dict[str, Any] = {
            "peak_rss_mb": memory().get("peak_rss_mb"),
            "loaders_pss_mb": children_pss_mb(),
        }
        if self.side.device.type == "cuda":
            found["peak_device_mb"] = torch.cuda.max_memory_allocated(self.side.device) / 1e6
        return found

    def busy(self, n: int) -> dict[str, float | None]:
        """Return `busy_share`, the share of `n` steps in which the GPU works; None on a CPU."""
        if self.side.device.type != "cuda":
            return {"busy_share": None}
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            self.side.steps(n)
        spans = (
            (event.time_range.start, event.time_range.end)
            for event in profiled.events() or ()
            if event.device_type.name == "CUDA" and not event.is_user_annotation
        )
        return {"busy_share": busy_share(spans)}

    def matrix_rate(self, size: int) -> dict[str, float]:
        """Measure the operations per second of a large product, by precision.

        Training here cannot be faster than this.
        """
        return {name: matrix_rate(dtype, self.side.device, size) for name, dtype in DTYPES.items()}


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def busy_share(spans: Iterable[tuple[float, float]], margin: float = 0.1) -> float | None:
    """Return the share of time in which at least one piece of work runs.

    Args:
        spans: Start and end of each piece, in any unit.
        margin: Share of the whole time that is left out at each end: there the first batch is
            waited for, and nothing follows the last.

    Returns:
        A share from 0 to 1; None without work.
    """
    ordered = sorted(spans)
    if not ordered:
        return None
    first, last = ordered[0][0], max(end for _, end in ordered)
    first, last = first + margin * (last - first), last - margin * (last - first)
    busy, reached = 0.0, first
    for start, end in ordered:
        busy += max(0.0, min(end, last) - max(start, reached))
        reached = max(reached, min(end, last))
    return busy / (last - first) if last > first else None


def matrix_rate(dtype: torch.dtype, device: torch.device, size: int, repeats: int = 10) -> float:
    """Return the operations per second of a product of two square matrices.

    A multiplication and an addition are two operations. The best of the repeats counts: other work
    on the machine can only lower it.

    Args:
        dtype: Type of the matrices.
        device: Device of the product.
        size: Rows and columns of each matrix.
        repeats: Number of products.
    """
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    seconds = []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - started)
    return 2 * size**3 / min(seconds)


def main() -> None:
    """Serve one side."""
    answers = own_stdout()

    def begin() -> tuple[TrainingWorker, dict[str, Any]]:
        worker = TrainingWorker(SideSettings(**json.loads(sys.argv[1])))
        return worker, worker.facts

    serve(begin, sys.stdin, answers)


if __name__ == "__main__":
    main()
