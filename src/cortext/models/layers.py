"""Layers that models share, written to train fast on a CPU.

B trials, T bins, C features, P patches or steps, D hidden units, I inputs, L layers, G the three gates side by side.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


def patches(x_BTC: torch.Tensor, size: int, stride: int) -> torch.Tensor:
    """[B, P, size * C]: `size` bins side by side, every `stride` bins; within a patch time runs slowest.

    What is left after the last whole patch is passed over.
    """
    windows: torch.Tensor = _Patches.apply(x_BTC, size, stride)  # type: ignore[no-untyped-call]
    return windows


class _Patches(torch.autograd.Function):
    """Overlapping windows as a view; their gradients are added block by block, which `unfold` does bin by bin."""

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
    """Dropout with probability `p` (to 1/65536) while `training`: zeros, and the rest scaled by 1 / (1 - p).

    On a CPU four numbers share a 64-bit draw: drawing is serial, and with one draw per number it takes longer than the
    matrix product that it feeds.
    """
    if x.device.type != "cpu" or not training or p == 0:
        return F.dropout(x, p, training)
    below = round(p * 65536)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    keep = draws.view(torch.int16)[: x.numel()].view(x.shape) >= below - 32768
    return x * keep.to(x.dtype).mul_(65536 / (65536 - below))


def gru(module: nn.GRU, x_BPI: torch.Tensor, state_LBD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`module(x_BPI, state_LBD)` of a one-directional, batch-first `nn.GRU`: hidden [B, P, D], last state [L, B, D].

    The module itself (cuDNN on a GPU), except where gradients are wanted on a CPU: autograd follows `nn.GRU` through a
    dozen small operations per step and adds up the gradient of the recurrent weights step by step. The pass here keeps
    the gates, needs one matrix product per step backwards, and does for all steps at once what is the same for each.
    It is in float32; a float64 module is run as it is.
    """
    if x_BPI.device.type != "cpu" or not torch.is_grad_enabled() or state_LBD.dtype == torch.float64:
        hidden_BPD, state_LBD = module(x_BPI, state_LBD)
        return hidden_BPD, state_LBD
    last = []
    for layer in range(module.num_layers):
        w_ih, w_hh, b_ih, b_hh = (
            getattr(module, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        if layer:
            x_BPI = dropout(x_BPI, module.dropout, module.training)
        input_BPG = F.linear(x_BPI, w_ih, b_ih).float()
        x_BPI = _Scan.apply(input_BPG, state_LBD[layer], w_hh, b_hh)  # type: ignore[no-untyped-call]
        last.append(x_BPI[:, -1])
    return x_BPI, torch.stack(last)


def initialise(module: nn.GRU, out: nn.Linear | None, h0: nn.Parameter) -> None:
    """The release's initial weights of a GRU, of the map that reads it (if there is one), and of its first state."""
    # nn.GRU stacks its three gates in one matrix [3D, .]; the release initialises the stack, not each gate.
    for name, parameter in module.named_parameters():
        if "weight_hh" in name:
            nn.init.orthogonal_(parameter)
        elif "weight_ih" in name:
            nn.init.xavier_uniform_(parameter)
    if out is not None:
        nn.init.xavier_uniform_(out.weight)
    nn.init.xavier_uniform_(h0)


def reverse_gradient(x: torch.Tensor, strength: float | torch.Tensor) -> torch.Tensor:
    """`x` itself, bit for bit; its gradient is `-strength` times the one that comes in (Ganin et al., JMLR 2016).

    Plain arithmetic, because not every compiler that differentiates torch code heeds an `autograd.Function`. The usual
    `(1 + strength) * x.detach() - strength * x` has the same gradient but rounds `x`, noticeably so in bfloat16. Where
    a new number means compiling again (XLA), give a tensor.
    """
    return x.detach() - strength * (x - x.detach())


class _Scan(torch.autograd.Function):
    """The recurrence of one layer: r, z = sigmoid(.), n = tanh(input_n + r * recurrent_n), h = (1 - z) n + z h_before.

    States and gates are float32; under autocast the products with the recurrent weights are bfloat16.
    """

    @staticmethod
    def forward(
        ctx: Any, input_BPG: torch.Tensor, h0_BD: torch.Tensor, w_hh: torch.Tensor, b_hh: torch.Tensor
    ) -> torch.Tensor:
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
        (n_trials, n_steps, _), n_units = input_BPG.shape, h0_BD.shape[1]
        h = input_BPG.new_empty(n_steps + 1, n_trials, n_units)
        gates = input_BPG.new_empty(n_steps, n_trials, 3 * n_units)
        recurrent = torch.empty_like(gates, dtype=dtype)
        h[0] = h0_BD
        weight, bias = w_hh.t().to(dtype), b_hh.to(dtype)
        in_rz, in_n = (part.unbind(1) for part in torch.split(input_BPG, [2 * n_units, n_units], -1))
        rec_rz, rec_n = (part.unbind(0) for part in torch.split(recurrent, [2 * n_units, n_units], -1))
        rz, n = (part.unbind(0) for part in torch.split(gates, [2 * n_units, n_units], -1))
        r, z = (part.unbind(0) for part in torch.split(gates[..., : 2 * n_units], n_units, -1))
        steps, products = h.unbind(0), recurrent.unbind(0)
        with torch.autocast("cpu", enabled=False):
            for p in range(n_steps):
                torch.addmm(bias, steps[p].to(dtype), weight, out=products[p])
                torch.add(in_rz[p], rec_rz[p], out=rz[p]).sigmoid_()
                torch.addcmul(in_n[p], r[p], rec_n[p], out=n[p]).tanh_()
                torch.lerp(n[p], steps[p], z[p], out=steps[p + 1])
        ctx.save_for_backward(h, gates, recurrent, w_hh)
        return h[1:].transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, d_hidden_BPD: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        h, gates, recurrent, w_hh = ctx.saved_tensors
        n_steps, n_trials, n_units = h.shape[0] - 1, h.shape[1], h.shape[2]
        dtype = recurrent.dtype
        r, z, n = gates.split(n_units, -1)
        # d(gate before its nonlinearity) / d(h), for all steps; what is left for the loop is d(loss) / d(h).
        slope = gates.new_empty(n_steps, n_trials, 3, n_units)
        slope_n = torch.mul(1 - z, 1 - n * n, out=slope[:, :, 2])
        torch.mul(slope_n * recurrent[..., 2 * n_units :], r * (1 - r), out=slope[:, :, 0])
        torch.mul(h[:-1] - n, z * (1 - z), out=slope[:, :, 1])
        slope_recurrent = slope.clone()
        slope_recurrent[:, :, 2] *= r
        weight = w_hh.to(dtype)
        d_h = gates.new_empty(n_steps, n_trials, 1, n_units)
        d_recurrent = torch.empty_like(slope, dtype=dtype)
        d_products, d_flat = d_recurrent.unbind(0), d_recurrent.view(n_steps, n_trials, -1).unbind(0)
        slopes, d_steps, kept = slope_recurrent.unbind(0), d_h.unbind(0), z.unsqueeze(2).unbind(0)
        d_outside = d_hidden_BPD.unsqueeze(2).unbind(1)
        d_steps[-1].copy_(d_outside[-1])
        for p in range(n_steps - 1, -1, -1):
            torch.mul(d_steps[p], slopes[p], out=d_products[p])
            d_before = torch.addcmul((d_flat[p] @ weight).unsqueeze(1), d_steps[p], kept[p])
            if p:
                torch.add(d_before, d_outside[p - 1], out=d_steps[p - 1])
        d_all = d_recurrent.view(n_steps * n_trials, -1)
        d_weight = d_all.t() @ h[:-1].reshape(n_steps * n_trials, n_units).to(dtype)
        d_input = slope.mul_(d_h).view(n_steps, n_trials, -1).transpose(0, 1)
        return d_input, d_before.squeeze(1), d_weight.float(), d_all.sum(0, dtype=torch.float32)
