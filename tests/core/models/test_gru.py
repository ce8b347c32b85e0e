import numpy as np
import pytest
import torch
from torch import nn

from cortext.errors import ConfigError
from cortext.models import GRUConfig, build_model
from cortext.models.gru import InputNetworkConfig

SMALL = GRUConfig(n_units=16, n_layers=2, input_network=InputNetworkConfig(input_layer_dropout=0.2))


def small(config: GRUConfig = SMALL):
    torch.manual_seed(0)
    model = build_model(config, n_features=6, n_days=3, n_classes=41).eval()
    with torch.no_grad():  # day layers that differ
        model.day_weight.add_(torch.randn(model.day_weight.shape) * 0.3)
        model.day_bias.add_(torch.randn(model.day_bias.shape) * 0.3)
    return model


def oracle(model, x_TC: np.ndarray, day: int) -> np.ndarray:
    """One trial, one bin and one patch at a time, in float64, from the equations."""
    weights = {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}

    def sigmoid(a):
        return 1 / (1 + np.exp(-a))

    y_TC = np.array([x @ weights["day_weight"][day] + weights["day_bias"][day] for x in x_TC])
    y_TC = y_TC / (1 + np.abs(y_TC))
    inputs = [
        np.concatenate([y_TC[first + k] for k in range(14)])
        for first in range(0, len(y_TC) - 13, 4)
    ]
    for layer in range(2):
        hidden, outputs = weights["h0"][0, 0], []
        for x in inputs:
            from_input = weights[f"gru.weight_ih_l{layer}"] @ x + weights[f"gru.bias_ih_l{layer}"]
            from_state = (
                weights[f"gru.weight_hh_l{layer}"] @ hidden + weights[f"gru.bias_hh_l{layer}"]
            )
            r, z = (
                sigmoid(from_input[:16] + from_state[:16]),
                sigmoid(from_input[16:32] + from_state[16:32]),
            )
            n = np.tanh(from_input[32:] + r * from_state[32:])
            hidden = (1 - z) * n + z * hidden
            outputs.append(hidden)
        inputs = outputs
    return np.array([weights["out.weight"] @ hidden + weights["out.bias"] for hidden in inputs])


@pytest.mark.parametrize("day", [0, 2])
def test_logits_are_those_of_the_equations(day):
    model = small()
    x_TC = np.random.default_rng(1).normal(size=(47, 6))
    with torch.no_grad():
        logits_BPV, _ = model(torch.from_numpy(x_TC).float()[None], torch.tensor([day]))
    np.testing.assert_allclose(logits_BPV[0].numpy(), oracle(model, x_TC, day), atol=1e-5)


def test_training_mode_without_dropout_gives_the_same_logits_and_the_gradients_of_nn_gru():
    config = GRUConfig(
        n_units=16,
        n_layers=3,
        rnn_dropout=0.0,
        input_network=InputNetworkConfig(input_layer_dropout=0.0),
    )
    model = small(config)
    x_BTC = torch.randn(4, 60, 6, generator=torch.Generator().manual_seed(1))
    day_B = torch.tensor([0, 1, 1, 2])

    def plain_forward():
        x = (
            torch.einsum("btc,bck->btk", x_BTC, model.day_weight[day_B])
            + model.day_bias[day_B][:, None]
        )
        patches = nn.functional.softsign(x).unfold(1, 14, 4).transpose(2, 3).flatten(2)
        hidden, state = model.gru(patches, model.h0.expand(3, 4, 16).contiguous())
        return model.out(hidden), state

    results = []
    for forward in (plain_forward, lambda: model.train()(x_BTC, day_B)):
        model.zero_grad()
        logits, state = forward()
        (logits.square().mean() + state.sum()).backward()
        results.append(
            [logits, state, *(parameter.grad.clone() for parameter in model.parameters())]
        )
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize(
    ("n_bins", "n_patches"), [(14, 1), (17, 1), (18, 2), (325, 78), (13, 0), (3, 0)]
)
def test_patches_are_fourteen_bins_every_four(n_bins, n_patches):
    model = small()
    assert model.n_patches(n_bins) == n_patches
    assert model.n_patches(np.array([n_bins])).tolist() == [n_patches]
    assert model.n_patches(torch.tensor([n_bins])).tolist() == [n_patches]
    if n_patches:
        assert model(torch.zeros(1, n_bins, 6), torch.tensor([0]))[0].shape == (1, n_patches, 41)


def test_patch_size_zero_reads_single_bins():
    model = small(GRUConfig(n_units=16, n_layers=1, patch_size=0))
    assert model.n_patches(9) == 9
    assert model(torch.zeros(1, 9, 6), torch.tensor([0]))[0].shape == (1, 9, 41)


def test_initial_weights_are_the_releases():
    torch.manual_seed(0)
    model = build_model(GRUConfig(n_units=32, n_layers=2), n_features=6, n_days=3, n_classes=41)
    assert torch.equal(model.day_weight, torch.eye(6).expand(3, 6, 6))
    assert not model.day_bias.any()
    for layer in range(2):
        # [96, 32]: the stack of gates has orthonormal columns.
        recurrent = getattr(model.gru, f"weight_hh_l{layer}")
        torch.testing.assert_close(recurrent.T @ recurrent, torch.eye(32), atol=1e-5, rtol=0)
    bounds = {
        "gru.weight_ih_l0": (84, 96),
        "gru.weight_ih_l1": (32, 96),
        "out.weight": (32, 41),
        "h0": (32, 32),
    }
    for name, (
        fan_in,
        fan_out,
    ) in bounds.items():  # Glorot and Bengio 2010: uniform within sqrt(6 / (in + out))
        largest, bound = (
            float(model.get_parameter(name).detach().abs().max()),
            (6 / (fan_in + fan_out)) ** 0.5,
        )
        assert 0.8 * bound < largest <= bound, name


def test_published_size_has_the_published_number_of_parameters():
    with torch.device("meta"):
        network = nn.GRU(512 * 14, 768, 5)
    shared = sum(parameter.numel() for parameter in network.parameters()) + 768 + 41 * 769
    torch.manual_seed(0)
    model = build_model(GRUConfig(), n_features=512, n_days=2, n_classes=41)
    assert sum(parameter.numel() for parameter in model.parameters()) == shared + 2 * (
        512 * 512 + 512
    )


def test_frozen_parts_do_not_learn():
    frozen = GRUConfig(
        n_units=8,
        n_layers=1,
        rnn_trainable=False,
        input_network=InputNetworkConfig(input_trainable=False),
    )
    model = build_model(frozen, n_features=6, n_days=1, n_classes=41)
    model(torch.zeros(1, 20, 6), torch.tensor([0]))[0].sum().backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == {
        "h0",
        "out.weight",
        "out.bias",
    }


@pytest.mark.parametrize(
    "wrong", [{"n_units": 0}, {"rnn_dropout": 1.0}, {"patch_stride": 0}, {"n_layers": -1}]
)
def test_impossible_settings_name_the_field(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        GRUConfig(**wrong)
