"""Keras on TensorFlow against torch: logits, losses, every gradient, and ten steps of training."""

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow", reason="run `make test-tf`")

import keras
from small_training import N_DAYS, N_FEATURES, as_torch, make_batch, make_config, make_network

from cortext.training.loss import build_loss
from cortext.training.optim import Optimizer, lr_factor
from cortext_tpu.keras_tf.convert import (
    from_torch,
    links,
    load_optimizer_state,
    optimizer_state,
    to_torch,
)
from cortext_tpu.keras_tf.models import keras_model
from cortext_tpu.keras_tf.optimizer import Schedule

SIZES = {"n_features": N_FEATURES, "n_days": N_DAYS, "n_classes": 41}
STEP = 60  # of 100: the reversal is 0.42 there


def torch_batch(network, batch, dtype=torch.float32):
    return as_torch(batch, network, torch.from_numpy(batch["features"]).to(dtype))


def keras_batch(network, batch):
    n_patches = np.asarray(network.n_patches(batch["n_bins"]), np.int32)
    ready = {**batch, "features": batch["features"].astype(np.float32), "n_patches": n_patches}
    return {name: tf.constant(value) for name, value in ready.items()}


class Side:
    """A model in torch, in float64, and in Keras with the same weights.

    What a batch gives in both.
    """

    def __init__(self, kind):
        self.config, self.batch = make_config(kind), make_batch()
        self.network = make_network(self.config)
        self.model = keras_model(self.config, **SIZES)
        from_torch(self.model, self.network)

    def expected(self):
        network = make_network(self.config).double().train()
        losses = build_loss(self.config.loss, self.config.model.kind)(
            network, torch_batch(network, self.batch, torch.float64), STEP / 100
        )
        losses["loss"].mean().backward()
        return losses, {
            name: parameter.grad.numpy() for name, parameter in network.named_parameters()
        }

    def found(self):
        model = self.model

        @tf.function
        def run(batch):
            with tf.GradientTape() as tape:
                losses = model.loss(model, batch, tf.constant(STEP, tf.int64))
                mean = tf.reduce_mean(losses["loss"])
            return losses, tape.gradient(mean, [link.variable.value for link in links(model)])

        losses, gradients = run(keras_batch(self.network, self.batch))
        arrays = [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]
        named = [link.to_torch(array) for link, array in zip(links(model), arrays, strict=True)]
        return losses, {name: array for part in named for name, array in part.items()}


@pytest.fixture(scope="module", params=["gru", "triple_gru"])
def side(request):
    return Side(request.param)


def test_logits_are_those_of_torch_in_every_frame(side):
    batch = keras_batch(side.network, side.batch)
    network = make_network(side.config).double().eval()
    reference = torch_batch(network, side.batch, torch.float64)
    expected = network(reference.x_BTC, reference.day_B)[0].detach().numpy()
    np.testing.assert_allclose(side.model(batch)[0], expected, atol=1e-5)


def test_losses_and_every_gradient_are_those_of_torch(side):
    """The sign and scale of the reversal included: the noise model's gradients hold it."""
    losses, gradients = side.found()
    expected_losses, expected = side.expected()
    assert losses.keys() == expected_losses.keys()
    for name, loss_B in expected_losses.items():
        np.testing.assert_allclose(losses[name], loss_B.detach(), rtol=1e-5)
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        largest = np.abs(gradient).max()
        assert largest > 0
        assert np.abs(gradients[name] - gradient).max() <= 1e-4 * largest, name


def test_the_reversed_gradient_is_a_noticeable_part_of_the_noise_models():
    """Else the test above would not see a wrong sign."""
    _, with_reversal = Side("triple_gru").expected()
    without = make_network(make_config("triple_gru")).double()
    config = make_config("triple_gru")
    config.loss.reversal_end = 0.0
    batch = torch_batch(without, make_batch(), torch.float64)
    build_loss(config.loss, "triple_gru")(without, batch, STEP / 100)["loss"].mean().backward()
    for name, parameter in without.noise_model.named_parameters():
        reversed_part = with_reversal[f"noise_model.{name}"] - parameter.grad.numpy()
        assert np.abs(reversed_part).max() > 0.01 * np.abs(parameter.grad.numpy()).max()


@pytest.mark.parametrize("noise_units", [10, 16 * 14])
def test_both_modes_give_what_torch_gives_with_a_noise_model_of_any_width(noise_units):
    config = make_config("triple_gru")
    config.model.noise_units = noise_units
    network, batch = make_network(config).eval(), make_batch()
    model = keras_model(config, **SIZES)
    from_torch(model, network)
    assert (model.noise_model.out is None) == (noise_units == 16 * 14)
    reference, ready = torch_batch(network, batch), keras_batch(network, batch)
    with torch.no_grad():
        expected = network(reference.x_BTC, reference.day_B, mode="full", reversal=0.3)
        inferred, states = network(reference.x_BTC, reference.day_B)
    for one, other in zip(model(ready, mode="full", reversal=0.3), expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    logits_BPV, found_states = model(ready)
    np.testing.assert_allclose(logits_BPV, inferred, atol=1e-5)
    for one, other in zip(found_states, states, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(("kind", "pieces"), [("gru", 1), ("triple_gru", 2)])
def test_ten_steps_are_those_of_torch_and_so_is_the_state_of_the_optimiser(kind, pieces):
    config = make_config(
        kind, grad_norm_clip_value=4.0, gradient_accumulation_steps=pieces, weight_decay_day=0.02
    )
    network, loss = make_network(config).train(), build_loss(config.loss, config.model.kind)
    before = {name: parameter.detach().clone() for name, parameter in network.named_parameters()}
    optimizer, model = Optimizer(network, config), keras_model(config, **SIZES)
    from_torch(model, network)
    update = tf.function(model.update)
    norms = []
    for step in range(10):
        # Days 2 and 4 never come.
        batch = make_batch(days=[(3, 3, 1, 1), (0, 0, 3, 3)][step % 2], seed=step)
        reference = torch_batch(network, batch)
        losses = loss(network, reference, step / 100)
        losses["loss"].mean().backward()
        norms.append(float(optimizer.step(step, reference.days)))
        found, norm = update(keras_batch(network, batch))
        np.testing.assert_allclose(norm, norms[-1], rtol=1e-3)
        for name, loss_B in losses.items():
            np.testing.assert_allclose(found[name], loss_B.detach(), rtol=1e-3)
    assert max(norms) > 4  # some are clipped
    trained = make_network(config)
    to_torch(model, trained)
    for name, parameter in trained.named_parameters():
        expected = dict(network.named_parameters())[name]
        assert (expected - before[name]).abs().max() > 1e-3  # it has moved
        assert (parameter - expected).abs().max() < 1e-5
    for day in (2, 4):
        assert torch.equal(trained.day_weight[day], before["day_weight"][day])
    expected, found = optimizer.state(), optimizer_state(model)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=1e-3)
    assert found["day_steps"].tolist() == [5, 5, 0, 10, 0]
    Optimizer(trained, config).load(found)  # torch can continue from it
    load_optimizer_state(model, expected)
    assert all(
        torch.equal(tensor, expected[name]) for name, tensor in optimizer_state(model).items()
    )


@pytest.mark.parametrize("kind", ["cosine", "linear"])
@pytest.mark.parametrize("warmup", [0, 7])
def test_learning_rates_are_those_of_torch_at_every_step(kind, warmup):
    schedule = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(Schedule(kind, 0.005, 0.02, 50, warmup))
    )
    found = [float(schedule(tf.constant(step, tf.int64))) for step in range(60)]
    expected = [0.005 * lr_factor(step, kind, 0.02, 50, warmup) for step in range(60)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-9)
