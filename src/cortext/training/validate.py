"""What a validation measures.

CTC loss, phoneme error rate over all and per day, and, with a language model, WER.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cortext.data.packed import PackedSplit
from cortext.decoding.log_probs import greedy
from cortext.errors import RunError
from cortext.files import atomic_directory, disk_errors
from cortext.models.acoustic import NOT_FINITE
from cortext.text.metrics import EditCounts, edit_counts
from cortext.text.normalize import normalize
from cortext.text.phonemes import Inventory
from cortext.training.batches import Batches, TrainBatch
from cortext.training.config import TrainConfig
from cortext.training.distributed import ALONE, Processes
from cortext.training.loss import ctc_loss, name_trials

Forward = Callable[[TrainBatch], torch.Tensor]
"""Logits [B, P, V] of a batch, in the run's precision."""


@dataclass(frozen=True)
class TrialResult:
    """One trial of a validation.

    Losses by name, phoneme errors, text (where words were looked for), logits float16 (where kept).
    """

    losses: dict[str, float]
    phonemes: EditCounts
    text: str | None
    logits_PV: np.ndarray | None


def wer_trials(config: TrainConfig, n_trials: int) -> list[int]:
    """Those of so many trials whose words are counted, spread evenly."""
    found: list[int] = (
        np.linspace(0, n_trials - 1, min(config.val_wer_trials, n_trials)).astype(int).tolist()
    )
    return found


class Validator:
    """Measures a model on the validation split, smoothed with padding 'same' as the release
    validates in training.
    """

    def __init__(
        self,
        batches: Batches,
        inventory: Inventory,
        config: TrainConfig,
        lm: str | Path | None = None,
    ) -> None:
        self.batches, self.inventory, self.keep_logits = batches, inventory, config.save_val_logits
        n_bins_N = batches.split.n_bins_N
        order = np.argsort(
            n_bins_N, kind="stable"
        )  # little padding; the result is the same in any order
        size = config.dataset.batch_size
        self.chunks = [order[start : start + size] for start in range(0, len(order), size)]
        self.wer_trials = set(wer_trials(config, len(n_bins_N)))
        self.decoder = _narrow_decoder(lm, config) if lm is not None and self.wer_trials else None

    @torch.no_grad()
    def measure(
        self, forward: Forward, processes: Processes = ALONE
    ) -> tuple[dict[str, Any], list[TrialResult]]:
        """`val_loss` (mean over trials), `val_per`, `val_per_by_session`, `val_wer` (None
        without a decoder), and what they are made of, trial by trial. Several processes share
        the trials; each gets the whole result.
        """
        own: dict[int, TrialResult] = {}
        for indices in self.chunks[processes.rank :: processes.world]:
            own |= self._chunk(forward, indices)
        found: dict[int, TrialResult] = {}
        for part in processes.gather(own):
            found |= part
        results = [found[i] for i in range(len(self.batches.split))]
        return self._metrics(results), results

    def _chunk(self, forward: Forward, indices: np.ndarray) -> dict[int, TrialResult]:
        batch, split = self.batches.batch(indices), self.batches.split
        logits_BPV, losses = self._read(forward, batch)
        losses_of = {name: loss_B.tolist() for name, loss_B in losses.items()}
        log_probs_BPV = logits_BPV.float().log_softmax(-1).cpu().numpy()
        texts = self._texts(batch, log_probs_BPV)
        results = {}
        for row, i in enumerate(indices.tolist()):
            n_patches = int(batch.n_patches_B[row])
            if not np.isfinite(log_probs_BPV[row, :n_patches]).all():
                what = (
                    f"the model {NOT_FINITE} in the validation, in trial"
                    f" {name_trials(split, np.array([i]))}"
                )
                raise RunError(
                    what, fix="leave the trial out with dataset.bad_trials_dict, or lower lr_max"
                )
            labels_U = split.labels(i)
            assert labels_U is not None  # check_labels_fit has seen to it
            phonemes = edit_counts(
                labels_U.tolist(), greedy(log_probs_BPV[row, :n_patches], self.inventory)
            )
            kept = logits_BPV[row, :n_patches].half().cpu().numpy() if self.keep_logits else None
            own_losses = {name: values[row] for name, values in losses_of.items()}
            results[i] = TrialResult(own_losses, phonemes, texts.get(i), kept)
        return results

    def _read(
        self, forward: Forward, batch: TrainBatch
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Logits [B, P, V] of a batch, and losses by name, [B] each."""
        logits_BPV = forward(batch)
        return logits_BPV, {
            "loss": ctc_loss(logits_BPV, batch.n_patches_B, batch.labels_BU, batch.n_labels_B)
        }

    def _texts(self, batch: TrainBatch, log_probs_BPV: np.ndarray) -> dict[int, str]:
        """Sentences of those trials whose words are looked for, by number in the split."""
        if self.decoder is None:
            return {}
        texts = {}
        for row, i in enumerate(batch.indices.tolist()):
            if i in self.wer_trials:
                log_probs_PV = np.ascontiguousarray(
                    log_probs_BPV[row, : int(batch.n_patches_B[row])]
                )
                texts[i] = self.decoder.decode(log_probs_PV, self.inventory)[0].text
        return texts

    def _metrics(self, results: list[TrialResult]) -> dict[str, Any]:
        split, per_day = self.batches.split, dict[int, EditCounts]()
        for day, result in zip(split.day_N.tolist(), results, strict=True):
            per_day[day] = per_day.get(day, EditCounts()) + result.phonemes
        words = [_word_errors(split.sentence(i), result.text) for i, result in enumerate(results)]
        looked_for = [counts for counts in words if counts is not None]
        means = {
            f"val_{name}": float(np.mean([result.losses[name] for result in results]))
            for name in results[0].losses
        }
        return {
            **means,
            "val_per": _rate(sum(per_day.values(), EditCounts())),
            "val_per_by_session": {
                split.sessions[day]: _rate(per_day[day]) for day in sorted(per_day)
            },
            "val_wer": _rate(sum(looked_for, EditCounts())) if looked_for else None,
        }


def _word_errors(reference: str | None, text: str | None) -> EditCounts | None:
    """Those of a text as the benchmark counts them; None where there is no text."""
    return (
        None
        if text is None
        else edit_counts(normalize(reference or "").split(), normalize(text).split())
    )


def _rate(counts: EditCounts) -> float:
    return counts.errors / max(1, counts.reference_length)


def _narrow_decoder(lm: str | Path, config: TrainConfig) -> Any:
    from cortext.decoding import Decoder  # the search is only loaded where there are words to find

    return Decoder.from_dir(lm, config.val_wer_options)


def write_logits(folder: Path, split: PackedSplit, results: list[TrialResult]) -> None:
    """A file a trial, `<session>_b<block>_t<trial>.npy`, float16 [P, V] in the model's order.

    An older folder goes.
    """
    with disk_errors(folder), atomic_directory(folder) as temporary:
        for i, result in enumerate(results):
            name = f"{split.session(i)}_b{split.block_N[i]:02d}_t{split.trial_N[i]:03d}.npy"
            assert result.logits_PV is not None
            np.save(temporary / name, result.logits_PV)
