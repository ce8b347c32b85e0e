"""Traces of steps and dumps of compiled programs, each backend in a process of its own.

Its flags are read once.
"""

import json
import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

from cortext.training import train
from cortext.training.backend import backend_class
from cortext.training.torch_backend import TorchBackend
from cortext_data.simulate import simulate
from cortext_tpu.profile import _window, traced_jax, traced_tensorflow


@pytest.mark.parametrize(
    ("first", "end", "batches", "traced"),
    [(2, 4, 6, [2, 3]), (0, 2, 4, [0, 1]), (2, 10, 4, [2, 3]), (5, 8, 3, [])],
)
def test_only_the_batches_of_the_window_are_traced(first, end, batches, traced):
    state, seen = {"on": False, "starts": 0}, []

    def start():
        state.update(on=True, starts=state["starts"] + 1)

    with _window(first, end, start, lambda: state.update(on=False)) as stepped:
        for batch in range(batches):
            seen += [batch] if state["on"] else []
            stepped()
    assert seen == traced
    assert state == {"on": False, "starts": min(1, len(traced))}


def test_training_lets_its_backend_trace(tmp_path, monkeypatch):
    simulate(
        tmp_path / "data",
        "tiny",
        seed=1,
        overrides=["n_days=2", "train_per_day=8", "val_per_day=2"],
    )
    seen = []

    @contextmanager
    def profiled(folder, first, end):
        seen.append((folder, first, end))
        yield lambda: seen.append("a batch")

    monkeypatch.setattr(TorchBackend, "profiled", staticmethod(profiled), raising=False)
    overrides = ["num_training_batches=4", "val_wer_trials=0"]
    train("tiny", tmp_path / "data", tmp_path / "run", overrides=overrides, progress=False, profile=tmp_path / "trace",
          profile_steps=(1, 3))  # fmt: skip
    assert seen == [(tmp_path / "trace", 1, 3), *["a batch"] * 4]


JAX = """
import sys, json
from pathlib import Path
from cortext_tpu.xla_dump import dump_xla
from cortext_tpu.profile import traced_jax
folder = Path(sys.argv[1])
dump_xla(folder / "a dump")
import jax
step = jax.jit(lambda x: x @ x)
x = jax.numpy.ones((64, 64))
with traced_jax(folder / "trace", 1, 3) as stepped:
    for _ in range(4):
        x = step(x)
        stepped()
print(json.dumps([path.name for path in folder.rglob("*") if path.is_file()]))
"""
TENSORFLOW = """
import sys, json
from pathlib import Path
from cortext_tpu.xla_dump import dump_xla
from cortext_tpu.profile import traced_tensorflow
folder = Path(sys.argv[1])
dump_xla(folder / "a dump")
import tensorflow as tf
step = tf.function(lambda x: x @ x, jit_compile=True)
x = tf.ones((64, 64))
with traced_tensorflow(folder / "trace", 1, 3) as stepped:
    for _ in range(4):
        x = step(x)
        stepped()
print(json.dumps([path.name for path in folder.rglob("*") if path.is_file()]))
"""


def files_of(program: str, folder) -> list[str]:
    env = os.environ | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "XLA_FLAGS": ""}
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.tpu
def test_jax_writes_a_trace_and_its_programs(tmp_path):
    pytest.importorskip("torchax", reason="run `make test-tpu`")
    assert backend_class("torchax").profiled is traced_jax
    files = files_of(JAX, tmp_path)
    assert any(name.endswith(".xplane.pb") for name in files)
    assert any("jit__lambda" in name and name.endswith("after_optimizations.txt") for name in files)


@pytest.mark.tf
def test_tensorflow_writes_a_trace_and_its_programs(tmp_path):
    pytest.importorskip("tensorflow", reason="run `make test-tf`")
    assert backend_class("tensorflow").profiled is traced_tensorflow
    files = files_of(TENSORFLOW, tmp_path)
    assert any(name.endswith(".xplane.pb") for name in files)
    assert any(name.endswith("after_optimizations.txt") for name in files)
