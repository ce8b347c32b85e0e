"""Our compiled kernels beside torch's own."""

import pytest
import torch
from vectors import vectors_of

from cortext.models import AcousticModel, GRUConfig, build_model
from cortext.models.card import Smoothing
from cortext_bench.kernels import COMPILED, OPERATIONS, kernel_work
from cortext_bench.latency_modes import EAGER, OURS, no_more_work
from cortext_bench.posteriors import INVENTORY


def test_a_way_that_does_more_work_than_torch_is_noticed():
    assert no_more_work({EAGER: 12.0, "torch fp32": 12.0, "torch int8": 3.0})
    assert no_more_work({EAGER: 10.0, "torch fp32": 10.9})  # as much, but for chance
    assert not no_more_work({EAGER: 10.0, "torch fp32": 11.1})
    assert not no_more_work({EAGER: 12.0, "torch fp32": 8.0, "torch int8": 12.1})
    assert not no_more_work({EAGER: 12.6, "torch fp32": 24.9})
    # ONNX Runtime's ways are not ours.
    assert no_more_work({EAGER: 12.0, "torch bf16": 5.0, "onnx fp32": 13.0})
    assert no_more_work({"torch fp32": 8.0}) is no_more_work({EAGER: 12.0}) is None


def test_steps_and_recurrence_are_timed():
    torch.manual_seed(0)
    config = GRUConfig(n_units=16, n_layers=2)
    network = build_model(config, n_features=8, n_days=1, n_classes=len(INVENTORY))
    model = AcousticModel(
        network, sessions=("a",), n_features=8, inventory=INVENTORY, smoothing=Smoothing()
    )
    work = kernel_work(steps=10, model=model, n_units=32)
    assert list(work.live_ms) == [EAGER, *OURS]
    assert list(work.training_ms) == [COMPILED, OPERATIONS]
    for times in (*work.live_ms.values(), *work.training_ms.values()):
        assert 0 < times["p50"] <= times["p99"] <= times["max"] < 60_000


@pytest.fixture(params=[16, 8])
def lanes(request):
    """Vectors of AVX-512, then those of a processor that has only AVX2."""
    with vectors_of(request.param) as lanes:
        yield lanes


@pytest.mark.slow
def test_no_kernel_of_ours_does_more_work_than_torch_on_this_machine(lanes):
    slow = []
    for _ in range(3):  # other work on the machine only adds to it: one try has to show it
        work = kernel_work(steps=60)
        if work.live_no_more and work.training_no_more:
            return
        times_ms = work.live_ms | work.training_ms
        slow.append({name: round(times["p50"], 2) for name, times in times_ms.items()})
    pytest.fail(f"vectors of {lanes}, medians in ms: {slow}")
