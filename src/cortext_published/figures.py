"""Numbers of the release's figures: errors of the copy task by day, and everyday use by day.

The notebooks `figure_2` and `figure_4` of the release compute them from `t15_copyTask.pkl` and
`t15_personalUse.pkl`.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cortext.errors import DataError
from cortext.evaluation.scores import Rates
from cortext.files import check_file
from cortext.processes import Progress
from cortext.text.metrics import EditCounts, bootstrap_interval, edit_counts
from cortext.text.normalize import normalize
from cortext_published.t15_analyses import (
    VOCABULARIES,
    CopyTrial,
    PersonalUse,
    read_analyses,
)

N_BOOT = 10_000
"""Resamples of trials for an interval, as in the notebook."""
SHARES = {
    "correct": ("correct",),
    "mostly correct": ("mostly correct", "one word wrong"),
    "incorrect": ("incorrect",),
    "blank trial": ("blank trial",),
    "not rated": ("response timeout", "no user rating"),
}
"""Ratings that the notebook draws as one share of a day's sentences."""
RATED = ("correct", "mostly correct", "incorrect")
"""Shares that its pie has."""
_MOST_BYTES = 1 << 28  # of a file of predictions


@dataclass(frozen=True)
class DayRates:
    """Error rates of the sentences of one day and one vocabulary.

    Attributes:
        day: Days from implantation; None for all days.
        published: Rates of the published phonemes and sentences.
        decoded: Rates of other sentences for the same trials; None without them.
    """

    day: int | None
    vocabulary: int
    published: Rates
    decoded: Rates | None = None


def copy_task_points(
    trials: Sequence[CopyTrial],
    texts: Sequence[str] = (),
    *,
    n_boot: int = N_BOOT,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[DayRates]:
    """Return error rates by vocabulary and day; the point of all days comes first.

    The phonemes of the best tokens are compared with the prompt's; sentences are split into words
    at blanks. A rate is the sum of errors over the sum of lengths; its interval holds 95 % of
    resamples of trials.

    Args:
        trials: The published trials.
        texts: Another decoder's sentence for each trial; it and the prompt are normalised before
            they are compared. Empty without another decoder.
        n_boot: Resamples of each interval.
        seed: Seed of the resamples.
        progress: Called with points done and in all.
    """
    phonemes = [edit_counts(trial.cue_phonemes, trial.decoded_phonemes) for trial in trials]
    words = [edit_counts(trial.cue.split(), trial.decoded.split()) for trial in trials]
    ours = [
        edit_counts(normalize(trial.cue).split(), normalize(text).split())
        for trial, text in zip(trials if texts else (), texts, strict=True)
    ]
    groups: dict[tuple[int, int | None], list[int]] = {}
    for size in VOCABULARIES:
        numbers = [n for n, trial in enumerate(trials) if trial.vocabulary == size]
        if numbers:
            groups[size, None] = numbers
        for n in sorted(numbers, key=lambda n: trials[n].day):
            groups.setdefault((size, trials[n].day), []).append(n)
    points = []
    for done, ((size, day), numbers) in enumerate(groups.items(), 1):
        published = _rates(_at(words, numbers), _at(phonemes, numbers), n_boot, seed)
        decoded = _rates(_at(ours, numbers), [], n_boot, seed) if ours else None
        points.append(DayRates(day, size, published, decoded))
        if progress:
            progress(done, len(groups))
    return points


def _at(counts: Sequence[EditCounts], numbers: Sequence[int]) -> list[EditCounts]:
    return [counts[number] for number in numbers]


def _rates(
    words: Sequence[EditCounts], phonemes: Sequence[EditCounts], n_boot: int, seed: int
) -> Rates:
    """Return the pooled rates of some trials.

    `phonemes` is empty where phonemes are not known.
    """
    wer, wer_ci95 = _rate(words, n_boot, seed)
    per, per_ci95 = _rate(phonemes, n_boot, seed)
    return Rates(
        n_trials=len(words),
        n_words=sum(one.reference_length for one in words),
        n_phonemes=sum(one.reference_length for one in phonemes),
        per=per,
        per_ci95=per_ci95,
        wer=wer,
        wer_ci95=wer_ci95,
        cer=None,
        cer_ci95=None,
    )


def _rate(
    counts: Sequence[EditCounts], n_boot: int, seed: int
) -> tuple[float | None, tuple[float, float] | None]:
    errors_B = np.array([one.errors for one in counts], dtype=np.int64)
    length_B = np.array([one.reference_length for one in counts], dtype=np.int64)
    if not length_B.sum():
        return None, None
    low, high = bootstrap_interval(errors_B, length_B, n_boot, seed, 0.95)
    bounds = None if low is None or high is None else (low, high)
    return float(errors_B.sum() / length_B.sum()), bounds


@dataclass(frozen=True)
class UseDay:
    """A day on which the decoder ran.

    Attributes:
        hours_so_far: Hours of use up to the end of the day.
        sentences_so_far: Sentences up to the end of the day.
    """

    day: int
    hours: float
    sentences: int
    hours_so_far: float
    sentences_so_far: int


@dataclass(frozen=True)
class RatedDay:
    """The sentences of a day of which details were published.

    Attributes:
        ratings: Number of sentences by the names of `SHARES`.
        words_per_minute: Mean over the sentences with a measurement; 0 where there is none.
    """

    day: int
    ratings: dict[str, int]
    words_per_minute: float

    @property
    def sentences(self) -> int:
        """Number of sentences."""
        return sum(self.ratings.values())

    def share(self, name: str) -> float:
        """Return the share of one of `SHARES` in the sentences of the day."""
        return self.ratings[name] / self.sentences


def use_days(use: PersonalUse) -> list[UseDay]:
    """Return the days of use in order with what has added up; days without use are left out."""
    days: list[UseDay] = []
    hours = 0.0
    sentences = 0
    for day in sorted(use.use_s):
        if use.use_s[day]:
            hours += use.use_s[day] / 3600
            sentences += use.n_sentences[day]
            days.append(UseDay(day, use.use_s[day] / 3600, use.n_sentences[day], hours, sentences))
    return days


def rated_days(use: PersonalUse) -> list[RatedDay]:
    """Return ratings and speed of each day with sentences, in order."""
    days = []
    for day in sorted(set(use.days)):
        rows = [n for n, other in enumerate(use.days) if other == day]
        measured = [
            use.words_per_minute[n] for n in rows if not math.isnan(use.words_per_minute[n])
        ]
        mean = sum(measured) / len(measured) if measured else 0.0
        days.append(RatedDay(day, _ratings(use.ratings[n] for n in rows), mean))
    return days


def all_ratings(use: PersonalUse) -> dict[str, int]:
    """Return the number of all sentences by the names of `SHARES`."""
    return _ratings(use.ratings)


def _ratings(ratings: Iterable[str]) -> dict[str, int]:
    counts = Counter(ratings)
    return {name: sum(counts[one] for one in members) for name, members in SHARES.items()}


def points_json(points: Sequence[DayRates]) -> list[dict[str, Any]]:
    """Return points as plain values."""
    names = ("n_trials", "n_words", "per", "per_ci95", "wer", "wer_ci95")
    return [
        {"day": point.day, "vocabulary": point.vocabulary}
        | {name: getattr(point.published, name) for name in names}
        | (
            {"decoded_wer": point.decoded.wer, "decoded_wer_ci95": point.decoded.wer_ci95}
            if point.decoded
            else {}
        )
        for point in points
    ]


@dataclass(frozen=True)
class ReleaseNumbers:
    """The numbers of the page; numbers that were not given are empty.

    Attributes:
        files: Names of the files.
        points: Errors of the copy task, see `copy_task_points`.
        use_days: Hours and sentences of each day of use.
        rated_days: Ratings and speed of each day.
        ratings: Number of all sentences by rating.
    """

    files: tuple[str, ...]
    points: Sequence[DayRates] = ()
    use_days: Sequence[UseDay] = ()
    rated_days: Sequence[RatedDay] = ()
    ratings: Mapping[str, int] = field(default_factory=dict)

    @property
    def totals(self) -> list[DayRates]:
        """The points of all days."""
        return [point for point in self.points if point.day is None]

    @property
    def by_day(self) -> list[DayRates]:
        """The points of single days."""
        return [point for point in self.points if point.day is not None]

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain values."""
        return {
            "files": list(self.files),
            "copy_task": points_json(self.points),
            "use": [vars(day) for day in self.use_days],
            "rated": [vars(day) for day in self.rated_days],
            "ratings": dict(self.ratings),
        }


def read_published(
    files: Sequence[str | Path],
    predictions: str | Path | None = None,
    *,
    progress: Progress | None = None,
) -> ReleaseNumbers:
    """Return the numbers of the published files, in any order.

    Args:
        files: `t15_copyTask.pkl`, `t15_personalUse.pkl`, or both. Nothing that they may hold is
            run.
        predictions: CSV file of other sentences for the copy task, `id,text`.
        progress: Called with points of the copy task done and in all.

    Raises:
        DataError: For any other file, and for predictions that lack a trial.
    """
    by_kind: dict[str, Any] = {}
    for file in files:
        content = read_analyses(file)
        kind = "use" if isinstance(content, PersonalUse) else "copy"
        if kind in by_kind:
            raise DataError("is a second file of the same kind", where=file, fix="give one of each")
        by_kind[kind] = content
    trials: list[CopyTrial] = by_kind.get("copy", [])
    use: PersonalUse | None = by_kind.get("use")
    if predictions is not None and not trials:
        raise DataError(
            "belongs to a copy task, and none was given", where=predictions, fix="add the file"
        )
    texts = () if predictions is None else _read_predictions(Path(predictions), len(trials))
    return ReleaseNumbers(
        tuple(Path(file).name for file in files),
        copy_task_points(trials, texts, progress=progress),
        use_days(use) if use else (),
        rated_days(use) if use else (),
        all_ratings(use) if use else {},
    )


def _read_predictions(path: Path, n_trials: int) -> Sequence[str]:
    """Return the sentence of each trial from a CSV file `id,text`."""
    try:
        check_file(path, _MOST_BYTES)
        with path.open(newline="", encoding="utf-8") as file:
            texts = {int(row["id"]): row["text"] or "" for row in csv.DictReader(file)}
    except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or f"no table `id,text` ({error})"
        raise DataError(reason, where=path, fix="write it with cortext decode --logits") from None
    if missing := [number for number in range(n_trials) if number not in texts]:
        raise DataError(
            f"has {len(texts)} sentences, and none for trial {missing[0]} of {n_trials}",
            where=path,
            fix="decode the imported copy task: cortext decode --logits",
        )
    return [texts[number] for number in range(n_trials)]
