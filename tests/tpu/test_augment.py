"""Augmentation and smoothing on XLA.

Equal to torch's where nothing is drawn, alike in distribution where it is.
"""

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.tpu
pytest.importorskip("torchax", reason="run `make test-tpu`")

import jax
import jax.numpy as jnp
import torchax
from torchax.interop import call_torch

from cortext import features
from cortext.features import AugmentationConfig
from cortext_tpu import layers as xla
from cortext_tpu.augment import prepare

OFF = {"white_noise_std": 0.0, "constant_offset_std": 0.0, "random_cut": 0}
RNG = np.random.default_rng(0)
X_BTC = RNG.normal(size=(3, 50, 4)).astype(np.float16)
N_BINS_B = np.array([50, 41, 30], np.int32)


def key(number):
    return jnp.array([7, number], jnp.uint32)


def augmented(settings, number=0, x_BTC=X_BTC, **options):
    found, n_bins_B = prepare(
        jnp.asarray(x_BTC), jnp.asarray(N_BINS_B), settings, key(number), **options
    )
    return np.array(found), np.array(n_bins_B)


@pytest.mark.parametrize("cleared", [True, False])
@pytest.mark.parametrize("smoothed", [True, False])
def test_with_everything_off_it_is_what_torch_prepares(smoothed, cleared):
    settings = AugmentationConfig(**OFF, smooth_data=smoothed)
    found, n_bins_B = augmented(settings, clear_padding=cleared)
    expected, _ = features.prepare(
        torch.from_numpy(X_BTC), torch.from_numpy(N_BINS_B), settings, clear_padding=cleared
    )
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    np.testing.assert_array_equal(n_bins_B, N_BINS_B)


def test_a_cut_shifts_the_trials_and_leaves_zeros_at_the_end():
    """As often 0 as 1 or 2 bins, the same for the whole batch.

    Smoothing sees the zeros that it sees beyond the end.
    """
    settings = AugmentationConfig(**OFF | {"random_cut": 3})
    plain = AugmentationConfig(**OFF)
    counts = np.zeros(3, int)
    for number in range(60):
        found, n_bins_B = augmented(settings, number)
        (cut,) = set((N_BINS_B - n_bins_B).tolist())
        counts[cut] += 1
        expected, _ = features.prepare(
            torch.from_numpy(X_BTC[:, cut:]), torch.tensor(n_bins_B), plain
        )
        np.testing.assert_allclose(found[:, : 50 - cut], expected.numpy(), atol=1e-6)
    assert counts.min() >= 10  # 20 each are expected; fewer than 10 come once in 500 times


def test_noise_has_the_spread_that_the_settings_say():
    """White noise is independent everywhere, an offset is a trial's and a feature's, as torch
    draws them.
    """
    zeros = np.zeros((64, 80, 16), np.float16)
    white, _ = augmented(
        AugmentationConfig(**OFF | {"white_noise_std": 0.7}, smooth_data=False), x_BTC=zeros
    )
    assert white.std() == pytest.approx(0.7, rel=0.01)
    assert abs(white.mean()) < 0.01
    assert (np.abs(white) > 3 * 0.7).mean() == pytest.approx(0.0027, rel=0.2)
    for axis in range(3):
        neighbours = np.corrcoef(
            white.take(range(15), axis).ravel(), white.take(range(1, 16), axis).ravel()
        )[0, 1]
        assert abs(neighbours) < 0.02
    offset, _ = augmented(
        AugmentationConfig(**OFF | {"constant_offset_std": 0.3}, smooth_data=False), x_BTC=zeros
    )
    assert np.ptp(offset, axis=1).max() == 0
    assert offset[:, 0].std() == pytest.approx(0.3, rel=0.1)


@pytest.mark.parametrize("axis", [-1, 1])
def test_a_walk_has_independent_steps_along_its_axis(axis):
    settings = AugmentationConfig(
        **OFF, random_walk_std=0.2, random_walk_axis=axis, smooth_data=False
    )
    walk, _ = augmented(settings, x_BTC=np.zeros((64, 80, 16), np.float16))
    steps = np.diff(walk, axis=axis)
    assert steps.std() == pytest.approx(0.2, rel=0.02)
    assert walk.take(-1, axis).std() == pytest.approx(0.2 * walk.shape[axis] ** 0.5, rel=0.1)


def test_gain_mixes_the_features_of_a_trial():
    settings = AugmentationConfig(**OFF, static_gain_std=0.1, smooth_data=False)
    ones = np.ones((500, 2, 9), np.float16)
    found, _ = augmented(settings, x_BTC=ones)
    assert (found[:, 0] == found[:, 1]).all()  # the same in all bins
    assert found.mean() == pytest.approx(1, abs=0.02)
    assert found[:, 0].std() == pytest.approx(0.1 * 9**0.5, rel=0.05)  # the sum of nine draws


def test_draws_are_a_function_of_the_key():
    settings = AugmentationConfig(white_noise_std=1.0)
    np.testing.assert_array_equal(augmented(settings, 5)[0], augmented(settings, 5)[0])
    assert np.abs(augmented(settings, 5)[0] - augmented(settings, 6)[0]).max() > 0.1


def test_streams_are_independent_draws_with_one_key():
    streams = np.stack(
        [np.asarray(xla.random_bits(key(1), (100, 100), stream)).ravel() for stream in range(5)]
    )
    for bit in (0, 9, 31):
        correlations = np.corrcoef(streams >> bit & 1) - np.eye(5)
        assert np.abs(correlations).max() < 0.05  # five standard deviations


def test_no_noise_is_a_copy_of_another():
    """Each kind of noise alone, of one key, in the order in which its numbers are drawn."""
    shape, n_features = (64, 20, 32), 32
    zeros, first = np.zeros(shape, np.float16), np.zeros(shape, np.float16)
    first[..., 0] = 1

    def alone(x_BTC=zeros, **setting):
        return augmented(AugmentationConfig(**OFF | setting, smooth_data=False), x_BTC=x_BTC)[0]

    white_N = alone(white_noise_std=1.0).ravel()
    steps_N = np.diff(alone(random_walk_std=1.0, random_walk_axis=1), axis=1, prepend=0).ravel()
    offset_N = alone(constant_offset_std=1.0)[:, 0].ravel()
    # The first row of each trial's matrix.
    gain_BC = (alone(first, static_gain_std=1.0) - first)[:40, 0]
    number_BC = np.arange(40)[:, None] * n_features**2 + np.arange(n_features)
    pairs = [(white_N, steps_N)]
    for noise_N in (white_N, steps_N):
        pairs += [
            (noise_N[: len(offset_N)], offset_N),
            (noise_N[number_BC].ravel(), gain_BC.ravel()),
        ]
    for one_N, other_N in pairs:
        assert abs(np.corrcoef(one_N, other_N)[0, 1]) < 5 / len(one_N) ** 0.5


def test_dropout_keeps_what_it_should_scaled_up_and_draws_anew_for_each_layer():
    def twice(x):
        return xla.dropout(x, 0.4, True), xla.dropout(x, 0.4, True), xla.dropout(x, 0.4, False)

    with torchax.default_env().override_property(prng=jax.random.key(3)):
        first, second, off = (np.asarray(x) for x in call_torch(twice, jnp.ones((200, 300))))
    assert set(np.unique(first)) == {0.0, np.float32(1 / 0.6)}
    assert (first == 0).mean() == pytest.approx(0.4, abs=0.01)
    assert ((first == 0) & (second == 0)).mean() == pytest.approx(0.16, abs=0.01)
    assert (off == 1).all()
