"""The losses of a speech LLM, each with a value for each trial."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cortext_speechllm.losses.alignment import (
    cosine_alignment,
    monotonic_attention,
    mse_alignment,
)
from cortext_speechllm.losses.soft_dtw import soft_dtw

Alignment = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Loss `alignment(brain_BPA, n_patches_B, target_BNA, n_frames_B) -> [B]`."""

ALIGNMENTS: dict[str, Alignment] = {
    "cosine": cosine_alignment,
    "mse": mse_alignment,
    "soft_dtw": soft_dtw,
    "attention": monotonic_attention,
}
"""Losses between a brain sequence and an audio sequence, by their names in a configuration."""
