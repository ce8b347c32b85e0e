"""`fit`, `evaluate` and `predict`, saving, mixed precision, and what a training step promises."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow", reason="run `make test-tf`")

import keras
from small_training import N_BINS, N_DAYS, N_FEATURES, make_batch, make_config, make_network

from cortext.errors import ConfigError
from cortext.training.loss import CTCConfig
from cortext.training.loss import ctc_loss as torch_ctc_loss
from cortext_tpu.keras_tf import ctc
from cortext_tpu.keras_tf.convert import from_torch, to_torch
from cortext_tpu.keras_tf.models import CleanSpeechModel, NoiseModel, NoisySpeechModel, keras_model

SIZES = {"n_features": N_FEATURES, "n_days": N_DAYS, "n_classes": 41}


def ready_batch(seed=0, days=(3, 1, 3, 0), n_bins=N_BINS):
    batch = make_batch(days, seed, n_bins)
    n_patches = np.maximum((batch["n_bins"] - 14) // 4 + 1, 0).astype(np.int32)
    return {**batch, "features": batch["features"].astype(np.float32), "n_patches": n_patches}


def tensors(batch):
    return {name: tf.constant(value) for name, value in batch.items()}


def dataset(n_batches=3):
    batches = [ready_batch(seed) for seed in range(n_batches)]
    rows = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    return tf.data.Dataset.from_tensor_slices(rows).batch(4, drop_remainder=True)


def new_model(kind="gru", bf16=False, **settings):
    config = make_config(kind, **settings)
    model = keras_model(config, **SIZES, bf16=bf16)
    from_torch(model, make_network(config))
    return model


def weights(model):
    return [weight.numpy() for weight in model.weights]


@pytest.fixture(scope="module", params=["gru", "triple_gru"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def fitted(kind):
    """A model after two epochs on a dataset of dictionaries, and what `fit` said."""
    model = new_model(kind, lr_warmup_steps=0, lr_max=0.01)
    return model, model.fit(dataset(), epochs=2, verbose=0, shuffle=False).history


# Keras reads its own variables in a way that numpy will no longer allow.
saves = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def test_fit_gives_the_mean_of_every_loss_and_it_falls(fitted, kind):
    model, history = fitted
    parts = {"clean", "noisy", "noise"} if kind == "triple_gru" else set()
    assert history.keys() == {"loss", "grad_norm"} | parts
    assert history["loss"][1] < history["loss"][0]
    assert int(model.optimizer.iterations) == 6


def test_evaluate_gives_the_mean_ctc_loss_of_torch(fitted, kind):
    model, _ = fitted
    network = make_network(make_config(kind)).eval()
    to_torch(model, network)
    losses = []
    for batch in dataset().as_numpy_iterator():
        numbers = {name: torch.tensor(value) for name, value in batch.items()}
        with torch.no_grad():
            logits_BPV = network(numbers["features"], numbers["day"].long())[0]
        labels = (numbers[name].long() for name in ("n_patches", "labels", "n_labels"))
        losses += torch_ctc_loss(logits_BPV, *labels).tolist()
    found = model.evaluate(dataset(), verbose=0, return_dict=True)
    assert found.keys() == {"loss"}
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_trials_that_fill_up_a_batch_do_not_count_in_evaluate():
    model, batch = new_model(), ready_batch()
    own = model.evaluate(
        tf.data.Dataset.from_tensors({k: v[:3] for k, v in batch.items()}),
        verbose=0,
        return_dict=True,
    )
    batch["n_patches"][3] = 0
    assert model.evaluate(
        tf.data.Dataset.from_tensors(batch), verbose=0, return_dict=True
    ) == pytest.approx(own)


def test_predict_gives_logits_in_the_order_of_the_trials(fitted):
    model, _ = fitted
    found = model.predict(dataset(), verbose=0)
    assert found.keys() == {"logits", "n_patches"}
    assert found["logits"].dtype == np.float32
    for number, batch in enumerate(dataset()):
        rows = slice(4 * number, 4 * number + 4)
        np.testing.assert_allclose(found["logits"][rows], model(batch)[0], atol=1e-5)
        np.testing.assert_array_equal(found["n_patches"][rows], batch["n_patches"])


@saves
def test_a_keras_file_holds_model_optimiser_and_loss(fitted, tmp_path):
    model, _ = fitted
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", safe_mode=True)
    assert type(loaded) is type(model)
    assert loaded.config == model.config
    for mine, theirs in (
        (model.weights, loaded.weights),
        (model.optimizer.variables, loaded.optimizer.variables),
    ):
        assert len(mine) == len(theirs)
        assert all(np.array_equal(one, other) for one, other in zip(mine, theirs, strict=True))
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    assert loaded.loss.get_config() == model.loss.get_config()
    np.testing.assert_array_equal(
        loaded(tensors(ready_batch()))[0], model(tensors(ready_batch()))[0]
    )


@saves
# As of every compiled model.
@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")
def test_a_weights_file_holds_every_weight(fitted, kind, tmp_path):
    model, _ = fitted
    model.save_weights(tmp_path / "model.weights.h5")
    other = keras_model(make_config(kind), **SIZES)
    assert not np.array_equal(other.weights[0], model.weights[0])
    other.load_weights(tmp_path / "model.weights.h5", skip_mismatch=False)
    assert all(
        np.array_equal(one, two) for one, two in zip(model.weights, other.weights, strict=True)
    )


def test_a_model_makes_its_weights_when_it_sees_a_batch():
    config = make_config("triple_gru").model
    model = CleanSpeechModel(config, n_days=N_DAYS, n_classes=41)
    assert model.weights == []
    model(tensors(ready_batch()))
    again = CleanSpeechModel.from_config(model.get_config())
    again(tensors(ready_batch()))
    assert [w.shape for w in again.weights] == [w.shape for w in model.weights]
    # The release's first weights: orthogonal recurrent matrices, days that change nothing.
    recurrent = model.gru[0].cell.recurrent_kernel.numpy()
    np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(len(recurrent)), atol=1e-5)
    np.testing.assert_array_equal(
        model.days.day_weight, np.tile(np.eye(N_FEATURES), (N_DAYS, 1, 1))
    )


def test_the_parts_work_alone_with_days_of_their_own_and_the_adversary_never_has_any():
    config = make_config("triple_gru").model
    batch = tensors(ready_batch())
    noise_BPI, _ = NoiseModel(config, n_days=N_DAYS)(batch)
    assert noise_BPI.shape == (4, 15, 14 * N_FEATURES)
    clean = CleanSpeechModel(config, n_days=N_DAYS, n_classes=41)
    assert clean(batch)[0].shape == (4, 15, 41)
    assert CleanSpeechModel(config, n_classes=41)(noise_BPI)[0].shape == (4, 15, 41)
    noisy = NoisySpeechModel(config, n_classes=41)
    assert NoisySpeechModel.from_config(noisy.get_config())(noise_BPI)[0].shape == (4, 15, 41)
    with pytest.raises(TypeError, match="n_days"):
        NoisySpeechModel(config, n_classes=41, n_days=N_DAYS)


def test_a_trial_in_pieces_gives_the_logits_of_the_whole(kind):
    model, batch = new_model(kind), ready_batch()
    whole = model(tensors(batch))[0]
    first, second = dict(batch), dict(batch)
    first["features"], second["features"] = (
        batch["features"][:, : 14 + 4 * 5],
        batch["features"][:, 4 * 6 :],
    )
    begun, state = model(tensors(first))
    ended, _ = model(tensors(second), state=state)
    np.testing.assert_allclose(np.concatenate([begun, ended], axis=1), whole, atol=1e-5)


def test_a_step_in_mixed_bfloat16_keeps_weights_and_ctc_in_float32(monkeypatch):
    seen = []
    log_softmax = ctc.ops.log_softmax
    monkeypatch.setattr(
        ctc.ops, "log_softmax", lambda x, axis: seen.append(x.dtype) or log_softmax(x, axis=axis)
    )
    exact, mixed = new_model("triple_gru"), new_model("triple_gru", bf16=True)
    assert mixed.dtype_policy.name == "mixed_bfloat16"
    batch = tensors(ready_batch())
    assert mixed(batch)[0].dtype == tf.bfloat16
    for model in (exact, mixed):
        model.optimizer.iterations.assign(50)
    before = weights(mixed)
    expected, found = (model.update(batch) for model in (exact, mixed))
    assert len(seen) == 4  # two readers each
    assert set(seen) == {tf.float32}
    assert found[1].dtype == tf.float32
    for name, loss_B in found[0].items():
        assert loss_B.dtype == tf.float32
        np.testing.assert_allclose(loss_B, expected[0][name], rtol=0.02)
    np.testing.assert_allclose(found[1], expected[1], rtol=0.05)
    assert {weight.dtype for weight in mixed.weights} == {"float32"}
    moved = [np.abs(one - other).max() for one, other in zip(weights(mixed), before, strict=True)]
    assert min(moved) > 0
    for one, other in zip(weights(mixed), weights(exact), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-3)


def test_a_step_in_pieces_compiles_and_gives_what_it_gives_in_one_piece_without_compiling():
    batch, found = tensors(ready_batch()), []
    for pieces, jit in ((1, False), (2, True)):
        model = new_model(gradient_accumulation_steps=pieces)
        model.optimizer.iterations.assign(20)
        update = tf.function(model.update, jit_compile=True) if jit else model.update
        losses, norm = update(batch)
        found.append([losses["loss"].numpy(), norm.numpy(), *weights(model)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_dropout_is_a_function_of_seed_and_step():
    def losses(step, seed=10):
        model = new_model(dropout=0.4, seed=seed)
        model.optimizer.iterations.assign(step)
        return model.update(tensors(ready_batch()))[0]["loss"].numpy()

    np.testing.assert_array_equal(losses(3), losses(3))
    assert (losses(3) != losses(4)).any()
    assert (losses(3) != losses(3, seed=11)).any()


def test_a_gradient_that_is_not_finite_moves_nothing_and_its_batch_counts():
    model, batch = new_model(lr_warmup_steps=0, lr_warmup_steps_day=0), ready_batch()
    model.update(tensors(batch))
    before, counts = weights(model), [count.numpy() for count in model.optimizer.counts]
    batch["features"][1, 30, 2] = np.nan
    losses, norm = model.update(tensors(batch))
    assert not np.isfinite(norm)
    assert [bool(np.isfinite(loss)) for loss in losses["loss"]] == [True, False, True, True]
    assert all(
        np.array_equal(one, other) for one, other in zip(weights(model), before, strict=True)
    )
    slots = [*model.optimizer.mean, *model.optimizer.square]
    assert all(np.isfinite(slot.numpy()).all() for slot in slots)
    assert all(
        np.array_equal(one, other)
        for one, other in zip(model.optimizer.counts, counts, strict=True)
    )
    assert int(model.optimizer.iterations) == 2


def test_a_batch_that_cannot_be_taken_apart_is_refused():
    model = new_model(gradient_accumulation_steps=3)
    with pytest.raises(
        ConfigError, match="4 trials a core cannot be taken apart into 3 equal pieces"
    ):
        model.update(tensors(ready_batch()))


@saves
def test_a_keras_file_keeps_mixed_precision(tmp_path):
    model = new_model("triple_gru", bf16=True)
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "mixed.keras")
    loaded = keras.models.load_model(tmp_path / "mixed.keras")
    assert loaded(tensors(ready_batch()))[0].dtype == tf.bfloat16
    assert {weight.dtype for weight in loaded.weights} == {"float32"}


def test_an_optimiser_or_a_loss_of_keras_is_refused():
    model = new_model()
    with pytest.raises(ConfigError, match=r"compile got 'adam'.*give it a DayAdamW"):
        model.compile(optimizer="adam", loss=model.loss)
    with pytest.raises(ConfigError, match=r"compile got <Loss.*categorical_crossentropy"):
        model.compile(optimizer=model.optimizer, loss=keras.losses.CategoricalCrossentropy())


def test_what_has_no_keras_form_is_said():
    @dataclass
    class OtherConfig:
        kind: Literal["other"] = "other"

    config = make_config()
    config.model = OtherConfig()
    with pytest.raises(
        ConfigError,
        match="model 'other' has no Keras form; use --backend torch, or the model gru or",
    ):
        keras_model(config, **SIZES)
    for name, value in (("diphones", True), ("intermediate_layer", 1)):
        config = make_config()
        setattr(config.model, name, value)
        with pytest.raises(ConfigError, match=rf"model.{name} has no Keras form; use --backend"):
            keras_model(config, **SIZES)
    config = make_config()
    config.model.input_network.day_layer = "affine"
    with pytest.raises(ConfigError, match=r"day_layer 'affine' has no Keras form; .* or softsign$"):
        keras_model(config, **SIZES)
    config = make_config(lr_scheduler_type="multistep", lr_steps=[50])
    with pytest.raises(ConfigError, match="lr_scheduler_type 'multistep' has no Keras form"):
        keras_model(config, **SIZES)
    config = make_config("transformer")
    with pytest.raises(ConfigError, match="model 'transformer' has no Keras form"):
        keras_model(config, **SIZES)
    config = make_config()
    config.loss = OtherConfig()
    with pytest.raises(ConfigError, match="loss 'other' has no Keras form"):
        keras_model(config, **SIZES)
    config.loss = CTCConfig(per_label=True)
    with pytest.raises(ConfigError, match=r"loss.per_label has no Keras form; use --backend torch"):
        keras_model(config, **SIZES)
