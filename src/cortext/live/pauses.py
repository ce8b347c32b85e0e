"""No long pauses while decoding live."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_long_pauses() -> Iterator[None]:
    """A context for what decodes live, to be entered when everything is loaded.

    Now and then Python looks through all objects for those that nothing refers to any more.
    Libraries and models are so many that this takes longer than the 80 ms of a frame, so what is
    there on entering is passed over from then on.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
