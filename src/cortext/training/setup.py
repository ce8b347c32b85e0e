"""Setup of a run: its recording days, its trials, its model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from cortext.arguments import check_type
from cortext.data import Dataset
from cortext.data.checks import PATCH, Problem, frames_needed
from cortext.data.conventions import Conventions
from cortext.data.label_sentences import label_notes
from cortext.data.packed import PackedDataset, PackedSplit
from cortext.data.sampler import DayBalancedSampler
from cortext.data.trial import BIN_MS, Trial
from cortext.errors import ConfigError, DataError, nearest
from cortext.models import AcousticModel, build_model
from cortext.models.card import CTC, PRETRAIN, Smoothing
from cortext.models.registry import empty_model
from cortext.text.inventory import Inventory
from cortext.training.config import DatasetConfig, TrainConfig
from cortext.training.init_from import start_from
from cortext.training.loss import trial_name, unfit_labels
from cortext.training.participants.recordings import Recordings


class LearningModel(Protocol):
    """Properties that the model of one participant and the models of several have."""

    @property
    def network(self) -> Any:
        """The weights: `state_dict` and `load_state_dict`."""

    @property
    def inventory(self) -> Inventory:
        """Tokens, in the order of the logits."""

    @property
    def sessions(self) -> tuple[str, ...]:
        """Recording days."""

    @property
    def look_ahead_ms(self) -> float | None:
        """Milliseconds that a frame depends on after its patch; None for the whole trial."""

    @property
    def n_parameters(self) -> int:
        """Number of parameters."""


def notes(config: TrainConfig, data: PackedDataset | Recordings) -> list[str]:
    """Return notes on unusual bins, features and labels of a new run's data, a line each."""
    of = data.of if isinstance(data, Recordings) else {"": data}
    found = [
        f"note: {name}{': ' if name else ''}{line}"
        for name, each in of.items()
        for line in (*each.notes, *label_notes(each))
    ]
    about_bins = _bins_note(config, data.conventions)
    return found if about_bins is None else [about_bins, *found]


def _bins_note(config: TrainConfig, conventions: Conventions) -> str | None:
    """Return a note where bins are not of 20 ms and the patches are the published ones in bins.

    It is no error: nobody knows the best patches of such recordings yet.
    """
    bin_ms, model = conventions.bin_ms, config.model
    published = (PATCH.size, PATCH.stride)
    if bin_ms == BIN_MS or (model.patch_size, model.patch_stride) != published:
        return None
    size, stride = (max(1, round(bins * BIN_MS / bin_ms)) for bins in published)
    wanted = f"model.patch_size={size} model.patch_stride={stride}"
    transforms = config.dataset.data_transforms
    if transforms.smooth_data:
        std = transforms.smooth_kernel_std * BIN_MS / bin_ms
        wanted += f" dataset.data_transforms.smooth_kernel_std={std:g}"
    return (
        f"note: bins last {bin_ms:g} ms, so a patch covers {PATCH.size * bin_ms:g} ms, one every"
        f" {PATCH.stride * bin_ms:g} ms; for about the published {PATCH.size * BIN_MS:g} and"
        f" {PATCH.stride * BIN_MS:g} ms set {wanted}"
    )


def with_labels(data: PackedDataset) -> PackedDataset:
    """Return the data without the training trials that have no label.

    Raises:
        DataError: If no training trial has one.
    """
    train = data.split("train")
    labelled = np.flatnonzero(train.n_labels_N)
    if not labelled.size:
        problem = "no training trial has a label"
        raise DataError(problem, where=data.path, fix="give trials with their sentences")
    if labelled.size == len(train):
        return data
    splits = {name: data.split(name) for name in data.splits}
    return data.showing(splits | {"train": train.take(labelled)})


def fitting(
    split: PackedSplit,
    n_patches: Callable[[int], int],
    longest_cut: int,
    left_out: list[Problem],
) -> PackedSplit:
    """Return a split without the trials that are too short for their labels.

    Args:
        split: The trials.
        n_patches: Function from bins to frames of logits.
        longest_cut: Most bins that augmentation cuts off.
        left_out: Gets the reason for each trial that is left out.

    Raises:
        DataError: Where no trial is left.
    """
    unfit = unfit_labels(split, n_patches, longest_cut)
    for i, frames in unfit.items():
        name = trial_name(split, i)
        left_out.append(Problem(str(split.path), name, "n_time_steps", too_short(*frames)))
    if len(unfit) == len(split):
        problem = f"every trial of the {split.name} split is too short for its label"
        raise DataError(problem, where=split.path, fix="lower random_cut or the patches")
    return split.take(np.setdiff1d(np.arange(len(split)), list(unfit))) if unfit else split


def lengths_for(
    config: TrainConfig, data: Dataset | PackedDataset
) -> Callable[[Trial, str], str | None]:
    """Return the function that says why a trial is too short to be trained with a configuration.

    Args:
        config: The configuration.
        data: The recordings.
    """
    subset = config.dataset.feature_subset
    sizes = {
        "n_features": data.n_features if subset is None else len(subset),
        "n_days": 1,
        "n_classes": len(data.conventions.inventory),
    }
    network: Any = empty_model(config.model, **sizes)  # its weights are not needed
    if network is None:
        network = build_model(config.model, **sizes)

    def why(trial: Trial, split: str) -> str | None:
        if trial.phoneme_ids is None:
            return None
        cut = config.dataset.data_transforms.longest_cut if split == "train" else 0
        available, needed = network.n_patches(trial.n_bins - cut), frames_needed(trial.phoneme_ids)
        return too_short(available, needed) if available < needed else None

    return why


def too_short(available: int, needed: int) -> str:
    """Return that a trial has fewer frames than its label needs."""
    return (
        f"{available} frames are left after augmentation for a label that needs {needed};"
        f" training leaves the trial out with --skip-bad"
    )


def training_sessions(config: DatasetConfig, data: PackedDataset) -> tuple[str, ...]:
    """Return the recording days in the order of the day layers.

    Raises:
        ConfigError: For a day that the data lack, or that is named twice.
    """
    sessions = tuple(config.sessions or data.sessions)
    for name in sessions:
        if name not in data.sessions:
            raise ConfigError(
                f"dataset.sessions names {name!r}, which the data lack;"
                f" {nearest(name, data.sessions)}"
            )
    if len(set(sessions)) != len(sessions):
        raise ConfigError("dataset.sessions names a session twice; name each once")
    return sessions


def training_splits(
    config: DatasetConfig, data: PackedDataset, sessions: tuple[str, ...]
) -> tuple[PackedSplit, PackedSplit]:
    """Return the trials to train on and the trials to validate on.

    Data without a validation split give a share of the training trials for it.

    Args:
        config: Selection of the trials.
        data: The recordings.
        sessions: Recording days of the run, in the order of the day layers.

    Raises:
        ConfigError: If `dataset_probability_val` does not fit the sessions.
        DataError: If one of the two has no trials.
    """
    validated = sessions
    if (chances := config.dataset_probability_val) is not None:
        if len(chances) != len(sessions) or not set(chances) <= {0, 1}:
            problem = (
                f"dataset.dataset_probability_val has {len(chances)} values for {len(sessions)}"
                " sessions"
            )
            raise ConfigError(f"{problem}; one each is needed, 0 or 1")
        validated = tuple(name for name, chance in zip(sessions, chances, strict=True) if chance)
    if "val" in data.splits:
        return _select(config, data, sessions, "train"), _select(config, data, validated, "val")
    whole = _select(config, data, sessions, "train")
    held_out = _held_out(whole, config.test_percentage, config.seed)
    validates = held_out & np.isin(whole.day_N, [data.sessions.index(name) for name in validated])
    if not validates.any() or held_out.all():
        problem = (
            f"there is no validation split, and dataset.test_percentage is {config.test_percentage}"
        )
        raise DataError(
            problem, where=data.path, fix="give more trials, or a share between 0 and 1"
        )
    return whole.take(np.flatnonzero(~held_out)), whole.take(np.flatnonzero(validates))


def day_layers(data: PackedDataset, sessions: tuple[str, ...]) -> np.ndarray:
    """Return int64, the position among `sessions` of each of the data's days; -1 for none."""
    return np.array([sessions.index(name) if name in sessions else -1 for name in data.sessions])


def batch_sampler(
    config: DatasetConfig, split: PackedSplit, layer_of_day: np.ndarray, n_days: int
) -> DayBalancedSampler:
    """Return the sampler that assigns the trials of a split to training batches.

    Args:
        config: Batch size, days of a batch, seed and bands of trial length.
        split: The training trials.
        layer_of_day: int64, the day layer of each session of the split (-1: none).
        n_days: Number of day layers.
    """
    return DayBalancedSampler(
        layer_of_day[split.day_N],
        config.batch_size,
        config.days_per_batch,
        config.seed,
        config.must_include_days,
        split.n_bins_N,
        config.length_buckets,
        n_days=n_days,
    )


def _held_out(split: PackedSplit, share: float, seed: int) -> np.ndarray:
    """Return bool [N]: a random share of each day's trials, rounded up, but never all of them."""
    held_out = np.zeros(len(split), dtype=bool)
    for day in np.unique(split.day_N).tolist():
        trials = np.flatnonzero(split.day_N == day)
        count = min(int(np.ceil(share * len(trials))), len(trials) - 1)
        # One generator per day: more trials of one day change nothing for the others.
        held_out[np.random.default_rng((seed, day)).permutation(trials)[:count]] = True
    return held_out


def _select(
    settings: DatasetConfig, data: PackedDataset, sessions: tuple[str, ...], name: str
) -> PackedSplit:
    known = [session for session in sessions if session in data.sessions]
    split = data.split(name).select(
        sessions=known, bad_trials=settings.bad_trials_dict, feature_subset=settings.feature_subset
    )
    if not len(split):
        problem = f"the {name} split has no trials after dataset.sessions and bad_trials_dict"
        raise DataError(problem, where=data.path, fix="name fewer bad trials or more sessions")
    return split


def new_model(
    config: TrainConfig,
    data: PackedDataset,
    sessions: tuple[str, ...],
    init_from: str | Path | None,
    inventory: Inventory | None = None,
) -> AcousticModel:
    """Build a model with fresh weights, or with those of a run.

    Args:
        config: The configuration of the run.
        data: The recordings.
        sessions: The recording days, in the order of the day layers.
        init_from: A run whose weights to start from; None for fresh ones. Day layers are matched by
            session name; those of new days start afresh. So does the read-in layer, where the run
            knows none of the days.
        inventory: Tokens, in the order of the logits; None for those of the data's labels.

    Raises:
        ConfigError: For a number of features that the data do not have.
        RunError: For weights that do not fit, and for a run on data of other conventions.
    """
    check_type(config, TrainConfig, "config", "a TrainConfig (read_train_config)")
    check_type(data, PackedDataset, "data", "packed data (open_packed)")
    subset = config.dataset.feature_subset
    wanted = config.model.n_input_features
    n_features = len(subset) if subset is not None else data.n_features
    if wanted not in (None, n_features):
        problem = f"model.n_input_features is {wanted}; the data have {n_features} features"
        raise ConfigError(problem, fix="leave it out, or use the matching data")
    conventions = data.conventions
    if inventory is not None:
        conventions = replace(conventions, inventory=inventory)
    torch.default_generator.manual_seed(config.seed)  # `torch.manual_seed` would seed the GPUs too
    network = build_model(
        config.model,
        n_features=n_features,
        n_days=len(sessions),
        n_classes=len(conventions.inventory),
    )
    transforms = config.dataset.data_transforms
    model = AcousticModel(
        network,
        sessions=sessions,
        n_features=data.n_features,
        conventions=conventions,
        smoothing=Smoothing(
            transforms.smooth_data, transforms.smooth_kernel_std, transforms.smooth_kernel_size
        ),
        feature_subset=subset,
    )
    if init_from is not None:
        task = PRETRAIN if config.task_name == CTC else config.task_name
        start_from(model, Path(init_from), task)
    return model


def freeze(network: nn.Module, trainable: list[str] | None) -> None:
    """Freeze all parameters whose names begin with none of `trainable`; None freezes none.

    Raises:
        ConfigError: If no parameter begins with one of them, or if no parameter is left that
            learns.
    """
    names = [name for name, _ in network.named_parameters()]
    for beginning in trainable or ():
        if not any(name.startswith(beginning) for name in names):
            first = sorted({name.partition(".")[0] for name in names})
            raise ConfigError(
                f"trainable names {beginning!r}, with which no parameter begins;"
                f" {nearest(beginning, first)}"
            )
    for name, parameter in network.named_parameters():
        kept = trainable is None or name.startswith(tuple(trainable))
        parameter.requires_grad_(parameter.requires_grad and kept)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        problem = "no parameter is left that learns"
        raise ConfigError(
            problem, fix="name more in trainable, or unfreeze the input layers or the GRU"
        )
