"""Memory for batches that is used again."""

from __future__ import annotations

import math
import sys
from threading import Lock

import numpy as np

MAX_BUFFERS = 4
HEADROOM = 1.25


class BufferPool:
    """Uninitialised arrays whose memory is used again once nothing refers to them.

    A batch is some 60 MB, for which every allocation gets fresh pages from the system; filling
    those costs more than copying the trials. Arrays, and tensors made from them, refer to their
    buffer, so its reference count tells whether it is free.
    """

    def __init__(self, dtype: type[np.generic]) -> None:
        self._dtype = np.dtype(dtype)
        self._buffers: list[np.ndarray] = []
        self._lock = Lock()

    def array(self, shape: tuple[int, ...]) -> np.ndarray:
        """An array whose content is arbitrary."""
        size = math.prod(shape)
        with self._lock:
            free = [i for i in range(len(self._buffers)) if self._references(i) == _FREE]
            fitting = [i for i in free if self._buffers[i].size >= size]
            if fitting:
                return self._buffers[fitting[0]][:size].reshape(shape)
            buffer = np.empty(int(size * HEADROOM), dtype=self._dtype)
            if free:
                self._buffers[free[0]] = buffer
            elif len(self._buffers) < MAX_BUFFERS:
                self._buffers.append(buffer)
        return buffer[:size].reshape(shape)

    def _references(self, i: int) -> int:
        return sys.getrefcount(self._buffers[i])


def _references_when_free() -> int:
    pool = BufferPool(np.float16)
    pool._buffers.append(np.empty(0))
    return pool._references(0)


_FREE = _references_when_free()
