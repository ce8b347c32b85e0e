"""Runs on XLA: ordinary run directories, which continue elsewhere.

They take few compilations.
"""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pytestmark = pytest.mark.tpu
pytest.importorskip("torchax", reason="run `make test-tpu`")

import jax
from own_recordings import OWN, own_config, write_own
from small_training import logged, make_config, tpu_config

from cortext.cli import app
from cortext.errors import ConfigError, RunError
from cortext.features import TimeMaskConfig
from cortext.models import load_model
from cortext.models.inputs import InputNetworkConfig
from cortext.training import DeviceSpec, Trainer
from cortext.training.backend import StepResult
from cortext.training.batches import Batches
from cortext_tpu.backend import keep_programs
from cortext_tpu.find import Found
from cortext_tpu.mesh import hosts

TPU = DeviceSpec("tpu")


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
    """A run with torch's backend."""
    out = tmp_path_factory.mktemp("torch") / "run"
    with Trainer(tpu_config(), packed, out, progress=False) as trainer:
        trainer.run()
    return out


def copied(state):
    return {name: tensor.clone() for name, tensor in state.items()}


@pytest.fixture(scope="module")
def shared(packed, tmp_path_factory):
    """The same run, begun on XLA, continued in torch, and ended on XLA."""
    out, states = tmp_path_factory.mktemp("shared") / "run", []
    for device, n_batches in (("tpu", 4), ("cpu", 4), ("tpu", 4)):
        with Trainer(
            tpu_config(), packed, out, device=device, resume=bool(states), progress=False
        ) as trainer:
            begun = copied(trainer.backend.state())
            trainer.run(n_batches)
            states.append((begun, copied(trainer.backend.state())))
    return out, states


def test_characters_of_ones_own_are_learnt_as_in_torch(tmp_path):
    data = write_own(tmp_path / "data", {"train": 4, "val": 2})
    config = own_config(3, by_chance=False)
    losses = {}
    for device in ("tpu", "cpu"):
        out = tmp_path / device
        with Trainer(config, data, out, device=device, progress=False) as trainer:
            losses[device] = trainer.run().val_loss
        assert load_model(out).conventions == OWN
    np.testing.assert_allclose(losses["tpu"], losses["cpu"], rtol=1e-4)


def test_a_run_that_moves_between_backends_is_the_run_of_one(shared, in_torch):
    out, _ = shared
    for kind, name in (
        ("train", "train_loss"),
        ("train", "grad_norm"),
        ("val", "val_loss"),
        ("val", "val_per"),
    ):
        expected = [line[name] for line in logged(in_torch, kind)]
        assert [line[name] for line in logged(out, kind)] == pytest.approx(expected, rel=1e-3), name
    assert [line["step"] for line in logged(out, "train")] == [3, 6, 9, 12]


def test_the_optimisers_state_goes_from_backend_to_backend_as_it_is(shared):
    _, ((_, first), (torchs, second), (last, _)) = shared
    for before, after in ((first, torchs), (second, last)):
        assert before.keys() == after.keys()
        for name, tensor in before.items():
            assert torch.equal(tensor.to(after[name].dtype), after[name]), name
    assert first["day_steps"].sum() == 8  # 4 batches of 2 days


def test_every_command_reads_the_run(shared, packed, tmp_path):
    out, _ = shared
    assert load_model(out).n_features == 8
    assert json.loads((out / "summary.json").read_text())["device"] == "cpu (1 core)"
    arguments = [
        "evaluate",
        str(out),
        "--data",
        str(packed.path),
        "--out",
        str(tmp_path / "eval"),
        "--json",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert 0 <= json.loads(result.stdout)["per"] <= 1.5


def test_the_command_line_trains_and_keeps_what_it_compiled(recordings, tmp_path):
    arguments = [
        "train",
        "--config",
        "tiny",
        "--data",
        str(recordings),
        "--out",
        str(tmp_path / "run"),
        "--json",
    ]
    arguments += ["--device", "tpu", "--set", f"tpu.compilation_cache={tmp_path / 'programs'}"]
    arguments += ["--set", "num_training_batches=4", "--set", "tpu.length_shapes=1"]
    result = CliRunner().invoke(app, arguments)
    jax.config.update("jax_compilation_cache_dir", None)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["steps"] == 4
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert written >= {
        "config.yaml",
        "model.json",
        "model.safetensors",
        "metrics.jsonl",
        "summary.json",
        "train_state",
    }
    assert any((tmp_path / "programs").iterdir())


def test_an_epoch_of_mixed_lengths_compiles_no_more_than_there_are_lengths(
    packed, tmp_path, capsys, compilations
):
    """Although learning rates, reversal strength, days and random keys change with every step."""
    changes = {
        name: getattr(make_config("triple_gru", dropout=0.2), name) for name in ("model", "loss")
    }
    config = replace(tpu_config(2), **changes)
    with Trainer(config, packed, tmp_path / "run", device=TPU) as trainer:
        capsys.readouterr()
        del compilations[:]
        padded = set()
        for batch in trainer.backend.batches(0, 12):
            padded.add(batch.n_bins)
            trainer.backend.update(0, batch)
        said = [
            line
            for line in capsys.readouterr().err.splitlines()
            if line.startswith("compiled the training step")
        ]
    assert len(padded) > 1
    assert len(compilations) == len(said) == len(padded) <= 2
    for n_bins, line in zip(
        sorted(padded), sorted(said, key=lambda line: int(line.split()[7])), strict=True
    ):
        assert line.startswith(f"compiled the training step for trials of {n_bins} bins in ")
        assert line.endswith(" s")


@pytest.mark.parametrize("after_smoothing", [False, True])
def test_registered_augmentations_are_torchs_own(after_smoothing, packed, tmp_path):
    """The host draws what torch's backend draws, to the rounding to float16.

    The step then only smooths, or takes the features as they are.
    """
    mask = TimeMaskConfig(n_masks=2, max_share=0.3, after_smoothing=after_smoothing)
    config = tpu_config()
    transforms = replace(config.dataset.data_transforms, white_noise_std=0.5, random_cut=3)
    compared = replace(transforms, smooth_data=after_smoothing)
    config = replace(
        config, dataset=replace(config.dataset, augmentations=[mask], data_transforms=transforms)
    )
    with Trainer(config, packed, tmp_path / "run", device=TPU, progress=False) as trainer:
        backend = trainer.backend
        (found,) = backend.batches(5, 6)
        make = (
            trainer.layer_of_day,
            compared,
            torch.device("cpu"),
            trainer.model.network.n_patches,
        )
        batches = Batches(trainer.train_split, *make, extra=backend.extra)
        (expected,) = batches.training(backend.job.sampler, config.seed, 5, 6)
    n_bins = expected.x_BTC.shape[1]
    features = np.asarray(found.batch["features"])
    np.testing.assert_allclose(features[:, :n_bins], expected.x_BTC.numpy(), atol=0.01)
    assert not features[:, n_bins:].any()
    np.testing.assert_array_equal(found.batch["n_bins"], expected.n_bins_B)
    assert (features[0, : int(expected.n_bins_B[0])] == 0).all(axis=1).any()  # a mask


def test_a_transformer_learns_with_masks_what_torch_learns(packed, tmp_path):
    """Noise and masks are the host's, the draws of torch, to the rounding to float16."""
    config = tpu_config(kind="transformer")
    transforms = replace(config.dataset.data_transforms, white_noise_std=0.2)
    mask = TimeMaskConfig(n_masks=4, max_share=0.1, patch_bins=4, after_smoothing=True)
    dataset = replace(config.dataset, augmentations=[mask], data_transforms=transforms)
    config = replace(config, dataset=dataset)
    for device in ("cpu", "tpu"):
        with Trainer(config, packed, tmp_path / device, device=device, progress=False) as trainer:
            trainer.run()
    for kind, name in (("train", "train_loss"), ("train", "grad_norm"), ("val", "val_loss")):
        expected = [line[name] for line in logged(tmp_path / "cpu", kind)]
        found = [line[name] for line in logged(tmp_path / "tpu", kind)]
        assert len(expected) > 1
        assert found == pytest.approx(expected, rel=2e-3), name


def test_day_layers_that_do_not_learn(packed, tmp_path):
    """The state, which is empty where days are, is written by one backend and read by the other."""
    frozen = InputNetworkConfig(input_layer_dropout=0.0, input_trainable=False)
    config = tpu_config(batches_per_train_log=1)
    config = replace(config, model=replace(config.model, input_network=frozen))
    for name, devices in (("torch", ("cpu", "cpu")), ("both", ("tpu", "cpu"))):
        for number, device in enumerate(devices):
            with Trainer(
                config, packed, tmp_path / name, device=device, resume=number > 0, progress=False
            ) as trainer:
                trainer.run(2)
    found, expected = (
        [line["grad_norm"] for line in logged(tmp_path / name, "train")]
        for name in ("both", "torch")
    )
    assert found == pytest.approx(expected, rel=1e-3)
    assert len(found) == 4


def test_a_batch_that_the_pieces_cannot_share_is_one_line(packed, tmp_path):
    with pytest.raises(
        ConfigError, match=r"batch_size is 4, which 1 core and 3 accumulation steps cannot share"
    ):
        Trainer(
            tpu_config(gradient_accumulation_steps=3),
            packed,
            tmp_path / "run",
            device=TPU,
            progress=False,
        )


def test_too_few_cores_are_one_line(packed, tmp_path):
    spec = DeviceSpec("tpu", require_cores=8)
    with pytest.raises(RunError, match="training would use 1 core instead of 8"):
        Trainer(tpu_config(), packed, tmp_path / "run", device=spec, progress=False)


def test_without_a_tpu_it_is_an_error_unless_another_platform_is_named(
    packed, tmp_path, monkeypatch
):
    monkeypatch.delenv("JAX_PLATFORMS")
    with pytest.raises(RunError, match="no TPU found"):
        Trainer(tpu_config(), packed, tmp_path / "run", device=TPU, progress=False)


def test_a_tpu_that_jax_does_not_use_is_an_error(packed, tmp_path, monkeypatch):
    there = Found("kaggle", "local", attached=True, chips=8, generation="v5e", libtpu="libtpu.so")
    monkeypatch.setattr("cortext_tpu.backend.find_own_tpu", lambda spec: there)
    with pytest.raises(
        RunError,
        match=(
            r"JAX uses the CPU, although there is a TPU: 8 v5e chips on this machine"
            r" \(Kaggle\); pip"
        ),
    ):
        Trainer(tpu_config(), packed, tmp_path / "run", device=TPU, progress=False)


def test_a_run_without_a_cache_keeps_nothing_in_that_of_the_run_before(tmp_path):
    keep_programs(str(tmp_path / "programs"))
    keep_programs(None)
    jax.jit(lambda x: x * 3 + 0.125)(np.ones(7, np.float32)).block_until_ready()
    assert jax.config.jax_compilation_cache_dir is None
    assert not (tmp_path / "programs").exists()


def test_hosts_leave_the_environment_as_it_was(monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "localhost:1")
    for name in ("initialize", "shutdown"):
        monkeypatch.setattr(jax.distributed, name, lambda **_: None)
    before = dict(os.environ)
    with hosts(TPU) as processes:
        assert processes.first
        assert dict(os.environ) == before
    assert dict(os.environ) == before


def test_what_was_found_is_fetched_all_at_once(packed, tmp_path):
    """Everything is on the way to the host before anything is waited for."""
    events = []

    class OnTheCore:
        """An array of one shard, on which a host waits."""

        def __init__(self, values):
            self.values, self.data, self.index = (
                np.asarray(values, np.float32),
                self,
                (slice(None),),
            )
            self.addressable_shards = [self]

        def addressable_data(self, number):
            return self

        def copy_to_host_async(self):
            events.append("start")

        def __array__(self, dtype=None, copy=None):
            events.append("wait")
            return self.values

    updates = [
        StepResult(step, np.arange(2), {"loss": OnTheCore([1, step])}, OnTheCore(0.5))
        for step in range(3)
    ]
    with Trainer(tpu_config(), packed, tmp_path / "run", device=TPU, progress=False) as trainer:
        found = trainer.backend.read(updates)
    assert events == ["start"] * 6 + ["wait"] * 6
    assert [list(each.losses["loss"]) for each in found] == [[1, 0], [1, 1], [1, 2]]
    assert [each.norm for each in found] == [0.5] * 3
