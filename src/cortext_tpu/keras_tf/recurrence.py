"""The recurrence of a GRU layer, `cortext.models.recurrence` for Keras.

A tape of the forward pass would follow every operation of every step, and add up the recurrent
weights' gradient step by step. Here a step backwards is one matrix product, and everything else is
computed for all steps at once.

update, reset = sigmoid(input + recurrent), new = tanh(input_new + reset * recurrent_new), h =
update * h_before + (1 - update) * new, where recurrent is the product of h_before with the
recurrent weights.

B trials, P steps, D units, G the three gates side by side (3 D): update, reset, new.
"""

from __future__ import annotations

from typing import Any

from keras import ops


@ops.custom_gradient  # type: ignore[untyped-decorator]
def recurrence(input_BPG: Any, h0_BD: Any, weight_DG: Any, bias_G: Any) -> Any:
    """Run the recurrence of one layer.

    Args:
        input_BPG: float32 [B, P, G], the product of each step's input with the input weights, and
            the bias.
        h0_BD: float32 [B, D], first states.
        weight_DG: Recurrent weights [D, G]. Products with them are in their type; everything else
            is in float32.
        bias_G: float32 [G], recurrent biases.

    Returns:
        The state after every step, float32 [B, P, D].
    """

    def step(h_BD: Any, input_BG: Any) -> tuple[Any, Any]:
        update, _, new, _ = _gates(input_BG, _product(h_BD, weight_DG) + bias_G)
        h_BD = update * h_BD + (1 - update) * new
        return h_BD, h_BD

    input_PBG = _turned(input_BPG)
    h_PBD = ops.scan(step, h0_BD, input_PBG)[1]

    def gradient(*args: Any, upstream: Any = None) -> Any:
        (d_BPD,) = args if upstream is None else (upstream,)
        before_PBD = ops.concatenate([ops.expand_dims(h0_BD, 0), h_PBD[:-1]])
        update, reset, new, recurrent_new = _gates(
            input_PBG, _product(before_PBD, weight_DG) + bias_G
        )
        to_new = (1 - update) * (1 - new * new)
        to_update = (before_PBD - new) * update * (1 - update)
        to_reset = to_new * recurrent_new * reset * (1 - reset)
        to_recurrent = ops.concatenate([to_update, to_reset, to_new * reset], axis=-1)
        d_PBD, d_h0 = _back(_turned(d_BPD), update, to_recurrent, ops.transpose(weight_DG))
        d_recurrent = to_recurrent * _thrice(d_PBD)
        d_input = ops.concatenate([to_update, to_reset, to_new], axis=-1) * _thrice(d_PBD)
        n_units, n_gates = weight_DG.shape
        before_ND = ops.reshape(ops.cast(before_PBD, weight_DG.dtype), (-1, n_units))
        d_weight = ops.matmul(
            ops.transpose(before_ND),
            ops.reshape(ops.cast(d_recurrent, weight_DG.dtype), (-1, n_gates)),
        )
        return _turned(d_input), d_h0, d_weight, ops.sum(d_recurrent, axis=(0, 1))

    return _turned(h_PBD), gradient


def _back(d_PBD: Any, update_PBD: Any, to_recurrent_PBG: Any, weight_GD: Any) -> tuple[Any, Any]:
    """Return the gradients of all states and of the first state, from the outside gradients."""

    def step(later: Any, at: Any) -> tuple[Any, Any]:
        _, from_later_BD = later
        d_BD, update_BD, to_recurrent_BG = at
        d_BD = d_BD + from_later_BD
        before_BD = d_BD * update_BD + _product(_thrice(d_BD) * to_recurrent_BG, weight_GD)
        return (d_BD, before_BD), (d_BD, before_BD)

    zeros = ops.zeros_like(d_PBD[0])
    (_, d_h0), (d_PBD, _) = ops.scan(
        step, (zeros, zeros), (d_PBD, update_PBD, to_recurrent_PBG), reverse=True
    )
    return d_PBD, d_h0


def _gates(inputs: Any, recurrent: Any) -> tuple[Any, Any, Any, Any]:
    """Return update gate, reset gate, candidate, and the recurrent part of the candidate."""
    update, reset, new = ops.split(inputs, 3, -1)
    parts = ops.split(recurrent, 3, -1)
    update, reset = ops.sigmoid(update + parts[0]), ops.sigmoid(reset + parts[1])
    return update, reset, ops.tanh(new + reset * parts[2]), parts[2]


def _product(x: Any, weight: Any) -> Any:
    return ops.cast(ops.matmul(ops.cast(x, weight.dtype), weight), "float32")


def _thrice(x: Any) -> Any:
    """Return `x` three times side by side, once for each gate."""
    return ops.concatenate([x, x, x], axis=-1)


def _turned(x: Any) -> Any:
    """Return `x` with the axes of trials and steps exchanged."""
    return ops.transpose(x, (1, 0, 2))
