"""The chain of a recalibrated decoder: all models that were made, and all decisions about them.

    CHAIN/chain.jsonl        entries, one a line, only ever appended to
    CHAIN/models/<number>/   run directory of the model that entry <number> added
    CHAIN/reserve            is removed where the disk is full, to write a decision

An entry holds the SHA-256 of the entry before, and its own: a change anywhere in the file is
noticed, except that the last entries are missing. Which model speaks is computed from the entries
and stored nowhere else. Models are never written again, so that a rollback gives back the same
bits.

A model is written whole before its entry. A kill leaves at most a model without an entry, or an
entry without its end; the next writer removes either.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cortext.arguments import as_path
from cortext.errors import CortextError, RunError
from cortext.files import (
    atomic_directory,
    atomic_write,
    disk_errors,
    exclusive,
)
from cortext.renames import sync
from cortext_live.recalibration.chain_entries import ADDS, ChainContents, ChainEntry

FILE = "chain.jsonl"
MODELS = "models"
LOCK_S = 60.0
"""Seconds that a person or the service waits for the other, which may be writing a model."""
RESERVE = "reserve"
RESERVE_BYTES = 64 << 10
DAMAGED = (
    "restore it from a backup and remove learner/; or begin a new chain in an empty directory, with"
    " the run of models/0"
)


def read_chain(folder: str | Path) -> ChainContents:
    """Read a chain, which another process may be writing at this moment.

    An entry without its end, which a writer is writing or was killed at, is not read.

    Raises:
        RunError: There is no chain, or an entry is damaged; it names the line.
    """
    return _read(as_path(folder, "folder") / FILE)[0]


def chain_state(folder: str | Path) -> tuple[int, int, int] | None:
    """Return what changes with each entry that is added; None where there is no chain."""
    try:
        status = (as_path(folder, "folder") / FILE).stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read(path: Path) -> tuple[ChainContents, int]:
    """Return the contents of a chain, and the number of bytes that they take."""
    contents, size = ChainContents(), 0
    try:
        content = path.read_bytes()
    except OSError as error:
        fix = "give a directory that `cortext recalibrate` wrote"
        raise RunError(f"no chain of use: {error.strerror}", where=path, fix=fix) from None
    for number, line in enumerate(io.BytesIO(content), 1):  # not at other ends of lines
        if not line.endswith(b"\n") and _is_unfinished(line):
            break
        try:
            contents.add(ChainEntry.read(line))
        except (KeyError, TypeError, ValueError) as error:
            problem = f"line {number} of the chain is damaged: {error}"
            raise RunError(problem, where=path, fix=DAMAGED) from None
        size += len(line)
    if not contents.entries:
        raise RunError("the chain has no entry", where=path, fix=DAMAGED)
    return contents, size


def _is_unfinished(line: bytes) -> bool:
    """Tell whether a last line without its end is one that was not written to its end.

    A whole object with other bytes behind it was damaged later.
    """
    try:
        _, end = json.JSONDecoder().raw_decode(line.decode())
    except ValueError:
        return True
    return end == len(line)


def model_folder(folder: str | Path, number: int) -> Path:
    """Return the run directory of a model of a chain."""
    return as_path(folder, "folder") / MODELS / str(number)


def digest_of(run: Path) -> str:
    """Return the SHA-256 of the names and contents of the files in a directory."""
    digest = hashlib.sha256()
    for path in sorted(each for each in run.rglob("*") if each.is_file()):
        name = path.relative_to(run).as_posix().encode()
        digest.update(b"%d %d " % (len(name), path.stat().st_size) + name)
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def verify_chain(folder: str | Path) -> ChainContents:
    """Read a chain and compare all its models with their digests.

    Raises:
        RunError: An entry or a model is damaged or missing; it names the first.
    """
    contents = read_chain(folder)
    for number in contents.models:
        verify_model(folder, contents.model(number))
    return contents


def verify_model(folder: str | Path, entry: ChainEntry) -> Path:
    """Return the run directory of a model whose files agree with its entry.

    Raises:
        RunError: They do not.
    """
    path = model_folder(folder, entry.number)
    with disk_errors(path):
        if not path.is_dir() or digest_of(path) != entry.facts["digest"]:
            problem = f"model {entry.number} of the chain is damaged or missing"
            raise RunError(problem, where=path, fix="roll back to another: cortext chain rollback")
    return path


def is_intact(folder: str | Path, entry: ChainEntry) -> bool:
    """Tell whether the files of a model are as they were written."""
    try:
        verify_model(folder, entry)
    except RunError:
        return False
    return True


def intact_ancestor(folder: str | Path, entry: ChainEntry, contents: ChainContents) -> int:
    """Return a model's parent; where its files are damaged, that one's parent, and so on.

    Raises:
        RunError: None of them is as it was written.
    """
    for number in contents.lineage(entry.number)[1:]:
        if is_intact(folder, contents.model(number)):
            return number
    problem = f"no model that was promoted before model {entry.number} is as it was written"
    raise RunError(problem, where=as_path(folder, "folder"), fix=DAMAGED)


class Chain:
    """A chain that this process writes; see `open_chain`.

    Attributes:
        folder: Its directory.
        contents: Its entries.
    """

    def __init__(self, folder: Path, contents: ChainContents, now: Callable[[], datetime]) -> None:
        self.folder = folder
        self.contents = contents
        self._path = folder / FILE
        self._now = now

    def add_model(self, kind: str, write: Callable[[Path], None], **facts: Any) -> ChainEntry:
        """Add a model.

        Args:
            kind: `base` or `candidate`.
            write: Writes its run directory into a given empty one.
            facts: More for its entry; a candidate's `parent` is needed.

        Raises:
            RunError, DataError: The disk is full; the chain is as before.
        """
        number = len(self.contents.entries)
        path = model_folder(self.folder, number)
        with disk_errors(path), atomic_directory(path) as made:
            write(made)
            digest = digest_of(made)
        return self.add(kind, digest=digest, **facts)

    def add(self, kind: str, **facts: Any) -> ChainEntry:
        """Add an entry, on the disk before this returns.

        Raises:
            RunError, DataError: The entry cannot follow, or the disk is full; the chain is as
                before.
        """
        contents = self.contents
        entry = ChainEntry.made(len(contents.entries), self._now(), kind, facts, contents.head)
        try:
            contents.check(entry)
        except ValueError as error:
            raise RunError(f"the chain takes no such entry: {error}", where=self._path) from None
        with disk_errors(self._path):
            try:
                self._append(entry.line())
            except OSError:
                reserve = self.folder / RESERVE
                if kind in ADDS or not reserve.exists():
                    raise
                reserve.unlink()  # a model that proved worse must be silenced all the same
                self._append(entry.line())
        contents.add(entry)
        return entry

    def roll_back(self, to: int, why: str, operator: str) -> ChainEntry:
        """Let an earlier model speak again, and be the parent of the next ones."""
        self.contents.model(to)
        speaking = self.contents.speaking(self._now())
        facts = {"from": speaking, "why": why, "operator": operator}
        return self.add("rolled_back", model=to, **facts)

    def remove(self, number: int) -> None:
        """Remove the files of a model that neither speaks nor is the parent."""
        self.add("removed", model=number)
        shutil.rmtree(model_folder(self.folder, number), ignore_errors=True)

    def _append(self, line: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            try:
                rest = memoryview(line)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)
        if not size:
            sync(self.folder)


@contextmanager
def open_chain(
    folder: str | Path,
    base: str | Path | None = None,
    *,
    operator: str = "",
    now: Callable[[], datetime] = lambda: datetime.now(UTC).astimezone(),
    wait_s: float = 0.0,
) -> Iterator[Chain]:
    """Open a chain for writing; other processes cannot meanwhile.

    Args:
        folder: Its directory.
        base: Run directory that a new chain begins with; None where it must exist.
        operator: Name of the person or program that opens it, for a new chain's first entry.
        now: Returns the time.
        wait_s: Seconds to wait for another process that writes it.

    Raises:
        RunError: Another process writes it, it is damaged, or it does not exist.
    """
    folder = as_path(folder, "folder")
    if base is not None:
        with disk_errors(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not folder.is_dir():
        read_chain(folder)  # says so
    busy = RunError("another process writes this chain", where=folder, fix="try again")
    with exclusive(folder, busy, wait_s):
        path = folder / FILE
        if base is not None and (not path.exists() or not path.stat().st_size):
            # A kill leaves models/0 without an entry, but no other.
            if any(each.name.isdigit() and each.name != "0" for each in _models(folder)):
                raise RunError("the chain has models, but no entry", where=path, fix=DAMAGED)
            chain = Chain(folder, ChainContents(), now)
            _tidy(chain)
            chain.add_model("base", lambda made: copy_run(Path(base), made), operator=operator)
        else:
            contents, size = _read(path)
            os.truncate(path, size)
            chain = Chain(folder, contents, now)
            _tidy(chain)
        _keep_reserve(folder / RESERVE)
        yield chain


def copy_run(run: Path, made: Path) -> None:
    """Copy what describes a trained model: the files of its run directory, not its folders.

    Folders hold checkpoints and traces of the training.

    Raises:
        RunError: It is no run directory.
    """
    files = [path for path in run.iterdir() if path.is_file()] if run.is_dir() else []
    if not files:
        raise RunError("no run directory", where=run, fix="give one that `cortext train` wrote")
    for path in files:
        shutil.copyfile(path, made / path.name)


def _keep_reserve(path: Path) -> None:
    """Write the reserve where it is missing, and the disk has the space."""
    if not path.exists():
        with suppress(CortextError):
            atomic_write(path, os.urandom(RESERVE_BYTES))  # zeros may take no space on a disk


def _tidy(chain: Chain) -> None:
    """Remove what a killed process left: models without an entry, and half-written ones."""
    kept = {str(number) for number in chain.contents.models}
    for path in _models(chain.folder):
        if path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)


def _models(folder: Path) -> list[Path]:
    models = folder / MODELS
    return list(models.iterdir()) if models.is_dir() else []
