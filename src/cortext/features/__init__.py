"""What happens to neural features between the recording and the model: smoothing and augmentation."""

from cortext.features.augment import Augmentation, augment, prepare
from cortext.features.smooth import gaussian_kernel, smooth

__all__ = ["Augmentation", "augment", "gaussian_kernel", "prepare", "smooth"]
