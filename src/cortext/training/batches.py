"""Training batches: drawn, read, augmented and smoothed.

A batch depends on the seeds and on its number alone, so that a resumed run needs only the number of
the next batch. Several processes that share a batch give the same result as one: each draws the
noise of the whole batch and keeps its own trials.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from cortext.cuda import kernels
from cortext.data.packed import PackedSplit
from cortext.data.sampler import DayBalancedSampler
from cortext.features import AugmentationConfig, Augmenter, prepare
from cortext.memory import to_device
from cortext.training.memory import ResidentTrials

# Independent streams of random numbers.
DROPOUT = 1
AUGMENTATION = 2


def derived_seed(seed: int, stream: int, step: int) -> int:
    """Return a seed for torch.

    Args:
        seed: Seed of the run.
        stream: Stream of random numbers: `DROPOUT` or `AUGMENTATION`.
        step: Number of the batch.

    Returns:
        Seed of 63 bits, independent for every seed, stream and step.
    """
    return int(
        np.random.SeedSequence((seed, stream, step)).generate_state(1, np.uint64)[0] >> np.uint64(1)
    )


@dataclass(frozen=True)
class TrainBatch:
    """A batch, ready for the model.

    The lengths lie on the host, where CUDA's CTC wants them; the other tensors lie on the model's
    device.

    Attributes:
        x_BTC: float32 features.
        day_B: int64 day layers.
        n_bins_B: int64 bins of each trial, on the host.
        n_patches_B: int64 frames of logits of each trial, on the host.
        labels_BU: int64 labels, padded with 0.
        n_labels_B: int64 lengths of the labels, on the host.
        indices: int64 [B], the trials' numbers in the split.
        days: int64, the different day layers in the whole batch.
        participant: Name of the participant, where several train together.
    """

    x_BTC: torch.Tensor
    day_B: torch.Tensor
    n_bins_B: torch.Tensor
    n_patches_B: torch.Tensor
    labels_BU: torch.Tensor
    n_labels_B: torch.Tensor
    indices: np.ndarray
    days: torch.Tensor
    participant: str | None = None

    def __len__(self) -> int:
        return len(self.x_BTC)

    def part(self, first: int, count: int) -> TrainBatch:
        """Return every `count`-th trial from number `first` on, with the whole batch's days."""
        rows = slice(first, None, count)
        names = ("x_BTC", "day_B", "n_bins_B", "n_patches_B", "labels_BU", "n_labels_B", "indices")
        own = {name: getattr(self, name)[rows] for name in names}
        return TrainBatch(**own, days=self.days, participant=self.participant)


class Batches:
    """The batches of a split on a device.

    Args:
        split: The trials.
        layer_of_day: int64, the day layer of each session of the split (-1: none).
        transforms: Augmentation and smoothing.
        device: The device that batches are put on.
        n_patches: Function from bins to frames of logits.
        resident: The trials of the split on the device; None reads them batch by batch.
        extra: Augmentations beyond the release's.
        clear_padding: Zero the bins after each trial, for a model that fills a trial's last patch.
        participant: Name of the participant, where several train together.
    """

    def __init__(
        self,
        split: PackedSplit,
        layer_of_day: np.ndarray,
        transforms: AugmentationConfig,
        device: torch.device,
        n_patches: Callable[[Any], Any],
        resident: ResidentTrials | None = None,
        extra: Sequence[Augmenter] = (),
        *,
        clear_padding: bool = False,
        participant: str | None = None,
    ) -> None:
        self.split = split
        self.layer_of_day = layer_of_day
        self.transforms = transforms
        self.device = device
        self.n_patches = n_patches
        self.resident = resident
        self.extra = extra
        self.clear_padding = clear_padding
        self.participant = participant
        self.in_one_kernel = kernels().smoothing(device) if device.type == "cuda" else None

    def batch(
        self,
        indices: np.ndarray,
        generator: torch.Generator | None = None,
        part: tuple[int, int] = (0, 1),
    ) -> TrainBatch:
        """Return trials as a batch, smoothed, and augmented if a generator is given.

        Args:
            indices: int64 [B], positions in the split.
            generator: Random numbers for the augmentation, on the same device; None for none.
            part: Share of the trials to return: every `part[1]`-th from `part[0]` on.
        """
        rows = slice(part[0], None, part[1])
        layers = self.layer_of_day[self.split.day_N[indices]]
        own = np.asarray(indices)[rows]
        labels_BU, n_labels_B = self.split.labels_batch(own)
        n_bins_B = torch.from_numpy(self.split.n_bins_N[indices])
        x_BTC = self._features(indices, rows)
        x_BTC, n_bins_B = prepare(
            x_BTC,
            n_bins_B,
            self.transforms,
            generator,
            rows,
            self.extra,
            clear_padding=self.clear_padding,
            in_one_kernel=self.in_one_kernel,
        )
        return TrainBatch(
            x_BTC,
            self._put(layers[rows]),
            n_bins_B,
            self.n_patches(n_bins_B),
            self._put(labels_BU),
            torch.from_numpy(n_labels_B),
            own,
            self._put(np.unique(layers)),
            self.participant,
        )

    def _features(self, indices: np.ndarray, rows: slice) -> torch.Tensor:
        """Return float16 [B, T, C] on the device, padded to the longest trial of `indices`.

        Only `rows` hold their trials' features.
        """
        n_bins = int(self.split.n_bins_N[indices].max())
        if self.resident is not None:
            own_BTC = self.resident.features(indices[rows], n_bins)
        else:
            own_BTC = self._put(self.split.batch(indices[rows], n_bins).features_BTC)
        if len(own_BTC) == len(indices):
            return own_BTC
        x_BTC = own_BTC.new_zeros(len(indices), *own_BTC.shape[1:])
        x_BTC[rows] = own_BTC
        return x_BTC

    def _put(self, array: np.ndarray) -> torch.Tensor:
        return to_device(torch.from_numpy(array), self.device)

    def training(
        self,
        sampler: DayBalancedSampler,
        seed: int,
        first: int,
        end: int,
        part: tuple[int, int] = (0, 1),
    ) -> Generator[TrainBatch]:
        """Yield the augmented batches `first` to `end - 1`; see `drawn` and `ahead`.

        Args:
            sampler: Assigns trials to batches.
            seed: Seed of the run, for the augmentation.
            first: Number of the first batch.
            end: Number after that of the last batch.
            part: Share of each batch to return, see `batch`.
        """
        yield from ahead(
            lambda step: self.drawn(sampler, seed, step, part), first, end, self.device
        )

    def drawn(
        self, sampler: DayBalancedSampler, seed: int, step: int, part: tuple[int, int] = (0, 1)
    ) -> TrainBatch:
        """Return the augmented batch `step`; see `training`."""
        generator = torch.Generator(self.device).manual_seed(derived_seed(seed, AUGMENTATION, step))
        return self.batch(sampler.indices(step), generator, part)


def ahead(
    draw: Callable[[int], TrainBatch], first: int, end: int, device: torch.device
) -> Generator[TrainBatch]:
    """Yield the batches `first` to `end - 1`; a thread prepares each while one is in use.

    Args:
        draw: Makes the batch of a number on the device.
        first: Number of the first batch.
        end: Number after that of the last batch.
        device: The device of the batches.
    """
    on_gpu = device.type == "cuda"
    stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
    if stream is not None:  # resident trials may still be on their way
        stream.wait_stream(torch.cuda.current_stream(device))

    def load(step: int) -> tuple[TrainBatch, torch.cuda.Event | None]:
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            return draw(step), None if stream is None else stream.record_event()

    with ThreadPoolExecutor(1) as thread:
        following = thread.submit(load, first) if first < end else None
        for step in range(first, end):
            assert following is not None
            batch, prepared = following.result()
            following = thread.submit(load, step + 1) if step + 1 < end else None
            if prepared is not None:
                _hand_over(batch, prepared, device)
            yield batch


def _hand_over(batch: TrainBatch, prepared: torch.cuda.Event, device: torch.device) -> None:
    """Let the model's stream wait for the batch, and keep its memory until the stream is done."""
    current = torch.cuda.current_stream(device)
    current.wait_event(prepared)
    for tensor in (batch.x_BTC, batch.day_B, batch.labels_BU, batch.days):
        tensor.record_stream(current)
