import pytest

from cortext.errors import ConfigError
from cortext_tpu.xla_dump import dump_xla


def test_flags_that_were_set_stay(tmp_path):
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    dump_xla(tmp_path / "new" / "dump", env, loaded=())
    folder = tmp_path / "new" / "dump"
    assert folder.is_dir()
    assert env["XLA_FLAGS"].split()[:2] == [
        "--xla_force_host_platform_device_count=8",
        f"--xla_dump_to={folder}",
    ]


@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_a_dump_that_comes_too_late_is_refused(tmp_path, backend):
    env: dict[str, str] = {}
    with pytest.raises(
        ConfigError, match=f"--xla-dump comes too late: {backend} is loaded, and has read XLA_FLAGS"
    ):
        dump_xla(tmp_path, env, loaded={backend})
    assert env == {}
