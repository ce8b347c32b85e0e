"""Augmentation and smoothing of `cortext.features` on XLA, inside the training step.

The host sends float16 features as they were recorded; the device draws the noise. The numbers
differ from torch's, their distribution does not.

B trials, T bins, C features.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from cortext.features import AugmentationConfig, gaussian_kernel
from cortext_tpu.layers import random_bits

Array = Any
"""A `jax.Array`."""


def prepare(
    x_BTC: Array,
    n_bins_B: Array,
    settings: AugmentationConfig,
    key: Array | None = None,
    *,
    clear_padding: bool = False,
) -> tuple[Array, Array]:
    """Prepare a batch: augment it (with a key), and smooth it; see `cortext.features.prepare`.

    Args:
        x_BTC: Float16 or float32 [B, T, C].
        n_bins_B: int32 [B], bins of each trial.
        settings: Augmentation and smoothing.
        key: uint32 [2]; None augments nothing.
        clear_padding: Zero the bins after each trial.

    Returns:
        Features float32 [B, T, C], and the bins int32 [B] of each trial without the cut. Zeros at
        the end replace the bins that `random_cut` takes from the start, because shapes are static.
    """
    x_BTC = x_BTC.astype(jnp.float32)
    if key is not None:
        x_BTC, n_bins_B = augment(x_BTC, n_bins_B, settings, key)
    if settings.smooth_data:
        x_BTC = smooth(x_BTC, settings.smooth_kernel_std, settings.smooth_kernel_size)
    if clear_padding:
        inside_BT = jnp.arange(x_BTC.shape[1]) < n_bins_B[:, None]
        x_BTC = jnp.where(inside_BT[..., None], x_BTC, 0.0)
    return x_BTC, n_bins_B


def augment(
    x_BTC: Array, n_bins_B: Array, settings: AugmentationConfig, key: Array
) -> tuple[Array, Array]:
    """Add gain, noise, offset and walk to a batch and cut its start, in the release's order.

    See `cortext.features.augment`.

    Args:
        x_BTC: float32 [B, T, C].
        n_bins_B: int32 [B], bins of each trial.
        settings: Strength of each augmentation.
        key: uint32 [2]; it decides the result.

    Returns:
        Features float32 [B, T, C], filled up with zeros at the end, and the bins int32 [B] of each
        trial without the cut.
    """
    n_trials, n_bins, n_features = x_BTC.shape
    if settings.static_gain_std > 0:
        mixing_BCC = normal(key, (n_trials, n_features, n_features), 0) * settings.static_gain_std
        x_BTC += jnp.einsum("btc,bcd->btd", x_BTC, mixing_BCC)
    if settings.white_noise_std > 0:
        x_BTC += normal(key, x_BTC.shape, 1) * settings.white_noise_std
    if settings.constant_offset_std > 0:
        x_BTC += normal(key, (n_trials, 1, n_features), 2) * settings.constant_offset_std
    if settings.random_walk_std > 0:
        steps_BTC = normal(key, x_BTC.shape, 3) * settings.random_walk_std
        x_BTC += jnp.cumsum(steps_BTC, axis=settings.random_walk_axis)
    if settings.random_cut > 0:
        n_cut = (random_bits(key, (), 4) % settings.random_cut).astype(jnp.int32)
        padded = jnp.pad(x_BTC, ((0, 0), (0, settings.random_cut - 1), (0, 0)))
        x_BTC = jax.lax.dynamic_slice_in_dim(padded, n_cut, n_bins, axis=1)
        n_bins_B = n_bins_B - n_cut
    return x_BTC, n_bins_B


def normal(key: Array, shape: tuple[int, ...], stream: int) -> Array:
    """Draw normal numbers, float32, from 23 bits each; none exceeds 5.3 standard deviations.

    Args:
        key: uint32 [2].
        shape: Shape of the result.
        stream: Number of an independent draw with the same key.
    """
    uniform = (
        (random_bits(key, shape, stream) >> 9).astype(jnp.float32) + 0.5
    ) * 2.0**-22 - 1.0  # exact
    return jax.lax.erf_inv(uniform) * math.sqrt(2)


def smooth(x_BTC: Array, std_bins: float, size: int) -> Array:
    """Smooth features over time with padding `same`; see `cortext.features.smooth`.

    Args:
        x_BTC: float32 [B, T, C].
        std_bins: Standard deviation of the kernel, in bins.
        size: Points of the kernel before its tails are cut.

    Returns:
        float32 [B, T, C].
    """
    kernel_K = gaussian_kernel(std_bins, size)
    before = (len(kernel_K) - 1) // 2
    n_bins = x_BTC.shape[1]
    x_BTC = jnp.pad(x_BTC, ((0, 0), (before, len(kernel_K) - 1 - before), (0, 0)))
    # XLA fuses the taps into one pass over the features.
    taps = enumerate(kernel_K.tolist())
    return sum((x_BTC[:, lag : lag + n_bins] * tap for lag, tap in taps), jnp.zeros(()))
