import platform

from cortext.training.memory import keep_freed_memory


def test_glibc_takes_the_settings_and_other_systems_are_left_alone(monkeypatch):
    if platform.libc_ver()[0] == "glibc":
        assert keep_freed_memory()
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert not keep_freed_memory()
