"""Validation: losses, phoneme error rate over all and per day, and, with words, WER."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from cortext.data.packed import PackedSplit
from cortext.decoding.log_probs import greedy
from cortext.errors import RunError
from cortext.files import atomic_directory, disk_errors
from cortext.models import Output
from cortext.models.acoustic import NOT_FINITE
from cortext.text.inventory import Inventory
from cortext.text.language import EN, Language
from cortext.text.metrics import EditCounts, edit_counts
from cortext.training.batches import Batches, TrainBatch
from cortext.training.config import TrainConfig
from cortext.training.distributed import ALONE, Processes
from cortext.training.loss import Loss, ctc_loss, name_trials

Forward = Callable[[TrainBatch], Output]
"""Function from a batch to the model's output, in the run's precision and without a state."""


@dataclass(frozen=True)
class ValidatedTrial:
    """Results of one trial of a validation.

    Attributes:
        losses: Losses by name.
        phonemes: Counts of phoneme errors.
        text: Decoded sentence; None if no words were decoded for this trial.
        logits_PV: Logits float16 [P, V]; None if they are not kept.
    """

    losses: dict[str, float]
    phonemes: EditCounts
    text: str | None
    logits_PV: np.ndarray | None


def wer_trials(config: TrainConfig, n_trials: int) -> list[int]:
    """Return the numbers of the `val_wer_trials` trials, evenly spread, whose words are decoded."""
    trials: list[int] = (
        np.linspace(0, n_trials - 1, min(config.val_wer_trials, n_trials)).astype(int).tolist()
    )
    return trials


class Validates(Protocol):
    """Interface of a validator, which measures a model in training."""

    batches: Batches
    """Batches of the validation split."""

    def measure(self, forward: Forward, processes: Processes = ALONE) -> tuple[dict[str, Any], Any]:
        """Return metrics by name, and the results of the trials that they are made of.

        Smaller metrics are better; `val_loss` must be among them. Several processes share the
        trials, and each gets the whole result.
        """
        ...

    def write(self, results: Any, folder: Path) -> None:
        """Write the results of the best validation that the run keeps into its folder."""
        ...


class LossValidator:
    """A validator that takes the mean over trials of each value that a loss gives.

    Args:
        batches: Batches of the validation split.
        loss: A loss of trials of that split.
        batch_size: Most trials that go through the model together.
    """

    def __init__(self, batches: Batches, loss: Loss, batch_size: int) -> None:
        self.batches = batches
        self.loss = loss
        self.chunks = chunks_by_length(batches.split, batch_size)

    @torch.no_grad()
    def measure(
        self, forward: Forward, processes: Processes = ALONE
    ) -> tuple[dict[str, Any], dict[int, dict[str, float]]]:
        """See `Validates`; the metrics are `val_<name>`."""
        own: dict[int, dict[str, float]] = {}
        for indices in self.chunks[processes.rank :: processes.world]:
            losses = self.losses(forward, self.batches.batch(indices))
            for row, i in enumerate(indices.tolist()):
                own[i] = {name: float(loss_B[row]) for name, loss_B in losses.items()}
        by_trial = {i: values for part in processes.gather(own) for i, values in part.items()}
        names = next(iter(by_trial.values()))
        # In the order of the trials, so that the sum is the same with any number of processes.
        trials = [by_trial[i] for i in sorted(by_trial)]
        means = {f"val_{name}": float(np.mean([one[name] for one in trials])) for name in names}
        return means, by_trial

    def losses(self, forward: Forward, batch: TrainBatch) -> dict[str, torch.Tensor]:
        """Return the losses of a batch by name, float32 [B]."""
        output = forward(batch)
        return self.loss(lambda *_, **__: output, batch, 1.0)

    def write(self, results: Any, folder: Path) -> None:
        """See `Validates`: nothing is kept."""


ReadBatch = Callable[[Forward, TrainBatch], tuple[torch.Tensor, dict[str, torch.Tensor]]]
"""Function from a batch to its logits [B, P, V] and its losses by name, [B] each."""
FindTexts = Callable[[TrainBatch, np.ndarray, set[int]], dict[int, str]]
"""Function from a batch, its log-probabilities [B, P, V] and wanted trials to their sentences."""


class Validator:
    """The validator of CTC runs: losses, phoneme error rate and word error rate.

    The trials are smoothed with padding 'same', as in the release's validation during training.

    Args:
        batches: Batches of the validation split.
        inventory: The tokens, in the order of the logits.
        config: The configuration of the run.
        lm: Language-model directory for decoding words. Without it and without `texts` there is no
            WER.
        language: Language of the sentences.
        read: Gives logits and losses; None for `read_ctc`.
        texts: Decodes words; None for a narrow search with `lm`.
    """

    def __init__(
        self,
        batches: Batches,
        inventory: Inventory,
        config: TrainConfig,
        lm: str | Path | None = None,
        *,
        language: Language = EN,
        read: ReadBatch | None = None,
        texts: FindTexts | None = None,
    ) -> None:
        self.batches = batches
        self.inventory = inventory
        self.language = language
        self.keep_logits = config.save_val_logits
        self.chunks = chunks_by_length(batches.split, config.dataset.batch_size)
        self.wer_trials = set(wer_trials(config, len(batches.split)))
        self.read = read or read_ctc
        if texts is None and lm is not None and self.wer_trials:
            texts = NarrowSearch(lm, config, inventory, language)
        self.texts = texts

    @torch.no_grad()
    def measure(
        self, forward: Forward, processes: Processes = ALONE
    ) -> tuple[dict[str, Any], list[ValidatedTrial]]:
        """See `Validates`.

        Returns:
            `val_loss` (mean over trials), `val_per`, `val_per_by_session` and `val_wer` (None if
            no words are decoded); and the results of the trials, in the order of the split.
        """
        own: dict[int, ValidatedTrial] = {}
        for indices in self.chunks[processes.rank :: processes.world]:
            own |= self._chunk(forward, indices)
        by_trial: dict[int, ValidatedTrial] = {}
        for part in processes.gather(own):
            by_trial |= part
        results = [by_trial[i] for i in range(len(self.batches.split))]
        return self._metrics(results), results

    def write(self, results: list[ValidatedTrial], folder: Path) -> None:
        """See `Validates`: the logits, where the configuration asks for them."""
        if self.keep_logits:
            write_logits(folder / "val_logits", self.batches.split, results)

    def _chunk(self, forward: Forward, indices: np.ndarray) -> dict[int, ValidatedTrial]:
        batch = self.batches.batch(indices)
        split = self.batches.split
        logits_BPV, losses = self.read(forward, batch)
        losses_of = {name: loss_B.tolist() for name, loss_B in losses.items()}
        log_probs_BPV = logits_BPV.float().log_softmax(-1).cpu().numpy()
        texts = self.texts(batch, log_probs_BPV, self.wer_trials) if self.texts else {}
        results = {}
        for row, i in enumerate(indices.tolist()):
            n_patches = int(batch.n_patches_B[row])
            log_probs_PV = log_probs_BPV[row, :n_patches]
            if not np.isfinite(log_probs_PV).all():
                trial = name_trials(split, np.array([i]))
                problem = f"the model {NOT_FINITE} in the validation, in trial {trial}"
                raise RunError(
                    problem, fix="leave the trial out with dataset.bad_trials_dict, or lower lr_max"
                )
            labels_U = split.labels(i)
            assert labels_U is not None  # check_labels_fit has checked it
            phonemes = edit_counts(labels_U.tolist(), greedy(log_probs_PV, self.inventory))
            kept = logits_BPV[row, :n_patches].half().cpu().numpy() if self.keep_logits else None
            own_losses = {name: values[row] for name, values in losses_of.items()}
            results[i] = ValidatedTrial(own_losses, phonemes, texts.get(i), kept)
        return results

    def _metrics(self, results: list[ValidatedTrial]) -> dict[str, Any]:
        split = self.batches.split
        per_day = dict[int, EditCounts]()
        for day, result in zip(split.day_N.tolist(), results, strict=True):
            per_day[day] = per_day.get(day, EditCounts()) + result.phonemes
        words = [
            _word_errors(split.sentence(i), result.text, self.language)
            for i, result in enumerate(results)
        ]
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


def _word_errors(reference: str | None, text: str | None, language: Language) -> EditCounts | None:
    """Return the word errors of a text; None without a text."""
    if text is None:
        return None
    return edit_counts(
        language.normalize(reference or "").split(), language.normalize(text).split()
    )


def _rate(counts: EditCounts) -> float:
    return counts.errors / max(1, counts.reference_length)


def chunks_by_length(split: PackedSplit, size: int) -> list[np.ndarray]:
    """Return the trials in chunks of similar length, which need little padding."""
    order = np.argsort(split.n_bins_N, kind="stable")
    return [order[start : start + size] for start in range(0, len(order), size)]


def read_ctc(forward: Forward, batch: TrainBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the logits [B, P, V] of a batch, and its CTC loss; see `ReadBatch`."""
    logits_BPV = forward(batch).logits
    loss_B = ctc_loss(logits_BPV, batch.n_patches_B, batch.labels_BU, batch.n_labels_B)
    return logits_BPV, {"loss": loss_B}


class NarrowSearch:
    """A search for words with a language model, narrow enough for a validation."""

    def __init__(
        self, lm: str | Path, config: TrainConfig, inventory: Inventory, language: Language
    ) -> None:
        from cortext.decoding import Decoder  # only loaded where there are words to find

        self.decoder = Decoder.from_dir(lm, config.val_wer_options)
        self.decoder.lm.require(inventory, language, theirs="the data")
        self.inventory = inventory

    def __call__(
        self, batch: TrainBatch, log_probs_BPV: np.ndarray, wanted: set[int]
    ) -> dict[int, str]:
        """See `FindTexts`."""
        texts = {}
        for row, i in enumerate(batch.indices.tolist()):
            if i in wanted:
                own_PV = log_probs_BPV[row, : int(batch.n_patches_B[row])]
                nbest = self.decoder.decode(np.ascontiguousarray(own_PV), self.inventory)
                texts[i] = nbest[0].text
        return texts


def write_logits(folder: Path, split: PackedSplit, results: list[ValidatedTrial]) -> None:
    """Write the logits of a validation, one file per trial; an older folder is replaced.

    Args:
        folder: Directory of the files `<session>_b<block>_t<trial>.npy`, float16 [P, V], tokens in
            the model's order.
        split: The validation trials.
        results: Results of its trials, in the order of the split, with logits.
    """
    with disk_errors(folder), atomic_directory(folder) as temporary:
        for i, result in enumerate(results):
            name = f"{split.session(i)}_b{split.block_N[i]:02d}_t{split.trial_N[i]:03d}.npy"
            assert result.logits_PV is not None
            np.save(temporary / name, result.logits_PV)
