"""The CUDA graphs of a run: what of the torch backend they replay, and when they are made anew."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import nn

from cortext.models import Output
from cortext.models.transformer import Transformer
from cortext.training.batches import TrainBatch
from cortext.training.progress import say
from cortext.training.torch_backend import StepRates, TorchBackend
from cortext_cuda import fused
from cortext_cuda.cuda_graphs import Graphs
from cortext_cuda.graphed_step import GraphedForward, GraphedSteps, StaticBatch, why_not
from cortext_cuda.gru_graph import in_larger_graph
from cortext_cuda.networks import why_not_fused


class StepGraphs:
    """Steps and forward passes of a backend, replayed as CUDA graphs where that can be.

    Args:
        backend: Trains on a GPU; its network and optimiser are there.

    Attributes:
        steps: The training steps; None if they are not replayed.
        forwards: The forward passes without gradients; None if they are not replayed.
    """

    def __init__(self, backend: TorchBackend) -> None:
        self.backend = backend
        self.steps: GraphedSteps | None = None
        self.forwards: GraphedForward | None = None
        job, host = backend.job, backend.host
        if backend.bf16:
            reason = why_not_fused(job.model.network, host)
            say(f"no fused kernels train the model: {reason}", job.shown and reason is not None)
        steps = Graphs(host, "steps", lambda: why_not(job, backend.bf16), self._changed, job.shown)
        if steps.failed:
            return
        settings = job.config.dataset
        batch = StaticBatch(
            host,
            n_trials=settings.batch_size,
            n_bins=int(job.split.n_bins_N.max()),
            n_features=job.split.n_features,
            n_labels=int(job.split.n_labels_N.max()),
            n_days=settings.days_per_batch,
            n_patches=job.model.network.n_patches,
        )
        network: Any = job.model.network
        packs = backend.bf16 and isinstance(network, Transformer)
        packs = packs and fused.why_not_blocks(network.config, host) is None
        self.steps = GraphedSteps(self._take, batch, self._facts, steps, packs=packs)
        passes = Graphs(host, "forward passes", steps.why_not, shown=job.shown)
        self.forwards = GraphedForward(backend.run_model, self.steps, passes)

    def update(
        self, batch: TrainBatch, rates: StepRates, seed: int
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor] | None:
        """Take a step; return losses by name, [B] each, and the norm. None if not replayed."""
        if self.steps is None or self.steps.graphs.failed:
            return None
        torch.manual_seed(seed)
        return self.steps(batch, rates)

    def forward(self, batch: TrainBatch) -> Output | None:
        """Return the output for a batch, see `Backend`; None if it is not replayed."""
        if self.forwards is None or self.forwards.graphs.failed or torch.is_grad_enabled():
            return None
        return self.forwards(batch)

    def _take(
        self, batch: TrainBatch, rates: StepRates
    ) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Take a step of one piece; see `Step`."""
        optimizer = self.backend.optimizer
        optimizer.clear()  # of what a capture may have left that failed
        with in_larger_graph():
            losses = self.backend.add_gradients(batch, rates, True)
        return losses, optimizer.move(batch.days, rates.lr, rates.day_lr)

    def _changed(self) -> list[torch.Tensor]:
        """Return the tensors that a step changes."""
        return [*self.backend.job.model.network.parameters(), *self.backend.optimizer.tensors()]

    def _facts(self) -> Hashable:
        """Return what a graph takes over as it was when it was captured.

        A callback may move weights to other memory, freeze some, or change dropout.
        """
        network: nn.Module = self.backend.job.model.network
        places = tuple((tensor.data_ptr(), tensor.requires_grad) for tensor in self._changed())
        modules = tuple(
            (
                getattr(module, "dropout", None),
                *map(len, (module._forward_hooks, module._forward_pre_hooks)),
            )
            for module in network.modules()
        )
        settings = (
            repr(getattr(network, "config", None)),
            repr(getattr(self.backend.job.loss, "config", None)),
        )
        return places, modules, settings
