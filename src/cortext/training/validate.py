"""What a validation measures: CTC loss, phoneme error rate over all and per day, and, with a language model, WER."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cortext.decoding.greedy import greedy
from cortext.text.metrics import EditCounts, edit_counts
from cortext.text.normalize import normalize
from cortext.text.phonemes import Inventory
from cortext.training.batches import Batches
from cortext.training.config import TrainConfig
from cortext.training.loss import ctc_loss

Forward = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Logits [B, P, V] of features [B, T, C] and day layers [B], in the run's precision."""


class Validator:
    """Measures a model on the validation split, smoothed with padding 'same' as the release validates in training."""

    def __init__(
        self,
        batches: Batches,
        inventory: Inventory,
        n_patches: Callable[[torch.Tensor], torch.Tensor],
        config: TrainConfig,
        lm: str | Path | None = None,
    ) -> None:
        self.batches, self.inventory, self.n_patches = batches, inventory, n_patches
        n_bins_N = batches.split.n_bins_N
        order = np.argsort(n_bins_N, kind="stable")  # little padding; the result is the same in any order
        size = config.dataset.batch_size
        self.chunks = [order[start : start + size] for start in range(0, len(order), size)]
        n_wer = min(config.val_wer_trials, len(n_bins_N))
        self.wer_trials = set(np.linspace(0, len(n_bins_N) - 1, n_wer).astype(int).tolist())
        self.decoder = _narrow_decoder(lm, config) if lm is not None and n_wer else None

    @torch.no_grad()
    def measure(self, forward: Forward) -> dict[str, Any]:
        """`val_loss` (mean over trials), `val_per`, `val_per_by_session`, `val_wer` (None without a decoder)."""
        split = self.batches.split
        losses_N = np.zeros(len(split))
        per_day: dict[int, EditCounts] = {}
        for_words: dict[int, np.ndarray] = {}
        for indices in self.chunks:
            batch = self.batches.batch(indices)
            logits_BPV = forward(batch.x_BTC, batch.day_B)
            n_patches_B = self.n_patches(batch.n_bins_B)
            losses_N[indices] = ctc_loss(logits_BPV, n_patches_B, batch.labels_BU, batch.n_labels_B).cpu().numpy()
            log_probs_BPV = logits_BPV.float().log_softmax(-1).cpu().numpy()
            for i, log_probs_PV, n_patches in zip(indices.tolist(), log_probs_BPV, n_patches_B.tolist(), strict=True):
                decoded = greedy(log_probs_PV[:n_patches], self.inventory)
                day, labels_U = int(split.day_N[i]), split.labels(i)
                assert labels_U is not None  # check_labels_fit has seen to it
                per_day[day] = per_day.get(day, EditCounts()) + edit_counts(labels_U.tolist(), decoded)
                if self.decoder and i in self.wer_trials:
                    for_words[i] = log_probs_PV[:n_patches].copy()
        return {
            "val_loss": float(losses_N.mean()),
            "val_per": _rate(sum(per_day.values(), EditCounts())),
            "val_per_by_session": {split.sessions[day]: _rate(per_day[day]) for day in sorted(per_day)},
            "val_wer": self._wer(for_words),
        }

    def _wer(self, log_probs: dict[int, np.ndarray]) -> float | None:
        if self.decoder is None:
            return None
        counts = EditCounts()
        for i in sorted(log_probs):
            text = self.decoder.decode(log_probs[i], self.inventory)[0].text
            reference = normalize(self.batches.split.sentence(i) or "").split()
            counts += edit_counts(reference, normalize(text).split())
        return _rate(counts)


def _rate(counts: EditCounts) -> float:
    return counts.errors / max(1, counts.reference_length)


def _narrow_decoder(lm: str | Path, config: TrainConfig) -> Any:
    from cortext.decoding import Decoder  # the search is only loaded where there are words to find

    return Decoder.from_dir(lm, config.val_wer_options)
