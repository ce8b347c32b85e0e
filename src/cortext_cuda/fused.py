"""The choice of Triton's kernels for the training of a model on CUDA."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from cortext_cuda import proofs

CAPABILITY = 8, 0
"""Least compute capability, which multiplies bfloat16."""
HEAD_UNITS = 16, 32, 64, 128
"""Units of a head that the matrix units of a GPU multiply without padding."""
MOST_UNITS = 2048
"""Hidden units of a frame, which a program holds in registers."""
CHECK_BLOCKS = "cortext_cuda.fused_checks:check_blocks"
CHECK_SOFTSIGN = "cortext_cuda.fused_checks:check_softsign"
CHECK_SMOOTHING = "cortext_cuda.smooth_kernel:check_smoothing"


@cache
def why_no_kernels(check: str, device: torch.device, *given: int) -> str | None:
    """Return why Triton's kernels are not used on a device; None if they are right there.

    Call it before a CUDA graph is captured.

    Args:
        check: `module:function` that compares the kernels with torch's operations; see `proofs`.
        device: The device.
        given: Further arguments of the check.
    """
    if device.type != "cuda":
        return f"the device is {device.type}"
    if torch.cuda.get_device_capability(device) < CAPABILITY:
        return "the GPU is older than compute capability 8.0"
    if find_spec("triton") is None:
        return "Triton is not installed"
    index = torch.cuda.current_device() if device.index is None else device.index
    return proofs.why_not(check, torch.device("cuda", index), *given)


def why_not_blocks(config: Any, device: torch.device) -> str | None:
    """Return why a Transformer's blocks are not fused in training in 16 bits; None if they are.

    Args:
        config: Settings of the model.
        device: The device.
    """
    if config.head_units not in HEAD_UNITS:
        return f"model.head_units is {config.head_units}, none of {', '.join(map(str, HEAD_UNITS))}"
    if config.n_units > MOST_UNITS:
        return f"model.n_units is {config.n_units}, above {MOST_UNITS}"
    sizes = config.n_units, config.n_heads, config.head_units
    return why_no_kernels(CHECK_BLOCKS, device, *sizes)


def in_16_bits(network: nn.Module, x: torch.Tensor) -> bool:
    """Tell whether a network is being trained in 16 bits on CUDA."""
    training = network.training and torch.is_grad_enabled()
    return x.device.type == "cuda" and training and torch.is_autocast_enabled("cuda")
