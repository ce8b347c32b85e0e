"""Weights and optimiser states between torch and Keras, both ways, bit for bit.

torch has a GRU's gates in the order reset, update, new, one below the other; Keras has update,
reset, new, side by side. torch has two biases; Keras has one bias with two rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from cortext.errors import RunError
from cortext_tpu.keras_tf.models import DayLayers, Recurrent


@dataclass(frozen=True)
class Link:
    """A Keras variable and the torch parameters that it holds."""

    variable: Any
    names: tuple[str, ...]
    form: Literal["same", "transposed", "gates", "gate_biases"]

    def to_keras(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Make the variable's value from the parameters' values."""
        own = [arrays[name] for name in self.names]
        if self.form == "gate_biases":
            return np.stack([_swapped(array) for array in own])
        if self.form == "gates":
            return _swapped(own[0]).T
        return own[0].T if self.form == "transposed" else own[0]

    def to_torch(self, value: np.ndarray) -> dict[str, np.ndarray]:
        """Make the parameters' values from the variable's value."""
        if self.form == "gate_biases":
            own = [_swapped(row) for row in value]
        elif self.form == "gates":
            own = [_swapped(value.T)]
        else:
            own = [value.T if self.form == "transposed" else value]
        return dict(zip(self.names, own, strict=True))


def _swapped(array: np.ndarray) -> np.ndarray:
    """Exchange the first two of three gates along the first axis."""
    first, second, third = np.split(array, 3)
    return np.concatenate([second, first, third])


def links(model: DayLayers, prefix: str = "") -> list[Link]:
    """Link the variables of a built model to torch's parameters.

    `prefix` is put before the parameters' names.
    """
    all_links = []
    if model.n_days is not None:
        all_links += [Link(model.days.day_weight, (f"{prefix}day_weight",), "same")]
        all_links += [Link(model.days.day_bias, (f"{prefix}day_bias",), "same")]
    if not isinstance(model, Recurrent):
        for name in ("noise_model", "clean_speech_model", "noisy_speech_model"):
            all_links += links(getattr(model, name), f"{name}.")
        return all_links
    for number, layer in enumerate(model.gru):
        cell = layer.cell
        gru = f"{prefix}gru."
        all_links.append(Link(cell.kernel, (f"{gru}weight_ih_l{number}",), "gates"))
        all_links.append(Link(cell.recurrent_kernel, (f"{gru}weight_hh_l{number}",), "gates"))
        all_links.append(
            Link(cell.bias, (f"{gru}bias_ih_l{number}", f"{gru}bias_hh_l{number}"), "gate_biases")
        )
    if model.out is not None:
        all_links.append(Link(model.out.kernel, (f"{prefix}out.weight",), "transposed"))
        all_links.append(Link(model.out.bias, (f"{prefix}out.bias",), "same"))
    return [*all_links, Link(model.h0, (f"{prefix}h0",), "same")]


def from_torch(model: DayLayers, network: nn.Module) -> None:
    """Copy the weights of a torch network into a Keras model, and which of them learn.

    Raises:
        RunError: For a network of another shape, or with a GRU layer that learns only one of its
            two biases.
    """
    parameters = dict(network.named_parameters())
    arrays = {name: parameter.detach().cpu().numpy() for name, parameter in parameters.items()}
    connected = links(model)
    names = {name for link in connected for name in link.names}
    if odd := sorted(names ^ arrays.keys()):
        raise RunError(
            f"{odd[0]} is in one of the two models only", fix="build both with the same settings"
        )
    for link in connected:
        value = link.to_keras(arrays)
        wanted = tuple(link.variable.shape)
        if value.shape != wanted:
            problem = (
                f"{link.names[0]} has shape {list(value.shape)}; the Keras model needs"
                f" {list(wanted)}"
            )
            raise RunError(problem, fix="build both with the same settings")
        learns = {parameters[name].requires_grad for name in link.names}
        if len(learns) > 1:
            problem = f"of {' and '.join(link.names)} only one learns, and in Keras they are one"
            raise RunError(problem, fix="name both in trainable, or neither")
        link.variable.assign(value)
        link.variable.trainable = learns.pop()


def to_torch(model: DayLayers, network: nn.Module) -> None:
    """Copy the weights of a Keras model into a torch network."""
    arrays = {
        name: array
        for link in links(model)
        for name, array in link.to_torch(_value(link.variable)).items()
    }
    network.load_state_dict({name: _tensor(array) for name, array in arrays.items()})


def optimizer_state(model: DayLayers) -> dict[str, torch.Tensor]:
    """Return moments and step counts by the names of `cortext.training.optim.Optimizer.state`."""
    optimizer = model.optimizer
    n_days = model.n_days or 0
    state = {"day_steps": torch.zeros(n_days, dtype=torch.int64)}
    optimizer.build(model.trainable_variables)
    for link, index in _learning(model):
        for kind, slots in (("mean", optimizer.mean), ("square", optimizer.square)):
            tensors = link.to_torch(_value(slots[index]))
            state |= {f"{kind}.{name}": _tensor(array) for name, array in tensors.items()}
        count = torch.from_numpy(np.array(_value(optimizer.counts[index])))
        if link.names[0].startswith("day_"):
            state["day_steps"] = count.long()
        elif count:
            state |= {f"steps.{name}": count.float() for name in link.names}
        else:  # as torch: nothing, before the first step
            for name in link.names:
                del state[f"mean.{name}"], state[f"square.{name}"]
    return state


def load_optimizer_state(model: DayLayers, state: Mapping[str, torch.Tensor]) -> None:
    """Load a state of torch's or of this optimiser; weights that it lacks start afresh."""
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)
    for link, index in _learning(model):
        is_day = link.names[0].startswith("day_")
        known = is_day or f"steps.{link.names[0]}" in state
        for kind, slots in (("mean", optimizer.mean), ("square", optimizer.square)):
            arrays = (
                {name: state[f"{kind}.{name}"].cpu().numpy() for name in link.names}
                if known
                else {}
            )
            slots[index].assign(
                link.to_keras(arrays) if known else np.zeros(slots[index].shape, np.float32)
            )
        steps = (
            state["day_steps"] if is_day else state.get(f"steps.{link.names[0]}", torch.zeros(()))
        )
        optimizer.counts[index].assign(steps.cpu().numpy().astype(np.int32))


def _learning(model: DayLayers) -> list[tuple[Link, int]]:
    """Return the links of variables that learn, and their numbers in the optimiser."""
    numbers = {id(variable): index for index, variable in enumerate(model.trainable_variables)}
    return [
        (link, numbers[id(link.variable)]) for link in links(model) if id(link.variable) in numbers
    ]


def _value(variable: Any) -> np.ndarray:
    return np.asarray(variable.numpy())


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(array, order="C"))
