"""One trial, such as an ordinary training, whose end is told in a form that travels between
processes.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from cortext.errors import CortextError, Interrupted, RunError, first_line
from cortext.files import read_json

METRICS = ("val_per", "val_wer", "val_loss")


@dataclass(frozen=True)
class Outcome:
    """What came of a trial."""

    state: Literal["finished", "failed", "interrupted"]
    metrics: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None


class Work(Protocol):
    """One trial of any kind, as it travels to whoever runs it."""

    @property
    def number(self) -> int:
        """By which its outcome is known."""

    @property
    def error_file(self) -> Path:
        """Where a traceback is written."""

    def work(self) -> dict[str, Any]:
        """Do it; returns the metrics."""


def run_trial(job: Work) -> Outcome:
    """Do a trial's work. No error leaves it."""
    try:
        return Outcome("finished", job.work())
    except (Interrupted, KeyboardInterrupt):
        return Outcome("interrupted")
    except CortextError as error:
        return Outcome("failed", reason=str(error))
    except (
        Exception
    ) as error:  # out of memory, a mistake in a plug-in: the other trials can do without this one
        what = ": ".join(dict.fromkeys((type(error).__name__, first_line(error))))
        try:
            job.error_file.parent.mkdir(parents=True, exist_ok=True)
            job.error_file.write_text(traceback.format_exc())
        except OSError:  # the disk may be what is wrong
            return Outcome("failed", reason=what)
        return Outcome("failed", reason=f"{what} (see {job.error_file})")


@dataclass(frozen=True)
class Job:
    """A training: what a process needs to know of a trial.

    Paths are absolute where another machine may read them.
    """

    number: int
    config: Mapping[str, Any]
    """As plain mappings: the classes of a plug-in exist only once it is loaded."""
    data: Path
    out: Path
    lm: Path | None = None
    device: str = "cpu"
    plugins: tuple[Path, ...] = ()
    threads: int | None = None
    """Threads of a CPU operation; None leaves them as they are."""
    progress: bool = False
    """Draw the training's bar."""

    @property
    def error_file(self) -> Path:
        """Beside the trial's run directory."""
        return self.out.with_name(f"{self.out.name}.error.txt")

    def work(self) -> dict[str, Any]:
        """Train, or go on where an earlier sitting was stopped."""
        if not (self.out / "summary.json").is_file():
            _train(self)
        return _metrics(self.out / "summary.json")


def _train(job: Job) -> None:
    import torch

    from cortext.config import from_mapping
    from cortext.plugins import load_plugins
    from cortext.training import TrainConfig, train

    load_plugins(job.plugins)
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    train(
        from_mapping(TrainConfig, job.config),
        job.data,
        job.out,
        lm=job.lm,
        resume=(job.out / "config.yaml").is_file(),
        device=job.device,
        progress=job.progress,
    )


def _metrics(summary: Path) -> dict[str, float | None]:
    try:
        content = read_json(summary)
        return {name: content[name] for name in (*METRICS, "best_step", "steps", "seconds")}
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"is not the summary of a training: {error}", where=summary) from None
