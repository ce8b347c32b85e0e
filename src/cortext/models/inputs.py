"""The first layers of every model: an affine map for each recording day, then patches.

Between the two, a read-in layer may map the features of a participant to a number that participants
with other electrodes share.

B trials, T bins, C features, P patches, I values in a patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from cortext.arguments import as_count, check_type
from cortext.config import check_fields
from cortext.errors import ConfigError, wrong_type
from cortext.models.fused import CHECK_SOFTSIGN, in_16_bits, why_no_kernels
from cortext.models.layers import day_affine, dropout, patches


@dataclass
class InputNetworkConfig:
    """Section `model.input_network`: the day layer."""

    day_layer: Literal["softsign", "affine", "none"] = "softsign"
    """The day layer: an affine map of each recording day and softsign (as published for the GRU),
    the map alone, or none, so that all days share one model.
    """
    read_in: int | None = None
    """Features that a linear map after the day layer gives to the rest of the model, so that
    participants with different electrodes can share the rest; null for no map.
    """
    input_trainable: bool = True
    """Train the day layers."""
    input_layer_dropout: float = 0.2
    """Dropout after the day layer."""


class DayLayers(nn.Module):
    """The base of a network that reads bins: day layer, softsign, read-in layer, dropout, patches.

    Args:
        config: Settings with `patch_size`, `patch_stride` and `input_network`.
        n_features: Features of a bin, C.
        n_days: Number of recording days; None makes no day layers, for a network that reads
            patches that another network has made.
    """

    day_weight: nn.Parameter
    day_bias: nn.Parameter

    def __init__(self, config: Any, *, n_features: int, n_days: int | None) -> None:
        super().__init__()
        needed = getattr(type(self), "Config", object)
        check_type(config, needed, "config", f"a {needed.__name__}")
        if not hasattr(config, "patch_size"):
            raise wrong_type("config", config, "the config of a model that has patches")
        as_count(n_features, "n_features", 1)
        if n_days is not None:
            as_count(n_days, "n_days", 1)
        self.config = config
        self.reads_bins = n_days is not None
        self.read_in: nn.Linear | None = None
        n_read = config.input_network.read_in if self.reads_bins else None
        if n_read is not None:
            self.read_in = nn.Linear(n_features, n_read)
            # It begins as a rotation, as day layers begin as the identity. With torch's own first
            # weights two simulated participants had 20 % phoneme errors where these gave 4 %.
            nn.init.orthogonal_(self.read_in.weight)
            nn.init.zeros_(self.read_in.bias)
        self.patch_width = (n_read or n_features) * max(config.patch_size, 1)
        self.has_days = self.reads_bins and config.input_network.day_layer != "none"
        if n_days is None or not self.has_days:
            return
        # One stacked tensor, although the release has one parameter per day. With one parameter per
        # day, processes would have to agree on the days that a batch used, and XLA would compile a
        # program for every combination of days.
        weight_NCC = torch.zeros(n_days, n_features, n_features)
        # Not torch.eye, whose imports take two seconds on the device `meta`.
        weight_NCC.diagonal(dim1=1, dim2=2).fill_(1)
        self.day_weight = nn.Parameter(weight_NCC)
        self.day_bias = nn.Parameter(torch.zeros(n_days, n_features))  # [days, C]
        self.day_weight.requires_grad_(config.input_network.input_trainable)
        self.day_bias.requires_grad_(config.input_network.input_trainable)

    def n_patches(self, n_bins: Any) -> Any:
        """Return the frames of logits for `n_bins` bins (an int, array or tensor)."""
        return count_patches(self.config, n_bins)

    def inputs(self, x_BTC: torch.Tensor, day_B: torch.Tensor | None) -> torch.Tensor:
        """Make patches [B, P, I] of smoothed features [B, T, C].

        A network that reads the patches of another returns them unchanged.
        """
        if not self.reads_bins:
            return x_BTC
        # Dropout comes before the patches. A dropped value is then missing in all overlapping
        # patches; otherwise the model could read it from the next patch.
        p = self.config.input_network.input_layer_dropout
        if self._fuses_softsign(x_BTC):
            from cortext.models.fused_blocks import draw_seeds, softsign

            assert day_B is not None
            x_BTC = day_affine(x_BTC, day_B, self.day_weight, self.day_bias)
            x_BTC = softsign(x_BTC, draw_seeds(x_BTC.device), p)
        else:
            x_BTC = dropout(self.day_layer(x_BTC, day_B), p, self.training)
        if self.config.patch_size:
            x_BTC = patches(x_BTC, self.config.patch_size, self.config.patch_stride)
        return x_BTC

    def why_not_fused(self, device: torch.device) -> str | None:
        """Return why torch's own kernels train the model in 16 bits; None for fused ones.

        Called first before a CUDA graph is captured.
        """
        softsign = self.has_days and self.config.input_network.day_layer == "softsign"
        return why_no_kernels(CHECK_SOFTSIGN, device) if softsign else None

    def _fuses_softsign(self, x_BTC: torch.Tensor) -> bool:
        """Tell whether one kernel computes softsign and dropout."""
        softsign = self.has_days and self.config.input_network.day_layer == "softsign"
        if not softsign or self.read_in is not None or not in_16_bits(self, x_BTC):
            return False
        return why_no_kernels(CHECK_SOFTSIGN, x_BTC.device) is None

    def day_layer(self, x_BTC: torch.Tensor, day_B: torch.Tensor | None) -> torch.Tensor:
        """Bring smoothed features [B, T, C] of each day into the space that all days share.

        With a read-in layer, participants share it, too.
        """
        if self.has_days:
            assert day_B is not None
            x_BTC = day_affine(x_BTC, day_B, self.day_weight, self.day_bias)
            if self.config.input_network.day_layer == "softsign":
                # Features are z-scores; an artefact makes them hundreds. Softsign, x / (1 + |x|),
                # keeps them in (-1, 1), and unlike tanh it still separates large values.
                x_BTC = nn.functional.softsign(x_BTC)
        return x_BTC if self.read_in is None else self.read_in(x_BTC)


def of_participant(name: str) -> bool:
    """Tell whether the weight of that name belongs to one participant: day layers and read-in."""
    return name.startswith(("day_", "read_in."))


def count_patches(config: Any, n_bins: Any) -> Any:
    """Count the patches in `n_bins` bins (an int, array or tensor); 0 if no patch fits."""
    if config.patch_size == 0:
        return n_bins
    n_patches = (n_bins - config.patch_size) // config.patch_stride + 1
    return n_patches * (n_patches > 0)  # max(n_patches, 0) for an int, an array or a tensor


UNITS = 1, 65_536
"""Fewest and most units of a layer; the published models have at most 7,168."""
LAYERS = 1, 100
"""Fewest and most layers; the published models have at most five."""
_BOUNDS = {"patch_size": (0, 1_000), "patch_stride": (1, 1_000), "n_input_features": (1, 65_536)}


def check_settings(config: Any, bounds: Mapping[str, tuple[int, int]]) -> None:
    """Raise ConfigError if a setting that models share, or one of `bounds`, is out of range."""
    check_fields(config)
    for name, (low, high) in (_BOUNDS | dict(bounds)).items():
        value = getattr(config, name)
        if value is not None and not low <= value <= high:
            raise ConfigError(
                f"model.{name} is {value}; it must be at least {low} and at most {high}"
            )
    middle = getattr(config, "intermediate_layer", None)
    if middle is not None and not 1 <= middle < config.n_layers:
        most = config.n_layers - 1
        needed = f"at least 1 and at most {most}" if most >= 1 else "null for a single layer"
        raise ConfigError(f"model.intermediate_layer is {middle}; it must be {needed}")
    n_read = config.input_network.read_in
    if n_read is not None and not UNITS[0] <= n_read <= UNITS[1]:
        problem = f"model.input_network.read_in is {n_read}"
        raise ConfigError(
            f"{problem}; it must be null, or at least {UNITS[0]} and at most {UNITS[1]}"
        )
    dropouts = {
        name: getattr(config, name) for name in ("rnn_dropout", "dropout") if hasattr(config, name)
    }
    dropouts["input_network.input_layer_dropout"] = config.input_network.input_layer_dropout
    for name, value in dropouts.items():
        if not 0 <= value < 1:
            raise ConfigError(f"model.{name} is {value}; it must be in [0, 1)")
