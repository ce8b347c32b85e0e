"""Atomic writes, locks between processes, plain names, and JSON that is not trusted."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO

from cortext.errors import CortextError, DataError, RunError
from cortext.renames import exchange, rename_new, sync, sync_tree
from cortext.temporaries import OLD, Temporary, new_temporary, open_stream, restore, try_lock

_TRIES = 8
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written")
"""NumPy's error on a full disk, which lacks the system's number."""


@contextmanager
def atomic_stream(
    path: Path, keep: Path | None = None, *, private: bool = False
) -> Iterator[BinaryIO]:
    """Give an open file to fill, which becomes `path` when the context ends without an error.

    Readers see the old file or the new one, never a part of it, also after a power cut. Raises
    OSError, and then the old file stays.

    Args:
        path: The file to write; its directory is made. A stream such as `/dev/stdout` is written
            as it is.
        keep: New name of the old file.
        private: Only the owner may read the file.
    """
    if (stream := open_stream(path)) is not None:
        with stream:
            yield stream
        return
    temporary = new_temporary(path)
    try:
        with open(temporary.descriptor, "wb", closefd=False) as file:
            yield file
        replace_file(temporary, path, keep, private=private)
    finally:
        temporary.discard()


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Give a directory to fill, which becomes `path` when the context ends without an error.

    Raises OSError, and then an older directory stays.
    """
    restore(path)
    temporary = new_temporary(path, directory=True)
    try:
        yield temporary.path
        temporary.open_to_others()
        temporary.check()
        older = _rename_directory(temporary.path, path)
        temporary.unlock()  # others may lock `path` from now on
        _finish_renaming(path, older)
    finally:
        temporary.discard()


@contextmanager
def atomic_file(path: Path, keep: Path | None = None) -> Iterator[BinaryIO]:
    """Give an open file to fill, as `atomic_stream` does. Raises RunError, naming the file."""
    try:
        with atomic_stream(path, keep) as file:
            yield file
    except OSError as error:
        what = f"cannot write the file: {error.strerror}"
        cure = "free some space" if error.errno in _FULL else "check the folder's permissions"
        fix = f"{cure}; the file that was there before is kept"
        raise RunError(what, where=path, fix=fix) from None


def atomic_write(path: Path, content: bytes) -> None:
    """Write a file as `atomic_file` does."""
    with atomic_file(path) as file:
        file.write(content)


def replace_file(
    new: Temporary, path: Path, keep: Path | None = None, *, private: bool = False
) -> None:
    """Flush a file to disk and rename it.

    Args:
        new: File to flush and rename.
        path: New name of `new`.
        keep: New name of a file that is at `path`; None to overwrite it.
        private: Only the owner may read the file.

    Raises:
        OSError: Where a step fails.
    """
    if not private:
        new.open_to_others()
    os.fsync(new.descriptor)
    new.check()
    if keep is not None and path.exists():
        path.replace(keep)
    new.path.replace(path)
    _sync_if_possible(path.parent)


def replace_directory(new: Path, out: Path) -> None:
    """Flush directory `new` to disk and rename it to `out`.

    An older directory disappears only once the new one is in its place: there is one under this
    name at every moment, also after a kill or a power cut. Where the disk cannot swap two names,
    the older one is away for a moment; `restore` brings it back after a kill in that moment.

    Raises:
        OSError: Also for an `out` that is a file.
    """
    _finish_renaming(out, _rename_directory(new, out))


def _rename_directory(new: Path, out: Path) -> Path | None:
    """Flush and rename a directory; return where the older one is now."""
    # Resolved but for the last part: runs/../runs does not exist while runs is renamed.
    new, out = (path.parent.resolve() / path.name for path in (new, out))
    if os.path.lexists(out) and not (out.is_dir() or out.is_symlink()):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(out))
    sync_tree(new)
    if not os.path.lexists(out):
        new.replace(out)
        return None
    return new if exchange(new, out) else _rename_in_two_steps(new, out)


def _finish_renaming(out: Path, older: Path | None) -> None:
    """Flush the new name to disk, and remove the older directory, or the link to it."""
    _sync_if_possible(out.parent)
    if older is None:
        return
    if older.is_symlink():
        older.unlink()
    shutil.rmtree(older, ignore_errors=True)


def _rename_in_two_steps(new: Path, out: Path) -> Path:
    """Rename `out` to another name and `new` to `out`; return the other name."""
    old = new.with_name(new.name + OLD)
    for _ in range(_TRIES):
        try:
            with suppress(FileNotFoundError):
                out.replace(old)
            new.replace(out)
            return old
        except BaseException as error:
            try:
                rename_new(old, out)
            except FileExistsError:  # another process has written one meanwhile
                shutil.rmtree(old, ignore_errors=True)
            except OSError:
                pass  # another process has restored it
            if getattr(error, "errno", None) not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(out))


def _sync_if_possible(folder: Path) -> None:
    with suppress(OSError):  # the rename is done; a folder need not be readable
        sync(folder)


def refuse_foreign(folder: Path, names: Iterable[str], what: str) -> None:
    """Raise DataError where a directory that will be replaced holds what we did not write.

    Args:
        folder: Directory, which need not exist.
        names: Patterns of the names of all that we write in it.
        what: Name of the output, for the message.
    """
    known = (*names, ".DS_Store", ".nfs*")
    found = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    foreign = sorted(name for name in found if not any(fnmatchcase(name, each) for each in known))
    if foreign:
        raise DataError(
            f"holds {foreign[0]!r}, which is no part of {what} and would be lost",
            where=folder,
            fix="move it away, or give another directory",
        )


def is_plain_name(name: object) -> bool:
    """Return whether this can name a file that lies where it is put, on every system.

    It is a printable text of at most 200 bytes in UTF-8 without a slash or backslash, and neither
    empty, `.` nor `..`.
    """
    if not isinstance(name, str) or not name.isprintable() or name in ("", ".", ".."):
        return False
    return len(name.encode()) <= 200 and not set(name) & set("/\\")


def check_writable(path: Path) -> None:
    """Raise DataError where a file or directory cannot be made as `path`: before hours of work."""
    with disk_errors(path):
        if (stream := open_stream(path)) is not None:
            stream.close()
        else:
            new_temporary(path).discard()


def disk_error(error: Exception, path: Path) -> DataError:
    """Return a failed write as a DataError that names a full disk as such."""
    number = getattr(error, "errno", None)
    named = re.search(r"errno = (\d+)", str(error))  # HDF5 words the system's error so
    number = int(named.group(1)) if number is None and named else number
    if number is None and _SHORT_WRITE.fullmatch(str(error)):
        number = errno.ENOSPC
    if number in _FULL:
        fix = "free some space or write elsewhere; nothing was left behind"
        return DataError(f"cannot be written: {os.strerror(number)}", where=path, fix=fix)
    reason = os.strerror(number) if number else str(error)
    fix = "check the folder's permissions and the disk"
    return DataError(f"cannot be written: {reason}", where=path, fix=fix)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a failed write to `path` within the context into a DataError."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, path) from None


@contextmanager
def failed_writes(path: Path) -> Iterator[None]:
    """Turn a failed write to `path`, a file that only grows, into a RunError."""
    try:
        yield
    except OSError as error:
        fix = "free some space and continue with --resume"
        raise RunError(f"cannot be written: {error.strerror}", where=path, fix=fix) from None


def lock(descriptor: int) -> bool:
    """Lock an open file or directory; return False where another process has locked it.

    The system drops the lock when the descriptor is closed, also by a kill.
    """
    # NFS and others cannot lock a directory: two processes at once are then the user's business
    return try_lock(descriptor) is not False


@contextmanager
def exclusive(folder: Path, refusal: CortextError, wait_s: float = 0.0) -> Iterator[None]:
    """Keep other processes out of this context for the same directory.

    They raise `refusal` after waiting for so many seconds.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    deadline_s = time.monotonic() + wait_s
    try:
        while not lock(descriptor):
            if time.monotonic() >= deadline_s:
                raise refusal
            time.sleep(0.05)
        if not folder.exists() or not os.path.samestat(os.fstat(descriptor), folder.stat()):
            raise refusal  # the process that had the lock has just removed the directory
        yield
    finally:
        os.close(descriptor)


MOST_LEVELS = 64
"""Deepest nesting of a file from outside; the code that reads its content is recursive."""
MOST_JSON_BYTES = 256 << 20
"""Longest JSON file that is read."""
_MOST_LINE_BYTES = 4 << 20


def parse_json(text: str | bytes, *, finite: bool = False) -> Any:
    """Parse a JSON text that is not trusted.

    Raises:
        ValueError: With one line, for a text that is no JSON, a key that stands twice, an integer
            beyond 64 bits, more than `MOST_LEVELS` levels and, with `finite`, for a number that is
            not finite.
    """
    try:
        found = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_float=_finite if finite else None,
            parse_constant=_finite if finite else None,
        )
    except RecursionError:
        raise ValueError(f"it has more than {MOST_LEVELS} levels") from None
    level = [found]
    for _ in range(MOST_LEVELS):
        inner = (
            item.values() if type(item) is dict else item
            for item in level
            if type(item) in (dict, list)
        )
        level = [child for items in inner for child in items if type(child) in (dict, list)]
        if not level:
            return found
    raise ValueError(f"it has more than {MOST_LEVELS} levels")


def parse_json_object(text: str | bytes, *, finite: bool = False) -> dict[str, Any]:
    """Parse a JSON object as `parse_json` does. Raises ValueError for everything else, too."""
    found = parse_json(text, finite=finite)
    if not isinstance(found, dict):
        raise ValueError(f"it is a {type(found).__name__}; a JSON object is needed")
    return found


def read_json(path: Path, *, finite: bool = False) -> dict[str, Any]:
    """Read a file that holds one JSON object which is not trusted.

    Raises:
        OSError: Where it cannot be read.
        ValueError: As `parse_json_object` does, for a file of more than `MOST_JSON_BYTES` and for
            another kind of file, such as a pipe that nobody writes to.
    """
    check_file(path, MOST_JSON_BYTES)
    return parse_json_object(path.read_bytes(), finite=finite)


def check_file(path: Path, most_bytes: int) -> None:
    """Check a file that will be read whole.

    Raises:
        OSError: Where there is none.
        ValueError: For one that is too large, and for no file, such as a pipe that nobody
            writes to.
    """
    status = path.stat()
    # A directory passes: the error of opening it names the fault.
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise ValueError("it is not a regular file")
    if status.st_size > most_bytes:
        raise ValueError(f"it has {status.st_size:,} bytes; at most {most_bytes:,} are read")


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines, without the lines that are damaged.

    Nothing where there is no file.

    A log ends within a line where its writer was killed.
    """
    try:
        if not path.is_file():
            return
        with path.open("rb") as file:
            for _, line, _ in lines_within(file, _MOST_LINE_BYTES):
                if len(line) <= _MOST_LINE_BYTES:
                    with suppress(ValueError):
                        yield parse_json_object(line)
    except OSError:
        return


def lines_within(file: BinaryIO, most: int) -> Iterator[tuple[int, bytes, bool]]:
    """Yield number and content of the lines that are not blank, and whether they end.

    Of a line of more than `most` bytes only the first `most` + 1 are yielded.
    """
    number = 0
    while raw := file.readline(most + 1):
        number += 1
        rest = raw
        while rest and not rest.endswith(b"\n") and len(raw) > most:
            rest = file.readline(most)
        if not raw.isspace():
            yield number, raw, rest.endswith(b"\n")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a key twice")
    return found


def _integer(digits: str) -> int:
    number = int(digits) if len(digits) <= 20 else 1 << 64
    if not -(1 << 63) <= number < 1 << 64:
        raise ValueError(f"it has an integer of {len(digits)} characters; at most 64 bits are read")
    return number


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"it has the number {digits[:20]}, which is not finite")
    return number
