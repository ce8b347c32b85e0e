"""The sections of `gpu_bench.py` on variants of a training step: parts are turned off and on.

A function decides about each part of the fast path, and falls back where it cannot run. For a
variant without the part, that function always falls back; everything else is the usual program.
"""

from __future__ import annotations

import gc
import importlib
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

from cortext.training.distributed import own_device
from cortext_bench.training.compare import shapes
from cortext_bench.training.sides import Ours, SideSettings
from cortext_bench.training.worker import TrainingWorker
from cortext_cuda import paths
from gpu_sections import BF16

if TYPE_CHECKING:
    from gpu_check import Checks

SWITCHES: dict[str, tuple[str, Any]] = {
    "CTC": ("cortext_cuda.ctc.why_not", "turned off"),
    "graph": ("cortext_cuda.step_graphs.why_not", "turned off"),
    "GRU": ("cortext_cuda.recurrence_paths.path_taken", "a CUDA graph"),
    "blocks": ("cortext_cuda.fused.why_not_blocks", "turned off"),
    "read-in": ("cortext_cuda.networks.why_no_kernels", "turned off"),
    "smoothing": ("cortext_cuda.kernels.why_no_kernels", "turned off"),
}
"""The function that decides about each part, and its answer where the part is off. Clipping inside
AdamW is an attribute of the optimiser instead."""
COMMON = {
    "before": (),
    "+ clipping in AdamW": ("optimizer",),
    "+ own CTC": ("optimizer", "CTC"),
    "+ the step as a graph": ("optimizer", "CTC", "graph"),
}
GRAPHED = COMMON["+ the step as a graph"]
VARIANTS: dict[str, dict[str, tuple[str, ...]]] = {
    "gru": COMMON
    | {
        "+ one kernel for all frames": (*GRAPHED, "GRU"),
        "+ fused read-in": (*GRAPHED, "GRU", "read-in"),
        "+ noise and smoothing in one kernel": (*GRAPHED, "GRU", "read-in", "smoothing"),
    },
    "transformer": COMMON
    | {
        "+ fused, packed blocks": (*GRAPHED, "blocks", "read-in"),
        "+ noise and smoothing in one kernel": (*GRAPHED, "blocks", "read-in", "smoothing"),
    },
}
"""Parts of the fast path that are on, by model and variant."""
TURNS, STEPS, WARM_UP = 4, 12, 8
"""Turns of each variant, timed steps of a turn, and steps before the first turn."""
COMPARED = 6
"""Batches whose losses are compared."""
STILL = {
    "gru": ("model.rnn_dropout=0", "model.input_network.input_layer_dropout=0"),
    "transformer": (
        "model.dropout=0",
        "model.input_network.input_layer_dropout=0",
        "model.train_context_frames=[250, 250]",
    ),
}
"""Overrides without random numbers in the model: variants draw them in another order."""


@contextmanager
def only(parts: tuple[str, ...]) -> Iterator[None]:
    """Turn off all parts of the fast path but these."""
    with ExitStack() as stack:
        for part, (name, answer) in SWITCHES.items():
            if part not in parts and exists(name):
                stack.enter_context(patch(name, return_value=answer))
        yield


def exists(name: str) -> bool:
    """Tell whether this version has a function, `package.module.function`."""
    module, _, function = name.rpartition(".")
    try:
        return hasattr(importlib.import_module(module), function)
    except ImportError:
        return False


def missing(parts: tuple[str, ...]) -> str:
    """Return the parts that this version does not have, as a line; empty if it has all."""
    return ", ".join(part for part in parts if part in SWITCHES and not exists(SWITCHES[part][0]))


def variant(checks: Checks, model: str, name: str, what: str, overrides: tuple[str, ...]) -> Ours:
    """Return a trainer of a variant, of the published shape on a GPU and of the demo's elsewhere.

    Args:
        checks: Holds the recordings.
        model: The model.
        name: The variant.
        what: What its folder is called.
        overrides: Overrides of the training configuration.
    """
    shape = shapes(model, 64)["published" if checks.on_gpu else "demo"]
    folder = checks.folder / f"noise-{checks.on_gpu}"
    if not folder.is_dir():
        shape.recording.write(folder)
    number = list(VARIANTS[model]).index(name)
    plan = SideSettings(
        "ours",
        str(folder),
        str(checks.folder / f"{what}-{model}-{number}"),
        shape.recipe,
        [*shape.overrides, *overrides],
        checks.device,
    )
    ours = Ours(plan)
    if hasattr(ours.backend.optimizer, "clips_in_adam"):
        parts = VARIANTS[model][name]
        ours.backend.optimizer.clips_in_adam &= "optimizer" in parts
    return ours


def runnable(checks: Checks, model: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the variants that this machine and version can run; note the others."""
    for name, parts in VARIANTS[model].items():
        if parts and not checks.on_gpu:
            checks.cannot_run(f"{model} {name}", "it needs a GPU")
        elif lacks := missing(parts):
            checks.cannot_run(f"{model} {name}", f"this version does not have it: {lacks}")
        else:
            yield name, parts


def check_paths(checks: Checks) -> None:
    """Note which parts of the fast path prove themselves on this GPU, and why others do not."""
    if not checks.on_gpu:
        checks.cannot_run("fast paths", "they need a GPU")
        return
    for part in paths.PARTS:
        if why := part.why_not(own_device(checks.device)):
            checks.cannot_run(part.name, why)
        else:
            checks.holds(part.name, True)


def check_variants(checks: Checks) -> None:
    """Compare the losses of a few batches of the published shape with those without any part."""
    for model in VARIANTS:
        expected = None
        for name, parts in runnable(checks, model):
            overrides = (*STILL[model], "batches_per_train_log=1")
            with only(parts):
                ours = variant(checks, model, name, "same", overrides)
                losses = ours.train(COMPARED if checks.on_gpu else 2)["losses"]
                ours.trainer.close()
            if expected is None:
                expected = losses
                checks.holds(
                    f"{model} {name}: finite losses", bool(torch.tensor(losses).isfinite().all())
                )
            else:
                checks.close(f"{model} {name}: losses", losses, expected, BF16)
            del ours
            release(checks)


def time_variants(checks: Checks) -> None:
    """Time steps of the trainer's own loop; the variants of a model take turns."""
    turns, steps, warm_up = (TURNS, STEPS, WARM_UP) if checks.on_gpu else (1, 1, 1)
    for model in VARIANTS:
        sides: dict[str, Ours] = {}
        ms: dict[str, list[float]] = {}
        for name, parts in runnable(checks, model):
            with only(parts):
                sides[name] = variant(checks, model, name, "times", ())
                sides[name].steps(warm_up)
            ms[name] = []
        for _ in range(turns):
            for name, ours in sides.items():
                with only(VARIANTS[model][name]):
                    ms[name] += ours.steps(steps)["ms"]
        found: dict[str, Any] = {}
        for name, ours in sides.items():
            with only(VARIANTS[model][name]):
                busy = busy_share(ours, 4) if checks.on_gpu else None
            found[name] = {
                "ms": statistics.median(ms[name]),
                "ms_of_steps": [round(value, 3) for value in ms[name]],
                "busy_share": busy,
                "parts": VARIANTS[model][name],
            }
            checks.measured.setdefault("variants", {})[model] = found
            ours.trainer.close()
        sides.clear()
        release(checks)


def busy_share(ours: Ours, n_steps: int) -> float | None:
    """Return the share of steps in which the GPU works."""
    worker = TrainingWorker.__new__(TrainingWorker)
    worker.side = ours
    return worker.busy(n_steps)["busy_share"]


def release(checks: Checks) -> None:
    """Give back the memory of trainers that are closed."""
    gc.collect()
    if checks.on_gpu:
        torch.cuda.empty_cache()
