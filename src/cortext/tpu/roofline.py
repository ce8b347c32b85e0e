"""How fast a TPU can take a training step at best, from what its compiled program costs.

Estimates, not measurements.

A step takes at least as long as its products at the chip's full rate, and as its traffic at the
full rate of the memory; then there is what chips exchange, and the loops over time, whose
iterations cannot overlap and each wait for the chip to start and end a few small operations.
Nothing is said of the host, of reading data, or of validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cortext.tpu.cost import Cost, Exchange

BATCHES = 120_000
"""Batches of the published training."""
LATENCIES_US = (1.0, 3.0, 10.0)
"""Assumed for one iteration of a loop over time, the start and the end of the few operations in
it, or an exchange.
"""


@dataclass(frozen=True)
class Chip:
    """One chip by its maker's figures; rates a second.

    kind: what libtpu calls it; ici: what a chip sends to both neighbours of a ring together; clock:
    derived, see V5E
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
"""Cloud TPU's documentation (docs.cloud.google.com/tpu/docs/v5e).

197 TFLOP/s in bfloat16, 16 GB at 819 GB/s, four matrix units, 400 GB/s of links in both directions
over four ports, of which a ring takes two: 100 GB/s sent. The clock is the one at which four units
of 128 x 128 multiply-adds make 197 TFLOP/s: 1.5 GHz.
"""


def exchange_s(exchange: Exchange, n_chips: int, chip: Chip) -> float:
    """Seconds of exchanges in a ring of chips, each of which sends in both directions.

    How often a chip sends what it gives, what it passes on for others included: all-reduce 2 (c -
    1) / c of it with c chips, reduce-scatter half of that; all-gather c - 1 times; all-to-all c /
    4, the mean way of a piece; collective-permute once, to a neighbour by one of the two links.
    """
    sent = {
        "all-reduce": 2 * (n_chips - 1) / n_chips,
        "reduce-scatter": (n_chips - 1) / n_chips,
        "all-gather": n_chips - 1,
        "all-to-all": n_chips / 4,
        "collective-permute": 2,  # by half of the links
    }
    return sent[exchange.kind] * exchange.n_bytes / chip.ici_bytes_per_s


def roofline(
    cost: Cost, chip: Chip, n_chips: int, latencies_us: Sequence[float] = LATENCIES_US
) -> dict[str, Any]:
    """Milliseconds of a step at best and hours of 120,000; `cost` is that of one chip.

    exchange_ms:   for what everything waits; overlapped_ms: of exchanges during which the chip
        computes
    roofline_ms:   the longest of products, memory and overlapped exchanges, and then the others
    waits:         iterations of loops, and exchanges
    latencies:     for each assumed latency of one of them (µs), what all take, and the sum with the
        roofline
    schedule_ms:   the compiler's own estimate of its schedule, and `exchange_ms`; None where it
        makes none
    """
    compute_ms = 1e3 * cost.flops.total() / chip.flops
    memory_ms = 1e3 * cost.hbm_bytes / chip.hbm_bytes_per_s
    exchange_ms, overlapped_ms = (
        1e3
        * sum(
            exchange_s(each, n_chips, chip)
            for each in cost.exchanges.values()
            if each.overlapped == overlapped
        )
        for overlapped in (False, True)
    )
    best_ms = max(compute_ms, memory_ms, overlapped_ms) + exchange_ms
    waits = cost.iterations + sum(each.number for each in cost.exchanges.values())
    floors_ms = {latency: waits * latency / 1e3 for latency in latencies_us}
    schedule_ms = 1e3 * cost.cycles / chip.clock_hz + exchange_ms if cost.cycles else None
    return {
        "compute_ms": compute_ms,
        "memory_ms": memory_ms,
        "exchange_ms": exchange_ms,
        "overlapped_ms": overlapped_ms,
        "roofline_ms": best_ms,
        "hours": hours(best_ms),
        "waits": waits,
        "latencies": [
            {
                "latency_us": latency,
                "floor_ms": floor,
                "ms": best_ms + floor,
                "hours": hours(best_ms + floor),
            }
            for latency, floor in floors_ms.items()
        ],
        "schedule_ms": schedule_ms,
        "schedule_hours": None if schedule_ms is None else hours(schedule_ms),
    }


def hours(step_ms: float) -> float:
    """Hours of the published training at so many milliseconds a step."""
    return BATCHES * step_ms / 3.6e6
