"""Which models there are, by name. A model is a class with a dataclass `Config` and the interface of `Model`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import nn

from cortext.config import from_mapping
from cortext.errors import ConfigError, nearest


@runtime_checkable
class Model(Protocol):
    """What training, evaluation and the live pipeline ask of an acoustic model (an `nn.Module`).

    It is built as `cls(config, n_features=, n_days=, n_classes=)`. Parameters whose name starts with `day_` have the
    recording day as their first axis.
    """

    Config: ClassVar[type]
    config: Any

    def __call__(
        self, x_BTC: torch.Tensor, day_B: torch.Tensor, state: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits float32 [B, P, V] of smoothed features [B, T, C], and the recurrent state after the last patch."""
        ...

    def n_patches(self, n_bins: Any) -> Any:
        """Frames of logits for that many bins (an int, array or tensor)."""
        ...


MODELS: dict[str, type[nn.Module]] = {}
M = TypeVar("M", bound=type[nn.Module])


def register(name: str) -> Callable[[M], M]:
    """Class decorator: makes a model known by name to configurations and checkpoints."""

    def keep(cls: M) -> M:
        MODELS[name] = cls
        return cls

    return keep


def model_config(mapping: Any, where: str | None = None) -> Any:
    """The config dataclass of the model that `kind` names (`gru` by default), from a mapping or unchanged."""
    if dataclasses.is_dataclass(mapping):
        return mapping
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"model is a {type(mapping).__name__}; a section of keys is needed", where=where)
    kind = mapping.get("kind", "gru")
    if kind not in MODELS:
        raise ConfigError(f"unknown model {kind!r}; {nearest(str(kind), MODELS)}", where=where)
    return from_mapping(cast(Any, MODELS[kind]).Config, mapping, where=where, prefix="model.")


def build_model(config: Any, *, n_features: int, n_days: int, n_classes: int) -> nn.Module:
    """A freshly initialised model of the config's kind, on the CPU; the global torch generator decides its weights."""
    return MODELS[config.kind](config, n_features=n_features, n_days=n_days, n_classes=n_classes)
