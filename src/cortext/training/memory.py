"""What becomes of memory between one training step and the next."""

from __future__ import annotations

import ctypes
import os
import platform

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # from glibc's malloc.h


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory for the next batch instead of handing it back.

    Returns whether it listens.

    By default every tensor of more than some MB comes fresh from the system, page by page, at every
    step: with the demo's model that is a tenth of the time of a training step on a CPU.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    # glibc before 2.35 takes no larger threshold than 32 MB; without any, the other settings would
    # make it stay at 128 kB, where by itself it would rise (mallopt(3)).
    if mallopt(M_MMAP_THRESHOLD, 1 << 30) != 1 and mallopt(M_MMAP_THRESHOLD, 1 << 25) != 1:
        return False
    results = [mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1), mallopt(M_TOP_PAD, 64 << 20)]
    return all(result == 1 for result in results)


def bound_kernel_cache(capacity: int = 32) -> None:
    """Let oneDNN and torch remember few compiled kernels, in a process that has not used them yet.

    oneDNN compiles one for every shape and keeps 1,024 of them, and torch's own table of bfloat16
    products as many again for each thread. Batches of ever new lengths use each once, and the first
    grows to half a gigabyte; entries of either also lie between the tensors, so that freed memory
    does not grow together again and each step takes new. A step needs about twenty.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(capacity))
