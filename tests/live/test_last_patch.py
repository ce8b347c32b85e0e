"""A Transformer behind the live protocols: its last, partly filled patch is decoded, too.

Smoothing leaves 82, 109, 56 and 195 bins of the four trials: 20, 27, 14 and 48 whole patches of
four, and 2, 1, 0 and 3 bins.
"""

import json
import threading

import numpy as np
import pytest
from brand_rig import DAYS, Rig, make_world

from cortext.cli import run as run_cli
from cortext.decoding import Decoder
from cortext_live.lm_server.server import LMServer, make_protocol

N_FRAMES = (21, 28, 14, 49)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("transformer"), "transformer")


@pytest.fixture(scope="module")
def texts(world):
    """The texts of whole trials."""
    found = [world.offline(x_TC) for x_TC in world.trials()]
    assert tuple(len(logits_PV) for logits_PV, _ in found) == N_FRAMES
    return [nbest[0].text for _, nbest in found]


def replayed(capsys, server, world, *arguments):
    address = ["--redis-host", "127.0.0.1", "--redis-port", str(server.port)]
    data = ["--data", str(world.data), "--speed", "max"]
    status = run_cli(["replay", *data, *address, *arguments, "--json"])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    found = json.loads(printed.out)
    assert found["n_errors"] == 0
    return [result["text"] for result in found["results"]]


def test_a_brand_node_writes_every_frame_and_the_text_of_the_whole_trial(
    redis_server, world, texts, capsys
):
    rig = Rig(redis_server, world)
    try:
        rig.start()
        assert replayed(capsys, redis_server, world, "--node", "speech") == texts
        steps = rig.entries("speech_output")
    finally:
        rig.close()
    for number, x_TC in enumerate(world.trials()):
        own = [step for step in steps if step[b"utterance"] == str(number + 1).encode()]
        assert len(own) == N_FRAMES[number]
        logits_PV = np.stack([np.frombuffer(step[b"logits"], dtype=np.float32) for step in own])
        np.testing.assert_allclose(logits_PV, world.offline(x_TC, DAYS[1])[0], atol=1e-4)
    # The node numbers what it writes without a gap.
    numbers = [int(np.frombuffer(step[b"i"], dtype=np.uint64)[0]) for step in steps]
    assert numbers == list(range(sum(N_FRAMES)))


@pytest.mark.parametrize("profile", ["lm", "json"])
def test_clients_of_the_language_model_server_send_every_frame(
    redis_server, world, texts, capsys, profile
):
    stop = threading.Event()
    protocol = make_protocol(
        Decoder.from_dir(world.lm), {"lm": "published"}.get(profile, profile), stop=stop
    )
    server = LMServer(protocol, redis_server.url, stop)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        run = ["--profile", profile, "--run", str(world.run)]
        assert replayed(capsys, redis_server, world, *run) == texts
    finally:
        stop.set()
        thread.join(20)
