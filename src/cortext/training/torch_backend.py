"""The backend that trains with torch, on a CPU or on GPUs.

B trials, P patches, V tokens.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn, profiler

from cortext.cuda import kernels
from cortext.errors import RunError
from cortext.features import build_augmentations
from cortext.models import Output, read_output
from cortext.models.precision import autocast, full_float32, uses_bf16
from cortext.models.transformer import TransformerBlock
from cortext.plugins import blaming
from cortext.training.backend import DeviceSpec, Job, StepResult, StepValues
from cortext.training.batches import DROPOUT, Batches, TrainBatch, derived_seed
from cortext.training.distributed import Processes, own_device, own_random_numbers, processes
from cortext.training.loss import check_losses
from cortext.training.memory import resident_trials
from cortext.training.optim import Optimizer, day_learning_rate, learning_rate
from cortext.training.progress import say


@dataclass
class StepRates:
    """Rates of a step, which change from step to step: floats, or tensors on the device.

    Attributes:
        lr: Learning rate of all parameters but the day layers.
        day_lr: Learning rate of the day layers.
        fraction: Share of the training that is done, in [0, 1).
    """

    lr: float | torch.Tensor
    day_lr: float | torch.Tensor
    fraction: float | torch.Tensor


class TorchBackend:
    """Torch, on a CPU or on a GPU; in several processes each takes its share of every batch."""

    def __init__(self, job: Job) -> None:
        config = job.config
        settings = job.config.dataset
        self.job = job
        self.host = own_device(job.device_spec.device)
        self.name = str(self.host)
        self.cores = job.processes.world
        self.synchronous = self.host.type == "cpu" and job.processes.world == 1
        # Move the weights first: the trials may take half of the memory that is then free.
        network = job.model.network.to(self.host)
        resident = resident_trials(job.split, self.host, settings.resident)
        if resident is not None:
            say(f"the training trials lie on {self.host}", job.shown)
        self.extra = extra = build_augmentations(settings.augmentations)
        self.data = Batches(
            job.split,
            job.layer_of_day,
            settings.data_transforms,
            self.host,
            network.n_patches,
            resident,
            extra,
            clear_padding=job.model.pads_last_patch,
            participant=job.participant,
        )
        self.bf16 = uses_bf16(config.precision, self.host.type)
        self.optimizer = Optimizer(network, config)
        self.network = job.processes.wrap(network, all_used=job.all_used)
        self.blamed = network, job.loss
        self.graphs = kernels().step_graphs(self) if self.host.type == "cuda" else None

    @staticmethod
    def profiled(folder: Path, first: int, end: int) -> AbstractContextManager[Callable[[], None]]:
        """See `Backend`."""
        return traced(folder, first, end)

    @staticmethod
    def processes(spec: DeviceSpec) -> AbstractContextManager[Processes]:
        """See `Backend`."""
        return enough_processes(spec)

    @contextmanager
    def running(self) -> Iterator[None]:
        """See `Backend`."""
        with ExitStack() as stack:
            stack.enter_context(own_random_numbers(self.host))
            stack.enter_context(nullcontext() if self.bf16 else full_float32())
            yield

    def batches(self, first: int, end: int) -> Generator[TrainBatch]:
        """See `Backend`."""
        part = (self.job.processes.rank, self.job.processes.world)
        with blaming(*self.extra):
            yield from self.data.training(self.job.sampler, self.job.config.seed, first, end, part)

    def update(self, step: int, batch: TrainBatch) -> StepResult:
        """See `Backend`."""
        config = self.job.config
        # The process with the most trials takes so many pieces; others may take fewer.
        most_pieces = config.gradient_accumulation_steps
        seed = derived_seed(config.seed, DROPOUT, step) + self.job.processes.rank * most_pieces
        rates = StepRates(
            learning_rate(config, step),
            day_learning_rate(config, step),
            step / config.num_training_batches,
        )
        if self.graphs is not None:
            replayed = self.graphs.update(batch, rates, seed)
            if replayed is not None:
                return StepResult(step, batch.indices, *replayed)
        pieces = min(most_pieces, len(batch))
        finished, indices = [], []
        for piece in range(pieces):
            part = batch.part(piece, pieces) if pieces > 1 else batch
            torch.manual_seed(seed + piece)  # different dropout for each piece and process
            finished.append(self.add_gradients(part, rates, piece == pieces - 1))
            indices.append(part.indices)
        norm = self.optimizer.move(batch.days, rates.lr, rates.day_lr)
        losses = {name: torch.cat([part[name] for part in finished]) for name in finished[0]}
        return StepResult(step, np.concatenate(indices), losses, norm)

    def add_gradients(
        self, part: TrainBatch, rates: StepRates, last: bool
    ) -> dict[str, torch.Tensor]:
        """Add the gradients of a piece of a batch; return its losses by name.

        Args:
            part: The piece.
            rates: Numbers of the step.
            last: True for the last piece, with which processes exchange gradients.
        """
        network = self.network.train()
        world = self.job.processes.world
        with nullcontext() if world == 1 or last else network.no_sync():  # type: ignore[operator]
            with blaming(*self.blamed), autocast(self.host, self.bf16):
                losses = self.job.loss(network, part, rates.fraction)  # type: ignore[arg-type]
            check_losses(losses, len(part), self.job.loss)
            # The mean over the whole batch. The factor `world` undoes the average of the
            # processes' gradients.
            share = losses["loss"].sum() * (world / self.job.config.dataset.batch_size)
            with blaming(*self.blamed):
                share.backward()  # type: ignore[no-untyped-call]
        return {name: loss_B.detach() for name, loss_B in losses.items()}

    def read(self, updates: list[StepResult]) -> list[StepValues]:
        """See `Backend`."""
        if not updates:
            return []
        every = [loss_B for update in updates for loss_B in update.losses.values()]
        values = torch.cat(every).float().cpu().numpy()
        rows = iter(np.split(values, np.cumsum([len(loss_B) for loss_B in every])[:-1]))
        norms = torch.stack([update.norm for update in updates]).tolist()
        return [
            StepValues(
                update.step, update.indices, {name: next(rows) for name in update.losses}, norm
            )
            for update, norm in zip(updates, norms, strict=True)
        ]

    def forward(self, batch: TrainBatch) -> Output:
        """See `Backend`."""
        replayed: Output | None = None if self.graphs is None else self.graphs.forward(batch)
        return self.run_model(batch) if replayed is None else replayed

    def run_model(self, batch: TrainBatch) -> Output:
        """Do what `forward` does, without CUDA graphs."""
        with self.evaluating() as network, blaming(network):
            found = network(batch.x_BTC, batch.day_B, n_patches_B=batch.n_patches_B)
        return read_output(found)._replace(state=None)

    @contextmanager
    def evaluating(self) -> Iterator[Any]:
        """Yield the network in evaluation mode; it computes in the run's precision."""
        with autocast(self.host, self.bf16), nullcontext() if self.bf16 else full_float32():
            yield self.job.model.network.eval()

    def gather_weights(self) -> None:
        """See `Backend`: the job's model already holds them."""

    def state(self) -> dict[str, torch.Tensor]:
        """See `Backend`."""
        return self.optimizer.state()

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """See `Backend`."""
        self.optimizer.load(state)


@contextmanager
def enough_processes(spec: DeviceSpec) -> Iterator[Processes]:
    """Yield the processes of the run, each with a device of its own; see `processes`.

    Raises:
        RunError: If there are fewer processes than cores that `spec` requires.
    """
    with processes(own_device(spec.device)) as found:
        if found.world < (spec.require_cores or 1):
            what = f"training would use {found.world} of {spec.require_cores} cores"
            raise RunError(
                what, where="--require-cores", fix="start a process for each core, with torchrun"
            )
        yield found


@contextmanager
def traced(folder: Path, first: int, end: int) -> Iterator[Callable[[], None]]:
    """Trace batches `first` to `end - 1` of the body; see `Backend.profiled`.

    Args:
        folder: Directory that the trace is written to.
        first: First traced batch, counted from the start of the body.
        end: Batch after the last traced one.

    Yields:
        The function to call after every batch.
    """
    warmup = min(1, first)
    with warnings.catch_warnings():  # the profiler warns if no batch precedes the first traced one
        warnings.simplefilter("ignore", UserWarning)
        schedule = profiler.schedule(
            wait=first - warmup, warmup=warmup, active=end - first, repeat=1
        )
    handler = profiler.tensorboard_trace_handler(str(folder))
    with profiler.profile(schedule=schedule, on_trace_ready=handler, record_shapes=True) as running:
        yield running.step


def flops_per_patch(network: nn.Module) -> int:
    """Return the floating-point operations of training on one patch.

    Each weight of a GRU or a linear layer takes 6: 2 forwards, 2 for the gradient of its input and
    2 for its own gradient. The first layer's input needs its gradient, too, for the day layers.
    """
    matrices = (module for module in network.modules() if isinstance(module, nn.GRU | nn.Linear))
    return 6 * sum(
        parameter.numel()
        for module in matrices
        for name, parameter in module.named_parameters(recurse=False)
        if "weight" in name
    )


def flops_of_attention(network: nn.Module, n_patches: int) -> int:
    """Return the floating-point operations of training on the attention within one trial.

    Each of its two products, with keys and with values, takes 6 for each unit of each pair of
    frames, also of pairs that a causal model then hides.
    """
    attentions = (module for module in network.modules() if isinstance(module, TransformerBlock))
    return sum(12 * n_patches**2 * block.attended.in_features for block in attentions)


def flops_per_bin(network: nn.Module) -> int:
    """Return the floating-point operations of training on one bin, which the day layer takes.

    Each weight of a day's matrix takes 4: 2 forwards and 2 for its gradient. The features need no
    gradient.
    """
    weight_DCC = getattr(network, "day_weight", None)
    return 4 * weight_DCC[0].numel() if isinstance(weight_DCC, torch.Tensor) else 0
