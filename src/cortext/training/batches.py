"""Training batches: drawn, read, augmented and smoothed, each a function of the seeds and its number alone.

Nothing remembers what was drawn before, so that a resumed run needs only the number of the next batch.
"""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from cortext.data.packed import PackedSplit
from cortext.data.sampler import DayBalancedSampler
from cortext.features import Augmentation, prepare

DROPOUT, AUGMENTATION = 1, 2  # independent streams of random numbers


def derived_seed(seed: int, stream: int, step: int) -> int:
    """A seed for torch that is independent for every stream and step."""
    return int(np.random.SeedSequence((seed, stream, step)).generate_state(1, np.uint64)[0] >> np.uint64(1))


@dataclass(frozen=True)
class TrainBatch:
    """A batch on the model's device, ready for it.

    x_BTC float32, day_B int64 (day layers), n_bins_B int64, labels_BU int64 (0-padded), n_labels_B int64;
    indices [B] int64: the trials' numbers in the split; days int64: the different day layers in it
    """

    x_BTC: torch.Tensor
    day_B: torch.Tensor
    n_bins_B: torch.Tensor
    labels_BU: torch.Tensor
    n_labels_B: torch.Tensor
    indices: np.ndarray
    days: np.ndarray


class Batches:
    """The batches of a split on a device.

    layer_of_day: int64, the day layer of each session of the split (-1: none)
    """

    def __init__(
        self, split: PackedSplit, layer_of_day: np.ndarray, transforms: Augmentation, device: torch.device
    ) -> None:
        self.split, self.layer_of_day, self.transforms, self.device = split, layer_of_day, transforms, device

    def batch(self, indices: np.ndarray, generator: torch.Generator | None = None) -> TrainBatch:
        """The trials of `indices`, smoothed, and augmented where there is a generator (on the same device)."""
        raw = self.split.batch(indices)
        layers = self.layer_of_day[raw.day_B]
        x_BTC = torch.from_numpy(raw.features_BTC).to(self.device)
        n_bins_B, labels_BU, n_labels_B, day_B = (
            torch.from_numpy(array).to(self.device) for array in (raw.n_bins_B, raw.labels_BU, raw.n_labels_B, layers)
        )
        x_BTC, n_bins_B = prepare(x_BTC, n_bins_B, self.transforms, generator)
        return TrainBatch(x_BTC, day_B, n_bins_B, labels_BU, n_labels_B, np.asarray(indices), np.unique(layers))

    def training(self, sampler: DayBalancedSampler, seed: int, first: int, end: int) -> Generator[TrainBatch]:
        """Augmented batches number `first` to `end - 1`; a thread prepares each while the one before is in use."""

        def load(step: int) -> TrainBatch:
            generator = torch.Generator(self.device).manual_seed(derived_seed(seed, AUGMENTATION, step))
            return self.batch(sampler.indices(step), generator)

        with ThreadPoolExecutor(1) as thread:
            ahead = thread.submit(load, first) if first < end else None
            for step in range(first, end):
                assert ahead is not None
                batch = ahead.result()
                ahead = thread.submit(load, step + 1) if step + 1 < end else None
                yield batch
