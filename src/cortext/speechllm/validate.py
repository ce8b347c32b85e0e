"""What a validation of a speech LLM measures.

Every loss by name, phoneme errors, word errors of free generation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cortext.speechllm.losses.speech_loss import SpeechLoss
from cortext.speechllm.model import SpeechLLM
from cortext.training.batches import Batches, TrainBatch
from cortext.training.config import TrainConfig
from cortext.training.torch_backend import TorchBackend
from cortext.training.validate import Forward, TrialResult, Validator

N_SAMPLES = 3
"""Sentences that a validation shows."""


class SpeechValidator(Validator):
    """A `Validator` that measures the losses of a speech LLM, and writes sentences instead of
    searching for words.

    When words are counted, the language model has seen the recording and its own words, never those
    of the reference.
    """

    def __init__(
        self,
        batches: Batches,
        model: SpeechLLM,
        loss: SpeechLoss,
        config: TrainConfig,
        engine: TorchBackend,
    ) -> None:
        super().__init__(batches, model.inventory, config)
        self.model, self.loss, self.engine = model, loss, engine

    def _read(
        self, forward: Forward, batch: TrainBatch
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Phoneme logits [B, P, V], and the losses by name that training has, too."""
        with self.engine.evaluating() as network:
            return self.loss.read(network, batch)

    def _texts(self, batch: TrainBatch, log_probs_BPV: np.ndarray) -> dict[int, str]:
        """What the language model writes for those trials whose words are counted."""
        rows = [row for row, i in enumerate(batch.indices.tolist()) if i in self.wer_trials]
        if not rows or not self.model.network.speech.writes:
            return {}
        options = self.model.network.speech.generation
        found = self.model.write(
            batch.x_BTC[rows], batch.day_B[rows], batch.n_patches_B[rows], options
        )
        return {
            int(batch.indices[row]): nbest[0].text for row, nbest in zip(rows, found, strict=True)
        }

    def _metrics(self, results: list[TrialResult]) -> dict[str, Any]:
        """Those of `Validator`, and `val_samples`.

        Some sentences beside what was written for them.
        """
        split = self.batches.split
        written = [
            (split.sentence(i) or "", result.text)
            for i, result in enumerate(results)
            if result.text is not None
        ]
        chosen = np.linspace(0, len(written) - 1, min(N_SAMPLES, len(written))).astype(int)
        return super()._metrics(results) | {"val_samples": dict(written[i] for i in chosen)}
