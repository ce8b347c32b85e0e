"""A run killed with SIGKILL, again and again, ends as one that was left alone."""

import json
import random
import time
from pathlib import Path
from typing import Any

import forked_training
import pytest
import torch
from safetensors.torch import load_file
from two_participants import small_config, write_two

from cortext.config import save_config
from cortext.training import train


def start(config: Path, data: Any, run: Path) -> forked_training.Started:
    return forked_training.Started(
        run.with_suffix(".errors"),
        {},
        forked_training.run_together if isinstance(data, dict) else forked_training.run,
        config,
        data,
        run,
        (run / "config.yaml").exists(),
    )


def wait_until(started: forked_training.Started, condition, patience: float = 60) -> bool:
    """Wait for the condition; False if the process ended before it came true."""
    deadline = time.monotonic() + patience
    while started.process.is_alive() and time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.0002)
    return False


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def modified(path: Path) -> int:
    """Time of the last change, in nanoseconds; 0 for no file.

    There is none for a moment: a state gives way to the next one by being renamed.
    """
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def next_kill(moment: str, run: Path, delays: random.Random):
    """A condition that comes true at the wanted moment of a sitting that starts now."""
    state, metrics = run / "train_state" / "state.safetensors", run / "metrics.jsonl"
    before = size(metrics)
    if moment == "start":
        at = time.monotonic() + delays.uniform(0, 0.5)
        return lambda: time.monotonic() > at
    if moment == "checkpoint":
        return lambda: any(state.parent.glob(".*.tmp"))
    if moment == "best weights":
        return lambda: any(run.rglob(".model.safetensors.*.tmp"))
    if moment == "validation":  # the line about training comes just before it
        return lambda: size(metrics) > before
    # Counted in states, not in seconds: a fast machine must not get to the end, or past the last
    # best weights.
    states, wanted, last = 0, delays.randint(1, 8), modified(state)

    def after_some_states() -> bool:
        nonlocal states, last
        now = modified(state)
        states, last = states + (now > last), max(now, last)
        if states >= wanted:
            time.sleep(delays.uniform(0, 0.03))
        return states >= wanted

    return after_some_states


def without_times(run: Path) -> list[dict]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: line[key] for key in line if not key.endswith(("seconds", "_per_s"))}
        for line in lines
    ]


def kill_at(moments, config, data, run):
    """Start the run again and again, and kill it at each of these moments."""
    delays, killed = random.Random(0), []
    for moment in moments:
        condition = next_kill(moment, run, delays)
        process = start(config, data, run)
        if wait_until(process, condition):
            killed.append(moment)
        process.kill()
    assert killed == moments, "the run ended before it could be killed"


@pytest.mark.slow
def test_a_run_killed_at_ten_moments_ends_as_an_undisturbed_one(config, recordings, tmp_path):
    config.num_training_batches = config.lr_decay_steps = config.lr_decay_steps_day = 240
    config.batches_per_train_log = config.batches_per_val_step = 8
    config.batches_per_save = 3
    config.model.n_units = 64  # states that take some time to write
    save_config(config, tmp_path / "config.yaml")
    run, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    train(config, recordings, undisturbed, progress=False)

    moments = [
        "start",
        "checkpoint",
        "validation",
        "best weights",  # early, while every validation finds better ones
        "any",
        "checkpoint",
        "any",
        "validation",
        "any",
        "any",
    ]
    kill_at(moments, tmp_path / "config.yaml", recordings, run)

    process = start(tmp_path / "config.yaml", recordings, run)
    assert process.wait(400) == ""
    assert process.process.exitcode == 0
    for name in ("model.safetensors", "train_state/state.safetensors"):
        expected, found = load_file(undisturbed / name), load_file(run / name)
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[key], found[key]) for key in expected), name
    assert without_times(run) == without_times(undisturbed)


@pytest.mark.slow
def test_a_run_of_two_participants_killed_at_six_moments_ends_as_an_undisturbed_one(tmp_path):
    data = write_two(tmp_path)
    config = small_config(240, batches_per_val_step=8, batches_per_train_log=8, batches_per_save=3)
    config.model.n_units = 64
    save_config(config, tmp_path / "config.yaml")
    run, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    train(config, data, undisturbed, progress=False)

    moments = ["start", "checkpoint", "validation", "best weights", "any", "checkpoint"]
    kill_at(moments, tmp_path / "config.yaml", data, run)

    process = start(tmp_path / "config.yaml", data, run)
    process.wait(400)
    assert process.process.exitcode == 0
    files = [f"participants/{name}/model.safetensors" for name in data]
    for name in (*files, "train_state/state.safetensors"):
        expected, found = load_file(undisturbed / name), load_file(run / name)
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[key], found[key]) for key in expected), name
    assert without_times(run) == without_times(undisturbed)
