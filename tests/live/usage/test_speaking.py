"""The sign that somebody speaks: set, removed, and left behind by a process that was killed."""

import os
import time

from cortext_live.usage.speaking import FILE, LONGEST_S, is_speaking, note_speaking


def test_the_sign_is_set_and_removed(tmp_path):
    assert not is_speaking(tmp_path)
    note_speaking(tmp_path, False)
    assert not (tmp_path / FILE).exists()
    note_speaking(tmp_path, True)
    assert is_speaking(tmp_path)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    note_speaking(tmp_path, False)
    assert not is_speaking(tmp_path)
    note_speaking(tmp_path, True)
    assert is_speaking(tmp_path)


def test_a_sign_that_was_left_behind_counts_no_longer(tmp_path):
    note_speaking(tmp_path, True)
    then = time.time() - LONGEST_S - 1
    os.utime(tmp_path / FILE, (then, then))
    assert not is_speaking(tmp_path)


def test_a_sign_from_the_future_is_none(tmp_path):
    """A clock that was set back must not stop the service for as long."""
    note_speaking(tmp_path, True)
    then = time.time() + 3600
    os.utime(tmp_path / FILE, (then, then))
    assert not is_speaking(tmp_path)


def test_without_a_log_nobody_speaks(tmp_path):
    assert not is_speaking(tmp_path / "missing")
