"""Estimates of a TPU's shortest time for a training step, from the costs of its program.

A step takes at least as long as its products at the chip's full rate, and as its traffic at the
full rate of the memory. Exchanges between chips and loops over time are added: iterations cannot
overlap, and each waits for the chip to start and end a few small operations. The host, reading data
and validation are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cortext_tpu.cost import Cost, Exchange

BATCHES = 120_000
"""Number of batches of the published training."""
LATENCIES_US = (1.0, 3.0, 10.0)
"""Assumed latencies of an iteration of a loop over time, or of an exchange, in microseconds."""


@dataclass(frozen=True)
class Chip:
    """Figures of one chip, as its maker gives them.

    Attributes:
        name: Name of the chip.
        kind: Name of the chip in libtpu.
        flops: Operations per second in bfloat16.
        hbm_bytes: Size of its main memory.
        hbm_bytes_per_s: Rate of its main memory.
        ici_bytes_per_s: Rate at which it sends to both neighbours of a ring together.
        clock_hz: Clock, derived: see `V5E`.
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
"""Figures of a v5e chip from Cloud TPU's documentation (docs.cloud.google.com/tpu/docs/v5e).

197 TFLOP/s in bfloat16, 16 GB at 819 GB/s, four matrix units, 400 GB/s of links in both directions
over four ports, of which a ring takes two: 100 GB/s sent. The clock is the one at which four units
of 128 x 128 multiply-adds make 197 TFLOP/s: 1.5 GHz.
"""


def exchange_s(exchange: Exchange, n_chips: int, chip: Chip) -> float:
    """Estimate the seconds of exchanges in a ring of chips that send in both directions.

    A chip sends its own bytes and passes on others'. In multiples of its own bytes, with c chips,
    it sends 2 (c - 1) / c for all-reduce, half of that for reduce-scatter, c - 1 for all-gather,
    and c / 4 (the mean distance of a piece) for all-to-all. For collective-permute it sends 1, to a
    neighbour over one of the two links.

    Args:
        exchange: The exchanges of one kind.
        n_chips: Number of chips in the ring.
        chip: Figures of a chip.
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
    """Estimate the shortest time of a step in milliseconds, and of 120,000 steps in hours.

    Args:
        cost: Cost of the program on one chip.
        chip: Figures of a chip.
        n_chips: Number of chips that train.
        latencies_us: Assumed latencies of a loop's iteration or an exchange, in microseconds.

    Returns:
        `compute_ms` and `memory_ms`: time of products, and of memory traffic. `exchange_ms`: time
        of exchanges that the chip waits for. `overlapped_ms`: time of exchanges during which the
        chip computes. `roofline_ms`: the longest of products, memory and overlapped exchanges, plus
        `exchange_ms`. `waits`: number of iterations of loops, and of exchanges. `latencies`: for
        each assumed latency the time of all waits, and its sum with the roofline. `schedule_ms`:
        the compiler's estimate plus `exchange_ms`; None without such an estimate.
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
    """Return the hours of the published training with steps of `step_ms` milliseconds."""
    return BATCHES * step_ms / 3.6e6
