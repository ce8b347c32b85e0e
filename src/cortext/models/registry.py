"""Which models there are, by name.

A model is a class with a dataclass `Config` and the interface of `Model`.
"""

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
    """What training, evaluation and the live pipeline ask of an acoustic model (an `nn.Module`).

    It is built as `cls(config, n_features=, n_days=, n_classes=)`. Parameters whose name starts
    with `day_` have the recording day as their first axis.
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
        """Logits float32 [B, P, V] of smoothed features [B, T, C], and the recurrent state after
        the last patch.

        The state is a tensor or a tuple of them, [L, B, D] each; it is to be handed back with what
        follows. n_patches_B, int64 [B], says from which patch on a trial is padding (None: from
        none). A model may pass over padding: the logits there are whatever is finite, and nothing
        that counts may depend on them.
        """
        ...

    def n_patches(self, n_bins: Any) -> Any:
        """Frames of logits for that many bins (an int, array or tensor)."""
        ...

    # A model whose encoder may feed something else than its logits (`cortext.speechllm`) also has
    # `hidden(x_BTC, day_B, state=None, *, n_patches_B=None) -> (hidden_BPD, state)`, the module
    # `read_out`, which maps hidden units to logits, and `n_hidden`, their number D. `forward` is
    # then `read_out` of `hidden`.


MODELS = Registry("model", fields=("n_input_features", "patch_size", "patch_stride"))
register = MODELS.register


def model_config(mapping: Any, where: str | None = None) -> Any:
    """The config dataclass of the model that `kind` names (`gru` by default), from a mapping or
    unchanged.
    """
    return MODELS.config(mapping, "model", default="gru", where=where)


def build_model(config: Any, *, n_features: int, n_days: int, n_classes: int) -> nn.Module:
    """A freshly initialised model of the config's kind, on the CPU.

    The global torch generator decides its weights.

    Raises:
        ConfigError: For a model whose `forward` lacks what `Model` promises, and for one that
            memory cannot hold.
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
    """The model without memory for its weights: their names and shapes.

    None for a class that cannot be made so.

    No random number is drawn.
    """
    with (
        suppress(Exception),
        torch.device("meta"),
    ):  # a user's own class may compute with its weights at once
        network: nn.Module = MODELS[config.kind](
            config, n_features=n_features, n_days=n_days, n_classes=n_classes
        )
        return network
    return None
