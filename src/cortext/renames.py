"""Renames that neither lose what has the new name nor leave that name empty for a moment."""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path

_AT_FDCWD = -2 if sys.platform == "darwin" else -100
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
_NEW = 4 if sys.platform == "darwin" else 1  # RENAME_EXCL, RENAME_NOREPLACE
_MOST_SYNCED = 64
"""Most files that are flushed one by one; more of them take longer than the whole disk."""


def exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step; return False where the system or the disk cannot do it."""
    return _renamed(one, other, _EXCHANGE) == 0


def rename_new(old: Path, new: Path) -> None:
    """Rename a file or directory; raise FileExistsError where the new name is taken."""
    failed = _renamed(old, new, _NEW)
    if failed == 0:
        return
    if failed == errno.EEXIST or os.path.lexists(new):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(new))
    old.rename(new)


def sync_tree(folder: Path) -> None:
    """Flush all files of a directory to disk, so that a rename of it survives a power cut."""
    found = [(Path(root), names) for root, _, names in os.walk(folder)]
    paths = [root / name for root, names in found for name in names]
    if len(paths) > _MOST_SYNCED:
        _sync_disk(folder)
        return
    for path in [*(path for path in paths if path.is_file()), *(root for root, _ in found)]:
        sync(path)


def _sync_disk(folder: Path) -> None:
    import ctypes

    syncfs = getattr(ctypes.CDLL(None), "syncfs", None)
    if syncfs is None:
        os.sync()
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        syncfs(descriptor)
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Flush a file or directory to disk, so that a rename that follows survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.EBADF, errno.ENOTSUP)):
            raise  # some network file systems cannot sync a directory
    finally:
        os.close(descriptor)


@functools.cache
def _function() -> Callable[[bytes, bytes, int], int] | None:
    """Return a rename with flags, which returns the number of the system's error.

    Linux has one since 3.15, macOS since 10.12.
    """
    import ctypes  # here: most commands rename nothing

    library = ctypes.CDLL(None, use_errno=True)
    call = getattr(library, "renameatx_np" if sys.platform == "darwin" else "renameat2", None)

    def renamed(old: bytes, new: bytes, flags: int) -> int:
        failed = call and call(_AT_FDCWD, old, _AT_FDCWD, new, flags)
        return ctypes.get_errno() if failed else 0

    return renamed if call else None


def _renamed(old: Path, new: Path, flags: int) -> int:
    """Rename with flags; return 0, or the number of the system's error."""
    function = _function()
    return errno.ENOSYS if function is None else function(os.fsencode(old), os.fsencode(new), flags)
