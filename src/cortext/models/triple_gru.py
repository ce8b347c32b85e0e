"""A decoder that takes the noise out of the features before it reads them, held to it by an
adversary.

From top to bottom:

1. day layer and patches   As in the baseline (`gru.py`). They act once; all three networks get what
comes out.
2. noise model             A GRU that estimates the noise in every patch: what is in it and is not
speech.
3. clean-speech model      A GRU that reads the phonemes from the patches minus that noise. Its
logits are the result.
4. noisy-speech model      The adversary: a GRU that tries to read the phonemes from the noise
estimate. It learns to
                           succeed, while the reversed gradient teaches the noise model to leave it
                           no speech to read.
                           It works in training only and costs nothing afterwards.

The adversary and its reversed gradient are those of Ganin et al., "Domain-adversarial training of
neural networks" (JMLR 2016). What is minimised is in `cortext.training.adversarial`.

Shapes: B trials, T bins of 20 ms, C features, P patches, I values in a patch, D hidden units, L
layers, V tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import nn

from cortext.models.inputs import LAYERS, UNITS, DayLayers, InputNetworkConfig, check_settings
from cortext.models.layers import gru, initialise, reverse_gradient
from cortext.models.registry import register

State = tuple[torch.Tensor, torch.Tensor]
"""Hidden states [L, B, D] of the noise model and of the clean-speech model."""


@dataclass
class TripleGRUConfig:
    """Section `model` for `kind: triple_gru`."""

    kind: Literal["triple_gru"] = "triple_gru"
    """Which model this is."""
    n_input_features: int | None = None
    """Neural features per bin; null takes what the data have (after `dataset.feature_subset`)."""
    noise_units: int = 768
    """Hidden units of a layer of the noise model.

    As many as a patch has values (7,168 in the published shape) are the estimate themselves; from
    any other number a linear map reads it.
    """
    noise_layers: int = 2
    """Layers of the noise model."""
    clean_units: int = 768
    """Hidden units of a layer of the clean-speech model."""
    clean_layers: int = 3
    """Layers of the clean-speech model."""
    noisy_units: int = 768
    """Hidden units of a layer of the noisy-speech model."""
    noisy_layers: int = 2
    """Layers of the noisy-speech model."""
    rnn_dropout: float = 0.4
    """Dropout between the layers of each network."""
    patch_size: int = 14
    """Bins in a patch; 0 gives the networks single bins."""
    patch_stride: int = 4
    """Bins from one patch to the next."""
    input_network: InputNetworkConfig = field(default_factory=InputNetworkConfig)
    """The day layer."""

    def __post_init__(self) -> None:
        networks = ("noise", "clean", "noisy")
        bounds = {f"{name}_units": UNITS for name in networks} | {
            f"{name}_layers": LAYERS for name in networks
        }
        check_settings(self, bounds)


class _Recurrent(DayLayers):
    """A GRU from a learnt first state, and a linear map to `n_out` values.

    None gives out the hidden units.
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
        """The learnt state [L, B, D] with which trials begin."""
        return self.h0.expand(self.gru.num_layers, n_trials, -1).contiguous()

    def forward(
        self,
        x: torch.Tensor,
        day_B: torch.Tensor | None = None,
        state_LBD: torch.Tensor | None = None,
        n_patches_B: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Output float [B, P, .] and the state after the last patch; see `hidden`."""
        hidden_BPD, state_LBD = self.hidden(x, day_B, state_LBD, n_patches_B)
        return hidden_BPD if self.out is None else self.out(hidden_BPD), state_LBD

    def hidden(
        self,
        x: torch.Tensor,
        day_B: torch.Tensor | None = None,
        state_LBD: torch.Tensor | None = None,
        n_patches_B: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Hidden units float [B, P, D] and the state after the last patch.

        Args:
            x: Patches [B, P, I]; with day layers, smoothed features [B, T, C].
            day_B: int64 [B], the recording day of each trial, where there are day layers.
            state_LBD: The state to go on from; None starts from the learnt one.
            n_patches_B: int64 [B], the patches of each trial, what follows being padding; None:
                there is no padding.
        """
        x_BPI = self.inputs(x, day_B)
        if state_LBD is None:
            state_LBD = self.first_state(len(x_BPI))
        return gru(self.gru, x_BPI, state_LBD, n_patches_B)


class NoiseModel(_Recurrent):
    """Estimates the noise [B, P, I] in patches.

    `n_days` gives it day layers of its own, for use alone.
    """

    def __init__(
        self, config: TripleGRUConfig, *, n_features: int, n_days: int | None = None
    ) -> None:
        width = n_features * max(config.patch_size, 1)
        super().__init__(
            config,
            n_features=n_features,
            n_days=n_days,
            n_units=config.noise_units,
            n_layers=config.noise_layers,
            n_out=None if config.noise_units == width else width,
        )


class CleanSpeechModel(_Recurrent):
    """Logits [B, P, V] of patches without noise.

    `n_days` gives it day layers of its own, for use alone.
    """

    def __init__(
        self, config: TripleGRUConfig, *, n_features: int, n_classes: int, n_days: int | None = None
    ) -> None:
        super().__init__(
            config,
            n_features=n_features,
            n_days=n_days,
            n_units=config.clean_units,
            n_layers=config.clean_layers,
            n_out=n_classes,
        )


class NoisySpeechModel(_Recurrent):
    """Logits [B, P, V] of the noise in patches.

    It has no day layers: the noise has been through them.
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
    """Day layers, patches, and the three networks. Input and output are described in `forward`."""

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
        """Hidden units that `read_out` reads."""
        return self.clean_speech_model.gru.hidden_size

    @property
    def read_out(self) -> nn.Module:
        """Hidden units of the clean speech model to logits."""
        assert self.clean_speech_model.out is not None
        return self.clean_speech_model.out

    def first_state(self, n_trials: int) -> State:
        """The learnt states with which trials begin."""
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
        """Logits of a batch of trials.

        Returns, of `inference`, float [B, P, V] (not normalised) and the states after the last
        patch. Feeding a trial in pieces, each beginning `patch_stride` bins after the last patch of
        the piece before, gives the logits of the whole trial. Of `full`: the same logits, those of
        the adversary [B, P, V], and the noise [B, P, I].

        Args:
            x_BTC: Float [B, T, C], smoothed features, T at least one patch.
            day_B: int64 [B], the recording day of each trial.
            state: Hidden states to go on from; None starts from the learnt ones.
            mode: `inference` leaves the adversary out; `full` is for training.
            reversal: How much of the adversary's gradient the noise model gets, with the sign
                reversed.
            n_patches_B: int64 [B], the patches of each trial, what follows being padding; None:
                there is no padding.
        """
        noise_BPI, hidden_BPD, states = self._read(x_BTC, day_B, state, n_patches_B)
        clean_BPV = self.read_out(hidden_BPD)
        if mode == "inference":
            return clean_BPV, states
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
        """Hidden units float [B, P, D] of the clean speech model, and the states.

        Otherwise like `forward`.
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
        """The noise [B, P, I], what the clean speech model makes of the rest [B, P, D], and the
        states.
        """
        x_BPI = self.inputs(x_BTC, day_B)
        noise_state, clean_state = state or (None, None)
        noise_BPI, noise_state = self.noise_model(
            x_BPI, state_LBD=noise_state, n_patches_B=n_patches_B
        )
        hidden_BPD, clean_state = self.clean_speech_model.hidden(
            x_BPI - noise_BPI, state_LBD=clean_state, n_patches_B=n_patches_B
        )
        return noise_BPI, hidden_BPD, (noise_state, clean_state)
