"""Files that appear whole or not at all, whenever the process is killed or the disk is full."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from cortext.errors import CortextError, RunError


def sync(path: Path) -> None:
    """Flush a file or folder to disk, so that a rename that follows survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def alone_in(folder: Path, refusal: CortextError) -> Iterator[None]:
    """A context in which no other process is in the same one; where one is, the refusal is raised.

    The system drops the lock of a process that is killed; a file system without locks keeps nobody out.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise refusal from None
        except OSError:
            pass  # NFS and others cannot lock a directory: two processes at once are then the user's business
        if not folder.exists() or not os.path.samestat(os.fstat(descriptor), folder.stat()):
            raise refusal  # the other has just removed it
        yield
    finally:
        os.close(descriptor)


@contextmanager
def failed_writes(path: Path) -> Iterator[None]:
    """A context in which a failed write to `path`, which only grows, is a RunError."""
    try:
        yield
    except OSError as error:
        fix = "free some space and continue with --resume"
        raise RunError(f"cannot be written: {error.strerror}", where=path, fix=fix) from None


@contextmanager
def written_whole(path: Path, keep: Path | None = None) -> Iterator[BinaryIO]:
    """A file to fill, which is flushed to the disk and becomes `path` when the context ends without an error.

    Readers see what was there before or the new file, never a part of it. What was there before is renamed to `keep`.
    Raises RunError naming the file where it cannot be written; what was there before stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if keep is not None and path.exists():
            path.replace(keep)
        temporary.replace(path)
        with suppress(OSError):  # the file is in its place; some network file systems cannot sync a folder
            sync(path.parent)
    except OSError as error:
        fix = "free some space; the file that was there before is kept"
        raise RunError(f"cannot write the file: {error.strerror}", where=path, fix=fix) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file as `written_whole` does."""
    with written_whole(path) as file:
        file.write(content)
