"""A BRAND node that follows a chain of models, against each model's offline decoding."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from brand_rig import Rig, make_world
from redis_process import wait_for

from cortext.cli import run as cortext
from cortext.errors import ConfigError
from cortext.models import load_model, save_model
from cortext_live.brand.parameters import NodeConfig
from cortext_live.core.chain_follower import LOOK_S
from cortext_live.recalibration.chain import model_folder, open_chain
from cortext_live.recalibration.chain_entries import ChainEntry


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("chain"))


@pytest.fixture
def rig(redis_server, world, tmp_path):
    rig = Rig(redis_server, world, chain=str(tmp_path / "chain"))
    rig.start()
    yield rig
    rig.close()


def promote(chain, world) -> ChainEntry:
    """Add a model with another output layer, and promote it."""

    def write(folder):
        model = load_model(world.run)
        torch.manual_seed(7)
        with torch.no_grad():
            model.network.out.weight.copy_(20 * torch.randn_like(model.network.out.weight))
        save_model(model, folder)

    with open_chain(chain) as opened:
        entry = opened.add_model("candidate", write, parent=0)
        opened.add("promoted", model=entry.number, upper=None)
    return entry


def wait_for_model(rig, name):
    """Wait until the latest model that the node says to be ready is this one."""
    wait_for(lambda: rig.messages(b"NODE_READY")[-1].endswith(name), f"model {name}")


def logits(rig, number):
    steps = [e for e in rig.entries("speech_output") if e[b"utterance"] == str(number).encode()]
    return np.stack([np.frombuffer(step[b"logits"], np.float32) for step in steps])


def test_another_model_speaks_from_the_next_trial_on(rig, world, tmp_path):
    chain = tmp_path / "chain"
    x_TC = world.trials()[3]
    rig.say(x_TC)
    assert b"model" not in rig.final(1)
    with open_chain(chain, world.run) as opened:
        base = opened.contents.entries[0].model_name
    wait_for_model(rig, base)
    rig.say(x_TC)
    assert rig.final(2)[b"model"] == base.encode()
    np.testing.assert_array_equal(logits(rig, 2), logits(rig, 1))

    promoted = promote(chain, world)
    wait_for_model(rig, promoted.model_name)
    other = replace(world, run=model_folder(chain, promoted.number))
    expected_PV, expected = other.offline(x_TC)
    # The chain changes in mid-trial: the trial ends with the model that it began with.
    rig.mark("start", 0, rig.i)
    for bin_C in x_TC[:100]:
        rig.send(bin_C.tobytes())
    assert cortext(["chain", "rollback", str(chain), "0"]) == 0
    time.sleep(3 * LOOK_S)
    for bin_C in x_TC[100:]:
        rig.send(bin_C.tobytes())
    rig.mark("stop", 0, rig.i - 1)
    third = rig.final(3)
    assert third[b"model"] == promoted.model_name.encode()
    assert third[b"text"].decode() == expected[0].text
    assert third[b"n_bins"] == str(len(x_TC)).encode()
    np.testing.assert_allclose(logits(rig, 3), expected_PV, atol=1e-4)
    rig.say(x_TC)
    assert rig.final(4)[b"model"] == base.encode()
    np.testing.assert_array_equal(logits(rig, 4), logits(rig, 1))


def test_a_chain_holds_models_for_torch(world, tmp_path):
    with pytest.raises(ConfigError, match="for the backend torch alone"):
        NodeConfig(world.run, chain=tmp_path, backend="onnx")
