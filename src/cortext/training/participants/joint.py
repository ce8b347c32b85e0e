"""The models of several participants that share one body, as a run keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cortext.data.checks import Problem
from cortext.data.packed import PackedDataset
from cortext.errors import ConfigError
from cortext.models import AcousticModel
from cortext.models.inputs import DayLayers, of_participant
from cortext.text.inventory import Inventory
from cortext.training.config import DatasetConfig, TrainConfig
from cortext.training.participants.recordings import Recordings, own_source
from cortext.training.prepare import Setup, prepare
from cortext.training.progress import say
from cortext.training.setup import with_labels
from cortext.training.task import Task

BODY = "body"
"""Prefix of the names of shared weights."""
SINGLE = ("sessions", "feature_subset", "must_include_days", "dataset_probability_val")
"""Settings of the section `dataset` that speak of the days or features of one participant."""


class JointNetwork:
    """Networks that share all parameters but the day layers and read-in layers of a participant.

    Args:
        networks: Network of each participant, by name. All get the body of the first.
    """

    def __init__(self, networks: Mapping[str, nn.Module]) -> None:
        self.networks = dict(networks)
        first, *others = self.networks.values()
        for other in others:
            _share_body(first, other)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the weights, the shared ones once; see `key`."""
        return {
            key(participant, name): tensor
            for participant, network in self.networks.items()
            for name, tensor in network.state_dict().items()
        }

    def load_state_dict(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take over what `state_dict` returned; KeyError or RuntimeError for others."""
        for participant, network in self.networks.items():
            names = network.state_dict()
            network.load_state_dict({name: tensors[key(participant, name)] for name in names})

    @property
    def n_parameters(self) -> int:
        """Number of parameters, the shared ones counted once."""
        each = {id(p): p for network in self.networks.values() for p in network.parameters()}
        return sum(parameter.numel() for parameter in each.values())


def key(participant: str, name: str) -> str:
    """Return the name of a participant's weight among those of all: `body/...` or `NAME/...`."""
    return f"{participant if of_participant(name) else BODY}/{name}"


def _share_body(first: nn.Module, other: nn.Module) -> None:
    for name, module in first.named_children():
        if not of_participant(f"{name}."):
            setattr(other, name, module)
    for name, parameter in first.named_parameters(recurse=False):
        if not of_participant(name):
            setattr(other, name, parameter)


class JointModel:
    """The models of several participants, which share one body.

    Args:
        models: Model of each participant, by name.

    Attributes:
        of: Model of each participant, by name.
        network: The networks together.
    """

    def __init__(self, models: Mapping[str, AcousticModel]) -> None:
        self.of = dict(models)
        self.network = JointNetwork({name: model.network for name, model in models.items()})

    @property
    def inventory(self) -> Inventory:
        """Tokens, in the order of the logits."""
        return next(iter(self.of.values())).inventory

    @property
    def look_ahead_ms(self) -> float | None:
        """Milliseconds that a frame depends on after its patch; None for the whole trial."""
        return next(iter(self.of.values())).look_ahead_ms

    @property
    def sessions(self) -> tuple[str, ...]:
        """Recording days of all participants, as `NAME/session`."""
        return tuple(f"{name}/{day}" for name, model in self.of.items() for day in model.sessions)

    @property
    def n_parameters(self) -> int:
        """Number of parameters, the shared ones counted once."""
        return self.network.n_parameters


@dataclass(frozen=True)
class JointSetup:
    """The models and the trials of a run of several participants.

    Attributes:
        model: The models with their first weights, on the CPU.
        of: Model and trials of each participant, by name.
    """

    model: JointModel
    of: dict[str, Setup]

    @property
    def n_unlabelled(self) -> int:
        """Training trials that were left out because they have no label."""
        return sum(setup.n_unlabelled for setup in self.of.values())

    @property
    def left_out(self) -> tuple[Problem, ...]:
        """The reasons for trials left out as too short for their labels."""
        return tuple(problem for setup in self.of.values() for problem in setup.left_out)

    def identity(self) -> dict[str, Any]:
        """Return the properties of the data that must be the same when the run is resumed."""
        each = {name: setup.identity() for name, setup in self.of.items()}
        counts = {name: sum(own[name] for own in each.values()) for name in ("n_train", "n_val")}
        return {"participants": each, **counts}


def prepare_all(
    config: TrainConfig,
    task: Task,
    data: Recordings,
    init_from: Path | None,
    shown: bool,
    *,
    skip_bad: bool = False,
) -> JointSetup:
    """Choose the trials of each participant and build their models.

    Args:
        config: The configuration of the run.
        task: Builds the models and checks the trials.
        data: The recordings.
        init_from: A run whose weights to start from; None for fresh ones.
        shown: Print notes for the user.
        skip_bad: Leave out trials that are too short for their labels.

    Raises:
        ConfigError, DataError, RunError: For settings, trials and weights that do not fit.
    """
    _check_bad_trials(config.dataset, data)
    setups = {}
    for name, dataset in data.of.items():
        settings = config.dataset
        n_days = _n_days(settings, dataset)
        if n_days < settings.days_per_batch:
            settings = replace(settings, days_per_batch=max(1, n_days))
            say(f"{name}: {n_days} days have training trials; its batches have {n_days}", shown)
        own = replace(config, dataset=settings)
        source = None if init_from is None else own_source(init_from, name)
        setups[name] = prepare(own, task, dataset, source, None, 1, skip_bad=skip_bad)
        if not isinstance(setups[name].model.network, DayLayers):
            what = f"model {config.model.kind!r} has no read-in layer"
            raise ConfigError(what, fix="train participants together with gru or transformer")
    model = JointModel({name: setup.model for name, setup in setups.items()})
    return JointSetup(model, setups)


def check_settings(config: TrainConfig) -> None:
    """Raise ConfigError for settings that several participants cannot be trained with."""
    inputs = getattr(config.model, "input_network", None)
    if getattr(inputs, "read_in", None) is None:
        what = "model.input_network.read_in is null, and there are several participants"
        raise ConfigError(what, fix="set the number of features that they share, such as 256")
    for name in SINGLE:
        if getattr(config.dataset, name) is not None:
            what = f"dataset.{name} is set, and there are several participants"
            raise ConfigError(what, fix="leave it out, or pack such data first")


def _check_bad_trials(settings: DatasetConfig, data: Recordings) -> None:
    """Raise ConfigError for bad trials of a day that more than one participant has."""
    for day in settings.bad_trials_dict or {}:
        owners = [name for name, dataset in data.of.items() if day in dataset.sessions]
        if len(owners) > 1:
            what = f"dataset.bad_trials_dict names {day}, a day of {' and '.join(owners)}"
            raise ConfigError(what, fix="rename the day of one, or pack without the bad trials")


def _n_days(settings: DatasetConfig, data: PackedDataset) -> int:
    """Return the number of days with labelled training trials."""
    train = with_labels(data).split("train").select(bad_trials=settings.bad_trials_dict)
    return len(np.unique(train.day_N))
