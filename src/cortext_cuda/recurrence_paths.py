"""The way in which a device runs the recurrence of a GRU in training, and why."""

from __future__ import annotations

import logging
from functools import cache

import torch
from torch import nn

from cortext.models.layers import dropout, layer_weights
from cortext_cuda import gru_kernel
from cortext_cuda.gru_graph import graphed
from cortext_cuda.gru_kernel import in_one_kernel
from cortext_cuda.nvrtc import KernelError
from cortext_cuda.proofs import why_not

KERNEL, GRAPH, CPU = "one kernel", "a CUDA graph", "the CPU's pass"


def path_of(device: torch.device, n_units: int) -> tuple[str, str]:
    """Return how a device trains a GRU in 16 bits, and the reason in a few words.

    Args:
        device: Of the model.
        n_units: Hidden units of a layer.

    Returns:
        `KERNEL`, the kernel that keeps the recurrent weights on the chip; `GRAPH`, a small kernel
        for each frame; or `CPU`.
    """
    if device.type != "cuda":
        return CPU, "no GPU"
    if n_units not in gru_kernel.UNITS:
        return GRAPH, f"one kernel takes {_listed(gru_kernel.UNITS)} units, not {n_units}"
    capability = torch.cuda.get_device_capability(device)
    if capability < gru_kernel.CAPABILITY:
        needed, found = (".".join(map(str, pair)) for pair in (gru_kernel.CAPABILITY, capability))
        return GRAPH, f"one kernel needs compute capability {needed}, this card has {found}"
    try:
        groups = gru_kernel.passes(n_units, device).groups
    except (KernelError, OSError) as error:
        return GRAPH, str(error).partition("\n")[0]
    if groups < gru_kernel.FEWEST_GROUPS:
        n_trials = groups * gru_kernel.TRIALS
        return GRAPH, f"this card runs only {n_trials} trials of {n_units} units in one kernel"
    if why := why_not("cortext_cuda.gru_kernel:check_kernel", device, n_units):
        return GRAPH, f"one kernel: {why}"
    return KERNEL, f"{n_units} units fit on the chip"


@cache
def path_taken(device: torch.device, n_units: int) -> str:
    """Return how a device trains a GRU in 16 bits; if it is a slower way, log the reason once."""
    path, why = path_of(device, n_units)
    if path == GRAPH:
        logging.getLogger(__name__).warning("the GRU is trained with %s: %s", path, why)
    return path


def gru(
    module: nn.GRU, x_BPI: torch.Tensor, state_LBD: torch.Tensor, layers: range
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Run layers of a GRU in training on CUDA; None where cuDNN is faster, and in float32.

    See `cortext.models.layers.gru`.
    """
    if not torch.is_autocast_enabled("cuda"):
        return None
    p = module.dropout if module.training else 0.0
    if layers.start:  # between layers, as nn.GRU does
        x_BPI = dropout(x_BPI, p, module.training)
    weights = [layer_weights(module, layer) for layer in layers]
    if path_taken(x_BPI.device, module.hidden_size) != KERNEL:
        return graphed(module, x_BPI, state_LBD, weights, p)
    n_trials, n_patches, _ = x_BPI.shape
    starts_B = n_patches * torch.arange(n_trials + 1, dtype=torch.int32, device=x_BPI.device)
    x_NI = x_BPI.flatten(0, 1)
    hidden_ND, state_LBD = in_one_kernel(x_NI, starts_B, n_patches, state_LBD, weights, p)
    return hidden_ND.view(n_trials, n_patches, -1), state_LBD


def _listed(numbers: tuple[int, ...]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}"
