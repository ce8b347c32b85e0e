"""The content of a checkpoint of the release, checked and translated. Nothing is trusted.

Every error is a RunError (a ConfigError for the arguments) that names the part that does not fit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cortext.config import from_mapping
from cortext.errors import ConfigError, RunError
from cortext.models import AcousticModel, build_model
from cortext.models.card import Smoothing
from cortext.text.inventory import RELEASE
from cortext.training.config import TrainConfig
from cortext.training.release_settings import lookup, translate
from cortext_published.release import layout
from cortext_published.release.untrusted import FIX

ARGUMENTS = "args.yaml"
MOST_STEPS = 1_000_000_000
"""Most batches that a checkpoint may claim; the published training took 120,000."""


@dataclass
class ReleaseExtras:
    """Content that only the release's checkpoints have, kept for exporting again.

    Attributes:
        arguments: Values of the settings in `ELSEWHERE`, by dotted key.
        groups: Groups of the optimiser at batch `step`, without their parameters.
        schedule: State of the schedule at batch `step`.
        metrics: `val_PER` and `val_loss` of the checkpoint.
        step: Batches done.
        moments: Moments of parameters that do not learn, as `<parameter>/<field>`.
    """

    arguments: dict[str, Any]
    groups: list[dict[str, Any]]
    schedule: dict[str, Any]
    metrics: dict[str, float]
    step: int
    moments: dict[str, torch.Tensor]


_SECTIONS = ("model_state_dict", "optimizer_state_dict", "scheduler_state_dict")


def configuration(arguments: Any, path: Path) -> tuple[TrainConfig, int]:
    """Return the settings, and the number of features of a recording. Raises ConfigError."""
    # A finished checkpoint no longer needs the one that its own training began with.
    if isinstance(arguments, dict):
        arguments = {
            key: value for key, value in arguments.items() if not str(key).startswith("init_")
        }
    config = from_mapping(TrainConfig, translate(arguments, path)[0], where=path)
    if (
        config.model.kind != "gru"
        or config.model.n_input_features is None
        or not config.dataset.sessions
    ):
        problem = "model.n_input_features and dataset.sessions of a GRU are needed"
        raise ConfigError(
            problem, where=path, fix="give the args.yaml that lies beside the checkpoint"
        )
    used = config.model.n_input_features
    subset = config.dataset.feature_subset
    n_features = used if subset is None else lookup(arguments, "dataset.neural_dim", None)
    if subset is None:
        return config, n_features
    if (
        not isinstance(n_features, int)
        or len(subset) != used
        or not all(0 <= f < n_features for f in subset)
    ):
        problem = (
            f"dataset.feature_subset has {len(subset)} of {n_features} features,"
            f" model.n_input_features is {used}"
        )
        raise ConfigError(
            f"{problem}; as many are needed, from 0 to dataset.neural_dim - 1", where=path
        )
    return config, n_features


def sections(content: Any) -> dict[str, Any]:
    """Return the checkpoint's mapping, after a check of its sections. Raises RunError."""
    for key in (*_SECTIONS, "val_PER"):
        if not isinstance(content, dict) or key not in content:
            raise RunError(f"has no {key}", fix=FIX)
        if key in _SECTIONS and not isinstance(content[key], dict):
            raise RunError(
                f"{key} is a {type(content[key]).__name__}; a mapping is needed", fix=FIX
            )
    return dict(content)


def model_of(config: TrainConfig, n_features: int, state: dict[Any, Any]) -> AcousticModel:
    """Return the model with the checkpoint's weights.

    Args:
        config: Settings, see `configuration`.
        n_features: Features of a recording.
        state: The checkpoint's section `model_state_dict`.

    Raises:
        RunError: For weights that do not fit the arguments.
    """
    sessions = config.dataset.sessions or []
    weights: dict[str, torch.Tensor] = {}
    for key, tensor in state.items():
        if (name := _plain_name(str(key))) in weights:
            raise RunError(f"holds {name} twice, with different prefixes", fix=FIX)
        weights[name] = tensor
    n_days = sum(name.startswith("day_weights.") for name in weights)
    if n_days != len(sessions):
        fix = "give the args.yaml that lies beside the checkpoint"
        raise RunError(
            f"has {n_days} day layers; {ARGUMENTS} names {len(sessions)} sessions", fix=fix
        )
    if config.model.n_layers > len(weights):
        raise RunError(
            f"has {len(weights)} tensors; {ARGUMENTS} says {config.model.n_layers} GRU layers",
            fix=FIX,
        )
    expected = layout.shapes(config.model, config.model.n_input_features, n_days, len(RELEASE))
    _check_tensors(weights, expected)
    network = _empty_network(config, n_days)
    network.load_state_dict(layout.stack_days(weights), assign=True)
    transforms = config.dataset.data_transforms
    return AcousticModel(
        network,
        sessions=sessions,
        n_features=n_features,
        inventory=RELEASE,
        smoothing=Smoothing(
            transforms.smooth_data, transforms.smooth_kernel_std, transforms.smooth_kernel_size
        ),
        feature_subset=config.dataset.feature_subset,
    )


def _plain_name(key: str) -> str:
    """Return the name without the prefixes of DataParallel and torch.compile."""
    while key.startswith(("module.", "_orig_mod.")):
        key = key.partition(".")[2]
    return key


def _check_tensors(tensors: Mapping[str, Any], expected: Mapping[str, tuple[int, ...]]) -> None:
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors or name not in expected:
            problem = (
                f"has no {name}, which" if name not in tensors else f"has {name}, which none of"
            )
            raise RunError(
                f"{problem} the model of {ARGUMENTS} has",
                fix="give the args.yaml that lies beside it",
            )
        _check_tensor(name, tensors[name], expected[name])


def _check_tensor(name: str, tensor: Any, shape: tuple[int, ...]) -> None:
    if (
        not isinstance(tensor, torch.Tensor)
        or tensor.dtype != torch.float32
        or tuple(tensor.shape) != shape
    ):
        is_tensor = isinstance(tensor, torch.Tensor)
        problem = (
            f"{tensor.dtype} {list(tensor.shape)}" if is_tensor else f"a {type(tensor).__name__}"
        )
        raise RunError(f"{name} is {problem}; torch.float32 {list(shape)} is needed", fix=FIX)
    if not bool(tensor.isfinite().all()):
        raise RunError(
            f"{name} has values that are not finite",
            fix="take a checkpoint from before the training broke",
        )


def _empty_network(config: TrainConfig, n_days: int) -> torch.nn.Module:
    """Return the network without memory for its weights."""
    with torch.device("meta"):
        n_features = config.model.n_input_features
        return build_model(
            config.model, n_features=n_features, n_days=n_days, n_classes=len(RELEASE)
        )


def optimizer_of(
    checkpoint: dict[str, Any], config: TrainConfig, model: AcousticModel
) -> tuple[dict[str, torch.Tensor], ReleaseExtras]:
    """Return the tensors of our optimiser's state, and the extras that have no place in it.

    Args:
        checkpoint: The checkpoint's mapping, see `sections`.
        config: Settings, see `configuration`.
        model: The checkpoint's model; its `requires_grad` marks the parameters that learn.

    Raises:
        RunError: For a state that is not that of the release's AdamW, or does not fit the model.
    """
    expected = layout.shapes(
        config.model, config.model.n_input_features, len(model.sessions), len(RELEASE)
    )
    groups, moments = _moments(checkpoint["optimizer_state_dict"], expected)
    schedule = {str(key): value for key, value in checkpoint["scheduler_state_dict"].items()}
    step = schedule.get("last_epoch")
    if type(step) is not int or not 0 <= step <= MOST_STEPS:
        raise RunError(
            f"scheduler_state_dict.last_epoch is {step!r}; the number of batches is needed", fix=FIX
        )
    given: list[str] = [key for key in ("val_PER", "val_loss") if key in checkpoint]
    metrics = {key: _metric(key, checkpoint[key]) for key in given}
    learns = {name: parameter.requires_grad for name, parameter in model.network.named_parameters()}
    learns |= {name: learns["day_weight"] for name in expected if name.startswith("day_")}
    frozen = {
        f"{n}/{field}": t
        for n, entry in moments.items()
        if not learns[n]
        for field, t in entry.items()
    }
    day_shapes = {
        name: shape for name, shape in expected.items() if name.startswith("day_") and learns[name]
    }
    state = layout.moments_to_ours(
        {name: entry for name, entry in moments.items() if learns[name]}, day_shapes
    )
    kept = ReleaseExtras({}, _plain(groups), _plain(schedule), metrics, step, frozen)
    return {f"optimizer/{name}": tensor for name, tensor in state.items()}, kept


def _metric(key: str, value: Any) -> float:
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_complex():
        value = value.item()
    if not isinstance(value, int | float) or not value >= 0:
        raise RunError(f"{key} is {value!r}; a number from 0 is needed", fix=FIX)
    return float(value)


def _moments(
    state: dict[str, Any], expected: dict[str, tuple[int, ...]]
) -> tuple[list[dict[str, Any]], dict[str, dict[str, torch.Tensor]]]:
    """Return the optimiser's groups without their parameters, and its moments by parameter.

    Raises RunError.
    """
    names = layout.by_group(list(expected))
    groups = state.get("param_groups")
    entries = state.get("state")
    if (
        not isinstance(entries, dict)
        or not isinstance(groups, list)
        or not all(map(_is_group, groups))
    ):
        raise RunError("optimizer_state_dict is not that of the release's AdamW", fix=FIX)
    numbers = [number for group in groups for number in group["params"]]
    sizes = {group["group_type"]: len(group["params"]) for group in groups}
    if sizes != {group: len(names[group]) for group in names} or list(sizes) != list(names):
        wanted = ", ".join(f"{len(names[group])} {group}" for group in names)
        raise RunError(
            f"the optimiser's groups are {sizes}; parameters in this order are needed: {wanted}",
            fix=FIX,
        )
    if numbers != list(range(len(expected))) or not set(entries) <= set(numbers):
        raise RunError("the optimiser's parameters are not numbered from 0", fix=FIX)
    moments = {}
    for number, name in enumerate(name for group in names.values() for name in group):
        if number not in entries:
            continue
        entry = entries[number]
        if not isinstance(entry, dict) or set(entry) != {"step", *layout.MOMENTS}:
            raise RunError(f"the optimiser's state of {name} is not that of AdamW", fix=FIX)
        for field, tensor in entry.items():
            _check_tensor(f"{field} of {name}", tensor, () if field == "step" else expected[name])
        steps = float(entry["step"])
        if not 0 <= steps <= MOST_STEPS or not steps.is_integer():
            raise RunError(
                f"step of {name} is {steps:g}; the number of its steps is needed", fix=FIX
            )
        if entry["exp_avg_sq"].numel() and float(entry["exp_avg_sq"].min()) < 0:
            raise RunError(
                f"exp_avg_sq of {name} has values below 0, which no mean of squares has", fix=FIX
            )
        moments[name] = entry
    return [
        {key: value for key, value in group.items() if key != "params"} for group in groups
    ], moments


def _is_group(group: Any) -> bool:
    if not isinstance(group, dict) or not isinstance(params := group.get("params"), list):
        return False
    betas = group.get("betas")
    is_plain = (
        isinstance(group.get("group_type"), str) and isinstance(betas, tuple) and len(betas) == 2
    )
    return is_plain and all(type(number) is int for number in params)


def _plain(value: Any) -> Any:
    """Return the value as JSON keeps it. Raises RunError."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError) as error:  # untrusted.py has bounded the depth
        raise RunError(
            f"the optimiser's or the schedule's settings are not plain: {error}", fix=FIX
        ) from None
