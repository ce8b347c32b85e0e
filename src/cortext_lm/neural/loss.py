"""The loss of a network with a tied output layer.

The log-probabilities of a whole batch are never held in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

IGNORED = -100
"""Target of padding, which has no loss."""
_CHUNK = 256
"""Tokens whose probabilities are held at once; they stay in the processor's cache."""


class _SummedLoss(torch.autograd.Function):
    """Summed negative log-probabilities, and gradients in the same pass over the vocabulary."""

    @staticmethod
    def forward(
        ctx: Any, hidden_ND: torch.Tensor, weight_VD: torch.Tensor, target_N: torch.Tensor
    ) -> torch.Tensor:
        """Return the sum, float32; `hidden_ND` decides the precision of the products."""
        weight = weight_VD.to(hidden_ND.dtype)
        grad_hidden_ND = torch.empty_like(hidden_ND)
        grad_weight_VD = torch.zeros_like(weight_VD)
        total = torch.zeros(())
        for first in range(0, len(hidden_ND), _CHUNK):
            part = slice(first, first + _CHUNK)
            logits_NV = (hidden_ND[part] @ weight.T).float()
            target_N1 = target_N[part, None]
            norm_N1 = logits_NV.logsumexp(-1, keepdim=True)
            total += (norm_N1 - logits_NV.gather(1, target_N1)).sum()
            grad_NV = (logits_NV - norm_N1).exp_()
            grad_NV.scatter_add_(1, target_N1, torch.full(target_N1.shape, -1.0))
            grad = grad_NV.to(hidden_ND.dtype)
            grad_hidden_ND[part] = grad @ weight
            grad_weight_VD += grad.T @ hidden_ND[part]
        ctx.save_for_backward(grad_hidden_ND, grad_weight_VD)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Scale the gradients that `forward` has computed."""
        grad_hidden_ND, grad_weight_VD = ctx.saved_tensors
        return grad_hidden_ND * grads[0], grad_weight_VD * grads[0], None


def summed_loss(network: Any, inputs_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
    """Return the negative natural log-probability of all targets but `IGNORED` ones, float32 [].

    Args:
        network: A Llama-like network with a tied output layer.
        inputs_BT: int64 tokens, padded on the right (`padded`).
        targets_BT: int64, of the same shape.
    """
    hidden_BTD = network.model(input_ids=inputs_BT, use_cache=False).last_hidden_state
    real_BT = targets_BT != IGNORED
    weight_VD = network.lm_head.weight
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    hidden_ND = hidden_BTD[real_BT].to(dtype)
    total: torch.Tensor = _SummedLoss.apply(hidden_ND, weight_VD, targets_BT[real_BT])  # type: ignore[no-untyped-call]
    return total


def autocast() -> torch.autocast:
    """Return a context that computes in bfloat16 where the processor multiplies it."""
    able = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.autocast("cpu", torch.bfloat16, enabled=bool(able))


def padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets, int64 [B, T], of rows of tokens: each token's target is the next.

    Inputs are padded with `pad`, targets with `IGNORED`.
    """
    length = max(map(len, rows))
    inputs_BT = torch.tensor([[*row[:-1], *[pad] * (length - len(row))] for row in rows])
    targets_BT = torch.tensor([[*row[1:], *[IGNORED] * (length - len(row))] for row in rows])
    return inputs_BT, targets_BT
