"""Callbacks: code of one's own that the training loop calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from cortext.data.packed import PackedSplit
from cortext.training.backend import DeviceSpec
from cortext.training.checkpoint import RunDirectory, RunState
from cortext.training.config import TrainConfig
from cortext.training.distributed import Processes
from cortext.training.setup import LearningModel
from cortext.training.summary import RunSummary


class Trains(Protocol):
    """Interface of a trainer for callbacks; see `Trainer`.

    Attributes:
        config: The configuration of the run.
        device_spec: The device to train on.
        model: The model that learns.
        processes: The processes that share the batches; `processes.first` is True in the one that
            writes.
        run_directory: The directory of the run.
        shown: True if a bar is drawn.
        state: Batches done, the best and the last metrics.
    """

    config: TrainConfig
    device_spec: DeviceSpec
    model: LearningModel
    processes: Processes
    run_directory: RunDirectory
    shown: bool
    state: RunState

    @property
    def runs(self) -> dict[str, tuple[Path, PackedSplit]]:
        """The directory of each model and its validation trials, by participant."""

    def save(self, name: str | None = None) -> None:
        """Keep weights, optimiser and progress, under a name or to resume from."""


class Callback:
    """Methods that the training loop calls; a subclass overrides those it needs.

    An exception stops the run, whose last state stays.
    """

    def on_train(self, trainer: Trains, step: int, values: dict[str, Any]) -> None:
        """Take the values of a line about training, every `batches_per_train_log` batches.

        Args:
            trainer: The trainer.
            step: Batches done.
            values: Mean losses as `train_<name>`, `grad_norm`, `lr`, `lr_day` and `trials_per_s`.
        """

    def on_validation(self, trainer: Trains, step: int, metrics: dict[str, Any]) -> None:
        """Take the metrics of a validation.

        Args:
            trainer: The trainer.
            step: Batches done.
            metrics: For CTC `val_loss`, `val_per`, `val_per_by_session` and `val_wer` (None without
                a language model).
        """

    def on_trained(self, trainer: Trains) -> None:
        """Work after the last batch, before the summary marks the run as finished.

        Where it fails or is interrupted, it is done again when the run is resumed. All processes
        call it.

        Args:
            trainer: The trainer; the best weights are in its run directory.
        """

    def on_end(self, trainer: Trains, summary: RunSummary) -> None:
        """Take the summary, after the last batch, when everything is written."""


class RankZero(Callback):
    """A callback that notes whether this process is the one that writes.

    Attributes:
        here: True after the run in the process that writes, which may be one of several.
    """

    here = False

    def on_end(self, trainer: Trains, summary: RunSummary) -> None:
        """See `Callback`."""
        self.here = trainer.processes.first
