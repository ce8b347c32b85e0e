import os
import platform

import pytest

from cortext.training.memory import bound_kernel_cache, keep_freed_memory


def test_glibc_takes_the_settings_and_other_systems_are_left_alone(monkeypatch):
    if platform.libc_ver()[0] == "glibc":
        assert keep_freed_memory()
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not keep_freed_memory()


@pytest.mark.parametrize("name", ["ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"])
def test_kernels_are_remembered_sparingly_unless_the_user_wants_otherwise(name, monkeypatch):
    monkeypatch.delenv(name, raising=False)
    bound_kernel_cache(32)
    assert os.environ[name] == "32"
    monkeypatch.setenv(name, "500")
    bound_kernel_cache(32)
    assert os.environ[name] == "500"
