"""A fixture of tests about a disk that fills up."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest


@pytest.fixture
def full_disk() -> Callable[[int], object]:
    """A context in which no file can grow beyond so many bytes, as on a disk with no more room."""

    @contextmanager
    def limited(n_bytes: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        # Python ignores SIGXFSZ: writes fail with EFBIG.
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limited
