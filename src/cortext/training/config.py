"""Settings of a training run.

Names, structure and defaults are those of the published YAML.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from cortext.arguments import as_path, check_list
from cortext.config import (
    check_fields,
    from_mapping,
    load_config,
    overridden,
    read_mapping,
    with_overrides,
)
from cortext.errors import ConfigError, RunError, nearest, shown
from cortext.features import AugmentationConfig, augmentation_configs
from cortext.models import GRUConfig, model_config
from cortext.models.card import CTC, check_sessions
from cortext.registry import Registry
from cortext.settings import ABOVE_0, AT_LEAST_0, AT_LEAST_1, FROM_0_BELOW_1, Setting
from cortext.training.loss import loss_config
from cortext.training.release_settings import translate

RECIPES = Path(__file__).resolve().parents[1] / "configs"
"""The shipped recipes: YAML files whose stems are their names."""
MOST_TRIALS = 65_536
"""Most trials of a batch; also most pieces of a batch, and most bands of trial length."""
MOST_SEED = (1 << 63) - 1
"""Largest seed that torch and NumPy both take."""
_TRIALS = Setting(minimum=1, maximum=MOST_TRIALS)
_SEED = Setting(minimum=0, maximum=MOST_SEED)

TASKS = Registry("task")
"""The registered tasks, see `cortext.training.task`."""
register_task = TASKS.register
"""Decorator that registers a task of your own: `@register_task("name")`."""


@dataclass
class DatasetConfig:
    """Section `dataset`: the trials of a run, and their batches."""

    data_transforms: AugmentationConfig = field(default_factory=AugmentationConfig)
    """Augmentation and smoothing."""
    batch_size: Annotated[int, _TRIALS] = 64
    """Trials in a batch."""
    days_per_batch: Annotated[int, _TRIALS] = 4
    """Different recording days in a batch."""
    seed: Annotated[int, _SEED] = 1
    """Seed of the assignment of trials to batches."""
    must_include_days: list[int] | None = None
    """Days that every batch has trials of; null for none.

    A number is a position in the list of sessions; a negative one counts from the end.
    """
    feature_subset: list[int] | None = None
    """Numbers of the features that the model gets; null for all."""
    bad_trials_dict: dict[str, dict[Any, list[int]]] | None = None
    """Trials left out: `{session: {block: [trial, ...]}}`; null for none."""
    sessions: list[str] | None = None
    """Sessions to train on, in the order of the day layers; null for all that the data have."""
    length_buckets: Annotated[int, _TRIALS] = 1
    """Number of bands of trial length.

    The trials of a batch come from one band, which limits padding. 1 draws as the release does.
    """
    test_percentage: Annotated[float, Setting(minimum=0, maximum=100)] = 0.1
    """Share of each day's training trials held out for validation.

    Only used if the data have no validation split; the release ignores it.
    """
    dataset_probability_val: list[float] | None = None
    """For each of `sessions`, 1 if it is validated on and 0 if not; null for all."""
    augmentations: list[Any] = field(default_factory=list)
    """Registered augmentations (`kind` and its settings), applied in this order before
    smoothing. Those with `after_smoothing: true` follow it.
    """
    resident: Literal["auto", "device", "host"] = "auto"
    """Memory that holds the training trials.

    `device` keeps all on the model's device; `host` reads them batch by batch; `auto` takes the
    device if they fit into half of its free memory.
    """

    def __post_init__(self) -> None:
        check_fields(self, "dataset.")
        self.augmentations = augmentation_configs(self.augmentations)
        check_sessions(self.sessions or ())
        for block in (
            block for blocks in (self.bad_trials_dict or {}).values() for block in blocks
        ):
            try:
                int(block)
            except (TypeError, ValueError, OverflowError):
                what = f"dataset.bad_trials_dict names block {block!r}; a number is needed"
                raise ConfigError(what, fix="write {session: {block: [trial, ...]}}") from None


@dataclass
class TPUConfig:
    """Section `tpu`: settings that only matter if XLA compiles the training step."""

    length_shapes: Annotated[int, Setting(minimum=1, maximum=1_000)] = 6
    """Number of lengths that batches are padded to; the step is compiled once for each."""
    compilation_cache: str | None = "auto"
    """Directory in which compiled steps are kept for later runs.

    `auto` is ~/.cache/cortext/xla, null keeps none.
    """

    def __post_init__(self) -> None:
        check_fields(self, "tpu.")


@dataclass
class TrainConfig:
    """A training run."""

    model: Any = field(default_factory=GRUConfig)
    """The model; its key `kind` names one of the registered ones."""
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    """Selection of the trials, and their batches."""
    tpu: TPUConfig = field(default_factory=TPUConfig)
    """Training on a TPU."""
    task: Any = None
    """The task; its key `kind` names one of the registered ones. Null is CTC on phonemes."""

    num_training_batches: Annotated[int, AT_LEAST_1] = 120_000
    """Batches to train on."""
    lr_scheduler_type: Literal["cosine", "linear", "multistep"] = "cosine"
    """`cosine`: linear warm-up, then half a cosine down.

    `linear`: a straight line down, without warm-up. `multistep`: `lr_max` and `lr_max_day`,
    multiplied by `lr_gamma` at each batch of `lr_steps`, without warm-up.
    """
    lr_max: Annotated[float, ABOVE_0] = 0.005
    """Highest learning rate of everything but the day layers."""
    lr_min: Annotated[float, AT_LEAST_0] = 0.0001
    """Learning rate at the end of the decay."""
    lr_decay_steps: Annotated[int, AT_LEAST_1] = 120_000
    """Batch at which the decay ends."""
    lr_warmup_steps: Annotated[int, AT_LEAST_0] = 1_000
    """Batches of warm-up; the first has a learning rate of zero."""
    lr_max_day: Annotated[float, ABOVE_0] = 0.005
    """Highest learning rate of the day layers."""
    lr_min_day: Annotated[float, AT_LEAST_0] = 0.0001
    """Learning rate of the day layers at the end of their decay."""
    lr_decay_steps_day: Annotated[int, AT_LEAST_1] = 120_000
    """Batch at which the day layers' decay ends (the linear schedule uses `lr_decay_steps` for
    all).
    """
    lr_warmup_steps_day: Annotated[int, AT_LEAST_0] = 1_000
    """Batches of warm-up of the day layers."""
    lr_steps: list[int] = field(default_factory=list)
    """Batches at which the multistep schedule lowers the learning rates, in rising order.

    Other schedules refuse `lr_steps` and another `lr_gamma` than the default.
    """
    lr_gamma: Annotated[float, Setting(above=0, maximum=1)] = 0.1
    """Factor of the learning rates at each batch of `lr_steps`."""

    beta0: Annotated[float, FROM_0_BELOW_1] = 0.9
    """Decay of Adam's mean of the gradient."""
    beta1: Annotated[float, FROM_0_BELOW_1] = 0.999
    """Decay of Adam's mean of the squared gradient."""
    epsilon: Annotated[float, ABOVE_0] = 0.1
    """Added to Adam's denominator.

    The published 0.1 damps small gradients and belongs to the published rates.
    """
    weight_decay: Annotated[float, AT_LEAST_0] = 0.001
    """AdamW's weight decay; biases have none."""
    weight_decay_day: Annotated[float, AT_LEAST_0] = 0.0
    """Weight decay of the day layers."""
    grad_norm_clip_value: Annotated[float, AT_LEAST_0] = 10.0
    """Gradients with a larger norm are scaled down to it; 0 clips nothing."""
    seed: Annotated[int, _SEED] = 10
    """Seed of initial weights, dropout and augmentation."""
    loss: Any = None
    """The loss; its key `kind` names one of the registered ones. Null takes the model's own."""
    trainable: list[str] | None = None
    """Prefixes of the names of the parameters that learn.

    Null for all parameters that the model does not freeze.
    """
    gradient_accumulation_steps: Annotated[int, _TRIALS] = 1
    """Number of pieces that a batch is split into: the same gradient with less memory."""
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    """Precision of matrix products: bfloat16 or float32. The loss is float32.

    `auto` takes bfloat16 if the hardware multiplies it.
    """

    batches_per_train_log: Annotated[int, AT_LEAST_1] = 200
    """Batches from one line about training to the next."""
    batches_per_val_step: Annotated[int, AT_LEAST_1] = 2_000
    """Batches from one validation to the next; the run also ends with one."""
    batches_per_save: Annotated[int, AT_LEAST_0] = 0
    """Batches from one saved state to the next; 0 saves only at validations."""
    save_all_val_steps: bool = False
    """Keep the weights of every validation, under `checkpoints/`."""
    save_final_model: bool = False
    """Keep the last weights too, under `checkpoints/final`."""
    save_val_logits: bool = False
    """Write the logits of the best validation to `val_logits/`, one float16 array per trial."""
    best_metric: str | None = None
    """Metric by which the best weights are chosen: `val_per`, `val_wer` or `val_loss`.

    Other tasks than CTC have other metrics. Null takes the task's first, for CTC `val_per`.
    `val_loss` decides between equal values.
    """
    early_stopping: bool = False
    """Stop when `best_metric` no longer improves."""
    early_stopping_val_steps: Annotated[int, AT_LEAST_1] = 20
    """Validations without improvement after which training stops."""
    val_wer_trials: Annotated[int, AT_LEAST_0] = 50
    """Number of validation trials, evenly spread, whose words a validation decodes.

    Only used with a language model.
    """
    val_wer_options: dict[str, Any] = field(default_factory=lambda: {"max_active": 30, "nbest": 1})
    """Decoder options of validations: a narrow search, which takes little time."""

    def __post_init__(self) -> None:
        check_fields(self)
        self.model = model_config(self.model)
        self.loss = None if self.loss is None else loss_config(self.loss)
        self.task = None if self.task is None else TASKS.config(self.task, "task")
        metrics = TASKS[self.task_name].metrics
        if self.best_metric is None:
            self.best_metric = metrics[0]
        if self.best_metric not in metrics:
            known = ", ".join(map(repr, metrics))
            raise ConfigError(f"best_metric is {self.best_metric!r}; one of {known} is needed")
        _check_lr_steps(self)
        _check_masks(self)

    @property
    def metric(self) -> str:
        """`best_metric`, after null has been replaced by the task's first metric."""
        assert self.best_metric is not None
        return self.best_metric

    @property
    def task_name(self) -> str:
        """The registered name of the task."""
        return CTC if self.task is None else str(self.task.kind)


def _check_lr_steps(config: TrainConfig) -> None:
    """Raise ConfigError if the settings of the multistep schedule are out of range."""
    steps = config.lr_steps
    if any(low >= high for low, high in itertools.pairwise([0, *steps])):
        raise ConfigError(f"lr_steps is {steps}; numbers of batches must rise from 1")
    if config.lr_scheduler_type == "multistep" and not steps:
        what = "lr_scheduler_type is 'multistep' without lr_steps"
        raise ConfigError(what, fix="give the batches at which the rate falls, such as [60000]")


def _check_lr_steps_used(config: TrainConfig) -> None:
    """Raise ConfigError for settings of the multistep schedule that another one would ignore."""
    kind = config.lr_scheduler_type
    if kind == "multistep":
        return
    for name, default in (("lr_steps", []), ("lr_gamma", TrainConfig.lr_gamma)):
        if (value := getattr(config, name)) != default:
            raise ConfigError(
                f"{name} is {value}, which lr_scheduler_type {kind!r} does not use",
                fix=f"set lr_scheduler_type to 'multistep', or leave {name} out",
            )


def _check_masks(config: TrainConfig) -> None:
    """Raise ConfigError for masks of patches that are not those of the model.

    They would hide parts of its patches, from whose rest the model could infer them.
    """
    size = config.model.patch_size
    if size < 2 or size != config.model.patch_stride:
        return
    for number, augmentation in enumerate(config.dataset.augmentations):
        bins = getattr(augmentation, "patch_bins", 1)
        if bins > 1 and bins % size:
            what = (
                f"dataset.augmentations[{number}].patch_bins is {bins}, and model.patch_size {size}"
            )
            raise ConfigError(what, fix=f"set patch_bins to {size}")


def read_train_config(
    config: TrainConfig | Mapping[str, Any] | str | Path,
    overrides: Iterable[str] = (),
    cls: type[TrainConfig] = TrainConfig,
) -> TrainConfig:
    """Return the configuration that an object, a mapping, a YAML file or a shipped recipe holds.

    The file may be the release's `rnn_args.yaml`, or the `args.yaml` of its checkpoints. One
    warning names the settings of the file that have no effect here.

    Args:
        config: A configuration, a mapping of its fields, a path, or the name of a recipe such as
            `gru` or `tiny`.
        overrides: `key=value` changes of the settings.
        cls: The dataclass to read the file into.

    Raises:
        ConfigError: For an unknown name or setting.
    """
    overrides = list(check_list(overrides, "overrides", "a list of 'key=value' texts"))
    if isinstance(config, TrainConfig):
        changed = with_overrides(config, overrides)
        # Runs that were adapted keep the steps of their source in their settings, without use.
        if (changed.lr_steps, changed.lr_gamma) != (config.lr_steps, config.lr_gamma):
            _check_lr_steps_used(changed)
        return changed
    if isinstance(config, Mapping):
        path, given = Path("config"), config
    else:
        path = _file_or_recipe(as_path(config, "config"))
        given = read_mapping(path)
    mapping, notes = translate(given, path)
    if cls is TrainConfig and "speech" in mapping:
        what = "is the configuration of a speech LLM"
        raise ConfigError(what, where=path, fix="give it to cortext speech-llm train")
    settings = _with_overrides(cls, mapping, overrides, path)
    _check_lr_steps_used(settings)
    if notes:
        logging.getLogger(__name__).warning(shown(f"{path}: {'; '.join(notes)}"))
    return settings


def _file_or_recipe(path: Path) -> Path:
    """Return the path, or the file of the recipe of that name; raise ConfigError for neither."""
    if path.is_file():
        return path
    recipes = {recipe.stem: recipe for recipe in RECIPES.glob("*.yaml")}
    if path.parent == Path() and not path.suffix:
        if path.name in recipes:
            return recipes[path.name]
        raise ConfigError(
            f"no file and no recipe is called {path.name!r}; {nearest(path.name, recipes)}"
        )
    if path.exists():
        return path
    beside = [file for ending in ("yaml", "yml") for file in path.parent.glob(f"*.{ending}")]
    fix = nearest(str(path), [str(file) for file in beside]) if beside else "check the path"
    if path.stem in recipes and not fix.startswith("did you mean"):
        fix = f"did you mean the recipe {path.stem!r}?"
    raise ConfigError("no such file", where=path, fix=fix)


def _with_overrides(
    cls: type[TrainConfig], mapping: dict[Any, Any], overrides: list[str], path: Path
) -> TrainConfig:
    try:
        # Together: a setting of the file may be right only with an override, as `best_metric` is
        # with another task.
        return from_mapping(cls, overridden(mapping, overrides))
    except ConfigError as error:
        try:
            from_mapping(cls, mapping, where=path)
        except ConfigError as fault:
            if fault.what == error.what:
                raise fault from None  # it is the file's own, and names the file
        raise


def read_run_config(run: Path) -> TrainConfig:
    """Return the configuration of a run of `cortext train`.

    Raises:
        ConfigError: If the configuration cannot be read.
        RunError: For the run of a speech LLM.
    """
    path = run / "config.yaml"
    if "speech" in read_mapping(path):
        what = (
            "is the run of a speech LLM, which can neither be adapted nor written in the release's"
            " layout"
        )
        raise RunError(
            what,
            where=run,
            fix="train it on with cortext speech-llm train --init-from, or export it to onnx",
        )
    return load_config(path, TrainConfig)
