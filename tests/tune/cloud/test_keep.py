"""A run that is kept in a bucket.

Whichever moment the machine is taken away at, the next one continues.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from cortext.training import train
from cortext.training.checkpoint import RunDirectory
from cortext_data.simulate import simulate
from cortext_tune.cloud import keep as module
from cortext_tune.cloud.keep import copy_changed, keep

STATE = "train_state/state.safetensors"
NOTE = "import sys; open(sys.argv[1], 'a').write(' '.join(sys.argv[2:]) + chr(10))"


def fill(run: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(text)


def found(run: Path) -> dict[str, str]:
    return {
        str(path.relative_to(run)): path.read_text() for path in run.rglob("*") if path.is_file()
    }


def noting(tmp_path: Path) -> tuple[list[str], Path]:
    """A command that notes what it is given, and the file it does so in."""
    return [sys.executable, "-c", NOTE, str(tmp_path / "noted"), "train"], tmp_path / "noted"


def test_a_run_that_was_not_begun_starts_without_resume(tmp_path):
    command, noted = noting(tmp_path)
    assert keep(command, tmp_path / "run", tmp_path / "kept") == 0
    assert noted.read_text() == "train\n"


@pytest.mark.parametrize("state", [STATE, "train_state/state.previous.safetensors"])
def test_a_run_that_was_begun_elsewhere_is_brought_back_and_resumed(tmp_path, state):
    files = {"config.yaml": "c", state: "s", "metrics.jsonl": "m", "checkpoints/a.safetensors": "a"}
    fill(tmp_path / "kept", files | {"checkpoints/.b.safetensors.tmp": "half"})
    fill(tmp_path / "run", {"config.yaml": "of a machine that did not come to a first state"})
    command, noted = noting(tmp_path)
    assert keep(command, tmp_path / "run", tmp_path / "kept") == 0
    assert noted.read_text() == "train --resume\n"
    assert found(tmp_path / "run") == files


def test_a_run_on_this_machine_is_newer_than_what_is_kept(tmp_path):
    fill(tmp_path / "kept", {STATE: "old", "config.yaml": "c"})
    fill(tmp_path / "run", {STATE: "new", "config.yaml": "c"})
    command, noted = noting(tmp_path)
    assert keep(command, tmp_path / "run", tmp_path / "kept") == 0
    assert noted.read_text() == "train --resume\n"
    assert found(tmp_path / "kept") == {STATE: "new", "config.yaml": "c"}


def test_a_finished_run_is_left_alone(tmp_path, capfd):
    fill(tmp_path / "kept", {STATE: "s", "summary.json": "{}"})
    command, noted = noting(tmp_path)
    assert keep(command, tmp_path / "run", tmp_path / "kept") == 0
    assert not noted.exists()
    assert "is finished" in capfd.readouterr().err


def test_what_it_needs_to_continue_is_copied_first_and_its_end_last(tmp_path, monkeypatch):
    """A copy that is cut short anywhere is a run that can be resumed, and no run looks finished
    before it is whole.
    """
    names = [
        "summary.json",
        "metrics.jsonl",
        "model.safetensors",
        STATE,
        "config.yaml",
        "model.json",
    ]
    names += [
        "train_state/state.previous.safetensors",
        "packed/train/data.f16",
        ".x.tmp",
        "train_state/.state.tmp",
    ]
    fill(tmp_path / "run", dict.fromkeys(names, "x"))
    order = []
    monkeypatch.setattr(
        module,
        "_copy",
        lambda source, target: order.append(str(source.relative_to(tmp_path / "run"))),
    )
    copy_changed(tmp_path / "run", tmp_path / "kept", {})
    assert order == [
        "config.yaml",
        "train_state/state.previous.safetensors",
        STATE,
        "metrics.jsonl",
        "model.json",
        "model.safetensors",
        "summary.json",
    ]


def test_only_what_has_changed_is_copied_again(tmp_path, monkeypatch):
    run, kept, copied = tmp_path / "run", tmp_path / "kept", {}
    fill(run, {"a": "1", "b": "1"})
    copy_changed(run, kept, copied)
    (kept / "a").unlink()
    fill(run, {"b": "22"})
    copy_changed(run, kept, copied)
    assert found(kept) == {"b": "22"}


def test_a_file_that_cannot_be_copied_whole_leaves_the_one_before(tmp_path, monkeypatch):
    run, kept = tmp_path / "run", tmp_path / "kept"
    fill(run, {"a": "before"})
    copy_changed(run, kept, {})
    fill(run, {"a": "after"})

    def break_off(source, target):
        Path(target).write_text("af")
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(shutil, "copyfile", break_off)
    with pytest.raises(OSError, match="Input/output"):
        copy_changed(run, kept, {})
    assert (kept / "a").read_text() == "before"


def test_the_status_is_that_of_training(tmp_path):
    for code, status in (("raise SystemExit(2)", 2), ("import os; os.kill(os.getpid(), 9)", 137)):
        assert keep([sys.executable, "-c", code], tmp_path / "run", tmp_path / "kept") == status


def test_a_bucket_that_fails_at_the_end_is_tried_again_and_then_reported(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(module, "RETRIES_S", (0, 0))
    tries = []

    def refuse(run, kept, copied):
        tries.append(1)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(module, "copy_changed", refuse)
    assert keep([sys.executable, "-c", ""], tmp_path / "run", tmp_path / "kept") == 1
    assert len(tries) == 3
    assert f"only in {tmp_path / 'run'} on this machine" in capfd.readouterr().err


def test_a_bucket_that_cannot_be_written_stops_it_before_training(tmp_path, capfd):
    (tmp_path / "bucket").touch()
    command, noted = noting(tmp_path)
    assert (
        module.main([str(tmp_path / "run"), str(tmp_path / "bucket" / "kept"), "--", *command]) == 2
    )
    assert not noted.exists()
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert "the bucket must be writable" in said


@pytest.fixture
def start():
    """Starts `keep` around a real training, as a task file runs it.

    What a failing test leaves running is ended.
    """
    processes = []

    def started(run: Path, kept: Path, data: Path, *settings: str) -> subprocess.Popen:
        train_it = [
            "cortext",
            "train",
            "--config",
            "tiny",
            "--data",
            str(data),
            "--out",
            str(run),
            *settings,
        ]
        command = [
            sys.executable,
            "-m",
            "cortext_tune.cloud.keep",
            "--every",
            "0.2",
            str(run),
            str(kept),
            "--",
            *train_it,
        ]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = os.environ | {"PATH": path}
        processes.append(
            subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        )
        return processes[-1]

    yield started
    for process in processes:
        process.terminate()
        process.communicate()


def wait_for_step(run: Path, step: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = RunDirectory(run).load_state() if (run / STATE).is_file() else None
        if found is not None and found[1].step >= step:
            return
        time.sleep(0.05)
    raise AssertionError(f"no state of step {step} in {run}")


@pytest.mark.slow
def test_a_machine_that_is_taken_away_is_followed_by_one_that_ends_with_the_same_bits(
    start, tmp_path
):
    data = tmp_path / "data"
    simulate(data, preset="tiny", seed=3)
    # So many that each machine is taken away long before the last.
    settings = ["num_training_batches=120", "batches_per_save=4", "batches_per_val_step=40"]
    words = [word for setting in settings for word in ("--set", setting)]
    train("tiny", data, tmp_path / "whole", overrides=settings, progress=False)

    kept = tmp_path / "bucket" / "runs" / "one"
    first = start(tmp_path / "machine 1", kept, data, *words)
    wait_for_step(kept, 4)
    (training,) = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    first.kill()  # nothing is saved, nothing is copied
    os.killpg(int(training), signal.SIGKILL)
    first.wait()
    before = RunDirectory(kept).load_state()[1].step

    second = start(tmp_path / "machine 2", kept, data, *words)
    # A state of its own: until then, a SIGTERM just ends it.
    wait_for_step(tmp_path / "machine 2", before + 4)
    second.send_signal(signal.SIGTERM)  # some seconds' notice
    assert second.wait(timeout=60) == 2
    assert "continue with --resume" in second.stderr.read()
    stopped = RunDirectory(kept).load_state()[1].step

    third = start(tmp_path / "machine 3", kept, data, *words)
    assert third.wait(timeout=120) == 0
    assert before + 4 <= stopped < 120
    assert not (kept / "packed").exists()
    assert (kept / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()
    (expected, _), (last, progress) = (
        RunDirectory(folder).load_state() for folder in (tmp_path / "whole", kept)
    )
    assert progress.finished
    assert all(torch.equal(last[name], tensor) for name, tensor in expected.items())
    losses = [
        [
            json.loads(line).get("train_loss")
            for line in (folder / "metrics.jsonl").read_text().splitlines()
        ]
        for folder in (tmp_path / "whole", kept)
    ]
    assert losses[0] == losses[1]
    assert (kept / "summary.json").is_file()
