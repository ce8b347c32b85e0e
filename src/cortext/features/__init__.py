"""What happens to neural features between the recording and the model.

Smoothing and augmentation.
"""

from cortext.features.augment import (
    Augmentation,
    Augmenter,
    augment,
    augmentation_configs,
    build_augmentations,
    prepare,
    register_augmentation,
)
from cortext.features.channel_dropout import ChannelDropoutConfig
from cortext.features.gain import GainConfig
from cortext.features.smooth import gaussian_kernel, smooth
from cortext.features.time_mask import TimeMaskConfig

__all__ = [
    "Augmentation",
    "Augmenter",
    "ChannelDropoutConfig",
    "GainConfig",
    "TimeMaskConfig",
    "augment",
    "augmentation_configs",
    "build_augmentations",
    "gaussian_kernel",
    "prepare",
    "register_augmentation",
    "smooth",
]
