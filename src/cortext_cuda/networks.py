"""Networks of the core in training in 16 bits on CUDA, with fused kernels where they are right.

B trials, T bins, C features, P patches, I values in a patch, N rows, D hidden units.
"""

from __future__ import annotations

import torch
from torch import nn

from cortext.models.inputs import DayLayers
from cortext.models.layers import day_affine
from cortext.models.transformer import Transformer
from cortext_cuda import fused
from cortext_cuda.fused import CHECK_SOFTSIGN, in_16_bits, why_no_kernels
from cortext_cuda.packing import pack


def why_not_fused(network: nn.Module, device: torch.device) -> str | None:
    """Return why torch's own kernels train a network in 16 bits; None for fused ones.

    Call it before a CUDA graph is captured. None also for a network without a part to fuse.
    """
    if isinstance(network, Transformer):
        return fused.why_not_blocks(network.config, device)
    has_softsign = isinstance(network, DayLayers) and _has_softsign(network)
    return why_no_kernels(CHECK_SOFTSIGN, device) if has_softsign else None


def softsign(
    network: DayLayers, x_BTC: torch.Tensor, day_B: torch.Tensor | None
) -> torch.Tensor | None:
    """Compute the day layer, then softsign and dropout in one kernel; None where torch does it."""
    if not _has_softsign(network) or network.read_in is not None or not in_16_bits(network, x_BTC):
        return None
    if why_no_kernels(CHECK_SOFTSIGN, x_BTC.device):
        return None
    from cortext_cuda import fused_blocks  # needs Triton

    assert day_B is not None
    x_BTC = day_affine(x_BTC, day_B, network.day_weight, network.day_bias)
    p = network.config.input_network.input_layer_dropout
    found_BTC: torch.Tensor = fused_blocks.softsign(x_BTC, fused_blocks.draw_seeds(x_BTC.device), p)
    return found_BTC


def _has_softsign(network: DayLayers) -> bool:
    return network.has_days and network.config.input_network.day_layer == "softsign"


def transformer(
    network: Transformer, x_BTC: torch.Tensor, day_B: torch.Tensor, n_patches_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """Return what `run_packed` does; None where torch's own kernels run, with padding."""
    if not in_16_bits(network, x_BTC) or fused.why_not_blocks(network.config, x_BTC.device):
        return None
    return run_packed(network, x_BTC, day_B, n_patches_B)


def run_packed(
    network: Transformer, x_BTC: torch.Tensor, day_B: torch.Tensor, n_patches_B: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute the hidden units of the last and the intermediate layer on the trials' own patches.

    Args:
        network: The Transformer, in training.
        x_BTC: Float [B, T, C], smoothed features.
        day_B: int64 [B], the day layer of each trial.
        n_patches_B: int64 [B], patches of each trial; the others are padding.

    Returns:
        Float [B, P, D] of the last layer and of the intermediate one, which may be None.
    """
    from cortext_cuda import fused_blocks  # needs Triton

    x_BPI = network.inputs(x_BTC, day_B)
    rows = pack(n_patches_B, x_BPI.shape[1], x_BPI.device)
    if x_BPI.requires_grad or network.patch_width > fused_blocks.MOST_WIDTH:
        normed_NI = network.patch_norm(rows.without_padding(x_BPI).float())
    else:
        dtype = torch.get_autocast_dtype(x_BPI.device.type)
        normed_NI = fused_blocks.norm_rows(x_BPI, rows, network.patch_norm, dtype)
    x_ND = network.embed_patches(normed_NI)
    hidden_ND, middle_ND = fused_blocks.run_blocks(network.blocks, x_ND, rows)
    middle_BPD = None if middle_ND is None else rows.with_padding(middle_ND)
    return rows.with_padding(hidden_ND), middle_BPD
