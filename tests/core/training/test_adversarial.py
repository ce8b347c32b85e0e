import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from cortext.errors import ConfigError
from cortext.models import TripleGRUConfig, build_model, load_model
from cortext.models.inputs import InputNetworkConfig
from cortext.training import adversarial, train
from cortext.training.adversarial import Adversarial, AdversarialConfig, noise_energy
from cortext.training.batches import TrainBatch
from cortext.training.loss import build_loss

TINY = TripleGRUConfig(
    noise_units=4,
    clean_units=3,
    noisy_units=3,
    rnn_dropout=0.0,
    patch_size=3,
    patch_stride=2,
    input_network=InputNetworkConfig(input_layer_dropout=0.0),
)


def batch(x_BTC, day_B, n_patches_B, labels_BU, n_labels_B) -> TrainBatch:
    n_trials = len(x_BTC)
    n_bins_B = torch.full((n_trials,), x_BTC.shape[1])
    return TrainBatch(
        x_BTC,
        day_B,
        n_bins_B,
        n_patches_B,
        labels_BU,
        n_labels_B,
        indices=np.arange(n_trials),
        days=day_B.unique(),
    )


def by_hand(network, trials: TrainBatch) -> tuple[torch.Tensor, ...]:
    """Mean CTC of both readers and mean energy of the noise, from the modules' weights and torch
    alone.
    """
    y = torch.einsum("btc,bck->btk", trials.x_BTC, network.day_weight[trials.day_B])
    y = nn.functional.softsign(y + network.day_bias[trials.day_B][:, None])
    patches = y.unfold(1, 3, 2).transpose(2, 3).flatten(2)

    def run(part, inputs):
        hidden, _ = part.gru(
            inputs, part.h0.expand(part.gru.num_layers, len(inputs), -1).contiguous()
        )
        return hidden if part.out is None else part.out(hidden)

    def ctc(logits):
        log_probs = logits.log_softmax(-1).transpose(0, 1)
        lengths = trials.n_patches_B, trials.n_labels_B
        return nn.functional.ctc_loss(
            log_probs, trials.labels_BU, *lengths, reduction="none"
        ).mean()

    noise = run(network.noise_model, patches)
    energies = [
        sum(
            float(value) ** 2 if not noise.requires_grad else value**2
            for value in noise[i, :n].flatten()
        )
        / n
        for i, n in enumerate(trials.n_patches_B.tolist())
    ]
    clean, noisy = (
        run(network.clean_speech_model, patches - noise),
        run(network.noisy_speech_model, noise),
    )
    return (
        ctc(clean),
        ctc(noisy),
        torch.as_tensor(sum(energies) / len(energies), dtype=torch.float64),
    )


@pytest.mark.parametrize("noise_units", [4, 6])  # with a read-out, and as wide as the patch
@pytest.mark.parametrize("reversal", [0.0, 0.5, 2.0])
def test_every_network_gets_the_sign_and_scale_of_gradient_that_finite_differences_say(
    noise_units, reversal, monkeypatch
):
    def ctc_in_float64(logits, n_patches, labels, n_labels):
        log_probs = logits.log_softmax(-1).transpose(0, 1)
        return nn.functional.ctc_loss(log_probs, labels, n_patches, n_labels, reduction="none")

    monkeypatch.setattr(adversarial, "ctc_loss", ctc_in_float64)
    torch.manual_seed(0)
    network = build_model(
        replace(TINY, noise_units=noise_units), n_features=2, n_days=2, n_classes=5
    ).double()
    labels_BU = torch.tensor([[1, 2, 2], [4, 0, 0]])
    trials = batch(
        torch.randn(2, 15, 2).double(),
        torch.tensor([0, 1]),
        torch.tensor([7, 5]),
        labels_BU,
        torch.tensor([3, 1]),
    )
    settings = AdversarialConfig(
        noisy_weight=0.3, noise_weight=0.02, reversal_start=reversal, reversal_end=reversal
    )
    Adversarial(settings)(network, trials, 0.5)["loss"].mean().backward()
    for name, parameter in network.named_parameters():
        direction, here, step = torch.randn_like(parameter), parameter.detach().clone(), 1e-5
        ends = []
        with torch.no_grad():
            for sign in (1, -1):
                parameter.copy_(here + sign * step * direction)
                ends.append(torch.stack(by_hand(network, trials)))
            parameter.copy_(here)
        clean, noisy, energy = ((ends[0] - ends[1]) / (2 * step)).tolist()
        if name.startswith("clean_speech_model."):
            expected = clean
            assert noisy == energy == 0, name
        elif name.startswith("noisy_speech_model."):
            expected = 0.3 * noisy
            assert clean == energy == 0, name
        else:  # the noise model, and the day layers through it
            expected = clean - reversal * 0.3 * noisy + 0.02 * energy
            if name.startswith("day_"):
                assert clean != 0, name
        found = float((parameter.grad * direction).sum())
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-8), name


class Uniform:
    """A network that finds all of three tokens equally likely, and remembers how it was called."""

    def __init__(self, noise_BPI):
        self.noise_BPI = noise_BPI

    def __call__(self, x_BTC, day_B, **options):
        self.options = options
        logits_BPV = torch.zeros(*self.noise_BPI.shape[:2], 3)
        return logits_BPV, logits_BPV + 1, self.noise_BPI


def test_loss_and_its_parts_by_hand():
    noise_BPI = torch.tensor(
        [[[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [0.0, 2.0], [9.0, 9.0]]]
    )
    network = Uniform(noise_BPI)
    one = torch.tensor([1, 1])
    trials = batch(
        torch.zeros(2, 3, 2), torch.tensor([0, 0]), torch.tensor([3, 2]), one[:, None], one
    )
    losses = Adversarial(AdversarialConfig())(network, trials, fraction=0.5)
    # Of the 27 paths of three frames, 111 110 011 100 010 001 say "1"; of the 9 of two frames, 11
    # 10 01.
    ctc_B = torch.tensor([math.log(27 / 6), math.log(9 / 3)])
    # The last patch of the second trial is padding.
    noise_B = torch.tensor([(5 + 9 + 1) / 3, (2 + 4) / 2])
    torch.testing.assert_close(losses["clean"], ctc_B)
    torch.testing.assert_close(losses["noisy"], ctc_B)
    torch.testing.assert_close(losses["noise"], noise_B)
    torch.testing.assert_close(losses["loss"], 1.2 * ctc_B + 0.001 * noise_B)
    assert all(value.dtype == torch.float32 for value in losses.values())
    assert torch.equal(network.options.pop("n_patches_B"), trials.n_patches_B)
    assert network.options == {"mode": "full", "reversal": 0.25}


def test_energy_ignores_padding_whatever_it_holds():
    noise_BPI = torch.tensor([[[3.0], [1e30]], [[math.inf], [1.0]]])  # 1e60 is inf in float32
    energy_B = noise_energy(noise_BPI, torch.tensor([1, 0]))
    assert energy_B.tolist() == [9, 0]


def test_energy_of_bfloat16_noise_is_added_in_float32():
    energy_B = noise_energy(torch.ones(1, 10, 4096, dtype=torch.bfloat16), torch.tensor([10]))
    assert energy_B.dtype == torch.float32
    assert energy_B.item() == 4096


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0, 0.05, 0.25, 0.5]),
        ({"reversal_ramp": 0.5}, [0, 0.1, 0.5, 0.5]),
        ({"reversal_start": 0.5, "reversal_end": 0.1}, [0.5, 0.46, 0.3, 0.1]),
        ({"reversal_schedule": "sigmoid"}, [0, 0.231059, 0.493307, 0.499955]),  # 0.5 tanh(5 p)
    ],
)
def test_reversal_strength_by_hand(settings, expected):
    config = AdversarialConfig(**settings)
    assert [config.reversal(fraction) for fraction in (0, 0.1, 0.5, 1)] == pytest.approx(
        expected, abs=1e-6
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"noisy_weight": -1},
        {"noise_weight": math.inf},
        {"reversal_end": -0.5},
        {"reversal_ramp": 0},
    ],
)
def test_impossible_settings_name_the_field(wrong):
    with pytest.raises(ConfigError, match=f"loss.{next(iter(wrong))}"):
        AdversarialConfig(**wrong)


def test_it_is_what_the_model_is_trained_with_by_default():
    assert isinstance(build_loss(None, "triple_gru"), Adversarial)


def test_a_model_without_an_adversary_is_refused_by_name():
    with pytest.raises(
        ConfigError, match="'adversarial' cannot train model 'gru'; use it with triple_gru"
    ):
        build_loss(AdversarialConfig(), "gru")


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
def test_a_short_training_learns_and_writes_a_model_that_reads(config, packed, tmp_path, precision):
    inputs = InputNetworkConfig(input_layer_dropout=0.0)
    model = TripleGRUConfig(
        noise_units=12, clean_units=24, noisy_units=12, rnn_dropout=0.0, input_network=inputs
    )
    config = replace(
        config,
        model=model,
        precision=precision,
        num_training_batches=60,
        lr_decay_steps=60,
        lr_decay_steps_day=60,
        lr_max=0.01,
        batches_per_train_log=20,
        batches_per_val_step=60,
    )
    train(config, packed, tmp_path / "run", progress=False)
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    losses = [line["train_loss"] for line in lines if line["kind"] == "train"]
    assert losses[-1] < 0.8 * losses[0]
    assert {"train_clean", "train_noisy", "train_noise"} <= lines[0].keys()
    model = load_model(tmp_path / "run")
    trial = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    assert model.logits(trial, model.sessions[0]).shape == (model.n_patches(60), 41)
