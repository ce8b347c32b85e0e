"""What moves the weights of a model in training.

The trainer keeps the run: its directory, measurements, saved states, the order of batches. An
engine takes the steps, on its own devices: torch on a CPU or on GPUs (here), and others on a TPU
(`cortext.tpu`). Their states have the same names, so that a run may go on with another engine.

B trials, P patches, V tokens.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch

from cortext.data.packed import PackedSplit
from cortext.data.sampler import DayBalancedSampler
from cortext.errors import ConfigError, MissingLibrary, RunError
from cortext.features import build_augmentations
from cortext.models import AcousticModel
from cortext.models.precision import autocast, full_float32, uses_bf16
from cortext.training.batches import DROPOUT, Batches, TrainBatch, derived_seed
from cortext.training.config import TrainConfig
from cortext.training.distributed import Processes, own_device, processes
from cortext.training.loss import Loss, check_losses
from cortext.training.optim import Optimizer
from cortext.training.progress import say
from cortext.training.resident import resident_trials

Backend = Literal["torch", "tensorflow"]
TPUEngine = Literal["torchax"]

ENGINES = {
    "torch": "cortext.training.engine:TorchEngine",
    "torchax": "cortext.tpu.backend:TorchaxBackend",
    "tensorflow": "cortext.tpu.keras_tf.backend:KerasBackend",
}
"""Where engines are.

A module is imported, and its libraries with it, when its engine is asked for.
"""


@dataclass(frozen=True)
class DeviceSpec:
    """A device to train on, and what trains there.

    Attributes:
        device: `cpu`, `cuda`, `cuda:N` or `tpu`.
        backend: `torch`, or `tensorflow` (with Keras 3).
        tpu: Name or address of a TPU; None looks for one.
        tpu_engine: What runs torch models on a TPU: `torchax`.
        require_cores: Fewest cores (TPU cores, GPUs or virtual devices) to train with.

    Raises:
        ConfigError: For an unknown backend or TPU engine, and for a TPU's name where none is used.
    """

    device: str = "cpu"
    backend: Backend = "torch"
    tpu: str | None = None
    tpu_engine: TPUEngine = "torchax"
    require_cores: int | None = None

    def __post_init__(self) -> None:
        if str(self.tpu_engine) == "torch_tpu":
            raise ConfigError(
                "--tpu-engine torch_tpu is gone; it never ran on a TPU",
                fix="use --tpu-engine torchax, or leave the option out",
            )
        for name, value, known in (
            ("backend", self.backend, get_args(Backend)),
            ("TPU engine", self.tpu_engine, get_args(TPUEngine)),
        ):
            if value not in known:
                raise ConfigError(f"unknown {name} {value!r}; use {' or '.join(known)}")
        if self.tpu and self.backend == "torch" and not self.device.startswith("tpu"):
            raise ConfigError(
                f"--tpu is {self.tpu!r}, and --device is {self.device!r}",
                fix="give --device tpu, too",
            )

    @property
    def backend_name(self) -> str:
        """The key in `ENGINES` of what trains there."""
        if self.backend == "tensorflow":
            return "tensorflow"
        return self.tpu_engine if self.device == "tpu" else "torch"


@dataclass(frozen=True)
class Job:
    """What an engine is to train.

    Attributes:
        model: Its network has first weights, on the host, and knows which of its parameters learn.
        split: The training trials; layer_of_day: int64, the day layer of each of its sessions (-1:
            none).
        sampler: Says which trials are in which batch.
        all_used: Whether every parameter that learns has a gradient in every batch.
        shown: Whether to tell the user what is going on.
    """

    config: TrainConfig
    model: AcousticModel
    split: PackedSplit
    layer_of_day: np.ndarray
    sampler: DayBalancedSampler
    loss: Loss
    processes: Processes
    device_spec: DeviceSpec
    all_used: bool = True
    shown: bool = True


@dataclass(frozen=True)
class Update:
    """What was found in a step; numbers are where the engine computes.

    Attributes:
        indices: int64 [B], the trials' numbers in the split (those of this process).
        losses: float32 [B] by name, see `Loss`.
        norm: Of the whole gradient, before clipping.
    """

    step: int
    indices: np.ndarray
    losses: dict[str, Any]
    norm: Any


@dataclass(frozen=True)
class Found:
    """An `Update` on the host."""

    step: int
    indices: np.ndarray
    losses: dict[str, np.ndarray]
    norm: float


class Engine(Protocol):
    """Takes the steps of a training run.

    It is built as `cls(job)`, inside the context `cls.processes(spec)`.
    """

    name: str
    """Where it computes, as the summary says it."""
    cores: int
    """Devices that share a batch."""
    host: torch.device
    """Where batches for `forward` are to lie."""
    synchronous: bool
    """Whether to read what was found after every step costs no time."""

    def __init__(self, job: Job) -> None: ...

    @staticmethod
    def processes(spec: DeviceSpec) -> AbstractContextManager[Processes]:
        """A context in which the processes of this run, if there are several, can talk.

        Raises RunError.
        """
        ...

    def running(self) -> AbstractContextManager[None]:
        """A context for steps."""
        ...

    def batches(self, first: int, end: int) -> Generator[Any]:
        """The training batches number `first` to `end - 1`, prepared ahead."""
        ...

    def update(self, step: int, batch: Any) -> Update:
        """Move the weights along the gradient of the batch, unless that is not finite.

        Does not wait for devices.
        """
        ...

    def read(self, updates: list[Update]) -> list[Found]:
        """Bring to the host what was found, all at once."""
        ...

    def forward(self, batch: TrainBatch) -> torch.Tensor:
        """Logits float [B, P, V] of a batch, in the run's precision, by a model in evaluation
        mode.
        """
        ...

    def gather_weights(self) -> None:
        """Bring the weights into the job's model."""
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """The optimiser's moments and step counts, see `Optimizer.state`."""
        ...

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Take over the weights of the job's model, and what `state` gave."""
        ...

    # `profiled(folder, first, end)`: a context like `traced` of `training.loop`; without it torch's
    # profiler is used.


def engine_class(name: str) -> type[Engine]:
    """The engine of that name. Raises MissingLibrary where its libraries are not installed."""
    module, _, attribute = ENGINES[name].partition(":")
    try:
        found: type[Engine] = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        if (error.name or "cortext").partition(".")[0] == "cortext":
            raise
        extra = "tensorflow" if name == "tensorflow" else "tpu"
        raise MissingLibrary(
            f"{error.name} is not installed", fix=f"pip install 'cortext[{extra}]'"
        ) from None
    return found


class TorchEngine:
    """Torch, on a CPU or on a GPU; in several processes each takes its share of every batch."""

    def __init__(self, job: Job) -> None:
        config, settings = job.config, job.config.dataset
        self.job, self.host = job, own_device(job.device_spec.device)
        self.name, self.cores = str(self.host), job.processes.world
        self.synchronous = self.host.type == "cpu" and job.processes.world == 1
        network = job.model.network.to(
            self.host
        )  # before the trials, which may take half of what then is free
        resident = resident_trials(job.split, self.host, settings.resident)
        if resident is not None:
            say(f"the training trials lie on {self.host}", job.shown)
        extra = build_augmentations(settings.augmentations)
        self.data = Batches(
            job.split,
            job.layer_of_day,
            settings.data_transforms,
            self.host,
            network.n_patches,
            resident,
            extra,
        )
        self.bf16 = uses_bf16(config.precision, self.host.type)
        self.optimizer = Optimizer(network, config)
        self.network = job.processes.wrap(network, all_used=job.all_used)

    @staticmethod
    def processes(spec: DeviceSpec) -> AbstractContextManager[Processes]:
        """See `Engine`."""
        return enough_processes(spec)

    @contextmanager
    def running(self) -> Iterator[None]:
        """See `Engine`."""
        with ExitStack() as stack:
            stack.enter_context(own_random_numbers(self.host))
            stack.enter_context(nullcontext() if self.bf16 else full_float32())
            yield

    def batches(self, first: int, end: int) -> Generator[TrainBatch]:
        """See `Engine`."""
        part = (self.job.processes.rank, self.job.processes.world)
        return self.data.training(self.job.sampler, self.job.config.seed, first, end, part)

    def update(self, step: int, batch: TrainBatch) -> Update:
        """See `Engine`."""
        config, network, world = self.job.config, self.network.train(), self.job.processes.world
        most_pieces = (
            config.gradient_accumulation_steps
        )  # those of the process with the most trials
        pieces = min(most_pieces, len(batch))
        seed = derived_seed(config.seed, DROPOUT, step) + self.job.processes.rank * most_pieces
        finished, indices = [], []
        for piece in range(pieces):
            part = batch.part(piece, pieces) if pieces > 1 else batch
            torch.manual_seed(seed + piece)
            # Processes exchange gradients once a batch: with its last piece.
            with nullcontext() if world == 1 or piece == pieces - 1 else network.no_sync():  # type: ignore[operator]
                with autocast(self.host, self.bf16):
                    losses = self.job.loss(network, part, step / config.num_training_batches)
                check_losses(losses, len(part))
                (losses["loss"].sum() * (world / config.dataset.batch_size)).backward()  # type: ignore[no-untyped-call]
            finished.append({name: loss_B.detach() for name, loss_B in losses.items()})
            indices.append(part.indices)
        norm = self.optimizer.step(step, batch.days)
        losses = {name: torch.cat([part[name] for part in finished]) for name in finished[0]}
        return Update(step, np.concatenate(indices), losses, norm)

    def read(self, updates: list[Update]) -> list[Found]:
        """See `Engine`."""
        if not updates:
            return []
        every = [loss_B for update in updates for loss_B in update.losses.values()]
        values = torch.cat(every).float().cpu().numpy()
        rows = iter(np.split(values, np.cumsum([len(loss_B) for loss_B in every])[:-1]))
        norms = torch.stack([update.norm for update in updates]).tolist()
        return [
            Found(update.step, update.indices, {name: next(rows) for name in update.losses}, norm)
            for update, norm in zip(updates, norms, strict=True)
        ]

    def forward(self, batch: TrainBatch) -> torch.Tensor:
        """See `Engine`."""
        with self.evaluating() as network:
            logits_BPV: torch.Tensor = network(
                batch.x_BTC, batch.day_B, n_patches_B=batch.n_patches_B
            )[0]
        return logits_BPV

    @contextmanager
    def evaluating(self) -> Iterator[Any]:
        """A context in which the network, its value, is in evaluation mode and computes in the
        run's precision.
        """
        with autocast(self.host, self.bf16), nullcontext() if self.bf16 else full_float32():
            yield self.job.model.network.eval()

    def gather_weights(self) -> None:
        """See `Engine`: they are there."""

    def state(self) -> dict[str, torch.Tensor]:
        """See `Engine`."""
        return self.optimizer.state()

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """See `Engine`."""
        self.optimizer.load(state)


@contextmanager
def enough_processes(spec: DeviceSpec) -> Iterator[Processes]:
    """`processes` with a device of its own each.

    Raises RunError where they are fewer than `spec` requires cores.
    """
    with processes(own_device(spec.device)) as found:
        if found.world < (spec.require_cores or 1):
            what = f"training would use {found.world} of {spec.require_cores} cores"
            raise RunError(
                what, where="--require-cores", fix="start a process for each core, with torchrun"
            )
        yield found


def own_random_numbers(device: torch.device) -> AbstractContextManager[None]:
    """A context after which torch's generators are what they were.

    Other GPUs than this one are left in peace.
    """
    return torch.random.fork_rng([device] if device.type == "cuda" else [])
