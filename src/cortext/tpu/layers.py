"""The layers of `cortext.models.layers` on XLA, where torch modules run on JAX (torchax).

Importing this module registers them, and CTC; see the end of the file.

The parameters stay those of the torch modules. Large products take all steps at once; the body of a
scan holds what the recurrence itself needs and nothing else, because a TPU waits for each of its
steps. Matrix products take operands in the run's precision and add up in float32, forwards and
backwards; states, gates and biases are float32.

B trials, T bins, C features, P patches, D hidden units, G the three gates side by side, I inputs, L
layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torchax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch import nn
from torchax.interop import call_jax

from cortext.models import layers
from cortext.models.layers import SUBSTITUTES
from cortext.tpu.ctc import ctc_loss
from cortext.training import loss

Array = Any
"""A `jax.Array`."""


WIDE_BYTES = 64 << 20
"""Size of a layer's recurrent weights from which on the cores share them out.

A core's fast memory (128 MiB) holds few more. Reading them from the slow memory in every step takes
many times as long as computing with them.
"""


class _Tracing(NamedTuple):
    bf16: bool = False
    mesh: Mesh | None = None


_AS_IT_IS = _Tracing()
_TRACING = ContextVar("tracing", default=_AS_IT_IS)


@contextmanager
def tracing(bf16: bool, mesh: Mesh | None = None) -> Iterator[None]:
    """Trace within this context with matrix products of bfloat16 operands, or of float32.

    Args:
        bf16: Take bfloat16.
        mesh: Cores that share out the units of a wide layer, where they else share out trials.
    """
    # Not torchax's own autocast (0.0.14), which fails at `stack` and `cat`, and rounds results to
    # bfloat16.
    token = _TRACING.set(_Tracing(bf16, mesh))
    try:
        with jax.default_matmul_precision("default" if bf16 else "highest"):
            yield
    finally:
        _TRACING.reset(token)


def _operand_dtype() -> Any:
    return jnp.bfloat16 if _TRACING.get().bf16 else jnp.float32


def gru(
    module: nn.GRU, x_BPI: torch.Tensor, state_LBD: torch.Tensor, n_patches_B: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `cortext.models.layers.gru`. Padding is computed, too, because shapes are static here."""
    run, last, x = partial(_layer, dtype=_operand_dtype()), [], x_BPI.transpose(0, 1)
    for layer in range(module.num_layers):
        if layer:
            x = dropout(x, module.dropout, module.training)
        names = (f"{name}_l{layer}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        x = _on_jax(run, x, state_LBD[layer], *(getattr(module, name) for name in names))
        last.append(x[-1] if n_patches_B is None else _on_jax(_at_end, x, n_patches_B))
    return x.transpose(0, 1), torch.stack(last)


def day_affine(
    x_BTC: torch.Tensor, day_B: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """See `cortext.models.layers.day_affine`: a gather and a batched product for any days."""
    return _on_jax(partial(_day_affine, dtype=_operand_dtype()), x_BTC, day_B, weight, bias)


def patches(x_BTC: torch.Tensor, size: int, stride: int) -> torch.Tensor:
    """See `cortext.models.layers.patches`: blocks of `stride` bins side by side, by slices only."""
    return _on_jax(partial(_patches, size=size, stride=stride), x_BTC)


def dropout(x: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """See `cortext.models.layers.dropout`; the draw depends on torchax's key alone."""
    if not training or p == 0:
        return x
    key = torchax.default_env().get_and_rotate_prng_key()
    return _on_jax(
        lambda x: jnp.where(random_bits(key, x.shape) >= int(p * 2**32), x / (1 - p), 0.0), x
    )


def random_bits(key: Array, shape: tuple[int, ...], stream: int = 0) -> Array:
    """Draw 32 random bits for each element, uint32.

    They are a hash of the element's number (Wellons' `lowbias32`, with each half of the key). JAX's
    own generator takes a hundred operations for each element, and most of the time that a step
    takes to compile.

    Args:
        key: Key of JAX, or its data, uint32 [2].
        shape: Shape of the result.
        stream: Number of an independent draw with the same key.
    """
    halves = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    number = jnp.zeros(shape, jnp.uint32)
    for axis, size in enumerate(shape):
        number = number * np.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    for half in (halves[0] + np.uint32(stream * 0x9E3779B9 % 2**32), halves[1]):
        number = number ^ half
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            number = (number ^ (number >> shift)) * np.uint32(factor)
        number = number ^ (number >> 16)
    return number


def _on_jax(function: Callable[..., Array], *tensors: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = call_jax(function, *tensors)
    return result


def product(equation: str, a: Array, b: Array, dtype: Any) -> Array:
    """Compute `jnp.einsum(equation, a, b)`, and its gradients, with float32 sums and results.

    Args:
        equation: Each of its letters must be in two of its three parts.
        a: First operand.
        b: Second operand.
        dtype: Type of both operands in the product.
    """
    return _product(equation, dtype, a.astype(jnp.float32), b.astype(jnp.float32))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _product(equation: str, dtype: Any, a: Array, b: Array) -> Array:
    return _einsum(equation, a.astype(dtype), b.astype(dtype))


def _einsum(equation: str, a: Array, b: Array) -> Array:
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


def _product_forward(
    equation: str, dtype: Any, a: Array, b: Array
) -> tuple[Array, tuple[Array, Array]]:
    a, b = a.astype(dtype), b.astype(dtype)
    return _einsum(equation, a, b), (a, b)


def _product_backward(
    equation: str, dtype: Any, operands: tuple[Array, Array], d_result: Array
) -> tuple[Array, Array]:
    # JAX's own rule would round the sums of a bfloat16 operand's gradient to bfloat16.
    (a, b), d_result = operands, d_result.astype(dtype)
    inputs, _, of_result = equation.partition("->")
    of_a, _, of_b = inputs.partition(",")
    return _einsum(f"{of_result},{of_b}->{of_a}", d_result, b), _einsum(
        f"{of_result},{of_a}->{of_b}", d_result, a
    )


_product.defvjp(_product_forward, _product_backward)


def _day_affine(x_BTC: Array, day_B: Array, weight: Array, bias: Array, dtype: Any) -> Array:
    return product("btc,bcd->btd", x_BTC, weight[day_B], dtype) + bias[day_B][:, None]


def _patches(x_BTC: Array, size: int, stride: int) -> Array:
    n_trials, n_bins, n_features = x_BTC.shape
    n_patches = (n_bins - size) // stride + 1
    per_patch = -(-size // stride)  # blocks, the last of them perhaps not whole
    n_blocks = n_patches + per_patch - 1
    missing = max(0, n_blocks * stride - n_bins)
    x_BTC = jnp.pad(x_BTC, ((0, 0), (0, missing), (0, 0)))[:, : n_blocks * stride]
    blocks = x_BTC.reshape(n_trials, n_blocks, stride * n_features)
    side_by_side = [blocks[:, first : first + n_patches] for first in range(per_patch)]
    return jnp.concatenate(side_by_side, axis=2)[..., : size * n_features]


def _at_end(x_PBD: Array, n_patches_B: Array) -> Array:
    """The last row of each trial, [B, D]."""
    at_B = jnp.clip(n_patches_B, 1, len(x_PBD)) - 1
    return jnp.take_along_axis(x_PBD, at_B[None, :, None], axis=0)[0]


def _layer(
    x_PBI: Array, h0_BD: Array, w_ih: Array, w_hh: Array, b_ih: Array, b_hh: Array, dtype: Any
) -> Array:
    input_PBG = product("pbi,gi->pbg", x_PBI, w_ih, dtype)
    mesh, n_bytes = _TRACING.get().mesh, w_hh.size * jnp.dtype(dtype).itemsize
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
    """The state after every step, float32 [P, B, D], of products [P, B, G] with each input.

    r, z = sigmoid(input + recurrent), n = tanh(input_n + r * recurrent_n), h = (1 - z) n + z
    h_before, where recurrent is the product of h_before with the recurrent weights.

    The cores of `mesh` share out the units, each for all trials: they exchange states in every
    step, where they else read all weights in every step.
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
    """Units of a layer shared out over cores: each has the gates of its own ones, of all trials."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.axis = mesh, mesh.axis_names[0]
        self.steps = PartitionSpec(None, None, self.axis)  # [P, B, D] and [P, B, G]
        self.state = PartitionSpec(None, self.axis)  # [B, D]
        self.weight = PartitionSpec(self.axis, None)  # [G, D]
        bias = PartitionSpec(self.axis)
        self.arguments = (self.steps, self.state, self.weight, bias, bias)

    def run(self, steps: Callable[..., Any], in_specs: Any, out_specs: Any) -> Callable[..., Any]:
        """Make a function that runs steps on every core.

        Args:
            steps: The function; it takes the name of the mesh's axis first.
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
        """Bring the three gates of a core's units together in the arguments of a layer."""
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
        """Bring all units of a gate together again in the gradients of those arguments."""
        d_input, d_h0, *others = gradients
        d_input = self.of_trials(self.regroup(d_input, 2, back=True))
        return d_input, d_h0, *(self.regroup(gradient, 0, back=True) for gradient in others)

    def regroup(self, x: Array, axis: int, back: bool = False) -> Array:
        """Turn an axis of gates, each of all units, into one of cores, each of gates; or back."""
        sizes = (self.mesh.size, 3) if back else (3, self.mesh.size)
        split = x.reshape(*x.shape[:axis], *sizes, -1, *x.shape[axis + 1 :])
        return split.swapaxes(axis, axis + 1).reshape(x.shape)

    def of_trials(self, x_PBD: Array) -> Array:
        """Lay an array out like all others, with the trials shared out over the cores."""
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
    """States [P, B, D], and [P, B, 4 D] for the way back: r, z, n and recurrent_n of each step.

    `axis` names the cores that share out the units; None where this core has all of them.
    """
    transposed = weight.T  # once; a TPU would do it in every step

    def step(h: Array, input_BG: Array) -> tuple[Array, tuple[Array, Array]]:
        recurrent = _einsum("bd,dg->bg", _all_units(h.astype(dtype), axis), transposed) + b_hh
        input_r, input_z, input_n = jnp.split(input_BG + b_ih, 3, axis=-1)
        recurrent_r, recurrent_z, recurrent_n = jnp.split(recurrent, 3, axis=-1)
        r, z = jax.nn.sigmoid(input_r + recurrent_r), jax.nn.sigmoid(input_z + recurrent_z)
        n = jnp.tanh(input_n + r * recurrent_n)
        h = n + z * (h - n)
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
    """Gradients of the input, the first state, the weights and both biases.

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
        d_before = d_h * z + _own_units(_einsum("bg,gd->bd", d_recurrent, weight), axis)
        return d_before, jnp.concatenate([d_r, d_z, d_n], axis=-1)

    d_h0, d_input = jax.lax.scan(
        step, jnp.zeros_like(h0_BD), (d_h_PBD, before, kept_PB4D), reverse=True
    )
    d_rz, d_n = jnp.split(d_input, [2 * h0_BD.shape[1]], axis=-1)
    d_recurrent_n = d_n * kept_PB4D[..., : h0_BD.shape[1]]
    d_recurrent = jnp.concatenate([d_rz, d_recurrent_n], axis=-1)
    d_weight = _einsum(
        "pbg,pbd->gd", d_recurrent.astype(dtype), _all_units(before.astype(dtype), axis)
    )
    d_b_ih = d_input.sum((0, 1))
    d_b_hh = jnp.concatenate([d_b_ih[: d_rz.shape[-1]], d_recurrent_n.sum((0, 1))])
    return d_input, d_h0, d_weight, d_b_ih, d_b_hh


# The models and the loss ask this table before they compute; see `layers.substitute`. `jax` is the
# device type of torchax's tensors.
SUBSTITUTES["jax"] = {
    layers.day_affine: day_affine,
    layers.dropout: dropout,
    layers.gru: gru,
    layers.patches: patches,
    loss.ctc_loss: ctc_loss,
}
