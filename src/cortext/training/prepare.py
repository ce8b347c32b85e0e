"""Preparing a run with its task: trials, model and sampler; the same data when it is resumed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cortext.config import first_difference
from cortext.data.checks import Problem
from cortext.data.conventions import Conventions
from cortext.data.packed import PackedDataset, PackedSplit
from cortext.data.sampler import DayBalancedSampler
from cortext.errors import ConfigError, CortextError, RunError
from cortext.models import AcousticModel
from cortext.models.card import CTC
from cortext.models.participants import participant_folder
from cortext.training.config import TrainConfig
from cortext.training.distributed import own_random_numbers
from cortext.training.setup import (
    batch_sampler,
    day_layers,
    fitting,
    freeze,
    training_sessions,
    training_splits,
    with_labels,
)
from cortext.training.task import Task


@dataclass(frozen=True)
class Setup:
    """A run's model and trials.

    Attributes:
        model: The model with its first weights, on the CPU.
        train: The trials to train on.
        val: The trials to validate on.
        layer_of_day: int64, the day layer of each of the data's recording days (-1: none).
        sampler: Assigns trials to batches.
        data: The recordings that they are from.
        n_unlabelled: Training trials that were left out because they have no label.
        left_out: Why trials were left out that are too short for their labels.
    """

    model: AcousticModel
    train: PackedSplit
    val: PackedSplit
    layer_of_day: np.ndarray
    sampler: DayBalancedSampler
    data: PackedDataset
    n_unlabelled: int = 0
    left_out: tuple[Problem, ...] = ()

    def identity(self) -> dict[str, Any]:
        """Return the properties of the data that must be the same when the run is resumed."""
        data = self.data
        compared = replace(data.conventions, normalised=None, feature_range=None)
        conventions = compared.to_json()
        return {
            **({"conventions": conventions} if conventions else {}),
            "sessions": list(self.model.sessions),
            "n_features": data.n_features,
            "n_train": len(self.train),
            "n_val": len(self.val),
            "crc32": dict(data.checksums),
        }


def prepare(
    config: TrainConfig,
    task: Task,
    data: PackedDataset,
    init_from: str | Path | None,
    model: AcousticModel | None,
    n_processes: int,
    *,
    skip_bad: bool = False,
) -> Setup:
    """Choose a run's trials and build its model.

    Args:
        config: The configuration of the run.
        task: Builds the model and checks the trials.
        data: The recordings.
        init_from: A run whose weights to start from; None for fresh weights.
        model: A model to use as it is; None builds one.
        n_processes: Number of processes that share a batch.
        skip_bad: Leave out trials that are too short for their labels.

    Raises:
        ConfigError, DataError, RunError: For settings, trials and weights that do not fit.
    """
    settings = config.dataset
    if n_processes > settings.batch_size:
        problem = (
            f"{n_processes} processes share a batch of {settings.batch_size} trials; each needs one"
        )
        raise ConfigError(problem, fix="start fewer, or raise dataset.batch_size")
    sessions = training_sessions(settings, data) if model is None else model.sessions
    labelled = with_labels(data) if task.needs_labels else data
    train, val = training_splits(settings, labelled, sessions)
    if model is None:
        with own_random_numbers(torch.device("cpu")):
            model = task.new_model(data, sessions, init_from)
    _check_conventions(config, data, model)
    # model.json holds the task, so that commands for phonemes can name it when they refuse.
    model.task = config.task_name
    freeze(model.network, config.trainable)
    left_out: list[Problem] = []
    if skip_bad and task.needs_labels:
        cut = settings.data_transforms.longest_cut
        train = fitting(train, model.network.n_patches, cut, left_out)
        val = fitting(val, model.network.n_patches, 0, left_out)
    task.check_trials(model, train, val)
    layer_of_day = day_layers(data, sessions)
    sampler = batch_sampler(settings, train, layer_of_day, len(sessions))
    n_unlabelled = data.n_trials("train") - labelled.n_trials("train")
    return Setup(model, train, val, layer_of_day, sampler, data, n_unlabelled, tuple(left_out))


def _check_conventions(config: TrainConfig, data: PackedDataset, model: AcousticModel) -> None:
    """Raise DataError unless the model was made for such data.

    The outputs of a task other than CTC need not be the tokens of the labels.
    """
    conventions = model.conventions
    if config.task_name != CTC:
        conventions = replace(conventions, inventory=data.conventions.inventory)
    data.conventions.require(
        conventions,
        mine="the data",
        theirs="the model",
        where=data.path,
        fix="take a model of such data; a task of one's own gives it conventions=data.conventions",
    )


def check_same_data(before: dict[str, Any], now: dict[str, Any], run: Path) -> None:
    """Raise RunError unless a run is resumed with the data that it was begun with.

    Args:
        before: Identity of the data (`Setup.identity`) that the run has saved.
        now: Identity of the data that are given now.
        run: The run directory.
    """
    fix = "resume with the same data and language model"
    begun_with, given_now = (each.get("participants") or {} for each in (before, now))
    if begun_with.keys() != given_now.keys():
        begun_names, given_names = (
            f"participants {' and '.join(each)}" if each else "one participant"
            for each in (begun_with, given_now)
        )
        raise RunError(
            f"the run was begun with {begun_names}, now with {given_names}", where=run, fix=fix
        )
    for name in begun_with:
        check_same_data(begun_with[name], given_now[name], participant_folder(run, name))
    try:
        begun, given = (
            Conventions.from_json(each.get("conventions", {})) for each in (before, now)
        )
    except (AttributeError, TypeError, CortextError):
        problem = "the saved state does not say what data it was begun with"
        raise RunError(problem, where=run, fix="start another run") from None
    begun.require(given, mine="the run", theirs="the data", where=run, error=RunError, fix=fix)
    same = {"conventions": None, "participants": None}  # compared above
    if changed := first_difference(before | same, now | same):
        key, old, new = changed
        problem = f"the run was begun with {key} = {old!r}, now it is {new!r}"
        raise RunError(problem, where=run, fix=fix)
