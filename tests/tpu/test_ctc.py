"""CTC on XLA against torch's in float64."""

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.tpu
pytest.importorskip("torchax", reason="run `make test-tpu`")

import jax
import jax.numpy as jnp
from torchax.interop import call_torch

import cortext_tpu.layers  # noqa: F401 # what `ctc_loss` computes with on torchax
from cortext.training.loss import ctc_loss

N_PATCHES, N_TOKENS = 40, 41
# Repeats (which need a blank between them), a label that just fits its frames, an empty one, one
# frame, long padding.
LABELS = [[3, 3, 3, 7, 7, 1], [5, 6, 5, 6, 5, 6], [], [9], [2, 2], [40, 1, 40, 2, 40, 3]]
FRAMES = [40, 6, 12, 1, 3, 20]
TOO_LONG = 4  # as a trial: [2, 2] needs three frames


def both(frames, dtype):
    """Losses, and the gradient of their sum weighted by trial, on XLA and in torch."""
    logits_BPV = (
        np.random.default_rng(0).normal(size=(len(LABELS), N_PATCHES, N_TOKENS)) * 3
    ).astype(np.float32)
    labels_BU = np.array([label + [0] * (6 - len(label)) for label in LABELS])
    return compared(
        logits_BPV, (np.array(frames), labels_BU, np.array([len(label) for label in LABELS])), dtype
    )


def compared(logits_BPV, numbers, dtype):
    """The same for frames [B], labels [B, U] and their lengths [B]."""
    weight_B = np.arange(1.0, len(logits_BPV) + 1)

    def on_xla(logits_BPV):
        arguments = [jnp.asarray(x, jnp.int32) for x in numbers]
        losses_B = call_torch(ctc_loss, logits_BPV, *arguments)
        return (losses_B * weight_B).sum(), losses_B

    gradient, found = jax.jit(jax.grad(on_xla, has_aux=True))(jnp.asarray(logits_BPV, dtype))
    logits = (
        torch.from_numpy(logits_BPV)
        .to(getattr(torch, np.dtype(dtype).name))
        .double()
        .requires_grad_()
    )
    frames_B, labels, lengths_B = (torch.from_numpy(x) for x in numbers)
    log_probs = logits.log_softmax(-1).transpose(0, 1)
    expected = torch.nn.functional.ctc_loss(
        log_probs, labels, frames_B, lengths_B, reduction="none"
    )
    (expected * torch.from_numpy(weight_B)).sum().backward()
    return (
        np.asarray(found),
        np.asarray(gradient, np.float32),
        expected.detach().numpy(),
        logits.grad.numpy(),
    )


def test_every_trial_has_its_own_lengths():
    found, gradient, expected, expected_gradient = both(FRAMES, jnp.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert np.abs(gradient - expected_gradient).max() < 1e-4 * np.abs(expected_gradient).max()
    for trial, n_patches in enumerate(FRAMES):
        assert not gradient[trial, n_patches:].any()


@pytest.mark.parametrize("n_tokens", [3, 250])
def test_any_number_of_tokens_has_the_loss_of_torch(n_tokens):
    rng, n_trials, n_patches, n_labels = np.random.default_rng(0), 3, 40, 7
    logits_BPV = (rng.normal(size=(n_trials, n_patches, n_tokens)) * 3).astype(np.float32)
    labels_BU = rng.integers(1, n_tokens, (n_trials, n_labels))
    labels_BU[0, 0] = n_tokens - 1
    numbers = np.full(n_trials, n_patches), labels_BU, np.full(n_trials, n_labels)
    found, gradient, expected, of_torch = compared(logits_BPV, numbers, jnp.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, of_torch, atol=1e-4 * np.abs(of_torch).max())


@pytest.mark.parametrize("n_labels", [28, 110])
def test_long_trials_keep_their_digits(n_labels):
    """Torch's own float32 is off by up to 8e-4 of the largest gradient here."""
    rng, n_trials, n_patches = np.random.default_rng(0), 8, 222
    logits_BPV = (rng.normal(size=(n_trials, n_patches, N_TOKENS)) * 3).astype(np.float32)
    labels_BU = rng.integers(1, N_TOKENS, (n_trials, n_labels))
    n_labels_B, n_patches_B = np.full(n_trials, n_labels), np.full(n_trials, n_patches)
    n_labels_B[:3], n_patches_B[2:4] = (n_labels - 3, 10, 10), n_patches - 7
    labels_BU[np.arange(n_labels) >= n_labels_B[:, None]] = 0
    found, gradient, expected, of_torch = compared(
        logits_BPV, (n_patches_B, labels_BU, n_labels_B), jnp.float32
    )
    np.testing.assert_allclose(found, expected, rtol=2e-6)
    for trial in range(n_trials):
        assert (
            np.abs(gradient[trial] - of_torch[trial]).max() < 5e-5 * np.abs(of_torch[trial]).max()
        )


def test_logits_in_bfloat16_have_their_loss_in_float32():
    found, gradient, expected, _ = both(FRAMES, jnp.bfloat16)
    assert found.dtype == np.float32
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_label_that_does_not_fit_is_infinite_and_spares_the_other_trials():
    frames = list(FRAMES)
    frames[TOO_LONG] = 2
    found, gradient, expected, _ = both(frames, jnp.float32)
    others = np.arange(len(LABELS)) != TOO_LONG
    assert found[TOO_LONG] == expected[TOO_LONG] == np.inf
    assert np.isnan(gradient[TOO_LONG]).all()  # which moves nothing, and is reported
    assert np.isfinite(gradient[others]).all()
    np.testing.assert_allclose(found[others], expected[others], rtol=1e-5)
