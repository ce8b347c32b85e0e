"""HDF5 files that cannot be opened: what they are, who holds them, and what helps."""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from cortext.data.checks import AGAIN, EXPORT_ZARR, ZARR_ZIP, FaultError

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_HEAD = 64
_OTHERS: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a pointer of Git LFS", "fetch the file with `git lfs pull`"),
    (b"\x1f\x8b", "a file compressed by gzip", "unpack it with gunzip"),
    (b"pk\3\4", "a zip file", "unpack it; Zarr in it is exported to HDF5, for NWB with pynwb"),
    (b"<!doctype", "a web page", "download the file again, perhaps after signing in"),
    (b"<html", "a web page", "download the file again, perhaps after signing in"),
)
"""First bytes in small letters, what such a file is, and what to do."""
_BUSY = (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK)
_PROCESSES = Path("/proc")


def refusal(path: Path, error: Exception) -> FaultError | None:
    """Return what an error of h5py at opening a file means; None for one of the system.

    Args:
        path: The file.
        error: What h5py raised.
    """
    message = str(error)
    if "unable to lock file" in message:
        return _locked(path, getattr(error, "errno", None))
    if getattr(error, "errno", None) is not None:
        return None
    if "already open for" in message:
        return _marked(path)
    if "truncated" in message:
        finding = f"truncated HDF5: {path.stat().st_size} bytes found, more expected"
        return FaultError(None, finding, AGAIN)
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head.startswith(_SIGNATURE):
        finding = "a damaged HDF5 file, perhaps of a writer that ended without closing it"
        return FaultError(None, finding, AGAIN)
    return other_format(path, "an HDF5 file", head) or FaultError(
        None, "not an HDF5 file, or a badly damaged one", AGAIN
    )


def other_format(path: Path, expected: str, head: bytes) -> FaultError | None:
    """Return what a file is instead of the expected one, by its first bytes; None if unknown."""
    known = _OTHERS
    if not head:
        known = ((b"", "an empty file (0 bytes)", AGAIN),)
    elif path.name.lower().endswith(ZARR_ZIP):
        known = ((b"pk", "a Zarr folder in a zip file", EXPORT_ZARR), *known)
    for start, format_found, fix in known:
        if head.lower().startswith(start):
            return FaultError(None, f"not {expected} but {format_found}", fix)
    return None


def _locked(path: Path, number: int | None) -> FaultError:
    if number in _BUSY:
        finding = f"is open for writing in {holder(path) or 'another program'}"
        return FaultError(None, finding, "close it there, and try again")
    finding = "cannot be locked: " + (os.strerror(number) if number else "no reason known")
    fix = "set HDF5_USE_FILE_LOCKING=FALSE if no program writes it"
    return FaultError(None, finding, fix)


def _marked(path: Path) -> FaultError:
    """Return the fault of a file that is marked as open: its writer works, or has died."""
    if (writer := holder(path)) is not None:
        return FaultError(None, f"is open for writing in {writer}", "close it there, and try again")
    return FaultError(
        None,
        "its writer ended without closing it",
        f"copy it, then run `h5clear -s {shlex.quote(str(path))}`, which marks it as closed",
    )


def holder(path: Path) -> str | None:
    """Return the program that has a file open for writing, such as `python (process 123)`.

    None where nobody has, or where the system does not say.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    place = status.st_dev, status.st_ino
    for process in (*_writers(place), *_lockers(place)):
        try:
            name = (_PROCESSES / str(process) / "comm").read_text().strip()
        except OSError:
            name = "a program"
        return f"{name} (process {process})"
    return None


def _writers(place: tuple[int, int]) -> Iterator[int]:
    """Yield processes of this user that have the file open for writing."""
    for process in _PROCESSES.glob("[0-9]*"):
        try:
            for link in (process / "fd").iterdir():
                state = link.stat()
                writes = link.lstat().st_mode & stat.S_IWUSR  # the link says what its process may
                if (state.st_dev, state.st_ino) == place and writes:
                    yield int(process.name)
        except OSError:  # of another user, or gone
            continue


def _lockers(place: tuple[int, int]) -> Iterator[int]:
    """Yield processes that hold a lock for writing on the file, also those of other users."""
    device, inode = place
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    try:
        lines = (_PROCESSES / "locks").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        words = line.split()
        if "WRITE" in words and wanted in words:
            process = words[words.index(wanted) - 1]
            if process.isdigit() and int(process):  # 0 and -1: of another container
                yield int(process)
