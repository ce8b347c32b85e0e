"""HDF5 files that appear complete or not at all, also on a full disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import h5py

from cortext.files import disk_errors, replace_file
from cortext.temporaries import new_temporary


class Sink:
    """The file that HDF5 writes to; it keeps a failed write to itself until `check` raises it.

    HDF5 2.0 keeps a file half open when closing it fails on a full disk, and crashes the process
    later with a bus error.
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
        """Return at most `size` bytes from the position on."""
        return self._raw.read(size) or b""

    def readinto(self, data: memoryview) -> int:
        """Fill `data`, with zeros where a failed write left nothing to read."""
        n_read = self._raw.readinto(data) or 0
        data[n_read:] = bytes(len(data) - n_read)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position."""
        return self._raw.seek(offset, whence)

    def tell(self) -> int:
        """Return the position."""
        return self._raw.tell()

    def flush(self) -> None:
        """Do nothing: nothing is held back."""

    def check(self) -> None:
        """Raise the OSError of the first write that failed."""
        if self._error is not None:
            raise self._error


@contextmanager
def new_hdf5(path: Path) -> Iterator[tuple[h5py.File, Callable[[], None]]]:
    """Give an HDF5 file to fill, which becomes `path` when the context ends without an error.

    Yields the file and a function that raises DataError once a write has failed, so that nobody
    continues for hours on a full disk; the end of the context calls it too.
    """
    with disk_errors(path):
        temporary = new_temporary(path)
    raw = FileIO(temporary.descriptor, "r+", closefd=False)
    sink = Sink(raw)

    def check() -> None:
        with disk_errors(path):
            sink.check()

    try:
        with raw, h5py.File(sink, "w") as file:
            yield file, check
        check()
        with disk_errors(path):
            replace_file(temporary, path)
    finally:
        temporary.discard()
