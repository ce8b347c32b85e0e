"""Tasks: the model, the loss, the validation and the saved files of a run.

The trainer and its loop know batches, steps and files; a task knows the rest. CTC on phonemes is
one task, the speech LLM another. A plug-in registers its own; a configuration chooses it with
`task: {kind: ...}`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from cortext.arguments import check_type
from cortext.data.packed import PackedDataset, PackedSplit
from cortext.errors import ConfigError
from cortext.models import MODELS, AcousticModel, save_model
from cortext.models.card import CTC
from cortext.plugins import is_own
from cortext.training.backend import Backend, DeviceSpec
from cortext.training.batches import Batches
from cortext.training.config import TASKS, TrainConfig, register_task
from cortext.training.loss import CTCConfig, Loss, build_loss, check_labels_fit, loss_kind
from cortext.training.setup import new_model
from cortext.training.validate import LossValidator, Validates, Validator


class Task(ABC):
    """The task of a run.

    It is built before anything is read or written. The trainer then calls its methods in the order
    given here; `save` after every validation that is the best so far.

    Args:
        config: The configuration of the run; the task's own settings are in `config.task`.
        device_spec: The device to train on.
        lm: A language-model directory; None for none.

    Attributes:
        Config: A registered task's dataclass of settings, with a field `kind`.
        metrics: Values that `best_metric` may have, the default first. `val_loss`, which decides
            ties, must be among them.
        loss_name: Name of `val_loss` in the summary.
        needs_labels: True if training trials without a label are left out.
        all_used: True if every parameter that learns has a gradient in every batch. Otherwise
            several processes that train together must search for the others, which takes time.
    """

    Config: ClassVar[type]
    metrics: ClassVar[tuple[str, ...]] = ("val_loss",)
    loss_name: ClassVar[str] = "loss"
    needs_labels: ClassVar[bool] = False
    all_used: bool = True

    def __init__(
        self, config: TrainConfig, device_spec: DeviceSpec, lm: str | Path | None = None
    ) -> None:
        self.config = config
        self.device_spec = device_spec
        self.lm = lm

    def check(self) -> None:
        """Raise ConfigError for settings that exclude each other, or that have no effect."""
        name = self.config.task_name
        if self.lm is not None:
            raise ConfigError(f"task {name!r} uses no language model", fix="leave out --lm")
        if self.config.loss is not None:
            raise ConfigError(f"task {name!r} has a loss of its own", fix="leave out loss")
        if self.config.save_val_logits:
            problem = f"task {name!r} keeps no logits of validations"
            raise ConfigError(problem, fix="leave out save_val_logits")

    @abstractmethod
    def new_model(
        self, data: PackedDataset, sessions: tuple[str, ...], init_from: str | Path | None
    ) -> AcousticModel:
        """Return the model with its first weights, on the CPU.

        Args:
            data: The recordings; both splits are in it.
            sessions: The recording days, in the order of the day layers.
            init_from: A run whose weights to start from; None for fresh ones.
        """

    def check_trials(  # noqa: B027 - not every task has something to check
        self, model: AcousticModel, train: PackedSplit, val: PackedSplit
    ) -> None:
        """Raise DataError for a trial that cannot be trained or validated on.

        Args:
            model: The model with its first weights.
            train: The training trials.
            val: The validation trials.
        """

    @abstractmethod
    def loss(self, model: AcousticModel, split: PackedSplit) -> Loss:
        """Return the loss of batches of a split; their `indices` are positions in it."""

    def validator(self, model: AcousticModel, batches: Batches, backend: Backend) -> Validates:
        """Return the validator of the run.

        By default it takes the mean over trials of each value that the loss gives.

        Args:
            model: The model that learns.
            batches: Batches of the validation split.
            backend: The backend that takes the steps.
        """
        return LossValidator(
            batches, self.loss(model, batches.split), self.config.dataset.batch_size
        )

    def identity(self) -> dict[str, Any]:
        """Return the task's values that must be the same when the run is resumed, as JSON types."""
        return {}

    def save(self, model: AcousticModel, folder: Path) -> str:
        """Write the best model into the run directory; return the checksum of its weights."""
        return save_model(model, folder)


@dataclass
class CTCTaskConfig:
    """Section `task` for `kind: ctc`."""

    kind: Literal["ctc"] = "ctc"
    """Name of the task."""


@register_task(CTC)
class CTCTask(Task):
    """The tokens of the labels by connectionist temporal classification, the default task.

    With a language model, validations also count word errors.
    """

    Config: ClassVar[type] = CTCTaskConfig
    metrics: ClassVar[tuple[str, ...]] = ("val_per", "val_wer", "val_loss")
    loss_name: ClassVar[str] = "CTC loss"
    needs_labels: ClassVar[bool] = True

    def __init__(
        self, config: TrainConfig, device_spec: DeviceSpec, lm: str | Path | None = None
    ) -> None:
        check_type(config, TrainConfig, "config", "a TrainConfig")
        super().__init__(config, device_spec, lm)
        kind = config.model.kind
        usual = loss_kind(config.loss, kind) == loss_kind(None, kind)
        self.all_used = usual and not is_own(MODELS[kind])

    def check(self) -> None:
        """See `Task`."""
        if self.lm is None and self.config.best_metric == "val_wer":
            problem = "best_metric is 'val_wer', which needs a language model"
            raise ConfigError(problem, fix="give --lm or another metric")
        if isinstance(self.config.loss, CTCConfig):
            self.config.loss.check_model(self.config.model)

    def new_model(
        self, data: PackedDataset, sessions: tuple[str, ...], init_from: str | Path | None
    ) -> AcousticModel:
        """See `Task`."""
        return new_model(self.config, data, sessions, init_from)

    def check_trials(self, model: AcousticModel, train: PackedSplit, val: PackedSplit) -> None:
        """See `Task`: CTC gives inf for a label that is longer than its frames allow."""
        check_all_labels_fit(self.config, model, train, val)

    def loss(self, model: AcousticModel, split: PackedSplit) -> Loss:
        """See `Task`."""
        return build_loss(self.config.loss, self.config.model.kind, model.inventory)

    def validator(self, model: AcousticModel, batches: Batches, backend: Backend) -> Validator:
        """See `Task`."""
        return Validator(batches, model.inventory, self.config, self.lm, language=model.language)


def check_all_labels_fit(
    config: TrainConfig, model: AcousticModel, train: PackedSplit, val: PackedSplit
) -> None:
    """Raise DataError for a trial whose label does not fit into its frames after augmentation.

    Args:
        config: The augmentation, which may cut bins off training trials.
        model: The model, which gives the frames.
        train: The training trials.
        val: The validation trials, which are not augmented.
    """
    check_labels_fit(train, model.network.n_patches, config.dataset.data_transforms.longest_cut)
    check_labels_fit(val, model.network.n_patches)


def build_task(config: TrainConfig, device_spec: DeviceSpec, lm: str | Path | None) -> Task:
    """Return the task that the configuration names; CTC if it names none.

    Args:
        config: The configuration of the run.
        device_spec: The device to train on.
        lm: A language-model directory; None for none.
    """
    task: Task = TASKS[config.task_name](config, device_spec, lm)
    return task
