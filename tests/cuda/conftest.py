"""Settings and recordings of trainings that take a second."""

from clear_recordings import (  # noqa: F401 # fixtures
    config,
    one_thread,
    packed,
    recordings,
    short,
    undisturbed,
)
