"""One side of the training benchmark in a process of its own, with its own memory and threads.

python -m cortext.bench.training.worker PLAN        (a SidePlan as JSON)
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch

from cortext.bench.training.sides import SIDES, SidePlan
from cortext.bench.workers import own_stdout, serve
from cortext.memory import children_pss_mb, memory


class TrainingWorker:
    """A side, with the requests that both sides answer."""

    def __init__(self, plan: SidePlan) -> None:
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

    def matrix_rate(self, size: int) -> dict[str, float]:
        """Measure the operations per second of a large product, by precision.

        Training here cannot be faster than this.
        """
        return {name: matrix_rate(dtype, self.side.device, size) for name, dtype in DTYPES.items()}


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


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
        worker = TrainingWorker(SidePlan(**json.loads(sys.argv[1])))
        return worker, worker.facts

    serve(begin, sys.stdin, answers)


if __name__ == "__main__":
    main()
