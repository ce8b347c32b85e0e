"""Training on TensorFlow through the trainer.

Against torch's backend, on one device and on two, on and off.
"""

import dataclasses
import inspect
import json

import numpy as np
import pytest
import torch
from own_recordings import OWN, own_config, write_own

from cortext.cli import run
from cortext.data import open_packed
from cortext.errors import ConfigError, RunError
from cortext.features import AugmentationConfig
from cortext.models import GRUConfig, TripleGRUConfig, load_model, read_output
from cortext.models.inputs import InputNetworkConfig
from cortext.training import DatasetConfig, TrainConfig
from cortext.training.backend import DeviceSpec
from cortext.training.batches import Batches
from cortext.training.config import TPUConfig, read_train_config
from cortext.training.trainer import Trainer
from cortext.training.validate import Validator

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow", reason="run `make test-tf`")

from tensorflow.python.eager.polymorphic_function import polymorphic_function

from cortext_tpu.keras_tf import backend as backend_module
from cortext_tpu.keras_tf.pipeline import prepare
from cortext_tpu.keras_tf.strategy import choose_strategy

TENSORFLOW = DeviceSpec(backend="tensorflow")
QUIET = AugmentationConfig(white_noise_std=0.0, constant_offset_std=0.0, random_cut=0)
NOISY = AugmentationConfig(
    white_noise_std=0.5, constant_offset_std=0.2, static_gain_std=0.05, random_cut=3
)


def configured(transforms=QUIET, dropout=0.0, kind="gru", **settings):
    """A run of 6 batches of 6 trials."""
    shared = {
        "rnn_dropout": dropout,
        "input_network": InputNetworkConfig(input_layer_dropout=dropout),
    }
    if kind == "gru":
        model = GRUConfig(n_units=12, n_layers=2, **shared)
    else:
        units = {"noise_units": 8, "noise_layers": 1, "clean_units": 8, "clean_layers": 1}
        model = TripleGRUConfig(noisy_units=8, noisy_layers=1, **units, **shared)
    dataset = DatasetConfig(batch_size=6, days_per_batch=2, data_transforms=transforms)
    defaults = {
        "num_training_batches": 6,
        "lr_decay_steps": 6,
        "lr_decay_steps_day": 6,
        "lr_warmup_steps": 1,
    }
    defaults |= {
        "lr_warmup_steps_day": 1,
        "batches_per_train_log": 1,
        "batches_per_val_step": 6,
        "epsilon": 0.01,
    }
    defaults |= {"precision": "fp32", "tpu": TPUConfig(length_shapes=1)}
    return TrainConfig(model=model, dataset=dataset, **(defaults | settings))


@pytest.fixture
def one_device(monkeypatch):
    """TensorFlow has one device to train on."""
    one = tf.distribute.OneDeviceStrategy("/device:CPU:0")
    monkeypatch.setattr(backend_module, "choose_strategy", lambda spec, shown: one)


def trained(config, data, out, spec=TENSORFLOW, n_batches=None, **how):
    """Train (some batches); the last weights by name, and the trainer, which is closed."""
    with Trainer(config, data, out, device=spec, progress=False, **how) as trainer:
        trainer.run(n_batches)
        weights = {
            name: tensor.numpy().copy()
            for name, tensor in trainer.model.network.state_dict().items()
        }
    return weights, trainer


def metrics(out, kind="train"):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def most_different(one, two):
    assert one.keys() == two.keys()
    return max(float(np.abs(one[name] - two[name]).max()) for name in one)


def test_characters_of_ones_own_are_learnt_as_in_torch(tmp_path, one_device):
    data = write_own(tmp_path / "data", {"train": 4, "val": 2})
    config = own_config(3, by_chance=False)
    losses = {}
    for name, spec in (("tensorflow", TENSORFLOW), ("torch", DeviceSpec())):
        out = tmp_path / name
        trained(config, data, out, spec)
        losses[name] = metrics(out, "val")[-1]["val_loss"]
        assert load_model(out).conventions == OWN
    np.testing.assert_allclose(losses["tensorflow"], losses["torch"], rtol=1e-4)


def test_two_devices_are_one(packed, tmp_path, one_device):
    config = configured(NOISY, num_training_batches=3)
    alone, trainer = trained(config, packed, tmp_path / "one")
    assert (trainer.backend.cores, trainer.backend.name) == (1, "cpu (1 core, tensorflow)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend_module, "choose_strategy", choose_strategy)
        both, trainer = trained(config, packed, tmp_path / "two")
    assert (trainer.backend.cores, trainer.backend.name) == (2, "cpu (2 cores, tensorflow)")
    assert most_different(alone, both) < 1e-5
    for one, two in zip(metrics(tmp_path / "one"), metrics(tmp_path / "two"), strict=True):
        assert one["train_loss"] == pytest.approx(two["train_loss"], rel=1e-5)
        assert one["grad_norm"] == pytest.approx(two["grad_norm"], rel=1e-4)


@pytest.fixture(scope="module")
def by_torch(packed, tmp_path_factory):
    """Six batches by torch: the last weights, and the run directory."""
    out = tmp_path_factory.mktemp("torch") / "run"
    weights, _ = trained(configured(), packed, out, DeviceSpec())
    return weights, out


def test_a_run_goes_from_torch_to_tensorflow_and_back(packed, tmp_path, by_torch):
    out, config = tmp_path / "run", configured()
    trained(config, packed, out, DeviceSpec(), n_batches=2)
    middle, _ = trained(config, packed, out, n_batches=2, resume=True)
    weights, trainer = trained(config, packed, out, DeviceSpec(), resume=True)
    assert trainer.state.finished
    expected, theirs_out = by_torch
    assert most_different(weights, expected) < 1e-4
    assert most_different(weights, middle) > 1e-3  # torch has moved them on
    for ours, theirs in zip(metrics(out), metrics(theirs_out), strict=True):
        for name in ("train_loss", "grad_norm", "lr", "lr_day"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4)
    for name in ("val_loss", "val_per"):
        assert metrics(out, "val")[0][name] == pytest.approx(
            metrics(theirs_out, "val")[0][name], rel=1e-3
        )


def test_a_resumed_run_is_the_same_to_the_bit(packed, tmp_path, one_device):
    config = configured(NOISY, dropout=0.3)
    whole, _ = trained(config, packed, tmp_path / "whole")
    trained(config, packed, tmp_path / "parts", n_batches=3)
    parts, _ = trained(config, packed, tmp_path / "parts", resume=True)
    assert most_different(whole, parts) == 0


def test_the_step_is_compiled_once_for_each_length(packed, tmp_path, one_device, capsys):
    settings = {"num_training_batches": 20, "batches_per_val_step": 20}
    config = configured(tpu=TPUConfig(length_shapes=3), **settings)
    config.dataset.length_buckets = 3
    with Trainer(config, packed, tmp_path / "run", device=TENSORFLOW) as trainer:
        lengths = {int(batch["features"].shape[1]) for batch in trainer.backend.batches(0, 20)}
        trainer.run()
        assert len(lengths) == 3 == trainer.backend.traces
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("compiled")]
    assert len(said) == 3
    assert said[-1].endswith("(3 of at most 3 lengths)")


def test_a_trace_for_each_length_is_meant_and_not_warned_of(packed, tmp_path, caplog):
    """TensorFlow warns twice at most, in this process earlier than here.

    Its message is given once more.
    """
    message = (
        "5 out of the last 8 calls to %s triggered tf.function retracing. Tracing is expensive"
    )
    assert "retracing. Tracing is expensive" in inspect.getsource(polymorphic_function)
    trainer = Trainer(configured(), packed, tmp_path / "run", device=TENSORFLOW, progress=False)
    with trainer, trainer.backend.running():
        tf.get_logger().warning(message, "step")
        tf.get_logger().warning("of something else")
    tf.get_logger().warning(message, "another function")
    told = [record.getMessage() for record in caplog.records if record.name == "tensorflow"]
    assert told == ["of something else", message % "another function"]


def test_a_batch_in_pieces_moves_the_weights_as_a_whole_one(packed, tmp_path, by_torch):
    weights, trainer = trained(configured(gradient_accumulation_steps=3), packed, tmp_path / "run")
    assert trainer.backend.model.accumulation == 3
    assert most_different(weights, by_torch[0]) < 1e-4


def test_the_adversarial_model_trains_as_in_torch(packed, tmp_path):
    config = configured(kind="triple_gru", num_training_batches=3)
    expected, _ = trained(config, packed, tmp_path / "torch", DeviceSpec())
    weights, _ = trained(config, packed, tmp_path / "tf")
    assert most_different(weights, expected) < 1e-4
    for ours, theirs in zip(metrics(tmp_path / "tf"), metrics(tmp_path / "torch"), strict=True):
        for name in ("train_loss", "train_clean", "train_noisy", "train_noise"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4)


def test_precision_is_what_was_asked_for(packed, tmp_path, by_torch, one_device):
    config = configured(precision="bf16", num_training_batches=3)
    _, trainer = trained(config, packed, tmp_path / "bf16")
    assert trainer.backend.model.dtype_policy.name == "mixed_bfloat16"
    weights = trainer.backend.model.trainable_variables
    assert {str(weight.dtype) for weight in weights} == {"float32"}
    for ours, theirs in zip(metrics(tmp_path / "bf16"), metrics(by_torch[1]), strict=False):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=0.05)
    with Trainer(
        configured(precision="auto"), packed, tmp_path / "auto", device=TENSORFLOW, progress=False
    ) as trainer:
        assert trainer.backend.model.dtype_policy.name == "float32"  # there is no TPU
        before = tf.config.experimental.tensor_float_32_execution_enabled()
        with trainer.backend.running():
            assert not tf.config.experimental.tensor_float_32_execution_enabled()
        assert tf.config.experimental.tensor_float_32_execution_enabled() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"gradient_accumulation_steps": 2},
            "batch_size is 6, which 2 cores and 2 accumulation steps cannot",
        ),
        ({"trainable": ["gru.bias_ih_l0", "out"]}, "bias_ih_l0 and gru.bias_hh_l0 only one learns"),
    ],
)
def test_what_tensorflow_cannot_train_is_one_line(packed, tmp_path, changes, message):
    with pytest.raises((ConfigError, RunError), match=message):
        trained(configured(**changes), packed, tmp_path / "run")


def test_the_step_compiles_for_xla_as_a_tpu_needs_it(packed, tmp_path, one_device, by_torch):
    """Every operation of the step has a form in XLA, and every shape is known."""
    with Trainer(
        configured(), packed, tmp_path / "run", device=TENSORFLOW, progress=False
    ) as trainer:
        backend = trainer.backend
        backend._steps = tf.function(backend._replicas_step, autograph=False, jit_compile=True)
        trainer.run(2)
        raw = next(iter(backend.batches(2, 3)))
    for ours, theirs in zip(metrics(tmp_path / "run"), metrics(by_torch[1]), strict=False):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-4)
    noise = dataclasses.replace(
        NOISY, static_gain_std=0.0, constant_offset_std=0.0, random_cut=0, smooth_data=False
    )

    def compiled(settings):
        return tf.function(
            lambda: prepare(raw, settings)["features"], jit_compile=True, autograph=False
        )().numpy()

    assert np.std(compiled(noise) - raw["features"].numpy()) == pytest.approx(0.5, rel=0.02)
    assert np.isfinite(compiled(NOISY)).all()


def test_keras_on_another_backend_is_refused(packed, tmp_path, monkeypatch):
    monkeypatch.setattr("keras.backend.backend", lambda: "jax")
    with pytest.raises(
        ConfigError, match="Keras runs on jax, and --backend tensorflow trains on TensorFlow; unset"
    ):
        trained(configured(), packed, tmp_path / "run")


def test_torchrun_is_refused(packed, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RunError, match="torchrun has started several processes; start one"):
        trained(configured(), packed, tmp_path / "run")


def test_a_loss_that_is_not_finite_names_its_trials_and_moves_nothing(packed, tmp_path, one_device):
    with Trainer(
        configured(num_training_batches=2),
        packed,
        tmp_path / "run",
        device=TENSORFLOW,
        progress=False,
    ) as trainer:
        before = [np.full_like(weights, np.inf) for weights in trainer.backend.model.get_weights()]
        trainer.backend.model.set_weights(before)
        with pytest.raises(RunError, match="the loss of batch 0 is not finite, in trials t15"):
            trainer.run()
        assert all(
            np.array_equal(a, b)
            for a, b in zip(before, trainer.backend.model.get_weights(), strict=True)
        )


def test_a_device_without_memory_is_one_line(packed, tmp_path, one_device, monkeypatch):
    def exhausted(batch):
        raise tf.errors.ResourceExhaustedError(
            None, None, "Out of memory while trying to allocate 17179869184 bytes"
        )

    with Trainer(
        configured(), packed, tmp_path / "run", device=TENSORFLOW, progress=False
    ) as trainer:
        monkeypatch.setattr(trainer.backend, "_steps", exhausted)
        monkeypatch.setattr(type(trainer.backend), "traces", 0)
        with pytest.raises(RunError, match="out of memory: resource exhausted with a batch of 6"):
            trainer.run()


def cortext(*arguments):
    """The exit status of the command line."""
    return run([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Simulated recordings, packed as TFRecords, and a run on them; all by the command line."""
    folder = tmp_path_factory.mktemp("simulated")
    assert cortext("simulate", folder / "sim", "--preset", "tiny", "--workers", "1") == 0
    assert cortext("pack", folder / "sim", "--out", folder / "packed", "--format", "tfrecord") == 0
    training = [
        "train",
        "--config",
        "tiny",
        "--backend",
        "tensorflow",
        "--require-cores",
        "2",
        "--precision",
        "fp32",
    ]
    training += [
        "--data",
        folder / "packed",
        "--out",
        folder / "run",
        "--profile",
        folder / "trace",
    ]
    training += [
        "--profile-steps",
        "5:7",
        "--set",
        "tpu.length_shapes=1",
        "--set",
        "num_training_batches=12",
    ]
    assert (
        cortext(
            *training,
            "--set",
            "batches_per_val_step=6",
            "--set",
            "dataset.feature_subset=[0,3,4,5]",
        )
        == 0
    )
    return folder


def test_the_run_directory_is_an_ordinary_one(simulated, capsys):
    summary = json.loads((simulated / "run" / "summary.json").read_text())
    assert (summary["steps"], summary["device"]) == (12, "cpu (2 cores, tensorflow)")
    evaluated = cortext(
        "evaluate", simulated / "run", "--data", simulated / "packed", "--out", simulated / "eval"
    )
    assert evaluated == 0
    assert 0 < json.loads((simulated / "eval" / "metrics.json").read_text())["per"] <= 1.5
    assert "PER" in capsys.readouterr().out


def test_torch_finds_the_same_errors_in_the_kept_weights(simulated):
    """What was measured with the Keras model is what torch measures."""
    model, data = load_model(simulated / "run"), open_packed(simulated / "packed")
    config = read_train_config(simulated / "run" / "config.yaml")
    val = data.split("val").select(feature_subset=[0, 3, 4, 5])
    days, transforms = np.arange(len(data.sessions)), config.dataset.data_transforms
    batches = Batches(val, days, transforms, torch.device("cpu"), model.network.n_patches)
    network = model.network.eval()
    found, _ = Validator(batches, model.inventory, config).measure(
        lambda batch: read_output(network(batch.x_BTC, batch.day_B))
    )
    best = json.loads((simulated / "run" / "summary.json").read_text())
    assert found["val_loss"] == pytest.approx(best["val_loss"], rel=1e-5)
    assert found["val_per"] == pytest.approx(best["val_per"], abs=0.002)


def test_a_trace_is_written(simulated):
    assert list((simulated / "trace").rglob("*.xplane.pb"))


def test_too_few_cores_are_refused_before_anything_is_trained(simulated, capsys):
    arguments = [
        "train",
        "--config",
        "tiny",
        "--backend",
        "tensorflow",
        "--data",
        simulated / "packed",
    ]
    assert cortext(*arguments, "--out", simulated / "eight", "--require-cores", "8") == 2
    assert "training would use 2 cores instead of 8" in capsys.readouterr().err
    assert not (simulated / "eight" / "train_state").exists()
