"""Random gain: a trial and each of its features are a little stronger or weaker than they were
recorded.

Sussillo et al. (Nature Communications 2016) perturb recordings in training by the sum of a factor
of the trial, drawn around 1, and one of the electrode, drawn around 0, so that a decoder withstands
changes from day to day.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from cortext.errors import ConfigError
from cortext.features.augment import register_augmentation


@dataclass
class GainConfig:
    """An entry of `dataset.augmentations` for `kind: gain`."""

    kind: Literal["gain"] = "gain"
    """Which augmentation this is."""
    trial_std: float = 0.05
    """Standard deviation of the trial's factor around 1."""
    feature_std: float = 0.1
    """Standard deviation of what each feature's factor differs from the trial's."""

    def __post_init__(self) -> None:
        for name in ("trial_std", "feature_std"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"gain has {name} {getattr(self, name)}; it must be in [0, 1]")


@register_augmentation("gain")
class Gain:
    """Multiplies every feature of a trial by a factor of its own, the same in all its bins."""

    Config: ClassVar[type] = GainConfig

    def __init__(self, config: GainConfig) -> None:
        self.config = config

    def __call__(
        self, x_BTC: torch.Tensor, n_bins_B: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """See `Augmenter`."""
        n_trials, _, n_features = x_BTC.shape
        trial_B11 = torch.randn(n_trials, 1, 1, generator=generator, device=x_BTC.device)
        feature_B1C = torch.randn(n_trials, 1, n_features, generator=generator, device=x_BTC.device)
        return x_BTC * (
            1 + self.config.trial_std * trial_B11 + self.config.feature_std * feature_B1C
        )
