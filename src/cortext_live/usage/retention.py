"""Deletion of kept recordings: those beyond the quota, and those that are too old.

The log's order tells which are the oldest; a clock decides nothing about the quota. By age only as
much is deleted as several witnesses agree on, since a clock can be years ahead for a moment:

- A recording is as old as its file, unless the files before it in the log are newer. Times in the
  future do not count.
- The clock is believed while some recording is at least half a day old by it, and within the time
  for which recordings are kept (`LEAST_WINDOW_DAYS` at least).
- A day's recordings are deleted at once, and no more until half a day later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

DAY_S = 86_400.0
PAUSE_S = DAY_S / 2
"""Seconds between two deletions by age, and least age of a recording that confirms the clock.

Two days' recordings can go in a day, so that a backlog shrinks.
"""
LEAST_WINDOW_DAYS = 14.0
"""Least age in days up to which a recording confirms the clock: use may pause for so long."""
MOST_AT_ONCE = 2000
"""Most recordings that are deleted by age at once: of a restored backup all may have one time."""
SKEW_S = 3600.0
"""Seconds by which the clock of a file server may be ahead."""


@dataclass(frozen=True)
class KeptFile:
    """A kept recording.

    Attributes:
        path: Its file.
        when_s: Time of the file's last change, seconds since 1970.
        size: Its bytes.
    """

    path: Path
    when_s: float
    size: int


def beyond_quota(files: Sequence[KeptFile], quota_bytes: float) -> list[KeptFile]:
    """Return the files that are deleted so that the others fit.

    Args:
        files: The files in the log's order.
        quota_bytes: Most bytes of all that stay. A file that is larger by itself takes none of the
            others with it.
    """
    kept_bytes, surplus = 0, []
    for each in reversed(files):
        if each.size <= quota_bytes:
            kept_bytes += each.size
        if each.size > quota_bytes or kept_bytes > quota_bytes:
            surplus.append(each)
    return surplus


def too_old(files: Sequence[KeptFile], days: float, now_s: float) -> list[KeptFile]:
    """Return the files that are deleted by age at once: up to a day's, the first ones of the log.

    Args:
        files: The files in the log's order.
        days: Days for which they are kept.
        now_s: The time, which must be believed; see `doubt`.
    """
    old = [
        (when_s, each)
        for when_s, each in zip(_times(files, now_s), files, strict=True)
        if when_s < now_s - days * DAY_S
    ][:MOST_AT_ONCE]
    return [each for when_s, each in old if when_s < old[0][0] + DAY_S]


def doubt(files: Sequence[KeptFile], days: float, now_s: float) -> str:
    """Return why the clock is not believed; empty where it is, or where nothing depends on it.

    Args:
        files: The files.
        days: Days for which they are kept.
        now_s: The time that the clock shows.
    """
    ages_s = [now_s - each.when_s for each in files]
    window_days = max(days, LEAST_WINDOW_DAYS)
    if any(PAUSE_S <= age_s <= window_days * DAY_S for age_s in ages_s):
        return ""
    if not any(age_s > days * DAY_S or age_s < -SKEW_S for age_s in ages_s):
        return ""
    return (
        f"the clock shows {_named(now_s)}, and no kept recording is between half a day and"
        f" {window_days:g} days old by it: it is not believed, and none is deleted by age;"
        " set the clock, or do nothing if it is right"
    )


def _named(when_s: float) -> str:
    try:
        return f"{datetime.fromtimestamp(when_s).astimezone():%Y-%m-%d %H:%M}"
    except (OverflowError, OSError, ValueError):
        return "a time that no calendar has"


def _times(files: Sequence[KeptFile], now_s: float) -> Iterator[float]:
    """Yield a time for each file before which it was not recorded, in the log's order."""
    believable = [each.when_s for each in files if each.when_s <= now_s + SKEW_S]
    # Where the first ones have a time in the future, they are at least as old as the next one.
    latest_s = believable[0] if believable else now_s
    for each in files:
        if each.when_s <= now_s + SKEW_S:
            latest_s = max(latest_s, each.when_s)
        yield latest_s
