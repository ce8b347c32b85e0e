"""Files of recordings in a folder, and faults that name one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cortext.arguments import as_path
from cortext.data.checks import EXPORT_ZARR, ZARR, ZARR_ZIP, FaultError, is_lost_folder, is_zarr
from cortext.errors import DataError

_COMMANDS = {".nwb": "cortext import nwb", ".mat": "cortext import mat"}
"""Command that reads files of a suffix, for users who give it the other's files."""
_MOST_ATTRIBUTES = 1 << 20
"""Bytes of the attributes of a Zarr folder that are read."""


def files_in(folder: Path, suffix: str, *, deep: bool = True) -> list[Path]:
    """Return what has this suffix in a folder, in the order of the paths.

    Folders, pipes and dead links are among it, also links to folders that are not there. Opening
    one says what it is, so that no recording is left out in silence.

    Args:
        folder: Folder to search.
        suffix: Suffix in lower case, such as `.mat`; files may have it in upper case.
        deep: Search the folders in it, too.
    """
    paths = []
    for path in _below(folder, deep, set()):
        is_lost = deep and is_lost_folder(path)
        if path.suffix.lower() == suffix or is_lost or (suffix == ".nwb" and _is_zarr_nwb(path)):
            paths.append(path)
    return sorted(paths)


def _below(folder: Path, deep: bool, seen: set[tuple[int, int]]) -> Iterator[Path]:
    """Yield the entries of a folder, and of folders in it, also in those that links lead to.

    A folder that links lead to again is entered once. Hidden files are left out: macOS writes one
    beside each file on disks of other systems.
    """
    try:
        state = folder.stat()
        inner = sorted(folder.iterdir())
    except OSError:  # a folder that nobody may read; opening it says so
        return
    if (place := (state.st_dev, state.st_ino)) in seen:
        return
    seen.add(place)
    for path in inner:
        if path.name.startswith("."):
            continue
        yield path
        if deep and path.is_dir() and not is_zarr(path):
            yield from _below(path, deep, seen)


def _is_zarr_nwb(path: Path) -> bool:
    """Return whether a path is an NWB file in Zarr, by its name or by its attributes."""
    if path.name.lower().endswith((".nwb.zarr", ZARR_ZIP)):
        return True
    for name in (".zattrs", "zarr.json") if is_zarr(path) else ():
        with suppress(OSError), (path / name).open("rb") as file:
            if b"nwb_version" in file.read(_MOST_ATTRIBUTES):
                return True
    return False


def files_of(source: Path, suffix: str) -> list[Path]:
    """Return a file itself, or the files of a folder with this suffix, at least one.

    Raises:
        DataError: For a source that is not there, and a folder without such files.
    """
    source = as_path(source, "source")
    if not source.is_dir():
        if not source.exists() and not source.is_symlink():
            raise DataError("no such file or folder", where=source, fix="check the path")
        other = source.suffix.lower()
        if other in _COMMANDS and other != suffix:
            raise DataError(f"is no {suffix} file", where=source, fix=f"use {_COMMANDS[other]}")
        return [source]
    if is_zarr(source):
        raise DataError(ZARR, where=source, fix=EXPORT_ZARR)
    paths = files_in(source, suffix)
    if not paths:
        others = [other for other in _COMMANDS if files_in(source, other)]
        fix = f"use {_COMMANDS[others[0]]}" if others else "check the folder"
        raise DataError(f"no {suffix} files there", where=source, fix=fix)
    _check_once(paths)
    return paths


def _check_once(paths: Sequence[Path]) -> None:
    """Refuse links to a file beside it: its trials would be there twice."""
    known: dict[tuple[int, int], Path] = {}
    for path in paths:
        try:
            state = path.stat()
        except OSError:  # opening it says why
            continue
        other = known.setdefault((state.st_dev, state.st_ino), path)
        if other != path and path.is_file():
            raise DataError(f"is the same file as {other}", where=path, fix="remove one of them")


@contextmanager
def file_faults(path: Path) -> Iterator[None]:
    """Turn a fault of a file within the context into a DataError that names the file."""
    try:
        yield
    except FaultError as fault:
        raise fault.problem(path, None).error() from None


@contextmanager
def named_faults(place: str) -> Iterator[None]:
    """Begin the field of faults within the context with a place; an empty one changes nothing.

    Messages name the first file of a recording anyway. The place names another one.
    """
    try:
        yield
    except FaultError as fault:
        if place:
            fault.field = f"{place}: {fault.field}" if fault.field else place
        raise
