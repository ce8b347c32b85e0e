"""Days of recordings and of usage logs, one in memory at a time.

T bins, C features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np

from cortext.data import PackedDataset, open_dataset
from cortext.data.checks import Problem
from cortext.errors import DataError
from cortext.processes import Progress
from cortext_live.usage.drift.statistics import DayStatistics, collect
from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.log import LOG, read_log
from cortext_live.usage.log_entries import LoggedUtterance
from cortext_live.usage.statistics import PAUSE_S

LEAST_UTTERANCES = 10
"""Utterances of a day for which its confidence and corrections are compared."""


@dataclass(frozen=True)
class DayOfUse:
    """Facts of a day that a log has without features.

    Attributes:
        utterances: Number of utterances.
        confidence: Mean confidence; None where the log has none.
        corrected: Share of utterances with a correction.
        rated_right: Share of the rated utterances that were right; None without ratings.
        models: Utterances by the model that spoke; empty where it is not known.
        without_features: Utterances whose features are not kept.
        damaged: Utterances whose features are damaged.
    """

    utterances: int
    confidence: float | None
    corrected: float
    rated_right: float | None
    models: dict[str, int]
    without_features: int = 0
    damaged: int = 0


@dataclass
class DriftSource:
    """Days that were read.

    Attributes:
        path: The directory.
        days: Statistics of the days with features, in the order of time.
        use: Facts of each day of a log, by session; empty for recordings.
        notes: Lines about data left out and facts unknown.
    """

    path: Path
    days: list[DayStatistics] = field(default_factory=list)
    use: dict[str, DayOfUse] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_source(
    path: Path,
    *,
    skip_bad: bool = False,
    model_in_use: Callable[[datetime], str] | None = None,
    progress: Progress | None = None,
) -> DriftSource:
    """Read recordings (session files or packed ones), or a usage log.

    Args:
        path: Directory.
        skip_bad: Leave unusable trials and features out and note them.
        model_in_use: Returns the name of the model that spoke at a time, for a log.
        progress: Called with trials or utterances done and in all.

    Raises:
        DataError: There is neither, or something in it is damaged.
    """
    if (path / LOG).exists():
        return _read_log(path, skip_bad, model_in_use, progress)
    if model_in_use is not None:
        raise DataError(
            "no usage log, so --chain cannot tell which model spoke",
            where=path,
            fix="give the log, or leave out --chain",
        )
    return _read_recordings(path, skip_bad, progress)


def _read_recordings(path: Path, skip_bad: bool, progress: Progress | None) -> DriftSource:
    try:
        data = open_dataset(path)
    except DataError as error:
        fix = "give session files, packed data, or a usage log (utterances.jsonl)"
        raise DataError(error.what, where=error.where, fix=fix) from None
    source = DriftSource(path)
    total = sum(data.n_trials(split) for split in data.splits)

    def bins() -> Iterator[tuple[str, str, np.ndarray]]:
        if isinstance(data, PackedDataset):
            # Packed data lie split by split, and `collect` yields a day when the next one begins:
            # the splits of a session must follow each other.
            trials = (
                trial
                for session in data.session_names
                for split in data.splits
                for trial in data.trials(split, [session])
            )
        else:
            problems: list[Problem] = []
            read = data.as_recorded(on_bad=problems.append)
            trials = (trial for _, trial in read)
        for done, trial in enumerate(trials, 1):
            yield trial.session, str(trial.block), trial.features_TC
            if progress:
                progress(done, total)
        # Only now: files are read while their trials are yielded.
        if not isinstance(data, PackedDataset) and problems:
            if not skip_bad:
                raise problems[0].error()
            source.notes += [f"left out: {problem}" for problem in problems]

    source.days = list(collect(bins(), data.conventions.bin_ms))
    if not source.days:
        raise DataError("no usable trial", where=path, fix="look at it with `cortext inspect`")
    return source


def _read_log(
    path: Path,
    skip_bad: bool,
    model_in_use: Callable[[datetime], str] | None,
    progress: Progress | None,
) -> DriftSource:
    log = read_log(path)
    if not log.utterances or log.began is None:
        raise DataError("the log has no utterance", where=path / LOG, fix="use the decoder first")
    source = DriftSource(path, notes=list(log.notes))
    kept = KeptFeatures(path)
    began = log.began
    numbers: dict[str, list[int]] = {}
    for number, entry in log.utterances.items():
        numbers.setdefault(entry.session, []).append(number)
    without = dict.fromkeys(numbers, 0)
    damaged = dict.fromkeys(numbers, 0)

    def bins() -> Iterator[tuple[str, str, np.ndarray]]:
        done = 0
        for session in sorted(numbers):
            for block, members in _stretches(log.utterances, numbers[session]):
                for number in members:
                    features_TC = kept.read(began, number)
                    done += 1
                    if progress:
                        progress(done, len(log.utterances))
                    if features_TC is not None and len(features_TC):
                        yield session, block, features_TC
                    # `read` returns None for a missing and for a damaged file alike. Missing ones
                    # are usual: they are deleted by age, or were never kept. A damaged one may hide
                    # that others are, too.
                    elif not kept.path(began, number).exists():
                        without[session] += 1
                    elif skip_bad:
                        damaged[session] += 1
                    else:
                        raise DataError(
                            "the features of an utterance are damaged",
                            where=kept.path(began, number),
                            fix="remove the file, or leave it out with --skip-bad",
                        )

    bin_ms = kept.conventions.bin_ms
    # `without` and `damaged` are complete only after this line: `bins` counts while it is read.
    source.days = list(_of_one_width(collect(bins(), bin_ms), source))
    for session in sorted(numbers):
        entries = [log.utterances[number] for number in numbers[session]]
        source.use[session] = _use(entries, model_in_use, without[session], damaged[session])
    _note(source)
    return source


def _of_one_width(days: Iterator[DayStatistics], source: DriftSource) -> Iterator[DayStatistics]:
    """Yield days with as many features as the first one."""
    n_features = None
    for day in days:
        width = len(day.moments.mean_C)
        n_features = n_features or width
        # Features are compared one by one with those of the first days. Other features (an array
        # more, another kind) have nothing to be compared with.
        if width == n_features:
            yield day
        else:
            source.notes.append(f"left out: {day.session} has {width} features, not {n_features}")


def _stretches(
    entries: Mapping[int, LoggedUtterance], numbers: list[int]
) -> Iterator[tuple[str, list[int]]]:
    """Yield stretches of use without a long pause: the time they began, and their utterances."""
    members: list[int] = []
    name, last_s = "", -np.inf
    # By time and not by number: a clock that was set back gives later utterances earlier times,
    # and a pause would be negative.
    for number in sorted(numbers, key=lambda each: entries[each].when.timestamp()):
        entry = entries[number]
        # The log notes an utterance when it ends.
        end_s = entry.when.timestamp()
        if end_s - entry.duration_s - last_s > PAUSE_S:
            if members:
                yield name, members
            name, members = entry.when.isoformat(timespec="seconds"), []
        members.append(number)
        last_s = end_s
    yield name, members


def _use(
    entries: list[LoggedUtterance],
    model_in_use: Callable[[datetime], str] | None,
    without: int,
    damaged: int,
) -> DayOfUse:
    confidences = [entry.confidence for entry in entries if entry.confidence is not None]
    rated = [entry.rating for entry in entries if entry.rating is not None]
    models: dict[str, int] = {}
    for entry in entries:
        # Only a decoder that follows a chain names its model. The chain knows who spoke at that
        # time.
        name = entry.model or (model_in_use(entry.when) if model_in_use else None)
        if name is not None:
            models[name] = models.get(name, 0) + 1
    return DayOfUse(
        len(entries),
        float(np.mean(confidences)) if confidences else None,
        # Of all utterances, since nobody is asked to correct. The rate of right ones below is of
        # the rated ones: a sentence without a rating is neither right nor wrong.
        sum(entry.correction is not None for entry in entries) / len(entries),
        rated.count("right") / len(rated) if rated else None,
        models,
        without,
        damaged,
    )


def _note(source: DriftSource) -> None:
    use = source.use.values()
    if not source.days:
        source.notes.append(
            "the log has no features, so only confidence and corrections are reported; start serve"
            " or brand-node with --record-all"
        )
    elif missing := sum(day.without_features for day in use):
        source.notes.append(f"features of {missing} utterances are not kept")
    if damaged := sum(day.damaged for day in use):
        source.notes.append(f"left out: damaged features of {damaged} utterances")
    if all(day.confidence is None for day in use):
        source.notes.append("the log has no confidence")
    if not any(day.models for day in use):
        source.notes.append("the log does not say which model spoke; give its chain with --chain")
