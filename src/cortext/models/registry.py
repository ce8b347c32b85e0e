"""Models by name: classes with a dataclass `Config` and the interface of `Model`."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import nn

from cortext.arguments import as_count, check_type
from cortext.errors import ConfigError
from cortext.plugins import build, place
from cortext.registry import Registry


class Output(NamedTuple):
    """Result of a model's `forward`, which may also return the pair of logits and state.

    Attributes:
        logits: Float [B, P, V], not normalised.
        state: The recurrent state after the last patch; None for a model that keeps none.
        extras: Tensors by name that a loss reads, such as the logits of an auxiliary head. The
            first axis of each is the trial.
    """

    logits: torch.Tensor
    state: Any = None
    extras: Mapping[str, torch.Tensor] = {}


def read_output(value: Any) -> Output:
    """Return the result of a model's `forward` as an `Output`.

    Raises ConfigError unless it is an `Output`, or a pair of logits and state.
    """
    if isinstance(value, Output):
        return value
    if isinstance(value, tuple) and len(value) == 2:
        return Output(*value)
    given = f"{len(value)} values" if isinstance(value, tuple) else f"a {type(value).__name__}"
    raise ConfigError(
        f"forward returns {given}", fix="return (logits, state) or Output(logits, state, extras)"
    )


def check_output(network: Any, value: Any, shape: tuple[int, int, int], n_needed: int) -> Output:
    """Return the result of a model's `forward` as an `Output`, after a check of its logits.

    Args:
        network: The model, for messages.
        value: Its result.
        shape: Trials B, frames P and tokens V of the logits.
        n_needed: Frames of the longest trial; frames after them may be left out.

    Raises:
        ConfigError: For another result, and for logits of another shape or type.
    """
    where = place(network, "forward")
    try:
        output = read_output(value)
    except ConfigError as error:
        raise ConfigError(error.what, where=where, fix=error.fix) from None
    logits = output.logits
    if not isinstance(logits, torch.Tensor) or not logits.is_floating_point():
        kind = getattr(logits, "dtype", type(logits).__name__)
        raise ConfigError(f"the logits are {kind}; a float tensor is needed", where=where)
    n_trials, n_frames, n_classes = shape
    given = list(logits.shape)
    if len(given) != 3 or given[0] != n_trials or given[2] != n_classes:
        raise ConfigError(f"the logits are {given}; {list(shape)} are needed", where=where)
    if not n_needed <= given[1] <= n_frames:
        problem = f"the logits are {given}; n_patches promises {n_frames} frames"
        raise ConfigError(problem, where=where, fix="make n_patches count the frames of forward")
    return output


@runtime_checkable
class Model(Protocol):
    """The interface of an acoustic model, an `nn.Module`.

    Training, evaluation and live decoding use it. It is built as `cls(config, n_features=, n_days=,
    n_classes=)`. The first axis of a parameter whose name starts with `day_` is the recording day.
    """

    Config: ClassVar[type]
    config: Any

    def __call__(
        self,
        x_BTC: torch.Tensor,
        day_B: torch.Tensor,
        state: Any = None,
        *,
        n_patches_B: torch.Tensor | None = None,
    ) -> Output | tuple[torch.Tensor, Any]:
        """Compute the logits of a batch of trials.

        Args:
            x_BTC: Float [B, T, C], smoothed features.
            day_B: int64 [B], the day layer of each trial.
            state: The state after the bins before; None begins a trial.
            n_patches_B: int64 [B], patches of each trial, the others being padding. It is given
                for every batch of more than one trial; None for a trial that comes in pieces.

        Returns:
            Logits float32 [B, P, V], with any finite numbers in the padding, and the recurrent
            state after the last patch: a tensor or a tuple of tensors, [L, B, D] each. An `Output`
            may hold more, which a loss reads.
        """
        ...

    def n_patches(self, n_bins: Any) -> Any:
        """Return the frames of logits for that many bins (an int, array or tensor)."""
        ...

    # A model that can be the encoder of a speech LLM (`cortext_speechllm`) also has
    # `hidden(x_BTC, day_B, state=None, *, n_patches_B=None) -> (hidden_BPD, state)`, the module
    # `read_out`, which maps hidden units to logits, and `n_hidden`, their number D. `forward` is
    # then `read_out` of `hidden`.


MODELS = Registry("model", fields=("n_input_features", "patch_size", "patch_stride"))
"""The registered models by name."""
register = MODELS.register
"""Decorator that registers a model of your own: `@register("name")`."""


def model_config(mapping: Any, where: str | None = None) -> Any:
    """Return the config dataclass of the model that `kind` names, `gru` by default.

    A dataclass is returned as it is. Raises ConfigError.
    """
    return MODELS.config(mapping, "model", default="gru", where=where)


def build_model(config: Any, *, n_features: int, n_days: int, n_classes: int) -> nn.Module:
    """Build a model of the config's kind on the CPU, with weights from torch's global generator.

    Args:
        config: Config dataclass of a registered model.
        n_features: Features of a bin that the model reads, C.
        n_days: Number of recording days.
        n_classes: Number of tokens, V.

    Raises:
        ConfigError: For a model whose `forward` lacks the argument `n_patches_B`, and for a model
            larger than the memory.
    """
    check_type(getattr(config, "kind", None), str, "config", "a model's config (model_config)")
    for name, count in (("n_features", n_features), ("n_days", n_days), ("n_classes", n_classes)):
        as_count(count, name, 1)
    cls = MODELS[config.kind]
    parameters = inspect.signature(cls.forward).parameters
    if not {"n_patches_B", "kwargs"} & set(parameters):
        problem = (
            f"model {config.kind!r} has a forward without n_patches_B, the patches of each trial"
        )
        fix = "add the keyword n_patches_B=None to it"
        raise ConfigError(problem, where=place(cls, "forward"), fix=fix)
    empty = empty_model(config, n_features=n_features, n_days=n_days, n_classes=n_classes)
    if empty is not None and torch.get_default_device().type != "meta":
        n_bytes = sum(
            tensor.numel() * tensor.element_size() for tensor in empty.state_dict().values()
        )
        if n_bytes > (most := os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")):
            problem = (
                f"the model's weights take {n_bytes / 2**30:,.0f} GiB; this machine has"
                f" {most / 2**30:,.0f}"
            )
            raise ConfigError(problem, fix="give it fewer units or layers")
    sizes = {"n_features": n_features, "n_days": n_days, "n_classes": n_classes}
    network: nn.Module = build(cls, config, **sizes)
    return network


def empty_model(config: Any, *, n_features: int, n_days: int, n_classes: int) -> nn.Module | None:
    """Build a model on the device `meta`: names and shapes of the weights, without memory.

    No random number is drawn.

    Args:
        config: Config dataclass of a registered model.
        n_features: Features of a bin that the model reads, C.
        n_days: Number of recording days.
        n_classes: Number of tokens, V.

    Returns:
        The model; None for a class that cannot be built on `meta`.
    """
    # A user's own class may compute with its weights at once, which can raise any error on `meta`.
    with suppress(Exception), torch.device("meta"):
        network: nn.Module = MODELS[config.kind](
            config, n_features=n_features, n_days=n_days, n_classes=n_classes
        )
        return network
    return None
