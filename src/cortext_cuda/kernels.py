"""The fast paths by the names under which the core asks for them; see `cortext.cuda.Kernels`."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cortext_cuda.ctc import cuda_ctc_loss as ctc_loss
from cortext_cuda.fused import CHECK_SMOOTHING, why_no_kernels
from cortext_cuda.networks import softsign, transformer
from cortext_cuda.paths import describe_paths
from cortext_cuda.recurrence_paths import gru
from cortext_cuda.step_graphs import StepGraphs as step_graphs

__all__ = [
    "ctc_loss",
    "describe_paths",
    "gru",
    "smoothing",
    "softsign",
    "step_graphs",
    "transformer",
]


def smoothing(device: torch.device) -> Callable[..., torch.Tensor] | None:
    """Return the kernel that adds noise and smooths; None where torch's own do it."""
    if why_no_kernels(CHECK_SMOOTHING, device):
        return None
    from cortext_cuda.smooth_kernel import smooth  # needs Triton

    return smooth
