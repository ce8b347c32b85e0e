"""Vectors of another width for the compiled single steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cortext import _native


@contextmanager
def vectors_of(lanes: int) -> Iterator[int]:
    """Compute steps in vectors of this many numbers; skip the test where there are none."""
    before = _native.vector_lanes()
    if not _native.use_vector_lanes(lanes):
        pytest.skip(f"this processor has no vectors of {lanes}")
    try:
        yield lanes
    finally:
        assert _native.use_vector_lanes(before)
