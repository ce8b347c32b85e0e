"""Features of all utterances: what is kept, for how long, and what a full disk does."""

import os
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from cortext.errors import ConfigError
from cortext_live.usage.kept_features import KeptFeatures

BLOCK = 1_772_355_600


def features(seed, n_bins=50):
    return np.random.default_rng(seed).normal(size=(n_bins, 12)).astype(np.float32)


def kept(heard):
    return sorted(int(path.stem.split("-")[1]) for path in heard.folder.iterdir())


def test_what_is_kept_is_read(tmp_path):
    heard = KeptFeatures(tmp_path)
    for number in range(3):
        heard.keep(BLOCK, number, features(number))
    again = KeptFeatures(tmp_path)
    for number in range(3):
        np.testing.assert_array_equal(again.read(BLOCK, number), features(number))
    assert again.read(BLOCK, 3) is None
    assert again.read(BLOCK + 1, 0) is None, "the same number in another log"
    assert heard.folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in heard.folder.iterdir())


def test_quota(tmp_path):
    """A file of 50 x 12 numbers takes about 2.5 kB: three of five fit into 8 kB, the latest."""
    heard = KeptFeatures(tmp_path, quota_bytes=8000)
    for number in range(5):
        heard.keep(BLOCK, number, features(number))
        time.sleep(0.01)
    assert kept(heard) == [2, 3, 4]


def test_retention(tmp_path):
    heard = KeptFeatures(tmp_path, days=30)
    for number, age_days in enumerate((31, 30.1, 29.9, 0)):
        heard.keep(BLOCK, number, features(number))
        then = time.time() - age_days * 86_400
        os.utime(heard.folder / f"{BLOCK}-{number}.safetensors", (then, then))
    KeptFeatures(tmp_path, days=30).tidy()
    assert kept(heard) == [2, 3]


@pytest.mark.parametrize("damage", [b"", b"\xff" * 100, b"cut"])
def test_a_damaged_file_is_passed_over(tmp_path, damage):
    heard = KeptFeatures(tmp_path)
    heard.keep(BLOCK, 0, features(0))
    path = heard.folder / f"{BLOCK}-0.safetensors"
    path.write_bytes(path.read_bytes()[:40] if damage == b"cut" else damage)
    assert heard.read(BLOCK, 0) is None


def test_features_that_no_recording_has(tmp_path):
    heard = KeptFeatures(tmp_path)
    heard.keep(BLOCK, 0, np.full((3, 12), np.nan, np.float32))
    assert heard.read(BLOCK, 0) is None


def test_a_full_disk_loses_only_the_new_one(tmp_path):
    """A limit on the size of files stands for the disk."""
    KeptFeatures(tmp_path).keep(BLOCK, 0, features(0))
    script = """
        import resource, signal, sys
        import numpy as np
        from cortext.errors import LiveError
        from cortext_live.usage.kept_features import KeptFeatures

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            KeptFeatures(sys.argv[1]).keep(int(sys.argv[2]), 1, np.zeros((50, 12), np.float32))
        except LiveError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), tmp_path, str(BLOCK)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "cannot be kept" in done.stdout
    assert "--record-quota-gb" in done.stdout
    heard = KeptFeatures(tmp_path)
    assert kept(heard) == [0]
    np.testing.assert_array_equal(heard.read(BLOCK, 0), features(0))


@pytest.mark.parametrize("wrong", [{"quota_bytes": 0}, {"days": -1}, {"days": float("nan")}])
def test_no_space_and_no_time_are_refused(tmp_path, wrong):
    with pytest.raises(ConfigError, match="positive"):
        KeptFeatures(tmp_path, **wrong)
