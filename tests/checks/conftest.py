"""Settings and recordings of trainings that take a second, and what a plug-in registers."""

from clear_recordings import (  # noqa: F401 # fixtures
    config,
    one_thread,
    packed,
    recordings,
    short,
)
from right_plugin import registries  # noqa: F401 # a fixture
