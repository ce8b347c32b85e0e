"""Models by name: classes with a dataclass `Config` and the interface of `Model`."""

from __future__ import annotations

import inspect
import os
from contextlib import suppress
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import nn

from cortext.errors import ConfigError
from cortext.registry import Registry


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
    ) -> tuple[torch.Tensor, Any]:
        """Compute the logits of a batch of trials.

        Args:
            x_BTC: Float [B, T, C], smoothed features.
            day_B: int64 [B], the day layer of each trial.
            state: The state after the bins before; None begins a trial.
            n_patches_B: int64 [B], patches of each trial, the others being padding; None if
                nothing is padded.

        Returns:
            Logits float32 [B, P, V], with any finite numbers in the padding, and the recurrent
            state after the last patch: a tensor or a tuple of tensors, [L, B, D] each.
        """
        ...

    def n_patches(self, n_bins: Any) -> Any:
        """Return the frames of logits for that many bins (an int, array or tensor)."""
        ...

    # A model that can be the encoder of a speech LLM (`cortext.speechllm`) also has
    # `hidden(x_BTC, day_B, state=None, *, n_patches_B=None) -> (hidden_BPD, state)`, the module
    # `read_out`, which maps hidden units to logits, and `n_hidden`, their number D. `forward` is
    # then `read_out` of `hidden`.


MODELS = Registry("model", fields=("n_input_features", "patch_size", "patch_stride"))
register = MODELS.register


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
    cls = MODELS[config.kind]
    parameters = inspect.signature(cls.forward).parameters
    if not {"n_patches_B", "kwargs"} & set(parameters):
        what = f"model {config.kind!r} has a forward without n_patches_B, the patches of each trial"
        raise ConfigError(what, fix="add the keyword n_patches_B=None to it")
    empty = empty_model(config, n_features=n_features, n_days=n_days, n_classes=n_classes)
    if empty is not None and torch.get_default_device().type != "meta":
        n_bytes = sum(
            tensor.numel() * tensor.element_size() for tensor in empty.state_dict().values()
        )
        if n_bytes > (most := os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")):
            what = (
                f"the model's weights take {n_bytes / 2**30:,.0f} GiB; this machine has"
                f" {most / 2**30:,.0f}"
            )
            raise ConfigError(what, fix="give it fewer units or layers")
    network: nn.Module = cls(config, n_features=n_features, n_days=n_days, n_classes=n_classes)
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
