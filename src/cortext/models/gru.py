"""The baseline decoder of the Brain-to-Text benchmarks.

Neural features in, phoneme logits every 80 ms out.

Follows the public release of Card et al., "An accurate and rapidly calibrating speech
neuroprosthesis" (NEJM 2024). From top to bottom:

1. day layer   Electrodes drift, so every recording day has its own affine map of the features. It
starts as the
               identity and learns to bring the days into one space; a softsign keeps outliers in
               bounds.
2. patches     14 bins (280 ms) every 4 bins (80 ms) are laid side by side as one long vector.
3. GRU         A recurrent network reads the patches in order. Its first state is learnt.
4. output      A linear map to one logit per token: the CTC blank, 39 phonemes, and the silence
between words.

Shapes: B trials, T bins of 20 ms, C features, P patches, D hidden units, L layers, V tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import nn

from cortext.models.inputs import LAYERS, UNITS, DayLayers, InputNetworkConfig, check_settings
from cortext.models.layers import gru, initialise
from cortext.models.registry import register


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
        check_settings(self, {"n_units": UNITS, "n_layers": LAYERS})


@register("gru")
class GRU(DayLayers):
    """Day layer, patches, GRU, output. Input and output are described in `forward`."""

    Config: ClassVar[type] = GRUConfig

    def __init__(self, config: GRUConfig, *, n_features: int, n_days: int, n_classes: int) -> None:
        super().__init__(config, n_features=n_features, n_days=n_days)
        self.gru = nn.GRU(
            input_size=self.patch_width,
            hidden_size=config.n_units,
            num_layers=config.n_layers,
            dropout=config.rnn_dropout if config.n_layers > 1 else 0.0,
            batch_first=True,
        )
        self.out = nn.Linear(config.n_units, n_classes)
        self.h0 = nn.Parameter(torch.empty(1, 1, config.n_units))
        initialise(self.gru, self.out, self.h0)
        self.gru.requires_grad_(config.rnn_trainable)

    def first_state(self, n_trials: int) -> torch.Tensor:
        """The learnt state [L, B, D] with which trials begin."""
        return self.h0.expand(self.config.n_layers, n_trials, -1).contiguous()

    @property
    def n_hidden(self) -> int:
        """Hidden units that `read_out` reads."""
        return self.gru.hidden_size

    @property
    def read_out(self) -> nn.Linear:
        """Hidden units to logits."""
        return self.out

    def forward(
        self,
        x_BTC: torch.Tensor,
        day_B: torch.Tensor,
        state_LBD: torch.Tensor | None = None,
        *,
        n_patches_B: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits of a batch of trials.

        Returns float [B, P, V] (not normalised) and the state after the last patch. Feeding a trial
        in pieces, each beginning `patch_stride` bins after the last patch of the piece before,
        gives the logits of the whole trial.

        Args:
            x_BTC: Float [B, T, C], smoothed features, T at least one patch.
            day_B: int64 [B], the recording day of each trial.
            state_LBD: Float [L, B, D], the GRU state to go on from; None starts from the learnt
                one.
            n_patches_B: int64 [B], the patches of each trial, what follows being padding; None:
                there is no padding.
        """
        hidden_BPD, state_LBD = self.hidden(x_BTC, day_B, state_LBD, n_patches_B=n_patches_B)
        return self.out(hidden_BPD), state_LBD

    def hidden(
        self,
        x_BTC: torch.Tensor,
        day_B: torch.Tensor,
        state_LBD: torch.Tensor | None = None,
        *,
        n_patches_B: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden units float [B, P, D], which `out` makes logits of, and the state.

        Otherwise like `forward`.
        """
        x_BPI = self.inputs(x_BTC, day_B)
        if state_LBD is None:
            state_LBD = self.first_state(len(x_BPI))
        return gru(self.gru, x_BPI, state_LBD, n_patches_B)
