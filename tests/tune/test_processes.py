"""Searches by the command line, in processes of their own, stopped and killed in every way.

And on Ray.
"""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from cortext.cli import run
from cortext.decoding import DecoderOptions
from cortext.errors import ConfigError, MissingLibrary, RunError
from cortext.evaluation.decoder_files import DecoderFiles
from cortext_tune import Search, parse_space, workers
from cortext_tune.decoder.trial import DecodeJob
from cortext_tune.workers import RayTasks, TrialOutcome, WorkerProcesses, WorkerSettings

LONG = (
    "num_training_batches=32",  # of which most are left after the first validation
    "batches_per_val_step=4",
    "batches_per_train_log=4",
    "model.n_units=8",
    "model.n_layers=1",
)
STARTED: list[subprocess.Popen] = []


def words(data: Path, out: Path, *more: str) -> list[str]:
    """Of the command, after its name."""
    base = ["tune", "training", "--config", "tiny", "--data", data, "--out", out]
    settings = [part for override in LONG for part in ("--set", override)]
    return [
        str(part)
        for part in [
            *base,
            *settings,
            "--grid",
            "lr_max=0.001,0.02,0.1",
            "--jobs",
            "2",
            "--threads",
            "1",
            *more,
        ]
    ]


def start(*arguments) -> subprocess.Popen:
    command = [str(Path(sys.executable).parent / "cortext"), *words(*arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    STARTED.append(
        subprocess.Popen(
            command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
        )
    )
    return STARTED[-1]


@pytest.fixture(autouse=True)
def all_ended():
    """A test that fails leaves no search behind."""
    yield
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def until(condition, process: subprocess.Popen, patience_s: float = 60) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def trained(out: Path, folder: str) -> bool:
    """Whether this trial has come to its first validation."""
    lines = out / "trials" / folder / "metrics.jsonl"
    return lines.is_file() and '"val"' in lines.read_text()


def processes_about(out: Path) -> list[int]:
    """Processes that hold a file or folder below `out` open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            opened = [str(descriptor.readlink()) for descriptor in (process / "fd").iterdir()]
        except OSError:
            continue
        if any(path.startswith(str(out)) for path in opened):
            found.append(int(process.name))
    return found


@pytest.fixture(scope="module")
def undisturbed(packed, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "search"
    with redirect_stdout(io.StringIO()) as printed:
        assert run(words(packed, out, "--jobs", "1", "--json")) == 0
    assert [trial["state"] for trial in json.loads(printed.getvalue())["trials"]] == [
        "finished"
    ] * 3
    return out


@pytest.fixture
def continues(packed, undisturbed, states, capsys):
    """The same command ends as one that was left alone.

    After Ctrl-C it may do so with one job, which needs no processes that load the package.
    """

    def check(out: Path, jobs: int = 2) -> None:
        assert run(words(packed, out, "--jobs", str(jobs))) == 0, capsys.readouterr().err
        assert states(out) == ["COMPLETE"] * 3
        for trial in (undisturbed / "trials").iterdir():
            folders = (trial, out / "trials" / trial.name)
            expected, found = (load_file(folder / "model.safetensors") for folder in folders)
            assert expected.keys() == found.keys()
            assert all(torch.equal(expected[name], found[name]) for name in expected), trial.name

    return check


@pytest.mark.slow
def test_a_search_that_is_killed_takes_its_processes_along_and_continues_bit_exactly(
    packed, continues, states, tmp_path
):
    out = tmp_path / "search"
    process = start(packed, out)
    until(lambda: trained(out, "0001-lr_max=0.001") and trained(out, "0002-lr_max=0.02"), process)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 5
    while processes_about(out) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes_about(out)
    assert "RUNNING" in states(out)
    continues(out)


@pytest.mark.slow
def test_ctrl_c_saves_every_running_trial_and_says_how_to_continue(packed, continues, tmp_path):
    out = tmp_path / "search"
    process = start(packed, out)
    until(lambda: trained(out, "0001-lr_max=0.001"), process)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to every process of the group
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    *_, last = errors.splitlines()
    assert last.startswith(f"cortext: {out}: interrupted after ")
    assert last.endswith("everything is saved; the same command goes on with it")
    assert "Traceback" not in errors
    assert not processes_about(out)
    continues(out)


@pytest.mark.slow
def test_a_process_that_is_killed_is_a_failed_trial(packed, states, tmp_path):
    out = tmp_path / "search"
    process = start(packed, out)
    until(lambda: trained(out, "0001-lr_max=0.001"), process)
    (victim,) = processes_about(out / "trials" / "0001-lr_max=0.001")
    os.kill(victim, signal.SIGKILL)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert states(out) == ["FAIL", "COMPLETE", "COMPLETE"]
    assert "trial 1 failed: its process was killed by signal 9 (out of memory?)" in printed


@pytest.mark.slow
def test_trials_run_as_ray_tasks(tune, undisturbed):
    pytest.importorskip("ray")
    study = tune(
        Search("grid", parse_space(["lr_max=0.001,0.02"])), "ray", LONG, jobs=2, ray="local"
    )
    rows = csv.DictReader((undisturbed / "trials.csv").read_text().splitlines())
    expected = sorted(rows, key=lambda row: int(row["trial"]))[:2]
    assert [one.metrics["val_loss"] for one in study.trials] == [
        float(row["val_loss"]) for row in expected
    ]


@pytest.mark.slow
def test_ctrl_c_saves_the_trials_on_ray(packed, continues, tmp_path):
    pytest.importorskip("ray")
    out = tmp_path / "search"
    process = start(packed, out, "--ray", "local")
    until(lambda: trained(out, "0001-lr_max=0.001"), process)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "everything is saved" in errors.splitlines()[-1]
    continues(out, jobs=1)


def outcome(running) -> TrialOutcome:
    while (ended := running.wait()) is None:
        pass
    return ended[1]


def test_a_process_that_is_killed_while_it_has_nothing_to_do_is_replaced(tmp_path):
    job = DecodeJob(1, tmp_path, (), DecoderFiles(tmp_path, DecoderOptions()), tmp_path)
    with closing(WorkerProcesses(keep=True)) as kept:
        kept.start(job)
        assert "no nbest.jsonl" in outcome(kept).reason
        ((_, process),) = kept._idle
        process.kill()
        process.join()
        kept.start(job)
        assert "no nbest.jsonl" in outcome(kept).reason


def test_a_cluster_that_is_lost_ends_the_search_and_a_task_that_is_lost_does_not(monkeypatch):
    class RayError(Exception):
        pass

    class LocalRayletDiedError(RayError):
        pass

    def get(task):
        raise task

    ray = SimpleNamespace(
        exceptions=SimpleNamespace(RayError=RayError, LocalRayletDiedError=LocalRayletDiedError),
        remote=lambda **given: lambda work: SimpleNamespace(remote=lambda job: job.ends_with),
        wait=lambda tasks, **how: (tasks[:1], tasks[1:]),
        get=get,
    )
    monkeypatch.setattr(workers, "Cluster", lambda *given: SimpleNamespace(ray=ray))
    tasks = RayTasks("local")
    tasks.start(SimpleNamespace(number=3, ends_with=RayError("the worker died\nmore")))
    assert tasks.wait() == (3, TrialOutcome("failed", reason="the worker died"))
    tasks.start(SimpleNamespace(number=4, ends_with=LocalRayletDiedError("the raylet died")))
    with pytest.raises(
        RunError,
        match="the Ray cluster was lost: the raylet died; start it again; the same command",
    ):
        tasks.wait()


def test_several_tasks_share_a_gpu(monkeypatch):
    asked = []
    ray = SimpleNamespace(remote=lambda **given: asked.append(given) or (lambda work: None))
    monkeypatch.setattr(
        workers,
        "Cluster",
        lambda *given: asked.append(given) or SimpleNamespace(ray=ray, leave=lambda: None),
    )
    WorkerSettings(jobs=8, ray="head:6379", gpus_per_worker=0.25).open().close()
    assert asked == [("head:6379", 8, 0.25), {"num_cpus": 1, "num_gpus": 0.25, "max_retries": 0}]
    with pytest.raises(ConfigError, match="shared out to workers only by Ray"):
        WorkerSettings(jobs=8, gpus_per_worker=0.25).open()


def test_a_search_for_decoder_options_starts_without_torch():
    code = (
        "import sys, cortext_tune.decoder.search, cortext_tune.commands.tune_decoder; sys.exit('torch' in"
        " sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_ctrl_c_while_ray_starts_waits_until_it_has_and_leaves_it(monkeypatch):
    """In the middle of it, it would crash the process and leave Ray running."""
    done = []

    def init(*given, **more):
        signal.raise_signal(signal.SIGINT)
        done.append("started")

    ray = SimpleNamespace(
        init=init, is_initialized=lambda: False, shutdown=lambda: done.append("left")
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(KeyboardInterrupt):
        RayTasks("local")
    assert done == ["started", "left"]


def test_ray_that_is_not_installed_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingLibrary, match=r"pip install '\.\[ray\]'"):
        RayTasks("local")


def test_a_ray_cluster_that_is_not_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    with pytest.raises(
        RunError, match=r"Ray at '127.0.0.1:1' cannot be reached: .*; check the address"
    ):
        RayTasks("127.0.0.1:1")
