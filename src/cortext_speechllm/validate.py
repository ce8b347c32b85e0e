"""Validation of a speech LLM, and warnings in the course of its training.

Losses by name, phoneme errors, word errors of free generation.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cortext.training.batches import Batches, TrainBatch
from cortext.training.callbacks import Callback, Trains
from cortext.training.config import TrainConfig
from cortext.training.distributed import ALONE, Processes
from cortext.training.progress import say
from cortext.training.torch_backend import TorchBackend
from cortext.training.validate import Forward, ValidatedTrial, Validator
from cortext_speechllm.losses.speech_loss import SpeechLoss
from cortext_speechllm.model import SpeechLLM

N_SAMPLES = 3
"""Number of sentences that a validation shows."""
TENFOLD = 10.0
"""Ratio of two weighted losses from which a warning is printed."""
RISES = 2
"""Validations in a row with a higher loss, while the training loss falls, before a warning."""


class SpeechValidator:
    """Validation of a speech LLM: losses, phoneme errors, and word errors of its sentences.

    For the word errors, the language model reads the recording and its own words, never the
    reference.
    """

    def __init__(
        self,
        batches: Batches,
        model: SpeechLLM,
        loss: SpeechLoss,
        config: TrainConfig,
        backend: TorchBackend,
    ) -> None:
        self.batches = batches
        self.model = model
        self.loss = loss
        self.backend = backend
        self.phonemes = Validator(
            batches,
            model.inventory,
            config,
            language=model.language,
            read=self._read,
            texts=self._texts,
        )

    def measure(
        self, forward: Forward, processes: Processes = ALONE
    ) -> tuple[dict[str, Any], list[ValidatedTrial]]:
        """See `Validates`.

        Returns:
            The metrics of `Validator` with `val_samples`, some references with the written
            sentences; and the results of the trials.
        """
        metrics, results = self.phonemes.measure(forward, processes)
        return metrics | {"val_samples": self._samples(results)}, results

    def write(self, results: list[ValidatedTrial], folder: Path) -> None:
        """See `Validates`."""
        self.phonemes.write(results, folder)

    def _read(
        self, forward: Forward, batch: TrainBatch
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return phoneme logits [B, P, V], and the losses of training by name."""
        with self.backend.evaluating() as network:
            return self.loss.read(network, batch)

    def _texts(
        self, batch: TrainBatch, log_probs_BPV: np.ndarray, wanted: set[int]
    ) -> dict[int, str]:
        """Return the language model's sentences for the `wanted` trials, by number of the trial."""
        rows = [row for row, i in enumerate(batch.indices.tolist()) if i in wanted]
        if not rows or not self.model.network.speech.writes:
            return {}
        options = self.model.network.speech.generation
        lists = self.model.write(
            batch.x_BTC[rows], batch.day_B[rows], batch.n_patches_B[rows], options
        )
        return {
            int(batch.indices[row]): nbest[0].text for row, nbest in zip(rows, lists, strict=True)
        }

    def _samples(self, results: list[ValidatedTrial]) -> dict[str, str]:
        split = self.batches.split
        written = [
            (split.sentence(i) or "", result.text)
            for i, result in enumerate(results)
            if result.text is not None
        ]
        chosen = np.linspace(0, len(written) - 1, min(N_SAMPLES, len(written))).astype(int)
        return dict(written[i] for i in chosen)


class LossWarnings(Callback):
    """Warnings about losses: one outweighs another, or validation loss rises while training falls.

    It also prints the sentences of each validation.

    Attributes:
        weights: Weights of the losses by name, without those of weight 0.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.weights = {name: weight for name, weight in weights.items() if weight}
        self._drowned: set[tuple[str, str]] = set()
        self._trained: float | None = None
        self._before: tuple[float, float] | None = None
        self._rises = 0

    def on_train(self, trainer: Trains, step: int, values: dict[str, Any]) -> None:
        """See `Callback`."""
        self._trained = values["train_loss"]
        parts = {name: weight * values[f"train_{name}"] for name, weight in self.weights.items()}
        drowned = {(a, b) for a, b in permutations(parts, 2) if parts[a] > TENFOLD * parts[b] > 0}
        for large, small in sorted(drowned - self._drowned):
            say(
                f"batch {step}: the {large} loss ({parts[large]:.3g}) is more than ten times the"
                f" {small} loss ({parts[small]:.3g}), each times its weight; see"
                " docs/guides/speech-llm-problems.md, 'When one loss is high'",
                trainer.shown and trainer.processes.first,
            )
        self._drowned = drowned

    def on_validation(self, trainer: Trains, step: int, metrics: dict[str, Any]) -> None:
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
                    " best weights are kept), or see docs/guides/speech-llm-problems.md, 'When"
                    " training is unstable'",
                    trainer.shown and trainer.processes.first,
                )
        self._before = now
