"""`cortext bench training`: the published loop and ours, side by side, on the same trials.

Every side is a process of its own, so that its memory is its own. They train in turns, so that a
machine that is busy for a while slows all of them, and take the same batches in the same order.
Whole steps are timed in each side's own loop, reading ahead included. The parts of a step are timed
afterwards, one after the other and without reading ahead, so their sum exceeds a step.

The operations of a step are counted by formula. A product with a weight matrix of a GRU or a linear
layer takes 6 operations per weight and patch: a multiplication and an addition for each of the
forward pass, the input's gradient and the weights' gradient. The day layer takes 4 per weight and
bin, because its input needs no gradient. Padding, smoothing, noise, CTC and the optimiser are not
counted, so the share of the machine's matrix rate is about work that a trial needs.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from cortext.data import open_packed
from cortext.errors import ConfigError, nearest
from cortext.models import build_model
from cortext.provenance import provenance
from cortext.text.inventory import RELEASE
from cortext.training import read_train_config
from cortext.training.setup import batch_sampler
from cortext_bench.harness import Sides, Stage, machine, median_and_spread
from cortext_bench.training.data import SimulatedRecordings
from cortext_bench.training.sides import PARTS, YARDSTICK, SideSettings
from cortext_bench.workers import WorkerProcess

PUBLISHED_BATCHES = 120_000
BYTES_PER_PARAMETER = 16
"""Weight, gradient and AdamW's two moments in float32."""
MATRIX = {"cpu": 2048, "cuda": 8192}
"""Rows and columns of the matrices on which a device's rate is measured."""

VARIANTS: dict[str, dict[str, Any]] = {
    "release": {"kind": "release", "precision": "published"},
    "release_compiled": {"kind": "release", "precision": "published", "compiled": True},
    "release_bf16": {"kind": "release", "precision": "bf16"},
    "restated": {"kind": "restated", "precision": "published"},
    "restated_bf16": {"kind": "restated", "precision": "bf16"},
    "ours": {"kind": "ours", "precision": "auto"},
    "ours_fp32": {"kind": "ours", "precision": "fp32"},
}
"""The sides by name, and how each differs in its SideSettings."""

CLAIMS = {
    "gru": ["RTX 4090 3.5 h (105 ms a batch), published"],
    "transformer": [],
    "triple_gru": ["RTX 4090 12-18 h, claimed", "V100 15-20 h, claimed"],
}
"""Claims about 120,000 batches of 64 that others have published."""


@dataclass(frozen=True)
class TrainingShape:
    """A model to train, and its recordings."""

    recipe: str
    recording: SimulatedRecordings
    overrides: tuple[str, ...] = ()


def shapes(model: str, batch_size: int) -> dict[str, TrainingShape]:
    """Return a model's shapes by name; `batch_size` belongs to the published shape."""
    published = SimulatedRecordings(n_sessions=45, trials_per_session=4, n_features=512, bins=900)
    demo = SimulatedRecordings(
        n_sessions=6, trials_per_session=40, n_features=128, bins=0, preset="demo"
    )
    batch = f"dataset.batch_size={batch_size}"
    if model == "gru":
        return {
            "demo": TrainingShape("demo", demo),
            "published": TrainingShape("gru", published, (batch,)),
        }
    if model == "triple_gru":
        widths = {"noise 768": 768, "noise 7168": 7168}
        return {
            name: TrainingShape("triple_gru", published, (batch, f"model.noise_units={width}"))
            for name, width in widths.items()
        }
    if model == "transformer":
        return {
            # Without day layers, as published: the restated model has none.
            "demo": TrainingShape("transformer", demo, ("model.input_network.day_layer=none",)),
            # The days of the GRU's batches: more are not in a batch of 8, for a CPU.
            "published": TrainingShape(
                "transformer_t15", published, (batch, "dataset.days_per_batch=4")
            ),
        }
    raise ConfigError(f"no shapes are known for model {model!r}; {nearest(model, CLAIMS)}")


@dataclass(frozen=True)
class TrainingBenchSettings:
    """Sides, and how much of each is measured.

    Attributes:
        sides: Names of VARIANTS.
        turns: Number of turns of `steps` steps each, after one turn of `warmup`.
        parts: Steps that are split into their parts.
    """

    sides: Sequence[str]
    turns: int = 4
    steps: int = 3
    warmup: int = 2
    parts: int = 3
    device: str = "cpu"
    threads: int | None = None
    workers: int = 4
    yardstick: Path = YARDSTICK


def default_sides(model: str, device: str) -> list[str]:
    """Return the sides that are compared by default.

    The release runs compiled and in bfloat16 on CUDA. On a CPU it runs in float32, and here not
    compiled: see the docs.
    """
    if model == "triple_gru":
        return ["ours"]
    theirs = "release" if model == "gru" else "restated"
    if device == "cpu":
        return [theirs, f"{theirs}_bf16", "ours", "ours_fp32"]
    return ["release_compiled" if model == "gru" else theirs, "ours"]


def bench_training(
    chosen: Mapping[str, TrainingShape],
    plan: TrainingBenchSettings,
    overrides: Sequence[str] = (),
    stage: Stage = lambda name: None,
) -> dict[str, Any]:
    """Compare the sides at every shape.

    Args:
        chosen: Shapes by name.
        plan: Sides, and how much of each is measured.
        overrides: `key=value` changes of every recipe.
        stage: Called with the name of each stage of the work.

    Returns:
        What `--json` prints; `ratio` belongs to the last shape.
    """
    found = {}
    missing = {}
    for name, shape in chosen.items():
        shape = replace(shape, overrides=(*shape.overrides, *overrides))
        if reason := too_large(shape, plan.device):
            missing[name] = reason
            continue
        with TemporaryDirectory(prefix="cortext-bench-") as folder:
            found[name] = _measure(Path(folder), name, shape, plan, stage)
    last: Mapping[str, Any] = next(reversed(found.values()), {})
    ratios = {name: last.get(name) for name in ("ratio", "ratio_cpu", "ratio_bf16", "ratio_fp32")}
    return {
        **ratios,
        "shapes": found,
        "missing": missing,
        "machine": machine(plan.device),
        "provenance": provenance(),
    }


def too_large(shape: TrainingShape, device: str) -> str | None:
    """Return the reason why the memory does not hold the shape's model; None where it does."""
    config = read_train_config(shape.recipe, shape.overrides)
    recording = shape.recording
    with torch.device("meta"):
        network = build_model(
            config.model,
            n_features=recording.n_features,
            n_days=recording.n_sessions,
            n_classes=len(RELEASE),
        )
    parameters = sum(parameter.numel() for parameter in network.parameters())
    available = _available_bytes(device)
    if parameters * BYTES_PER_PARAMETER <= 0.8 * available:
        return None
    need = parameters * BYTES_PER_PARAMETER / 1e9
    return (
        f"{parameters / 1e6:.0f} M parameters need {need:.1f} GB and activations;"
        f" {available / 1e9:.1f} GB are free"
    )


def _available_bytes(device: str) -> float:
    if device != "cpu":
        return float(torch.cuda.mem_get_info(torch.device(device))[0])
    return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _measure(
    folder: Path, name: str, shape: TrainingShape, plan: TrainingBenchSettings, stage: Stage
) -> dict[str, Any]:
    stage(f"{name}: recording")
    shape.recording.write(folder)
    with Sides() as sides:
        for side in plan.sides:
            stage(f"{name}: starting {side}")
            sides.start(side, partial(start, side, folder, shape, plan))
        stage(f"{name}: warming up")
        sides.ask("steps", n=plan.warmup)
        turns = []
        for turn in range(plan.turns):
            stage(f"{name}: turn {turn + 1} of {plan.turns}")
            turns.append(sides.ask("steps", n=plan.steps))
        memory = sides.ask("memory")
        stage(f"{name}: how busy the device is")
        # Few: torch's profiler takes long to sort the thousands of kernels of a GRU's step.
        busy = sides.ask("busy", n=min(plan.steps, 5))
        parts = sides.ask(
            "parts", lambda side: stage(f"{name}: the parts of {side}"), n=plan.parts + 1
        )
        stage(f"{name}: the machine's matrix rate")
        size = MATRIX[torch.device(plan.device).type]
        last = next(reversed(sides.running.values()), None)
        rate = {} if last is None else last.ask("matrix_rate", size=size)
        facts = {side: process.loaded for side, process in sides.running.items()}
    total = plan.warmup + 2 + plan.turns * (plan.steps + 2)
    batches = batch_facts(folder, shape, total)
    described = {
        side: _described(
            [turn[side] for turn in turns], memory[side], parts[side], facts[side], batches
        )
        | busy[side]
        for side in facts
    }
    if (ours := facts.get("ours") or facts.get("ours_fp32")) is not None:
        batches["flops"] = (
            batches["patches"] * ours["flops_per_patch"] + batches["bins"] * ours["flops_per_bin"]
        )
        for values in described.values():
            values["matrix_share"] = (
                batches["flops"] / (values["ms"] / 1e3) / rate[values["precision"]]
            )
    return {
        **ratios(described),
        "sides": described,
        "missing": sides.missing,
        "batch": batches,
        "matrix_rate": rate,
    }


def start(
    name: str, folder: Path, shape: TrainingShape, plan: TrainingBenchSettings
) -> WorkerProcess:
    """Start the process of a side.

    Args:
        name: Name of VARIANTS.
        folder: Folder of the materials, in which the side gets a folder of its own.
        shape: Model and recordings.
        plan: Device and number of workers.

    Raises:
        Missing: Where the side cannot run here.
        ConfigError: For an unknown name.
    """
    if name not in VARIANTS:
        raise ConfigError(f"unknown side {name!r}; {nearest(name, VARIANTS)}")
    out = folder / name
    overrides = [f"{key}={10**9}" for key in ("num_training_batches", "batches_per_val_step")]
    side = SideSettings(
        folder=str(folder),
        out=str(out),
        recipe=shape.recipe,
        overrides=[*overrides, *shape.overrides],
        device=plan.device,
        workers=plan.workers,
        yardstick=str(plan.yardstick),
        **VARIANTS[name],
    )
    env = {} if plan.threads is None else {"OMP_NUM_THREADS": str(plan.threads)}
    return WorkerProcess(
        name, "training.worker", [json.dumps(asdict(side))], folder / f"{name}.log", env
    )


def batch_facts(folder: Path, shape: TrainingShape, n_batches: int) -> dict[str, float]:
    """Return the mean contents of the first batches.

    They are trials, padded length, and bins and patches without padding.

    Args:
        folder: Folder of the materials.
        shape: Model and recordings.
        n_batches: Number of batches.
    """
    config = read_train_config(shape.recipe, shape.overrides)
    packed = open_packed(folder / "packed")
    split = packed.split("train")
    days_D = np.arange(len(packed.sessions))
    sampler = batch_sampler(config.dataset, split, days_D, len(days_D))
    n_bins_SB = np.stack([split.n_bins_N[sampler.indices(step)] for step in range(n_batches)])
    with torch.device("meta"):
        network: Any = build_model(
            config.model,
            n_features=shape.recording.n_features,
            n_days=shape.recording.n_sessions,
            n_classes=len(RELEASE),
        )
    patches_SB = network.n_patches(n_bins_SB)
    return {
        "trials": config.dataset.batch_size,
        "padded_bins": float(n_bins_SB.max(1).mean()),
        "bins": float(n_bins_SB.sum(1).mean()),
        "patches": float(patches_SB.sum(1).mean()),
    }


def _described(
    turns: Sequence[Mapping[str, list[float]]],
    memory: Mapping[str, Any],
    parts: Mapping[str, list[float]],
    facts: Mapping[str, Any],
    batch: Mapping[str, float],
) -> dict[str, Any]:
    times = {
        kind: [value for turn in turns for value in turn[kind]]
        for kind in ("ms", "cpu_ms", "wait_ms")
    }
    ms, spread = median_and_spread(times["ms"])
    wait_ms = statistics.median(times["wait_ms"])
    return {
        "ms": ms,
        "ms_10_90": spread,
        "cpu_ms": statistics.median(times["cpu_ms"]),
        "steps": len(times["ms"]),
        "trials_per_s": batch["trials"] / ms * 1e3,
        "wait_ms": wait_ms,
        "wait_share": wait_ms / ms,
        "parts_ms": {part: statistics.median(parts[part][1:]) for part in PARTS},
        "hours_of_120k_batches": ms * PUBLISHED_BATCHES / 3.6e6,
        "memory": dict(memory),
        **facts,
    }


def ratios(sides: Mapping[str, Mapping[str, Any]]) -> dict[str, float | None]:
    """Return how many times faster ours is, by median step; None where a side is missing.

    ratio:      than the published loop, compiled or not, whichever is faster here
    ratio_cpu:  the same by processor time, which other work on the machine disturbs less (without
                the release's loaders, which are other processes)
    ratio_bf16: both in bfloat16; ratio_fp32: both in float32
    """

    def fastest(names: Sequence[str], precision: str | None, field: str) -> float | None:
        times = [
            float(sides[name][field])
            for name in names
            if name in sides and (precision is None or sides[name]["precision"] == precision)
        ]
        return min(times, default=None)

    def ratio(
        theirs: Sequence[str], ours: Sequence[str], precision: str | None, field: str = "ms"
    ) -> float | None:
        a = fastest(theirs, precision, field)
        b = fastest(ours, precision, field)
        return None if a is None or b is None else a / b

    published = ("release", "release_compiled", "restated")
    every_release = (*published, "release_bf16", "restated_bf16")
    both = ("ours", "ours_fp32")
    return {
        "ratio": ratio(published, ("ours",), None),
        "ratio_cpu": ratio(published, ("ours",), None, "cpu_ms"),
        "ratio_bf16": ratio(every_release, both, "bf16"),
        "ratio_fp32": ratio(every_release, both, "fp32"),
    }
