"""Run by test_mesh.py in a process with eight virtual devices.

The same steps on one of them and on all.
"""

import json
import sys

import jax
import numpy as np
from small_training import (
    N_BINS,
    N_FEATURES,
    N_LABELS,
    make_batch,
    make_config,
    make_network,
    weights_of,
)

from cortext.training.loss import build_loss
from cortext_tpu import recurrence
from cortext_tpu.mesh import by_trial, data_mesh, everywhere, put
from cortext_tpu.optimizer import first_state
from cortext_tpu.step import Programs, numbers


def steps(kind, devices, pieces):
    """Losses of three steps with noise (and dropout), the weights after them, and what the cores
    say to each other.
    """
    transforms = {"white_noise_std": 0.5, "constant_offset_std": 0.1, "random_cut": 3}
    # Pieces of a batch, which the gru's is cut into, draw their own.
    dropout = 0.0 if kind == "gru" else 0.3
    config = make_config(
        kind,
        dropout=dropout,
        transforms=transforms,
        batch_size=16,
        gradient_accumulation_steps=pieces,
    )
    network, mesh = make_network(config), data_mesh(devices)
    loss = build_loss(config.loss, kind)
    program = Programs(
        network, loss, config, mesh, n_features=N_FEATURES, n_labels=N_LABELS
    ).lower_update(N_BINS)
    program = program.compile()
    weights = put(everywhere(mesh), weights_of(network))
    state = put(everywhere(mesh), jax.device_get(first_state(weights)))
    found = []
    for step in range(3):
        batch = make_batch(days=(0, 1, 2, 4) * 4, seed=step)
        values = put(everywhere(mesh), numbers(config, step, 0.005, 0.01))
        weights, state, losses, norm = program(
            weights, {}, state, put(by_trial(mesh), batch), values
        )
        found += [np.asarray(losses["loss"]), np.asarray(norm)]
    assert len(weights["out.weight" if kind == "gru" else "day_bias"].sharding.device_set) == len(
        devices
    )
    return found, jax.device_get(weights), program.as_text()


def difference(one, other):
    """The largest, relative to the largest value of its array."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)


devices = jax.devices()
one_losses, one_weights, one_text = steps(sys.argv[1], devices[:1], 1)
losses, weights, text = steps(sys.argv[1], devices, 1)
found = {"n_devices": len(devices), "losses": difference(one_losses, losses)}
found |= {"weights": difference(one_weights, weights)}
found |= {"all_reduces": ["all-reduce(" in one_text, "all-reduce(" in text]}
if sys.argv[1] == "gru":
    _, pieces, _ = steps("gru", devices[:4], 4)  # a trial of each core at a time
    found["pieces"] = difference(one_weights, pieces)
else:
    recurrence.WIDE_BYTES = 0  # two cores share out the units of every layer, 12, 10 and 8
    _, shared, text = steps("triple_gru", devices[:2], 1)
    found["wide"] = [difference(one_weights, shared), "all-gather" in text]
print(json.dumps(found))
