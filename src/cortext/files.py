"""Files that appear whole or not at all, however the process ends, and the reading of JSON that
is not trusted.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

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

    The system drops the lock of a process that is killed; a file system without locks keeps nobody
    out.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise refusal from None
        except OSError:
            # NFS and others cannot lock a directory: two processes at once are then the user's
            # business
            pass
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
    """A file to fill, which is flushed to the disk and becomes `path` when the context ends
    without an error.

    Readers see what was there before or the new file, never a part of it. What was there before is
    renamed to `keep`.

    Raises:
        RunError: Naming the file where it cannot be written; what was there before stays.
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
        with suppress(
            OSError
        ):  # the file is in its place; some network file systems cannot sync a folder
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


MOST_LEVELS = 64
"""Most sections within sections of a file from outside.

All that walks through them afterwards is recursive.
"""
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
            what is no file, such as a pipe that nobody writes to.
    """
    check_file(path, MOST_JSON_BYTES)
    return parse_json_object(path.read_bytes(), finite=finite)


def check_file(path: Path, most_bytes: int) -> None:
    """Check a file that will be read whole.

    Raises:
        OSError: Where there is none.
        ValueError: For one that is too large and for what is no file, such as a pipe that nobody
            writes to.
    """
    status = path.stat()
    if not (
        stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    ):  # opening a directory says what is wrong
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

    Of a line of more than `most` bytes, no more is yielded than shows that it is.
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
