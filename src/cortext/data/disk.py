"""Writing that either happens or leaves nothing behind."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import h5py

from cortext.errors import DataError
from cortext.files import sync

_SHORT_WRITE = re.compile(
    r"\d+ requested and \d+ written"
)  # NumPy on a full disk, without the system's number


class Sink:
    """The file that HDF5 writes to.

    A failed write is remembered, and raised by `check`, instead of reported to HDF5.

    HDF5 keeps a file half open when closing it fails on a full disk, and crashes the process later
    (2.0, bus error).
    """

    def __init__(self, raw: FileIO) -> None:
        self._raw = raw
        self._error: OSError | None = None

    def write(self, data: memoryview) -> int:
        """Write all of `data`, or nothing once a write has failed."""
        rest = data
        try:
            while self._error is None and len(rest):
                rest = rest[self._raw.write(rest) :]
        except OSError as error:
            self._error = error
        return len(data)

    def truncate(self, size: int) -> int:
        """Set the length of the file."""
        try:
            self._raw.truncate(size)
        except OSError as error:
            self._error = self._error or error
        return size

    def read(self, size: int) -> bytes:
        """At most `size` bytes from the position on."""
        return self._raw.read(size) or b""

    def readinto(self, data: memoryview) -> int:
        """Fill `data`; with zeros where a failed write left nothing to read."""
        found = self._raw.readinto(data) or 0
        data[found:] = bytes(len(data) - found)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position."""
        return self._raw.seek(offset, whence)

    def tell(self) -> int:
        """The position."""
        return self._raw.tell()

    def flush(self) -> None:
        """Nothing is held back."""

    def check(self) -> None:
        """Raise the OSError of the first write that failed."""
        if self._error is not None:
            raise self._error


def disk_error(error: Exception, path: Path) -> DataError:
    """A failed write as a DataError; a full disk is named as such."""
    number = getattr(error, "errno", None)
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    named = re.search(r"errno = (\d+)", str(error))  # how HDF5 words what the system said
    number = int(named.group(1)) if number is None and named else number
    if number is None and _SHORT_WRITE.fullmatch(str(error)):
        number = errno.ENOSPC
    if number in full:
        fix = "free some space or write elsewhere; nothing was left behind"
        return DataError(f"cannot be written: {os.strerror(number)}", where=path, fix=fix)
    reason = os.strerror(number) if number else str(error)
    return DataError(
        f"cannot be written: {reason}",
        where=path,
        fix="check the folder's permissions and the disk",
    )


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """A context in which a failed write to `path` is a DataError."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, path) from None


def temporary_name(path: Path) -> Path:
    """Under what name `path` is made.

    In the same folder and so on the same disk, hidden, and this process's own.

    Raises:
        DataError: For a path without a name of its own (`.`), which nothing can be renamed to.
    """
    if path.name in ("", ".."):
        raise DataError(
            "has no name that it could be written under",
            where=path,
            fix="give a new directory or file",
        )
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


@contextmanager
def new_hdf5(path: Path) -> Iterator[tuple[h5py.File, Callable[[], None]]]:
    """An HDF5 file to fill, which appears as `path` when the context ends without an error,
    flushed to disk, or never.

    Gives the file and a function that raises DataError once a write has failed; the end of the
    context calls it too.
    """
    temporary = temporary_name(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = temporary.open("w+b", buffering=0)
    sink = Sink(raw)

    def check() -> None:
        with disk_errors(path):
            sink.check()

    try:
        with raw:
            with h5py.File(sink, "w") as file:
                yield file, check
            check()
            with disk_errors(path):
                os.fsync(raw.fileno())
        with disk_errors(path):
            temporary.replace(path)
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def replace_directory(new: Path, out: Path) -> None:
    """Rename directory `new` to `out`.

    What was there before disappears only once the new one is in its place.
    """
    new, out = (
        path.parent.resolve() / path.name for path in (new, out)
    )  # runs/../runs is gone while it is renamed
    old = new.with_name(new.name + ".old")
    if out.exists():
        out.replace(old)
    try:
        new.replace(out)
    except OSError:
        if old.exists():
            old.replace(out)
        raise
    if old.is_symlink():
        old.unlink()
    shutil.rmtree(old, ignore_errors=True)
    sync(out.parent)
