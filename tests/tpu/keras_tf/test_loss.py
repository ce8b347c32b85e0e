"""Losses against torch's in float64."""

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow", reason="run `make test-tf`")

from dataclasses import replace

import keras

from cortext.errors import ConfigError
from cortext.models import GRUConfig, TripleGRUConfig
from cortext.training import TrainConfig
from cortext.training.adversarial import AdversarialConfig
from cortext.training.adversarial import noise_energy as torch_noise_energy
from cortext_tpu.keras_tf.ctc import ctc_loss
from cortext_tpu.keras_tf.loss import CTC, Adversarial, keras_loss, noise_energy

N_PATCHES, N_TOKENS = 13, 7
LABELS = (
    [1, 2, 3, 0, 0],
    [4, 4, 4, 0, 0],
    [0, 0, 0, 0, 0],
    [6, 5, 6, 5, 6],
    [2, 0, 0, 0, 0],
    [1, 1, 2, 2, 0],
)
N_LABELS = (3, 3, 0, 5, 1, 4)
# The second and the fifth have just as many frames as their labels need.
LENGTHS = (
    13,
    5,
    4,
    9,
    1,
    7,
)


def arrays():
    logits_BPV = (
        np.random.default_rng(0).normal(size=(len(LABELS), N_PATCHES, N_TOKENS)).astype(np.float32)
        * 3
    )
    return (
        logits_BPV,
        np.array(LENGTHS, np.int32),
        np.array(LABELS, np.int32),
        np.array(N_LABELS, np.int32),
    )


def ours(logits_BPV, *numbers, scale=1.0, jit=False):
    """Losses, and gradients of their weighted sum."""

    @tf.function(jit_compile=jit)
    def run(logits_BPV):
        with tf.GradientTape() as tape:
            tape.watch(logits_BPV)
            loss_B = ctc_loss(logits_BPV, *numbers)
            total = tf.reduce_sum(loss_B * tf.cast(scale, tf.float32))
        return loss_B, tape.gradient(total, logits_BPV)

    return run(tf.convert_to_tensor(logits_BPV))


def theirs(logits_BPV, n_patches_B, labels_BU, n_labels_B, scale=1.0):
    logits_BPV = torch.from_numpy(logits_BPV).double().requires_grad_()
    log_probs_PBV = logits_BPV.log_softmax(-1).transpose(0, 1)
    numbers = (torch.from_numpy(array).long() for array in (labels_BU, n_patches_B, n_labels_B))
    loss_B = torch.nn.functional.ctc_loss(log_probs_PBV, *numbers, reduction="none")
    (loss_B * torch.as_tensor(scale)).sum().backward()
    return loss_B.detach().numpy(), logits_BPV.grad.numpy()


@pytest.mark.parametrize("jit", [False, True])
def test_ctc_and_its_gradient_are_those_of_torch(jit):
    scale = np.array([1.0, 0.5, 2.0, -1.0, 3.0, 0.0])
    found, expected = ours(*arrays(), scale=scale, jit=jit), theirs(*arrays(), scale=scale)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-5)


@pytest.mark.parametrize("n_tokens", [3, 250])
def test_any_number_of_tokens_has_the_loss_of_torch(n_tokens):
    rng = np.random.default_rng(2)
    logits_BPV = rng.normal(size=(2, 40, n_tokens)).astype(np.float32) * 3
    labels_BU = rng.integers(1, n_tokens, (2, 7)).astype(np.int32)
    labels_BU[0, 0] = n_tokens - 1
    numbers = (np.array([40, 30], np.int32), labels_BU, np.array([7, 5], np.int32))
    found, expected = ours(logits_BPV, *numbers), theirs(logits_BPV, *numbers)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-4)


def test_ctc_stays_exact_over_a_thousand_frames():
    rng = np.random.default_rng(1)
    logits_BPV = rng.normal(size=(2, 1000, 41)).astype(np.float32) * 5
    numbers = (np.array([1000, 700], np.int32), rng.integers(1, 41, (2, 150)).astype(np.int32))
    numbers += (np.array([150, 90], np.int32),)
    found, expected = ours(logits_BPV, *numbers), theirs(logits_BPV, *numbers)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-4)


def test_what_lies_beyond_a_trials_frames_and_label_is_never_looked_at():
    logits_BPV, n_patches_B, labels_BU, n_labels_B = arrays()
    clean = ours(logits_BPV, n_patches_B, labels_BU, n_labels_B)
    dirty, labels_BU = logits_BPV.copy(), labels_BU.copy()
    dirty[np.arange(N_PATCHES) >= n_patches_B[:, None]] = 1e4
    labels_BU[np.arange(5) >= n_labels_B[:, None]] = 6
    found = ours(dirty, n_patches_B, labels_BU, n_labels_B)
    np.testing.assert_array_equal(found[0], clean[0])
    np.testing.assert_array_equal(found[1], clean[1])


def test_a_label_that_does_not_fit_is_infinite_and_leaves_the_other_trials_alone():
    logits_BPV, n_patches_B, labels_BU, n_labels_B = arrays()
    clean = ours(logits_BPV, n_patches_B, labels_BU, n_labels_B)
    n_patches_B[1] -= 1  # 4 frames for `4 4 4`, which needs a blank between any two
    loss_B, gradient = (
        found.numpy() for found in ours(logits_BPV, n_patches_B, labels_BU, n_labels_B)
    )
    assert loss_B[1] == np.inf
    assert not gradient[1].any()
    others = [0, 2, 3, 4, 5]
    np.testing.assert_array_equal(loss_B[others], clean[0].numpy()[others])
    np.testing.assert_array_equal(gradient[others], clean[1].numpy()[others])


def test_a_trial_without_frames_is_padding():
    logits_BPV, n_patches_B, labels_BU, n_labels_B = arrays()
    n_patches_B[3] = 0
    loss_B, gradient = ours(logits_BPV, n_patches_B, labels_BU, n_labels_B)
    assert loss_B[3] == 0
    assert not gradient.numpy()[3].any()


def test_a_logit_that_is_no_number_is_not_hidden():
    logits_BPV, *numbers = arrays()
    logits_BPV[0, 2, 1] = np.nan
    loss_B, gradient = (found.numpy() for found in ours(logits_BPV, *numbers))
    assert np.isnan(loss_B[0])
    assert np.isnan(gradient[0]).any()
    assert np.isfinite(gradient[1:]).all()


def test_ctc_is_in_float32_for_logits_in_bfloat16():
    logits_BPV, *numbers = arrays()
    rounded = tf.cast(logits_BPV, tf.bfloat16)
    loss_B, gradient = ours(rounded, *numbers)
    assert loss_B.dtype == tf.float32
    assert gradient.dtype == tf.bfloat16
    expected = theirs(tf.cast(rounded, tf.float32).numpy(), *numbers)
    np.testing.assert_allclose(loss_B, expected[0], rtol=1e-5)


def test_the_energy_of_the_noise_is_that_of_torch():
    noise_BPI, n_patches_B = (
        np.random.default_rng(0).normal(size=(3, 6, 5)).astype(np.float32),
        np.array([6, 2, 4]),
    )
    expected = torch_noise_energy(torch.from_numpy(noise_BPI), torch.from_numpy(n_patches_B))
    np.testing.assert_allclose(noise_energy(noise_BPI, n_patches_B), expected, rtol=1e-6)


@pytest.mark.parametrize("schedule", ["linear", "sigmoid"])
def test_reversal_rises_as_it_does_in_torch(schedule):
    settings = {
        "reversal_start": 0.1,
        "reversal_end": 0.9,
        "reversal_schedule": schedule,
        "reversal_ramp": 0.6,
    }
    loss, config = Adversarial(200, **settings), AdversarialConfig(**settings)
    for step in (0, 1, 37, 119, 120, 199):
        assert float(loss.reversal(tf.constant(step, tf.int64))) == pytest.approx(
            config.reversal(step / 200), rel=1e-6
        )


def test_losses_come_back_from_their_settings():
    loss = Adversarial(200, noisy_weight=0.3, reversal_schedule="sigmoid")
    found = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    assert found.config == loss.config
    assert found.n_batches == 200
    assert isinstance(
        keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(CTC())), CTC
    )


def test_a_run_gets_its_models_loss_or_a_line_that_says_why_not():
    plain, triple = (
        TrainConfig(model=GRUConfig()),
        TrainConfig(model=TripleGRUConfig(), num_training_batches=9),
    )
    assert isinstance(keras_loss(plain), CTC)
    assert keras_loss(triple).n_batches == 9
    assert (
        keras_loss(replace(triple, loss=AdversarialConfig(noise_weight=0.5))).config.noise_weight
        == 0.5
    )
    assert isinstance(keras_loss(replace(triple, loss={"kind": "ctc"})), CTC)
    with pytest.raises(ConfigError, match="cannot train model 'gru'"):
        keras_loss(replace(plain, loss=AdversarialConfig()))
