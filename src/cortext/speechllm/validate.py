"""Validation of a speech LLM: losses by name, phoneme errors, word errors of free generation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from cortext.speechllm.losses.speech_loss import SpeechLoss
from cortext.speechllm.model import SpeechLLM
from cortext.training.batches import Batches, TrainBatch
from cortext.training.config import TrainConfig
from cortext.training.distributed import ALONE, Processes
from cortext.training.torch_backend import TorchBackend
from cortext.training.validate import Forward, ValidatedTrial, Validator

N_SAMPLES = 3
"""Number of sentences that a validation shows."""


class SpeechValidator:
    """Measures the losses of a speech LLM, phoneme errors, and word errors of what it writes.

    When words are counted, the language model has seen the recording and its own words, never those
    of the reference.
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
            batches, model.inventory, config, read=self._read, texts=self._texts
        )

    def measure(
        self, forward: Forward, processes: Processes = ALONE
    ) -> tuple[dict[str, Any], list[ValidatedTrial]]:
        """See `Validates`.

        Returns:
            The metrics of `Validator`, and `val_samples`, some sentences beside what was written
            for them; and the results of the trials.
        """
        metrics, results = self.phonemes.measure(forward, processes)
        return metrics | {"val_samples": self._samples(results)}, results

    def write(self, results: list[ValidatedTrial], folder: Path) -> None:
        """See `Validates`."""
        self.phonemes.write(results, folder)

    def _read(
        self, forward: Forward, batch: TrainBatch
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return phoneme logits [B, P, V], and the losses by name that training has, too."""
        with self.backend.evaluating() as network:
            return self.loss.read(network, batch)

    def _texts(
        self, batch: TrainBatch, log_probs_BPV: np.ndarray, wanted: set[int]
    ) -> dict[int, str]:
        """Return what the language model writes for those trials whose words are counted."""
        rows = [row for row, i in enumerate(batch.indices.tolist()) if i in wanted]
        if not rows or not self.model.network.speech.writes:
            return {}
        options = self.model.network.speech.generation
        found = self.model.write(
            batch.x_BTC[rows], batch.day_B[rows], batch.n_patches_B[rows], options
        )
        return {
            int(batch.indices[row]): nbest[0].text for row, nbest in zip(rows, found, strict=True)
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
