"""The recurrence of a GRU layer on XLA, with its own gradient, on one core or shared by several.

The body of a scan holds only the recurrence itself, because a TPU waits for each of its steps.
Products with the inputs are computed for all steps before the scan; the gradient of the recurrent
weights is one product after it. States, gates and biases are float32.

B trials, P patches, D hidden units, G the three gates side by side, I inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cortext_tpu.products import einsum, product, shared_mesh

Array = Any
"""A `jax.Array`."""
WIDE_BYTES = 64 << 20
"""Size in bytes of a layer's recurrent weights from which the cores share them.

A core's fast memory (128 MiB) holds little more. Reading the weights from the slow memory in every
step takes many times as long as computing with them.
"""


def gru_layer(
    x_PBI: Array, h0_BD: Array, w_ih: Array, w_hh: Array, b_ih: Array, b_hh: Array, dtype: Any
) -> Array:
    """Run one layer of a GRU.

    Args:
        x_PBI: Inputs, float [P, B, I].
        h0_BD: First states, float [B, D].
        w_ih: Input weights [G, I], the gates in torch's order: r, z, n.
        w_hh: Recurrent weights [G, D].
        b_ih: Input biases [G].
        b_hh: Recurrent biases [G].
        dtype: Type of the operands of products, see `operand_dtype`.

    Returns:
        The state after every step, float32 [P, B, D].
    """
    input_PBG = product("pbi,gi->pbg", x_PBI, w_ih, dtype)
    mesh = shared_mesh()
    n_bytes = w_hh.size * jnp.dtype(dtype).itemsize
    wide = (
        mesh is not None
        and mesh.size > 1
        and n_bytes >= WIDE_BYTES
        and h0_BD.shape[1] % mesh.size == 0
    )
    return _recurrence(
        dtype, mesh if wide else None, input_PBG, h0_BD.astype(jnp.float32), w_hh, b_ih, b_hh
    )


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _recurrence(
    dtype: Any,
    mesh: Mesh | None,
    input_PBG: Array,
    h0_BD: Array,
    w_hh: Array,
    b_ih: Array,
    b_hh: Array,
) -> Array:
    """Return the state after every step, float32 [P, B, D].

    r, z = sigmoid(input + recurrent), n = tanh(input_n + r * recurrent_n), h = (1 - z) n + z
    h_before, where recurrent is the product of h_before with the recurrent weights.

    `input_PBG` is the product of each input with the input weights. The cores of `mesh` share the
    units, each for all trials: they exchange states in every step instead of reading all weights in
    every step.
    """
    return _recurrence_forward(dtype, mesh, input_PBG, h0_BD, w_hh, b_ih, b_hh)[0]


def _recurrence_forward(
    dtype: Any,
    mesh: Mesh | None,
    input_PBG: Array,
    h0_BD: Array,
    w_hh: Array,
    b_ih: Array,
    b_hh: Array,
) -> tuple[Array, Any]:
    weight = w_hh.astype(dtype)
    arguments = (input_PBG, h0_BD, weight, b_ih, b_hh)
    if mesh is None:
        h_PBD, kept_PB4D = _forward_steps(dtype, None, *arguments)
    else:
        shared = _SharedUnits(mesh)
        run = shared.run(
            partial(_forward_steps, dtype), shared.arguments, (shared.steps, shared.steps)
        )
        h_PBD, kept_PB4D = run(*shared.by_core(arguments))
        h_PBD = shared.of_trials(h_PBD)
    return h_PBD, (h_PBD, kept_PB4D, h0_BD, weight)


def _recurrence_backward(
    dtype: Any, mesh: Mesh | None, kept: Any, d_h_PBD: Array
) -> tuple[Array, ...]:
    h_PBD, kept_PB4D, h0_BD, weight = kept
    if mesh is None:
        return _backward_steps(dtype, None, h_PBD, kept_PB4D, h0_BD, weight, d_h_PBD)
    shared = _SharedUnits(mesh)
    layouts = (shared.steps, shared.steps, shared.state, shared.weight, shared.steps)
    run = shared.run(partial(_backward_steps, dtype), layouts, shared.arguments)
    return shared.by_gate(run(h_PBD, kept_PB4D, h0_BD, shared.regroup(weight, 0), d_h_PBD))


_recurrence.defvjp(_recurrence_forward, _recurrence_backward)


class _SharedUnits:
    """Units of a layer that cores share: each has the gates of its own units, for all trials."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.axis = mesh.axis_names[0]
        self.steps = PartitionSpec(None, None, self.axis)  # [P, B, D] and [P, B, G]
        self.state = PartitionSpec(None, self.axis)  # [B, D]
        self.weight = PartitionSpec(self.axis, None)  # [G, D]
        bias = PartitionSpec(self.axis)
        self.arguments = (self.steps, self.state, self.weight, bias, bias)

    def run(self, steps: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """Make a function that runs steps on every core.

        Args:
            steps: The function; its first argument is the name of the mesh's axis.
            in_specs: Layouts of its other arguments.
            out_specs: Layouts of its results.
        """
        function: Callable[..., Any] = jax.shard_map(
            partial(steps, self.axis),
            mesh=self.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            check_vma=False,
        )
        return function

    def by_core(self, arguments: tuple[Array, ...]) -> tuple[Array, ...]:
        """Regroup the arguments of a layer: the three gates of a core's units lie together."""
        input_PBG, h0_BD, weight, b_ih, b_hh = arguments
        input_PBG = self.regroup(self.of_trials(input_PBG), 2)
        return (
            input_PBG,
            h0_BD,
            self.regroup(weight, 0),
            self.regroup(b_ih, 0),
            self.regroup(b_hh, 0),
        )

    def by_gate(self, gradients: tuple[Array, ...]) -> tuple[Array, ...]:
        """Regroup the gradients of those arguments back: all units of a gate lie together."""
        d_input, d_h0, *others = gradients
        d_input = self.of_trials(self.regroup(d_input, 2, back=True))
        return d_input, d_h0, *(self.regroup(gradient, 0, back=True) for gradient in others)

    def regroup(self, x: Array, axis: int, back: bool = False) -> Array:
        """Reorder an axis from (gate, core, unit) to (core, gate, unit); `back` reverses it."""
        sizes = (self.mesh.size, 3) if back else (3, self.mesh.size)
        split = x.reshape(*x.shape[:axis], *sizes, -1, *x.shape[axis + 1 :])
        return split.swapaxes(axis, axis + 1).reshape(x.shape)

    def of_trials(self, x_PBD: Array) -> Array:
        """Lay an array out like all others: the cores share the trials."""
        layout = NamedSharding(self.mesh, PartitionSpec(None, self.axis))
        return jax.lax.with_sharding_constraint(x_PBD, layout)


def _all_units(x: Array, axis: str | None) -> Array:
    return x if axis is None else jax.lax.all_gather(x, axis, axis=x.ndim - 1, tiled=True)


def _own_units(x: Array, axis: str | None) -> Array:
    return (
        x
        if axis is None
        else jax.lax.psum_scatter(x, axis, scatter_dimension=x.ndim - 1, tiled=True)
    )


def _forward_steps(
    dtype: Any,
    axis: str | None,
    input_PBG: Array,
    h0_BD: Array,
    weight: Array,
    b_ih: Array,
    b_hh: Array,
) -> tuple[Array, Array]:
    """Return states [P, B, D], and r, z, n and recurrent_n of each step, [P, B, 4 D].

    The latter are for the backward pass. `axis` names the cores that share the units; None if this
    core has all of them.
    """
    transposed = weight.T  # once: otherwise a TPU would transpose in every step
    # torch's order of the gates, r, z, n; Keras has z, r, n.

    def step(h: Array, input_BG: Array) -> tuple[Array, tuple[Array, Array]]:
        recurrent = einsum("bd,dg->bg", _all_units(h.astype(dtype), axis), transposed) + b_hh
        input_r, input_z, input_n = jnp.split(input_BG + b_ih, 3, axis=-1)
        recurrent_r, recurrent_z, recurrent_n = jnp.split(recurrent, 3, axis=-1)
        r, z = jax.nn.sigmoid(input_r + recurrent_r), jax.nn.sigmoid(input_z + recurrent_z)
        n = jnp.tanh(input_n + r * recurrent_n)
        h = n + z * (h - n)  # (1 - z) n + z h with one product fewer
        return h, (h, jnp.concatenate([r, z, n, recurrent_n], axis=-1))

    found: tuple[Array, Array] = jax.lax.scan(step, h0_BD, input_PBG)[1]
    return found


def _backward_steps(
    dtype: Any,
    axis: str | None,
    h_PBD: Array,
    kept_PB4D: Array,
    h0_BD: Array,
    weight: Array,
    d_h_PBD: Array,
) -> tuple[Array, ...]:
    """Return the gradients of the input, the first state, the weights and both biases.

    The gradient of the recurrent weights is one product over all steps; a differentiated scan would
    have one in each step.
    """
    before = jnp.concatenate([h0_BD[None], h_PBD[:-1]])

    def step(d_h: Array, at: tuple[Array, ...]) -> tuple[Array, Array]:
        d_outside, before, kept = at
        r, z, n, recurrent_n = jnp.split(kept, 4, axis=-1)
        d_h = d_h + d_outside
        d_n = d_h * (1 - z) * (1 - n * n)
        d_z = d_h * (before - n) * z * (1 - z)
        d_r = d_n * recurrent_n * r * (1 - r)
        d_recurrent = jnp.concatenate([d_r, d_z, d_n * r], axis=-1).astype(dtype)
        d_before = d_h * z + _own_units(einsum("bg,gd->bd", d_recurrent, weight), axis)
        return d_before, jnp.concatenate([d_r, d_z, d_n], axis=-1)

    d_h0, d_input = jax.lax.scan(
        step, jnp.zeros_like(h0_BD), (d_h_PBD, before, kept_PB4D), reverse=True
    )
    d_rz, d_n = jnp.split(d_input, [2 * h0_BD.shape[1]], axis=-1)
    d_recurrent_n = d_n * kept_PB4D[..., : h0_BD.shape[1]]
    d_recurrent = jnp.concatenate([d_rz, d_recurrent_n], axis=-1)
    d_weight = einsum(
        "pbg,pbd->gd", d_recurrent.astype(dtype), _all_units(before.astype(dtype), axis)
    )
    d_b_ih = d_input.sum((0, 1))
    d_b_hh = jnp.concatenate([d_b_ih[: d_rz.shape[-1]], d_recurrent_n.sum((0, 1))])
    return d_input, d_h0, d_weight, d_b_ih, d_b_hh
