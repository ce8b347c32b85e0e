"""The BRAND node with the idle gate of its run, against openings computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from brand_rig import N_FEATURES, Rig, World, make_world
from redis_process import wait_for

from cortext.evaluation.fit.fitted_file import weights_checksum
from cortext_live.core.gate import GateCard, GateNetwork, write_gate

N_TOKENS = 41
OF_SPEECH = [10, 21, 23, 29, 32]
"""Tokens that the rig's model gives 0.95 in speech, and 0 in idle noise."""


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = make_world(tmp_path_factory.mktemp("gate"))
    n = 2 * (2 * N_TOKENS + 1)
    hidden_SD = np.zeros((n, 1), np.float32)
    hidden_SD[OF_SPEECH] = 0.01  # averages of 960 ms; tanh is linear near 0
    network = GateNetwork(
        np.zeros(n, np.float32), np.ones(n, np.float32), hidden_SD,
        np.zeros(1, np.float32), np.full(1, 2000, np.float32), -5.0,
    )  # fmt: skip
    card = GateCard(
        weights=weights_checksum(world.run),
        threshold=0.5,
        measured=[],
        idle_hours=0.0,
        beginnings=1,
        data="data",
        idle=None,
        created="2026-01-01T00:00:00+00:00",
        version="0",
    )
    write_gate(world.run, network, card)
    return world


@pytest.fixture
def make_rig(redis_server, world):
    made = []

    def make(**parameters):
        rig = Rig(redis_server, world, control_stream=None, gate=True, **parameters)
        made.append(rig)
        rig.start()
        return rig

    yield make
    for rig in made:
        rig.close()


def continuous() -> np.ndarray:
    """float32 [T, C]: idle noise with speech in it, twice the same."""
    x_TC = np.random.default_rng(11).normal(size=(441, N_FEATURES)) - 4
    x_TC[150:220] += 8
    return np.concatenate([x_TC, x_TC]).astype(np.float32)


def odds(world: World, x_TC: np.ndarray) -> np.ndarray:
    """Log-odds of speech of each frame, float [P]: 20 times the latest 12 frames' mean, less 5."""
    logits_PV = world.offline(x_TC)[0].astype(np.float64)
    probs_PV = np.exp(logits_PV) / np.exp(logits_PV).sum(axis=1, keepdims=True)
    speech_P = probs_PV[:, OF_SPEECH].sum(axis=1)
    return np.array(
        [20 * speech_P[max(p - 11, 0) : p + 1].mean() - 5 for p in range(len(speech_P))]
    )


def utterances(world: World, x_TC: np.ndarray) -> list[range]:
    """The bins of each utterance.

    Frame p ends with bin 4 p + 21. An utterance begins 119 bins before the one that opens the gate,
    which shuts after 19 frames below a tenth of the odds, not counting its first 30.
    """
    found, at = [], 0
    while (opening := np.flatnonzero(odds(world, x_TC[at:]) >= 0)).size:
        first = max(at, at + 4 * int(opening[0]) + 21 - 119)
        low_P = odds(world, x_TC[first:]) < np.log(0.1)
        low_P[:30] = False
        last = next(p for p in range(len(low_P)) if p >= 18 and low_P[p - 18 : p + 1].all())
        at = first + 4 * last + 21 + 1
        found.append(range(first, at))
    return found


@pytest.mark.parametrize("every", [1, 7])
def test_utterances_begin_and_end_by_the_gate(make_rig, world, every):
    x_TC = continuous()
    expected = utterances(world, x_TC)
    assert len(expected) == 2
    rig = make_rig(bins_per_entry=every)
    rig.say(x_TC, marks=False, every=every)
    for number, bins in enumerate(expected, 1):
        final = rig.final(number)
        assert (final[b"ended"], final[b"error"]) == (b"idle", b"")
        steps = [
            entry
            for entry in rig.entries("speech_output")
            if entry[b"utterance"] == str(number).encode()
        ]
        found_PV = np.concatenate([np.frombuffer(e[b"logits"], np.float32) for e in steps])
        logits_PV, nbest = world.offline(x_TC[bins.start : bins.stop])
        np.testing.assert_allclose(found_PV.reshape(-1, N_TOKENS), logits_PV, atol=1e-4)
        assert final[b"text"].decode() == nbest[0].text
    rig.nodes[0].end()
    assert rig.nodes[0].error is None
    assert len(rig.entries("speech_final")) == 2  # the noise around them gave none
    assert not rig.messages()


def test_an_unusable_entry_while_the_gate_is_shut_is_named_and_begins_nothing(make_rig):
    rig = make_rig()
    rig.say(continuous()[:60], marks=False)
    rig.send(b"abc")
    rig.say(continuous()[61:100], marks=False)
    [warning] = wait_for(rig.messages, "a warning", 30)
    assert warning.startswith("entry i 60 is unusable: ")
    rig.nodes[0].end()
    assert not rig.entries("speech_final")


def test_a_gate_beside_a_control_stream_or_without_a_fit_ends_the_start(
    redis_server, world, tmp_path
):
    without = make_world(tmp_path)
    for other, stream, says in (
        (world, "marks", "parameters.gate is true with a control stream"),
        (without, None, "the run has no idle gate; fit it anew with `cortext fit-gate`"),
    ):
        rig = Rig(redis_server, other, control_stream=stream, gate=True)
        node = rig.start()
        wait_for(node.ended, "the end", 30)
        assert says in str(node.error)
        rig.redis.flushall()
