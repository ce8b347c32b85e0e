"""The same models where Keras computes with JAX. A process has one backend, so that another one
is started.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tf
pytest.importorskip("tensorflow", reason="run `make test-tf`")
pytest.importorskip("jax", reason="Keras on JAX needs JAX")

PROGRAM = """
import json

import jax
import keras
import numpy as np
import torch
from small_training import N_DAYS, N_FEATURES, as_torch, make_batch, make_config, make_network

from cortext_tpu.keras_tf.convert import from_torch, links
from cortext_tpu.keras_tf.models import keras_model
from cortext.training.loss import build_loss

found = {"backend": keras.backend.backend()}
for kind in ("gru", "triple_gru"):
    config, batch = make_config(kind), make_batch()
    network = make_network(config).double()
    model = keras_model(config, n_features=N_FEATURES, n_days=N_DAYS, n_classes=41)
    from_torch(model, network.float())
    reference = as_torch(batch, network.double(), torch.from_numpy(batch["features"]).double())
    ready = {**batch, "features": batch["features"].astype(np.float32), "n_patches": reference.n_patches_B.numpy()}
    expected = network(reference.x_BTC, reference.day_B)[0].detach().numpy()

    def run(values, batch):
        def call(batch, **options):
            return model.stateless_call(values, fixed, batch, **{**options, "training": False})[0]

        return model.loss(call, batch, 60)["loss"].mean(), call(batch)[0]

    fixed = [variable.value for variable in model.non_trainable_variables]
    program = jax.jit(jax.value_and_grad(run, has_aux=True))
    (loss, logits), gradients = program([variable.value for variable in model.trainable_variables], ready)
    found[f"{kind} logits"] = float(np.abs(np.asarray(logits) - expected).max())
    losses = build_loss(config.loss, kind)(network, reference, 0.6)["loss"]
    losses.mean().backward()
    found[f"{kind} loss"] = abs(float(loss) / losses.mean().item() - 1)
    numbers = {id(variable): number for number, variable in enumerate(model.trainable_variables)}
    worst = 0.0
    for link in links(model):
        for name, array in link.to_torch(np.asarray(gradients[numbers[id(link.variable)]])).items():
            gradient = network.get_parameter(name).grad.numpy()
            worst = max(worst, np.abs(array - gradient).max() / np.abs(gradient).max())
    found[f"{kind} gradients"] = float(worst)
print(json.dumps(found))
"""


def test_logits_losses_and_gradients_are_those_of_torch():
    folder = Path(__file__).resolve().parents[2] / "support"
    environment = os.environ | {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(folder),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("backend") == "jax"
    assert len(found) == 6
    for what, difference in found.items():
        assert difference < (1e-4 if "gradients" in what else 1e-5), what
