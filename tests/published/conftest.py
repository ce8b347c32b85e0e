"""Fixtures that the tests of published files and figures share."""

from random_recordings import config, one_thread, packed, recordings
from small_disk import full_disk

__all__ = ["config", "full_disk", "one_thread", "packed", "recordings"]
