"""The layout of the release's checkpoints: names, shapes and order of parameters and moments.

It is restated from the release of Card et al. (NEJM 2024), model_training/rnn_model.py and
rnn_trainer.py. The release's model has one pair of parameters per day. Its AdamW has three groups;
within a group, the parameters are in the model's order.

Letters: C features, D hidden units, V tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from cortext.errors import RunError
from cortext.models import GRUConfig
from cortext.training.config import TrainConfig
from cortext.training.optim import day_learning_rate, learning_rate

GROUPS = ("bias", "day_layer", "other")
MOMENTS = {"exp_avg": "mean", "exp_avg_sq": "square"}
"""Names of AdamW's moments in the release, and ours."""


def shapes(
    config: GRUConfig, n_features: int, n_days: int, n_classes: int
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all parameters, in the order of the release's `named_parameters`.

    Args:
        config: Settings of the model.
        n_features: Features of a bin that the model reads, C.
        n_days: Recording days.
        n_classes: Tokens, V.
    """
    n_units = config.n_units
    n_inputs = n_features * max(config.patch_size, 1)
    expected: dict[str, tuple[int, ...]] = {"h0": (1, 1, n_units)}
    expected |= {f"day_weights.{day}": (n_features, n_features) for day in range(n_days)}
    expected |= {f"day_biases.{day}": (1, n_features) for day in range(n_days)}
    for layer in range(config.n_layers):
        expected[f"gru.weight_ih_l{layer}"] = (3 * n_units, n_units if layer else n_inputs)
        expected[f"gru.weight_hh_l{layer}"] = (3 * n_units, n_units)
        expected[f"gru.bias_ih_l{layer}"] = expected[f"gru.bias_hh_l{layer}"] = (3 * n_units,)
    return expected | {"out.weight": (n_classes, n_units), "out.bias": (n_classes,)}


def group_of(name: str) -> str:
    """Return the optimiser's group of a parameter, by the release's name."""
    if name.startswith("day_"):
        return "day_layer"
    return "bias" if name.startswith("gru.bias") or name == "out.bias" else "other"


def by_group(names: list[str]) -> dict[str, list[str]]:
    """Return the parameters of each group.

    Taken one group after the other, they have the numbers 0, 1, ... in the optimiser's state.
    """
    return {group: [name for name in names if group_of(name) == group] for group in GROUPS}


def stack_days(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the release's parameters as ours.

    The days' parameters are stacked to `day_weight` [days, C, C] and `day_bias` [days, C].
    """
    shared = {name: tensor for name, tensor in tensors.items() if not name.startswith("day_")}
    n_days = sum(name.startswith("day_weights.") for name in tensors)
    days = {
        "day_weight": torch.stack([tensors[f"day_weights.{day}"] for day in range(n_days)]),
        "day_bias": torch.cat([tensors[f"day_biases.{day}"] for day in range(n_days)]),
    }
    return days | shared


def split_days(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return our parameters as the release's, copied; the inverse of `stack_days`."""
    split = {
        f"day_weights.{day}": weight_CC.clone()
        for day, weight_CC in enumerate(tensors["day_weight"])
    }
    split |= {
        f"day_biases.{day}": bias_C.clone()[None] for day, bias_C in enumerate(tensors["day_bias"])
    }
    return split | {
        name: tensor.clone() for name, tensor in tensors.items() if not name.startswith("day_")
    }


def moments_to_ours(
    moments: dict[str, dict[str, torch.Tensor]], day_shapes: dict[str, tuple[int, ...]]
) -> dict[str, torch.Tensor]:
    """Return AdamW's moments by parameter under the names of `Optimizer.state`.

    Days without moments get zeros, and a step count of 0.

    Args:
        moments: AdamW's state of each parameter, under the release's names.
        day_shapes: Shapes of all `day_weights.i` and `day_biases.i`; empty where the day layers do
            not learn.

    Raises:
        RunError: If the two parameters of a day have different step counts.
    """
    state: dict[str, torch.Tensor] = {}
    for name, entry in moments.items():
        if not name.startswith("day_"):
            state |= {f"{ours}.{name}": entry[theirs] for theirs, ours in MOMENTS.items()}
            state[f"steps.{name}"] = entry["step"]
    steps = {name: int(moments[name]["step"]) if name in moments else 0 for name in day_shapes}
    n_days = len(day_shapes) // 2
    for day in range(n_days):
        if steps[f"day_weights.{day}"] != steps[f"day_biases.{day}"]:
            raise RunError(
                f"the weights and the bias of day {day} have not made the same number of steps"
            )
    state["day_steps"] = torch.tensor(
        [steps[f"day_weights.{day}"] for day in range(n_days)], dtype=torch.int64
    )
    for theirs, ours in MOMENTS.items() if n_days else ():
        whole = {
            n: moments[n][theirs] if n in moments else torch.zeros(shape)
            for n, shape in day_shapes.items()
        }
        state |= {f"{ours}.{name}": tensor for name, tensor in stack_days(whole).items()}
    return state


def moments_to_theirs(state: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Return the moments by the release's parameter names; the inverse of `moments_to_ours`.

    Days that never moved are left out.
    """
    names = [name.removeprefix("steps.") for name in state if name.startswith("steps.")]
    moments = {
        name: (
            {"step": state[f"steps.{name}"]}
            | {k: state[f"{ours}.{name}"].clone() for k, ours in MOMENTS.items()}
        )
        for name in names
    }
    if not len(steps := state["day_steps"]):
        return moments
    split = {
        theirs: split_days({name: state[f"{ours}.{name}"] for name in ("day_weight", "day_bias")})
        for theirs, ours in MOMENTS.items()
    }
    for name in split["exp_avg"]:
        if n_steps := int(steps[int(name.rpartition(".")[2])]):
            moments[name] = {"step": torch.tensor(float(n_steps))} | {
                k: tensors[name] for k, tensors in split.items()
            }
    return moments


def fresh_optimizer(
    config: TrainConfig, names: dict[str, list[str]]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the groups and the schedule of the release's trainer before its first batch."""
    lrs = {"bias": config.lr_max, "day_layer": config.lr_max_day, "other": config.lr_max}
    decays = {"bias": 0.0, "day_layer": config.weight_decay_day, "other": config.weight_decay}
    groups = [
        {
            "params": [nn.Parameter(torch.empty(0)) for _ in names[group]],
            "lr": lrs[group],
            "weight_decay": decays[group],
            "group_type": group,
        }
        for group in GROUPS
    ]
    betas = (config.beta0, config.beta1)
    adam = torch.optim.AdamW(
        groups,
        lr=config.lr_max,
        betas=betas,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        fused=True,
    )
    schedule: torch.optim.lr_scheduler.LRScheduler
    if config.lr_scheduler_type == "linear":
        floor = config.lr_min / config.lr_max
        schedule = torch.optim.lr_scheduler.LinearLR(adam, 1.0, floor, config.lr_decay_steps)
    else:
        schedule = torch.optim.lr_scheduler.LambdaLR(adam, [lambda _: 1.0] * len(groups))
    return adam.state_dict()["param_groups"], schedule.state_dict()


def at_step(
    groups: list[dict[str, Any]], schedule: dict[str, Any], config: TrainConfig, step: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the optimiser's groups and the schedule after `step` batches.

    Args:
        groups: Groups of the release's AdamW, as its state has them.
        schedule: State of the release's schedule.
        config: Configuration of the run, for the learning rates.
        step: Batches done.
    """
    rate = {"day_layer": day_learning_rate(config, step)}
    lrs = [rate.get(group["group_type"], learning_rate(config, step)) for group in groups]
    groups = [group | {"lr": lr} for group, lr in zip(groups, lrs, strict=True)]
    return groups, schedule | {"last_epoch": step, "_step_count": step + 1, "_last_lr": lrs}
