"""Statistics of daily use: hours and sentences, ratings, speed and word error rates.

A day is a day at the place of use: the date of `when`, with the offset from UTC that it was written
with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cortext.errors import DataError
from cortext.text.metrics import ErrorRate, error_rate
from cortext_live.usage.log import read_log
from cortext_live.usage.log_entries import RATINGS, LoggedUtterance

PAUSE_S = 300.0
"""Silence longer than this, from the end of one utterance to the start of the next, is not use."""


@dataclass(frozen=True)
class UseStatistics:
    """Statistics of some utterances. Rates are fractions, None where there is nothing to measure.

    Attributes:
        utterances: All, with words or without.
        sentences: Utterances with words.
        words: Decoded words in them.
        spoken_hours: Hours of all utterances, without the time between them.
        use_hours: Hours including the pauses of at most `PAUSE_S` between utterances.
        ratings: Utterances by rating, without those that were not rated.
        words_per_minute: Decoded words over the minutes of the utterances that have words.
        words_per_minute_quartiles: Quartiles over single utterances; the middle one is the median.
        corrected: Utterances with a correction.
        wer: Word error rate against the corrections.
        wer_ci95: Its 95 % interval, a bootstrap over utterances.
        confirmed: Utterances rated right without a correction.
        wer_with_confirmed: The word error rate with them, as free of errors.
        degraded: Utterances in which something that was asked for, such as a large model, had no
            part.
        bad_features: Utterances in which a channel was bad, or values were far out.
    """

    utterances: int
    sentences: int
    words: int
    spoken_hours: float
    use_hours: float
    ratings: dict[str, int]
    words_per_minute: float | None
    words_per_minute_quartiles: tuple[float, float, float] | None
    corrected: int
    wer: float | None
    wer_ci95: tuple[float, float] | None
    confirmed: int
    wer_with_confirmed: float | None
    degraded: int = 0
    bad_features: int = 0

    @property
    def rated(self) -> int:
        """Number of utterances with a rating."""
        return sum(self.ratings.values())

    def share(self, rating: str) -> float | None:
        """Return the share of a rating among the rated utterances."""
        return self.ratings[rating] / self.rated if self.rated else None


@dataclass(frozen=True)
class Day:
    """A day of use, with the totals up to its end."""

    date: str
    tally: UseStatistics
    use_hours_so_far: float
    spoken_hours_so_far: float
    sentences_so_far: int


@dataclass(frozen=True)
class Use:
    """Daily use as read from one or several logs.

    Attributes:
        folders: The directories of the logs.
        sources: Utterances by where their features came from.
        overall: Statistics of all utterances.
        days: Statistics of each day. (`tally` is the name in the JSON output.)
        notes: A line for each damaged line that was passed over; of many only the first.
        damaged: Number of damaged lines.
        thirds: Statistics of the first and of the last third of the days; None for fewer than 3.
        languages: Utterances by language; empty where all are English.
    """

    folders: tuple[str, ...]
    sources: dict[str, int]
    """Utterances by where their features came from."""
    overall: UseStatistics
    days: tuple[Day, ...]
    notes: tuple[str, ...]
    damaged: int = 0
    thirds: tuple[UseStatistics, UseStatistics] | None = None
    languages: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain values; `languages` only where there are others."""
        facts = asdict(self)
        if not self.languages:
            del facts["languages"]
        return facts


def read_use(folders: Iterable[str | Path]) -> Use:
    """Read the logs in these directories; a directory given twice counts once.

    Raises:
        DataError: There is no log, or one cannot be read.
    """
    unique = {Path(folder).resolve(): Path(folder) for folder in folders}
    if not unique:
        raise DataError(
            "no log of use", fix="give a directory that a decoder wrote with --session-log"
        )
    logs = [read_log(folder) for folder in unique.values()]
    timed = [pair for log in logs for pair in _timed(list(log.utterances.values()))]
    timed.sort(key=lambda pair: pair[0].when.timestamp())
    by_day: dict[str, list[tuple[LoggedUtterance, float]]] = {}
    for entry, use_s in timed:
        by_day.setdefault(entry.when.date().isoformat(), []).append((entry, use_s))
    days: list[Day] = []
    use_h = 0.0
    spoken_h = 0.0
    sentences = 0
    for date in sorted(by_day):
        statistics = _statistics(by_day[date])
        use_h += statistics.use_hours
        spoken_h += statistics.spoken_hours
        sentences += statistics.sentences
        days.append(Day(date, statistics, use_h, spoken_h, sentences))
    notes = tuple(note for log in logs for note in log.notes)
    sources = dict(Counter(entry.source or "unknown" for entry, _ in timed).most_common())
    languages = dict(Counter(entry.language.name for entry, _ in timed).most_common())
    damaged = sum(log.damaged for log in logs)
    return Use(
        folders=tuple(map(str, unique.values())),
        sources=sources,
        overall=_statistics(timed),
        days=tuple(days),
        notes=notes,
        damaged=damaged,
        thirds=_thirds([by_day[day.date] for day in days]),
        languages={} if set(languages) <= {"en"} else languages,
    )


def _thirds(
    days: Sequence[Sequence[tuple[LoggedUtterance, float]]],
) -> tuple[UseStatistics, UseStatistics] | None:
    n = len(days) // 3
    if not n:
        return None
    first, last = ([pair for day in third for pair in day] for third in (days[:n], days[-n:]))
    return _statistics(first), _statistics(last)


def _timed(entries: Sequence[LoggedUtterance]) -> list[tuple[LoggedUtterance, float]]:
    """Return utterances of one log in the order of time, with the seconds of use that each adds.

    They are its own duration, and the pause before it where that is short enough.
    """
    # By the instant, not by the clock on the wall, which repeats an hour in autumn.
    ordered = sorted(entries, key=lambda entry: entry.when.timestamp())
    timed = []
    last_s = -np.inf
    for entry in ordered:
        end_s = entry.when.timestamp()
        # Negative where recordings are replayed faster than they were made.
        pause_s = end_s - entry.duration_s - last_s
        timed.append((entry, entry.duration_s + (pause_s if 0 < pause_s <= PAUSE_S else 0.0)))
        last_s = end_s
    return timed


def _statistics(timed: Sequence[tuple[LoggedUtterance, float]]) -> UseStatistics:
    entries = [entry for entry, _ in timed]
    spoken = [entry for entry in entries if entry.n_words]
    fast = [entry for entry in spoken if entry.duration_s]
    minutes = sum(entry.duration_s for entry in fast) / 60
    each = [60 * entry.n_words / entry.duration_s for entry in fast]
    rated = Counter(entry.rating for entry in entries)
    corrected = [entry for entry in entries if entry.correction is not None]
    confirmed = [entry for entry in entries if entry.correction is None and entry.label is not None]
    # The bootstrap resamples utterances: one alone has no interval.
    against = _wer(corrected, n_boot=1000 if len(corrected) > 1 else 0)
    low, middle, high = np.quantile(each, [0.25, 0.5, 0.75]).tolist() if each else (0.0, 0.0, 0.0)
    return UseStatistics(
        utterances=len(entries),
        sentences=len(spoken),
        words=sum(entry.n_words for entry in spoken),
        spoken_hours=sum(entry.duration_s for entry in entries) / 3600,
        use_hours=sum(use_s for _, use_s in timed) / 3600,
        ratings={rating: rated[rating] for rating in RATINGS},
        words_per_minute=sum(entry.n_words for entry in fast) / minutes if minutes else None,
        words_per_minute_quartiles=(low, middle, high) if each else None,
        corrected=len(corrected),
        wer=against.rate,
        wer_ci95=(
            None if against.low is None or against.high is None else (against.low, against.high)
        ),
        confirmed=len(confirmed),
        wer_with_confirmed=_wer([*corrected, *confirmed], n_boot=0).rate,
        degraded=sum(entry.degraded for entry in entries),
        bad_features=sum(entry.has_bad_features for entry in entries),
    )


def _wer(entries: Sequence[LoggedUtterance], n_boot: int) -> ErrorRate:
    # As sequences of words: a log may hold several languages, each with its own normalisation.
    labels = [entry.language.normalize(entry.label or "").split() for entry in entries]
    texts = [entry.language.normalize(entry.text).split() for entry in entries]
    return error_rate(labels, texts, "phoneme", n_boot=n_boot)
