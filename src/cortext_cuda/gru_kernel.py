"""A GRU in training on CUDA, with one kernel for all frames of a layer.

A frame needs the frame before it, and each is little work. With a kernel for each frame, starting
it and reading the recurrent weights take most of the time. Here the weights stay in registers and
shared memory of the multiprocessors, which exchange the states through the L2 cache (Diamos et al.,
"Persistent RNNs", ICML 2016). All other products take all frames of a layer at once. As in cuDNN
under autocast, products take float16 and add in float32. A state is rounded where it is multiplied,
not where it is kept.

`gru_kernel.cu` is compiled when it is first used. `recurrence_paths.py` tells where it runs.

Shapes: B trials, P patches, N patches of all trials, I inputs, D hidden units, L layers, G = 3 D
gates.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from cortext.models.precision import full_float32
from cortext_cuda.nvrtc import Kernel, kernel

UNITS = (256, 512, 768)
"""Numbers of units whose recurrent weights fit on the chip."""
CAPABILITY = (9, 0)
"""Lowest compute capability on which it has run. The instructions are there from 8.0 on."""
FEWEST_GROUPS = 4
"""Fewest groups at once; with fewer, trials would have to take turns."""
DTYPE = torch.float16
TRIALS, BLOCKS, WARPS = 8, 16, 8
"""Of `gru_kernel.cu`: trials and blocks of a group, warps of a block."""
KEPT = {"forward": 32, "backward": 38}
"""Tiles of weights that a warp keeps in registers; with more, other values do not fit."""
MOST_DIFFERENCE = 0.01
"""Difference from torch's GRU, as a share of the norm; float16 makes 0.0005."""


class Passes(NamedTuple):
    """The kernels for one number of units on one device."""

    forward: Kernel
    backward: Kernel
    groups: int
    """Groups of blocks that run at once."""


@cache
def passes(n_units: int, device: torch.device) -> Passes:
    """Compile the kernels.

    Raises:
        KernelError: If NVRTC is not found, or does not know this device.
    """
    source = Path(__file__).with_suffix(".cu").read_text()
    found = {name: kernel(source, name, options(n_units), device) for name in KEPT}
    n_multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    groups = min(
        one.blocks_at_once(32 * WARPS, shared_bytes(n_units, name)) * n_multiprocessors // BLOCKS
        for name, one in found.items()
    )
    return Passes(found["forward"], found["backward"], groups)


def options(n_units: int) -> tuple[str, ...]:
    """Return the options with which the kernels are compiled."""
    kept = (f"-DKEPT_{name.upper()}={tiles}" for name, tiles in KEPT.items())
    return (f"-DUNITS={n_units}", *kept)


def shared_bytes(n_units: int, name: str) -> int:
    """Return the shared memory of a block: weights, and what its warps exchange in two frames.

    Args:
        n_units: Hidden units of the layer.
        name: `forward` or `backward`.
    """
    gates = 3 * n_units // BLOCKS
    tiles = gates // 16 * n_units // 16 // WARPS
    if name == "forward":
        exchanged = 2 * WARPS * TRIALS * (gates + 4) * 4
    else:
        exchanged = 2 * TRIALS * gates * 2
    return exchanged + max(tiles - KEPT[name], 0) * WARPS * 32 * 16


def in_one_kernel(
    x_NI: torch.Tensor,
    starts_B: torch.Tensor,
    n_most: int,
    state_LBD: torch.Tensor,
    weights: list[list[torch.Tensor]],
    p: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run layers of a GRU in float16. A CUDA graph records it.

    Args:
        x_NI: Float [N, I], the patches of all trials, one trial after the other; no other rows.
        starts_B: int32 [B + 1], the first row of each trial, and the row after the last.
        n_most: Patches of the longest trial, or more.
        state_LBD: Float [L, B, D], the first state of each layer.
        weights: Input weights, recurrent weights and both biases of each layer.
        p: Dropout between layers.

    Returns:
        Hidden units float16 [N, D], and the state float16 [L, B, D] after each trial's last patch.
    """
    n_trials = len(starts_B) - 1
    # Trials that fill up the last group have no patch.
    starts_B = torch.cat((starts_B, starts_B[-1:].expand(-n_trials % TRIALS)))
    states_LBD = F.pad(state_LBD.float(), (0, 0, 0, -n_trials % TRIALS))
    last = []
    with torch.autocast(x_NI.device.type, enabled=False):
        x_NI = x_NI.to(DTYPE)
        for layer, (own, state_BD) in enumerate(zip(weights, states_LBD, strict=True)):
            x_NI = F.dropout(x_NI, p) if layer and p else x_NI
            x_NI, last_BD = _Layer.apply(x_NI, starts_B, n_most, state_BD, *own)  # type: ignore[no-untyped-call]
            last.append(last_BD[:n_trials])
    return x_NI, torch.stack(last)


class _Layer(torch.autograd.Function):
    """A layer, over `n_frames` frames at most."""

    @staticmethod
    def forward(
        ctx: Any,
        x_NI: torch.Tensor,
        starts_B: torch.Tensor,
        n_frames: int,
        first_BD: torch.Tensor,
        *weights: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        w_ih, w_hh, b_ih, b_hh = (weight.to(DTYPE) for weight in weights)
        n_units = w_hh.shape[1]
        input_NG = F.linear(x_NI, w_ih, b_ih)
        h_ND = input_NG.new_empty(len(input_NG), n_units)
        h_ND.view(torch.int16).fill_(-1)  # what the kernel takes for empty
        first_BD = first_BD.to(DTYPE).contiguous()
        before_ND, last_BD = torch.empty_like(h_ND), torch.empty_like(first_BD)
        kept_N4 = input_NG.new_empty(len(input_NG), 4 * n_units)
        one, _, groups = passes(n_units, x_NI.device)
        for start, n_blocks in _launches(len(first_BD), groups):
            arguments = (
                *(input_NG, starts_B[start:], first_BD[start:], w_hh, b_hh.float()),
                *(h_ND, before_ND, kept_N4, last_BD[start:], n_frames),
            )
            shared = shared_bytes(n_units, "forward")
            one(n_blocks, 32 * WARPS, arguments, shared, cooperative=True)
        ctx.save_for_backward(x_NI, starts_B, before_ND, kept_N4, w_ih, w_hh)
        ctx.n_frames = n_frames
        return h_ND, last_BD

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_h_ND: torch.Tensor, d_last_BD: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        x_NI, starts_B, before_ND, kept_N4, w_ih, w_hh = ctx.saved_tensors
        n_units = w_hh.shape[1]
        d_gates_N4 = torch.empty_like(kept_N4)
        d_state_BD = d_last_BD.to(torch.float32, copy=True).contiguous()
        w_DG = w_hh.T.contiguous()
        d_h_ND = d_h_ND.contiguous()
        _, one, groups = passes(n_units, w_hh.device)
        for start, n_blocks in _launches(len(d_state_BD), groups):
            sums = d_h_ND.new_zeros(2 * n_blocks * TRIALS * n_units)
            arguments = (
                *(d_h_ND, starts_B[start:], before_ND, kept_N4, w_DG),
                *(d_gates_N4, d_state_BD[start:], sums, ctx.n_frames),
            )
            shared = shared_bytes(n_units, "backward")
            one(n_blocks, 32 * WARPS, arguments, shared, cooperative=True)
        # n, r, z of the state, then n of the input.
        d_own_NG, d_input_NG = d_gates_N4[:, : 3 * n_units], d_gates_N4[:, n_units:]
        d_x_NI = d_input_NG @ w_ih if ctx.needs_input_grad[0] else None
        d_weights: list[torch.Tensor | None] = [None] * 4
        if any(ctx.needs_input_grad[4:]):
            d_bias_4 = d_gates_N4.sum(0, dtype=torch.float32)
            d_weights = [
                (d_input_NG.T @ x_NI).float(),
                (d_own_NG.T @ before_ND).roll(-n_units, 0).float(),
                d_bias_4[n_units:],
                d_bias_4[: 3 * n_units].roll(-n_units),
            ]
        return d_x_NI, None, None, d_state_BD, *d_weights


def _launches(n_trials: int, groups: int) -> Iterator[tuple[int, int]]:
    """Yield the first trial and the number of blocks of each launch."""
    for start in range(0, n_trials, groups * TRIALS):
        yield start, min(groups, (n_trials - start) // TRIALS) * BLOCKS


def check_kernel(device: torch.device, n_units: int, n_frames: int = 70) -> str | None:
    """Compare the kernel with torch's GRU in float32 on a device; see `proofs.why_not`.

    Args:
        device: The device.
        n_units: Hidden units.
        n_frames: Frames of the longest trial.

    Returns:
        A difference, in a few words; None if all are small, and if a second run gives the same.
    """
    torch.manual_seed(0)
    # More than run at once, and a group that is not full.
    n_trials = (passes(n_units, device).groups + 1) * TRIALS - 3
    lengths_B = 1 + torch.arange(n_trials) * 7 % n_frames
    lengths_B[0] = n_frames
    real_BP = (torch.arange(n_frames) < lengths_B[:, None]).to(device)
    starts_B = F.pad(lengths_B.cumsum(0), (1, 0)).int().to(device)
    module = nn.GRU(32, n_units, batch_first=True).to(device)
    x_BPI = torch.randn(n_trials, n_frames, 32, device=device, requires_grad=True)
    first_LBD = torch.randn(1, n_trials, n_units, device=device, requires_grad=True)
    d_hidden_ND = 1e-3 * torch.randn(int(real_BP.sum()), n_units, device=device)
    d_last_LBD = 1e-3 * torch.randn(1, n_trials, n_units, device=device)
    weights: list[torch.Tensor] = list(module.parameters())

    def gradients(hidden_ND: torch.Tensor, last_LBD: torch.Tensor) -> list[torch.Tensor]:
        outputs = [hidden_ND.float(), last_LBD.float()]
        found = torch.autograd.grad(
            outputs, [x_BPI, first_LBD, *weights], [d_hidden_ND, d_last_LBD]
        )
        return [*(output.detach() for output in outputs), *found]

    runs = [
        gradients(*in_one_kernel(x_BPI[real_BP], starts_B, n_frames, first_LBD, [weights], 0.0))
        for _ in range(2)
    ]
    with full_float32():
        hidden_BPD, _ = module(x_BPI, first_LBD)
        hidden_ND = hidden_BPD[real_BP]
        expected = gradients(hidden_ND, hidden_ND[None, starts_B[1:].long() - 1])
    names = [
        *("hidden units", "last states", "gradients of the input", "gradients of first states"),
        *(f"gradients of {name}" for name, _ in module.named_parameters()),
    ]
    for name, found, again, right in zip(names, *runs, expected, strict=True):
        difference = float((found - right).norm() / right.norm())
        if not difference <= MOST_DIFFERENCE:
            return f"{name} differ from torch's by {difference:.2g}"
        if not torch.equal(found, again):
            return f"{name} differ from run to run"
    return None
