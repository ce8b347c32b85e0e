"""Time masking: stretches of a trial are silenced, so that the model learns to bridge gaps from
the context.

From SpecAugment (Park et al., Interspeech 2019). Feghhi et al. (NeurIPS 2025, arXiv 2507.02800)
bring it to neural speech decoding with many masks: more than half of each trial is masked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from cortext.errors import ConfigError
from cortext.features.augment import register_augmentation

MOST_MASKS = 100
"""Each mask takes a byte for each bin of a batch."""


@dataclass
class TimeMaskConfig:
    """An entry of `dataset.augmentations` for `kind: time_mask`."""

    kind: Literal["time_mask"] = "time_mask"
    """Which augmentation this is."""
    n_masks: int = 2
    """Masks per trial; they may overlap."""
    max_share: float = 0.1
    """Longest mask as a share of the trial's bins; lengths from 0 up to it are equally likely."""
    max_bins: int | None = None
    """Longest mask in bins, where that is less; null for no such limit."""

    def __post_init__(self) -> None:
        if (
            not 1 <= self.n_masks <= MOST_MASKS
            or not 0 < self.max_share <= 1
            or (self.max_bins is not None and self.max_bins < 1)
        ):
            found = (
                f"n_masks {self.n_masks}, max_share {self.max_share} and max_bins {self.max_bins}"
            )
            needed = f"from 1 to {MOST_MASKS}, in (0, 1] and 1 or more (or null)"
            raise ConfigError(f"time_mask has {found}; {needed} are needed")


@register_augmentation("time_mask")
class TimeMask:
    """Sets all features of some stretches of every trial to zero.

    The same number of masks for each trial.
    """

    Config: ClassVar[type] = TimeMaskConfig

    def __init__(self, config: TimeMaskConfig) -> None:
        self.config = config

    def __call__(
        self, x_BTC: torch.Tensor, n_bins_B: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """See `Augmenter`. Masks lie within the trial's bins."""
        n_trials, n_bins, _ = x_BTC.shape
        bins_B1 = n_bins_B.to(x_BTC.device)[:, None]
        longest_B1 = (bins_B1 * self.config.max_share).floor()
        if self.config.max_bins is not None:
            longest_B1 = longest_B1.clamp(max=self.config.max_bins)
        draw = torch.rand(
            2, n_trials, self.config.n_masks, generator=generator, device=x_BTC.device
        )
        length_BM = (draw[0] * (longest_B1 + 1)).floor()
        start_BM = (draw[1] * (bins_B1 - length_BM + 1)).floor()
        t_T = torch.arange(n_bins, device=x_BTC.device)
        inside_BMT = (t_T >= start_BM[..., None]) & (t_T < (start_BM + length_BM)[..., None])
        return x_BTC.masked_fill(inside_BMT.any(1)[..., None], 0.0)
