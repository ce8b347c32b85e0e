"""A report on a machine's TPU, its backends and their devices, and problems with them.

Every backend is examined in a process of its own with a time limit: one that crashes or hangs is
only a line of the report.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cortext.errors import CortextError
from cortext_live.steps.processor import describe_int8, describe_vectors
from cortext_tpu import system, versions
from cortext_tpu.find import Found, find_tpu
from cortext_tpu.probe import ANSWER, MODELS, PROBES

Ask = Callable[[dict[str, Any], Mapping[str, str], float], "ProbeAnswer"]
DATA = {"n_days": 2, "train_per_day": 8, "val_per_day": 1, "test_per_day": 1, "n_electrodes": 256}
"""Simulated recordings for a step: the published number of features, and few trials."""
TRIALS = 8
"""Fewest trials of a step's batch."""


@dataclass(frozen=True)
class ProbeAnswer:
    """Values that a process answered, and the reason why it ended early, if it did."""

    values: list[Any]
    problem: str | None = None


@dataclass(frozen=True)
class InstalledBackend:
    """A backend that is installed.

    Attributes:
        name: Name of the backend.
        versions: Versions of its packages.
        devices: `kind`, `name` and `memory_gib` of each of its devices.
        problem: Reason why it does not start; None if it does.
    """

    name: str
    versions: dict[str, str]
    devices: list[dict[str, Any]]
    problem: str | None = None


@dataclass(frozen=True)
class DoctorStep:
    """A step of training on devices of a kind, or the problem that prevented it."""

    backend: str
    model: str
    kind: str
    device: str | None = None
    cores: int | None = None
    loss: float | None = None
    seconds: float | None = None
    problem: str | None = None


@dataclass(frozen=True)
class DoctorReport:
    """The doctor's report.

    Attributes:
        looked: Places searched for a TPU, and what each holds.
        found: The TPU in a few words.
        versions: Versions of Python, the system and installed packages.
        backends: Installed backends.
        hugepages: Setting of transparent hugepages.
        advice: Lines about possible improvements.
        broken: Lines about installed parts that do not work.
        steps: Training steps that were taken; empty if none were.
        computes: Lines about the instructions that the processor computes models with, and about
            how each GPU trains.
    """

    looked: list[tuple[str, str]]
    found: str
    versions: dict[str, str]
    backends: list[InstalledBackend]
    hugepages: system.Hugepages
    advice: list[str]
    broken: list[str]
    steps: list[DoctorStep] = field(default_factory=list)
    computes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the content that `cortext doctor --json` prints."""
        return asdict(self)


def ask(request: dict[str, Any], env: Mapping[str, str], limit_s: float) -> ProbeAnswer:
    """Ask `cortext_tpu.probe` in a fresh process.

    Args:
        request: The request, as JSON takes it.
        env: Variables to add to the environment.
        limit_s: Seconds after which the process is killed.
    """
    command = [sys.executable, "-m", "cortext_tpu.probe", json.dumps(request)]
    problem = None
    with subprocess.Popen(
        command,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=limit_s)
        except BaseException as error:
            # The whole process group: a process that the backend has started would hold the pipes
            # open, and the second `communicate` would wait for it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            output, errors = process.communicate()
            problem = f"no answer within {limit_s:.0f} s"
    lines = (line.removeprefix(ANSWER) for line in output.splitlines() if line.startswith(ANSWER))
    values = [json.loads(line) for line in lines]
    if problem is None and (process.returncode or not values):
        problem = _reason(process.returncode, errors)
    return ProbeAnswer(values, problem)


def _reason(status: int, errors: str) -> str:
    """Return the last line of a process that failed, and its status."""
    lines = [line for line in errors.splitlines() if line.strip()] or ["nothing was said"]
    ended = f"signal {-status}" if status < 0 else f"status {status}"
    return f"{lines[-1].removeprefix('cortext.errors.').strip()[:300]} ({ended})"


def examine(
    tpu: str | None = None,
    env: Mapping[str, str] = os.environ,
    *,
    limit_s: float = 60,
    ask: Ask = ask,
    stage: Callable[[str], None] = lambda name: None,
) -> DoctorReport:
    """Look for a TPU and examine every installed backend; problems are in the report.

    Args:
        tpu: Name or address of a TPU (`--tpu`); None looks for one.
        env: Environment variables.
        limit_s: Seconds for each backend.
        ask: Function that asks a backend; tests give their own.
        stage: Called with the name of each stage.
    """
    broken = []
    try:
        found = find_tpu(tpu, env)
    except CortextError as error:
        broken.append(str(error))
        found = Found(looked=(("--tpu", tpu or "not given"),))
    have = versions.installed()
    backends = [
        _ask_backend(name, found, have, limit_s, ask, stage)
        for name in PROBES
        if _is_installed(name, have)
    ]
    broken += [
        f"{backend.name} does not start: {backend.problem}"
        for backend in backends
        if backend.problem
    ]
    on_tpu = [
        device for backend in backends for device in backend.devices if device["kind"] == "tpu"
    ]
    if found.attached and not on_tpu:
        broken.append(f"there are {found.chips} TPU chips, and no installed backend sees them")
    computes = _instructions(broken)
    every = [device for backend in backends for device in backend.devices]
    paths = (f"{gpu['name']}: {line}" for gpu in every for line in gpu.get("paths", ()))
    computes += dict.fromkeys(paths)  # of equal GPUs once
    pages = system.hugepages(found.generation if found.attached else None)
    advice = [*system.variables(env, found.chips), *versions.clashes(have, versions.libtpu_pins())]
    build = versions.tensorflow_without_tpu(have, found.chips)
    advice += [line for line in (build, pages.advice) if line]
    if len(found.hosts) > 1:
        advice.append(
            f"this is one of {len(found.hosts)} hosts, which start together: run the doctor on all"
            " at once"
        )
    shown = {"python": platform.python_version(), "system": platform.platform()} | have
    return DoctorReport(
        list(found.looked),
        found.summary,
        shown,
        backends,
        pages,
        advice,
        broken,
        computes=computes,
    )


def _instructions(broken: list[str]) -> list[str]:
    """Return lines on the instructions in use; add a line to `broken` for what does not work."""
    lines = describe_vectors()
    try:
        lines.append(describe_int8())
    except CortextError as error:
        broken.append(str(error))
    return lines


def _is_installed(name: str, have: Mapping[str, str]) -> bool:
    return all(
        package in have or (package == "tensorflow" and "tensorflow-tpu" in have)
        for package in PROBES[name].packages
    )


def _ask_backend(
    name: str,
    found: Found,
    have: Mapping[str, str],
    limit_s: float,
    ask: Ask,
    stage: Callable[[str], None],
) -> InstalledBackend:
    stage(f"asking {name}")
    answer = ask({"do": "devices", "backend": name, "tpu": found.address}, {}, limit_s)
    wanted = (*PROBES[name].packages, *PROBES[name].shown)
    return InstalledBackend(
        name,
        {key: have[key] for key in wanted if key in have},
        answer.values[0] if answer.values else [],
        answer.problem,
    )


def take_steps(
    report: DoctorReport,
    device: str | None = None,
    tpu: str | None = None,
    *,
    limit_s: float = 60,
    ask: Ask = ask,
    stage: Callable[[str], None] = lambda name: None,
) -> list[DoctorStep]:
    """Take a training step of each model with each backend on each kind of its devices.

    Args:
        report: The report of `examine`.
        device: The only kind of device to take; None takes all.
        tpu: Name or address of a TPU (`--tpu`); None looks for one.
        limit_s: Seconds for the steps of a backend, with compiling.
        ask: Function that asks a backend; tests give their own.
        stage: Called with the name of each stage.
    """
    plan = [
        (backend.name, kind, count)
        for backend in report.backends
        for kind, count in Counter(found["kind"] for found in backend.devices).items()
        if device in (None, kind)
    ]
    steps: list[DoctorStep] = []
    if not plan:
        return steps
    with tempfile.TemporaryDirectory(prefix="cortext-doctor-") as folder:
        stage("simulating recordings")
        packed = _packed_recordings(Path(folder))
        for backend, kind, count in plan:
            stage(f"a step of each model with {backend} on {kind}")
            request = {
                "do": "steps",
                "backend": backend,
                "kind": kind,
                "tpu": tpu,
                "data": str(packed),
                "out": str(Path(folder) / f"{backend}-{kind}"),
                # A multiple of the number of devices, which share the batch evenly.
                "batch_size": count * -(-TRIALS // count),
            }
            steps += _steps(backend, kind, ask(request, PROBES[backend].env(kind), limit_s))
    return steps


def _packed_recordings(folder: Path) -> Path:
    """Simulate and pack recordings for one step; return the packed directory."""
    from cortext.data.packed import pack
    from cortext_data.simulate import simulate

    overrides = [f"{key}={value}" for key, value in DATA.items()]
    simulate(folder / "data", "tiny", seed=1, overrides=overrides)
    pack(folder / "data", folder / "packed")
    return folder / "packed"


def _steps(backend: str, kind: str, answer: ProbeAnswer) -> list[DoctorStep]:
    taken = {value["model"]: value for value in answer.values}
    missing = answer.problem or "nothing was said of it"
    return [
        DoctorStep(backend, kind=kind, **taken.get(model, {"model": model, "problem": missing}))
        for model in MODELS
    ]
