import ctypes
import os
import platform
from types import SimpleNamespace

import pytest

from cortext.training.memory import bound_kernel_cache, keep_freed_memory


def test_glibc_takes_the_settings_and_other_systems_are_left_alone(monkeypatch):
    if platform.libc_ver()[0] == "glibc":
        assert keep_freed_memory()
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not keep_freed_memory()


@pytest.mark.parametrize(
    ("most", "expected"), [(1 << 30, 1 << 30), (32 << 20, 32 << 20), (0, 128 << 10)]
)
def test_an_older_glibc_gets_the_greatest_threshold_that_it_takes(most, expected, monkeypatch):
    """mallopt(3): a threshold beyond 32 MB is refused there, and setting anything ends the
    adjustment by itself.
    """
    settings = {-3: 128 << 10}

    def mallopt(name, value):
        if name == -3 and value > most:
            return 0
        settings[name] = value
        return 1

    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.31"))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=mallopt))
    assert keep_freed_memory() is (most > 0)
    assert settings[-3] == expected
    assert (len(settings) > 1) is (most > 0)


@pytest.mark.parametrize("name", ["ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"])
def test_kernels_are_remembered_sparingly_unless_the_user_wants_otherwise(name, monkeypatch):
    monkeypatch.delenv(name, raising=False)
    bound_kernel_cache(32)
    assert os.environ[name] == "32"
    monkeypatch.setenv(name, "500")
    bound_kernel_cache(32)
    assert os.environ[name] == "500"
