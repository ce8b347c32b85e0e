"""Requirements of every registered model. A model without a case fails the first test."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from cortext.errors import ConfigError
from cortext.models import (
    GRU,
    MODELS,
    AcousticModel,
    GRUConfig,
    Model,
    build_model,
    load_model,
    model_config,
    save_model,
)
from cortext.models.card import Smoothing
from cortext.text.inventory import RELEASE
from cortext.training.batches import TrainBatch
from cortext.training.loss import build_loss
from cortext_checks import check_model
from cortext_checks.made_up import SMALL

CASES = SMALL | {
    f"{kind}, diphones and intermediate layer": replace(
        SMALL[kind], n_layers=2, diphones=True, intermediate_layer=1
    )
    for kind in ("gru", "transformer")
}
SESSIONS = ("t15.2023.08.11", "t15.2023.08.13", "t15.2023.08.18")
N_FEATURES = 5


def test_every_registered_model_has_a_case():
    shipped = {kind for kind, model in MODELS.items() if model.__module__.startswith("cortext.")}
    assert shipped == set(SMALL)  # benchmarks that other tests import register models of their own


@pytest.mark.parametrize("case", CASES)
def test_it_passes_all_that_a_plugin_must_pass(case):
    report = check_model(CASES[case], onnx=False)
    not_passed = [check.name for check in report.checks if check.status != "PASS"]
    assert not_passed == ["ONNX"], report


@pytest.fixture(params=CASES.values(), ids=CASES)
def network(request):
    torch.manual_seed(0)
    network = build_model(request.param, n_features=N_FEATURES, n_days=3, n_classes=41)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.startswith("day_"):
                parameter.add_(torch.randn(parameter.shape) * 0.2)
    return network


@pytest.fixture
def model(network):
    return AcousticModel(
        network, sessions=SESSIONS, n_features=N_FEATURES, inventory=RELEASE, smoothing=Smoothing()
    )


def batch(n_bins_B=(70, 41, 23), seed=0):
    rng = np.random.default_rng(seed)
    x_BTC = np.zeros((len(n_bins_B), max(n_bins_B), N_FEATURES), dtype=np.float32)
    for i, n_bins in enumerate(n_bins_B):
        x_BTC[i, :n_bins] = rng.normal(size=(n_bins, N_FEATURES))
    return x_BTC, np.array(n_bins_B)


def test_it_has_the_interface_and_a_config_that_survives_a_round_trip(network):
    assert isinstance(network, Model)
    mapping = {**vars(network.config)}
    mapping["input_network"] = {**vars(network.config.input_network)}
    assert model_config(mapping) == network.config


@pytest.mark.parametrize("bf16", [False, True])
def test_nothing_that_counts_depends_on_padding(network, bf16):
    x_BTC, n_bins_B = batch()
    x_BTC, n_patches_B = torch.from_numpy(x_BTC), torch.from_numpy(network.n_patches(n_bins_B))
    # A model that fills its last patch reads zeros there, which whoever makes the batch has put.
    filled_B = n_patches_B * network.config.patch_stride
    pads = getattr(network, "pads_last_patch", False)
    read_B = filled_B if pads else torch.from_numpy(n_bins_B)
    outputs = []
    for seed in (1, 2):  # of what is in the padding
        torch.manual_seed(seed)
        inside_BT1 = (torch.arange(x_BTC.shape[1]) < read_B[:, None]).unsqueeze(2)
        network.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            padded_BTC = torch.where(inside_BT1, x_BTC, torch.randn(x_BTC.shape))
            logits_BPV = network.eval()(
                padded_BTC, torch.tensor([0, 1, 2]), n_patches_B=n_patches_B
            )[0]
        assert logits_BPV.isfinite().all()
        real_NV = torch.cat(
            [logits_PV[:n].float() for logits_PV, n in zip(logits_BPV, n_patches_B, strict=True)]
        )
        real_NV.square().sum().backward()
        gradients = [
            parameter.grad for parameter in network.parameters() if parameter.grad is not None
        ]
        outputs.append([real_NV.detach(), *gradients])
    for a, b in zip(*outputs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_day_layers_get_a_gradient_from_trials_of_their_days_alone(network):
    x_BTC, n_bins_B = batch()
    x_BTC, n_bins_B, day_B = (
        torch.from_numpy(x_BTC),
        torch.from_numpy(n_bins_B),
        torch.tensor([0, 2, 2]),
    )
    labels_BU, n_labels_B = torch.tensor([[3, 4], [5, 6], [7, 0]]), torch.tensor([2, 2, 1])
    n_patches_B = network.n_patches(n_bins_B)
    trials = TrainBatch(
        x_BTC,
        day_B,
        n_bins_B,
        n_patches_B,
        labels_BU,
        n_labels_B,
        indices=np.arange(3),
        days=day_B.unique(),
    )
    loss = build_loss(None, network.config.kind)  # what the model is trained with by default
    loss(network.train(), trials, fraction=0.5)["loss"].mean().backward()
    for name, parameter in network.named_parameters():
        if name.startswith("day_"):
            assert not parameter.grad[1].any(), name
            assert parameter.grad[0].any(), name


@pytest.mark.parametrize("patches_at_once", [1, 3])
def test_streaming_equals_the_whole_trial(network, patches_at_once):
    x_BTC, _ = batch((70,))
    x_BTC = torch.from_numpy(x_BTC)
    size, stride = network.config.patch_size, network.config.patch_stride
    day_B = torch.tensor([1])
    with torch.no_grad():
        whole, last_state = network.eval()(x_BTC, day_B)
        pieces, state = [], None
        for first in range(0, whole.shape[1], patches_at_once):
            last = min(first + patches_at_once, whole.shape[1]) - 1
            piece, state = network(x_BTC[:, first * stride : last * stride + size], day_B, state)
            pieces.append(piece)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-5, rtol=0)
    torch.testing.assert_close(state, last_state, atol=1e-5, rtol=0)
    assert all(torch.isfinite(part).all() for part in tree_leaves(last_state))


@pytest.mark.parametrize("smooth", [True, False])
def test_a_padded_batch_equals_single_trials_whatever_the_padding_holds(model, smooth):
    x_BTC, n_bins_B = batch()
    for i, n_bins in enumerate(n_bins_B):
        x_BTC[i, n_bins:] = np.nan
    logits_BPV, n_patches_B = model.logits_batch(x_BTC, SESSIONS, n_bins_B, smooth=smooth)
    assert n_patches_B.tolist() == [model.n_patches(int(n), smooth) for n in n_bins_B]
    for i, session in enumerate(SESSIONS):
        alone_PV = model.logits(x_BTC[i, : n_bins_B[i]], session, smooth=smooth)
        assert alone_PV.shape == (n_patches_B[i], 41)
        np.testing.assert_allclose(logits_BPV[i, : n_patches_B[i]], alone_PV, atol=1e-5)
        assert not logits_BPV[i, n_patches_B[i] :].any()


def test_log_probs_are_normalised_logits(model):
    x_BTC, _ = batch((40,))
    log_probs_PV = model.log_probs(x_BTC[0], SESSIONS[0])
    assert log_probs_PV.dtype == np.float32
    np.testing.assert_allclose(np.exp(log_probs_PV).sum(1), 1, rtol=1e-5)
    difference = model.logits(x_BTC[0], SESSIONS[0]) - log_probs_PV
    np.testing.assert_allclose(difference, difference[:, :1].repeat(41, 1), atol=1e-5)


def test_saving_and_loading_changes_nothing(model, tmp_path):
    save_model(model, tmp_path / "run")
    loaded = load_model(tmp_path / "run")
    x_BTC, n_bins_B = batch()
    before, after = (m.logits_batch(x_BTC, SESSIONS, n_bins_B)[0] for m in (model, loaded))
    np.testing.assert_array_equal(before, after)
    assert loaded.card() == model.card()
    assert loaded.inventory == RELEASE
    assert loaded.sessions == SESSIONS


def test_a_model_that_does_not_take_lengths_is_refused_with_the_cure(monkeypatch):
    class Deaf(GRU):
        def forward(self, x_BTC, day_B, state=None):
            raise AssertionError

    monkeypatch.setitem(MODELS, "gru", Deaf)
    with pytest.raises(
        ConfigError, match=r"model 'gru' has a forward without n_patches_B.*; add the keyword"
    ):
        build_model(GRUConfig(n_units=4), n_features=2, n_days=1, n_classes=41)
