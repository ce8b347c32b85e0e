"""Channel dropout.

Electrodes fall silent for a whole trial, as they do when they come loose or lose their neurons.

Dropout of whole channels is that of Tompson et al. (CVPR 2015, SpatialDropout), here along time.
What remains is not scaled up, for nothing makes up for an electrode that a recording has lost
either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from cortext.errors import ConfigError
from cortext.features.augment import register_augmentation


@dataclass
class ChannelDropoutConfig:
    """An entry of `dataset.augmentations` for `kind: channel_dropout`."""

    kind: Literal["channel_dropout"] = "channel_dropout"
    """Which augmentation this is."""
    probability: float = 0.1
    """Probability of an electrode to be silent in a trial."""
    features_per_electrode: int = 1
    """Features that an electrode has, and loses together.

    2 for threshold crossings of all electrodes, then spike-band power of all; with 1 every feature
    is an electrode of its own.
    """

    def __post_init__(self) -> None:
        if not 0 < self.probability < 1:
            raise ConfigError(
                f"channel_dropout has probability {self.probability}; it must be in (0, 1)"
            )
        if self.features_per_electrode < 1:
            found = f"channel_dropout has features_per_electrode {self.features_per_electrode}"
            raise ConfigError(f"{found}; it must be at least 1")


@register_augmentation("channel_dropout")
class ChannelDropout:
    """Sets all bins of some electrodes to zero, others in every trial."""

    Config: ClassVar[type] = ChannelDropoutConfig

    def __init__(self, config: ChannelDropoutConfig) -> None:
        self.config = config

    def __call__(
        self, x_BTC: torch.Tensor, n_bins_B: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """See `Augmenter`.

        Raises ConfigError where the features are no multiple of `features_per_electrode`.
        """
        n_trials, _, n_features = x_BTC.shape
        per_electrode = self.config.features_per_electrode
        if n_features % per_electrode:
            found = (
                f"channel_dropout.features_per_electrode is {per_electrode}; the data have"
                f" {n_features} features"
            )
            raise ConfigError(
                found, fix="set it to 1, or to the number of features that an electrode has"
            )
        shape = (n_trials, n_features // per_electrode)
        silent_BE = (
            torch.rand(shape, generator=generator, device=x_BTC.device) < self.config.probability
        )
        return x_BTC.masked_fill(silent_BE.repeat(1, per_electrode)[:, None], 0.0)
