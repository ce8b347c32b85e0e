"""Fast paths of training on a CUDA device, which the package `cortext_cuda` joins.

Its entry has the functions of `Kernels`. The core asks only where a tensor lies on CUDA, so that
nothing of it is imported elsewhere.

B trials, T bins, C features, P patches, D hidden units, L layers, V tokens, U labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from cortext.entry_points import load

if TYPE_CHECKING:
    import torch
    from torch import nn


class Kernels(Protocol):
    """The fast paths. A function returns None where torch's own kernels are to be used."""

    @staticmethod
    def smoothing(device: torch.device) -> Callable[..., torch.Tensor] | None:
        """Return a function that adds noise and smooths, for `features.prepare`."""
        ...

    @staticmethod
    def softsign(
        network: Any, x_BTC: torch.Tensor, day_B: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Return the day layer, softsign and dropout of a `DayLayers`, float [B, T, C]."""
        ...

    @staticmethod
    def transformer(
        network: Any, x_BTC: torch.Tensor, day_B: torch.Tensor, n_patches_B: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        """Return a Transformer's hidden units and those of its intermediate layer, [B, P, D]."""
        ...

    @staticmethod
    def gru(
        module: nn.GRU, x_BPI: torch.Tensor, state_LBD: torch.Tensor, layers: range
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return hidden units [B, P, D] and the last state [L, B, D], as `layers.gru` does."""
        ...

    @staticmethod
    def ctc_loss(
        logits_BPV: torch.Tensor,
        n_patches_B: torch.Tensor,
        labels_BU: torch.Tensor,
        n_labels_B: torch.Tensor,
        blank: int,
    ) -> torch.Tensor | None:
        """Return the loss of each trial, float32 [B], as `training.loss.ctc_loss` does."""
        ...

    @staticmethod
    def step_graphs(backend: Any) -> Any:
        """Return the CUDA graphs of a `TorchBackend`, which `update` and `forward` ask first."""
        ...

    @staticmethod
    def describe_paths(device: torch.device) -> list[str]:
        """Return lines on the path of each part of training, for `cortext doctor`."""
        ...


def kernels() -> Kernels:
    """Return the fast paths, imported when they are first asked for."""
    found: Kernels = load("cortext.kernels", "cuda")
    return found
