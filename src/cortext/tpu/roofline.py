"""How fast a TPU can take a training step at best, from what its compiled program costs. Estimates, not measurements.

A step takes at least as long as its products at the chip's full rate, and as its traffic at the full rate of the
memory; then gradients are exchanged, and the loops over time, whose iterations cannot overlap, each wait for the chip
to start and end a few small operations. Nothing is said of the host, of reading data, or of validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cortext.tpu.cost import Cost

BATCHES = 120_000
"""Batches of the published training."""
LATENCIES_US = (1.0, 3.0, 10.0)
"""Assumed for one iteration of a loop over time: the start and the end of the few operations in it."""


@dataclass(frozen=True)
class Chip:
    """One chip by its maker's figures; rates a second.

    kind: what libtpu calls it; ici: what a chip sends to both neighbours of a ring together; clock: derived, see V5E
    """

    name: str
    kind: str
    flops: float
    hbm_bytes: float
    hbm_bytes_per_s: float
    ici_bytes_per_s: float
    clock_hz: float


V5E = Chip(
    "TPU v5e",
    kind="TPU v5 lite",
    flops=197e12,
    hbm_bytes=16 * 2**30,
    hbm_bytes_per_s=819e9,
    ici_bytes_per_s=100e9,
    clock_hz=197e12 / (2 * 4 * 128 * 128),
)
"""Cloud TPU's documentation (docs.cloud.google.com/tpu/docs/v5e): 197 TFLOP/s in bfloat16, 16 GB at 819 GB/s, four
matrix units, 400 GB/s of links in both directions over four ports, of which a ring takes two: 100 GB/s sent. The clock
is the one at which four units of 128 x 128 multiply-adds make 197 TFLOP/s: 1.5 GHz."""


def ring_s(n_bytes: float, n_chips: int, chip: Chip) -> float:
    """Seconds of an all-reduce: in a ring every chip sends 2 (n - 1) / n of it, half in each direction."""
    return 2 * (n_chips - 1) / n_chips * n_bytes / chip.ici_bytes_per_s


def roofline(cost: Cost, chip: Chip, n_chips: int, latencies_us: Sequence[float] = LATENCIES_US) -> dict[str, Any]:
    """Milliseconds of a step at best and hours of 120,000; `cost` is that of one chip.

    roofline_ms:  the longer of products and memory, and the exchange after it
    latencies:    for each assumed latency of a loop's iteration (µs), what all of them take, and the sum
    schedule_ms:  the compiler's own estimate of its schedule, and the exchange; None where it makes none
    """
    compute_ms = 1e3 * cost.flops.total() / chip.flops
    memory_ms = 1e3 * cost.hbm_bytes / chip.hbm_bytes_per_s
    exchange_ms = 1e3 * ring_s(cost.collectives.total(), n_chips, chip)
    best_ms = max(compute_ms, memory_ms) + exchange_ms
    floors_ms = {latency: cost.iterations * latency / 1e3 for latency in latencies_us}
    schedule_ms = 1e3 * cost.cycles / chip.clock_hz + exchange_ms if cost.cycles else None
    return {
        "compute_ms": compute_ms,
        "memory_ms": memory_ms,
        "exchange_ms": exchange_ms,
        "roofline_ms": best_ms,
        "hours": hours(best_ms),
        "iterations": cost.iterations,
        "latencies": [
            {"latency_us": latency, "floor_ms": floor, "ms": best_ms + floor, "hours": hours(best_ms + floor)}
            for latency, floor in floors_ms.items()
        ],
        "schedule_ms": schedule_ms,
        "schedule_hours": None if schedule_ms is None else hours(schedule_ms),
    }


def hours(step_ms: float) -> float:
    """Hours of the published training at so many milliseconds a step."""
    return BATCHES * step_ms / 3.6e6
