"""The baseline decoder of the Brain-to-Text benchmarks: day layer, patches, GRU, output.

Neural features in, logits of tokens out. It follows the public release of Card et al., "An accurate
and rapidly calibrating speech neuroprosthesis" (NEJM 2024). From top to bottom, with the shapes of
the published model and its bins of 20 ms:

    x_BTC          [B, T, 512]     smoothed features: 256 electrodes, two features each
      day layer                    x W[day] + b[day], softsign, dropout
    x_BTC          [B, T, 512]
      patches                      14 bins (280 ms) side by side, every 4 bins (80 ms)
    x_BPI          [B, P, 7168]    P = (T - 14) // 4 + 1
      GRU                          5 layers of 768 units, dropout between them
    hidden_BPD     [B, P, 768]
      output                       one linear map
    logits_BPV     [B, P, 41]      the CTC blank, 39 phonemes, the silence between words

1. Day layer (`inputs.py`). Electrodes move and neurons come and go overnight, so that every
   recording day has an affine map of its own. It begins as the identity and learns to bring the
   days into one space that the GRU reads.
2. Patches (`layers.py`). A phoneme takes about 100 ms. A patch shows the GRU more than a phoneme
   at once, and its stride makes sequences four times shorter: less to compute, and fewer steps for
   gradients to go back through. It also bounds the speed of speech: CTC needs a frame for every
   phoneme, and one more between two that are equal.
3. GRU. It reads forwards only, so that the same network decodes while somebody speaks.
4. Output. CTC (`cortext.training.loss`) takes the logits of all frames and learns which frame is
   which phoneme by itself: recordings of attempted speech have no alignment.

Shapes: B trials, T bins, C features, P patches, I values in a patch, D hidden units, L layers,
V tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from torch import nn

from cortext.arguments import as_count
from cortext.models.heads import Diphones, outputs, read_out_layer
from cortext.models.inputs import (
    LAYERS,
    PATCH_SIZE,
    PATCH_STRIDE,
    UNITS,
    DayLayers,
    InputNetworkConfig,
    check_settings,
)
from cortext.models.layers import gru, initialise
from cortext.models.registry import Output, register
from cortext.settings import FROM_0_BELOW_1


@dataclass
class GRUConfig:
    """Section `model` for `kind: gru`; the defaults are the published values."""

    kind: Literal["gru"] = "gru"
    """Name of the model."""
    n_input_features: Annotated[int | None, UNITS] = None
    """Neural features per bin; null takes what the data have (after `dataset.feature_subset`)."""
    n_units: Annotated[int, UNITS] = 768
    """Hidden units of a GRU layer."""
    n_layers: Annotated[int, LAYERS] = 5
    """GRU layers."""
    rnn_dropout: Annotated[float, FROM_0_BELOW_1] = 0.4
    """Dropout between GRU layers."""
    rnn_trainable: bool = True
    """Train the GRU; false trains only the day layers and the output."""
    patch_size: Annotated[int, PATCH_SIZE] = 14
    """Bins in a patch; 0 gives the GRU single bins."""
    patch_stride: Annotated[int, PATCH_STRIDE] = 4
    """Bins from one patch to the next."""
    diphones: bool = False
    """Learn pairs of tokens, whose probabilities are added up to those of the tokens."""
    intermediate_layer: int | None = None
    """Layer, counted from 1, that the loss reads through the output, too; null for none."""
    input_network: InputNetworkConfig = field(default_factory=InputNetworkConfig)
    """The day layer."""

    def __post_init__(self) -> None:
        check_settings(self)


@register("gru")
class GRU(DayLayers):
    """Day layer, patches, GRU and output; see `forward`."""

    Config: ClassVar[type] = GRUConfig

    def __init__(self, config: GRUConfig, *, n_features: int, n_days: int, n_classes: int) -> None:
        super().__init__(config, n_features=n_features, n_days=n_days)
        as_count(n_classes, "n_classes", 1)
        self.gru = nn.GRU(
            input_size=self.patch_width,
            hidden_size=config.n_units,
            num_layers=config.n_layers,
            # nn.GRU drops between layers only, and warns if there is only one.
            dropout=config.rnn_dropout if config.n_layers > 1 else 0.0,
            batch_first=True,
        )
        self.out = read_out_layer(config.n_units, n_classes, config.diphones)
        # One learnt first state for all layers and trials, as in the release.
        self.h0 = nn.Parameter(torch.empty(1, 1, config.n_units))
        out = self.out.diphones if isinstance(self.out, Diphones) else self.out
        initialise(self.gru, out, self.h0)
        self.gru.requires_grad_(config.rnn_trainable)

    def first_state(self, n_trials: int) -> torch.Tensor:
        """Return the learnt state [L, B, D] with which trials begin."""
        return self.h0.expand(self.config.n_layers, n_trials, -1).contiguous()

    @property
    def n_hidden(self) -> int:
        """Number of hidden units that `read_out` takes, D."""
        return self.gru.hidden_size

    @property
    def read_out(self) -> nn.Module:
        """The map from hidden units to logits."""
        return self.out

    def forward(
        self,
        x_BTC: torch.Tensor,
        day_B: torch.Tensor,
        state_LBD: torch.Tensor | None = None,
        *,
        n_patches_B: torch.Tensor | None = None,
    ) -> Output | tuple[torch.Tensor, torch.Tensor]:
        """Compute the logits of a batch of trials.

        A trial may come in pieces, as in live decoding, where a piece is one patch. A piece begins
        `patch_stride` bins after the first bin of the last patch before it, and takes the state
        after that patch.

        Args:
            x_BTC: Float [B, T, C], smoothed features, T at least one patch.
            day_B: int64 [B], the day layer of each trial.
            state_LBD: Float [L, B, D], the state to continue from; None takes the learnt one.
            n_patches_B: int64 [B], patches of each trial, the others being padding; None if
                nothing is padded.

        Returns:
            Logits float [B, P, V], not normalised (the loss and the search take the log-softmax in
            float32), and the state float [L, B, D] after the last patch. With `n_patches_B` also
            what a loss reads of diphones and of the intermediate layer; see `heads.outputs`.
        """
        hidden_BPD, middle_BPD, state_LBD = self._run(x_BTC, day_B, state_LBD, n_patches_B)
        if n_patches_B is None:
            return self.out(hidden_BPD), state_LBD
        return outputs(self.out, hidden_BPD, middle_BPD, state_LBD)

    def hidden(
        self,
        x_BTC: torch.Tensor,
        day_B: torch.Tensor,
        state_LBD: torch.Tensor | None = None,
        *,
        n_patches_B: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the hidden units that `out` reads; a speech LLM reads them instead of logits.

        Args:
            x_BTC: Float [B, T, C], smoothed features, T at least one patch.
            day_B: int64 [B], the day layer of each trial.
            state_LBD: Float [L, B, D], the state to continue from; None takes the learnt one.
            n_patches_B: int64 [B], patches of each trial; None if nothing is padded.

        Returns:
            Hidden units float [B, P, D], and the state float [L, B, D] after the last patch.
        """
        hidden_BPD, _, state_LBD = self._run(x_BTC, day_B, state_LBD, n_patches_B)
        return hidden_BPD, state_LBD

    def _run(
        self,
        x_BTC: torch.Tensor,
        day_B: torch.Tensor,
        state_LBD: torch.Tensor | None,
        n_patches_B: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """Compute the hidden units of the last and the intermediate layer, and the state."""
        x_BPI = self.inputs(x_BTC, day_B)
        if state_LBD is None:
            state_LBD = self.first_state(len(x_BPI))
        middle = self.config.intermediate_layer
        if middle is None or n_patches_B is None:
            hidden_BPD, state_LBD = gru(self.gru, x_BPI, state_LBD, n_patches_B)
            return hidden_BPD, None, state_LBD
        lower, upper = range(middle), range(middle, self.config.n_layers)
        middle_BPD, low_LBD = gru(self.gru, x_BPI, state_LBD[:middle], n_patches_B, lower)
        hidden_BPD, high_LBD = gru(self.gru, middle_BPD, state_LBD[middle:], n_patches_B, upper)
        return hidden_BPD, middle_BPD, torch.cat((low_LBD, high_LBD))
