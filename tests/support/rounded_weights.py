"""Weights as a compiled step keeps them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def to_bfloat16(w: np.ndarray) -> np.ndarray:
    """Return the nearest numbers with 8 significant bits, ties to even."""
    mantissa, exponent = np.frexp(w.astype(np.float64))
    rounded: np.ndarray = np.ldexp(np.rint(mantissa * 256) / 256, exponent)
    return rounded


def to_int8(w: np.ndarray) -> np.ndarray:
    """Return the nearest of -127 ... 127 times a 127th of the row's largest weight."""
    # In float32 as the step: a tie would else be another one.
    most = np.abs(w).max(axis=1, keepdims=True).astype(np.float32)
    rounded: np.ndarray = np.rint(w / most * np.float32(127)) * (most.astype(np.float64) / 127)
    return rounded


ROUNDED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "fp32": lambda w: w.astype(np.float64),
    "bf16": to_bfloat16,
    "int8": to_int8,
}
"""The rounding of a matrix float32 [rows, columns], by precision."""
