"""The way in which a device runs the recurrence of a GRU in training, and why."""

from __future__ import annotations

import logging
from functools import cache

import torch

from cortext.models import gru_kernel
from cortext.models.nvrtc import KernelError
from cortext.models.proofs import why_not

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
    if why := why_not("cortext.models.gru_kernel:check_kernel", device, n_units):
        return GRAPH, f"one kernel: {why}"
    return KERNEL, f"{n_units} units fit on the chip"


@cache
def path_taken(device: torch.device, n_units: int) -> str:
    """Return how a device trains a GRU in 16 bits; if it is a slower way, log the reason once."""
    path, why = path_of(device, n_units)
    if path == GRAPH:
        logging.getLogger(__name__).warning("the GRU is trained with %s: %s", path, why)
    return path


def _listed(numbers: tuple[int, ...]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} or {last}"
