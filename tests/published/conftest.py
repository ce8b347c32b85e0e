"""What the tests of downloads and of the release's checkpoints share."""

from clear_recordings import (  # noqa: F401 # fixtures
    config,
    finished,
    one_thread,
    packed,
    recordings,
    undisturbed,
)
from full_disk import full_disk  # noqa: F401 # a fixture
