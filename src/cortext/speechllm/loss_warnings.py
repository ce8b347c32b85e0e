"""Warnings in the course of a training.

Losses that drown each other, and a validation that leaves training.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from typing import Any

from cortext.training.progress import say
from cortext.training.trainer import Callback, Trainer

TENFOLD = 10.0
RISES = 2
"""So many validations in a row must be worse, while training is better, before a line is said."""


class LossWarnings(Callback):
    """Warnings about losses: one drowns another, or validation leaves training.

    It prints the sentences of each validation, too.

    Attributes:
        weights: Of the losses by name; those of weight 0 are not looked at.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.weights = {name: weight for name, weight in weights.items() if weight}
        self._drowned: set[tuple[str, str]] = set()
        self._trained: float | None = None
        self._before: tuple[float, float] | None = None
        self._rises = 0

    def on_train(self, trainer: Trainer, step: int, values: dict[str, Any]) -> None:
        """See `Callback`."""
        self._trained = values["train_loss"]
        parts = {name: weight * values[f"train_{name}"] for name, weight in self.weights.items()}
        drowned = {(a, b) for a, b in permutations(parts, 2) if parts[a] > TENFOLD * parts[b] > 0}
        for large, small in sorted(drowned - self._drowned):
            say(
                f"batch {step}: the {large} loss ({parts[large]:.3g}) is more than ten times the"
                f" {small} loss ({parts[small]:.3g}), each times its weight; see"
                " docs/speech_llm.md, 'When one loss is high'",
                trainer.shown and trainer.processes.first,
            )
        self._drowned = drowned

    def on_validation(self, trainer: Trainer, step: int, metrics: dict[str, Any]) -> None:
        """See `Callback`."""
        for reference, written in metrics.get("val_samples", {}).items():
            say(
                f"batch {step}: {reference!r} is read as {written!r}",
                trainer.shown and trainer.processes.first,
            )
        if self._trained is None:
            return
        now = (self._trained, metrics["val_loss"])
        if self._before is not None:
            leaves = now[0] < self._before[0] and now[1] > self._before[1]
            self._rises = self._rises + 1 if leaves else 0
            if self._rises == RISES:
                say(
                    f"batch {step}: the validation loss has risen to {now[1]:.3g} while that of"
                    f" training fell to {now[0]:.3g}: it learns its trials by heart; stop here (the"
                    " best weights are kept), or see docs/speech_llm.md, 'When training is"
                    " unstable'",
                    trainer.shown and trainer.processes.first,
                )
        self._before = now
