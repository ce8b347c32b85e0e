"""What a researcher can hook into a training run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cortext.training.summary import RunSummary
    from cortext.training.trainer import Trainer


class Callback:
    """Called as training goes; every method may be left out.

    An exception stops the run, whose last state stays.

    `trainer.model` is the model, `trainer.processes.first` tells which of several processes this
    is.
    """

    def on_train(self, trainer: Trainer, step: int, values: dict[str, Any]) -> None:
        """After every `batches_per_train_log` batches.

        Mean losses by name, `grad_norm`, `lr`, `trials_per_s`.
        """

    def on_validation(self, trainer: Trainer, step: int, metrics: dict[str, Any]) -> None:
        """After every validation: `val_loss`, `val_per`, `val_per_by_session`, `val_wer`."""

    def on_end(self, trainer: Trainer, summary: RunSummary) -> None:
        """After the last batch, when everything is written."""


class First(Callback):
    """Knows after a run whether this process, of perhaps several, is the one that tells the user
    what came of it.
    """

    here = False

    def on_end(self, trainer: Trainer, summary: RunSummary) -> None:
        """See `Callback`."""
        self.here = trainer.processes.first
