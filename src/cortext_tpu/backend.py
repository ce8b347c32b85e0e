"""The backend that trains torch modules on a TPU's cores, through torchax, JAX and XLA.

Threads read and lay out the next batches while the cores work on one. The host waits for the cores
only in `read`. There is one program for each length in `Shapes`, compiled when it is first needed.

B trials, T bins, C features, P patches, U tokens of the longest label, V tokens.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from jax.experimental.compilation_cache import compilation_cache

from cortext.errors import ConfigError
from cortext.features import build_augmentations, prepare
from cortext.models import Output
from cortext.training.backend import Job, StepResult, StepValues
from cortext.training.batches import AUGMENTATION, TrainBatch, derived_seed
from cortext.training.optim import day_learning_rate, learning_rate
from cortext.training.progress import say
from cortext_tpu.cores import check_cores, check_platform, cores_line
from cortext_tpu.explain import explain
from cortext_tpu.mesh import (
    by_trial,
    data_mesh,
    everywhere,
    find_own_tpu,
    hosts,
    own_copy,
    own_rows,
    put,
)
from cortext_tpu.optimizer import State, is_day
from cortext_tpu.profile import traced_jax
from cortext_tpu.shapes import Shapes
from cortext_tpu.step import Programs, host_work, numbers

THREADS = 2
"""Number of threads that prepare batches; a v5e-8 may take a step while one batch is read."""
AHEAD = 3
"""Number of batches prepared ahead."""


@dataclass(frozen=True)
class Prepared:
    """A batch on the cores, with the numbers of its step.

    Attributes:
        n_bins: Bins that its trials are padded to, T.
        indices: int64, numbers in the split of this host's trials.
        batch: See `step.Batch`.
        numbers: See `step.Numbers`.
    """

    n_bins: int
    indices: np.ndarray
    batch: Any
    numbers: Any


class TorchaxBackend:
    """See `cortext.training.backend.Backend`."""

    synchronous = False
    host = torch.device("cpu")
    processes = staticmethod(hosts)
    profiled = staticmethod(traced_jax)

    def __init__(self, job: Job) -> None:
        config = job.config
        tpu = find_own_tpu(job.device_spec)
        self.job = job
        self.shown = job.shown and job.processes.first
        for line in tpu.describe():
            say(line, self.shown)
        with self._explained():
            # Cores of a host are neighbours, so that its rows of a batch are, too.
            devices = sorted(jax.devices(), key=lambda core: (core.process_index, core.id))
        self.mesh = data_mesh(devices)
        self.cores = len(devices)
        kind = devices[0].platform
        check_platform(kind, tpu)
        self.name = f"{kind} ({self.cores} core{'s' if self.cores > 1 else ''})"
        check_cores(self.cores, job.device_spec.require_cores, tpu)
        say(cores_line(self.cores, tpu, f"{kind.upper()} core"), self.shown)
        keep_programs(config.tpu.compilation_cache)
        self.shapes = Shapes.of(job)
        self.extra = build_augmentations(config.dataset.augmentations)
        self.programs = Programs(
            job.model.network,
            job.loss,
            config,
            self.mesh,
            n_features=job.split.n_features,
            n_labels=self.shapes.labels,
            on_host=host_work(self.extra),
        )
        self._compiled: dict[tuple[str, int, int], Any] = {}
        self.weights: Any
        self.fixed: Any
        self.moments: Any
        self.load({})

    def running(self) -> Any:
        """See `Backend`."""
        return nullcontext()

    def batches(self, first: int, end: int) -> Generator[Prepared]:
        """See `Backend`."""
        with ThreadPoolExecutor(THREADS) as threads:
            waiting = deque(
                threads.submit(self._prepare, step)
                for step in range(first, min(first + AHEAD, end))
            )
            for step in range(first, end):
                prepared = waiting.popleft().result()
                if step + AHEAD < end:
                    waiting.append(threads.submit(self._prepare, step + AHEAD))
                yield prepared

    def update(self, step: int, batch: Prepared) -> StepResult:
        """See `Backend`."""
        program = self._program("update", batch.n_bins, self.job.config.dataset.batch_size)
        with self._explained():
            self.weights, self.moments, losses, norm = program(
                self.weights, self.fixed, self.moments, batch.batch, batch.numbers
            )
        return StepResult(step, batch.indices, losses, norm)

    def read(self, updates: list[StepResult]) -> list[StepValues]:
        """See `Backend`."""
        with self._explained():
            for update in updates:
                for loss_B in update.losses.values():
                    loss_B.copy_to_host_async()  # start all copies before waiting for one
            norms = own_copy([update.norm for update in updates])
            losses = [
                {name: own_rows(loss_B) for name, loss_B in update.losses.items()}
                for update in updates
            ]
        return [
            StepValues(update.step, update.indices, own, float(norm))
            for update, own, norm in zip(updates, losses, norms, strict=True)
        ]

    def forward(self, batch: TrainBatch) -> Output:
        """See `Backend`. Only this host's cores work: hosts share the trials of a validation."""
        mesh = data_mesh(jax.local_devices())
        padded = self.shapes.pad(batch, self.job.config.dataset.batch_size, mesh.devices.size)
        program = self._program("forward", padded["features"].shape[1], len(padded["day"]))
        weights, fixed = (_local(tree, mesh) for tree in (self.weights, self.fixed))
        with self._explained():
            rows = put(by_trial(mesh), padded)
            logits_BPV, extras = jax.tree.map(
                own_rows,
                program(weights, fixed, rows["features"], rows["day"], rows["n_patches"]),
            )
        n_patches = int(self.job.model.network.n_patches(batch.x_BTC.shape[1]))
        return Output(
            torch.from_numpy(logits_BPV[: len(batch), :n_patches]),
            extras={name: torch.from_numpy(x[: len(batch)]) for name, x in extras.items()},
        )

    @torch.no_grad()
    def gather_weights(self) -> None:
        """See `Backend`."""
        parameters = dict(self.job.model.network.named_parameters())
        with self._explained():
            weights = own_copy(self.weights)
        for name, values in weights.items():
            parameters[name].copy_(torch.tensor(values))

    def state(self) -> dict[str, torch.Tensor]:
        """See `Backend`."""
        moments: State = jax.tree.map(torch.tensor, own_copy(self.moments))
        state: dict[str, torch.Tensor] = {"day_steps": moments.day_steps.long()}
        for part in ("mean", "square", "steps"):
            state |= {f"{part}.{name}": tensor for name, tensor in getattr(moments, part).items()}
        return state

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """See `Backend`; weights that the state lacks start afresh."""
        network = self.job.model.network
        replicated = everywhere(self.mesh)
        named = dict(network.named_parameters())
        weights = {
            name: _array(parameter) for name, parameter in named.items() if parameter.requires_grad
        }
        fixed = {
            name: _array(x)
            for name, x in [*named.items(), *network.named_buffers()]
            if name not in weights
        }
        days = [len(weight) for name, weight in weights.items() if is_day(name)]

        def of(name: str, shape: tuple[int, ...]) -> np.ndarray:
            return _array(state[name]) if name in state else np.zeros(shape, np.float32)

        mean, square = (
            {name: of(f"{part}.{name}", w.shape) for name, w in weights.items()}
            for part in State._fields[:2]
        )
        steps = {name: of(f"steps.{name}", ()) for name in weights if not is_day(name)}
        day_steps = of("day_steps", (max(days, default=0),)).astype(np.int32)
        with self._explained():
            self.weights = put(replicated, weights)
            self.fixed = put(replicated, fixed)
            self.moments = put(replicated, State(mean, square, steps, day_steps))

    def _prepare(self, step: int) -> Prepared:
        """Return this host's rows of the batch of a step, on their way to the cores."""
        config, split, processes = self.job.config, self.job.split, self.job.processes
        indices = self.job.sampler.indices(step)
        n_bins = self.shapes.bins(indices)
        share = len(indices) // processes.world
        rows = slice(processes.rank * share, (processes.rank + 1) * share)
        own = indices[rows]
        labels_BU, n_labels_B = split.labels_batch(own)
        labels_BU = np.pad(labels_BU, ((0, 0), (0, self.shapes.labels - labels_BU.shape[1])))
        batch = {"day": self.job.layer_of_day[split.day_N[own]], "n_bins": split.n_bins_N[own]}
        batch |= {"labels": labels_BU, "n_labels": n_labels_B}
        if self.extra:
            features_BTC, batch["n_bins"] = self._augmented(step, indices, rows, n_bins)
        else:
            features_BTC = split.batch(own, n_bins).features_BTC
        batch = {name: values.astype(np.int32) for name, values in batch.items()} | {
            "features": features_BTC
        }
        values = numbers(config, step, learning_rate(config, step), day_learning_rate(config, step))
        return Prepared(
            n_bins, own, put(by_trial(self.mesh), batch), put(everywhere(self.mesh), values)
        )

    def _augmented(
        self, step: int, indices: np.ndarray, rows: slice, n_bins: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return features float16 [B, T, C] and bins of the rows, augmented as with torch.

        They are smoothed as well if an augmentation follows smoothing.
        """
        generator = torch.Generator().manual_seed(
            derived_seed(self.job.config.seed, AUGMENTATION, step)
        )
        transforms = self.job.config.dataset.data_transforms
        smoothed = self.programs.on_host == "prepare"
        if not smoothed:
            transforms = replace(transforms, smooth_data=False)
        x_BTC, n_bins_B = prepare(
            torch.from_numpy(self.job.split.batch(indices).features_BTC),
            torch.from_numpy(self.job.split.n_bins_N[indices]),
            transforms,
            generator,
            rows,
            self.extra,
            clear_padding=smoothed and self.programs.clear_padding,
        )
        x_BTC = torch.nn.functional.pad(x_BTC, (0, 0, 0, n_bins - x_BTC.shape[1]))
        return x_BTC.half().numpy(), n_bins_B.numpy()

    def _program(self, kind: str, n_bins: int, n_trials: int) -> Any:
        """Return the compiled program for trials of `n_bins` bins."""
        key = (kind, n_bins, n_trials)
        if key not in self._compiled:
            started = time.perf_counter()
            with self._explained():
                if kind == "update":
                    lowered = self.programs.lower_update(n_bins)
                else:
                    lowered = self.programs.lower_forward(
                        n_bins, n_trials, data_mesh(jax.local_devices())
                    )
                self._compiled[key] = lowered.compile()
            program = "training step" if kind == "update" else "validation"
            seconds = time.perf_counter() - started
            say(
                f"compiled the {program} for trials of {n_bins} bins in {seconds:.1f} s", self.shown
            )
        return self._compiled[key]

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn XLA's errors, which are pages long, into one line."""
        try:
            yield
        except jax.errors.ConcretizationTypeError as error:
            config = self.job.config
            of = f"loss {config.loss.kind!r}, or " if config.loss is not None else ""
            of += f"model {config.model.kind!r},"
            problem = f"{of} decides in Python on a number that only the step knows"
            fix = (
                "compute with tensors (torch.where, clamp), of which `fraction` is one; or train on"
                " cpu or cuda"
            )
            raise ConfigError(problem, fix=fix) from error
        except Exception as error:
            explained = explain(
                error, self.job.config.dataset.batch_size, getattr(self, "cores", 1)
            )
            if explained is None or explained is error:
                raise
            raise explained from error


def keep_programs(folder: str | None) -> None:
    """Keep compiled programs in a folder for later runs: `auto` is ~/.cache/cortext/xla."""
    path = str(Path.home() / ".cache" / "cortext" / "xla") if folder == "auto" else folder
    jax.config.update("jax_compilation_cache_dir", path)
    # JAX reads the setting at its first program, which may have been another run's.
    compilation_cache.reset_cache()


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy().copy()


def _local(tree: Any, mesh: Any) -> Any:
    """Return arrays that every core of all hosts has as arrays of this host's cores."""
    layout = everywhere(mesh)

    def local(x: jax.Array) -> jax.Array:
        return jax.make_array_from_single_device_arrays(
            x.shape, layout, [shard.data for shard in x.addressable_shards]
        )

    return jax.tree.map(local, tree)
