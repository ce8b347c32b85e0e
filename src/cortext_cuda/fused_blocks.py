"""Operations of a Transformer's blocks in training on CUDA, each one kernel forwards.

Rows of all trials are packed; see `block_kernels`.

B trials, N rows, P frames of the longest trial, D hidden units, I units of all heads, H heads,
E units of a head.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import nn
from torch.autograd.function import once_differentiable

from cortext.models.layers import distance_gradient
from cortext_cuda import block_kernels as kernels
from cortext_cuda.packing import PackedRows

BLOCK = 64
"""Frames, or keys, of a program of the attention."""
ROWS, COLUMNS = 16, 128
"""Rows and columns of a program of the other kernels; LayerNorms take whole rows."""
VALUES = 2048
"""Values of a program that reads neither rows nor columns."""
WARPS = 8
"""Warps of a program of a LayerNorm."""
MOST_WIDTH = 16_384
"""Columns of a row that a program of a LayerNorm holds."""
PARTS = 8
"""Blocks of rows that a program adds up for the gradients of a LayerNorm's weights."""
OPTIONS = {"attend": (4, 2), "queries": (4, 2), "keys": (4, 2)}
"""Warps and stages of the attention's kernels."""


class Heads(NamedTuple):
    """Sizes of the attention: heads, units of a head, and frames of a chunk."""

    n_heads: int
    n_units: int
    chunk: int


def _options(kernel: str) -> dict[str, int]:
    return dict(zip(("num_warps", "num_stages"), OPTIONS[kernel], strict=True))


def _threshold(p: float) -> tuple[int, float]:
    threshold = round(p * 2**24)
    return threshold, 2**24 / (2**24 - threshold)


class _Attend(torch.autograd.Function):
    """Attention with a bias by distance and dropout of its weights."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv_NI: torch.Tensor,
        value_N: torch.Tensor,
        context: torch.Tensor,
        rows: PackedRows,
        heads: Heads,
        seeds: torch.Tensor,
        p: float,
    ) -> torch.Tensor:
        n_rows, width = len(qkv_NI), heads.n_heads * heads.n_units
        pairs = len(rows.starts_B) * heads.n_heads
        found_NI = qkv_NI.new_zeros(n_rows, width)
        log_sums = qkv_NI.new_empty(pairs, rows.n_most, dtype=torch.float32)
        threshold, keep_scale = _threshold(p)
        ctx.grid = (triton.cdiv(rows.n_most, BLOCK), pairs)
        chunk = min(heads.chunk, rows.n_most)
        ctx.numbers = (
            rows.n_most, chunk, heads.n_units**-0.5, keep_scale, threshold, len(value_N) // 2,
            heads.n_heads, heads.n_units, BLOCK,
        )  # fmt: skip
        ctx.chunk = chunk
        given = (qkv_NI, value_N, context, rows.starts_B, rows.lengths_B, seeds)
        kernels.attend[ctx.grid](*given, found_NI, log_sums, *ctx.numbers, **_options("attend"))
        ctx.save_for_backward(*given, found_NI, log_sums)
        return found_NI

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_found: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        *given, found_NI, log_sums = ctx.saved_tensors
        qkv_NI, value_N = given[:2]
        d_found = d_found.contiguous()
        pairs, n_most = log_sums.shape
        n_distances = n_most + ctx.chunk - 1
        d_qkv, deltas = torch.zeros_like(qkv_NI), torch.empty_like(log_sums)
        d_scores = qkv_NI.new_zeros(pairs * n_most, n_distances)
        kernels.attend_d_queries[ctx.grid](
            *given, found_NI, log_sums, d_found, d_qkv, deltas, d_scores, *ctx.numbers,
            **_options("queries"),
        )  # fmt: skip
        kernels.attend_d_keys[ctx.grid](
            *given, log_sums, d_found, d_qkv, deltas, *ctx.numbers, **_options("keys")
        )
        by_distance = d_scores.sum(0, dtype=torch.float32)
        return d_qkv, distance_gradient(by_distance, 1 - ctx.chunk, len(value_N)), *(None,) * 5


class _AddNorm(torch.autograd.Function):
    """x + dropout(branch + shift), and its LayerNorm; without a branch the LayerNorm alone."""

    @staticmethod
    def forward(
        ctx: Any,
        x_ND: torch.Tensor,
        branch_ND: torch.Tensor | None,
        shift_D: torch.Tensor | None,
        weight_D: torch.Tensor,
        bias_D: torch.Tensor,
        epsilon: float,
        seeds: torch.Tensor,
        p: float,
        dtype: torch.dtype,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        threshold, keep_scale = _threshold(p)
        added_ND = x_ND if branch_ND is None else torch.empty_like(x_ND)
        normed_ND = torch.empty_like(x_ND, dtype=dtype)
        means, scales = _normalise(
            x_ND, None, branch_ND, shift_D, weight_D, bias_D, seeds, added_ND, normed_ND,
            keep_scale, epsilon, threshold,
        )  # fmt: skip
        ctx.dtype = None if branch_ND is None else branch_ND.dtype
        ctx.dropout = keep_scale, threshold
        ctx.save_for_backward(added_ND, weight_D, seeds, means, scales)
        ctx.set_materialize_grads(False)
        return added_ND, normed_ND

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_added: torch.Tensor | None, d_normed: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        value_ND, weight_D, seeds, means, scales = ctx.saved_tensors
        n_rows, n_units = value_ND.shape
        has_branch = ctx.dtype is not None
        wide, rows = _tile(n_units)
        n_programs = triton.cdiv(n_rows, rows)
        d_x = torch.empty_like(value_ND)
        d_branch = torch.empty_like(value_ND, dtype=ctx.dtype) if has_branch else None
        partial = value_ND.new_empty(2 + has_branch, n_programs, n_units)
        kernels.add_norm_d[(n_programs,)](
            value_ND, weight_D, seeds, means, scales, d_added, d_normed.contiguous(), d_x,
            d_branch, partial, n_rows, *ctx.dropout, has_branch, d_added is not None, n_units,
            wide, rows, num_warps=WARPS,
        )  # fmt: skip
        d_weight, d_bias, *d_shift = partial.sum(1)
        return d_x, d_branch, *(d_shift or [None]), d_weight, d_bias, *(None,) * 4


def _tile(width: int) -> tuple[int, int]:
    """Return columns and rows of a program that takes whole rows; long rows fill its registers."""
    wide = triton.next_power_of_2(width)
    return wide, max(1, ROWS * 512 // max(wide, 512))


def _normalise(
    x_ND: torch.Tensor,
    place_N: torch.Tensor | None,
    branch_ND: torch.Tensor | None,
    shift_D: torch.Tensor | None,
    weight_D: torch.Tensor,
    bias_D: torch.Tensor,
    seeds: torch.Tensor | None,
    added_ND: torch.Tensor | None,
    normed_ND: torch.Tensor,
    keep_scale: float,
    epsilon: float,
    threshold: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the kernel `add_norm`; return the mean and the reciprocal of the spread of each row."""
    n_rows, n_units = normed_ND.shape
    means, scales = (normed_ND.new_empty(n_rows, dtype=torch.float32) for _ in range(2))
    wide, rows = _tile(n_units)
    kernels.add_norm[(triton.cdiv(n_rows, rows),)](
        x_ND, place_N, branch_ND, shift_D, weight_D, bias_D, seeds, added_ND, normed_ND, means,
        scales, n_rows, keep_scale, epsilon, threshold, place_N is not None,
        branch_ND is not None, n_units, wide, rows, num_warps=WARPS,
    )  # fmt: skip
    return means, scales


class _NormRows(torch.autograd.Function):
    """The LayerNorm of rows of a padded batch that needs no gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        x_MI: torch.Tensor,
        place_N: torch.Tensor,
        weight_I: torch.Tensor,
        bias_I: torch.Tensor,
        epsilon: float,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        normed_NI = x_MI.new_empty(len(place_N), x_MI.shape[1], dtype=dtype)
        means, scales = _normalise(
            x_MI, place_N, None, None, weight_I, bias_I, None, None, normed_NI, 1.0, epsilon, 0
        )
        ctx.save_for_backward(x_MI, place_N, means, scales)
        return normed_NI

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_normed: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x_MI, place_N, means, scales = ctx.saved_tensors
        n_rows, width = d_normed.shape
        grid = triton.cdiv(n_rows, ROWS * PARTS), triton.cdiv(width, COLUMNS)
        partial = x_MI.new_empty(2, grid[0], width)
        kernels.norm_d_weights[grid](
            x_MI, place_N, means, scales, d_normed.contiguous(), partial, n_rows, width, ROWS,
            COLUMNS, PARTS,
        )  # fmt: skip
        return None, None, *partial.sum(1), None, None


class _Gelu(torch.autograd.Function):
    """dropout(GELU(x + shift))."""

    @staticmethod
    def forward(
        ctx: Any, x_NI: torch.Tensor, shift_I: torch.Tensor, seeds: torch.Tensor, p: float
    ) -> torch.Tensor:
        found_NI = torch.empty_like(x_NI)
        n_rows, width = x_NI.shape
        threshold, keep_scale = _threshold(p)
        ctx.grid = triton.cdiv(n_rows, ROWS), triton.cdiv(width, COLUMNS)
        ctx.rest = n_rows, width, keep_scale, threshold, ROWS, COLUMNS
        kernels.gelu[ctx.grid](x_NI, shift_I, seeds, found_NI, *ctx.rest)
        ctx.save_for_backward(x_NI, shift_I, seeds)
        return found_NI

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_found: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x_NI, shift_I, seeds = ctx.saved_tensors
        d_x = torch.empty_like(x_NI)
        partial = shift_I.new_empty(ctx.grid[0], len(shift_I))
        kernels.gelu_d[ctx.grid](
            x_NI, shift_I, seeds, d_found.contiguous(), d_x, partial, *ctx.rest
        )
        return d_x, partial.sum(0), None, None


class _Softsign(torch.autograd.Function):
    """dropout(softsign(x))."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seeds: torch.Tensor, p: float) -> torch.Tensor:
        x = x.contiguous()
        found = torch.empty_like(x)
        threshold, keep_scale = _threshold(p)
        ctx.grid = (triton.cdiv(x.numel(), VALUES),)
        ctx.rest = x.numel(), keep_scale, threshold, VALUES
        kernels.softsign[ctx.grid](x, seeds, found, *ctx.rest)
        ctx.save_for_backward(x, seeds)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_found: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, seeds = ctx.saved_tensors
        d_x = torch.empty_like(x)
        kernels.softsign_d[ctx.grid](x, seeds, d_found.contiguous(), d_x, *ctx.rest)
        return d_x, None, None


class _Rounded(torch.autograd.Function):
    """Weights in 16 bits; autocast would start a kernel for each, and for each gradient."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.dtypes = [weight.dtype for weight in weights]
        rounded = [torch.empty_like(weight, dtype=dtype) for weight in weights]
        torch._foreach_copy_(rounded, list(weights))
        return tuple(rounded)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        exact = [
            torch.empty_like(gradient, dtype=dtype)
            for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
        ]
        torch._foreach_copy_(exact, list(gradients))
        return None, *exact


def draw_seeds(device: torch.device, *shape: int) -> torch.Tensor:
    """Draw seeds of dropout, int64 [*shape, 2], from torch's generator: no host waits for them."""
    return torch.randint(-(2**31), 2**31, (*shape, 2), device=device)


def attend(
    qkv_NI: torch.Tensor,
    value_N: torch.Tensor,
    context: torch.Tensor,
    rows: PackedRows,
    heads: Heads,
    seeds: torch.Tensor,
    p: float,
) -> torch.Tensor:
    """Return what `layers.attention` does, for packed rows; rows of no trial get zeros.

    Args:
        qkv_NI: Float [N, 3 * H * E], queries, keys and values.
        value_N: Float32, the numbers of the distances; see `layers.by_distance`.
        context: int64 [], frames before a chunk that are seen.
        rows: The rows of each trial.
        heads: The heads.
        seeds: int64 [2], for dropout.
        p: Dropout of the weights.

    Returns:
        Float [N, H * E].
    """
    found: torch.Tensor = _Attend.apply(qkv_NI, value_N, context, rows, heads, seeds, p)  # type: ignore[no-untyped-call]
    return found


def add_norm(
    x_ND: torch.Tensor,
    branch_ND: torch.Tensor | None,
    shift_D: torch.Tensor | None,
    norm: nn.LayerNorm,
    seeds: torch.Tensor,
    p: float,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x + dropout(branch + shift), float32 [N, D], and its LayerNorm in `dtype`.

    Without a branch the sum is x itself.
    """
    found: tuple[torch.Tensor, torch.Tensor] = _AddNorm.apply(  # type: ignore[no-untyped-call]
        x_ND, branch_ND, shift_D, norm.weight, norm.bias, norm.eps, seeds, p, dtype
    )
    return found


def norm_rows(
    x_BPI: torch.Tensor, rows: PackedRows, norm: nn.LayerNorm, dtype: torch.dtype
) -> torch.Tensor:
    """Return the LayerNorm of the rows of a padded batch, [N, I] in `dtype`.

    The batch gets no gradient. Rows of no trial repeat its last patch.
    """
    x_MI = x_BPI.flatten(0, 1)
    place_N = rows.place_N.clamp(max=len(x_MI) - 1)
    found: torch.Tensor = _NormRows.apply(  # type: ignore[no-untyped-call]
        x_MI, place_N, norm.weight, norm.bias, norm.eps, dtype
    )
    return found


def gelu(x_NI: torch.Tensor, shift_I: torch.Tensor, seeds: torch.Tensor, p: float) -> torch.Tensor:
    """Return dropout(GELU(x + shift)), [N, I]."""
    found: torch.Tensor = _Gelu.apply(x_NI, shift_I, seeds, p)  # type: ignore[no-untyped-call]
    return found


def softsign(x: torch.Tensor, seeds: torch.Tensor, p: float) -> torch.Tensor:
    """Return dropout(softsign(x)), of which torch makes a dozen kernels with the gradient."""
    found: torch.Tensor = _Softsign.apply(x, seeds, p)  # type: ignore[no-untyped-call]
    return found


def run_blocks(
    blocks: Any, x_ND: torch.Tensor, rows: PackedRows
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Run the `Blocks` of a Transformer on packed rows, float32 [N, D].

    Return the last layer and the intermediate one.

    Both are normalised, as in `Blocks.forward`. The biases of the linear maps are added by the
    kernels that follow, which also compute their gradients.
    """
    config, device = blocks.config, x_ND.device
    p, dtype = config.dropout, torch.get_autocast_dtype(device.type)
    chunk = rows.n_most if config.attention == "bidirectional" else config.chunk_frames
    heads = Heads(config.n_heads, config.head_units, chunk)
    context = blocks.draw_context(device)
    draws = draw_seeds(device, config.n_layers, 4)
    layers: list[Any] = list(blocks.layers)
    maps = [(block.qkv, block.attended, block.widen, block.narrow) for block in layers]
    weights = iter(_Rounded.apply(dtype, *(each.weight for own in maps for each in own)))  # type: ignore[no-untyped-call]
    norms = [*(block.attention_norm for block in layers), blocks.norm]
    middle_ND = None
    x_ND, normed_ND = add_norm(x_ND, None, None, norms[0], draws[0, 0], 0.0, dtype)
    for layer, (block, norm, seeds) in enumerate(zip(layers, norms[1:], draws, strict=True), 1):
        qkv_NI = F.linear(normed_ND, next(weights))
        found_NI = attend(qkv_NI, block.distance_bias, context, rows, heads, seeds[0], p)
        branch_ND, shift_D = F.linear(found_NI, next(weights)), block.attended.bias
        x_ND, normed_ND = add_norm(
            x_ND, branch_ND, shift_D, block.feed_forward_norm, seeds[1], p, dtype
        )
        wide_NI = gelu(F.linear(normed_ND, next(weights)), block.widen.bias, seeds[2], p)
        branch_ND, shift_D = F.linear(wide_NI, next(weights)), block.narrow.bias
        x_ND, normed_ND = add_norm(x_ND, branch_ND, shift_D, norm, seeds[3], p, dtype)
        if layer == config.intermediate_layer:
            middle_ND = blocks.norm(x_ND)
    return normed_ND, middle_ND
