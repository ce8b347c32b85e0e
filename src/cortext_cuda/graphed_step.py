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
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from cortext.memory import to_device
from cortext.models import Output
from cortext.plugins import is_own
from cortext.training.adversarial import Adversarial
from cortext.training.backend import Job
from cortext.training.batches import TrainBatch
from cortext.training.loss import CTC
from cortext.training.torch_backend import StepRates
from cortext_cuda import ctc, proofs
from cortext_cuda.cuda_graphs import Graphs
from cortext_cuda.packing import packed_rows, rounded_rows

PATCHES = 16
"""Batches are padded to a multiple of so many patches."""
LABELS = 8
"""Labels are padded to a multiple of so many."""
LOSSES = (CTC, Adversarial)
"""Losses that read no number on the host."""


def why_not(job: Job, bf16: bool) -> str | None:
    """Return why a job's steps cannot be replayed; None if they can."""
    network: nn.Module = job.model.network
    if off := proofs.turned_off():
        return off
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
    device = next(network.parameters()).device
    if device.type == "cuda":
        n_labels = padded_labels(int(job.split.n_labels_N.max()))
        if why := ctc.why_not(device, n_labels):
            return f"torch's CTC waits for the GPU, and ours cannot run: {why}"
    return None


Step = Callable[[TrainBatch, StepRates], tuple[dict[str, torch.Tensor], torch.Tensor]]
"""Function that takes a training step and returns losses by name, [B] each, and the norm."""


class GraphedSteps:
    """Training steps on padded batches, replayed as CUDA graphs on a GPU.

    Args:
        take: Takes a step.
        batch: Memory for batches.
        facts: Function that returns what else a graph takes over as it was when it was captured.
        graphs: Captures the steps.
        packs: True if the model leaves the padding out in training.
    """

    def __init__(
        self,
        take: Step,
        batch: StaticBatch,
        facts: Callable[[], Hashable],
        graphs: Graphs,
        *,
        packs: bool = False,
    ) -> None:
        self.take, self.batch, self.facts, self.graphs = take, batch, facts, graphs
        self.packs = packs
        device = batch.day_B.device
        # The fused AdamW reads float32. The others keep the digits that they have as floats.
        dtypes = torch.float32, torch.float64, torch.float64
        self.rates = StepRates(*(torch.zeros((), dtype=dtype, device=device) for dtype in dtypes))

    def __call__(
        self, batch: TrainBatch, rates: StepRates
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Take a step; return losses by name, [B] each, and the norm, in memory of their own."""
        padded = self.batch.fill(batch)
        # A model may leave the padding out; its number of rows then belongs to the graph.
        n_rows = rounded_rows(int(batch.n_patches_B.sum())) if self.packs else None
        for name, value in vars(rates).items():
            getattr(self.rates, name).fill_(value)
        self.graphs.forget_unless((self.facts(), self.batch.x_N.data_ptr()))
        key = "step", padded.x_BTC.shape, len(padded.days), n_rows
        with nullcontext() if n_rows is None else packed_rows(n_rows):
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
        self.labels_BU = self.day_B.new_zeros(n_trials, padded_labels(n_labels))
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


def padded_labels(n_labels: int) -> int:
    """Return the labels that all batches are padded to, for the longest label."""
    return -(-n_labels // LABELS) * LABELS
