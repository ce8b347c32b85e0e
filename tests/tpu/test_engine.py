"""Runs on XLA: ordinary run directories, which go on elsewhere; few compilations; what users have registered."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

pytestmark = pytest.mark.tpu
pytest.importorskip("torchax", reason="run `make test-tpu`")

import jax
from small_training import make_config, write_recordings

from cortext.cli import app
from cortext.data.packed import pack
from cortext.errors import ConfigError, RunError
from cortext.features import TimeMaskConfig
from cortext.models import MODELS, load_model
from cortext.training import Place, Trainer
from cortext.training.batches import Batches
from cortext.training.config import TPUConfig
from cortext.training.loss import LOSSES, ctc_loss

TPU = Place("tpu")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    return write_recordings(tmp_path_factory.mktemp("recordings") / "sessions")


@pytest.fixture(scope="module")
def packed(recordings, tmp_path_factory):
    return pack(recordings, tmp_path_factory.mktemp("packed") / "data")


def small(n_shapes=1, **settings):
    """A configuration without randomness, of 12 batches."""
    tpu = TPUConfig(length_shapes=n_shapes, compilation_cache=None)
    defaults = {"batches_per_train_log": 3, "batches_per_val_step": 6, "epsilon": 1e-3}
    return make_config(num_training_batches=12, tpu=tpu, **defaults | settings)


def lines(run, kind):
    every = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in every if line["kind"] == kind]


@pytest.fixture(scope="module")
def compilations():
    """Every program that XLA compiles adds to the list."""
    seen = []

    def note(name, seconds, **_):
        if name == "/jax/core/compile/backend_compile_duration":
            seen.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(note)
    yield seen
    jax.monitoring.unregister_event_duration_listener(note)


@pytest.fixture(scope="module")
def in_torch(packed, tmp_path_factory):
    """A run with torch's engine."""
    out = tmp_path_factory.mktemp("torch") / "run"
    with Trainer(small(), packed, out, progress=False) as trainer:
        trainer.run()
    return out


def copied(state):
    return {name: tensor.clone() for name, tensor in state.items()}


@pytest.fixture(scope="module")
def shared(packed, tmp_path_factory):
    """The same run, begun on XLA, gone on with in torch, and ended on XLA."""
    out, states = tmp_path_factory.mktemp("shared") / "run", []
    for device, n_batches in (("tpu", 4), ("cpu", 4), ("tpu", 4)):
        with Trainer(small(), packed, out, device=device, resume=bool(states), progress=False) as trainer:
            begun = copied(trainer.engine.state())
            trainer.run(n_batches)
            states.append((begun, copied(trainer.engine.state())))
    return out, states


def test_a_run_that_moves_between_engines_is_the_run_of_one(shared, in_torch):
    out, _ = shared
    for kind, name in (("train", "train_loss"), ("train", "grad_norm"), ("val", "val_loss"), ("val", "val_per")):
        expected = [line[name] for line in lines(in_torch, kind)]
        assert [line[name] for line in lines(out, kind)] == pytest.approx(expected, rel=1e-3), name
    assert [line["step"] for line in lines(out, "train")] == [3, 6, 9, 12]


def test_the_optimisers_state_goes_from_engine_to_engine_as_it_is(shared):
    _, ((_, first), (torchs, second), (last, _)) = shared
    for before, after in ((first, torchs), (second, last)):
        assert before.keys() == after.keys()
        for name, tensor in before.items():
            assert torch.equal(tensor.to(after[name].dtype), after[name]), name
    assert first["day_steps"].sum() == 8  # 4 batches of 2 days


def test_every_verb_reads_the_run(shared, packed, tmp_path):
    out, _ = shared
    assert load_model(out).n_features == 8
    assert json.loads((out / "summary.json").read_text())["device"] == "cpu (1 core)"
    arguments = ["evaluate", str(out), "--data", str(packed.path), "--out", str(tmp_path / "eval"), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert 0 <= json.loads(result.stdout)["per"] <= 1.5


def test_the_command_line_trains_and_keeps_what_it_compiled(recordings, tmp_path):
    arguments = ["train", "--config", "tiny", "--data", str(recordings), "--out", str(tmp_path / "run"), "--json"]
    arguments += ["--device", "tpu", "--set", f"tpu.compilation_cache={tmp_path / 'programs'}"]
    arguments += ["--set", "num_training_batches=4", "--set", "tpu.length_shapes=1"]
    result = CliRunner().invoke(app, arguments)
    jax.config.update("jax_compilation_cache_dir", None)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["steps"] == 4
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert written >= {"config.yaml", "model.json", "model.safetensors", "metrics.jsonl", "summary.json", "train_state"}
    assert any((tmp_path / "programs").iterdir())


def test_an_epoch_of_mixed_lengths_compiles_no_more_than_there_are_lengths(packed, tmp_path, capsys, compilations):
    """Although learning rates, reversal strength, days and random keys change with every step."""
    changes = {name: getattr(make_config("triple_gru", dropout=0.2), name) for name in ("model", "loss")}
    config = replace(small(2), **changes)
    with Trainer(config, packed, tmp_path / "run", device=TPU) as trainer:
        capsys.readouterr()
        del compilations[:]
        padded = set()
        for batch in trainer.engine.batches(0, 12):
            padded.add(batch.n_bins)
            trainer.engine.update(0, batch)
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("compiled the training step")]
    assert len(padded) > 1
    assert len(compilations) == len(said) == len(padded) <= 2
    for n_bins, line in zip(sorted(padded), sorted(said, key=lambda line: int(line.split()[7])), strict=True):
        assert line.startswith(f"compiled the training step for trials of {n_bins} bins in ")
        assert line.endswith(" s")


def test_registered_augmentations_are_torchs_own(packed, tmp_path):
    """The host draws what torch's engine draws, to the rounding to float16; the step then only smooths."""
    mask = TimeMaskConfig(n_masks=2, max_share=0.3)
    config = small()
    transforms = replace(config.dataset.data_transforms, white_noise_std=0.5, random_cut=3, smooth_data=False)
    config = replace(config, dataset=replace(config.dataset, augmentations=[mask], data_transforms=transforms))
    with Trainer(config, packed, tmp_path / "run", device=TPU, progress=False) as trainer:
        engine = trainer.engine
        (found,) = engine.batches(5, 6)
        make = (trainer.layer_of_day, transforms, torch.device("cpu"), trainer.model.network.n_patches)
        batches = Batches(trainer.train_split, *make, extra=engine.extra)
        (expected,) = batches.training(engine.job.sampler, config.seed, 5, 6)
    n_bins = expected.x_BTC.shape[1]
    features = np.asarray(found.batch["features"])
    np.testing.assert_allclose(features[:, :n_bins], expected.x_BTC.numpy(), atol=0.01)
    assert not features[:, n_bins:].any()
    np.testing.assert_array_equal(found.batch["n_bins"], expected.n_bins_B)
    assert (features[0, : int(expected.n_bins_B[0])] == 0).all(axis=1).any()  # a mask


@dataclass
class MeansConfig:
    kind: str = "means"
    n_input_features: int | None = None
    patch_size: int = 8
    patch_stride: int = 4


class Means(nn.Module):
    """A user's own model, of plain torch operations."""

    Config: ClassVar[type] = MeansConfig

    def __init__(self, config, *, n_features, n_days, n_classes):
        super().__init__()
        self.config = config
        self.day_bias = nn.Parameter(torch.zeros(n_days, n_features))
        self.mix = nn.Conv1d(n_features, 16, 8, stride=4)
        self.norm = nn.LayerNorm(16)
        self.out = nn.Linear(32, n_classes)
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.full((16,), 2.0))

    def n_patches(self, n_bins):
        return (n_bins - 8) // 4 + 1

    def forward(self, x_BTC, day_B, state=None, *, n_patches_B=None):
        x_BTC = x_BTC + self.day_bias[day_B][:, None]
        hidden_BPD = self.norm(self.mix(x_BTC.transpose(1, 2)).transpose(1, 2)) * self.scale
        both = torch.cat([hidden_BPD, torch.nn.functional.gelu(hidden_BPD)], dim=-1)
        return self.out(nn.functional.dropout(both, 0.0, self.training)), None


@dataclass
class FadingConfig:
    kind: str = "fading"
    in_python: bool = False


class Fading:
    """A user's own loss, which changes as training goes on."""

    Config: ClassVar[type] = FadingConfig

    def __init__(self, config):
        self.config = config

    def __call__(self, network, batch, fraction):
        logits_BPV = network(batch.x_BTC, batch.day_B, n_patches_B=batch.n_patches_B)[0]
        losses_B = ctc_loss(logits_BPV, batch.n_patches_B, batch.labels_BU, batch.n_labels_B)
        energy_B = logits_BPV[:, 0].square().mean(1)
        if self.config.in_python and fraction > 0.5:
            energy_B = 0 * energy_B
        return {"loss": losses_B + (1 - fraction) * 0.1 * energy_B, "energy": energy_B.detach()}


@pytest.fixture(scope="module")
def registered():
    """The two are there for the tests of this module."""
    MODELS.register("means")(Means)
    LOSSES.register("fading")(Fading)
    yield
    for registry, name in ((MODELS, "means"), (LOSSES, "fading")):
        registry.pop(name)


def test_a_users_own_model_and_loss_train_as_in_torch(registered, packed, tmp_path):
    config = replace(small(), model=MeansConfig(), loss=FadingConfig(), batches_per_val_step=100)
    for device in ("cpu", "tpu"):
        with Trainer(config, packed, tmp_path / device, device=device, progress=False) as trainer:
            trainer.run()
            assert trainer.model.network.unused.tolist() == [1, 1, 1]  # weight decay would have moved it
    for name in ("train_loss", "train_energy", "grad_norm"):
        expected = [line[name] for line in lines(tmp_path / "cpu", "train")]
        assert [line[name] for line in lines(tmp_path / "tpu", "train")] == pytest.approx(expected, rel=2e-3), name


def test_a_loss_that_decides_in_python_is_told_what_to_do(registered, packed, tmp_path):
    config = replace(small(), model=MeansConfig(), loss=FadingConfig(in_python=True))
    with (
        Trainer(config, packed, tmp_path / "run", device=TPU, progress=False) as trainer,
        pytest.raises(ConfigError, match=r"'fading', or model 'means', decides in Python .*torch.where"),
    ):
        trainer.run()


def test_a_batch_that_the_pieces_cannot_share_is_one_line(packed, tmp_path):
    with pytest.raises(ConfigError, match=r"batch_size is 4, which 1 cores and 3 accumulation steps cannot share"):
        Trainer(small(gradient_accumulation_steps=3), packed, tmp_path / "run", device=TPU, progress=False)


def test_too_few_cores_are_one_line(packed, tmp_path):
    place = Place("tpu", require_cores=8)
    with pytest.raises(RunError, match="training would use 1 core instead of 8"):
        Trainer(small(), packed, tmp_path / "run", device=place, progress=False)


def test_without_a_tpu_it_is_an_error_unless_another_platform_is_named(packed, tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS")
    with pytest.raises(RunError, match="no TPU found"):
        Trainer(small(), packed, tmp_path / "run", device=TPU, progress=False)
