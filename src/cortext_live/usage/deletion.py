"""Deletion of what a usage log keeps: texts, candidates, feedback, features and recordings.

    DIR/deleting.json   numbers of the entries that are being deleted; gone when all of it is done

A deletion begins with that file and ends with its removal. What a kill interrupts is finished by
the next process that opens the log: until then the log is whole, or without the entries. Each
deleted entry leaves a line with its time (`usage.log_entries.Deleted`). Lines that cannot be read
are removed, too: nobody can tell what they hold. A line without a text keeps the number of such an
entry (`usage.log_entries.Damaged`), until it is deleted as well: its features may be there.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from cortext.data.session_files import read_trials, write_session
from cortext.data.trial import Trial
from cortext.errors import DataError, LiveError, shown
from cortext.files import atomic_stream, lock, parse_json_object, read_json
from cortext.renames import sync
from cortext.temporaries import clear
from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.kept_recordings import RECORDINGS, SESSION_FILE
from cortext_live.usage.log import LOG, MOST_LINE_BYTES, LogContents, read_lines, read_log
from cortext_live.usage.log_entries import (
    Damaged,
    Deleted,
    Entry,
    Feedback,
    wrong_with,
    wrong_with_session,
)
from cortext_live.usage.log_lines import KEYS, MOST_ENTRIES, NUMBER_BYTES, numbered

JOURNAL = "deleting.json"
PACKED = ".*packed*"
"""Copies that training made of the recordings, beside them, and unfinished ones."""


@dataclass(frozen=True)
class Selection:
    """Entries to delete: some by their numbers, those of a span of time, or all.

    Attributes:
        entries: Numbers.
        since: First time.
        until: Last time; None for no end.
        everything: All entries.

    Raises:
        DataError: Not exactly one of the three is given, or a time has no offset from UTC.
    """

    entries: tuple[int, ...] | None = None
    since: datetime | None = None
    until: datetime | None = None
    everything: bool = False

    def __post_init__(self) -> None:
        by_time = self.since is not None or self.until is not None
        if (self.entries is not None) + by_time + self.everything != 1:
            fix = "give numbers of entries, times, or all"
            raise DataError("what is to be deleted is not said, or said twice", fix=fix)
        for name, when in (("since", self.since), ("until", self.until)):
            if when is not None and (problem := wrong_with(when)):
                raise DataError(f"{name} is {shown(str(when), 40)}, {problem}")

    def covers(self, when: datetime) -> bool:
        """Tell whether a time is selected; a selection by numbers selects none."""
        if self.everything:
            return True
        if self.entries is not None:
            return False
        after = self.since is None or when >= self.since
        return after and (self.until is None or when <= self.until)

    def of(self, entries: Collection[Entry]) -> list[int]:
        """Return the numbers of the selected entries that are not deleted.

        Raises:
            DataError: A number has no entry, or a deleted one.
        """
        kept = {n: each for n, each in enumerate(entries) if type(each) is not Deleted}
        for number in self.entries or ():
            if number not in kept:
                raise DataError(f"there is no entry {number}, or it was deleted")
        if self.entries is not None:
            return sorted(set(self.entries))
        return [number for number, each in kept.items() if self.covers(each.when)]


def is_pending(folder: Path) -> bool:
    """Tell whether a deletion was begun and not finished."""
    return (folder / JOURNAL).exists()


def begin(folder: Path, log: LogContents, numbers: Iterable[int]) -> list[int]:
    """Write down that entries are to be deleted; from here on they will be.

    Returns:
        Their numbers, with those of an earlier deletion that is not finished.

    Raises:
        OSError, LiveError: That cannot be written.
    """
    earlier = _journal(folder)
    if earlier is None or earlier.began != log.began:
        earlier = _Journal(log.began, [], [])
    numbers = sorted({*numbers, *earlier.entries})
    sessions = {log.utterances[number].session for number in numbers if number in log.utterances}
    if any(type(log.entries[n]) is Damaged for n in numbers if n < len(log.entries)):
        folders = (path.parent.name for path in (folder / RECORDINGS).glob(f"*/{SESSION_FILE}"))
        sessions |= {
            name for name in folders if not wrong_with_session(name)
        }  # nobody knows the day
    journal = _Journal(log.began, numbers, sorted({*sessions, *earlier.sessions}))
    with atomic_stream(folder / JOURNAL, private=True) as file:
        file.write(json.dumps(asdict(journal)).encode())
    return numbers


def finish(folder: Path, descriptor: int, reopened: Callable[[int], None]) -> None:
    """Finish a deletion that was begun; do nothing where there is none.

    Args:
        folder: Directory of the log.
        descriptor: The log, open and locked by this process.
        reopened: Gets the descriptor of the new log, locked, in place of the old one.

    Raises:
        OSError, DataError: A file cannot be read or written; the rest is done the next time.
        LiveError: The recordings are damaged.
    """
    for name in (LOG, JOURNAL):
        clear(folder, name)  # of a killed deletion; half a log still has all texts
    journal = _journal(folder)
    if journal is None:
        return
    log, numbers = read_log(folder), journal.entries
    if log.began in (None, journal.began):  # None: all of its lines may be damaged
        if log.damaged or not log.deleted.issuperset(numbers):
            _rewrite(folder / LOG, journal, descriptor, reopened)
        if journal.began is not None:
            _delete_features(folder, journal.began, numbers)
            _delete_all_recordings(folder, journal.sessions, journal.began, set(numbers))
    (folder / JOURNAL).unlink(missing_ok=True)
    sync(folder)


@dataclass(frozen=True)
class _Journal:
    """A deletion that was begun.

    Attributes:
        began: Second of the log's first entry.
        entries: Numbers of the entries, in order.
        sessions: Recording days of the utterances among them.
    """

    began: int | None
    entries: list[int]
    sessions: list[str]


def _journal(folder: Path) -> _Journal | None:
    """Return the deletion in progress; None for none. Raises LiveError for a damaged file."""
    path = folder / JOURNAL
    try:
        values = read_json(path)
        journal = _Journal(values["began"], values["entries"], values["sessions"])
        usable = (
            (journal.began is None or type(journal.began) is int)
            and all(type(n) is int and 0 <= n < MOST_ENTRIES for n in journal.entries)
            and journal.entries == sorted(set(journal.entries))
            and all(not wrong_with_session(name) for name in journal.sessions)
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OSError):
        usable = False
    if not usable:
        fix = "remove the file, and delete again what was to be deleted"
        raise LiveError("a deletion cannot be finished: its file is damaged", where=path, fix=fix)
    return journal


def _rewrite(
    path: Path, journal: _Journal, descriptor: int, reopened: Callable[[int], None]
) -> None:
    """Write the log anew, without the text of some entries and without damaged lines."""
    new = -1
    try:
        with atomic_stream(path, private=True) as file:
            # A copy keeps the lock: no other process can take the log for itself meanwhile.
            new = os.dup(file.fileno())
            fcntl.fcntl(new, fcntl.F_SETFL, fcntl.fcntl(new, fcntl.F_GETFL) | os.O_APPEND)
            file.writelines(_lines_left(path, journal))
    except BaseException:
        if new >= 0:
            os.close(new)
        raise
    reopened(new)
    os.close(descriptor)


def _lines_left(path: Path, journal: _Journal) -> Iterator[bytes]:
    """Yield the lines of a log without the text of some entries, each with its number."""
    log, numbers, n_written = LogContents(), set(journal.entries), 0
    if (began := journal.began) is None:
        return  # no line can be read

    def line(number: int, entry: Entry) -> bytes:
        kind = "deleted" if number in numbers or type(entry) is Deleted else "damaged"
        return numbered(_without_text(entry, kind), number, began)

    for number, raw, parsed in read_lines(path, log):
        if isinstance(parsed, Feedback):
            if number not in numbers:
                yield _numbered(raw, number, began)
            continue
        for missing in range(n_written, number):
            yield line(missing, log.entries[missing])
        n_written = number + 1
        yield line(number, parsed) if number in numbers else _numbered(raw, number, began)
    log.settle(1 + max(numbers, default=-1))
    for missing in range(n_written, len(log.entries)):
        yield line(missing, log.entries[missing])


def _numbered(raw: bytes, number: int, began: int) -> bytes:
    """Return a line of a log with its number."""
    raw = raw.rstrip(b"\n")
    is_old = not any(key in parse_json_object(raw) for key in KEYS)
    short = len(raw) <= MOST_LINE_BYTES - NUMBER_BYTES
    return numbered(raw, number, began) if is_old and short else raw + b"\n"


def is_current(descriptor: int, path: Path) -> bool:
    """Tell whether an open log is still the one at its path: deleting replaces it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _without_text(entry: Entry, kind: str) -> bytes:
    """Return the line that stands for an entry that is `deleted` or `damaged`."""
    id_ = getattr(entry, "id", None)
    line = {} if id_ is None else {"id": id_}
    when = entry.when.isoformat(timespec="milliseconds")
    return json.dumps(line | {"when": when, kind: True}).encode()


def _delete_features(folder: Path, began: int, numbers: Iterable[int]) -> None:
    kept_features = KeptFeatures(folder)
    clear(kept_features.folder)
    for number in numbers:
        kept_features.path(began, number).unlink(missing_ok=True)
    if kept_features.folder.is_dir():
        sync(kept_features.folder)


def _delete_all_recordings(
    folder: Path, sessions: Iterable[str], began: int, numbers: set[int]
) -> None:
    """Delete entries from the recordings of some days; raise what one day fails on in the end."""
    failed = None
    for session in sessions:
        try:
            _delete_recordings(folder, session, began, numbers)
        except LiveError as error:  # a damaged file must not keep what others hold
            failed = failed or error
    if failed is not None:
        raise failed


def _delete_recordings(folder: Path, session: str, began: int, numbers: set[int]) -> None:
    """Write a session file again without the trials of some entries, or remove it."""
    root = folder / RECORDINGS
    path = root / session / SESSION_FILE
    clear(path.parent)
    for copy in root.glob(PACKED):
        shutil.rmtree(copy)
    if not path.exists():
        return

    def is_deleted(trial: Trial) -> bool:
        return trial.block == began and trial.trial in numbers

    def trials() -> Iterator[Trial]:
        return read_trials(path, labels_required=True, session=session)

    try:
        deleted = [is_deleted(trial) for trial in trials()]
        if all(deleted):
            path.unlink()
        elif any(deleted):
            write_session(path, (trial for trial in trials() if not is_deleted(trial)))
            path.chmod(0o600)
        sync(path.parent)
    except DataError as error:
        raise LiveError(
            f"deleted from the log, but its recordings cannot be written again: {error.what}",
            where=error.where or path,
            fix="free some space, or remove a damaged file; it is tried again at the next start",
        ) from None


def delete(folder: str | Path, selection: Selection) -> list[int]:
    """Delete entries of a log that no process writes; return their numbers.

    Raises:
        DataError: There is no log, or no such entry.
        LiveError: Another process writes the log, or something cannot be written.
    """
    folder = Path(folder)
    read_log(folder)  # raises for a damaged log, and takes no lock
    path = folder / LOG
    with locked_log(path) as locked, failed_deletion(path):
        finish(folder, locked.descriptor, locked.replace)
        log = read_log(folder)
        log.settle()
        numbers = selection.of(log.entries)
        if numbers or (selection.everything and log.damaged):
            begin(folder, log, numbers)
            finish(folder, locked.descriptor, locked.replace)
    return numbers


@dataclass
class LockedLog:
    """A log that this process holds open and locked."""

    descriptor: int

    def replace(self, descriptor: int) -> None:
        """Take the descriptor of a new log, locked, in place of the old one."""
        self.descriptor = descriptor


@contextmanager
def locked_log(path: Path) -> Iterator[LockedLog]:
    """Open and lock a log, and close it in the end. Raises LiveError while a server writes it."""
    with failed_deletion(path):
        locked = LockedLog(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC))
    try:
        if not (lock(locked.descriptor) and is_current(locked.descriptor, path)):
            fix = "delete on the page, or stop the server"
            raise LiveError("a server is writing this log", where=path, fix=fix)
        yield locked
    finally:
        with suppress(OSError):
            os.close(locked.descriptor)


@contextmanager
def failed_deletion(path: Path) -> Iterator[None]:
    """Raise errors of the disk as LiveError."""
    try:
        yield
    except OSError as error:
        raise LiveError(
            f"not everything is deleted yet: {error.strerror}",
            where=path,
            fix="free some space or check the folder's permissions, and delete again",
        ) from None
