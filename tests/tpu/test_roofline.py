"""Estimates, worked out by hand from round figures."""

from collections import Counter

import pytest

from cortext_tpu.cost import Cost, Exchange, Loop
from cortext_tpu.roofline import V5E, Chip, exchange_s, hours, roofline

ROUND = Chip(
    "round",
    "round",
    flops=1e12,
    hbm_bytes=1e9,
    hbm_bytes_per_s=1e11,
    ici_bytes_per_s=1e10,
    clock_hz=1e9,
)


def cost() -> Cost:
    return Cost(
        Counter({"bf16": 30_000_000_000, "f32": 10_000_000_000}),
        hbm_bytes=2e9,
        exchanges={("all-reduce", False): Exchange("all-reduce", False, 8_000_000, 3)},
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


def test_what_is_exchanged_beside_the_products_takes_time_only_where_it_takes_longer() -> None:
    beside = cost()
    beside.exchanges["all-gather", True] = Exchange("all-gather", True, 50_000_000, 1)
    # 7 x 50 MB at 10 GB/s.
    assert roofline(beside, ROUND, n_chips=8)["overlapped_ms"] == pytest.approx(35)
    assert roofline(beside, ROUND, n_chips=8)["roofline_ms"] == pytest.approx(41.4)
    beside.exchanges["all-gather", True].n_bytes *= 2
    assert roofline(beside, ROUND, n_chips=8)["roofline_ms"] == pytest.approx(71.4)


def test_iterations_of_loops_and_exchanges_wait_for_each_other() -> None:
    found = roofline(cost(), ROUND, n_chips=8, latencies_us=[2.0])
    assert found["waits"] == 100 + 2000 + 5 + 3
    assert found["latencies"] == [
        {
            "latency_us": 2.0,
            "floor_ms": pytest.approx(4.216),
            "ms": pytest.approx(45.616),
            "hours": pytest.approx(hours(45.616)),
        }
    ]


def test_the_compilers_cycles_become_time() -> None:
    assert roofline(cost(), ROUND, n_chips=8)["schedule_ms"] == pytest.approx(50 + 1.4)
    without = cost()
    without.cycles = 0
    assert roofline(without, ROUND, n_chips=8)["schedule_ms"] is None


@pytest.mark.parametrize(
    ("kind", "sent"),  # of a piece on each of 8 chips
    [
        ("all-reduce", 2 * 7 / 8),  # 7 eighths to sum them, 7 to give the sums out
        ("reduce-scatter", 7 / 8),
        ("all-gather", 7),  # the whole piece past 7 chips
        ("all-to-all", (1 + 2 + 3 + 4 + 3 + 2 + 1) / 8),  # eighths, by the shorter way round
        ("collective-permute", 2),  # the whole piece by one of two links
    ],
)
def test_what_a_chip_sends_in_a_ring(kind: str, sent: float) -> None:
    assert exchange_s(Exchange(kind, False, 1_000_000, 1), 8, ROUND) == pytest.approx(
        sent * 1e6 / 1e10
    )


def test_one_chip_has_nobody_to_reduce_with() -> None:
    assert exchange_s(Exchange("all-reduce", False, 1_000_000, 1), 1, ROUND) == 0


def test_the_clock_of_a_v5e_is_that_of_its_rate() -> None:
    assert V5E.clock_hz == pytest.approx(1.5e9, rel=0.01)
