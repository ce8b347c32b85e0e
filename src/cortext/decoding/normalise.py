"""Logits to log-probabilities."""

from __future__ import annotations

import numpy as np


def log_softmax(logits_PV: np.ndarray) -> np.ndarray:
    """Natural log-probabilities float32 [P, V] of logits."""
    shifted = logits_PV - logits_PV.max(axis=-1, keepdims=True)
    log_probs: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return log_probs
