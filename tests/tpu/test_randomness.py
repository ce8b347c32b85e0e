"""What a step draws.

Anew in every step, stream and piece of a batch, and the same again after a run has stopped.
"""

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.tpu
pytest.importorskip("torchax", reason="run `make test-tpu`")

import jax
from small_training import (
    N_FEATURES,
    N_LABELS,
    as_torch,
    make_batch,
    make_config,
    make_network,
    weights_of,
    write_recordings,
)

import cortext_tpu.layers  # noqa: F401 # registers XLA's layers and CTC
from cortext.data.packed import pack
from cortext.training import Trainer
from cortext.training.config import TPUConfig
from cortext.training.loss import build_loss
from cortext_tpu.mesh import data_mesh
from cortext_tpu.products import tracing
from cortext_tpu.step import Programs, numbers

KEYS = ("dropout", "augmentation")


def test_every_step_stream_and_seed_has_a_key_of_its_own():
    keys = [
        tuple(numbers(make_config(seed=seed), step, 0.0, 0.0)[name])
        for seed in (1, 2)
        for step in (3, 4)
        for name in KEYS
    ]
    assert len(set(keys)) == 8
    assert keys[0] == tuple(numbers(make_config(seed=1), 3, 0.0, 0.0)["dropout"])


def in_two_pieces(batch, dropout):
    """Gradients and losses of a batch that goes through the model in two halves."""
    config = make_config(dropout=dropout, gradient_accumulation_steps=2)
    network, mesh = make_network(config), data_mesh(jax.devices()[:1])
    loss = build_loss(config.loss, "gru")
    programs = Programs(network, loss, config, mesh, n_features=N_FEATURES, n_labels=N_LABELS)
    ready = batch | {"features": batch["features"].astype(np.float32)}
    with tracing(bf16=False):
        found = jax.jit(programs.gradients)(
            weights_of(network), {}, ready, numbers(config, 3, 0.0, 0.0)
        )
    return jax.device_get(found)


def test_a_batch_in_pieces_has_the_losses_of_its_trials_in_their_order():
    """And their gradient, as torch computes both in float64 for the whole batch."""
    batch = make_batch()
    gradients, losses = in_two_pieces(batch, 0.0)
    config = make_config()
    network = make_network(config).double().train()
    x_BTC = torch.from_numpy(batch["features"]).double()
    expected_B = build_loss(config.loss, "gru")(network, as_torch(batch, network, x_BTC), 0.0)[
        "loss"
    ]
    expected_B.mean().backward()
    assert np.diff(np.sort(expected_B.detach().numpy())).min() > 0.1  # so that their order shows
    np.testing.assert_allclose(losses["loss"], expected_B.detach().numpy(), rtol=1e-5)
    for name, parameter in network.named_parameters():
        expected = parameter.grad.numpy()
        assert np.abs(gradients[name] - expected).max() <= 1e-4 * np.abs(expected).max(), name


def test_every_trial_of_every_piece_has_dropout_of_its_own():
    batch = {name: np.repeat(values[:1], 4, axis=0) for name, values in make_batch().items()}
    _, losses = in_two_pieces(batch, 0.3)
    assert np.diff(np.sort(losses["loss"])).min() > 1e-3  # equal draws differ by 1e-6


def test_a_run_with_noise_and_dropout_that_stopped_continues_bit_by_bit(tmp_path):
    packed = pack(write_recordings(tmp_path / "sessions"), tmp_path / "packed")
    noise = {"white_noise_std": 1.0, "constant_offset_std": 0.2, "random_cut": 3}
    tpu = TPUConfig(length_shapes=1, compilation_cache=None)
    config = make_config(
        dropout=0.3, transforms=noise, num_training_batches=6, batches_per_val_step=100, tpu=tpu
    )
    compiled, ends = {}, []
    for run, n_batches in (("whole", 6), ("parts", 3), ("parts", 3)):
        resume = (tmp_path / run).exists()
        with Trainer(
            config, packed, tmp_path / run, device="tpu", resume=resume, progress=False
        ) as trainer:
            trainer.backend._compiled = compiled  # the runs differ in nothing that a program knows
            trainer.run(n_batches)
            weights = {
                name: tensor.clone() for name, tensor in trainer.model.network.state_dict().items()
            }
            ends.append(weights | trainer.backend.state())
    whole, half, parts = ends
    assert whole.keys() == parts.keys()
    for name, tensor in whole.items():
        assert torch.equal(parts[name], tensor), name
    assert not torch.equal(whole["out.weight"], half["out.weight"])
