"""Torch eager against the same modules on XLA.

Logits, losses, gradients, and ten steps of training.
"""

import re

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.tpu
pytest.importorskip("torchax", reason="run `make test-tpu`")

import jax
import jax.numpy as jnp
from small_training import (
    N_BINS,
    N_DAYS,
    N_FEATURES,
    N_LABELS,
    as_torch,
    make_batch,
    make_config,
    make_network,
    weights_of,
)

import cortext_tpu.layers  # noqa: F401 # registers XLA's layers and CTC
from cortext.features import prepare
from cortext.models import read_output
from cortext.training.loss import build_loss, ctc_loss
from cortext.training.optim import Optimizer, day_learning_rate, learning_rate
from cortext_tpu.mesh import data_mesh, everywhere, put
from cortext_tpu.optimizer import AdamW, first_state
from cortext_tpu.products import tracing
from cortext_tpu.step import Programs, numbers

SIZES = {"n_features": N_FEATURES, "n_labels": N_LABELS}
ONE_CORE = data_mesh(jax.devices()[:1])
FRACTION_STEP = 60  # of 100: the reversal is 0.42 there


def close(found, expected, tolerance):
    """True if the largest difference is within `tolerance` of the largest value."""
    found, expected = np.asarray(found), np.asarray(expected)
    return np.abs(found - expected).max() <= tolerance * np.abs(expected).max()


def pads_last_patch(network):
    """True if the bins after a trial must be zeros."""
    return getattr(network, "pads_last_patch", False)


class Side:
    """A model in torch, in float64 (where layers run `nn.GRU` itself), and its programs."""

    def __init__(self, kind):
        self.config = make_config(kind)
        self.network = make_network(self.config)
        self.loss = build_loss(self.config.loss, self.config.model.kind)
        self.programs = Programs(self.network, self.loss, self.config, ONE_CORE, **SIZES)
        self.batch = make_batch()
        self.weights = weights_of(self.network)

    def torch_batch(self, network, dtype=torch.float64):
        n_bins_B = torch.from_numpy(self.batch["n_bins"])
        transforms = self.config.dataset.data_transforms
        x_BTC, _ = prepare(
            torch.from_numpy(self.batch["features"]),
            n_bins_B,
            transforms,
            clear_padding=pads_last_patch(network),
        )
        return as_torch(self.batch, network, x_BTC.to(dtype))


@pytest.fixture(scope="module", params=["gru", "diphones", "transformer", "triple_gru"])
def side(request):
    return Side(request.param)


@pytest.fixture(scope="module")
def found(side):
    """Gradients and losses on XLA, for features that the step itself smooths."""

    def run(weights, batch, values):
        from cortext_tpu import augment

        transforms = side.config.dataset.data_transforms
        features, n_bins_B = augment.prepare(
            batch["features"],
            batch["n_bins"],
            transforms,
            clear_padding=pads_last_patch(side.network),
        )
        ready = {**batch, "features": features, "n_bins": n_bins_B}
        return side.programs.gradients(weights, {}, ready, values)

    values = numbers(side.config, FRACTION_STEP, 0.0, 0.0)
    with tracing(bf16=False):
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
    with torch.no_grad():
        output = read_output(network(batch.x_BTC, batch.day_B, n_patches_B=batch.n_patches_B))
    program = side.programs.lower_forward(N_BINS, len(batch), side.programs.mesh).compile()
    features = batch.x_BTC.float().numpy()
    n_patches_B = batch.n_patches_B.numpy().astype(np.int32)
    logits, extras = program(side.weights, {}, features, side.batch["day"], n_patches_B)
    assert extras.keys() == output.extras.keys()
    inside_BP = np.arange(logits.shape[1]) < n_patches_B[:, None]
    assert not inside_BP.all()
    for found, expected in [
        (logits, output.logits),
        *((extras[n], output.extras[n]) for n in extras),
    ]:
        np.testing.assert_allclose(
            np.asarray(found)[inside_BP], expected.numpy()[inside_BP], atol=1e-5
        )


@pytest.mark.parametrize("side", ["triple_gru"], indirect=True)
def test_the_noise_model_gets_the_adversarys_gradient_reversed_and_as_strong_as_it_is_to_be(
    side, found
):
    """The gradient with the adversary less the one without it is -0.42 times what the adversary
    itself would want.
    """
    network = make_network(side.config).double()
    batch = side.torch_batch(network)
    x_BPI = network.inputs(batch.x_BTC, batch.day_B)
    noise_BPI = network.noise_model(x_BPI)[0]
    noisy_BPV = network.noisy_speech_model(noise_BPI)[0]  # no reversal: what helps the adversary
    losses_B = ctc_loss(noisy_BPV, batch.n_patches_B, batch.labels_BU, batch.n_labels_B)
    (0.2 * losses_B.mean()).backward()

    quiet = make_network(side.config).double()
    side.loss(quiet, side.torch_batch(quiet), 0.0)[
        "loss"
    ].mean().backward()  # the reversal is 0 there
    for name, parameter in network.noise_model.named_parameters():
        without = quiet.get_parameter(f"noise_model.{name}").grad
        difference = found[0][f"noise_model.{name}"] - without.numpy()
        assert close(difference, -0.42 * parameter.grad.numpy(), 2e-3), name


@pytest.mark.parametrize("side", ["triple_gru"], indirect=True)
def test_in_bfloat16_products_add_up_in_float32_and_the_rest_is_float32(side, expected):
    """Of a whole step; its losses and the norm of its gradient are near those of float64."""
    config = make_config("triple_gru", precision="bf16")
    lowered = Programs(make_network(config), side.loss, config, ONE_CORE, **SIZES).lower_update(
        N_BINS
    )
    products = re.findall(
        r"dot_general.*: \(tensor<\S*?(\w+)>, tensor<\S*?(\w+)>\) -> tensor<\S*?(\w+)>",
        text := lowered.as_text(),
    )
    types = [tuple(kind.lstrip("x0123456789") for kind in product) for product in products]
    # Five layers, each with two products forwards and four backwards.
    assert types.count(("bf16", "bf16", "f32")) >= 20
    assert {result for *_, result in types} == {"f32"}
    assert not re.search(r"stablehlo\.(exponential|log|log_plus_one|tanh|logistic)\b.*bf16", text)
    state = jax.device_get(first_state(side.weights))
    values = numbers(config, FRACTION_STEP, 0.0, 0.0)
    *_, losses, norm = lowered.compile()(side.weights, {}, state, side.batch, values)
    np.testing.assert_allclose(losses["loss"], expected[1]["loss"], rtol=0.01)
    assert float(norm) == pytest.approx(
        sum((g**2).sum() for g in expected[0].values()) ** 0.5, rel=0.03
    )


class Both:
    """The same training in torch and on XLA, batch after batch."""

    def __init__(self, config):
        self.config = config
        self.network = make_network(config)
        self.loss = build_loss(config.loss, config.model.kind)
        self.optimizer = Optimizer(self.network, config)
        programs = Programs(make_network(config), self.loss, config, ONE_CORE, **SIZES)
        self.program = programs.lower_update(N_BINS).compile()
        self.weights = put(everywhere(ONE_CORE), weights_of(self.network))
        self.state = put(everywhere(ONE_CORE), jax.device_get(first_state(self.weights)))

    def steps(self, n_steps):
        for step in range(n_steps):
            batch = make_batch(days=[(3, 1, 3, 0), (1, 1, 0, 0)][step % 2], seed=step)
            self.step(step, batch)

    def step(self, step, batch):
        """One step of both; the norms of the gradients."""
        transforms = self.config.dataset.data_transforms
        x_BTC, _ = prepare(
            torch.from_numpy(batch["features"]),
            torch.from_numpy(batch["n_bins"]),
            transforms,
            clear_padding=pads_last_patch(self.network),
        )
        trials = as_torch(batch, self.network, x_BTC)
        self.loss(self.network.train(), trials, step / self.config.num_training_batches)[
            "loss"
        ].mean().backward()
        expected = self.optimizer.step(step, trials.days)
        rates = learning_rate(self.config, step), day_learning_rate(self.config, step)
        values = numbers(self.config, step, *rates)
        self.weights, self.state, _, norm = self.program(
            self.weights, {}, self.state, batch, values
        )
        return float(norm), float(expected)


@pytest.fixture(scope="module", params=["gru", "transformer", "triple_gru"])
def trained(request):
    """Ten steps, clipped at a norm that some gradients exceed."""
    both = Both(make_config(request.param, grad_norm_clip_value=5.0, epsilon=0.1))
    both.steps(10)
    return both


def test_ten_steps_stay_within_a_thousandth(trained):
    start = weights_of(make_network(trained.config))
    for name, parameter in trained.network.named_parameters():
        expected, found = parameter.detach().numpy(), np.asarray(trained.weights[name])
        moved = np.abs(expected - start[name]).max()
        assert moved > 0, name
        assert np.abs(found - expected).max() <= 1e-3 * moved, name


def test_days_that_no_batch_had_stay_where_they_were_and_each_day_counts_its_own_steps(trained):
    start = weights_of(make_network(trained.config))
    for name in ("day_weight", "day_bias"):
        found = np.asarray(trained.weights[name])
        np.testing.assert_array_equal(found[[2, 4]], start[name][[2, 4]])
        assert all((found[day] != start[name][day]).any() for day in (0, 1, 3))
    assert trained.state.day_steps.tolist() == [10, 10, 0, 5, 0]
    assert trained.optimizer.day_adam.steps.tolist() == [10, 10, 0, 5, 0]


def test_moments_are_those_of_torch(trained):
    expected = trained.optimizer.state()
    for part in ("mean", "square", "steps"):
        for name, tensor in getattr(trained.state, part).items():
            assert close(tensor, expected[f"{part}.{name}"].numpy(), 1e-3), (part, name)


def test_a_gradient_that_is_not_finite_moves_nothing(trained):
    before = jax.device_get((trained.weights, trained.state))
    batch = make_batch(seed=3)
    batch["features"][1, 5, 2] = np.inf
    norm, expected = trained.step(10, batch)
    assert not np.isfinite(norm)
    assert not np.isfinite(expected)
    jax.tree.map(
        np.testing.assert_array_equal, jax.device_get((trained.weights, trained.state)), before
    )


def test_the_optimiser_is_torchs_to_a_millionth():
    """The same made-up gradients, among them one that is clipped and days that are absent."""
    config = make_config(
        grad_norm_clip_value=3.0, weight_decay_day=0.05, lr_warmup_steps=0, lr_warmup_steps_day=0
    )
    network = make_network(config)
    optimizer = Optimizer(network, config)
    weights = {name: jnp.asarray(array) for name, array in weights_of(network).items()}
    state, move = first_state(weights), jax.jit(AdamW(config).move)
    rng = np.random.default_rng(0)
    for step, (days, scale) in enumerate([((0, 2), 0.01), ((2, 2, 1), 1.0), ((4, 0), 0.001)]):
        gradients = {
            name: rng.normal(size=w.shape).astype(np.float32) * scale for name, w in weights.items()
        }
        for name in ("day_weight", "day_bias"):
            gradients[name][np.setdiff1d(np.arange(N_DAYS), days)] = 0
        for name, parameter in network.named_parameters():
            parameter.grad = torch.from_numpy(gradients[name].copy())
        norm = optimizer.step(step, torch.tensor(sorted(set(days))))
        rates = learning_rate(config, step), day_learning_rate(config, step)
        weights, state, found = move(weights, gradients, state, jnp.array(days), *rates)
        assert float(found) == pytest.approx(float(norm), rel=1e-5)
    for name, parameter in network.named_parameters():
        np.testing.assert_allclose(weights[name], parameter.detach().numpy(), atol=1e-6)
