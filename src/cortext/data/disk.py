"""Writing that either happens or leaves nothing behind."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

from cortext.errors import DataError


def sync(path: Path) -> None:
    """Flush a file or folder to disk, so that a rename that follows survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def disk_error(error: Exception, path: Path) -> DataError:
    """A failed write as a DataError; a full disk is named as such."""
    number = getattr(error, "errno", None)
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    named = re.search(r"errno = (\d+)", str(error))  # how HDF5 words what the system said
    number = int(named.group(1)) if number is None and named else number
    if number in full:
        fix = "free some space or write elsewhere; nothing was left behind"
        return DataError(f"cannot be written: {os.strerror(number)}", where=path, fix=fix)
    reason = os.strerror(number) if number else str(error)
    return DataError(f"cannot be written: {reason}", where=path, fix="check the folder's permissions and the disk")


def replace_directory(new: Path, out: Path) -> None:
    """Rename directory `new` to `out`; what was there before disappears only once the new one is in its place."""
    old = new.with_name(new.name + ".old")
    if out.exists():
        out.replace(old)
    try:
        new.replace(out)
    except OSError:
        if old.exists():
            old.replace(out)
        raise
    shutil.rmtree(old, ignore_errors=True)
    sync(out.parent)
