"""A directory of session files: `<root>/<session>/data_{train,val,test}.hdf5`.

The release's table of blocks lies in it or beside it. It has the corpus and the days after
implantation of each block. `<root>/cortext.json` states the conventions where they are not the
release's.
"""

from __future__ import annotations

import csv
import heapq
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

from cortext.arguments import as_path, check_list, check_type
from cortext.data import hdf5_input
from cortext.data.checks import (
    LIMITS,
    FaultError,
    Limits,
    OnBad,
    PatchGeometry,
    Problem,
    dead_link_fault,
    is_lost_folder,
)
from cortext.data.conventions import RELEASE_CONVENTIONS, Conventions
from cortext.data.rebin import Rebinning
from cortext.data.session_files import read_trials, trial_names, usual_features
from cortext.data.trial import SPLITS, Session, Trial
from cortext.describe import Described, some
from cortext.errors import DataError, nearest
from cortext.files import check_file, is_plain_name

DESCRIPTION = "t15_copyTaskData_description.csv"
_MOST_BYTES = 1 << 24  # 1,600 times the release's


@dataclass(frozen=True)
class BlockDescription:
    """One row of the release's table of blocks.

    Attributes:
        date: Recording day, YYYY-MM-DD.
        split: May be `Val/Test` for a block divided between the two.
    """

    date: str
    post_implant_day: int
    block: int
    n_sentences: int
    corpus: str
    split: str


def read_description(path: str | Path) -> list[BlockDescription]:
    """Read `t15_copyTaskData_description.csv`. Raises DataError where it is not that table."""
    path = as_path(path, "description")
    try:
        check_file(path, _MOST_BYTES)
        with path.open(newline="") as file:
            return [
                BlockDescription(
                    date, _number(day), _number(block), _number(sentences), corpus, split
                )
                for date, day, block, sentences, corpus, split in list(csv.reader(file))[1:]
            ]
    except OSError as error:
        raise DataError(
            f"cannot read the table of blocks: {error.strerror}", where=path, fix="check the path"
        ) from None
    except (csv.Error, UnicodeDecodeError, ValueError) as error:
        raise DataError(
            f"not the table of blocks ({error})", where=path, fix="take the release's, or remove it"
        ) from None


def _number(text: str) -> int:
    number = int(text)
    if abs(number) >= 2**31:
        raise ValueError(f"{text} is no number of days, blocks or sentences")
    return number


@dataclass(frozen=True)
class Description:
    """Post-implant day and corpus of each block, looked up in the release's table of blocks.

    Attributes:
        days: Days since implantation by recording date; empty without a table.
        corpora: Corpus by recording date and block number; empty without a table.
    """

    days: dict[date, int] = field(default_factory=dict)
    corpora: dict[tuple[date, int], str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> Description:
        """Read the table; raises DataError where the file is not one."""
        return cls.of(read_description(path))

    @classmethod
    def of(cls, rows: Iterable[BlockDescription]) -> Description:
        """Make a description of rows that have been read."""
        days = {}
        corpora = {}
        for row in rows:
            recorded = date.fromisoformat(row.date)
            days[recorded] = row.post_implant_day
            corpora[recorded, row.block] = row.corpus
        return cls(days, corpora)

    def corpus(self, session: str, block: int) -> str | None:
        """Return the corpus of a block of the session, or None where the table does not list it."""
        recorded = Session(session, {}).date
        return self.corpora.get((recorded, block)) if recorded else None

    def post_implant_day(self, session: str) -> int | None:
        """Return days from implantation to the session; None where the table does not list it."""
        recorded = Session(session, {}).date
        return self.days.get(recorded) if recorded else None


@dataclass(frozen=True, repr=False)
class Dataset(Described):
    """A directory of session files; only names are in memory.

    Attributes:
        sessions: Recording days in the order of their names, which for `t15.YYYY.MM.DD` is by date.
        description: The release's table of blocks where the directory has it.
        limits: The largest trial that is read.
        conventions: Tokens, language and length of a bin, from `cortext.json`.
        rebinning: Joins bins while trials are read (`rebinned`).
    """

    root: Path
    sessions: tuple[Session, ...]
    description: tuple[BlockDescription, ...] = field(default=(), repr=False)
    limits: Limits = LIMITS
    conventions: Conventions = RELEASE_CONVENTIONS
    rebinning: Rebinning | None = field(default=None, repr=False)

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that at least one session has."""
        return tuple(
            split for split in SPLITS if any(split in session.files for session in self.sessions)
        )

    @property
    def session_names(self) -> tuple[str, ...]:
        """The sessions' names, in order."""
        return tuple(session.name for session in self.sessions)

    @cached_property
    def n_features(self) -> int:
        """Number of features of most trials in the first session file that can be read.

        All other trials must have as many.
        """
        problem: Problem | None = None
        for session in self.sessions:
            for path in session.files.values():
                try:
                    with hdf5_input.opened(path) as file:
                        n_usual = usual_features(file, trial_names(file))
                    if n_usual:
                        return n_usual
                except FaultError as fault:
                    problem = problem or fault.problem(path, None)
        raise (
            problem.error()
            if problem
            else DataError("no trial with input_features", where=self.root)
        )

    def _n_features_or_none(self) -> int | None:
        """Return None where no file can be read: each of them then gets its own problem."""
        try:
            return self.n_features
        except DataError:
            return None

    def __iter__(self) -> Iterator[Trial]:
        """Yield the trials of train, val and test, session by session; raise the first bad one."""
        for split in self.splits:
            yield from self.trials(split)

    def n_trials(self, split: str) -> int:
        """Return the number of trials of a split, with bad ones; unreadable files have none."""
        self._check_split(split)
        total = 0
        for session in self.sessions:
            if split in session.files:
                with suppress(FaultError), hdf5_input.opened(session.files[split]) as file:
                    total += len(trial_names(file))
        return total

    def trials(
        self,
        split: str,
        sessions: Iterable[str] | None = None,
        skip_bad: bool = False,
        *,
        on_bad: OnBad | None = None,
        max_abs: float | None = None,
        patch: PatchGeometry | None = None,
    ) -> Iterator[Trial]:
        """Yield the trials of a split, one in memory at a time, by session and trial.

        Trials of `val` must have labels; those of `train` may have none.

        Args:
            split: `train`, `val` or `test`.
            sessions: Names to read, all by default.
            skip_bad: Leave bad trials and files out; otherwise the first one is a DataError.
            on_bad: Gets the Problem of each one that is left out; given, they all are.
            max_abs: The largest magnitude that a feature may have; any by default.
            patch: Its size is the shortest trial, and its stride bounds the length of a label
                (default: `checks.patch_for` the conventions).
        """
        self._check_split(split)
        chosen = self._chosen(sessions)
        if on_bad is None and skip_bad:
            on_bad = _ignore
        return self._read(split, chosen, on_bad, max_abs, patch)

    def as_recorded(self, *, on_bad: OnBad | None = None) -> Iterator[tuple[str, Trial]]:
        """Yield split and trial of all splits together, by session, block and trial number.

        One trial of each split is in memory at a time.

        Args:
            on_bad: As for `trials`.
        """
        for session in self.sessions:
            parts = [
                zip(
                    repeat(split),
                    self._read(split, [session], on_bad, None, None, as_recorded=True),
                    strict=False,
                )
                for split in self.splits
            ]
            yield from heapq.merge(*parts, key=lambda part: (part[1].block, part[1].trial))

    def _read(
        self,
        split: str,
        sessions: Iterable[Session],
        on_bad: OnBad | None,
        max_abs: float | None,
        patch: PatchGeometry | None,
        as_recorded: bool = False,
    ) -> Iterator[Trial]:
        """Yield the trials of `trials`, which has checked the names at once."""
        for session in sessions:
            if split in session.files:
                yield from read_trials(
                    session.files[split],
                    labels_required=split == "val",
                    on_bad=on_bad,
                    session=session.name,
                    n_features=self._n_features_or_none() if on_bad else self.n_features,
                    max_abs=max_abs,
                    patch=patch,
                    corpora=self.corpora(session),
                    limits=self.limits,
                    conventions=self.conventions,
                    rebinning=self.rebinning,
                    as_recorded=as_recorded,
                )

    def rebinned(self, bin_ms: float, sums: Iterable[int] = ()) -> Dataset:
        """Return the dataset with trials in bins of another length, computed as they are read.

        Args:
            bin_ms: Length of the new bins, 5 to 50 ms.
            sums: Numbers of the features to sum, such as spike counts; all others are averaged
                (`cortext.features.rebin`).

        Raises:
            DataError, ConfigError, WrongType: For a length or a feature that is not possible.
        """
        if self.rebinning is not None:
            raise DataError("the bins are joined already", where=self.root, fix="open it again")
        rebinning = Rebinning.of(self.conventions, bin_ms, sums, self.n_features)
        if rebinning.to_ms == self.conventions.bin_ms:
            return self
        conventions = rebinning.conventions(self.conventions)
        return replace(self, conventions=conventions, rebinning=rebinning)

    def corpora(self, session: Session) -> dict[int, str]:
        """Return the corpus by block number of a session, as far as the table of blocks has it."""
        day = str(session.date)
        return {row.block: row.corpus for row in self.description if row.date == day}

    def post_implant_days(self) -> dict[str, int]:
        """Return days since implantation by session name, where the table of blocks has them."""
        days = {row.date: row.post_implant_day for row in self.description}
        return {s.name: days[str(s.date)] for s in self.sessions if str(s.date) in days}

    def _facts(self) -> dict[str, Any]:
        # Counting the trials would open every file.
        return {
            "session files in": self.root,
            "sessions": some(self.session_names),
            "splits": ", ".join(self.splits),
            **self.conventions.facts(),
        }

    def _table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        rows = [
            (session.name, *("yes" if split in session.files else "" for split in self.splits))
            for session in self.sessions
        ]
        return ("session", *self.splits), rows

    def _check_split(self, split: str) -> None:
        if split not in SPLITS:
            raise DataError(f"unknown split {split!r}; {nearest(split, SPLITS)}", where=self.root)

    def _chosen(self, names: Iterable[str] | None) -> list[Session]:
        known = {session.name: session for session in self.sessions}
        if names is None:
            return list(known.values())
        chosen = list(check_list(names, "sessions", "a list of names"))
        for name in chosen:
            if name not in known:
                raise DataError(
                    f"unknown session {name!r}; {nearest(name, known)}", where=self.root
                )
        return [known[name] for name in chosen]


def _ignore(problem: Problem) -> None:
    """Leave a bad trial out without recording why."""


def open_session_files(root: str | Path, *, limits: Limits = LIMITS) -> Dataset:
    """Find the sessions and splits of a directory of session files.

    Args:
        root: The directory that holds `<session>/data_{train,val,test}.hdf5`.
        limits: The largest trial that is read, 60,000 bins of 16,384 features by default.

    Raises:
        DataError: Where there are none, and for a damaged `cortext.json` or table of blocks.
    """
    root = as_path(root, "data")
    check_type(limits, Limits, "limits", "Limits")
    sessions = find_sessions(root)
    places = (root / DESCRIPTION, root.parent / DESCRIPTION)
    # A link that leads nowhere is one, too: reading it says so.
    table = next((path for path in places if path.is_file() or path.is_symlink()), None)
    description = tuple(read_description(table)) if table else ()
    return Dataset(root, sessions, description, limits, Conventions.read(root))


_IMPORTED = ("*.mat", "*.nwb")
"""Files of which `cortext import` writes session files."""


def find_sessions(root: Path) -> tuple[Session, ...]:
    """Return the sessions of a directory of session files; raise DataError where there are none."""
    if not root.is_dir():
        if (fault := dead_link_fault(root)) is not None:
            raise fault.problem(root, None).error()
        problem = (
            "is a file; a directory of session files is needed"
            if root.exists()
            else "no such directory"
        )
        raise DataError(
            problem, where=root, fix="give the directory that holds <session>/data_train.hdf5"
        )
    sessions = []
    for folder in sorted(path for path in root.iterdir() if path.is_dir() or is_lost_folder(path)):
        files = {split: folder / f"data_{split}.hdf5" for split in SPLITS}
        if is_lost_folder(folder):  # reading it names the link, so that no day is lost in silence
            files = {SPLITS[0]: files[SPLITS[0]]}
        else:
            # A link that leads nowhere stays, and is named when it is opened.
            files = {s: path for s, path in files.items() if path.exists() or path.is_symlink()}
        if files and not is_plain_name(folder.name):
            raise DataError(
                "the folder's name cannot name a session", where=folder, fix="rename the session"
            )
        if files:
            sessions.append(Session(folder.name, files))
    if not sessions:
        inner = next(iter(sorted(root.glob("*/*/data_*.hdf5"))), None)
        fix = "give the directory that holds <session>/data_train.hdf5"
        if inner:
            fix = f"give {inner.parents[1]}"
        elif any(next(root.glob(depth + name), None) for depth in ("", "*/") for name in _IMPORTED):
            fix = "write them of its files with `cortext import`"
        raise DataError(
            "no session files found; <session>/data_{train,val,test}.hdf5 expected",
            where=root,
            fix=fix,
        )
    return tuple(sessions)
