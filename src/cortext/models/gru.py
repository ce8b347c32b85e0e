"""The baseline decoder of the Brain-to-Text benchmarks: neural features in, phoneme logits every 80 ms out.

Follows the public release of Card et al., "An accurate and rapidly calibrating speech neuroprosthesis" (NEJM 2024).
From top to bottom:

1. day layer   Electrodes drift, so every recording day has its own affine map of the features. It starts as the
               identity and learns to bring the days into one space; a softsign keeps outliers in bounds.
2. patches     14 bins (280 ms) every 4 bins (80 ms) are laid side by side as one long vector.
3. GRU         A recurrent network reads the patches in order. Its first state is learnt.
4. output      A linear map to one logit per token: the CTC blank, 39 phonemes, and the silence between words.

Shapes: B trials, T bins of 20 ms, C features, P patches, D hidden units, L layers, V tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from cortext.errors import ConfigError
from cortext.models.layers import dropout, gru, patches
from cortext.models.registry import register


@dataclass
class InputNetworkConfig:
    """Section `model.input_network`: the day layer."""

    input_trainable: bool = True
    """Whether the day layers learn."""
    input_layer_dropout: float = 0.2
    """Dropout after the day layer."""


@dataclass
class GRUConfig:
    """Section `model` for `kind: gru`; the defaults are the published values."""

    kind: Literal["gru"] = "gru"
    """Which model this is."""
    n_input_features: int | None = None
    """Neural features per bin; null takes what the data have (after `dataset.feature_subset`)."""
    n_units: int = 768
    """Hidden units of a GRU layer."""
    n_layers: int = 5
    """GRU layers."""
    rnn_dropout: float = 0.4
    """Dropout between GRU layers."""
    rnn_trainable: bool = True
    """Whether the GRU learns."""
    patch_size: int = 14
    """Bins in a patch; 0 gives the GRU single bins."""
    patch_stride: int = 4
    """Bins from one patch to the next."""
    input_network: InputNetworkConfig = field(default_factory=InputNetworkConfig)
    """The day layer."""

    def __post_init__(self) -> None:
        lower = {"n_units": 1, "n_layers": 1, "patch_size": 0, "patch_stride": 1, "n_input_features": 1}
        for name, bound in lower.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ConfigError(f"model.{name} is {value}; it must be at least {bound}")
        for name, value in (
            ("rnn_dropout", self.rnn_dropout),
            ("input_network.input_layer_dropout", self.input_network.input_layer_dropout),
        ):
            if not 0 <= value < 1:
                raise ConfigError(f"model.{name} is {value}; it must be in [0, 1)")


@register("gru")
class GRU(nn.Module):
    """Day layer, patches, GRU, output. Input and output are described in `forward`."""

    Config: ClassVar[type] = GRUConfig

    def __init__(self, config: GRUConfig, *, n_features: int, n_days: int, n_classes: int) -> None:
        super().__init__()
        self.config = config
        # One stacked tensor instead of one parameter per day: the same mathematics, one gather per batch.
        self.day_weight = nn.Parameter(torch.eye(n_features).repeat(n_days, 1, 1))  # [days, C, C]
        self.day_bias = nn.Parameter(torch.zeros(n_days, n_features))  # [days, C]
        self.gru = nn.GRU(
            input_size=n_features * max(config.patch_size, 1),
            hidden_size=config.n_units,
            num_layers=config.n_layers,
            dropout=config.rnn_dropout if config.n_layers > 1 else 0.0,
            batch_first=True,
        )
        self.out = nn.Linear(config.n_units, n_classes)
        self.h0 = nn.Parameter(torch.empty(1, 1, config.n_units))
        self._initialise()

    def _initialise(self) -> None:
        # nn.GRU stacks its three gates in one matrix [3D, .]; the release initialises the stack, not each gate.
        for name, parameter in self.gru.named_parameters():
            if "weight_hh" in name:
                nn.init.orthogonal_(parameter)
            elif "weight_ih" in name:
                nn.init.xavier_uniform_(parameter)
        nn.init.xavier_uniform_(self.out.weight)
        nn.init.xavier_uniform_(self.h0)
        self.gru.requires_grad_(self.config.rnn_trainable)
        self.day_weight.requires_grad_(self.config.input_network.input_trainable)
        self.day_bias.requires_grad_(self.config.input_network.input_trainable)

    def n_patches(self, n_bins: Any) -> Any:
        """Frames of logits for `n_bins` bins (an int, array or tensor): none for fewer than one patch."""
        if self.config.patch_size == 0:
            return n_bins
        n_patches = (n_bins - self.config.patch_size) // self.config.patch_stride + 1
        return n_patches * (n_patches > 0)

    def forward(
        self, x_BTC: torch.Tensor, day_B: torch.Tensor, state_LBD: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of a batch of trials.

        x_BTC: float [B, T, C], smoothed features, T at least one patch
        day_B: int64 [B], the recording day of each trial
        state_LBD: float [L, B, D], the GRU state to go on from; None starts from the learnt one
        Returns float [B, P, V] (not normalised) and the state after the last patch. Feeding a trial in pieces, each
        beginning `patch_stride` bins after the last patch of the piece before, gives the logits of the whole trial.
        """
        x_BTC = torch.baddbmm(self.day_bias[day_B].unsqueeze(1), x_BTC, self.day_weight[day_B])
        x_BTC = dropout(nn.functional.softsign(x_BTC), self.config.input_network.input_layer_dropout, self.training)
        if state_LBD is None:
            state_LBD = self.h0.expand(self.config.n_layers, len(x_BTC), -1).contiguous()
        if self.config.patch_size:
            x_BTC = patches(x_BTC, self.config.patch_size, self.config.patch_stride)
        hidden_BPD, state_LBD = gru(self.gru, x_BTC, state_LBD)
        return self.out(hidden_BPD), state_LBD
