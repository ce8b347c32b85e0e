"""Layers of the Keras models, equal to those of `cortext.models.layers`.

B trials, T bins, C features, P patches or steps, D units, G the three gates side by side (3 D): in
Keras's order, update, reset, new.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras import ops

from cortext_tpu.keras_tf.recurrence import recurrence

register = keras.saving.register_keras_serializable("cortext")


@register
class DayAffine(keras.layers.Layer):  # type: ignore[misc]
    """An affine map for each recording day, which begins as the identity.

    Its weights are [days, C, C] and [days, C].
    """

    def __init__(self, n_days: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.n_days = n_days

    def build(self, features_shape: Any, day_shape: Any = None) -> None:
        """Make the weights for [B, T, C]."""
        n_features = features_shape[-1]

        def identities(shape: Any, dtype: Any = None) -> Any:
            return ops.broadcast_to(ops.eye(n_features, dtype=dtype), shape)

        self.day_weight = self.add_weight(
            (self.n_days, n_features, n_features), identities, name="day_weight"
        )
        self.day_bias = self.add_weight((self.n_days, n_features), "zeros", name="day_bias")

    def call(self, features: Any, day: Any) -> Any:
        """Map features [B, T, C] by their days, int [B]."""
        weight_BCC = ops.take(ops.convert_to_tensor(self.day_weight), day, axis=0)
        bias_BC = ops.take(ops.convert_to_tensor(self.day_bias), day, axis=0)
        return ops.matmul(features, weight_BCC) + ops.expand_dims(bias_BC, 1)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of `from_config`."""
        return {**super().get_config(), "n_days": self.n_days}


@register
class Patches(keras.layers.Layer):  # type: ignore[misc]
    """A layer that makes patches: `size` bins side by side, every `stride` bins.

    All features of the first bin come first. Bins after the last whole patch are left out. A size
    of 0 leaves single bins.
    """

    def __init__(self, size: int, stride: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.size = size
        self.stride = stride

    def call(self, features: Any) -> Any:
        """Make patches [B, P, size * C] of bins [B, T, C]."""
        if self.size == 0:
            return features
        n_trials, n_bins, n_features = ops.shape(features)
        n_patches = (n_bins - self.size) // self.stride + 1
        # A patch is `per_patch` blocks of `stride` bins, the last one perhaps cut short. Blocks are
        # few and wide; bins would be many and narrow.
        per_patch = -(-self.size // self.stride)
        needed = (n_patches + per_patch - 1) * self.stride
        features = ops.pad(features[:, :needed], ((0, 0), (0, max(0, needed - n_bins)), (0, 0)))
        blocks = ops.reshape(features, (n_trials, needed // self.stride, self.stride * n_features))
        wide = ops.concatenate([blocks[:, j : j + n_patches] for j in range(per_patch)], axis=-1)
        return wide[..., : self.size * n_features]

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of `from_config`."""
        return {**super().get_config(), "size": self.size, "stride": self.stride}


@register
class GradientReversal(keras.layers.Layer):  # type: ignore[misc]
    """A layer that reverses gradients (Ganin et al., JMLR 2016).

    It returns its input bit for bit, and multiplies the gradient by `-strength`.
    """

    def __init__(self, **kwargs: Any) -> None:
        # No autocast: it would round the strength to bfloat16.
        super().__init__(**{**kwargs, "autocast": False})

    def call(self, x: Any, strength: Any) -> Any:
        """Return `x` of any shape; the strength is a number or a scalar tensor."""
        x32 = ops.cast(x, "float32")
        fixed = ops.stop_gradient(x32)
        return ops.cast(fixed - ops.cast(strength, "float32") * (x32 - fixed), x.dtype)


@register
class GRULayer(keras.layers.GRU):  # type: ignore[misc]
    """A `keras.layers.GRU` with a loop of its own (see `recurrence`) if there is no GPU with cuDNN.

    Keras's loop multiplies the inputs step by step, too. The layer has Keras's weights, and returns
    the state after every step and the last state.
    """

    def __init__(self, units: int, **kwargs: Any) -> None:
        # The release's initial weights, and torch's biases: see `cortext.models.layers.initialise`.
        bound = units**-0.5
        initial = {"bias_initializer": keras.initializers.RandomUniform(-bound, bound)}
        super().__init__(
            units, **{**initial, **kwargs, "return_sequences": True, "return_state": True}
        )

    def inner_loop(
        self, sequences: Any, initial_state: Any, mask: Any, training: bool = False
    ) -> Any:
        """Run the loop of the layer; Keras calls it.

        Args:
            sequences: Inputs [B, P, I].
            initial_state: The first state [B, D], in a list.
            mask: Steps to skip; Keras's own loop runs if there are any.
            training: True in training; only Keras's own loop uses it.

        Returns:
            The last state [B, D], the states [B, P, D], and the last state in a list.
        """
        if mask is not None or _has_gpu():
            return super().inner_loop(sequences, initial_state, mask, training)
        input_bias_G, recurrent_bias_G = ops.unstack(ops.convert_to_tensor(self.cell.bias), 2)
        input_BPG = ops.matmul(sequences, self.cell.kernel) + input_bias_G
        h0_BD = ops.cast(initial_state[0], "float32")
        weight_DG = ops.copy(self.cell.recurrent_kernel)  # a value, not a variable
        h_BPD = recurrence(
            ops.cast(input_BPG, "float32"), h0_BD, weight_DG, ops.cast(recurrent_bias_G, "float32")
        )
        return h_BPD[:, -1], h_BPD, [h_BPD[:, -1]]


def _has_gpu() -> bool:
    return any(device.startswith("gpu") for device in keras.distribution.list_devices())


class StepSeeds(keras.random.SeedGenerator):  # type: ignore[misc]
    """Seeds of dropout; within `of(key)` they depend on the key alone."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seed = seed
        self._key: Any = None
        self._drawn = 0

    @contextmanager
    def of(self, key: Any) -> Iterator[None]:
        """Draw seeds within the context from `key`, an integer or a scalar integer tensor."""
        self._key = key
        self._drawn = 0
        try:
            yield
        finally:
            self._key = None

    def next(self, ordered: bool = True) -> Any:
        """Return the next seed, int [2]."""
        if self._key is None:
            return super().next(ordered)
        self._drawn += 1
        first = ops.convert_to_tensor(
            np.int64((self.seed << 8) + self._drawn), dtype=self.state.dtype
        )
        return ops.stack([first, ops.cast(self._key, self.state.dtype)])


def dropout(x: Any, rate: float, seeds: StepSeeds, training: bool) -> Any:
    """Drop values with probability `rate` while `training`.

    Args:
        x: Any float tensor; the draw is in float32 for every type.
        rate: Probability of zero.
        seeds: Source of the draw's seed.
        training: False returns `x`.
    """
    if not training or rate == 0:
        return x
    keep = keras.random.uniform(ops.shape(x), dtype="float32", seed=seeds) >= rate
    return ops.where(keep, x / (1 - rate), ops.zeros_like(x))
