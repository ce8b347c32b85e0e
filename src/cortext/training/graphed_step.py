"""Whole training steps as CUDA graphs, one for each bucket of lengths.

The host needs longer to start the kernels of a step than a GPU to run them. A CUDA graph holds all
of them, from the first layer to AdamW, and one call starts it. It reads and writes the same memory
each time. A batch is therefore copied to where the graph reads it, padded to a bucket of lengths,
and learning rates are numbers on the device. Noise and smoothing stay on a stream of their own,
where they fill what a recurrence leaves idle; see `batches.ahead`.

Dropout in a graph is drawn from torch's generator, whose seed and position the graph reads at every
replay: a step depends on (seed, step) alone, whether it is replayed or not.

B trials, T bins, C features, P patches, U labels.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar, cast

import torch
from torch import nn

from cortext.memory import to_device
from cortext.models import Output
from cortext.plugins import is_own
from cortext.training.adversarial import Adversarial
from cortext.training.backend import Job
from cortext.training.batches import TrainBatch
from cortext.training.loss import CTC
from cortext.training.progress import say

T = TypeVar("T")

PATCHES = 16
"""Batches are padded to a multiple of so many patches."""
LABELS = 8
"""Labels are padded to a multiple of so many."""
MOST_GRAPHS = 128
"""Graphs of a run. Further lengths run without one."""
LOSSES = (CTC, Adversarial)
"""Losses that read no number on the host."""


def why_not(job: Job, bf16: bool) -> str | None:
    """Return why a job's steps cannot be replayed; None if they can."""
    network: nn.Module = job.model.network
    if job.processes.world > 1:
        return "several processes share a batch"
    if (pieces := job.config.gradient_accumulation_steps) > 1:
        return f"gradient_accumulation_steps is {pieces}"
    if is_own(network):
        return f"the model is of your own ({type(network).__name__})"
    if type(job.loss) not in LOSSES:
        return f"the loss is {type(job.loss).__name__}"
    modules = list(network.modules())
    if any(module._forward_hooks or module._forward_pre_hooks for module in modules):
        return "the model has hooks, which a graph would not call"
    # cuDNN keeps the random numbers of its dropout in memory that a new seed replaces.
    if not bf16 and any(isinstance(module, nn.GRU) and module.dropout for module in modules):
        return "in float32 cuDNN draws the dropout between GRU layers"
    return None


@dataclass
class Rates:
    """Numbers that change from step to step: floats, or tensors on the device.

    Attributes:
        lr: Learning rate of all parameters but the day layers.
        day_lr: Learning rate of the day layers.
        fraction: Share of the training that is done, in [0, 1).
    """

    lr: float | torch.Tensor
    day_lr: float | torch.Tensor
    fraction: float | torch.Tensor


Step = Callable[[TrainBatch, Rates], tuple[dict[str, torch.Tensor], torch.Tensor]]
"""Function that takes a training step and returns losses by name, [B] each, and the norm."""


class GraphedSteps:
    """Training steps on padded batches, replayed as CUDA graphs on a GPU.

    Args:
        take: Takes a step.
        batch: Memory for batches.
        facts: Function that returns what else a graph takes over as it was when it was captured.
        graphs: Captures the steps.
    """

    def __init__(
        self, take: Step, batch: StaticBatch, facts: Callable[[], Hashable], graphs: Graphs
    ) -> None:
        self.take, self.batch, self.facts, self.graphs = take, batch, facts, graphs
        device = batch.day_B.device
        # The fused AdamW reads float32. The others keep the digits that they have as floats.
        dtypes = torch.float32, torch.float64, torch.float64
        self.rates = Rates(*(torch.zeros((), dtype=dtype, device=device) for dtype in dtypes))

    def __call__(
        self, batch: TrainBatch, rates: Rates
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Take a step; return losses by name, [B] each, and the norm, in memory of their own."""
        padded = self.batch.fill(batch)
        for name, value in vars(rates).items():
            getattr(self.rates, name).fill_(value)
        self.graphs.forget_unless((self.facts(), self.batch.x_N.data_ptr()))
        key = "step", padded.x_BTC.shape, len(padded.days)
        losses, norm = self.graphs.run(key, lambda: self.take(padded, self.rates))
        return {name: loss_B.detach().clone() for name, loss_B in losses.items()}, norm.clone()


class GraphedForward:
    """Forward passes of padded batches without gradients, replayed as CUDA graphs on a GPU.

    Args:
        forward: Runs the model in evaluation mode.
        steps: The steps of the same model, whose memory for batches is used.
        graphs: Captures the forward passes.
    """

    def __init__(
        self, forward: Callable[[TrainBatch], Output], steps: GraphedSteps, graphs: Graphs
    ) -> None:
        self.forward, self.graphs = forward, graphs
        self.batch, self.facts = steps.batch, steps.facts

    @torch.no_grad()
    def __call__(self, batch: TrainBatch) -> Output:
        """Return the output for a batch, without a state, in memory of its own."""
        memory = self.batch
        padded = replace(
            batch,
            x_BTC=memory.features(batch.x_BTC),
            day_B=memory.numbers("day_B", batch.day_B),
            n_patches_B=memory.numbers("n_patches_B", batch.n_patches_B),
        )
        self.graphs.forget_unless((self.facts(), memory.x_N.data_ptr()))
        found = self.graphs.run(padded.x_BTC.shape, lambda: self.forward(padded))
        n_frames = memory.n_patches(batch.x_BTC.shape[1])

        def own(tensor_BPX: torch.Tensor) -> torch.Tensor:
            return tensor_BPX[:, :n_frames].clone()

        extras = {name: own(tensor_BPX) for name, tensor_BPX in found.extras.items()}
        return Output(own(found.logits), None, extras)


class StaticBatch:
    """Memory that all graphs read a batch from; a batch of fewer bins takes a part of it.

    Args:
        device: Device of the memory.
        n_trials: Most trials of a batch.
        n_bins: Bins of the longest trial; longer ones replace the memory.
        n_features: Features of a bin.
        n_labels: Longest label.
        n_days: Most different days of a batch.
        n_patches: Function from bins to frames of logits.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        n_trials: int,
        n_bins: int,
        n_features: int,
        n_labels: int,
        n_days: int,
        n_patches: Callable[[int], int],
    ) -> None:
        self.n_patches = n_patches
        self.x_N = torch.empty(
            n_trials * padded_bins(n_bins, n_patches) * n_features, device=device
        )
        self.day_B, self.n_bins_B, self.n_patches_B, self.n_labels_B = torch.zeros(
            4, n_trials, dtype=torch.int64, device=device
        )
        self.labels_BU = self.day_B.new_zeros(n_trials, -(-n_labels // LABELS) * LABELS)
        self.days = self.day_B.new_zeros(n_days)

    def fill(self, batch: TrainBatch) -> TrainBatch:
        """Copy a training batch into the memory; return it, padded, all of it on the device.

        The last day is repeated: an optimiser that writes the same numbers to the same day again
        moves it once.
        """
        x_BTC = self.features(batch.x_BTC)
        names = "day_B", "n_bins_B", "n_patches_B", "n_labels_B"
        rows: dict[str, Any] = {name: self.numbers(name, getattr(batch, name)) for name in names}
        labels_BU = self.labels_BU[: len(batch)].zero_()
        labels_BU[:, : batch.labels_BU.shape[1]].copy_(batch.labels_BU)
        self.days[: len(batch.days)].copy_(batch.days)
        self.days[len(batch.days) :] = batch.days[-1:]
        return replace(batch, x_BTC=x_BTC, labels_BU=labels_BU, days=self.days, **rows)

    def features(self, x_BTC: torch.Tensor) -> torch.Tensor:
        """Copy features [B, T, C] into the memory; return them, padded with zeros."""
        n_trials, n_bins, n_features = x_BTC.shape
        shape = n_trials, padded_bins(n_bins, self.n_patches), n_features
        if (needed := math.prod(shape)) > len(self.x_N):
            self.x_N = self.x_N.new_empty(needed)
        own_BTC = self.x_N[:needed].view(shape)
        own_BTC[:, :n_bins].copy_(x_BTC)
        own_BTC[:, n_bins:].zero_()
        return own_BTC

    def numbers(self, name: str, values_B: torch.Tensor) -> torch.Tensor:
        """Copy a number of each trial, from any device, into the memory of that name."""
        own_B: torch.Tensor = getattr(self, name)[: len(values_B)]
        return own_B.copy_(to_device(values_B, own_B.device))


def padded_bins(n_bins: int, n_patches: Callable[[int], int]) -> int:
    """Return the bins that a batch is padded to: the most that give a multiple of `PATCHES`.

    Args:
        n_bins: Bins of the longest trial.
        n_patches: Function from bins to frames of logits.
    """
    wanted = max(1, -(-n_patches(n_bins) // PATCHES)) * PATCHES
    while n_patches(n_bins + 1) <= wanted:
        n_bins += 1
    return n_bins


class Graphs:
    """Functions of fixed memory, captured as CUDA graphs when a key comes the second time.

    The first call of a key makes what a capture cannot: libraries' handles, compiled kernels, the
    optimiser's moments.

    All graphs of a process, on one GPU, share one pool of memory. They never run at the same time,
    so each may overwrite what another has left. It grows to about the largest graph's need.

    Args:
        device: A GPU; on another device functions are only called.
        what: Name of the functions, for the line that says that they are not replayed.
        why_not: Function that returns why they cannot be captured; None if they can.
        shown: Print that line.

    Attributes:
        failed: True if nothing is captured from now on.
    """

    def __init__(
        self,
        device: torch.device,
        what: str,
        why_not: Callable[[], str | None] = lambda: None,
        shown: bool = True,
    ) -> None:
        self.device, self.what, self.why_not, self.shown = device, what, why_not, shown
        self.failed = device.type == "cuda" and self._give_up(why_not())
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Any] | None] = {}
        self._facts: Hashable = None

    def forget_unless(self, facts: Hashable) -> None:
        """Drop all graphs unless these facts are those of the last time."""
        if facts != self._facts:
            self._graphs.clear()
            self._facts = facts

    def run(self, key: Hashable, function: Callable[[], T]) -> T:
        """Call a function, or replay what it did.

        Args:
            key: What the function depends on beside the contents of its memory.
            function: Reads and writes the same memory at every call, and returns tensors.

        Returns:
            The function's result. Copy its tensors before the next call, which may overwrite them.
        """
        found = self._graphs.get(key)
        if found is None and key in self._graphs and self._may_capture():
            found = self._graphs[key] = self._captured(function)
        self._graphs.setdefault(key, None)
        if found is None:
            return self._called(function)
        graph, result = found
        graph.replay()
        return cast(T, result)

    def _called(self, function: Callable[[], T]) -> T:
        """Call a function on the stream of captures.

        torch adds up a parameter's gradient on the stream that first used the parameter, as long as
        anything remembers that use; a capture may not wait for another stream.
        """
        if self.device.type != "cuda":
            return function()
        own, current = _stream(self.device), torch.cuda.current_stream(self.device)
        own.wait_stream(current)
        with torch.cuda.stream(own):
            result = function()
        current.wait_stream(own)
        return result

    def _may_capture(self) -> bool:
        if self.device.type != "cuda" or self.failed:
            return False
        if sum(graph is not None for graph in self._graphs.values()) >= MOST_GRAPHS:
            return False
        return not self._give_up(self.why_not())  # hooks may be new

    def _give_up(self, why: str | None) -> bool:
        """Capture nothing from now on, and say why; do nothing for None."""
        if why is None:
            return False
        self.failed = True
        say(f"note: {self.what} are not replayed as CUDA graphs: {why}", self.shown)
        return True

    def _captured(self, function: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T] | None:
        """Capture a function without running it; None, after a line that says so, if it fails."""
        graph, stream = torch.cuda.CUDAGraph(), _stream(self.device)
        living = next(iter(_LIVING), None)
        pool = torch.cuda.graph_pool_handle() if living is None else living.pool()
        try:
            # A thread prepares the next batch meanwhile: its calls are none of the graph's.
            with torch.cuda.graph(graph, pool, stream, "thread_local"):
                result = function()
        except RuntimeError as error:
            self._give_up(str(error.__context__ or error).partition("\n")[0])
            _recover(self.device, pool)
            return None
        _LIVING.add(graph)
        return graph, result


_LIVING: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
"""All graphs of this process. A pool is gone with its last graph."""


@lru_cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream that graphs are captured on.

    Kernels keep its priority, which is above that of the thread that prepares batches.
    """
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


def _recover(device: torch.device, pool: Any) -> None:
    """Undo what a capture leaves behind that has failed: torch does so where one ends well."""
    index = torch.cuda.current_device() if device.index is None else device.index
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(index, pool)
    # The generator would count on being captured until a capture ends.
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros((), device=device)
