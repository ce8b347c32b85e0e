"""The recurrence of a GRU layer in training on a CPU.

Autograd follows `nn.GRU` through a dozen small operations per step and adds up the gradient of the
recurrent weights step by step. The passes here keep the gates, need one matrix product per step
backwards, and compute everything else for all steps at once. There are two: a compiled pass for
processors that multiply bfloat16, and a pass of torch's operations for other processors and for
float32.

r, z = sigmoid(input + recurrent), n = tanh(input_n + r * recurrent_n), h = (1 - z) n + z h_before,
where recurrent is the product of h_before with the recurrent weights. States and gates are float32;
under autocast the products take bfloat16 and add in float32.

B trials, P steps, N rows (the steps of all trials, one trial after the other), D units, G the three
gates side by side.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from cortext import _native


def recurrence(
    input_NG: torch.Tensor,
    lengths: list[int],
    h0_BD: torch.Tensor,
    w_hh: torch.Tensor,
    b_hh: torch.Tensor,
    compiled: bool = True,
) -> torch.Tensor:
    """Run the recurrence of one layer.

    Args:
        input_NG: Float [N, G], the product of each step's input with the input weights, and the
            bias.
        lengths: Number of steps of each trial, at least one.
        h0_BD: Float [B, D], first states.
        w_hh: Float [G, D], recurrent weights in torch's order of gates: r, z, n.
        b_hh: Float [G], recurrent biases.
        compiled: Use the compiled pass where the processor and the number of units allow it.

    Returns:
        The state after every step, float32 [N, D].
    """
    if compiled and can_be_compiled(h0_BD.shape[1]):
        ends_B = torch.tensor(lengths).cumsum(0)
        h_ND: torch.Tensor = _Native.apply(input_NG, ends_B, h0_BD, w_hh, b_hh)  # type: ignore[no-untyped-call]
        return h_ND
    input_BPG = with_padding(input_NG.float(), lengths, max(lengths))
    h_BPD: torch.Tensor = _Scan.apply(input_BPG, h0_BD, w_hh, b_hh)  # type: ignore[no-untyped-call]
    return without_padding(h_BPD, lengths)


def can_be_compiled(n_units: int) -> bool:
    """Tell whether the compiled pass is used for a layer of `n_units` units."""
    return bool(
        _native.can_run_recurrence()
        and n_units % _native.recurrence_unit_multiple == 0
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        # torch multiplies large matrices with AMX: 108 ms instead of 142 for 768 units, 61 instead
        # of 68 for 512, but 22 instead of 19 for 256.
        and not (n_units >= 512 and torch.cpu._is_amx_tile_supported())
    )


def without_padding(x_BPI: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Return [N, I]: the first `lengths[b]` rows of each trial b, one trial after the other."""
    n_patches = x_BPI.shape[1]
    if all(length == n_patches for length in lengths):
        return x_BPI.flatten(0, 1)
    pieces = torch.split(
        x_BPI.flatten(0, 1), [n for length in lengths for n in (length, n_patches - length)]
    )
    return torch.cat(pieces[::2])


def with_padding(x_NI: torch.Tensor, lengths: list[int], n_patches: int) -> torch.Tensor:
    """Return the rows of `without_padding` as [B, n_patches, I], with zeros for padding.

    Args:
        x_NI: Float [N, I], one trial after the other.
        lengths: Number of rows of each trial.
        n_patches: Rows of each trial with padding.
    """
    if all(length == n_patches for length in lengths):
        return x_NI.view(len(lengths), n_patches, -1)
    return torch.stack(
        [
            F.pad(rows_PI, (0, 0, 0, n_patches - len(rows_PI)))
            for rows_PI in torch.split(x_NI, lengths)
        ]
    )


class _Native(torch.autograd.Function):
    """The compiled passes: each thread takes some trials through all steps.

    See `native/recurrence.hpp`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input_NG: torch.Tensor,
        ends_B: torch.Tensor,
        h0_BD: torch.Tensor,
        w_hh: torch.Tensor,
        b_hh: torch.Tensor,
    ) -> torch.Tensor:
        n_rows = len(input_NG)
        n_units = h0_BD.shape[1]
        starts = torch.cat([ends_B.new_zeros(1), ends_B])
        h0_BD = h0_BD.float().contiguous()
        h_ND = h0_BD.new_empty(n_rows, n_units)
        gates_N4D = h0_BD.new_empty(n_rows, 4 * n_units)
        h_before_ND = torch.empty_like(h_ND, dtype=torch.bfloat16)
        _native.recurrence_forward(
            starts,
            _bits(input_NG.bfloat16()),
            h0_BD.detach(),
            w_hh.detach(),
            b_hh.detach(),
            h_ND,
            _bits(h_before_ND),
            gates_N4D,
            torch.get_num_threads(),
        )
        ctx.save_for_backward(starts, h0_BD, w_hh, h_ND, h_before_ND, gates_N4D)
        ctx.input_dtype = input_NG.dtype
        return h_ND

    @staticmethod
    def backward(ctx: Any, d_h_ND: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        refuse_second_derivatives("the GRU")
        starts, h0_BD, w_hh, h_ND, h_before_ND, gates_N4D = ctx.saved_tensors
        d_input_NG = torch.empty(len(h_ND), len(w_hh), dtype=torch.bfloat16)
        d_recurrent_NG = torch.empty_like(d_input_NG)
        d_h0_BD = torch.empty_like(h0_BD)
        d_b_hh_G = h0_BD.new_empty(len(w_hh))
        _native.recurrence_backward(
            starts,
            d_h_ND.contiguous(),
            h0_BD.detach(),
            w_hh.detach(),
            h_ND.detach(),
            gates_N4D,
            _bits(d_input_NG),
            _bits(d_recurrent_NG),
            d_h0_BD,
            d_b_hh_G,
            torch.get_num_threads(),
        )
        learns = ctx.needs_input_grad[3]  # False if only the day layers are adapted
        d_weight = (d_recurrent_NG.t() @ h_before_ND).float() if learns else None
        return d_input_NG.to(ctx.input_dtype), None, d_h0_BD, d_weight, d_b_hh_G


def refuse_second_derivatives(what: str) -> None:
    """Raise RuntimeError in a backward pass that is itself to be differentiated."""
    # `once_differentiable` lets second derivatives through that depend on the weights alone; they
    # would be wrong.
    if torch.is_grad_enabled():  # only under create_graph=True
        raise RuntimeError(
            f"{what} of training has first derivatives only; create_graph=True cannot be used"
            " with it"
        )


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.detach().contiguous().view(torch.int16)


class _Scan(torch.autograd.Function):
    """The passes in torch's operations, for trials of one length."""

    @staticmethod
    def forward(
        ctx: Any,
        input_BPG: torch.Tensor,
        h0_BD: torch.Tensor,
        w_hh: torch.Tensor,
        b_hh: torch.Tensor,
    ) -> torch.Tensor:
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
        n_trials, n_steps, _ = input_BPG.shape
        n_units = h0_BD.shape[1]
        h = input_BPG.new_empty(n_steps + 1, n_trials, n_units)
        gates = input_BPG.new_empty(n_steps, n_trials, 3 * n_units)
        recurrent = torch.empty_like(gates, dtype=dtype)
        h[0] = h0_BD
        weight = w_hh.t().to(dtype)
        bias = b_hh.to(dtype)
        in_rz, in_n = (
            part.unbind(1) for part in torch.split(input_BPG, [2 * n_units, n_units], -1)
        )
        rec_rz, rec_n = (
            part.unbind(0) for part in torch.split(recurrent, [2 * n_units, n_units], -1)
        )
        rz, n = (part.unbind(0) for part in torch.split(gates, [2 * n_units, n_units], -1))
        r, z = (part.unbind(0) for part in torch.split(gates[..., : 2 * n_units], n_units, -1))
        steps = h.unbind(0)
        products = recurrent.unbind(0)
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
        refuse_second_derivatives("the GRU")
        h, gates, recurrent, w_hh = ctx.saved_tensors
        n_steps = h.shape[0] - 1
        n_trials = h.shape[1]
        n_units = h.shape[2]
        dtype = recurrent.dtype
        r, z, n = gates.split(n_units, -1)
        # d(gate before its nonlinearity) / d(h), for all steps; the loop only computes
        # d(loss) / d(h).
        slope = gates.new_empty(n_steps, n_trials, 3, n_units)
        slope_n = torch.mul(1 - z, 1 - n * n, out=slope[:, :, 2])
        torch.mul(slope_n * recurrent[..., 2 * n_units :], r * (1 - r), out=slope[:, :, 0])
        torch.mul(h[:-1] - n, z * (1 - z), out=slope[:, :, 1])
        slope_recurrent = slope.clone()
        slope_recurrent[:, :, 2] *= r
        weight = w_hh.to(dtype)
        d_h = gates.new_empty(n_steps, n_trials, 1, n_units)
        d_recurrent = torch.empty_like(slope, dtype=dtype)
        d_products = d_recurrent.unbind(0)
        d_flat = d_recurrent.view(n_steps, n_trials, -1).unbind(0)
        slopes = slope_recurrent.unbind(0)
        d_steps = d_h.unbind(0)
        kept = z.unsqueeze(2).unbind(0)
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
