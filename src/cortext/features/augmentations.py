"""Registered augmentations of training batches: channel dropout, gain and time masks.

Each is a dataclass with its settings and a class that changes a batch. B trials, T bins, C
features, E electrodes, M masks, P patches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch

from cortext.config import check_fields
from cortext.errors import ConfigError
from cortext.features.augment import register_augmentation
from cortext.memory import to_device
from cortext.settings import AT_LEAST_1, FROM_0_TO_1, Setting

MOST_MASKS = 100
"""Most time masks of a trial; each takes a byte for each bin of a batch."""
MOST_BINS = 1_000
"""Most bins of a patch, as in a model."""


@dataclass
class ChannelDropoutConfig:
    """An entry of `dataset.augmentations` for `kind: channel_dropout`."""

    kind: Literal["channel_dropout"] = "channel_dropout"
    """Name of the augmentation."""
    probability: Annotated[float, Setting(above=0, below=1)] = 0.1
    """Probability that an electrode is silent in a trial."""
    features_per_electrode: Annotated[int, AT_LEAST_1] = 1
    """Number of features of an electrode, which are dropped together.

    2 for threshold crossings of all electrodes followed by spike-band power of all. With 1 every
    feature is dropped on its own.
    """

    def __post_init__(self) -> None:
        check_fields(self, "channel_dropout.")


@register_augmentation("channel_dropout")
class ChannelDropout:
    """Electrodes that are silent for a whole trial, as when they come loose or lose their neurons.

    Dropout of whole channels is due to Tompson et al. (CVPR 2015, SpatialDropout); a channel here
    is an electrode's time course. The remaining electrodes are not scaled up, because nothing
    replaces an electrode that a recording has lost either.
    """

    Config: ClassVar[type] = ChannelDropoutConfig

    def __init__(self, config: ChannelDropoutConfig) -> None:
        self.config = config

    def __call__(
        self, x_BTC: torch.Tensor, n_bins_B: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """See `Augmenter`.

        Raises ConfigError if the features are not a multiple of `features_per_electrode`.
        """
        n_trials, _, n_features = x_BTC.shape
        per_electrode = self.config.features_per_electrode
        if n_features % per_electrode:
            problem = (
                f"channel_dropout.features_per_electrode is {per_electrode}; the data have"
                f" {n_features} features"
            )
            raise ConfigError(
                problem, fix="set it to 1, or to the number of features that an electrode has"
            )
        shape = (n_trials, n_features // per_electrode)
        silent_BE = (
            torch.rand(shape, generator=generator, device=x_BTC.device) < self.config.probability
        )
        return x_BTC.masked_fill(silent_BE.repeat(1, per_electrode)[:, None], 0.0)


@dataclass
class GainConfig:
    """An entry of `dataset.augmentations` for `kind: gain`."""

    kind: Literal["gain"] = "gain"
    """Name of the augmentation."""
    trial_std: Annotated[float, FROM_0_TO_1] = 0.05
    """Standard deviation of the trial's factor around 1."""
    feature_std: Annotated[float, FROM_0_TO_1] = 0.1
    """Standard deviation of a feature's factor around its trial's factor."""

    def __post_init__(self) -> None:
        check_fields(self, "gain.")


@register_augmentation("gain")
class Gain:
    """A factor for each feature of a trial, the same in all its bins.

    Sussillo et al. (Nature Communications 2016) multiply recordings in training by the sum of a
    factor of the trial, drawn around 1, and one of the electrode, drawn around 0, so that a decoder
    withstands changes from day to day.
    """

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


@dataclass
class TimeMaskConfig:
    """An entry of `dataset.augmentations` for `kind: time_mask`."""

    kind: Literal["time_mask"] = "time_mask"
    """Name of the augmentation."""
    n_masks: Annotated[int, Setting(minimum=1, maximum=MOST_MASKS)] = 2
    """Masks per trial; they may overlap."""
    max_share: Annotated[float, Setting(above=0, maximum=1)] = 0.1
    """Longest mask as a share of the trial's bins; lengths from 0 up to it are equally likely."""
    max_bins: int | None = None
    """Longest mask in bins; null for no limit beside `max_share`."""
    patch_bins: Annotated[int, Setting(minimum=1, maximum=MOST_BINS)] = 1
    """Bins of a patch. Masks begin and end where patches do.

    With a model whose patches do not overlap, take its `patch_size`: a patch is then hidden as a
    whole or not at all.
    """
    after_smoothing: bool = False
    """Mask smoothed features. Before smoothing, the edges of a mask fill with bins beside it."""

    def __post_init__(self) -> None:
        check_fields(self, "time_mask.")
        if self.max_bins is not None and self.max_bins < self.patch_bins:
            found = f"time_mask.max_bins is {self.max_bins}"
            raise ConfigError(f"{found}; it must be at least {self.patch_bins}, or null")


@register_augmentation("time_mask")
class TimeMask:
    """Masks that zero stretches of every trial, so that the model fills gaps from the context.

    They are the time masks of SpecAugment (Park et al., Interspeech 2019). Feghhi et al. (NeurIPS
    2025, arXiv 2507.02800) use them for neural speech decoding, with so many masks that more than
    half of each trial is masked. Of P patches, a mask hides a number that is drawn from 0 to
    floor(`max_share` * P), at a place drawn from all where it fits. M masks hide about
    1 - (1 - `max_share` / 2) ** M of a trial: 40 % for 20 masks of at most 5 %.
    """

    Config: ClassVar[type] = TimeMaskConfig

    def __init__(self, config: TimeMaskConfig) -> None:
        self.config = config
        self.after_smoothing = config.after_smoothing

    def __call__(
        self, x_BTC: torch.Tensor, n_bins_B: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """See `Augmenter`. Masks lie within the trial's patches, the last of which may be short."""
        n_trials, n_bins, _ = x_BTC.shape
        size = self.config.patch_bins
        n_bins_B = to_device(n_bins_B, x_BTC.device)
        patches_B1 = -(-n_bins_B[:, None] // size)
        longest_B1 = (patches_B1 * self.config.max_share).floor()
        if self.config.max_bins is not None:
            longest_B1 = longest_B1.clamp(max=self.config.max_bins // size)
        draw = torch.rand(
            2, n_trials, self.config.n_masks, generator=generator, device=x_BTC.device
        )
        length_BM = (draw[0] * (longest_B1 + 1)).floor()
        start_BM = (draw[1] * (patches_B1 - length_BM + 1)).floor()
        p_P = torch.arange(-(-n_bins // size), device=x_BTC.device)
        inside_BMP = (p_P >= start_BM[..., None]) & (p_P < (start_BM + length_BM)[..., None])
        inside_BT = inside_BMP.any(1).repeat_interleave(size, 1)[:, :n_bins]
        return x_BTC.masked_fill(inside_BT[..., None], 0.0)
