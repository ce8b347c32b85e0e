"""A rig for BRAND nodes.

Publishes graphs, writes bins and marks as a rig's nodes do, and reads what comes back.

What is written is restated from BRAND's documents (doc/BRAND_spec.md, doc/DataSyncGuidelines.md)
with NumPy alone.
"""

from __future__ import annotations

import gc
import json
import threading
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from commands import Command
from redis_process import wait_for

from cortext.data import make_trial, write_session
from cortext.decoding import Decoder
from cortext.decoding.ngram import LanguageModel
from cortext.models import AcousticModel, build_model, load_model, model_config, save_model
from cortext.models.card import Smoothing
from cortext.text.inventory import RELEASE
from cortext_live.brand.process import run_node
from cortext_live.core.redis_streams import redis_url

N_FEATURES = 8
DAYS = ("t15.2023.08.11", "t15.2023.08.13")
N_BINS = (90, 117, 64, 203)


@dataclass(frozen=True)
class World:
    """A run directory with a model that is sure of something, a language model, and session
    files (split val).
    """

    run: Path
    lm: Path
    data: Path

    def trials(self):
        generator = np.random.default_rng(7)
        # as float16 keeps them, which is how recordings are packed
        return [
            generator.normal(size=(n, N_FEATURES)).astype(np.float16).astype(np.float32)
            for n in N_BINS
        ]

    @cached_property
    def _model_and_decoder(self):
        return load_model(self.run), Decoder.from_dir(self.lm)

    def offline(self, features_TC, session=DAYS[1]):
        """The logits and the n-best list of a whole trial, as evaluation finds them."""
        model, decoder = self._model_and_decoder
        logits_PV = model.logits(features_TC, session)
        log_probs_PV = torch.from_numpy(logits_PV).log_softmax(-1).numpy()
        return logits_PV, decoder.decode(log_probs_PV, "release")


TRANSFORMER = {"n_heads": 2, "head_units": 4, "input_network": {"day_layer": "affine"}}


def make_world(root: Path, kind: str = "gru") -> World:
    torch.manual_seed(3)
    more = TRANSFORMER if kind == "transformer" else {}
    config = model_config({"kind": kind, "n_units": 8, "n_layers": 2, **more})
    network = build_model(config, n_features=N_FEATURES, n_days=len(DAYS), n_classes=len(RELEASE))
    with torch.no_grad():
        network.day_weight += torch.randn_like(network.day_weight) * 0.3
        network.out.weight *= 20
        if kind == "gru":
            network.gru.weight_ih_l0 *= 10  # it listens to its input more than to itself
    save_model(
        AcousticModel(
            network, sessions=DAYS, n_features=N_FEATURES, inventory=RELEASE, smoothing=Smoothing()
        ),
        root / "run",
    )
    short = (
        "a i oh you we he she see me may day so no go to us an in at up are or our all owe way"
        " they the".split()
    )
    # a model that has learnt nothing says short words best, and any of them after any other
    sentences = [f"{first} {second}" for first in short for second in short]
    (root / "lm.txt").write_text("\n".join(sentences) + "\n")
    LanguageModel.build([root / "lm.txt"], 2, root / "lm")
    world = World(root / "run", root / "lm", root / "data")
    trials = [make_trial(x_TC, DAYS[1], 1, n, "i see you") for n, x_TC in enumerate(world.trials())]
    write_session(world.data / DAYS[1] / "data_val.hdf5", trials)
    return world


class Rig:
    """One Redis server with a graph of one node, by default under control of `marks`."""

    def __init__(self, server, world, **parameters):
        self.server, self.world, self.redis = server, world, server.client()
        self.i = 0
        self.parameters = {
            "run": str(world.run),
            "lm": str(world.lm),
            "control_stream": "marks",
        } | parameters
        self.nodes: list[Node] = []

    def publish(self):
        nodes = {"speech": {"name": "cortext", "nickname": "speech", "parameters": self.parameters}}
        self.redis.xadd(
            "supergraph_stream", {"data": json.dumps({"graph_name": "test", "nodes": nodes})}
        )

    def start(self, process=False):
        """A node, in a thread or in a process of its own, that is ready."""
        self.publish()
        return self.start_again(process)

    def start_again(self, process=False):
        before = self.states().count("NODE_READY")
        node = (Process if process else Thread)(self.server.port)
        self.nodes.append(node)
        wait_for(
            lambda: self.states().count("NODE_READY") > before or node.ended(), "NODE_READY", 60
        )
        return node

    def say(self, features_TC, trial=0, marks=True, every=1):
        """A trial, between its marks: an entry for every `every` bins."""
        if marks:
            self.mark("start", trial, self.i)
        for first in range(0, len(features_TC), every):
            self.send(features_TC[first : first + every].astype(np.float32).tobytes())
        if marks:
            self.mark("stop", trial, self.i - 1)

    def mark(self, value, trial=0, i=None):
        fields = {"command": value, "trial": trial}
        self.redis.xadd("marks", fields if i is None else fields | {"i": np.uint64(i).tobytes()})

    def send(self, samples, **changes):
        fields = {
            "samples": samples,
            "i": np.uint64(self.i).tobytes(),
            "ts": np.uint64(time.monotonic_ns()).tobytes(),
            "sync": json.dumps({"nsp1_clock": 600 * self.i}),
        } | changes
        self.redis.xadd(
            "binned_spikes", {name: value for name, value in fields.items() if value is not None}
        )
        self.i += 1

    def final(self, number):
        """The entry of utterance `number`, counted from 1."""

        def look():
            return next(
                (
                    e
                    for e in self.entries("speech_final")
                    if e[b"utterance"] == str(number).encode()
                ),
                None,
            )

        return wait_for(look, f"result of utterance {number}", 30)

    def entries(self, stream):
        return [fields for _, fields in self.redis.xrange(stream)]

    def states(self):
        return [fields[b"status"].decode() for fields in self.entries("speech_state")]

    def messages(self, status=b"NODE_WARNING"):
        return [
            e[b"message"].decode() for e in self.entries("speech_state") if e[b"status"] == status
        ]

    def close(self):
        for node in self.nodes:
            node.end()


class Node:
    """A running node."""


class Thread(Node):
    def __init__(self, port, socket=None):
        self.stop, self.error = threading.Event(), None
        # A node collects garbage when it is ready. Among the objects of pytest and torch that takes
        # 0.1 s, more than the rest of most tests: hide them from it.
        gc.freeze()
        self._thread = threading.Thread(target=self._run, args=(port, socket), daemon=True)
        self._thread.start()

    def _run(self, port, socket):
        try:
            run_node("speech", redis_url("127.0.0.1", port, socket), self.stop)
        except Exception as error:
            self.error = error

    def ended(self):
        return not self._thread.is_alive()

    def end(self):
        """As SIGINT ends a process."""
        self.stop.set()
        self._thread.join(20)


class Process(Node):
    """A node as a supervisor starts it: the command, in a process of its own."""

    def __init__(self, port, *flags):
        self.command = Command("brand-node", "-n", "speech", "-i", "127.0.0.1", "-p", port, *flags)

    def ended(self):
        return not self.command.running()

    def end(self):
        if not self.ended():
            self.command.interrupt()
