"""Checks of the files of a release, and of the recordings in them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cortext.data.checks import Problem
from cortext.data.conventions import FILE, RELEASE_CONVENTIONS, Conventions
from cortext.data.dataset import open_session_files
from cortext.data.inspect import DatasetReport, SplitReport, inspect
from cortext.data.trial import SPLITS, Session
from cortext.errors import DataError
from cortext.processes import Progress
from cortext_published.release.exchange import WEIGHTS
from cortext_published.release.reading import ARGUMENTS
from cortext_published.verification.checks import Check, StageOutcome, judged, not_checked
from cortext_published.verification.published import Published, has_listed_size

_DEEPEST = 4
"""Levels of folders below the given directory that are searched."""


@dataclass(frozen=True)
class Parts:
    """The parts of a release that a directory has; None for one that it lacks.

    Attributes:
        recordings: Directory of the sessions.
        checkpoint: Directory of `best_checkpoint` or `args.yaml`.
        files: Published files, such as archives, by name.
    """

    recordings: Path | None
    checkpoint: Path | None
    files: dict[str, Path] = field(default_factory=dict)


def find_parts(directory: Path, published: Published, out: Path) -> Parts:
    """Find the parts of the release in a directory, at any depth that unpacking gives.

    Args:
        directory: Directory to search.
        published: Names of the published files.
        out: Directory of the verification, which may lie in `directory` and is passed over.

    Raises:
        DataError: Where there is no such directory, no part of the release in it, or recordings of
            other conventions than the release's.
    """
    if not directory.is_dir():
        raise DataError("no such directory", where=directory, fix="fetch it: cortext fetch t15 DIR")
    sessions: dict[Path, int] = {}
    checkpoints: list[Path] = []
    files: dict[str, Path] = {}
    for folder, names in _folders(directory, out):
        if any(f"data_{split}.hdf5" in names for split in SPLITS):
            sessions[folder.parent] = sessions.get(folder.parent, 0) + 1
        if {WEIGHTS, ARGUMENTS} & set(names):
            checkpoints.append(folder)
        files |= {name: folder / name for name in names if name in published.files}
    if not sessions and not checkpoints and not files:
        fix = "give the directory that the release was unpacked in"
        raise DataError("holds no recordings, checkpoint or file of T15", where=directory, fix=fix)
    recordings = max(sessions, key=lambda root: sessions[root], default=None)
    if recordings is not None:
        RELEASE_CONVENTIONS.require(
            Conventions.read(recordings),
            mine="the public T15 data",
            theirs="these recordings",
            where=recordings,
            fix=f"remove its {FILE}, or give the directory that the release was unpacked in",
        )
    whole = [folder for folder in checkpoints if (folder / WEIGHTS).is_file()]
    return Parts(recordings, next(iter([*whole, *checkpoints]), None), files)


def _folders(directory: Path, out: Path) -> Iterator[tuple[Path, list[str]]]:
    top = len(directory.parts)
    for name, folders, files in os.walk(directory, followlinks=True):
        folder = Path(name)
        yield folder, files
        deepest = len(folder.parts) - top >= _DEEPEST
        folders[:] = [
            inner
            for inner in sorted(folders)
            if not deepest and not inner.startswith(".") and (folder / inner).resolve() != out
        ]


def check_files(parts: Parts, published: Published) -> StageOutcome:
    """Compare names of sessions and sizes of files with the published ones."""
    checks = [_size(name, parts.files.get(name), size) for name, size in published.files.items()]
    if parts.recordings is None:
        return StageOutcome([*checks, not_checked("Sessions", "no session files were found")])
    splits_of = {
        session.name: {split for split, path in session.files.items() if path.exists()}
        for session in open_session_files(parts.recordings).sessions
    }
    expected = published.sessions
    checks.append(same_sessions("Sessions", splits_of, expected))
    absent = [
        f"{name}/data_{split}.hdf5"
        for name, counts in expected.items()
        for split, kind in (("train", "train"), ("val", "held out"), ("test", "held out"))
        if name in splits_of and counts[kind] and split not in splits_of[name]
    ]
    n_files = sum(map(len, splits_of.values()))
    finding = f"{n_files} found; missing: {some(absent)}" if absent else f"{n_files} found"
    checks.append(judged("Session files", not absent, finding))
    return StageOutcome(checks)


def same_sessions(name: str, names: Collection[str], expected: Collection[str]) -> Check:
    """Compare names of sessions with the published ones.

    Args:
        name: Name of the check.
        names: Sessions of the copy.
        expected: Published sessions.
    """
    missing = [session for session in expected if session not in names]
    extra = [session for session in names if session not in expected]
    finding = f"{len(names)} found, {len(expected)} published"
    finding += f"; missing: {some(missing)}" if missing else ""
    finding += f"; not published: {some(extra)}" if extra else ""
    return judged(name, not missing and not extra, finding)


def _size(name: str, path: Path | None, listed: str) -> Check:
    label = f"Size of {name}"
    if path is None:
        below = "; what was unpacked is checked below" if name.endswith(".zip") else ""
        return not_checked(label, f"the file was not found{below}")
    n_bytes = path.stat().st_size
    return judged(label, has_listed_size(n_bytes, listed), f"{n_bytes:,} bytes; {listed} is listed")


def some(names: Iterable[str]) -> str:
    """Return the first three names, and the number of the others."""
    names = list(names)
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest


def check_recordings(root: Path, published: Published, progress: Progress | None) -> StageOutcome:
    """Read every trial of the session files and compare counts with the published ones."""
    report = inspect(root, progress, check_sentences=False)  # they are as published
    totals = {row.split: row for row in report.totals}
    counts = {split: _n_read(totals.get(split)) for split in SPLITS}
    expected = {split: published.n_trials[split] for split in SPLITS}
    checks = [
        _readable(report),
        judged(
            "Trials",
            counts == expected,
            f"{split_counts(counts)}; published: {split_counts(expected)}",
        ),
        _per_session(report.rows, published),
        judged(
            "Features",
            report.n_features == published.n_features,
            f"{report.n_features} in each bin; {published.n_features} published",
        ),
        check_labels(totals),
    ]
    sessions: dict[str, dict[str, Any]] = {}
    for row in report.rows:
        values = sessions.setdefault(row.session, {"day": published.days.get(row.session)})
        values[f"n_{row.split}"] = _n_read(row)
    minutes = round(sum(row.minutes for row in report.totals), 1)
    return StageOutcome(checks, {"minutes": minutes, "sessions": sessions})


def _n_read(row: SplitReport | None) -> int:
    return 0 if row is None else row.n_trials + row.n_bad


def split_counts(counts: Mapping[str, int]) -> str:
    """Return numbers of trials by split as words."""
    return ", ".join(f"{count:,} {split}" for split, count in counts.items())


def _readable(report: DatasetReport) -> Check:
    n_trials = sum(row.n_trials for row in report.totals)
    if not report.problems:
        return judged("Recordings", True, f"{n_trials:,} trials were read without a problem")
    n = len(report.problems)
    finding = f"{n:,} problem{'' if n == 1 else 's'}; {first_problem(report.problems)}"
    return judged("Recordings", False, finding)


def first_problem(problems: Sequence[Problem]) -> str:
    """Return the first problem without its advice, which is for someone who writes recordings."""
    finding, semicolon, advice = str(problems[0]).rpartition("; ")
    return f"the first: {finding if semicolon else advice}"


def _per_session(rows: list[SplitReport], published: Published) -> Check:
    """Compare with the table of blocks, which also counts the trials that the release left out."""
    by_session: dict[str, dict[str, int]] = {}
    for row in rows:
        kind = "train" if row.split == "train" else "held out"
        counts = by_session.setdefault(row.session, {"train": 0, "held out": 0})
        counts[kind] += _n_read(row)
    more = [
        f"{name} {kind} has {count}, {published.sessions[name][kind]} in the table"
        for name, counts in by_session.items()
        for kind, count in counts.items()
        if name in published.sessions and count > published.sessions[name][kind]
    ]
    finding = (
        some(more)
        if more
        else f"none of {len(by_session)} sessions has more trials than the table of blocks"
    )
    return judged("Trials by session", not more, finding)


def check_labels(totals: Mapping[str, SplitReport]) -> Check:
    """Check that trials of train and val have sentences, and those of test none."""
    wrong = [
        f"{row.n_sentences:,} of {row.n_trials:,} {split} trials have a sentence"
        for split, row in totals.items()
        if row.n_sentences != (0 if split == "test" else row.n_trials)
    ]
    finding = "; ".join(wrong) or "sentences in train and val, none in test"
    return judged("Labels", not wrong, finding)


def session_files(root: Path, split: str = "*") -> list[Path]:
    """Return the session files of a directory, of one split or of all."""
    return sorted(root.glob(f"*/data_{split}.hdf5"))


def with_split(sessions: Iterable[Session], split: str) -> tuple[Session, ...]:
    """Return the sessions that have a split, with its files only."""
    return tuple(
        Session(session.name, {split: session.files[split]})
        for session in sessions
        if split in session.files
    )
