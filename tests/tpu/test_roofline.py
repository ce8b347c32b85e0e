"""Estimates, worked out by hand from round figures."""

from collections import Counter

import pytest

from cortext.tpu.cost import Cost, Loop
from cortext.tpu.roofline import V5E, Chip, hours, ring_s, roofline

ROUND = Chip("round", "round", flops=1e12, hbm_bytes=1e9, hbm_bytes_per_s=1e11, ici_bytes_per_s=1e10, clock_hz=1e9)


def cost() -> Cost:
    return Cost(
        Counter({"bf16": 30_000_000_000, "f32": 10_000_000_000}),
        hbm_bytes=2e9,
        collectives=Counter({"all-reduce": 8_000_000}),
        cycles=50_000_000,
        loops=[Loop("outer", "", 100, 1), Loop("inner", "", 20, 100), Loop("unknown", "", None, 5)],
    )


def test_a_step_takes_the_longer_of_products_and_memory_and_then_the_exchange() -> None:
    found = roofline(cost(), ROUND, n_chips=8)
    assert found["compute_ms"] == pytest.approx(40)
    assert found["memory_ms"] == pytest.approx(20)
    assert found["exchange_ms"] == pytest.approx(1.4)  # 2 x 7/8 of 8 MB at 10 GB/s
    assert found["roofline_ms"] == pytest.approx(41.4)
    assert found["hours"] == pytest.approx(41.4 * 120_000 / 3_600_000)


def test_iterations_of_loops_wait_for_each_other() -> None:
    found = roofline(cost(), ROUND, n_chips=8, latencies_us=[2.0])
    assert found["iterations"] == 100 + 2000 + 5
    assert found["latencies"] == [
        {
            "latency_us": 2.0,
            "floor_ms": pytest.approx(4.21),
            "ms": pytest.approx(45.61),
            "hours": pytest.approx(hours(45.61)),
        }
    ]


def test_the_compilers_cycles_become_time() -> None:
    assert roofline(cost(), ROUND, n_chips=8)["schedule_ms"] == pytest.approx(50 + 1.4)
    without = cost()
    without.cycles = 0
    assert roofline(without, ROUND, n_chips=8)["schedule_ms"] is None


def test_one_chip_exchanges_nothing() -> None:
    assert ring_s(1e9, 1, ROUND) == 0


def test_the_clock_of_a_v5e_is_that_of_its_rate() -> None:
    assert V5E.clock_hz == pytest.approx(1.5e9, rel=0.01)
