"""The layers of `cortext.models.layers` on XLA, where torch modules run on JAX (torchax).

Importing this module registers them, and CTC; see the end of the file. The parameters remain those
of the torch modules.

B trials, T bins, C features, P patches, D hidden units, I inputs, L layers, H
heads, E units of a head, K keys.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torchax
from torch import nn

from cortext.models import layers
from cortext.models.layers import SUBSTITUTES
from cortext.training import loss
from cortext_tpu.ctc import ctc_loss
from cortext_tpu.products import on_jax, operand_dtype, product
from cortext_tpu.recurrence import gru_layer

Array = Any
"""A `jax.Array`."""


def gru(
    module: nn.GRU,
    x_BPI: torch.Tensor,
    state_LBD: torch.Tensor,
    n_patches_B: torch.Tensor | None,
    layers: range | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `cortext.models.layers.gru`. Padding is computed, too, because shapes are static."""
    run = partial(gru_layer, dtype=operand_dtype())
    last = []
    x = x_BPI.transpose(0, 1)
    for i, layer in enumerate(layers or range(module.num_layers)):
        if layer:
            x = dropout(x, module.dropout, module.training)
        names = (f"{name}_l{layer}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        x = on_jax(run, x, state_LBD[i], *(getattr(module, name) for name in names))
        last.append(x[-1] if n_patches_B is None else on_jax(_at_end, x, n_patches_B))
    return x.transpose(0, 1), torch.stack(last)


def _at_end(x_PBD: Array, n_patches_B: Array) -> Array:
    """Return the last row of each trial, [B, D]."""
    at_B = jnp.clip(n_patches_B, 1, len(x_PBD)) - 1
    return jnp.take_along_axis(x_PBD, at_B[None, :, None], axis=0)[0]


def day_affine(
    x_BTC: torch.Tensor, day_B: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """See `cortext.models.layers.day_affine`: a gather and a batched product for any days."""
    return on_jax(partial(_day_affine, dtype=operand_dtype()), x_BTC, day_B, weight, bias)


def patches(x_BTC: torch.Tensor, size: int, stride: int) -> torch.Tensor:
    """See `cortext.models.layers.patches`: blocks of `stride` bins side by side, by slices only."""
    return on_jax(partial(_patches, size=size, stride=stride), x_BTC)


def dropout(x: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """See `cortext.models.layers.dropout`; the draw depends on torchax's key alone."""
    if not training or p == 0:
        return x
    key = torchax.default_env().get_and_rotate_prng_key()
    return on_jax(
        lambda x: jnp.where(random_bits(key, x.shape) >= int(p * 2**32), x / (1 - p), 0.0), x
    )


def by_distance(value_N: torch.Tensor, distance_PK: torch.Tensor) -> torch.Tensor:
    """See `cortext.models.layers.by_distance`: rows of one vector, by slices only."""
    n_frames, n_keys = distance_PK.shape
    return on_jax(partial(_by_distance, n_frames=n_frames, n_keys=n_keys), value_N)


def attention(
    q_BHPE: torch.Tensor,
    k_BHKE: torch.Tensor,
    v_BHKE: torch.Tensor,
    bias_BHPK: torch.Tensor,
    p: float,
) -> torch.Tensor:
    """See `cortext.models.layers.attention`; scores and softmax are float32."""
    dtype = operand_dtype()

    def weigh(q: Array, k: Array, bias: Array) -> Array:
        scores = product("bhpe,bhke->bhpk", q * q.shape[-1] ** -0.5, k, dtype)
        return jax.nn.softmax(scores + bias, axis=-1)

    weight_BHPK = dropout(on_jax(weigh, q_BHPE, k_BHKE, bias_BHPK), p, training=True)
    return on_jax(partial(product, "bhpk,bhke->bhpe", dtype=dtype), weight_BHPK, v_BHKE)


def random_bits(key: Array, shape: tuple[int, ...], stream: int = 0) -> Array:
    """Draw 32 random bits for each element, uint32.

    They are a hash of the element's number (Wellons' `lowbias32`, with each half of the key). JAX's
    own generator takes a hundred operations per element, and most of a step's compile time.

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


def _day_affine(x_BTC: Array, day_B: Array, weight: Array, bias: Array, dtype: Any) -> Array:
    return product("btc,bcd->btd", x_BTC, weight[day_B], dtype) + bias[day_B][:, None]


def _by_distance(value_N: Array, n_frames: int, n_keys: int) -> Array:
    # A gather of every pair would have a scatter as its gradient, pair after pair. Row p is a piece
    # of one vector, of all distances from the largest down, and the row before begins one later.
    most, n_distances = len(value_N) // 2, n_frames + n_keys - 1
    distances = np.clip(n_keys - 1 - np.arange(n_distances), -most, most)
    falling = value_N[distances + most]
    # Copies of the vector, cut into rows of one number more: each row begins one number later.
    rows = jnp.tile(falling, n_frames + 1)[: n_frames * (n_distances + 1)]
    return rows.reshape(n_frames, n_distances + 1)[::-1, :n_keys]


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


# The models and the loss ask this table before they compute; see `layers.substitute`. `jax` is the
# device type of torchax's tensors.
SUBSTITUTES["jax"] = {
    layers.attention: attention,
    layers.by_distance: by_distance,
    layers.day_affine: day_affine,
    layers.dropout: dropout,
    layers.gru: gru,
    layers.patches: patches,
    loss.ctc_loss: ctc_loss,
}
