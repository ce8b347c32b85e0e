"""What stands before the networks of every model: a day layer for each recording day, then patches.

B trials, T bins of 20 ms, C features, P patches, I values in a patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cortext.errors import ConfigError
from cortext.models.layers import day_affine, dropout, patches


@dataclass
class InputNetworkConfig:
    """Section `model.input_network`: the day layer."""

    input_trainable: bool = True
    """Whether the day layers learn."""
    input_layer_dropout: float = 0.2
    """Dropout after the day layer."""


class DayLayers(nn.Module):
    """The base of a network that reads bins.

    An affine map for each day, softsign, dropout, patches.

    Args:
        config: Has `patch_size`, `patch_stride` and `input_network`.
        n_features: Of a bin.
        n_days: None makes no day layers: the network then reads patches that another has made.
    """

    day_weight: nn.Parameter
    day_bias: nn.Parameter

    def __init__(self, config: Any, *, n_features: int, n_days: int | None) -> None:
        super().__init__()
        self.config = config
        self.patch_width = n_features * max(config.patch_size, 1)
        self.has_days = n_days is not None
        if n_days is None:
            return
        # One stacked tensor instead of one parameter per day: the same mathematics, one gather per
        # batch.
        weight_NCC = torch.zeros(n_days, n_features, n_features)
        weight_NCC.diagonal(dim1=1, dim2=2).fill_(
            1
        )  # torch.eye on the device `meta` imports for two seconds
        self.day_weight = nn.Parameter(weight_NCC)
        self.day_bias = nn.Parameter(torch.zeros(n_days, n_features))  # [days, C]
        self.day_weight.requires_grad_(config.input_network.input_trainable)
        self.day_bias.requires_grad_(config.input_network.input_trainable)

    def n_patches(self, n_bins: Any) -> Any:
        """Frames of logits for `n_bins` bins (an int, array or tensor).

        None for fewer than one patch.
        """
        return count_patches(self.config, n_bins)

    def inputs(self, x_BTC: torch.Tensor, day_B: torch.Tensor | None) -> torch.Tensor:
        """Patches [B, P, I] of smoothed features [B, T, C].

        Without day layers, what it was given.
        """
        if not self.has_days:
            return x_BTC
        assert day_B is not None
        x_BTC = day_affine(x_BTC, day_B, self.day_weight, self.day_bias)
        x_BTC = dropout(
            nn.functional.softsign(x_BTC),
            self.config.input_network.input_layer_dropout,
            self.training,
        )
        if self.config.patch_size:
            x_BTC = patches(x_BTC, self.config.patch_size, self.config.patch_stride)
        return x_BTC


def count_patches(config: Any, n_bins: Any) -> Any:
    """Patches in `n_bins` bins (an int, array or tensor) by a model's `patch_size` and
    `patch_stride`.
    """
    if config.patch_size == 0:
        return n_bins
    n_patches = (n_bins - config.patch_size) // config.patch_stride + 1
    return n_patches * (n_patches > 0)


UNITS = 1, 65_536
LAYERS = 1, 100
"""Fewest and most of a recurrent network.

The published shapes have at most 7,168 units and five layers.
"""
_BOUNDS = {"patch_size": (0, 1_000), "patch_stride": (1, 1_000), "n_input_features": (1, 65_536)}


def check_settings(config: Any, bounds: Mapping[str, tuple[int, int]]) -> None:
    """Raise ConfigError for a setting of a model that cannot be.

    Those of `bounds`, patches, dropouts.
    """
    for name, (low, high) in (_BOUNDS | dict(bounds)).items():
        value = getattr(config, name)
        if value is not None and not low <= value <= high:
            raise ConfigError(
                f"model.{name} is {value}; it must be at least {low} and at most {high}"
            )
    for name, value in (
        ("rnn_dropout", config.rnn_dropout),
        ("input_network.input_layer_dropout", config.input_network.input_layer_dropout),
    ):
        if not 0 <= value < 1:
            raise ConfigError(f"model.{name} is {value}; it must be in [0, 1)")
