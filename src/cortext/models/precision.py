"""The precision of matrix products: bfloat16, or float32 without TF32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cortext.errors import RunError


def uses_bf16(precision: str, kind: str, by_torch: bool = True) -> bool:
    """Tell whether matrix products run in bfloat16.

    Args:
        precision: `bf16`, `fp32`, or `auto`, which takes bfloat16 where the hardware multiplies it.
        kind: Kind of the device: `cpu`, `cuda` or `tpu`.
        by_torch: False for XLA and TensorFlow. With `auto` they take bfloat16 only on a TPU;
            elsewhere they stand in for a TPU and are compared with torch.
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
    """Multiply float32 as float32 within the context; by default cuDNN rounds it to TF32.

    The process's own settings are restored afterwards.

    Raises:
        RunError: If the process has set torch's `fp32_precision`. torch then refuses to read the
            older settings, and only those exist in all its versions.
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
    """Return a context for a forward pass in bfloat16, or in float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=bf16)
