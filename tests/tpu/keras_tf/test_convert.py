"""Weights cross over to torch and back bit for bit."""

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow", reason="run `make test-tf`")

from small_training import N_DAYS, N_FEATURES, make_config, make_network

from cortext.errors import RunError
from cortext.models import GRUConfig, TripleGRUConfig, build_model
from cortext.models.inputs import InputNetworkConfig
from cortext.training import TrainConfig
from cortext.training.setup import freeze
from cortext_tpu.keras_tf.convert import (
    from_torch,
    links,
    load_optimizer_state,
    optimizer_state,
    to_torch,
)
from cortext_tpu.keras_tf.models import keras_model

SHAPES = {
    "gru": GRUConfig(n_units=6, n_layers=3, patch_size=2),
    "gru of one layer and single bins": GRUConfig(n_units=6, n_layers=1, patch_size=0),
    "triple_gru": TripleGRUConfig(
        noise_units=5, noise_layers=2, clean_units=7, clean_layers=1, noisy_units=6, patch_size=2
    ),
    "triple_gru without a read-out of the noise": TripleGRUConfig(
        noise_units=6, clean_units=7, clean_layers=1, noisy_units=6, patch_size=2
    ),
}


def pair(config, n_features=3):
    sizes = {"n_features": n_features, "n_days": 2, "n_classes": 5}
    torch.manual_seed(0)
    return build_model(config, **sizes), keras_model(TrainConfig(model=config), **sizes)


def bits(network):
    return {name: tensor.numpy().tobytes() for name, tensor in network.state_dict().items()}


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_a_round_trip_changes_no_bit_of_any_tensor(config):
    network, model = pair(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    from_torch(model, network)
    assert {name for link in links(model) for name in link.names} == set(network.state_dict())
    assert len(links(model)) == len(model.weights)
    other = build_model(config, n_features=3, n_days=2, n_classes=5)
    to_torch(model, other)
    assert bits(other) == bits(network)


def test_gates_and_biases_lie_where_keras_wants_them():
    network, model = pair(SHAPES["gru of one layer and single bins"])
    from_torch(model, network)
    kernel, recurrent, bias = (weight.numpy() for weight in model.gru[0].cell.weights)
    reset, update, new = network.gru.weight_ih_l0.detach().split(6)
    np.testing.assert_array_equal(kernel, torch.cat([update, reset, new]).T)
    reset, update, new = network.gru.weight_hh_l0.detach().split(6)
    np.testing.assert_array_equal(recurrent, torch.cat([update, reset, new]).T)
    reset, update, new = network.gru.bias_hh_l0.detach().split(6)
    np.testing.assert_array_equal(bias[1], torch.cat([update, reset, new]))
    np.testing.assert_array_equal(model.out.kernel, network.out.weight.detach().T)


def test_what_learns_in_torch_learns_in_keras():
    config = make_config("triple_gru")
    network = make_network(config)
    freeze(network, ["day_", "clean_speech_model.gru"])
    model = keras_model(config, n_features=N_FEATURES, n_days=N_DAYS, n_classes=41)
    from_torch(model, network)
    learning = {id(variable) for variable in model.trainable_variables}
    names = {name for link in links(model) if id(link.variable) in learning for name in link.names}
    assert names == {
        name for name, parameter in network.named_parameters() if parameter.requires_grad
    }
    assert optimizer_state(model).keys() == {
        "day_steps", "mean.day_weight", "mean.day_bias", "square.day_weight", "square.day_bias"
    }  # fmt: skip


def test_settings_freeze_layers_without_torch():
    config = GRUConfig(
        n_units=6, rnn_trainable=False, input_network=InputNetworkConfig(input_trainable=False)
    )
    model = keras_model(TrainConfig(model=config), n_features=3, n_days=2, n_classes=5)
    assert {variable.path.rpartition("/")[2] for variable in model.trainable_variables} == {
        "kernel",
        "bias",
        "h0",
    }
    assert len(model.trainable_variables) == 3


def test_one_of_two_biases_cannot_be_frozen():
    network, model = pair(SHAPES["gru"])
    network.gru.bias_hh_l1.requires_grad_(False)
    with pytest.raises(RunError, match="bias_hh_l1 only one learns"):
        from_torch(model, network)


def test_models_of_other_settings_are_refused_in_one_line():
    network, _ = pair(SHAPES["gru"])
    _, smaller = pair(SHAPES["gru of one layer and single bins"])
    with pytest.raises(RunError, match=r"gru.bias_hh_l1 is in one of the two models only"):
        from_torch(smaller, network)
    _, wider = pair(SHAPES["gru"], n_features=4)
    with pytest.raises(
        RunError, match=r"day_weight has shape \[2, 3, 3\]; the Keras model needs \[2, 4, 4\]"
    ):
        from_torch(wider, network)


def test_an_optimiser_state_without_moments_starts_afresh():
    _, model = pair(SHAPES["gru"])
    fresh = optimizer_state(model)
    assert fresh["day_steps"].tolist() == [0, 0]
    assert not any(name.startswith("steps.") for name in fresh)
    for count in model.optimizer.counts:
        count.assign(np.full(count.shape, 3))
    load_optimizer_state(model, fresh)
    assert all(not np.any(count.numpy()) for count in model.optimizer.counts)
