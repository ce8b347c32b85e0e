"""Clocks that are wrong, restored backups and odd files: what is deleted of kept features."""

import os
import time

import numpy as np
import pytest

from cortext.errors import LiveError
from cortext_live.core.log_writer import LogWriter
from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.writer import UsageLog, UtteranceRecord

BLOCK = 1_772_355_600
DAY_S = 86_400.0
NOON_S = 1_790_000_000.0
"""The right time in these tests."""
A_BIN = np.zeros((1, 4), np.float32)


class Clock:
    """A clock that a test sets."""

    def __init__(self, now_s=NOON_S):
        self.now_s = now_s

    def __call__(self):
        return self.now_s


def kept(heard):
    return sorted(int(path.stem.split("-")[1]) for path in heard.folder.glob("*.safetensors"))


def recorded(folder, ages_days, clock, days=30.0, quota_bytes=2e9):
    """Keep features of an utterance for each age, in this order, and return their store."""
    folder.mkdir(exist_ok=True)
    writing = KeptFeatures(folder, days=1e6)
    writing.keep(BLOCK, 0, A_BIN)
    content = writing.path(BLOCK, 0).read_bytes()
    for number, age_days in enumerate(ages_days):
        writing.path(BLOCK, number).write_bytes(content)
        then_s = NOON_S - age_days * DAY_S
        os.utime(writing.path(BLOCK, number), (then_s, then_s))
    return KeptFeatures(folder, quota_bytes, days, clock)


A_MONTH = [*np.arange(29.5, 0, -1.0), 0.01]
"""Ages in days: an utterance each day of a month, the last of them now."""


def test_a_clock_that_is_years_ahead_deletes_nothing_and_says_so(tmp_path):
    clock = Clock(NOON_S + 14 * 365 * DAY_S)
    heard = recorded(tmp_path, A_MONTH, clock)
    heard.tidy(BLOCK)
    assert len(kept(heard)) == len(A_MONTH)
    assert heard.problem.startswith("the clock shows 20")
    assert "it is not believed" in heard.problem
    assert "\n" not in heard.problem
    clock.now_s = NOON_S
    heard.tidy(BLOCK)
    assert heard.problem == ""
    assert len(kept(heard)) == len(A_MONTH)


@pytest.mark.parametrize("ahead_days", [1, 29])
def test_a_clock_that_is_days_ahead_for_a_moment_deletes_a_days_worth(tmp_path, ahead_days):
    clock = Clock(NOON_S + ahead_days * DAY_S)
    heard = recorded(tmp_path, A_MONTH, clock)
    for _ in range(9):  # utterances while it is wrong
        heard.tidy(BLOCK)
        clock.now_s += 60
    assert kept(heard) == list(range(1, len(A_MONTH)))


def test_a_clock_that_is_set_back_deletes_nothing(tmp_path):
    for back_days in (10, 20_000):
        heard = recorded(tmp_path / str(back_days), A_MONTH, Clock(NOON_S - back_days * DAY_S))
        heard.tidy(BLOCK)
        assert len(kept(heard)) == len(A_MONTH)
        assert ("it is not believed" in heard.problem) == (back_days == 20_000)


def test_a_file_from_the_future_goes_with_those_around_it(tmp_path):
    """Its clock was years ahead for one utterance, 40 days ago."""
    clock = Clock()
    heard = recorded(tmp_path, [41, 40.1, -3000, 40, 2, 1], clock)
    for _ in range(3):
        heard.tidy(BLOCK)
        clock.now_s += DAY_S / 2
    assert kept(heard) == [4, 5]


def test_a_file_that_seems_decades_old_among_new_ones_stays(tmp_path):
    """The clock showed 1970 when it was written."""
    heard = recorded(tmp_path, [3, 20_000, 2, 1], Clock())
    heard.tidy(BLOCK)
    assert kept(heard) == [0, 1, 2, 3]


def test_a_backup_restored_with_new_times_is_kept_and_one_with_old_times_goes_by_and_by(tmp_path):
    new = recorded(tmp_path / "new", [0.001] * 40, Clock())
    new.tidy(BLOCK)
    assert len(kept(new)) == 40
    clock = Clock()
    old = recorded(tmp_path / "old", [*range(400, 390, -1), 1, 0], clock)
    left = []
    for _ in range(6):
        old.tidy(BLOCK)
        left.append(len(kept(old)))
        clock.now_s += DAY_S / 4
    assert left == [11, 11, 10, 10, 9, 9], "a day's worth each half day"


def test_a_backup_restored_long_ago_goes_in_parts(tmp_path, monkeypatch):
    """All of its files have one time, so a day's worth would be all of it."""
    monkeypatch.setattr("cortext_live.usage.retention.MOST_AT_ONCE", 3)
    heard = recorded(tmp_path, [*[31] * 8, 1], Clock())
    heard.tidy(BLOCK)
    assert kept(heard) == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_another_time_zone_deletes_nothing(tmp_path, monkeypatch, zone):
    heard = recorded(tmp_path, [29.9, 15, 1], Clock())
    with monkeypatch.context() as patched:
        patched.setenv("TZ", zone)
        time.tzset()
        heard.tidy(BLOCK)
    time.tzset()
    assert kept(heard) == [0, 1, 2]


def test_the_quota_goes_by_the_log_and_not_by_the_clock(tmp_path):
    """Each file has one size; the newest utterance has the oldest time."""
    size = recorded(tmp_path / "one", [0], Clock()).path(BLOCK, 0).stat().st_size
    heard = recorded(tmp_path, [1, 2, -50, 9000], Clock(), quota_bytes=2.5 * size)
    heard.tidy(BLOCK)
    assert kept(heard) == [2, 3]
    other = heard.path(BLOCK + 10**9, 0)  # a log that began while the clock was ahead
    other.write_bytes(heard.path(BLOCK, 2).read_bytes())
    heard.tidy(BLOCK)
    assert kept(heard) == [2, 3]
    assert not other.exists()


def test_an_utterance_larger_than_the_quota_takes_no_other_with_it(tmp_path):
    heard = recorded(tmp_path, [2, 1], Clock(), quota_bytes=1000)
    with pytest.raises(LiveError, match="--record-quota-gb"):
        heard.keep(BLOCK, 2, np.zeros((100, 4), np.float32))
    heard.path(BLOCK, 3).write_bytes(b"x" * 2000)
    heard.tidy(BLOCK)
    assert kept(heard) == [0, 1]


def test_files_of_other_names_are_left_alone(tmp_path):
    heard = recorded(tmp_path, [2, 1], Clock())
    mine = heard.folder / "my-model.safetensors"
    mine.write_bytes(b"x")
    os.utime(mine, (0, 0))
    heard.tidy(BLOCK)
    assert mine.exists()


def test_a_page_is_told_once_that_the_clock_is_not_believed(tmp_path):
    clock, lines = Clock(), []
    heard = recorded(tmp_path, [35, 0], clock)
    writer = LogWriter(UsageLog(tmp_path, kept_features=heard))
    for number in range(3):
        said = UtteranceRecord(number, "t15.2026.01.01", 0.8, "good morning")
        writer.append(number, lambda _, said=said: said, A_BIN, lines.append)
    writer.close()
    (line,) = lines
    assert "it is not believed" in line
