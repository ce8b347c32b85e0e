"""Batches as tf.data, of static shapes, augmented and smoothed in TensorFlow.

The sampler is torch's. A raw batch has float16 features as they are on the disk, and random seeds.
`prepare` augments with these seeds, inside the step on the accelerator or in the pipeline. Seeds
are functions of (seed, number of the batch, trial), so that a batch is the same wherever its trials
are computed, and a run can resume from any batch.

The models take, for B trials of T bins, C features and U label tokens:

    features float32 [B, T, C], day int32 [B], n_bins int32 [B], n_patches int32 [B] (frames of
    logits, 0: no trial),
    labels int32 [B, U] (0-padded), n_labels int32 [B]; and indices int64 [B], the trials' numbers
    in the split

In a raw batch features are float16 (float32 after registered augmentations). A raw batch that is to
be augmented also has seed int32 [B, 2] and cut int32 [B] (bins that are cut from the start).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import torch

from cortext.data.packed import PackedDataset, PackedSplit
from cortext.data.sampler import DayBalancedSampler
from cortext.errors import ConfigError
from cortext.features import AugmentationConfig, build_augmentations
from cortext.features.augment import follows_smoothing
from cortext.features.smooth import gaussian_kernel
from cortext.models.inputs import count_patches
from cortext.training.batches import AUGMENTATION, derived_seed
from cortext.training.config import TrainConfig
from cortext.training.setup import (
    batch_sampler,
    day_layers,
    training_sessions,
    training_splits,
    with_labels,
)
from cortext_tpu.shapes import Shapes

AHEAD = 2
"""Number of batches prepared ahead."""
GAIN, NOISE, OFFSET, WALK = range(4)  # independent streams of a trial's random numbers


class Batches:
    """The raw batches of a split.

    Attributes:
        split: The trials.
        layer_of_day: int64, the day layer of each session of the split.
        config: Configuration of the run.
        shapes: Lengths that batches are padded to, chosen for the same split.

    Raises:
        ConfigError: For an augmentation that mixes trials or follows smoothing.
    """

    def __init__(
        self,
        split: PackedSplit,
        layer_of_day: np.ndarray,
        config: TrainConfig,
        shapes: Shapes,
    ) -> None:
        self.split = split
        self.layer_of_day = layer_of_day
        self.config = config
        self.shapes = shapes
        self.extra = build_augmentations(config.dataset.augmentations)
        if any(map(follows_smoothing, self.extra)):
            problem = "an augmentation has after_smoothing: true; TensorFlow smooths last"
            raise ConfigError(problem, fix="use --backend torch, or leave it out")
        transforms = config.dataset.data_transforms
        if transforms.random_walk_std > 0 and transforms.random_walk_axis in (0, -3):
            problem = (
                "data_transforms.random_walk_axis is the axis of trials, which lie on different"
                " cores"
            )
            raise ConfigError(problem, fix="use -1 (features) or 1 (time)")

    def training(self, sampler: DayBalancedSampler, first: int, end: int) -> Any:
        """Make a dataset of raw training batches, which `prepare` augments.

        Args:
            sampler: Assigns trials to batches.
            first: Number of the first batch.
            end: Number after that of the last batch.
        """
        return self._dataset(first, end, lambda step: self.batch(sampler.indices(step), step))

    def in_order(self, size: int) -> Any:
        """Make a dataset of all trials in order, `size` a batch; trials of 0 patches fill it up."""
        every = np.arange(len(self.split))

        def numbered(number: int) -> dict[str, np.ndarray]:
            batch = self.batch(every[number * size :][:size])
            missing = size - len(batch["day"])
            return {
                name: np.pad(rows, [(0, missing)] + [(0, 0)] * (rows.ndim - 1))
                for name, rows in batch.items()
            }

        return self._dataset(0, -(-len(every) // size), numbered)

    def batch(self, indices: np.ndarray, step: int | None = None) -> dict[str, np.ndarray]:
        """Make a raw batch of trials; with a step, it has that step's seeds for `prepare`."""
        read = self.split.batch(indices, self.shapes.bins(indices))
        labels_BU = np.zeros((len(indices), self.shapes.labels), dtype=np.int32)
        labels_BU[:, : read.labels_BU.shape[1]] = read.labels_BU
        n_bins_B = read.n_bins_B
        features_BTC = read.features_BTC
        random = {}
        if step is not None:
            drawn = np.random.SeedSequence((self.config.seed, AUGMENTATION, step)).generate_state(
                2 * len(indices) + 1
            )
            cut = int(drawn[0]) % max(1, self.config.dataset.data_transforms.random_cut)
            n_bins_B = n_bins_B - cut
            random = {
                "seed": drawn[1:].view(np.int32).reshape(-1, 2),
                "cut": np.full(len(indices), cut),
            }
            features_BTC = self._augmented(features_BTC, read.n_bins_B, step)
        numbers = {
            "day": self.layer_of_day[read.day_B],
            "n_bins": n_bins_B,
            "n_patches": count_patches(self.config.model, n_bins_B),
            "labels": labels_BU,
            "n_labels": read.n_labels_B,
        }
        numbers = {name: values.astype(np.int32) for name, values in (numbers | random).items()}
        return {"features": features_BTC, "indices": np.asarray(indices, dtype=np.int64), **numbers}

    def _augmented(self, features_BTC: np.ndarray, n_bins_B: np.ndarray, step: int) -> np.ndarray:
        """Apply registered augmentations: in torch, hence on the host and before the release's."""
        if not self.extra:
            return features_BTC
        generator = torch.Generator().manual_seed(
            derived_seed(self.config.seed, AUGMENTATION, step)
        )
        x_BTC = torch.from_numpy(features_BTC.astype(np.float32))
        for augmentation in self.extra:
            x_BTC = augmentation(x_BTC, torch.from_numpy(n_bins_B), generator)
        return x_BTC.numpy()

    def _dataset(self, first: int, end: int, batch: Callable[[int], dict[str, np.ndarray]]) -> Any:
        """Make a dataset of `batch(first)` to `batch(end - 1)`, prepared ahead in threads."""
        example = batch(first)
        n_bins = self.shapes.all[0] if len(self.shapes.all) == 1 else None

        def load(number: Any) -> dict[str, Any]:
            types = [values.dtype for values in example.values()]
            tensors = tf.numpy_function(lambda i: list(batch(int(i)).values()), [number], types)
            for tensor, (name, values) in zip(tensors, example.items(), strict=True):
                tensor.set_shape(
                    (len(values), n_bins, values.shape[2]) if name == "features" else values.shape
                )
            return dict(zip(example, tensors, strict=True))

        return tf.data.Dataset.range(first, end).map(load, num_parallel_calls=AHEAD).prefetch(AHEAD)


def datasets(config: TrainConfig, data: PackedDataset) -> tuple[Any, Any]:
    """Make the datasets of training and validation for `fit` and `evaluate` of a Keras model.

    The batches are those of `cortext train` with the same settings, all padded to one length, so
    that every shape is static. Trials of 0 patches fill up the last batch of the validation.

    Raises:
        ConfigError: For settings that do not fit the data.
        DataError: If training or validation has no trials.
    """
    settings = config.dataset
    sessions = training_sessions(config.dataset, data)
    layer_of_day = day_layers(data, sessions)
    model = config.model

    def made(split: PackedSplit) -> Batches:
        shapes = Shapes(split, 1, model.patch_size, model.patch_stride)
        return Batches(split, layer_of_day, config, shapes)

    train, val = (made(split) for split in training_splits(settings, with_labels(data), sessions))
    sampler = batch_sampler(settings, train.split, layer_of_day, len(sessions))

    def ready(raw: Any) -> Any:
        return raw.map(
            lambda batch: prepare(batch, settings.data_transforms), num_parallel_calls=AHEAD
        ).prefetch(AHEAD)

    return ready(train.training(sampler, 0, config.num_training_batches)), ready(
        val.in_order(settings.batch_size)
    )


def prepare(raw: Mapping[str, Any], transforms: AugmentationConfig) -> dict[str, Any]:
    """Prepare a raw batch: augment it (if it has seeds), and smooth it.

    See `cortext.features.prepare`. Zeros at the end replace the bins that the cut takes from the
    start. The random numbers differ from torch's.
    """
    batch = {name: tensor for name, tensor in raw.items() if name not in ("seed", "cut")}
    x_BTC = tf.cast(raw["features"], tf.float32)
    if "seed" in raw:
        x_BTC = _augment(x_BTC, raw["seed"], raw["cut"][0], transforms)
    if transforms.smooth_data:
        x_BTC = _smooth(x_BTC, transforms)
    return batch | {"features": x_BTC}


def _augment(x_BTC: Any, seed_B2: Any, cut: Any, settings: AugmentationConfig) -> Any:
    """Apply gain, noise, offset, walk and cut in the release's order, with each trial's numbers."""
    n_trials, n_bins, n_features = x_BTC.shape

    def normal(stream: int, std: float, *shape: int) -> Any:
        seeds = [tf.random.fold_in(seed, stream) for seed in tf.unstack(seed_B2, n_trials)]
        return tf.stack([tf.random.stateless_normal(shape, seed, stddev=std) for seed in seeds])

    if settings.static_gain_std > 0:
        x_BTC += x_BTC @ normal(GAIN, settings.static_gain_std, n_features, n_features)
    if settings.white_noise_std > 0:
        x_BTC += normal(NOISE, settings.white_noise_std, n_bins, n_features)
    if settings.constant_offset_std > 0:
        x_BTC += normal(OFFSET, settings.constant_offset_std, 1, n_features)
    if settings.random_walk_std > 0:
        steps_BTC = normal(WALK, settings.random_walk_std, n_bins, n_features)
        x_BTC += tf.cumsum(steps_BTC, axis=settings.random_walk_axis)
    if settings.random_cut > 0:
        padded = tf.pad(x_BTC, [[0, 0], [0, settings.random_cut - 1], [0, 0]])
        x_BTC = tf.slice(padded, [0, cut, 0], [n_trials, n_bins, n_features])
    return x_BTC


def _smooth(x_BTC: Any, settings: AugmentationConfig) -> Any:
    """Smooth with padding `same`, tap by tap, because a TPU would convolve in bfloat16."""
    kernel_K = gaussian_kernel(settings.smooth_kernel_std, settings.smooth_kernel_size)
    before = (len(kernel_K) - 1) // 2
    n_bins = x_BTC.shape[1]
    x_BTC = tf.pad(x_BTC, [[0, 0], [before, len(kernel_K) - 1 - before], [0, 0]])
    smoothed_BTC = x_BTC[:, :n_bins] * kernel_K[0]
    for lag, tap in enumerate(kernel_K.tolist()[1:], start=1):
        smoothed_BTC += x_BTC[:, lag : lag + n_bins] * tap
    return smoothed_BTC
