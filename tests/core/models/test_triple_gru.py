from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from cortext.errors import ConfigError
from cortext.models import AcousticModel, GRUConfig, TripleGRUConfig, build_model, save_model
from cortext.models.card import Smoothing
from cortext.models.inputs import InputNetworkConfig
from cortext.models.triple_gru import CleanSpeechModel, NoiseModel, NoisySpeechModel, TripleGRU
from cortext.text.inventory import RELEASE

SMALL = TripleGRUConfig(noise_units=10, clean_units=12, noisy_units=8)
PUBLISHED = TripleGRUConfig(noise_units=7168)


def small(config: TripleGRUConfig = SMALL, n_classes: int = 41) -> TripleGRU:
    torch.manual_seed(0)
    network = build_model(config, n_features=3, n_days=2, n_classes=n_classes).eval()
    with torch.no_grad():  # day layers that differ
        network.day_weight.add_(torch.randn(network.day_weight.shape) * 0.3)
        network.day_bias.add_(torch.randn(network.day_bias.shape) * 0.3)
    return network


def trials(n_bins: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, n_bins, 3, generator=torch.Generator().manual_seed(1)), torch.tensor(
        [1, 0]
    )


def n_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def gru_parameters(n_inputs: int, n_units: int, n_layers: int) -> int:
    """Three gates, each with a matrix for the input and one for the state, and two biases."""
    first = 3 * n_units * (n_inputs + n_units + 2)
    return first + (n_layers - 1) * 3 * n_units * (2 * n_units + 2)


@torch.no_grad()
def test_the_noise_is_taken_out_before_the_clean_speech_model_reads():
    network, (x_BTC, day_B) = small(), trials()
    noise_I = torch.linspace(-0.5, 0.5, 42)
    network.noise_model.out.weight.zero_()  # the estimate is now the bias whatever the input
    network.noise_model.out.bias.copy_(noise_I)
    y_BTC = (
        torch.einsum("btc,bck->btk", x_BTC, network.day_weight[day_B])
        + network.day_bias[day_B][:, None]
    )
    y_BTC = y_BTC / (1 + y_BTC.abs())
    patches_BPI = torch.stack(
        [y_BTC[:, first : first + 14].flatten(1) for first in range(0, 27, 4)], 1
    )
    clean = network.clean_speech_model
    hidden_BPD, _ = clean.gru(patches_BPI - noise_I, clean.h0.expand(3, 2, 12).contiguous())
    expected_BPV = hidden_BPD @ clean.out.weight.T + clean.out.bias
    torch.testing.assert_close(network(x_BTC, day_B)[0], expected_BPV, atol=1e-5, rtol=0)


@torch.no_grad()
def test_full_mode_gives_the_logits_of_inference_the_adversarys_and_the_noise():
    network, (x_BTC, day_B) = small(), trials()
    clean_BPV, noisy_BPV, noise_BPI = network(x_BTC, day_B, mode="full", reversal=0.3)
    assert torch.equal(clean_BPV, network(x_BTC, day_B)[0])
    assert clean_BPV.shape == noisy_BPV.shape == (2, 7, 41)
    assert noise_BPI.shape == (2, 7, 42)
    adversary = network.noisy_speech_model
    hidden_BPD, _ = adversary.gru(noise_BPI, adversary.h0.expand(2, 2, 8).contiguous())
    torch.testing.assert_close(noisy_BPV, adversary.out(hidden_BPD))


@torch.no_grad()
def test_inference_does_not_run_the_adversary():
    network, (x_BTC, day_B) = small(), trials()
    expected = network(x_BTC, day_B)[0]
    network.noisy_speech_model = None
    assert torch.equal(network(x_BTC, day_B)[0], expected)


@torch.no_grad()
def test_each_network_starts_from_a_state_that_it_has_learnt():
    network, (x_BTC, day_B) = small(), trials()
    learnt = tuple(
        model.h0.expand(n_layers, 2, -1).contiguous()
        for model, n_layers in ((network.noise_model, 2), (network.clean_speech_model, 3))
    )
    before = network(x_BTC, day_B, mode="full")
    torch.testing.assert_close(network(x_BTC, day_B, learnt)[0], before[0])
    for name, changed in {
        "noisy_speech_model": 1,
        "clean_speech_model": 0,
        "noise_model": 2,
    }.items():
        getattr(network, name).h0.add_(1)
        after = network(x_BTC, day_B, mode="full")
        assert not torch.allclose(after[changed], before[changed])
        getattr(network, name).h0.sub_(1)


def test_day_layers_stand_once_at_the_top():
    assert {name for name, _ in small().named_parameters() if "day" in name} == {
        "day_weight",
        "day_bias",
    }


def test_the_clean_speech_model_alone_is_the_baseline_with_its_layers():
    torch.manual_seed(0)
    alone = CleanSpeechModel(SMALL, n_features=3, n_classes=41, n_days=2).eval()
    baseline = build_model(
        GRUConfig(n_units=12, n_layers=3), n_features=3, n_days=2, n_classes=41
    ).eval()
    baseline.load_state_dict(alone.state_dict())
    x_BTC, day_B = trials()
    with torch.no_grad():
        torch.testing.assert_close(alone(x_BTC, day_B)[0], baseline(x_BTC, day_B)[0])
    assert alone.n_patches(40) == 7


def test_the_noise_model_alone_has_day_layers_and_gives_the_same_noise():
    network, (x_BTC, day_B) = small(), trials()
    alone = NoiseModel(SMALL, n_features=3, n_days=2).eval()
    days = {"day_weight": network.day_weight, "day_bias": network.day_bias}
    alone.load_state_dict(network.noise_model.state_dict() | days)
    with torch.no_grad():
        noise_BPI, state_LBD = alone(x_BTC, day_B)
        torch.testing.assert_close(noise_BPI, network(x_BTC, day_B, mode="full")[2])
        torch.testing.assert_close(state_LBD, network(x_BTC, day_B)[1][0])
    assert noise_BPI.shape == (2, alone.n_patches(40), 42)


def test_the_adversary_cannot_have_day_layers():
    assert not any(
        "day" in name
        for name, _ in NoisySpeechModel(SMALL, n_features=3, n_classes=41).named_parameters()
    )
    with pytest.raises(TypeError, match="n_days"):
        NoisySpeechModel(SMALL, n_features=3, n_classes=41, n_days=2)


def test_the_published_noise_model_has_617_million_parameters():
    with torch.device("meta"):
        noise = NoiseModel(PUBLISHED, n_features=512)
    assert noise.out is None
    assert n_parameters(noise) == gru_parameters(7168, 7168, 2) + 7168 == 616_655_872


def test_the_default_has_a_read_out_and_less_than_the_baseline_in_its_decoder():
    with torch.device("meta"):
        network = build_model(TripleGRUConfig(), n_features=512, n_days=45, n_classes=41)
    noise, clean, noisy = (
        network.noise_model,
        network.clean_speech_model,
        network.noisy_speech_model,
    )
    assert n_parameters(noise) == gru_parameters(7168, 768, 2) + 768 + 769 * 7168
    assert n_parameters(clean) == gru_parameters(7168, 768, 3) + 768 + 769 * 41
    assert n_parameters(noisy) == gru_parameters(7168, 768, 2) + 768 + 769 * 41
    days = 45 * (512 * 512 + 512)
    assert (
        n_parameters(network)
        == n_parameters(noise) + n_parameters(clean) + n_parameters(noisy) + days
    )


@pytest.mark.parametrize("n_classes", [41, 12])
def test_only_a_noise_model_as_wide_as_the_patch_goes_without_a_read_out(n_classes):
    network, (x_BTC, day_B) = small(replace(SMALL, noise_units=42), n_classes), trials()
    assert network.noise_model.out is None
    assert network.clean_speech_model.out is not None  # even with as many units as tokens
    clean_BPV, noisy_BPV, noise_BPI = network(x_BTC, day_B, mode="full")
    assert clean_BPV.shape == noisy_BPV.shape == (2, 7, n_classes)
    assert noise_BPI.shape == (2, 7, 42)
    assert noise_BPI.abs().max() < 1  # hidden units


def test_patch_size_zero_reads_single_bins():
    network, (x_BTC, day_B) = small(replace(SMALL, patch_size=0)), trials()
    clean_BPV, noisy_BPV, noise_BPI = network(x_BTC, day_B, mode="full")
    assert clean_BPV.shape == noisy_BPV.shape == (2, 40, 41)
    assert noise_BPI.shape == (2, 40, 3)


def test_the_checkpoint_keeps_the_adversary(tmp_path):
    network = small()
    sessions = ("t15.2023.08.11", "t15.2023.08.13")
    save_model(
        AcousticModel(
            network, sessions=sessions, n_features=3, inventory=RELEASE, smoothing=Smoothing()
        ),
        tmp_path,
    )
    kept = load_file(tmp_path / "model.safetensors")
    for name, tensor in network.noisy_speech_model.state_dict().items():
        assert torch.equal(kept[f"noisy_speech_model.{name}"], tensor)


@pytest.mark.parametrize(
    "wrong", [{"noise_units": 0}, {"clean_layers": 0}, {"noisy_units": -1}, {"rnn_dropout": 1.0}]
)
def test_impossible_settings_name_the_field(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TripleGRUConfig(**wrong)


def test_frozen_day_layers_do_not_learn():
    network = small(replace(SMALL, input_network=InputNetworkConfig(input_trainable=False)))
    assert not network.day_weight.requires_grad
    assert not network.day_bias.requires_grad
