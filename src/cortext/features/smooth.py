"""Gaussian smoothing over time, as the public release of the T15 baseline does it.

During training and its validations the release smooths a whole zero-padded batch with padding
`same`. When it evaluates a trained model it smooths one trial at a time with padding `valid`, which
takes `K - 1` bins off the trial.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F

from cortext.arguments import as_count, as_number, check_type
from cortext.errors import ConfigError, DataError
from cortext.memory import to_device

KERNEL_FLOOR = 0.01
"""Largest tap that is cut before the kernel is renormalised."""
TRUNCATE = 4.0
"""Standard deviations after which `scipy.ndimage.gaussian_filter1d` ends its own kernel."""

MOST_STD = 1_000
"""Largest standard deviation of the kernel, in bins."""
MOST_POINTS = 10_000
"""Most points of the kernel; computing them takes a tenth of a second."""

_BOUNDS = f"above 0 and at most {MOST_STD:,}, and from 1 to {MOST_POINTS:,}, are needed"


def check_kernel(std_bins: float, size: int) -> None:
    """Raise ValueError for a kernel that `gaussian_kernel` cannot make in little time."""
    if not 0 < std_bins <= MOST_STD or not 1 <= size <= MOST_POINTS:
        problem = f"smooth_kernel_std is {std_bins} and smooth_kernel_size {size}"
        raise ValueError(f"{problem}; {_BOUNDS}")
    gaussian_kernel(std_bins, size)


def gaussian_kernel(std_bins: float = 2, size: int = 100) -> np.ndarray:
    """Return the taps of the smoothing, float32 [K], which sum to one.

    They are the response of `scipy.ndimage.gaussian_filter1d` to an impulse in the middle of `size`
    points (reflected at the ends), without the points at or below 0.01, and renormalised. The
    published std of 2 bins on 100 points gives 9 taps.

    Raises:
        WrongType: For anything but a number and a whole number.
        ValueError: If no tap is above 0.01 (a std of 40 bins or more, on as many points).
        ConfigError: For a std or a number of points out of bounds.
    """
    std_bins, size = as_number(std_bins, "std_bins"), as_count(size, "size")
    if not 0 < std_bins <= MOST_STD or not 1 <= size <= MOST_POINTS:
        raise ConfigError(f"std_bins is {std_bins:g} and size {size}; {_BOUNDS}")
    return _kernel(std_bins, size)


@lru_cache(maxsize=32)
def _kernel(std_bins: float, size: int) -> np.ndarray:
    radius = int(TRUNCATE * std_bins + 0.5)
    weights = np.exp(-0.5 * (np.arange(-radius, radius + 1) / std_bins) ** 2)
    impulse = np.zeros(size)
    impulse[size // 2] = 1
    response = np.convolve(
        np.pad(impulse, radius, mode="symmetric"), weights / weights.sum(), mode="valid"
    )
    kernel = response.astype(np.float32)
    kernel = kernel[kernel > KERNEL_FLOOR]
    if not len(kernel):
        raise ValueError(
            f"a smoothing std of {std_bins} bins leaves no tap above {KERNEL_FLOOR}; use a"
            " smaller one"
        )
    return np.asarray(kernel / kernel.sum(), dtype=np.float32)


def smooth(
    x_BTC: torch.Tensor,
    std_bins: float = 2,
    size: int = 100,
    padding: Literal["same", "valid"] = "same",
) -> torch.Tensor:
    """Smooth features over time.

    Args:
        x_BTC: Float [B, T, C] on any device.
        std_bins: Standard deviation of the kernel, in bins.
        size: Points of the kernel before its tails are cut; see `gaussian_kernel`.
        padding: `same` keeps all T bins and takes zeros outside the trial; `valid` keeps the
            T - K + 1 bins that all K taps reach.

    Returns:
        Float32 [B, T, C], or [B, T - K + 1, C].

    Raises:
        ValueError: If `valid` would leave no bin.
    """
    check_batch(x_BTC)
    if padding not in ("same", "valid"):
        raise ConfigError(f"padding is {padding!r}; use 'same' or 'valid'")
    kernel_K = to_device(torch.from_numpy(gaussian_kernel(std_bins, size)), x_BTC.device)
    n_bins = x_BTC.shape[1]
    if padding == "valid" and n_bins < len(kernel_K):
        raise ValueError(
            f"{n_bins} bins are too few to smooth with {len(kernel_K)} taps and padding 'valid'"
        )
    before = (len(kernel_K) - 1) // 2 if padding == "same" else 0
    after = len(kernel_K) - 1 - before if padding == "same" else 0
    weigh = _add_up if x_BTC.device.type == "cpu" else _convolve
    return weigh(x_BTC.float(), kernel_K, before, after)


def check_batch(x_BTC: torch.Tensor) -> None:
    """Raise WrongType or DataError for features that are no tensor [trials, bins, features]."""
    check_type(x_BTC, torch.Tensor, "features", "a tensor [trials, bins, features]")
    if x_BTC.ndim != 3:
        raise DataError(
            f"features have shape {list(x_BTC.shape)}; [trials, bins, features] is needed"
        )


def _convolve(x_BTC: torch.Tensor, kernel_K: torch.Tensor, before: int, after: int) -> torch.Tensor:
    n_features = x_BTC.shape[2]
    x_BCT = F.pad(x_BTC.transpose(1, 2), (before, after))
    return F.conv1d(x_BCT, kernel_K.expand(n_features, 1, -1), groups=n_features).transpose(1, 2)


def _add_up(x_BTC: torch.Tensor, kernel_K: torch.Tensor, before: int, after: int) -> torch.Tensor:
    # The same, tap by tap: on a CPU it takes half the time of a convolution, and leaves the
    # features of a bin side by side in memory, as the day layer reads them.
    x_BTC = F.pad(x_BTC, (0, 0, before, after))
    n_bins = x_BTC.shape[1] - len(kernel_K) + 1
    sum_BTC = x_BTC[:, :n_bins] * kernel_K[0]
    for lag, tap in enumerate(kernel_K.tolist()[1:], start=1):
        sum_BTC.add_(x_BTC[:, lag : lag + n_bins], alpha=tap)
    return sum_BTC
