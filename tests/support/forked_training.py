"""Trainings in processes of their own that begin at once.

They are forked from one that has loaded everything.
"""

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from commands import CONTEXT

from cortext.errors import RunError
from cortext.models.storage import write_tensors
from cortext.plugins import load_plugin
from cortext.training import Callback, Trainer, read_train_config, train
from cortext.training.checkpoint import RunDirectory

NO_MOUNT = 77
"""Exit status of `fill_a_disk` where no file system can be mounted."""


class Started:
    """A process that calls a function of this module, with a file for what it says on stderr."""

    def __init__(
        self, errors: Path, environment: dict[str, str], function: Callable, *arguments: Any
    ) -> None:
        self._errors = errors
        self.process = CONTEXT.Process(
            target=_call, args=(errors, environment, function, arguments), daemon=True
        )
        self.process.start()

    def wait(self, patience_s: float) -> str:
        """Return the messages of the training when it has ended."""
        self.process.join(patience_s)
        assert self.process.exitcode is not None, "it takes too long"
        return self._errors.read_text()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.join()


def _call(errors: Path, environment: dict[str, str], function: Callable, arguments: tuple) -> None:
    with errors.open("w") as file:
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    torch.set_num_threads(1)
    function(*arguments)


def run(config: Path, data: Path, out: Path, resume: bool = False, batches: int = 0) -> None:
    """So many batches, or to the end."""
    with Trainer(config, data, out, resume=resume, progress=False) as trainer:
        trainer.run(batches or None)


def run_together(config: Path, data: dict[str, Path], out: Path, resume: bool) -> None:
    """Train several participants to the end."""
    train(config, data, out, resume=resume, progress=False)


def run_with_plugin(config: Path, data: Path, out: Path, plugin: Path) -> None:
    """Train to the end with a user's own classes."""
    load_plugin(plugin)
    run(config, data, out)


class Interrupting(Callback):
    """Ctrl-C for the second process, at its first line about training."""

    def on_train(self, trainer: Trainer, step: int, values: dict) -> None:
        if not trainer.processes.first:
            os.kill(os.getpid(), signal.SIGINT)


def run_interrupted(config: Path, data: Path, out: Path) -> None:
    """Until `Interrupting` ends it."""
    with Trainer(config, data, out, callbacks=[Interrupting()], progress=False) as trainer:
        trainer.run()


def fill_a_disk(config: Path, data: Path, disk: Path, out: Path, found: Path) -> None:
    """Train on a disk that fills up, and again when there is room.

    Writes the error, and the step of the last state with the number of unfinished files; copies the
    run to `out`. The file system, of 512 KB, is gone when the process ends, however it ends.
    """
    new_user, new_mounts = 0x10000000, 0x20000
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None).unshare(new_user | new_mounts):
        sys.exit(NO_MOUNT)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "none", disk]).returncode:
        sys.exit(NO_MOUNT)
    run_folder, ballast = disk / "run", disk / "ballast"
    run(config, data, run_folder, batches=7)
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1024))
    lines = []
    try:
        run(config, data, run_folder, resume=True)
    except RunError as error:
        lines.append(str(error))
    state = RunDirectory(run_folder).load_state(lines.append)
    unfinished = len(list(run_folder.rglob(".*.tmp")))
    lines.append(f"{state[1].step if state else None} {unfinished}")
    found.write_text("\n".join(lines))
    ballast.unlink()
    run(config, data, run_folder, resume=True)
    shutil.copytree(run_folder, out)


def read_settings(path: Path, overrides: list[str], stdout: Path) -> None:
    """Read a training configuration, with stdout in a file."""
    os.dup2(os.open(stdout, os.O_WRONLY | os.O_CREAT), 1)
    read_train_config(path, overrides)


def write_64_mib(path: Path, peak_mib: Path) -> None:
    """Write 64 MiB of tensors; say by how much the most memory in use grew meanwhile."""
    tensors = {str(i): torch.ones(1 << 20) for i in range(16)}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    write_tensors(path, tensors, {})
    peak_mib.write_text(str((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024))
