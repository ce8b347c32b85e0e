"""A decoder that subtracts the noise from the features, taught to do so by an adversary.

    x_BTC        [B, T, C]     smoothed features
      day layer, patches       as in the baseline (`gru.py`), once for all three networks
    x_BPI        [B, P, I]
      noise model              GRU, linear map
    noise_BPI    [B, P, I]     an estimate of the part of a patch that is not speech
      |
      |--> x_BPI - noise_BPI --> clean-speech model: GRU, linear map --> logits_BPV, the result
      |
      `--> reversed gradient --> noisy-speech model: GRU, linear map --> logits_BPV, training only

1. The noise model alone would be free to put anything into the noise, even the speech.
2. The noisy-speech model is the adversary: it learns to read the phonemes from the noise.
3. The sign of its gradient is reversed before it reaches the noise model. The noise model therefore
   unlearns whatever helps the adversary, until the noise holds no speech.
4. The clean-speech model is the decoder. After training the adversary is not run and costs nothing.

Gradient reversal is due to Ganin et al., "Domain-adversarial training of neural networks" (JMLR
2016). The loss is in `cortext.training.adversarial`.

Shapes: B trials, T bins, C features, P patches, I values in a patch, D hidden units, L layers,
V tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import torch
from torch import nn

from cortext.arguments import as_count, check_type
from cortext.errors import ConfigError
from cortext.models.inputs import (
    LAYERS,
    PATCH_SIZE,
    PATCH_STRIDE,
    UNITS,
    DayLayers,
    InputNetworkConfig,
    check_settings,
)
from cortext.models.layers import gru, initialise, reverse_gradient
from cortext.models.registry import register
from cortext.settings import FROM_0_BELOW_1

State = tuple[torch.Tensor, torch.Tensor]
"""Hidden states [L, B, D] of the noise model and of the clean-speech model."""


@dataclass
class TripleGRUConfig:
    """Section `model` for `kind: triple_gru`."""

    kind: Literal["triple_gru"] = "triple_gru"
    """Name of the model."""
    n_input_features: Annotated[int | None, UNITS] = None
    """Neural features per bin; null takes what the data have (after `dataset.feature_subset`)."""
    noise_units: Annotated[int, UNITS] = 768
    """Hidden units of a layer of the noise model.

    If a patch has as many values (7,168 in the published shape), the units are the estimate. For
    any other number, a linear map turns the units into the values of a patch.
    """
    noise_layers: Annotated[int, LAYERS] = 2
    """Layers of the noise model."""
    clean_units: Annotated[int, UNITS] = 768
    """Hidden units of a layer of the clean-speech model."""
    clean_layers: Annotated[int, LAYERS] = 3
    """Layers of the clean-speech model."""
    noisy_units: Annotated[int, UNITS] = 768
    """Hidden units of a layer of the noisy-speech model."""
    noisy_layers: Annotated[int, LAYERS] = 2
    """Layers of the noisy-speech model."""
    rnn_dropout: Annotated[float, FROM_0_BELOW_1] = 0.4
    """Dropout between the layers of each network."""
    patch_size: Annotated[int, PATCH_SIZE] = 14
    """Bins in a patch; 0 gives the networks single bins."""
    patch_stride: Annotated[int, PATCH_STRIDE] = 4
    """Bins from one patch to the next."""
    input_network: InputNetworkConfig = field(default_factory=InputNetworkConfig)
    """The day layer."""

    def __post_init__(self) -> None:
        check_settings(self)
        if self.input_network.read_in is not None:
            problem = f"model.input_network.read_in is {self.input_network.read_in}"
            raise ConfigError(f"{problem}; a triple_gru has no read-in layer", fix="leave it out")


class _Recurrent(DayLayers):
    """A GRU that begins in a learnt state, and a linear map of its hidden units.

    Args:
        config: Dropout, patches and day layers.
        n_features: Features of a bin, C.
        n_days: Number of day layers; None for none: it then reads patches that another network has
            made.
        n_units: Hidden units of a layer, D.
        n_layers: Number of layers, L.
        n_out: Outputs of the linear map; None leaves the map out and returns the hidden units.
    """

    def __init__(
        self,
        config: TripleGRUConfig,
        *,
        n_features: int,
        n_days: int | None,
        n_units: int,
        n_layers: int,
        n_out: int | None,
    ) -> None:
        super().__init__(config, n_features=n_features, n_days=n_days)
        dropout = config.rnn_dropout if n_layers > 1 else 0.0
        self.gru = nn.GRU(self.patch_width, n_units, n_layers, batch_first=True, dropout=dropout)
        self.out = nn.Linear(n_units, n_out) if n_out is not None else None
        self.h0 = nn.Parameter(torch.empty(1, 1, n_units))
        initialise(self.gru, self.out, self.h0)

    def first_state(self, n_trials: int) -> torch.Tensor:
        """Return the learnt state [L, B, D] with which trials begin."""
        return self.h0.expand(self.gru.num_layers, n_trials, -1).contiguous()

    def forward(
        self,
        x: torch.Tensor,
        day_B: torch.Tensor | None = None,
        state_LBD: torch.Tensor | None = None,
        n_patches_B: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the output float [B, P, .] and the state after the last patch; see `hidden`."""
        hidden_BPD, state_LBD = self.hidden(x, day_B, state_LBD, n_patches_B)
        return hidden_BPD if self.out is None else self.out(hidden_BPD), state_LBD

    def hidden(
        self,
        x: torch.Tensor,
        day_B: torch.Tensor | None = None,
        state_LBD: torch.Tensor | None = None,
        n_patches_B: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the hidden units float [B, P, D] and the state after the last patch.

        Args:
            x: Patches [B, P, I]; with day layers, smoothed features [B, T, C].
            day_B: int64 [B], the day layer of each trial; None without day layers.
            state_LBD: The state to continue from; None takes the learnt one.
            n_patches_B: int64 [B], patches of each trial, the others being padding; None if
                nothing is padded.

        Returns:
            Hidden units float [B, P, D] and the state float [L, B, D].
        """
        x_BPI = self.inputs(x, day_B)
        if state_LBD is None:
            state_LBD = self.first_state(len(x_BPI))
        return gru(self.gru, x_BPI, state_LBD, n_patches_B)


class NoiseModel(_Recurrent):
    """The network that estimates the noise [B, P, I] in patches.

    With `n_days` it has day layers of its own and can be used alone.
    """

    def __init__(
        self, config: TripleGRUConfig, *, n_features: int, n_days: int | None = None
    ) -> None:
        check_type(config, TripleGRUConfig, "config", "a TripleGRUConfig")
        as_count(n_features, "n_features", 1)
        width = n_features * max(config.patch_size, 1)  # of a patch; without patches, of a bin
        super().__init__(
            config,
            n_features=n_features,
            n_days=n_days,
            n_units=config.noise_units,
            n_layers=config.noise_layers,
            n_out=None if config.noise_units == width else width,
        )


class CleanSpeechModel(_Recurrent):
    """The decoder: the network that computes logits [B, P, V] of patches without noise.

    With `n_days` it has day layers of its own and can be used alone.
    """

    def __init__(
        self, config: TripleGRUConfig, *, n_features: int, n_classes: int, n_days: int | None = None
    ) -> None:
        check_type(config, TripleGRUConfig, "config", "a TripleGRUConfig")
        as_count(n_classes, "n_classes", 1)
        super().__init__(
            config,
            n_features=n_features,
            n_days=n_days,
            n_units=config.clean_units,
            n_layers=config.clean_layers,
            n_out=n_classes,
        )


class NoisySpeechModel(_Recurrent):
    """The adversary: the network that computes logits [B, P, V] of the noise in patches.

    It has no day layers, because the patches that the noise is estimated from have passed them.
    """

    def __init__(self, config: TripleGRUConfig, *, n_features: int, n_classes: int) -> None:
        super().__init__(
            config,
            n_features=n_features,
            n_days=None,
            n_units=config.noisy_units,
            n_layers=config.noisy_layers,
            n_out=n_classes,
        )


@register("triple_gru")
class TripleGRU(DayLayers):
    """Day layers, patches and the three networks; see `forward`."""

    Config: ClassVar[type] = TripleGRUConfig
    default_loss: ClassVar[str] = "adversarial"

    def __init__(
        self, config: TripleGRUConfig, *, n_features: int, n_days: int, n_classes: int
    ) -> None:
        super().__init__(config, n_features=n_features, n_days=n_days)
        self.noise_model = NoiseModel(config, n_features=n_features)
        self.clean_speech_model = CleanSpeechModel(
            config, n_features=n_features, n_classes=n_classes
        )
        self.noisy_speech_model = NoisySpeechModel(
            config, n_features=n_features, n_classes=n_classes
        )

    @property
    def n_hidden(self) -> int:
        """Number of hidden units that `read_out` takes, D."""
        return self.clean_speech_model.gru.hidden_size

    @property
    def read_out(self) -> nn.Module:
        """The map from hidden units of the clean-speech model to logits."""
        assert self.clean_speech_model.out is not None
        return self.clean_speech_model.out

    def first_state(self, n_trials: int) -> State:
        """Return the learnt states with which trials begin."""
        return self.noise_model.first_state(n_trials), self.clean_speech_model.first_state(n_trials)

    def forward(
        self,
        x_BTC: torch.Tensor,
        day_B: torch.Tensor,
        state: State | None = None,
        mode: Literal["inference", "full"] = "inference",
        reversal: float | torch.Tensor = 0.0,
        *,
        n_patches_B: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, State] | tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Compute the logits of a batch of trials.

        A trial may come in pieces, as described in `GRU.forward`.

        Args:
            x_BTC: Float [B, T, C], smoothed features, T at least one patch.
            day_B: int64 [B], the day layer of each trial.
            state: Hidden states to continue from; None takes the learnt ones.
            mode: `inference` leaves the adversary out; `full` is for training.
            reversal: Factor of the adversary's gradient, sign reversed, at the noise model.
            n_patches_B: int64 [B], patches of each trial, the others being padding; None if
                nothing is padded.

        Returns:
            For `inference`, logits float [B, P, V] (not normalised) and the states after the last
            patch. For `full`, the same logits, those of the adversary [B, P, V], and the noise
            [B, P, I].
        """
        noise_BPI, hidden_BPD, states = self._read(x_BTC, day_B, state, n_patches_B)
        clean_BPV = self.read_out(hidden_BPD)
        if mode == "inference":
            return clean_BPV, states
        # The adversary's states are not needed: in training trials are not split into pieces.
        noisy_BPV, _ = self.noisy_speech_model(
            reverse_gradient(noise_BPI, reversal), n_patches_B=n_patches_B
        )
        return clean_BPV, noisy_BPV, noise_BPI

    def hidden(
        self,
        x_BTC: torch.Tensor,
        day_B: torch.Tensor,
        state: State | None = None,
        *,
        n_patches_B: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, State]:
        """Compute the clean-speech model's hidden units; a speech LLM reads them.

        Args:
            x_BTC: Float [B, T, C], smoothed features, T at least one patch.
            day_B: int64 [B], the day layer of each trial.
            state: Hidden states to continue from; None takes the learnt ones.
            n_patches_B: int64 [B], patches of each trial; None if nothing is padded.

        Returns:
            Hidden units float [B, P, D], and the states after the last patch.
        """
        _, hidden_BPD, states = self._read(x_BTC, day_B, state, n_patches_B)
        return hidden_BPD, states

    def _read(
        self,
        x_BTC: torch.Tensor,
        day_B: torch.Tensor,
        state: State | None,
        n_patches_B: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, State]:
        """Return the noise [B, P, I], the clean-speech hidden units [B, P, D], and the states."""
        x_BPI = self.inputs(x_BTC, day_B)
        noise_state, clean_state = state or (None, None)
        noise_BPI, noise_state = self.noise_model(
            x_BPI, state_LBD=noise_state, n_patches_B=n_patches_B
        )
        hidden_BPD, clean_state = self.clean_speech_model.hidden(
            x_BPI - noise_BPI, state_LBD=clean_state, n_patches_B=n_patches_B
        )
        return noise_BPI, hidden_BPD, (noise_state, clean_state)
