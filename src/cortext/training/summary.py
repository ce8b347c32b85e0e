"""The summary of a finished run: `summary.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from cortext.config import to_mapping
from cortext.data.checks import Problem
from cortext.describe import Described, percent
from cortext.files import atomic_write
from cortext.models.acoustic import look_ahead_text
from cortext.provenance import provenance
from cortext.training.checkpoint import RunState
from cortext.training.config import TrainConfig
from cortext.training.setup import LearningModel


@dataclass(frozen=True, repr=False)
class RunSummary(Described):
    """A finished run. Rates are fractions; `best_*` belong to the kept weights."""

    run: str
    kind: str
    steps: int
    best_step: int
    best_metric: str
    best_value: float
    val_per: float | None
    """Share of wrong tokens; None where the task has none."""
    val_loss: float
    val_wer: float | None
    """On at most `val_wer_trials` trials with a narrow search; None without a language model."""
    n_parameters: int
    n_train_trials: int
    n_val_trials: int
    n_sessions: int
    skipped: tuple[Problem, ...]
    """Trials and files of all splits that were left out as bad."""
    device: str
    threads: int
    """Number of threads of a CPU operation; bit-exact repetition needs the same number."""
    seed: int
    seconds: float
    """Time of training and validation, with that before the run was resumed."""
    loss: str = "CTC loss"
    """Name of `val_loss`, as the task gives it."""
    n_unlabelled: int = 0
    """Training trials that were left out because they have no label."""
    errors: str = "PER"
    """Name of `val_per`, as the inventory gives it."""
    look_ahead_ms: float | None = None
    """Milliseconds that a frame depends on after its patch; None for the whole trial."""
    val_per_by_participant: dict[str, float] = field(default_factory=dict)
    """Share of wrong tokens of each participant, where several trained together."""

    def _facts(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "model": self.kind,
            "batches": self.steps,
            "best at": self.best_step,
            self.errors: None if self.val_per is None else percent(self.val_per),
            **{
                f"{self.errors} of {name}": percent(per)
                for name, per in self.val_per_by_participant.items()
            },
            "WER": None if self.val_wer is None else percent(self.val_wer),
            self.loss: self.val_loss,
            "parameters": self.n_parameters,
            "look-ahead": look_ahead_text(self.look_ahead_ms),
            "trials": f"{self.n_train_trials:,} train, {self.n_val_trials:,} val",
            "left out as bad": len(self.skipped) or None,
            "left out without a label": self.n_unlabelled or None,
            "device": self.device,
            "seconds": f"{self.seconds:.0f}",
        }

    def to_json(self) -> dict[str, Any]:
        """Return the summary as plain values, without fields that equal the release's."""
        mapping = asdict(self)
        if self.errors == "PER":
            del mapping["errors"]
        if not self.val_per_by_participant:
            del mapping["val_per_by_participant"]
        return mapping

    def __str__(self) -> str:
        each = ", ".join(
            f"{name} {percent(per)}" for name, per in self.val_per_by_participant.items()
        )
        of_each = f" ({each})" if each else ""
        per = "" if self.val_per is None else f"{self.errors} {100 * self.val_per:.1f} %{of_each}, "
        wer = "" if self.val_wer is None else f"WER {100 * self.val_wer:.1f} %, "
        best = f"best at batch {self.best_step}: {per}{wer}{self.loss} {self.val_loss:.2f}"
        return (
            f"{self.run}: {self.steps} batches in {self.seconds:.0f} s, {self.n_parameters:,}"
            f" parameters; {best}"
        )


def summarise(
    path: Path,
    config: TrainConfig,
    model: LearningModel,
    progress: RunState,
    skipped: Sequence[Problem],
    device: str,
    loss: str,
    n_unlabelled: int = 0,
) -> RunSummary:
    """Return the summary of a finished run.

    Args:
        path: The run directory.
        config: Configuration of the run.
        model: The trained model.
        progress: The run's last state.
        skipped: Trials and files that were left out as bad.
        device: Name of the device that trained.
        loss: Name of `val_loss`.
        n_unlabelled: Training trials that were left out because they have no label.
    """
    best = progress.best
    assert best is not None  # every run ends with a validation
    return RunSummary(
        run=str(path),
        kind=config.model.kind,
        steps=progress.step,
        best_step=best["step"],
        best_metric=config.metric,
        best_value=best[config.metric],
        val_per=best.get("val_per"),
        val_loss=best["val_loss"],
        val_wer=best.get("val_wer"),
        n_parameters=model.n_parameters,
        n_train_trials=progress.data["n_train"],
        n_val_trials=progress.data["n_val"],
        n_sessions=len(model.sessions),
        skipped=tuple(skipped),
        device=device,
        threads=torch.get_num_threads(),
        seed=config.seed,
        seconds=round(progress.seconds, 2),
        loss=loss,
        n_unlabelled=n_unlabelled,
        errors=model.inventory.error_rate,
        look_ahead_ms=model.look_ahead_ms,
        val_per_by_participant=best.get("val_per_by_participant", {}),
    )


def write_summary(path: Path, summary: Mapping[str, Any], config: TrainConfig) -> None:
    """Write the summary, the configuration and the provenance (commit, versions, machine).

    Args:
        path: The file, `summary.json`.
        summary: The summary as plain values.
        config: Configuration of the run.
    """
    content = {**summary, "config": to_mapping(config), "provenance": provenance()}
    atomic_write(path, json.dumps(content, indent=2, default=str).encode())
