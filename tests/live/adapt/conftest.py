"""Settings and recordings of trainings that take a second."""

from clear_recordings import one_thread, packed, recordings  # noqa: F401 # fixtures
