"""The settings of the published `rnn_args.yaml`, translated to cortext's.

The file belongs to the release of Card et al. (NEJM 2024), Neuroprosthetics-Lab/nejm-brain-to-text.
Both forms are read: the present one, and the one that the published weights were trained with,
which has `bidirectional` and `distributed_training`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from cortext.errors import ConfigError
from cortext.files import MOST_LEVELS
from cortext.text.inventory import RELEASE


@dataclass(frozen=True)
class ReleaseSetting:
    """A published setting that we do not have under the same name.

    Attributes:
        published: Value in the published file.
        instead: Option, file or fact that takes the setting's place here.
        other: Treatment of other values than the published one: `refused`, worth a `note`, or
            `free` (`instead` holds the value).
    """

    published: Any
    instead: str
    other: Literal["refused", "note", "free"]


ELSEWHERE: dict[str, ReleaseSetting] = {
    "model.bidirectional": ReleaseSetting(False, "the GRU reads forwards only", "refused"),
    "model.input_network.n_input_layers": ReleaseSetting(
        1, "there is one day layer; the release reads no other", "refused"
    ),
    "model.input_network.input_layer_sizes": ReleaseSetting(
        [512], "the number of features; the release ignores it", "free"
    ),
    "gpu_number": ReleaseSetting("1", "--device cuda:N", "free"),
    "distributed_training": ReleaseSetting(False, "start with torchrun", "note"),
    "mode": ReleaseSetting("train", "the command", "refused"),
    "use_amp": ReleaseSetting(True, "precision: bf16 for true, fp32 for false", "free"),
    "output_dir": ReleaseSetting("trained_models/baseline_rnn", "--out", "free"),
    "checkpoint_dir": ReleaseSetting("trained_models/baseline_rnn/checkpoint", "--out", "free"),
    "init_from_checkpoint": ReleaseSetting(
        False, "`cortext import checkpoint`, then --init-from", "refused"
    ),
    "init_checkpoint_path": ReleaseSetting(
        "None", "`cortext import checkpoint`, then --init-from", "free"
    ),
    "save_best_checkpoint": ReleaseSetting(True, "the best weights are always kept", "note"),
    "save_val_metrics": ReleaseSetting(True, "metrics.jsonl is always written", "note"),
    "log_individual_day_val_PER": ReleaseSetting(
        True, "val_per_by_session is always in metrics.jsonl", "note"
    ),
    "log_val_skip_logs": ReleaseSetting(
        False, "sessions left out of the validation are not logged one by one", "note"
    ),
    "save_val_data": ReleaseSetting(
        False, "the validation features are not copied; the data have them", "note"
    ),
    "dataset.neural_dim": ReleaseSetting(
        512, "the number of features is that of the data; the release ignores it", "free"
    ),
    "dataset.n_classes": ReleaseSetting(
        len(RELEASE), "the tokens are those of the data; leave it out for others", "refused"
    ),
    "dataset.max_seq_elements": ReleaseSetting(
        500, "labels may have any length; the release ignores it", "free"
    ),
    "dataset.num_dataloader_workers": ReleaseSetting(4, "one thread reads ahead", "free"),
    "dataset.loader_shuffle": ReleaseSetting(False, "batches are drawn at random anyway", "free"),
    "dataset.dataset_dir": ReleaseSetting("../data/hdf5_data_final", "--data", "free"),
}
"""Published settings that have another place here, by dotted key."""

COMMAND_LINE = ("gpu_number", "output_dir", "checkpoint_dir", "dataset.dataset_dir")
"""Settings that the command line gives here; a published file's values are ignored."""

SAME = (
    *(
        f"model.{name}"
        for name in ("n_input_features", "n_units", "n_layers", "rnn_dropout", "rnn_trainable")
    ),
    *("model.patch_size", "model.patch_stride"),
    *("model.input_network.input_trainable", "model.input_network.input_layer_dropout"),
    *(
        "num_training_batches",
        "lr_scheduler_type",
        "lr_max",
        "lr_min",
        "lr_decay_steps",
        "lr_warmup_steps",
    ),
    *("lr_max_day", "lr_min_day", "lr_decay_steps_day", "lr_warmup_steps_day"),
    *(
        "beta0",
        "beta1",
        "epsilon",
        "weight_decay",
        "weight_decay_day",
        "seed",
        "grad_norm_clip_value",
    ),
    *("batches_per_train_log", "batches_per_val_step", "batches_per_save"),
    *(
        "early_stopping",
        "early_stopping_val_steps",
        "save_all_val_steps",
        "save_final_model",
        "save_val_logits",
    ),
    *(
        f"dataset.{name}"
        for name in ("batch_size", "days_per_batch", "seed", "sessions", "dataset_probability_val")
    ),
    *(
        f"dataset.{name}"
        for name in ("must_include_days", "test_percentage", "feature_subset", "bad_trials_dict")
    ),
    *(
        f"dataset.data_transforms.{name}_std"
        for name in ("white_noise", "constant_offset", "random_walk")
    ),
    *("dataset.data_transforms.static_gain_std", "dataset.data_transforms.random_walk_axis"),
    *("dataset.data_transforms.random_cut", "dataset.data_transforms.smooth_data"),
    *("dataset.data_transforms.smooth_kernel_std", "dataset.data_transforms.smooth_kernel_size"),
)
"""Dotted keys with the same meaning here and in the release."""


def translate(mapping: Any, where: str | Path) -> tuple[Any, list[str]]:
    """Return a configuration file's mapping in our settings, and notes on ignored settings.

    Keys of `ELSEWHERE` are removed; all others stay. An unknown key is therefore still refused
    later, and a published file may also hold our settings. OmegaConf's `${key}` is replaced by the
    value of that key.

    Raises:
        ConfigError: For a value that cannot be used here, or a reference that cannot be resolved.
    """
    if not isinstance(mapping, Mapping):
        return mapping, []
    mapping = _References(mapping, where).resolved(mapping)
    elsewhere = {key: lookup(mapping, key, None) for key in ELSEWHERE if has(mapping, key)}
    notes = []
    for key, value in elsewhere.items():
        setting = ELSEWHERE[key]
        if value != setting.published and setting.other == "refused":
            raise ConfigError(
                f"{key} is {value!r}; only {setting.published!r} works: {setting.instead}",
                where=where,
            )
        if value != setting.published and setting.other == "note":
            notes.append(f"{key} is not followed: {setting.instead}")
        section, _, last = key.rpartition(".")
        del (lookup(mapping, section, None) if section else mapping)[last]
    if ignored := [key for key in COMMAND_LINE if key in elsewhere]:
        notes.insert(0, f"{', '.join(ignored)} give way to the command line")
    if "use_amp" in elsewhere:
        _set_precision(mapping, elsewhere["use_amp"], where)
    return mapping, notes


def lookup(mapping: Any, key: str, default: Any) -> Any:
    """Return the value of a dotted key.

    Args:
        mapping: Nested mappings.
        key: Names of the sections and of the setting, joined by dots.
        default: Value to return if a part of the key is absent.
    """
    for part in key.split("."):
        if not isinstance(mapping, Mapping) or part not in mapping:
            return default
        mapping = mapping[part]
    return mapping


def has(mapping: Any, key: str) -> bool:
    """Tell whether a mapping holds a dotted key."""
    return lookup(mapping, key, _ABSENT) is not _ABSENT


def assign(mapping: dict[str, Any], key: str, value: Any) -> None:
    """Set the value of a dotted key.

    Args:
        mapping: Nested mappings; missing sections are added.
        key: Names of the sections and of the setting, joined by dots.
        value: Value to set.
    """
    *sections, last = key.split(".")
    for section in sections:
        mapping = mapping.setdefault(section, {})
    mapping[last] = value


_ABSENT = object()
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_MOST_WRITTEN = 300_000


def _set_precision(mapping: dict[str, Any], use_amp: Any, where: str | Path) -> None:
    if not isinstance(use_amp, bool):
        raise ConfigError(f"use_amp is {use_amp!r}; true or false is needed", where=where)
    precision = "bf16" if use_amp else "fp32"
    if mapping.setdefault("precision", precision) != precision:
        problem = f"use_amp is {use_amp} and precision {mapping['precision']!r}"
        raise ConfigError(problem, where=where, fix="give only one of the two")


class _References:
    """Resolves the references `${key}` in a mapping.

    A few lines of references to references can stand for any number of values. The output is
    therefore counted and limited: each value, and each character that a reference puts into a text.
    """

    def __init__(self, root: Any, where: str | Path) -> None:
        self.root = root
        self.where = where
        self._n_written = 0

    def resolved(self, value: Any, path: tuple[str, ...] = (), level: int = 0) -> Any:
        """Return a value with its references resolved and all sections copied.

        Args:
            value: A section, a list or a plain value.
            path: The references that were followed to here.
            level: Depth of sections and references, from the root.
        """
        self._count(1, level)
        if isinstance(value, Mapping):
            return {key: self.resolved(item, path, level + 1) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolved(item, path, level + 1) for item in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        if whole := _REFERENCE.fullmatch(value):
            return self._referred(whole[1], path, level)
        return _REFERENCE.sub(
            lambda match: self._text(self._referred(match[1], path, level), level), value
        )

    def _referred(self, key: str, path: tuple[str, ...], level: int) -> Any:
        if key in path or (target := lookup(self.root, key, _ABSENT)) is _ABSENT:
            reason = "it refers to itself" if key in path else "there is no such key"
            self._refuse(f"${{{key}}} cannot be resolved: {reason}")
        return self.resolved(target, (*path, key), level + 1)

    def _text(self, value: Any, level: int) -> str:
        text = str(value)
        self._count(len(text), level)
        return text

    def _count(self, n_written: int, level: int) -> None:
        self._n_written += n_written
        if self._n_written > _MOST_WRITTEN:
            self._refuse(
                f"its references stand for more than {_MOST_WRITTEN:,} values and characters"
            )
        if level > MOST_LEVELS:
            self._refuse(f"its references and sections have more than {MOST_LEVELS} levels")

    def _refuse(self, problem: str) -> NoReturn:
        raise ConfigError(problem, where=self.where, fix="write the value itself")
