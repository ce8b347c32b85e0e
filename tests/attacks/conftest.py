"""The skipping that attacks on several surfaces share."""

from pathlib import Path

import pytest
from redis_process import BINARY


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need a Redis server, aloud, where there is none."""
    if item.get_closest_marker("redis") and not Path(BINARY).is_file():
        pytest.skip(
            "NO redis-server: THE LIVE SERVERS ARE NOT ATTACKED; install it (apt install"
            " redis-server)"
        )
