"""Sides of the training benchmark: our trainer, and the restated published one of the GRU."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

import cortext
from cortext.data import DayBalancedSampler, open_packed
from cortext.features import prepare
from cortext.models.precision import autocast
from cortext.training import Callback, Trainer, Trains, read_train_config
from cortext.training.batches import AUGMENTATION, Batches, TrainBatch, derived_seed
from cortext.training.setup import batch_sampler
from cortext.training.torch_backend import TorchBackend, flops_per_bin, flops_per_patch
from cortext_bench.training.data import ReleaseBatches, validation_files
from cortext_bench.workers import Missing
from cortext_published.release.layout import split_days

PARTS = ("load", "augment", "forward", "backward", "step")
YARDSTICK = Path(cortext.__file__).resolve().parents[2] / "benchmarks" / "release_trainer.py"
"""The restated published trainer in a source checkout."""


@dataclass(frozen=True)
class SideSettings:
    """Work of one side; passed to its process as JSON.

    Attributes:
        kind: `ours`, `release` or `restated` (`restated.py`).
        folder: Holds `data` and `packed`.
        out: A directory of this side's own.
        recipe: A training configuration and `overrides` to it.
        precision: ours: as in the configuration; the others: `published` (bfloat16 on CUDA only)
            or `bf16` (on a CPU too).
        compiled: release: whether the model goes through torch.compile.
        workers: release: processes that read batches ahead.
    """

    kind: str
    folder: str
    out: str
    recipe: str
    overrides: list[str]
    device: str = "cpu"
    precision: str = "auto"
    compiled: bool = False
    workers: int = 4
    yardstick: str = str(YARDSTICK)


class Clock:
    """Times between ticks: events of the stream on CUDA, else wall clock and processor time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.ticks: list[Any] = []
        self.busy: list[float] = []

    def tick(self) -> None:
        """Note the time of a tick."""
        self.busy.append(time.process_time())
        if self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self.device))  # type: ignore[no-untyped-call]
            self.ticks.append(event)
        else:
            self.ticks.append(time.perf_counter())

    def ms(self) -> list[float]:
        """Return the milliseconds between ticks."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            return [
                float(a.elapsed_time(b)) for a, b in zip(self.ticks, self.ticks[1:], strict=False)
            ]
        return [1e3 * (b - a) for a, b in zip(self.ticks, self.ticks[1:], strict=False)]

    def cpu_ms(self) -> list[float]:
        """Return the processor time between ticks in ms, all threads of this process included."""
        return [1e3 * (b - a) for a, b in zip(self.busy, self.busy[1:], strict=False)]


@dataclass
class PartClock:
    """Times of the parts of steps, each ended by waiting for the device."""

    device: torch.device
    ms: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})

    def start(self) -> None:
        """Start a part."""
        self._wait()
        self.since = time.perf_counter()

    def end(self, part: str) -> None:
        """End a part, which starts the next."""
        self._wait()
        now = time.perf_counter()
        self.ms[part].append(1e3 * (now - self.since))
        self.since = now

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def answer(clock: Clock, waits_ms: list[float]) -> dict[str, Any]:
    """Return the times of the steps between the first and the last.

    The first and the last are left out: nothing has prepared the first, and the last prepares
    nothing.
    """
    return {"ms": clock.ms()[:-1], "cpu_ms": clock.cpu_ms()[:-1], "wait_ms": waits_ms[1:-1]}


class _Waiting(Batches):
    """Batches that note how long the trainer waited for each."""

    waits_ms: list[float]

    @classmethod
    def of(cls, batches: Batches) -> _Waiting:
        waiting = cls.__new__(cls)
        waiting.__dict__.update(batches.__dict__)
        waiting.waits_ms = []
        return waiting

    def training(self, *arguments: Any, **named: Any) -> Generator[TrainBatch]:
        batches = super().training(*arguments, **named)
        try:
            while True:
                started = time.perf_counter()
                batch = next(batches, None)
                if batch is None:
                    return
                self.waits_ms.append(1e3 * (time.perf_counter() - started))
                yield batch
        finally:
            batches.close()


class _Losses(Callback):
    def __init__(self) -> None:
        self.values: list[float] = []

    def on_train(self, trainer: Trains, step: int, values: dict[str, Any]) -> None:
        self.values.append(values["train_loss"])


class Ours:
    """Our trainer."""

    def __init__(self, plan: SideSettings) -> None:
        overrides = [*plan.overrides, f"precision={plan.precision}"]
        self.losses = _Losses()
        packed = open_packed(Path(plan.folder, "packed"))
        self.trainer = Trainer(
            plan.recipe,
            packed,
            plan.out,
            device=plan.device,
            overrides=overrides,
            callbacks=[self.losses],
            progress=False,
        )
        # In training states are written rarely, but a turn of the benchmark ends often.
        self.trainer.saves_state = False
        assert isinstance(self.trainer.backend, TorchBackend)
        self.backend = self.trainer.backend
        self.waiting = self.backend.data = _Waiting.of(self.backend.data)
        self.device = self.backend.host
        network = self.trainer.model.network
        self.facts = {
            "n_parameters": sum(parameter.numel() for parameter in network.parameters()),
            "precision": "bf16" if self.backend.bf16 else "fp32",
            "flops_per_patch": flops_per_patch(network),
            "flops_per_bin": flops_per_bin(network),
        }

    def steps(self, n: int) -> dict[str, Any]:
        """Time `n` steps of the trainer's own loop."""
        clock = Clock(self.device)
        self.waiting.waits_ms = []
        self.trainer.run(n + 2, profile=nullcontext(clock.tick))
        return answer(clock, self.waiting.waits_ms)

    def parts(self, n: int) -> dict[str, Any]:
        """Time the parts of `n` steps, each part alone: no work is done ahead."""
        clock = PartClock(self.device)
        with self.backend.running():
            for step in range(n):
                self._step_in_parts(self.backend.job.sampler.indices(step), step, clock)
        return clock.ms

    def _step_in_parts(self, indices: np.ndarray, step: int, clock: PartClock) -> None:
        backend = self.backend
        job = self.backend.job
        batches = self.backend.data
        network = backend.network.train()
        every = slice(None)

        def generator() -> torch.Generator:
            return torch.Generator(self.device).manual_seed(
                derived_seed(job.config.seed, AUGMENTATION, step)
            )

        clock.start()
        x_BTC = batches._features(indices, every)
        clock.end("load")
        n_bins_B = torch.from_numpy(batches.split.n_bins_N[indices])
        prepare(
            x_BTC,
            n_bins_B,
            batches.transforms,
            generator(),
            every,
            batches.extra,
            clear_padding=batches.clear_padding,
        )
        clock.end("augment")
        del x_BTC
        batch = batches.batch(indices, generator())  # the same once more, with labels and lengths
        clock.start()
        with autocast(self.device, backend.bf16):
            loss = job.loss(network, batch, 0.0)["loss"].mean()
        clock.end("forward")
        loss.backward()  # type: ignore[no-untyped-call]
        clock.end("backward")
        backend.optimizer.step(step, batch.days)
        clock.end("step")

    def train(self, n: int) -> dict[str, Any]:
        """Train for `n` steps and return their losses; the configuration logs each."""
        self.losses.values = []
        self.trainer.run(n)
        return {"losses": self.losses.values}

    def validate(self) -> dict[str, Any]:
        """Return phoneme error rate and loss of the validation split."""
        metrics = self.trainer.validate()
        return {"per": metrics["val_per"], "loss": metrics["val_loss"]}

    def give(self, path: str) -> dict[str, Any]:
        """Write the weights under the release's names."""
        save_file(split_days(self.trainer.model.network.state_dict()), path)
        return {}


class ReleaseSide:
    """The restated published trainer, on the batches that our sampler draws."""

    def __init__(self, plan: SideSettings) -> None:
        module = yardstick_module(Path(plan.yardstick))
        config = read_train_config(plan.recipe, plan.overrides)
        self.folder = Path(plan.folder)
        if config.model.kind != "gru":
            raise Missing(f"the release has no {config.model.kind}")
        packed = open_packed(self.folder / "packed")
        split = packed.split("train")
        days_D = np.arange(len(packed.sessions))
        sampler = batch_sampler(config.dataset, split, days_D, len(days_D))
        self.batches = ReleaseBatches(self.folder, sampler, split)
        self.device = torch.device(plan.device)
        _check_same(self.batches, sampler, split, module)
        on_gpu = self.device.type == "cuda"
        torch.manual_seed(config.seed)
        np.random.seed(config.seed)  # noqa: NPY002  (the release draws its cuts from there)
        self.trainer = module.ReleaseTrainer(
            asdict(config),
            n_features=packed.n_features,
            n_days=len(packed.sessions),
            device=self.device,
            autocast=self.device.type if on_gpu or plan.precision == "bf16" else None,
            compiled=plan.compiled,
        )
        self.loader = module.loader(self.batches, plan.workers, pin=on_gpu)
        self.iterator: Iterator[dict[str, torch.Tensor]] | None = None
        self.load_batch = module.load_batch
        self.facts = {
            "n_parameters": sum(parameter.numel() for parameter in self.trainer.model.parameters()),
            "precision": "bf16" if self.trainer.autocast else "fp32",
        }

    def steps(self, n: int) -> dict[str, Any]:
        """Time `n` steps of the published loop."""
        clock = Clock(self.device)
        waits_ms = []
        for _ in range(n + 2):
            started = time.perf_counter()
            batch = self._next()
            waits_ms.append(1e3 * (time.perf_counter() - started))
            self.trainer.step(batch)
            clock.tick()
        return answer(clock, waits_ms)

    def _next(self) -> dict[str, torch.Tensor]:
        if self.iterator is None:  # from here on workers read ahead
            self.iterator = iter(self.loader)
        return next(self.iterator)

    def parts(self, n: int) -> dict[str, Any]:
        """Time the parts of `n` steps; a batch is read here instead of by a worker."""
        clock = PartClock(self.device)
        for step in range(n):
            clock.start()
            batch = self.load_batch(self.batches[step])
            self.trainer.step(batch, clock.end)
        return clock.ms

    def train(self, n: int) -> dict[str, Any]:
        """Train for `n` steps and return their losses."""
        return {"losses": [self.trainer.step(self._next()) for _ in range(n)]}

    def validate(self) -> dict[str, Any]:
        """Return phoneme error rate and loss of the validation split."""
        found = self.trainer.validate(validation_files(self.folder))
        return {"per": found["per"], "loss": found["loss"]}

    def take(self, path: str) -> dict[str, Any]:
        """Start from weights under the release's names."""
        self.trainer.model.load_state_dict(load_file(path))
        return {}


def yardstick_module(path: Path) -> ModuleType:
    """Import a restated trainer from its file; raise Missing if there is none."""
    if not path.is_file():
        raise Missing(
            f"the restated published trainer is not at {path}",
            fix="run from a checkout, or give --yardstick",
        )
    sys.path.insert(0, str(path.parent))  # for the loader beside it
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _check_same(
    batches: ReleaseBatches, sampler: DayBalancedSampler, split: Any, module: ModuleType
) -> None:
    """Check that both sides get the same trials, up to half precision."""
    theirs = module.load_batch(batches[0])
    ours = split.batch(sampler.indices(0))
    assert np.array_equal(theirs["input_features"].numpy().astype(np.float16), ours.features_BTC)
    assert np.array_equal(theirs["day"].numpy(), ours.day_B)
