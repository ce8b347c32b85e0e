"""Layers that models share, written to train fast on a CPU.

B trials, T bins, C features, P patches or steps, N rows (all trials' patches), D hidden units, I
inputs, L layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import nn

from cortext.models.recurrence import recurrence, with_padding, without_padding

Function = TypeVar("Function", bound=Callable[..., Any])

SUBSTITUTES: dict[str, dict[Callable[..., Any], Callable[..., Any]]] = {}
"""What computes in place of a function: by device type, then by the function.

A backend whose tensors have a device type of their own fills it in when it is imported:
`cortext.tpu.layers` does for torchax, which runs torch modules on JAX and calls its type `jax`.
"""


def substitute(function: Function, x: torch.Tensor) -> Function | None:
    """Return what a backend has registered in place of `function` for tensors like `x`."""
    found = SUBSTITUTES.get(x.device.type, {})
    return cast("Function | None", found.get(function))


def day_affine(
    x_BTC: torch.Tensor, day_B: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Each trial times the [C, C] matrix of its day in `weight`, plus its day's [C] of `bias`.

    Where each day's trials are equally many and follow each other, as in training, it is one
    product for each day, and for a single trial one without a copy of its matrix. That takes a look
    at `day_B`, for which a GPU would have to be waited for, and which a graph that is to serve
    every day must not take.
    """
    if own := substitute(day_affine, x_BTC):
        return own(x_BTC, day_B, weight, bias)
    n_trials, _, n_features = x_BTC.shape
    if day_B.device.type == "cpu" and n_trials == 1 and not torch.compiler.is_compiling():
        day = int(day_B[0])
        return torch.addmm(bias[day], x_BTC[0], weight[day])[None]
    if day_B.device.type == "cpu" and n_trials > 1:
        days, counts = torch.unique_consecutive(day_B, return_counts=True)
        if len(days) < n_trials and bool((counts == counts[0]).all()):
            x_days = x_BTC.reshape(len(days), -1, n_features)
            return torch.baddbmm(bias[days].unsqueeze(1), x_days, weight[days]).view(
                n_trials, -1, n_features
            )
    return torch.baddbmm(bias[day_B].unsqueeze(1), x_BTC, weight[day_B])


def patches(x_BTC: torch.Tensor, size: int, stride: int) -> torch.Tensor:
    """[B, P, size * C]: `size` bins side by side, every `stride` bins.

    Within a patch time runs slowest.

    What is left after the last whole patch is passed over.
    """
    if own := substitute(patches, x_BTC):
        return own(x_BTC, size, stride)
    windows: torch.Tensor = _Patches.apply(x_BTC, size, stride)  # type: ignore[no-untyped-call]
    return windows


class _Patches(torch.autograd.Function):
    """Overlapping windows as a view.

    Their gradients are added block by block, which `unfold` does bin by bin.
    """

    @staticmethod
    def forward(ctx: Any, x_BTC: torch.Tensor, size: int, stride: int) -> torch.Tensor:
        ctx.n_bins, ctx.size, ctx.stride = x_BTC.shape[1], size, stride
        return x_BTC.unfold(1, size, stride).transpose(2, 3).flatten(2)

    @staticmethod
    def backward(ctx: Any, d_patches: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        n_trials, n_patches, width = d_patches.shape
        n_features = width // ctx.size
        blocks_per_patch = -(-ctx.size // ctx.stride)
        # A patch is `blocks_per_patch` blocks of `stride` bins, the last of them perhaps not whole.
        n_blocks = max(n_patches + blocks_per_patch - 1, -(-ctx.n_bins // ctx.stride))
        d_blocks = d_patches.new_zeros(n_trials, n_blocks, ctx.stride * n_features)
        for j in range(blocks_per_patch):
            first = j * ctx.stride * n_features
            part = d_patches[..., first : min(first + ctx.stride * n_features, width)]
            d_blocks[:, j : j + n_patches, : part.shape[2]] += part
        return d_blocks.view(n_trials, -1, n_features)[:, : ctx.n_bins], None, None


def dropout(x: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """Dropout with probability `p` (to 1/65536) while `training`.

    Zeros, and the rest scaled by 1 / (1 - p).

    On a CPU four numbers share a 64-bit draw: drawing is serial, and with one draw per number it
    takes longer than the matrix product that it feeds.
    """
    if own := substitute(dropout, x):
        return own(x, p, training)
    if x.device.type != "cpu" or not training or p == 0:
        return F.dropout(x, p, training)
    below = round(p * 65536)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    keep = draws.view(torch.int16)[: x.numel()].view(x.shape) >= below - 32768
    return x * keep.to(x.dtype).mul_(65536 / (65536 - below))


def gru(
    module: nn.GRU,
    x_BPI: torch.Tensor,
    state_LBD: torch.Tensor,
    n_patches_B: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`module(x_BPI, state_LBD)` of a one-directional, batch-first `nn.GRU`.

    Hidden [B, P, D], last state [L, B, D].

    The module itself (cuDNN on a GPU), except where gradients are wanted on a CPU, see
    `recurrence.py`. That is in float32 and bfloat16; a float64 module is run as it is.

    out of the computation, and its hidden states be zeros; a trial's last state then is that of its
    own last patch.

    Args:
        n_patches_B: int64 [B], from where on a trial is padding, which has no gradient; None:
            nowhere. Padding may be left.
    """
    if own := substitute(gru, x_BPI):
        return own(module, x_BPI, state_LBD, n_patches_B)
    if (
        x_BPI.device.type != "cpu"
        or not torch.is_grad_enabled()
        or state_LBD.dtype == torch.float64
    ):
        hidden_BPD, state_LBD = module(x_BPI, state_LBD)
        return hidden_BPD, state_LBD
    n_trials, n_patches, _ = x_BPI.shape
    lengths = (
        [n_patches] * n_trials if n_patches_B is None else n_patches_B.clamp(1, n_patches).tolist()
    )
    x_NI, last = without_padding(x_BPI, lengths), []
    ends_B = torch.tensor(lengths).cumsum(0)
    for layer in range(module.num_layers):
        w_ih, w_hh, b_ih, b_hh = (
            getattr(module, f"{name}_l{layer}")
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        if layer:
            x_NI = dropout(x_NI, module.dropout, module.training)
        x_NI = recurrence(F.linear(x_NI, w_ih, b_ih), lengths, state_LBD[layer], w_hh, b_hh)
        last.append(x_NI[ends_B - 1])
    return with_padding(x_NI, lengths, n_patches), torch.stack(last)


def initialise(module: nn.GRU, out: nn.Linear | None, h0: nn.Parameter) -> None:
    """The release's initial weights of a GRU, of the map that reads it (if there is one), and of
    its first state.
    """
    # nn.GRU stacks its three gates in one matrix [3D, .]; the release initialises the stack, not
    # each gate.
    for name, parameter in module.named_parameters():
        if "weight_hh" in name:
            nn.init.orthogonal_(parameter)
        elif "weight_ih" in name:
            nn.init.xavier_uniform_(parameter)
    if out is not None:
        nn.init.xavier_uniform_(out.weight)
    nn.init.xavier_uniform_(h0)


def reverse_gradient(x: torch.Tensor, strength: float | torch.Tensor) -> torch.Tensor:
    """`x` itself, bit for bit.

    Its gradient is `-strength` times the one that comes in (Ganin et al., JMLR 2016).

    Plain arithmetic, because not every compiler that differentiates torch code heeds an
    `autograd.Function`. The usual `(1 + strength) * x.detach() - strength * x` has the same
    gradient but rounds `x`, noticeably so in bfloat16. Where a new number means compiling again
    (XLA), give a tensor.
    """
    return x.detach() - strength * (x - x.detach())
