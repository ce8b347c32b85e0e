"""Torch eager against the same modules on XLA: logits, losses, gradients, and ten steps of training."""

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.tpu
pytest.importorskip("torchax", reason="run `make test-tpu`")

import jax
from small_training import (
    N_BINS,
    N_FEATURES,
    N_LABELS,
    as_torch,
    make_batch,
    make_config,
    make_network,
    weights_of,
)

from cortext.features import prepare
from cortext.models.xla import operands
from cortext.tpu.mesh import data_mesh
from cortext.tpu.step import Programs, numbers
from cortext.training.loss import build_loss

FRACTION_STEP = 60  # of 100: the reversal is 0.42 there


def close(found, expected, tolerance):
    """Whether the largest difference is within `tolerance` of the largest value."""
    found, expected = np.asarray(found), np.asarray(expected)
    return np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


class Side:
    """A model in torch, in float64 (where layers run `nn.GRU` itself), and its programs."""

    def __init__(self, kind):
        self.config = make_config(kind)
        self.network = make_network(self.config)
        self.loss = build_loss(self.config.loss, kind)
        mesh = data_mesh(jax.devices()[:1])
        sizes = {"n_features": N_FEATURES, "n_labels": N_LABELS}
        self.programs = Programs(self.network, self.loss, self.config, mesh, **sizes)
        self.batch = make_batch()
        self.weights = weights_of(self.network)

    def torch_batch(self, network, dtype=torch.float64):
        n_bins_B = torch.from_numpy(self.batch["n_bins"])
        transforms = self.config.dataset.data_transforms
        x_BTC, _ = prepare(torch.from_numpy(self.batch["features"]), n_bins_B, transforms)
        return as_torch(self.batch, network, x_BTC.to(dtype))


@pytest.fixture(scope="module", params=["gru", "triple_gru"])
def side(request):
    return Side(request.param)


@pytest.fixture(scope="module")
def found(side):
    """Gradients and losses on XLA, for features that the step itself smooths."""

    def run(weights, batch, values):
        from cortext.tpu import augment

        transforms = side.config.dataset.data_transforms
        features, n_bins_B = augment.prepare(batch["features"], batch["n_bins"], transforms)
        ready = {**batch, "features": features, "n_bins": n_bins_B}
        return side.programs.gradients(weights, {}, ready, values)

    values = numbers(side.config, FRACTION_STEP, 0.0, 0.0)
    with operands(bf16=False):
        gradients, losses = jax.jit(run)(side.weights, side.batch, values)
    return jax.device_get(gradients), jax.device_get(losses)


@pytest.fixture(scope="module")
def expected(side):
    """The same in torch."""
    network = make_network(side.config).double().train()
    losses = side.loss(network, side.torch_batch(network), FRACTION_STEP / 100)
    losses["loss"].mean().backward()
    gradients = {name: parameter.grad.numpy() for name, parameter in network.named_parameters()}
    return gradients, {name: loss.detach().numpy() for name, loss in losses.items()}


def test_losses_are_those_of_torch(found, expected):
    assert found[1].keys() == expected[1].keys()
    for name, loss_B in expected[1].items():
        np.testing.assert_allclose(found[1][name], loss_B, rtol=1e-5)


def test_every_gradient_is_that_of_torch(found, expected):
    assert found[0].keys() == expected[0].keys()
    for name, gradient in expected[0].items():
        assert np.abs(gradient).max() > 0
        assert close(found[0][name], gradient, 1e-4), name


def test_logits_are_those_of_torch_in_every_frame_of_a_trial(side):
    network = make_network(side.config).double().eval()
    batch = side.torch_batch(network)
    expected = network(batch.x_BTC, batch.day_B)[0].detach().numpy()
    program = side.programs.lower_forward(N_BINS, len(batch), side.programs.mesh).compile()
    features = batch.x_BTC.float().numpy()
    n_patches_B = batch.n_patches_B.numpy().astype(np.int32)
    found = np.asarray(program(side.weights, {}, features, side.batch["day"], n_patches_B))
    inside_BP = np.arange(found.shape[1]) < n_patches_B[:, None]
    assert not inside_BP.all()
    np.testing.assert_allclose(found[inside_BP], expected[inside_BP], atol=1e-5)
