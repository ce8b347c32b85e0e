"""A Redis server of the tests' own.

Debian's redis-server on a free loopback port, in a temporary directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis_process import BINARY, RedisServer


@pytest.fixture(scope="session")
def page_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings and a language model for servers of the page."""
    from page_process import prepare

    root = tmp_path_factory.mktemp("page")
    prepare(root)
    return root


@pytest.fixture(scope="session")
def tiny_lm_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random large language model, a small one."""
    pytest.importorskip("transformers")
    from tiny_llm import save_tiny_lm

    return save_tiny_lm(tmp_path_factory.mktemp("tiny-lm"))


@pytest.fixture
def make_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RedisServer]]:
    """Makes redis-servers with settings; `.start()` them."""
    if not Path(BINARY).is_file():
        pytest.skip(
            "NO redis-server: THE LIVE PROTOCOLS ARE NOT TESTED; install it (apt install"
            " redis-server)"
        )
    made: list[RedisServer] = []

    def make(**config: str) -> RedisServer:
        made.append(RedisServer(tmp_path_factory.mktemp("redis"), **config))
        return made[-1]

    yield make
    for server in made:
        server.close()


@pytest.fixture
def redis_server(make_redis: Callable[..., RedisServer]) -> RedisServer:
    """A running redis-server of this test alone."""
    return make_redis().start()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever starts a Redis server is marked so."""
    for item in items:
        if "make_redis" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.redis)
