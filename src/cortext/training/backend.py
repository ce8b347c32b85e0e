"""The interface of backends, which run training steps.

The trainer keeps the run: its directory, measurements, saved states and the order of batches. A
backend takes the steps on its devices: torch on a CPU or on GPUs (`torch_backend`), torchax and
TensorFlow on a TPU, which other packages join (group `cortext.backends`, see
`cortext.entry_points`). The tensors of their states have the same names, so that another backend
can resume a run.

B trials, P patches, V tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch

from cortext.arguments import check_text, check_type
from cortext.data.packed import PackedSplit
from cortext.data.sampler import DayBalancedSampler
from cortext.entry_points import load
from cortext.errors import ConfigError, MissingLibrary
from cortext.extras import install_hint
from cortext.models import AcousticModel, Output
from cortext.plugins import is_of_cortext
from cortext.training.batches import TrainBatch
from cortext.training.config import TrainConfig
from cortext.training.distributed import Processes
from cortext.training.loss import Loss

BackendOption = Literal["torch", "tensorflow"]
TPUEngine = Literal["torchax"]


@dataclass(frozen=True)
class DeviceSpec:
    """A device to train on, and the backend that trains there.

    Attributes:
        device: `cpu`, `cuda`, `cuda:N` or `tpu`.
        backend: `torch`, or `tensorflow` (with Keras 3).
        tpu: Name or address of a TPU; None looks for one.
        tpu_engine: Library that runs torch models on a TPU: `torchax`.
        require_cores: Fewest cores (TPU cores, GPUs or virtual devices) to train with; None for
            any number.

    Raises:
        ConfigError: For an unknown backend or TPU engine, and for a TPU's name where none is used.
    """

    device: str = "cpu"
    backend: BackendOption = "torch"
    tpu: str | None = None
    tpu_engine: TPUEngine = "torchax"
    require_cores: int | None = None

    def __post_init__(self) -> None:
        for name in ("device", "backend", "tpu_engine"):
            check_text(getattr(self, name), name)
        check_type(self.tpu, (str, type(None)), "tpu", "a name or None")
        if str(self.tpu_engine) == "torch_tpu":
            raise ConfigError(
                "--tpu-engine torch_tpu is gone; it never ran on a TPU",
                fix="use --tpu-engine torchax, or leave the option out",
            )
        for name, value, known in (
            ("backend", self.backend, get_args(BackendOption)),
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
        """Name of the backend, see `backend_class`."""
        if self.backend == "tensorflow":
            return "tensorflow"
        return self.tpu_engine if self.device == "tpu" else "torch"


@dataclass(frozen=True)
class Job:
    """The work of a backend.

    Attributes:
        config: Configuration of the run.
        model: Model with its first weights, on the host; `requires_grad` marks the parameters that
            learn.
        split: The training trials.
        layer_of_day: int64, the day layer of each session of the split (-1: none).
        sampler: Assigns trials to batches.
        loss: Loss to minimise.
        processes: The processes that share a batch.
        device_spec: Device to train on.
        all_used: True if every parameter that learns has a gradient in every batch.
        shown: True to show progress to the user.
        participant: Name of the participant, where several train together.
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
    participant: str | None = None


@dataclass(frozen=True)
class StepResult:
    """Results of a step; the numbers lie on the device of the backend.

    Attributes:
        step: Number of the batch, from 0.
        indices: int64 [B], numbers in the split of this process's trials.
        losses: float32 [B] by name, see `Loss`.
        norm: Norm of the whole gradient, before clipping.
    """

    step: int
    indices: np.ndarray
    losses: dict[str, Any]
    norm: Any


@dataclass(frozen=True)
class StepValues:
    """A `StepResult` whose values are on the host."""

    step: int
    indices: np.ndarray
    losses: dict[str, np.ndarray]
    norm: float


class Backend(Protocol):
    """Takes the steps of a training run."""

    name: str
    """Name of the device, for the summary."""
    cores: int
    """Number of devices that share a batch."""
    host: torch.device
    """Device on which `forward` needs its batches."""
    synchronous: bool
    """True if reading the results after every step costs no time."""

    def running(self) -> AbstractContextManager[None]:
        """Keep the settings that steps need, such as the precision of matrix products."""
        ...

    def batches(self, first: int, end: int) -> Generator[Any]:
        """Yield the training batches `first` to `end - 1`, prepared ahead."""
        ...

    def update(self, step: int, batch: Any) -> StepResult:
        """Move the weights along the gradient of the batch, if it is finite.

        The call does not wait for the device.
        """
        ...

    def read(self, updates: list[StepResult]) -> list[StepValues]:
        """Copy the results of several steps to the host in one transfer."""
        ...

    def forward(self, batch: TrainBatch) -> Output:
        """Return the output for a batch, in evaluation mode and the run's precision.

        Its logits are float [B, P, V]; it has no state.
        """
        ...

    def gather_weights(self) -> None:
        """Copy the weights into the job's model."""
        ...

    def state(self) -> dict[str, torch.Tensor]:
        """Return the optimiser's moments and step counts, see `Optimizer.state`."""
        ...

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Take over the weights of the job's model, and the moments that `state` returned."""
        ...

    @staticmethod
    def profiled(folder: Path, first: int, end: int) -> AbstractContextManager[Callable[[], None]]:
        """Trace batches `first` to `end - 1` of the body.

        Args:
            folder: Directory that the trace is written to.
            first: First traced batch, counted from the start of the body.
            end: Batch after the last traced one.

        Yields:
            A function to call after every batch.
        """
        ...


class JobBackend(Backend, Protocol):
    """A backend of one job: built as `cls(job)`, inside the context `cls.processes(spec)`."""

    job: Job
    """The model, the trials and the settings of the run."""

    def __init__(self, job: Job) -> None: ...

    @staticmethod
    def processes(spec: DeviceSpec) -> AbstractContextManager[Processes]:
        """Yield the processes of this run, able to exchange values.

        Raises:
            RunError: If the device cannot be used, or there are fewer cores than required.
        """
        ...


def backend_class(name: str) -> type[JobBackend]:
    """Return the backend of that name: `torch`, or one that a package joins.

    Its module and libraries are imported when it is first used.

    Raises:
        MissingLibrary: If no installed package brings it, or its libraries are missing.
    """
    if name == "torch":
        own: type[JobBackend] = import_module("cortext.training.torch_backend").TorchBackend
        return own
    try:
        found: type[JobBackend] = load("cortext.backends", name)
    except ModuleNotFoundError as error:
        if is_of_cortext(error.name or "cortext"):
            raise
        extra = "tensorflow" if name == "tensorflow" else "tpu"
        raise MissingLibrary(f"{error.name} is not installed", fix=install_hint(extra)) from None
    return found
