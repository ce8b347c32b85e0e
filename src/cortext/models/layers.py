"""Layers that models share, written to train fast on a CPU.

A backend may compute them in another way; see `SUBSTITUTES`.

B trials, T bins, C features, P patches or steps, N rows (all trials' patches), D hidden units, I
inputs, L layers, H heads, E units of a head, K keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import nn

from cortext.cuda import kernels
from cortext.models.recurrence import (
    recurrence,
    refuse_second_derivatives,
    with_padding,
    without_padding,
)

Function = TypeVar("Function", bound=Callable[..., Any])

SUBSTITUTES: dict[str, dict[Callable[..., Any], Callable[..., Any]]] = {}
"""Functions that a backend replaces, by device type: our function, then the backend's.

The backend fills the table in when it is imported. `cortext_tpu.layers` does so for torchax, which
runs torch modules on JAX and calls its device type `jax`.
"""


def substitute(function: Function, x: torch.Tensor) -> Function | None:
    """Return the function that a backend has registered in place of `function` for `x`'s device."""
    functions = SUBSTITUTES.get(x.device.type, {})
    return cast("Function | None", functions.get(function))


def day_affine(
    x_BTC: torch.Tensor, day_B: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Multiply each trial by the matrix of its day, and add the bias of its day.

    Args:
        x_BTC: Float [B, T, C].
        day_B: int64 [B], the day of each trial.
        weight: Float [days, C, C].
        bias: Float [days, C].

    Returns:
        Float [B, T, C].
    """
    if own := substitute(day_affine, x_BTC):
        return own(x_BTC, day_B, weight, bias)
    n_trials, _, n_features = x_BTC.shape
    # The last line gathers a [C, C] matrix for each trial, 1 MB at 512 features. If the values of
    # `day_B` can be read, there are cheaper ways. On a GPU reading them would wait for all work in
    # flight, and a compiled graph would serve only the days that it was traced with.
    if day_B.device.type == "cpu" and n_trials == 1 and not torch.compiler.is_compiling():
        day = int(day_B[0])
        return torch.addmm(bias[day], x_BTC[0], weight[day])[None]
    if day_B.device.type == "cpu" and n_trials > 1:
        # A training batch has the same number of trials of each day, one day after the other.
        days, counts = torch.unique_consecutive(day_B, return_counts=True)
        if len(days) < n_trials and bool((counts == counts[0]).all()):
            x_days = x_BTC.reshape(len(days), -1, n_features)
            return torch.baddbmm(bias[days].unsqueeze(1), x_days, weight[days]).view(
                n_trials, -1, n_features
            )
    return torch.baddbmm(bias[day_B].unsqueeze(1), x_BTC, weight[day_B])


def patches(x_BTC: torch.Tensor, size: int, stride: int) -> torch.Tensor:
    """Lay `size` bins side by side, every `stride` bins.

    Args:
        x_BTC: Float [B, T, C].
        size: Bins of a patch.
        stride: Bins from one patch to the next.

    Returns:
        Float [B, P, size * C], all features of the first bin first. Bins after the last whole patch
        are left out.
    """
    if own := substitute(patches, x_BTC):
        return own(x_BTC, size, stride)
    windows: torch.Tensor = _Patches.apply(x_BTC, size, stride)  # type: ignore[no-untyped-call]
    return windows


class _Patches(torch.autograd.Function):
    """Overlapping windows, whose gradients are added up in blocks of `stride` bins.

    torch's own gradient of `unfold` adds them bin by bin.
    """

    @staticmethod
    def forward(ctx: Any, x_BTC: torch.Tensor, size: int, stride: int) -> torch.Tensor:
        ctx.n_bins = x_BTC.shape[1]
        ctx.size = size
        ctx.stride = stride
        return x_BTC.unfold(1, size, stride).transpose(2, 3).flatten(2)

    @staticmethod
    def backward(ctx: Any, d_patches: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        n_trials, n_patches, width = d_patches.shape
        n_features = width // ctx.size
        blocks_per_patch = -(-ctx.size // ctx.stride)
        # A patch is `blocks_per_patch` blocks of `stride` bins, the last one perhaps cut short:
        # 14 bins with stride 4 are blocks of 4, 4, 4 and 2.
        n_blocks = max(n_patches + blocks_per_patch - 1, -(-ctx.n_bins // ctx.stride))
        d_blocks = d_patches.new_zeros(n_trials, n_blocks, ctx.stride * n_features)
        for j in range(blocks_per_patch):
            first = j * ctx.stride * n_features
            part = d_patches[..., first : min(first + ctx.stride * n_features, width)]
            d_blocks[:, j : j + n_patches, : part.shape[2]] += part
        return d_blocks.view(n_trials, -1, n_features)[:, : ctx.n_bins], None, None


def dropout(x: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """Zero values at random, and scale the rest by 1 / (1 - p).

    Args:
        x: Any float tensor.
        p: Probability of zero; a CPU rounds it to a multiple of 1/65536.
        training: False returns `x`.

    Returns:
        Float of the shape of `x`.
    """
    if own := substitute(dropout, x):
        return own(x, p, training)
    if x.device.type != "cpu" or not training or p == 0:
        return F.dropout(x, p, training)
    mask = _dropout_mask(x, p)
    dropped: torch.Tensor = _Dropout.apply(x, mask, _dropout_scale(x.dtype, p))  # type: ignore[no-untyped-call]
    return dropped


def _dropout_mask(x: torch.Tensor, p: float) -> torch.Tensor:
    """Draw which values of `x` are kept: int16 of its shape, all bits set for kept ones."""
    # Four values share a 64-bit draw, 16 bits each. torch draws one number after the other; one
    # draw per value would take longer than the matrix product that follows.
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    draws = draws.view(torch.int16)[: x.numel()].view(x.shape)
    # A comparison that writes int16 takes a tenth of the time of one that writes bool.
    return torch.ge(draws, round(p * 65536) - 32768, out=torch.empty_like(draws)).neg_()


def _dropout_scale(dtype: torch.dtype, p: float) -> float:
    """Return 1 / (1 - p) for the multiple of 1/65536 that `_dropout_mask` takes for p."""
    return float(torch.tensor(65536 / (65536 - round(p * 65536)), dtype=dtype))


class _Dropout(torch.autograd.Function):
    """Zero the values whose mask is 0 and scale the others; its gradient is the same map."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return _masked(x, mask, scale)

    @staticmethod
    def backward(ctx: Any, d: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        (mask,) = ctx.saved_tensors
        return _Dropout.apply(d, mask, ctx.scale), None, None  # type: ignore[no-untyped-call]


def _masked(x: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """Return `x` times `scale` where all bits of `mask` (int16) are set, 0 elsewhere."""
    if x.dtype in (torch.bfloat16, torch.float16):  # of the mask's width: the bits themselves
        return (x.view(torch.int16) & mask).view(x.dtype).mul_(scale)
    return mask.to(x.dtype).mul_(-scale).mul_(x)


def by_distance(value_N: torch.Tensor, distance_PK: torch.Tensor) -> torch.Tensor:
    """Look up a number for each distance from a key to a frame.

    Args:
        value_N: Float [N], N odd: the numbers of the distances from -(N - 1) / 2 to (N - 1) / 2.
            Larger distances take the number at their end.
        distance_PK: int64 [P, K]. It grows by 1 from frame to frame, falls by 1 from key to key,
            and is 0 from the last key to the last frame.

    Returns:
        Float [P, K].
    """
    if own := substitute(by_distance, value_N):
        return own(value_N, distance_PK)
    most = len(value_N) // 2
    return value_N[distance_PK.clamp(-most, most) + most]


def distance_gradient(d_distance: torch.Tensor, first: int, n_values: int) -> torch.Tensor:
    """Return the gradient of the numbers that `by_distance` looks up.

    Args:
        d_distance: Float [distances], the gradients of all pairs of a frame and a key, added up for
            each distance.
        first: The first of these distances; each is 1 more than the one before.
        n_values: Numbers, N.

    Returns:
        Float [N].
    """
    most, n_distances = n_values // 2, len(d_distance)
    low, high = max(first, -most), min(first + n_distances - 1, most)
    d_value_N = d_distance.new_zeros(n_values)
    d_value_N[low + most : high + most + 1] = d_distance[low - first : high - first + 1]
    # Larger distances take the number at their end.
    d_value_N[:1] += d_distance[: max(-most - first, 0)].sum()
    d_value_N[-1:] += d_distance[max(most + 1 - first, 0) :].sum()
    return d_value_N


def attention(
    q_BHPE: torch.Tensor,
    k_BHKE: torch.Tensor,
    v_BHKE: torch.Tensor,
    bias_BHPK: torch.Tensor,
    p: float = 0.0,
) -> torch.Tensor:
    """Return the mean of the values, weighed by the softmax of q k / sqrt(E) + bias.

    Args:
        q_BHPE: Float [B, H, P, E], what each frame looks for.
        k_BHKE: Float [B, H, K, E], what it compares.
        v_BHKE: Float [B, H, K, E], what it takes.
        bias_BHPK: Float [B or 1, H or 1, P, K]; -inf for a key that a frame does not see. Each
            frame sees one at least.
        p: Dropout of the weights.

    Returns:
        Float [B, H, P, E].
    """
    if own := substitute(attention, q_BHPE):
        return own(q_BHPE, k_BHKE, v_BHKE, bias_BHPK, p)
    bias_BHPK = bias_BHPK.to(q_BHPE.dtype)
    if q_BHPE.device.type == "cpu" and torch.is_grad_enabled():
        context: torch.Tensor = _Attention.apply(q_BHPE, k_BHKE, v_BHKE, bias_BHPK, p)  # type: ignore[no-untyped-call]
        return context
    if q_BHPE.device.type == "cuda":
        # CUDA's kernel reads rows that begin every 8 values; of other rows it would first make
        # longer copies, one for each trial and head.
        n_keys = bias_BHPK.shape[-1]
        bias_BHPK = F.pad(bias_BHPK, (0, -n_keys % 8))[..., :n_keys]
    # One kernel for all of it, on CUDA with the gradient of the bias, too.
    bias_BHPK = bias_BHPK.expand(len(q_BHPE), q_BHPE.shape[1], -1, -1)
    return F.scaled_dot_product_attention(q_BHPE, k_BHKE, v_BHKE, bias_BHPK, p)


class _Attention(torch.autograd.Function):
    """Attention in training on a CPU.

    torch's own kernel for CPUs has no dropout and no gradient of the bias; with either, torch
    takes one operation after the other and draws a random number for every weight. Here, as well,
    the softmax is float32, while products are of the inputs' type.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q_BHPE: torch.Tensor,
        k_BHKE: torch.Tensor,
        v_BHKE: torch.Tensor,
        bias_BHPK: torch.Tensor,
        p: float,
    ) -> torch.Tensor:
        dtype, scale = q_BHPE.dtype, q_BHPE.shape[-1] ** -0.5
        q_BHPE, k_BHKE, v_BHKE = (x.contiguous() for x in (q_BHPE, k_BHKE, v_BHKE))
        scores_BHPK = torch.add(bias_BHPK, q_BHPE @ k_BHKE.transpose(2, 3), alpha=scale)
        weight_BHPK = kept_BHPK = scores_BHPK.softmax(3).to(dtype)
        mask = None
        if p:
            mask, ctx.dropout_scale = _dropout_mask(weight_BHPK, p), _dropout_scale(dtype, p)
            kept_BHPK = _masked(weight_BHPK, mask, ctx.dropout_scale)
        ctx.save_for_backward(q_BHPE, k_BHKE, v_BHKE, weight_BHPK, mask)
        ctx.scale, ctx.bias = scale, (bias_BHPK.shape, bias_BHPK.dtype)
        return kept_BHPK @ v_BHKE

    @staticmethod
    def backward(ctx: Any, d_found: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        refuse_second_derivatives("attention")
        q_BHPE, k_BHKE, v_BHKE, weight_BHPK, mask = ctx.saved_tensors
        kept_BHPK, d_weight = weight_BHPK, d_found @ v_BHKE.transpose(2, 3)
        if mask is not None:
            kept_BHPK = _masked(weight_BHPK, mask, ctx.dropout_scale)
            d_weight = _masked(d_weight, mask, ctx.dropout_scale)
        d_v = kept_BHPK.transpose(2, 3) @ d_found
        d_scores = torch._softmax_backward_data(d_weight, weight_BHPK, 3, d_weight.dtype)
        d_q = (d_scores @ k_BHKE).mul_(ctx.scale)
        d_k = (d_scores.transpose(2, 3) @ q_BHPE).mul_(ctx.scale)
        shape, dtype = ctx.bias
        shared = [axis for axis in (0, 1) if shape[axis] == 1]
        d_bias = (
            d_scores.sum(shared, keepdim=True, dtype=dtype) if ctx.needs_input_grad[3] else None
        )
        return d_q, d_k, d_v, d_bias, None


def gru(
    module: nn.GRU,
    x_BPI: torch.Tensor,
    state_LBD: torch.Tensor,
    n_patches_B: torch.Tensor | None = None,
    layers: range | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run a one-directional, batch-first `nn.GRU`, without the padding if that is faster.

    With gradients on a CPU, `recurrence.py` computes it, in float32 or bfloat16. In training in 16
    bits on a GPU, `cortext_cuda` does. In all other cases (and always in float64) the module runs
    itself, with cuDNN on a GPU.

    Args:
        module: The GRU.
        x_BPI: Float [B, P, I].
        state_LBD: Float [L, B, D], the first state of the layers that are run.
        n_patches_B: int64 [B], patches of each trial, the others being padding without a gradient;
            None if nothing is padded.
        layers: The layers to run, one after the other; None for all. Later ones take what earlier
            ones have given.

    Returns:
        Hidden units float [B, P, D], which may be zeros in the padding, and the last state float
        [L, B, D]. If padding was left out, it is the state after each trial's own last patch.
    """
    if own := substitute(gru, x_BPI):
        return own(module, x_BPI, state_LBD, n_patches_B, layers)
    if (
        x_BPI.device.type != "cpu"
        or not torch.is_grad_enabled()
        or state_LBD.dtype == torch.float64
    ):
        on_cuda = x_BPI.device.type == "cuda"
        if n_patches_B is not None and torch.is_grad_enabled() and on_cuda:
            found = kernels().gru(module, x_BPI, state_LBD, layers or range(module.num_layers))
            if found is not None:
                return found
        if layers is not None:
            return _some_layers(module, x_BPI, state_LBD, layers)
        hidden_BPD, state_LBD = module(x_BPI, state_LBD)
        return hidden_BPD, state_LBD
    n_trials, n_patches, _ = x_BPI.shape
    lengths = (
        [n_patches] * n_trials if n_patches_B is None else n_patches_B.clamp(1, n_patches).tolist()
    )
    x_NI = without_padding(x_BPI, lengths)
    last = []
    ends_B = torch.tensor(lengths).cumsum(0)
    for layer, state_BD in zip(layers or range(module.num_layers), state_LBD, strict=True):
        w_ih, w_hh, b_ih, b_hh = layer_weights(module, layer)
        if layer:  # between layers, as nn.GRU does
            x_NI = dropout(x_NI, module.dropout, module.training)
        x_NI = recurrence(F.linear(x_NI, w_ih, b_ih), lengths, state_BD, w_hh, b_hh)
        last.append(x_NI[ends_B - 1])
    return with_padding(x_NI, lengths, n_patches), torch.stack(last)


def _some_layers(
    module: nn.GRU, x_BPI: torch.Tensor, state_LBD: torch.Tensor, layers: range
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run some layers of a GRU by torch's own function; see `gru`."""
    if layers.start:
        x_BPI = dropout(x_BPI, module.dropout, module.training)
    weights = [weight for layer in layers for weight in layer_weights(module, layer)]
    between = module.dropout if len(layers) > 1 else 0.0
    found: tuple[torch.Tensor, torch.Tensor] = torch.gru(
        x_BPI, state_LBD, weights, True, len(layers), between, module.training, False, True
    )
    return found


def layer_weights(module: nn.GRU, layer: int) -> list[torch.Tensor]:
    """Return input weights, recurrent weights, and the biases of both."""
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [getattr(module, f"{name}_l{layer}") for name in names]


def initialise(module: nn.GRU, out: nn.Linear | None, h0: nn.Parameter) -> None:
    """Initialise weights in place, from the release's distributions.

    Args:
        module: A GRU.
        out: The linear map of its hidden units; None for none.
        h0: The learnt first state, [1, 1, D].
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
    """Return `x` bit for bit; its gradient is multiplied by `-strength`.

    This is the gradient reversal of Ganin et al. (JMLR 2016).

    Args:
        x: Any float tensor.
        strength: A number; on XLA a tensor, because each new number would compile again.
    """
    # Plain arithmetic, because torchax ignores an `autograd.Function`'s own backward. The usual
    # (1 + strength) * x.detach() - strength * x has the same gradient, but rounds x.
    return x.detach() - strength * (x - x.detach())
