"""In which precision matrix products run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cortext.errors import RunError


def uses_bf16(precision: str, kind: str, by_torch: bool = True) -> bool:
    """Whether matrix products run in bfloat16.

    As told, or (`auto`) where the hardware multiplies it natively.

    Args:
        kind: The device's: cpu, cuda or tpu.
        by_torch: Whether torch runs them; XLA and TensorFlow, which stand in for a TPU elsewhere,
            take it on a TPU only.
    """
    if precision != "auto":
        return precision == "bf16"
    if kind == "tpu":
        return True
    if not by_torch:
        return False
    if kind == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


@contextmanager
def full_float32() -> Iterator[None]:
    """A context in which float32 is float32.

    By default cuDNN rounds it to TF32, and a process may have asked for more.

    The settings are the process's own and are put back. Raises RunError in a process that has set
    them through torch's `fp32_precision`, which torch does not let go together with the older names
    that all its versions know.
    """
    try:
        before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        fix = "use torch.set_float32_matmul_precision and torch.backends.cudnn.allow_tf32 instead"
        raise RunError("this process has set torch's fp32_precision", fix=fix) from None
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def autocast(device: torch.device, bf16: bool) -> Any:
    """A context for a forward pass in bfloat16 or not."""
    return torch.autocast(device.type, torch.bfloat16, enabled=bf16)
