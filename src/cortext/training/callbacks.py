"""Callbacks: code of one's own that the training loop calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cortext.training.summary import RunSummary

if TYPE_CHECKING:
    from cortext.training.trainer import Trainer


class Callback:
    """Methods that the training loop calls; a subclass overrides those it needs.

    An exception stops the run, whose last state stays. `trainer.model` is the model.
    `trainer.processes.first` is True in the process that writes.
    """

    def on_train(self, trainer: Trainer, step: int, values: dict[str, Any]) -> None:
        """Take the values of a line about training, every `batches_per_train_log` batches.

        Args:
            trainer: The trainer.
            step: Batches done.
            values: Mean losses as `train_<name>`, `grad_norm`, `lr`, `lr_day` and `trials_per_s`.
        """

    def on_validation(self, trainer: Trainer, step: int, metrics: dict[str, Any]) -> None:
        """Take the metrics of a validation.

        Args:
            trainer: The trainer.
            step: Batches done.
            metrics: For CTC `val_loss`, `val_per`, `val_per_by_session` and `val_wer` (None without
                a language model).
        """

    def on_trained(self, trainer: Trainer) -> None:
        """Work after the last batch, before the summary marks the run as finished.

        Where it fails or is interrupted, it is done again when the run is resumed. All processes
        call it.

        Args:
            trainer: The trainer; the best weights are in its run directory.
        """

    def on_end(self, trainer: Trainer, summary: RunSummary) -> None:
        """Take the summary, after the last batch, when everything is written."""


class RankZero(Callback):
    """A callback that notes whether this process is the one that writes.

    Attributes:
        here: True after the run in the process that writes, which may be one of several.
    """

    here = False

    def on_end(self, trainer: Trainer, summary: RunSummary) -> None:
        """See `Callback`."""
        self.here = trainer.processes.first
