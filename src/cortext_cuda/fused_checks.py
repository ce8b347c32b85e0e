"""Comparisons of the fused kernels with the plain formulas, run by `proofs` and by the tests.

Each returns None, or a line that says what differs. Dropout is compared mask by mask.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from cortext.models.transformer import Transformer, TransformerConfig
from cortext_cuda import fused_blocks as fused
from cortext_cuda.networks import run_packed
from cortext_cuda.packing import pack

P = 0.35
"""Dropout in these checks."""
DTYPE = torch.bfloat16
BOUND, BLOCKS_BOUND = 0.02, 0.05
"""Largest differences of a kernel and of whole blocks in 16 bits, as shares of the norm."""
LENGTHS = 150, 64, 1
"""Frames of the trials."""


def kept(index: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    """Restate the hash of `block_kernels` in 64 bits: True where dropout keeps a value."""
    first, second = (seed % 2**32 for seed in seeds.tolist())
    x = (index * 0x9E3779B1 + first) % 2**32
    x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32 ^ second
    x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
    return torch.ge((x ^ (x >> 16)) >> 8, round(P * 2**24))


def _dropped(x: torch.Tensor, seeds: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x * kept(index, seeds) / (1 - P)


def _places(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(x.numel(), device=x.device).view_as(x)


def _seeds(device: torch.device) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, (2,), device=device)


def _differs(
    what: str, found: Iterable[torch.Tensor], expected: Iterable[torch.Tensor], bound: float = BOUND
) -> str | None:
    """Return the fault of the first wrong tensor; None if all agree."""
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        one, other = one.detach().double(), other.detach().double()
        error = float((one - other).norm() / other.norm().clamp(min=1e-6))
        if not error <= bound:  # NaN, too
            return f"{what}, tensor {number}: differs by {error:.3g} of its norm"
    return None


def check_attention(device: torch.device, n_heads: int, n_units: int) -> str | None:
    """Compare attention of packed rows, and its gradients."""
    for chunk, context, most in ((1, 1000, 199), (1, 20, 9), (4, 30, 30), (1000, 5, 50)):
        torch.manual_seed(chunk)
        heads, n_most = fused.Heads(n_heads, n_units, chunk), max(LENGTHS)
        rows, n_own = pack(torch.tensor(LENGTHS), n_most, device), sum(LENGTHS)
        shape = len(rows.place_N), 3 * n_heads * n_units
        qkv_NI = torch.randn(shape, device=device).to(DTYPE).requires_grad_()
        value_N = torch.randn(2 * most + 1, device=device, requires_grad=True)
        d_NI = torch.randn(n_own, n_heads * n_units, device=device).to(DTYPE)
        seeds, bound = _seeds(device), torch.tensor(context, device=device)
        inputs = qkv_NI, value_N
        found_NI = fused.attend(qkv_NI, value_N, bound, rows, heads, seeds, P)
        found = found_NI[:n_own], *torch.autograd.grad(found_NI[:n_own], inputs, d_NI)
        plain_NI = _plain_attention(qkv_NI, value_N, context, heads, seeds)
        expected = plain_NI, *torch.autograd.grad(plain_NI, inputs, d_NI.double())
        if wrong := _differs(f"attention in chunks of {chunk}", found, expected):
            return wrong
        if bool(found_NI[n_own:].any()):
            return "attention: rows of no trial are not zero"
    return None


def _plain_attention(
    qkv_NI: torch.Tensor,
    value_N: torch.Tensor,
    context: int,
    heads: fused.Heads,
    seeds: torch.Tensor,
) -> torch.Tensor:
    """Return the attention of packed rows by the formula, trial by trial, in float64."""
    found, start, n_most, device = [], 0, max(LENGTHS), qkv_NI.device
    most, chunk = len(value_N) // 2, min(heads.chunk, n_most)
    for trial, length in enumerate(LENGTHS):
        shape = length, 3, heads.n_heads, heads.n_units
        q, k, v = qkv_NI[start : start + length].double().view(shape).permute(1, 2, 0, 3)
        i = torch.arange(length, device=device)
        begin = (i - i % chunk)[:, None]
        seen = (i < begin + chunk) & (i >= begin - context)
        bias = value_N.double()[(i[:, None] - i).clamp(-most, most) + most]
        scores = q @ k.transpose(1, 2) * heads.n_units**-0.5 + bias
        pair = trial * heads.n_heads + torch.arange(heads.n_heads, device=device)
        index = (pair[:, None, None] * n_most + i[:, None]) * n_most + i
        weight = _dropped(scores.masked_fill(~seen, -torch.inf).softmax(-1), seeds, index)
        found.append((weight @ v).transpose(0, 1).flatten(1))
        start += length
    return torch.cat(found)


def check_sum_and_norm(device: torch.device, n_units: int) -> str | None:
    """Compare x + dropout(branch + shift) and its LayerNorm, and their gradients."""
    torch.manual_seed(0)
    norm = nn.LayerNorm(n_units, device=device)
    nn.init.normal_(norm.weight)
    x = torch.randn(333, n_units, device=device, requires_grad=True)
    branch = torch.randn_like(x).to(DTYPE).requires_grad_()
    shift = torch.randn(n_units, device=device, requires_grad=True)
    inputs = x, branch, shift, norm.weight, norm.bias
    d_added, d_normed = torch.randn_like(x), torch.randn_like(x).to(DTYPE)
    seeds = _seeds(device)
    found = fused.add_norm(x, branch, shift, norm, seeds, P, DTYPE)
    gradients = torch.autograd.grad(found, inputs, (d_added, d_normed))
    added = x.double() + _dropped(branch.double() + shift.double(), seeds, _places(x))
    normed = F.layer_norm(added, (n_units,), norm.weight.double(), norm.bias.double(), norm.eps)
    d_expected = d_added.double(), d_normed.double()
    expected = torch.autograd.grad((added, normed), inputs, d_expected)
    wrong = _differs("sum", found[:1], [added], 1e-5)
    return wrong or _differs("norm", (found[1], *gradients), (normed, *expected))


def check_norm_of_rows(device: torch.device, width: int = 2048) -> str | None:
    """Compare the LayerNorm of the rows of a padded batch, and its gradients."""
    torch.manual_seed(0)
    norm = nn.LayerNorm(width, device=device)
    x_BPI = torch.randn(len(LENGTHS), max(LENGTHS), width, device=device)
    rows, weights = pack(torch.tensor(LENGTHS), max(LENGTHS), device), (norm.weight, norm.bias)
    found_NI = fused.norm_rows(x_BPI, rows, norm, DTYPE)
    plain_NI = norm(rows.without_padding(x_BPI)).double()
    d_NI = torch.randn_like(found_NI)
    found = found_NI, *torch.autograd.grad(found_NI, weights, d_NI)
    expected = plain_NI, *torch.autograd.grad(plain_NI, weights, d_NI.double())
    return _differs("norm of rows", found, expected)


def check_gelu(device: torch.device, width: int) -> str | None:
    """Compare dropout(GELU(x + shift)) and its gradients."""
    torch.manual_seed(0)
    x = torch.randn(100, width, device=device).to(DTYPE).requires_grad_()
    shift = torch.randn(width, device=device, requires_grad=True)
    d, seeds = torch.randn_like(x), _seeds(device)
    value = fused.gelu(x, shift, seeds, P)
    plain = _dropped(F.gelu(x.double() + shift.double()), seeds, _places(x))
    found = value, *torch.autograd.grad(value, (x, shift), d)
    expected = plain, *torch.autograd.grad(plain, (x, shift), d.double())
    return _differs("GELU", found, expected)


def check_softsign(device: torch.device) -> str | None:
    """Compare dropout(softsign(x)) and its gradient."""
    torch.manual_seed(0)
    x = torch.randn(3, 50, 70, device=device).mul(3).to(DTYPE).requires_grad_()
    d, seeds = torch.randn_like(x), _seeds(device)
    value = fused.softsign(x, seeds, P)
    plain = _dropped(F.softsign(x.double()), seeds, _places(x))
    found = value, *torch.autograd.grad(value, x, d)
    return _differs("softsign", found, (plain, *torch.autograd.grad(plain, x, d.double())))


def check_blocks(device: torch.device, n_units: int, n_heads: int, head_units: int) -> str | None:
    """Compare all kernels of blocks of these sizes, and the blocks as a whole."""
    return (
        check_attention(device, n_heads, head_units)
        or check_sum_and_norm(device, n_units)
        or check_norm_of_rows(device)
        or check_gelu(device, 4 * n_units)
        or _check_whole(device, n_units, n_heads, head_units)
    )


def _check_whole(device: torch.device, n_units: int, n_heads: int, head_units: int) -> str | None:
    """Compare logits and all gradients of small Transformers with the plain blocks in float32."""
    sizes: dict[str, Any] = {
        "n_units": n_units,
        "n_heads": n_heads,
        "head_units": head_units,
        "n_layers": 2,
    }
    sizes |= {"dropout": 0.0, "context_frames": 5, "train_context_frames": [5, 5]}
    chunked = {"attention": "chunked", "chunk_frames": 3, "intermediate_layer": 1}
    for settings in ({}, chunked, {"attention": "bidirectional"}):
        config = TransformerConfig(**sizes, **settings)
        config.input_network.input_layer_dropout = 0.0
        torch.manual_seed(0)
        network = Transformer(config, n_features=8, n_days=2, n_classes=5).to(device).train()
        for block in network.blocks.layers:
            nn.init.normal_(block.distance_bias)  # type: ignore[arg-type]
        n_patches_B, day_B = torch.tensor(LENGTHS), torch.zeros(3, dtype=torch.int64, device=device)
        x_BTC = torch.randn(3, 4 * max(LENGTHS), 8, device=device)
        own_BP = torch.arange(max(LENGTHS), device=device) < n_patches_B.to(device)[:, None]
        d_BPV = torch.randn(3, max(LENGTHS), 5, device=device) * own_BP[..., None]
        weights = [weight for weight in network.parameters() if weight.requires_grad]
        with torch.autocast(device.type, DTYPE):
            hidden_BPD, _ = run_packed(network, x_BTC, day_B, n_patches_B)
            logits_BPV = network.out(hidden_BPD).float()
        found = logits_BPV * own_BP[..., None], *torch.autograd.grad(logits_BPV, weights, d_BPV)
        with torch.autocast(device.type, enabled=False):
            plain_BPV = network(x_BTC, day_B, n_patches_B=n_patches_B)[0]
        expected = plain_BPV * own_BP[..., None], *torch.autograd.grad(plain_BPV, weights, d_BPV)
        if wrong := _differs(f"{config.attention} blocks", found, expected, BLOCKS_BOUND):
            return wrong
    return None
