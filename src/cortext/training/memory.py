"""Memory in training: trials on the device, and freed memory that stays with the process."""

from __future__ import annotations

import ctypes
import os
import platform

import numpy as np
import torch

from cortext.data.packed import PackedSplit
from cortext.errors import ConfigError
from cortext.memory import to_device

SHARE = 0.5
"""Largest share of the device's free memory that trials may take; the model needs the rest."""
UPLOAD_BINS = 1 << 18
"""Number of bins from which a copy to the device is started."""


class ResidentTrials:
    """All trials of a split on a device, float16, one after another."""

    def __init__(self, split: PackedSplit, device: torch.device) -> None:
        n_bins = int(split.n_bins_N.sum())
        self._bins = torch.empty(n_bins, split.n_features, dtype=torch.float16, device=device)
        self._first_N = np.cumsum(split.n_bins_N) - split.n_bins_N
        self._n_bins_N = split.n_bins_N
        at = 0
        waiting = 0
        parts: list[np.ndarray] = []
        for i in range(len(split)):
            parts.append(split.features(i))
            waiting += len(parts[-1])
            if waiting >= UPLOAD_BINS or i == len(split) - 1:
                self._bins[at : at + waiting] = torch.from_numpy(np.concatenate(parts)).to(device)
                at = at + waiting
                waiting = 0
                parts = []

    def features(self, indices: np.ndarray, n_bins: int) -> torch.Tensor:
        """Return the features of trials, float16 [B, n_bins, C], zero beyond each trial's bins."""
        device = self._bins.device
        numbers = torch.from_numpy(np.stack([self._first_N[indices], self._n_bins_N[indices]]))
        first_B, length_B = to_device(numbers, device)
        bins_T = torch.arange(n_bins, device=device)
        inside_BT = bins_T < length_B[:, None]
        at_BT = (first_B[:, None] + bins_T).where(inside_BT, 0)
        return self._bins[at_BT].mul_(inside_BT[..., None])


def resident_trials(split: PackedSplit, device: torch.device, wanted: str) -> ResidentTrials | None:
    """Return the split on the device, or None if batches are to be read from the host.

    Args:
        split: The training trials.
        device: The model's device.
        wanted: `dataset.resident`. `host` gives None. `device` gives the split. `auto` gives the
            split on a GPU with enough free memory; on a CPU it gives None, because the page cache
            already holds the packed file.

    Raises:
        ConfigError: For `device`, if the split needs more than half of the free memory.
    """
    if wanted == "host" or (wanted == "auto" and device.type != "cuda"):
        return None
    needed = int(split.n_bins_N.sum()) * split.n_features * 2
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else needed / SHARE
    if needed <= SHARE * free:
        return ResidentTrials(split, device)
    if wanted == "device":
        problem = (
            f"the training trials take {needed / 1e9:.1f} GB and {device} has {free / 1e9:.1f} GB"
            " free"
        )
        raise ConfigError(f"dataset.resident is 'device'; {problem}", fix="use 'auto' or 'host'")
    return None


# From glibc's malloc.h.
M_TRIM_THRESHOLD = -1
M_TOP_PAD = -2
M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory for the next batch instead of handing it back.

    By default every tensor of more than a few MB is fetched from the system anew, page by page, at
    every step. With the demo's model that is a tenth of a training step on a CPU.

    Returns:
        True if glibc accepts the settings.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # glibc before 2.35 takes no threshold above 32 MB. It must be set in any case: the other
    # settings stop its automatic rise and would leave it at 128 kB (mallopt(3)).
    if mallopt(M_MMAP_THRESHOLD, 1 << 30) != 1 and mallopt(M_MMAP_THRESHOLD, 1 << 25) != 1:
        return False
    results = [mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1), mallopt(M_TOP_PAD, 64 << 20)]
    return all(result == 1 for result in results)


def bound_kernel_cache(capacity: int = 32) -> None:
    """Limit the compiled kernels that oneDNN and torch keep; call it before they are used.

    oneDNN compiles a kernel for every shape and keeps 1,024 of them. torch's table of bfloat16
    products keeps as many for each thread. Batches of ever new lengths use each kernel once, so
    that oneDNN's cache grows to half a gigabyte. The entries also fragment the memory between the
    tensors, and each step then takes new memory. A step needs about twenty kernels.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(capacity))
