"""The work of our compiled kernels on this machine, beside that of torch's own.

A kernel fast on one processor may be slow on another: fetching weights past the caches spared an
AMD processor nothing, and took an Intel one twice the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch

from cortext.models import AcousticModel
from cortext.models.recurrence import can_be_compiled, recurrence
from cortext_bench.harness import in_turns, percentiles
from cortext_bench.latency import one_core, processor, published_model
from cortext_bench.latency_modes import EAGER, OURS, no_more_work, steppers
from cortext_live.core.decoder import no_long_pauses
from cortext_live.steps.stepper import Stepper

STEPS_A_TURN = 5
COMPILED = "compiled"
OPERATIONS = "torch's operations"


@dataclass(frozen=True)
class KernelWork:
    """Processor time on one core.

    Attributes:
        processor: Name of the processor.
        live_ms: Percentiles of a live step, done ahead or not and without the word search, by the
            way to run the model.
        live_no_more: True if no way of ours does more work than torch's own GRU.
        training_ms: Percentiles of the recurrence of a layer, forwards and backwards, compiled and
            of torch's operations; the same pass twice where the processor lacks AVX512-BF16.
        training_no_more: True if the compiled pass does no more work.
    """

    processor: str
    live_ms: dict[str, dict[str, float]]
    live_no_more: bool
    training_ms: dict[str, dict[str, float]]
    training_no_more: bool

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON takes them."""
        return asdict(self)


def kernel_work(
    steps: int = 200, model: AcousticModel | None = None, n_units: int = 768
) -> KernelWork:
    """Time live steps, and the recurrence of training, all ways in turns.

    Args:
        steps: Live steps of each way.
        model: The model that steps; by default one of the published shape, with random weights.
        n_units: Units of the layer whose recurrence is timed; by default those of that shape.
    """
    with one_core(None), no_long_pauses():
        live_ms = _live_ms(steps, model or published_model())
        training_ms = _training_ms(n_units)
    medians_ms = {name: values["p50"] for name, values in live_ms.items()}
    # Where nothing is compiled the same is timed twice, and may differ by chance.
    with torch.autocast("cpu", torch.bfloat16):
        can_compile = can_be_compiled(n_units)
    return KernelWork(
        processor(),
        live_ms,
        bool(no_more_work(medians_ms)),
        training_ms,
        not can_compile or training_ms[COMPILED]["p50"] <= training_ms[OPERATIONS]["p50"],
    )


def _live_ms(steps: int, model: AcousticModel) -> dict[str, dict[str, float]]:
    found, _ = steppers(model, (EAGER, *OURS))
    sides: dict[str, Callable[[int], list[float]]] = {
        name: partial(_times_ms, stepper) for name, stepper in found.items()
    }
    taken_ms = in_turns(sides, range(-(-steps // STEPS_A_TURN) + 1), warmup=1)
    return {name: percentiles([*chain(*times)]) for name, times in taken_ms.items()}


def _training_ms(n_units: int, n_trials: int = 32, n_steps: int = 50) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(0)
    input_NG = torch.randn(n_trials * n_steps, 3 * n_units, generator=rng, requires_grad=True)
    w_hh = torch.randn(3 * n_units, n_units, generator=rng).mul_(0.03).requires_grad_()
    b_hh = torch.zeros(3 * n_units, requires_grad=True)
    h0_BD = torch.zeros(n_trials, n_units)

    def time_ms(compiled: bool, _: int) -> float:
        began_s = time.thread_time()
        with torch.autocast("cpu", torch.bfloat16):
            h_ND = recurrence(input_NG, [n_steps] * n_trials, h0_BD, w_hh, b_hh, compiled)
            torch.autograd.grad(h_ND.sum(), (input_NG, w_hh, b_hh))
        return 1e3 * (time.thread_time() - began_s)

    sides = {COMPILED: partial(time_ms, True), OPERATIONS: partial(time_ms, False)}
    taken_ms = in_turns(sides, range(6), warmup=1)
    return {name: percentiles(times) for name, times in taken_ms.items()}


def _times_ms(stepper: Stepper, turn: int) -> list[float]:
    """Return the processor time of some steps, prepared as bins come in live decoding."""
    rng = np.random.default_rng(turn)
    stepper.start()
    times_ms = []
    for _ in range(STEPS_A_TURN):
        shape = stepper.patch_size, stepper.n_features
        bins_SC = rng.standard_normal(shape, dtype=np.float32)
        began_s = time.thread_time()
        for n_awaited in range(min(stepper.patch_stride, stepper.patch_size) - 1, 0, -1):
            stepper.prepare(bins_SC[:-n_awaited])
        stepper.step(bins_SC)
        times_ms.append(1e3 * (time.thread_time() - began_s))
    return times_ms
