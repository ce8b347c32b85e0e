"""Adaptation of models without day layers, and of those with affine ones."""

import json

import pytest
import torch
from safetensors.torch import load_file
from small_training import schedule

from cortext.cli import run as cortext
from cortext.errors import ConfigError
from cortext.features import AugmentationConfig
from cortext.models import GRUConfig, TransformerConfig, load_model
from cortext.models.inputs import InputNetworkConfig
from cortext.models.transformer import EmbeddingConfig
from cortext.training import DatasetConfig, TrainConfig, train
from cortext_live.adapt import adapt

OLD = ("t15.2023.08.11", "t15.2023.08.13")
NEW = "t15.2023.08.18"
QUICK = {"batches": 3, "progress": False}
EMBEDDING = {"patch_norm", "embedding", "embedding_norm"}


def trained(model, packed, out):
    config = TrainConfig(
        model=model,
        dataset=DatasetConfig(
            batch_size=6,
            days_per_batch=2,
            sessions=list(OLD),
            data_transforms=AugmentationConfig(white_noise_std=0.5),
        ),
        **schedule(4, lr_max=0.02),
        batches_per_val_step=4,
    )
    train(config, packed, out, progress=False)
    return out


def transformer(day_layer):
    network = EmbeddingConfig(day_layer=day_layer, input_layer_dropout=0)
    return TransformerConfig(
        n_units=16, n_layers=1, n_heads=2, head_units=8, dropout=0, input_network=network
    )


@pytest.fixture(scope="module")
def shared(packed, tmp_path_factory):
    """A Transformer of which all days share all weights."""
    return trained(transformer("none"), packed, tmp_path_factory.mktemp("shared") / "run")


def changed(before, after):
    """The modules with a tensor that is another now."""
    old, new = (load_file(run / "model.safetensors") for run in (before, after))
    assert old.keys() == new.keys()
    return {name.split(".")[0] for name in old if not torch.equal(old[name], new[name])}


def test_without_day_layers_the_embedding_learns_and_nothing_else(shared, packed, tmp_path, capsys):
    out = tmp_path / "run"
    arguments = ["--data", str(packed), "--session", NEW, "--out", str(out), "--batches", "3"]
    assert cortext(["adapt", str(shared), *arguments, "--set", "lr_max=0.01"]) == 0
    printed = capsys.readouterr().out
    assert f"{NEW}: the input layers of all days learnt from 20 trials" in printed
    assert "layer of" not in printed
    assert load_model(out).sessions == (*OLD, NEW)
    assert changed(shared, out) == EMBEDDING
    written = json.loads((out / "adaptation.json").read_text())
    assert (written["nearest"], written["loss_by_session"]) == (None, {})


def test_without_day_layers_the_whole_model_learns_if_asked(shared, packed, tmp_path):
    summary = adapt(
        shared, packed, tmp_path / "run", session=NEW, whole_model=True, old_data=packed,
        old_trials=8, overrides=["lr_max=0.01"], **QUICK,
    )  # fmt: skip
    assert summary.n_old_trials == 8
    assert changed(shared, tmp_path / "run") > EMBEDDING
    assert "the whole model learnt" in str(summary)


def test_a_known_day_adapts_again(shared, packed, tmp_path):
    summary = adapt(
        shared, packed, tmp_path / "run", session=OLD[0], overrides=["lr_max=0.01"], **QUICK
    )
    assert (summary.session, load_model(tmp_path / "run").sessions) == (OLD[0], OLD)
    assert changed(shared, tmp_path / "run") == EMBEDDING


@pytest.mark.parametrize("day_layer", ["affine", "softsign"])
def test_with_affine_day_layers_only_the_new_one_learns(packed, tmp_path, day_layer):
    run = trained(transformer(day_layer), packed, tmp_path / "first")
    overrides = ["lr_max_day=0.01"]
    summary = adapt(run, packed, tmp_path / "run", session=NEW, overrides=overrides, **QUICK)
    old, new = (load_file(folder / "model.safetensors") for folder in (run, tmp_path / "run"))
    for name, tensor in old.items():
        kept = new[name][:2] if name.startswith("day_") else new[name]
        assert torch.equal(kept, tensor), name
    begun = old["day_weight"][OLD.index(summary.nearest)]
    assert not torch.equal(new["day_weight"][2], begun)


def test_a_model_that_names_no_part_to_adapt_needs_the_whole_model(packed, tmp_path):
    network = InputNetworkConfig(day_layer="none")
    model = GRUConfig(n_units=16, n_layers=1, rnn_dropout=0, input_network=network)
    run = trained(model, packed, tmp_path / "first")
    said = "a model of kind 'gru' without day layers has no part to adapt; give --whole-model"
    with pytest.raises(ConfigError, match=said):
        adapt(run, packed, tmp_path / "run", session=NEW, **QUICK)
    assert not (tmp_path / "run").exists()
    summary = adapt(run, packed, tmp_path / "run", session=NEW, whole_model=True, **QUICK)
    assert summary.nearest is None
