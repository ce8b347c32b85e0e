"""Neural features between the recording and the model: smoothing, normalising, augmentation."""

from cortext.data.rebin import rebin
from cortext.features.augment import (
    AugmentationConfig,
    Augmenter,
    augment,
    augmentation_configs,
    build_augmentations,
    prepare,
    register_augmentation,
)
from cortext.features.augmentations import ChannelDropoutConfig, GainConfig, TimeMaskConfig
from cortext.features.smooth import gaussian_kernel, smooth

__all__ = [
    "AugmentationConfig",
    "Augmenter",
    "ChannelDropoutConfig",
    "GainConfig",
    "TimeMaskConfig",
    "augment",
    "augmentation_configs",
    "build_augmentations",
    "gaussian_kernel",
    "prepare",
    "rebin",
    "register_augmentation",
    "smooth",
]
