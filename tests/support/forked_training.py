"""Trainings in processes of their own that begin at once.

They are forked from one that has loaded everything.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from commands import CONTEXT

from cortext.training import Callback, Trainer


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
        """What it said, when it has ended."""
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


class Interrupting(Callback):
    """Ctrl-C for the second process, at its first line about training."""

    def on_train(self, trainer: Trainer, step: int, values: dict) -> None:
        if not trainer.processes.first:
            os.kill(os.getpid(), signal.SIGINT)


def run_interrupted(config: Path, data: Path, out: Path) -> None:
    """Until `Interrupting` ends it."""
    with Trainer(config, data, out, callbacks=[Interrupting()], progress=False) as trainer:
        trainer.run()
