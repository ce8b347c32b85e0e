"""One global batch on several cores and on several hosts is what it is on one."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tpu
pytest.importorskip("torchax", reason="run `make test-tpu`")

import jax
from small_training import N_FEATURES, N_LABELS, make_config, make_network, write_recordings

from cortext.data.packed import pack
from cortext.errors import ConfigError
from cortext.training import Trainer
from cortext.training.config import TPUConfig
from cortext.training.loss import build_loss
from cortext_tpu.mesh import data_mesh
from cortext_tpu.step import Programs

SUPPORT = Path(__file__).parents[1] / "support"


def start(script, *arguments, devices, **variables):
    """A Python process with so many virtual CPU devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    env = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": flags,
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    command = [sys.executable, SUPPORT / script, *map(str, arguments)]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(process):
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err[-3000:]
    return out, err


@pytest.mark.parametrize("kind", ["gru", "triple_gru"])
def test_eight_cores_do_with_a_batch_what_one_does(kind):
    """Losses and updated weights, with dropout and noise, which are drawn by trial and not by
    core.
    """
    out, _ = finished(start("eight_cores.py", kind, devices=8))
    found = json.loads(out.splitlines()[-1])
    assert found["n_devices"] == 8
    assert found["losses"] < 1e-5
    assert found["weights"] < 1e-5
    assert found["all_reduces"] == [False, True]
    if kind == "gru":
        assert found["pieces"] < 1e-5
    else:
        assert found["wide"][0] < 1e-5
        assert found["wide"][1]


def test_a_batch_that_the_cores_cannot_share_is_one_line():
    config = make_config(batch_size=6)
    devices = jax.devices() * 4  # only their number matters here
    with pytest.raises(
        ConfigError, match="batch_size is 6, which 4 cores cannot share evenly; use a multiple of 4"
    ):
        Programs(
            make_network(config),
            build_loss(None, "gru"),
            config,
            data_mesh(devices),
            n_features=N_FEATURES,
            n_labels=N_LABELS,
        )


def test_two_hosts_write_the_run_of_one(tmp_path):
    """Each reads its own rows.

    Losses, gradients, validation and the run directory are those of torch alone.
    """
    packed = pack(write_recordings(tmp_path / "sessions"), tmp_path / "packed")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    variables = {"JAX_COORDINATOR_ADDRESS": f"localhost:{port}", "JAX_NUM_PROCESSES": "2"}
    arguments = (tmp_path / "packed", tmp_path / "two")
    both = [
        start("two_hosts.py", *arguments, devices=2, **variables, JAX_PROCESS_ID=str(number))
        for number in range(2)
    ]
    (_, first), (_, second) = [finished(process) for process in both]
    assert "using 4 CPU cores" in first
    assert "compiled" not in second  # the first host speaks for all

    tpu = TPUConfig(length_shapes=1, compilation_cache=None)
    config = make_config(
        num_training_batches=4, batches_per_train_log=2, batches_per_val_step=4, tpu=tpu
    )
    with Trainer(config, packed, tmp_path / "one", progress=False) as trainer:
        trainer.run()
    for run in ("one", "two"):
        assert (tmp_path / run / "summary.json").is_file()
    one, two = (
        [json.loads(line) for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("one", "two")
    )
    assert (
        [line["kind"] for line in two]
        == [line["kind"] for line in one]
        == ["train", "train", "val"]
    )
    for name in ("train_loss", "grad_norm"):
        assert [line[name] for line in two[:2]] == pytest.approx(
            [line[name] for line in one[:2]], rel=1e-4
        )
    assert two[2]["val_loss"] == pytest.approx(one[2]["val_loss"], rel=1e-4)
    assert two[2]["val_per"] == one[2]["val_per"]
