"""Unpacking archives that somebody else made."""

from __future__ import annotations

import lzma
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath, PureWindowsPath

from cortext.errors import DataError
from cortext.files import disk_error, replace_directory, sync

_CHUNK = 1 << 20
_MOST_RATIO = 100
"""Most bytes for each one of an archive; recordings take 1 to 4 times the archive."""
_MOST_UNCHECKED = 1 << 30
"""Most bytes of any archive: a small one may be all zeros."""
_MOST_LEVELS = 32
_DAMAGE = (
    EOFError,
    LookupError,
    MemoryError,
    RuntimeError,
    ValueError,
    lzma.LZMAError,
    struct.error,
    zlib.error,
)


def unpack(archive: Path, out: Path, advance: Callable[[int], None] | None = None) -> list[Path]:
    """Unpack a zip archive into directory `out` and return the top-level files and folders of it.

    Everything is unpacked beside its final place first and renamed when complete; folders of the
    same name are replaced.

    Args:
        archive: The zip file, which is not trusted.
        out: An existing directory.
        advance: Called with the number of compressed bytes worked off since the last call.

    Raises:
        DataError: For a damaged archive, a member that would land outside `out` or is no plain
            file, or a full disk.
    """
    temporary = out / f".{archive.name}.unpacking"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with zipfile.ZipFile(archive) as zipped:
            members = [
                member
                for member in zipped.infolist()
                if not member.filename.startswith("__MACOSX/")
            ]
            for member in members:
                _check(member, archive)
            _check_space(sum(member.file_size for member in members), archive, out)
            temporary.mkdir(parents=True)
            for member in members:
                _extract(zipped, member, temporary)
                if advance:
                    advance(member.compress_size)
        return [_settle(path, out) for path in sorted(temporary.iterdir())]
    except (zipfile.BadZipFile, *_DAMAGE) as error:
        raise DataError(
            f"damaged archive ({error})", where=archive, fix="download it again"
        ) from None
    except OSError as error:
        raise disk_error(error, out) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check(member: zipfile.ZipInfo, archive: Path) -> None:
    """Refuse what could be written outside (absolute paths, drives, `..`), links, endless paths."""
    name = member.filename
    mode = member.external_attr >> 16
    # A backslash or a drive is part of a plain name on Linux, and a way out on Windows.
    posix = PurePosixPath(name)
    windows = PureWindowsPath(name)
    outside = posix.is_absolute() or windows.drive or windows.root or ".." in windows.parts
    special = stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR)
    if outside or special or not 0 < len(posix.parts) <= _MOST_LEVELS:
        why = "is a link or a device" if special else "would be unpacked outside the directory"
        raise DataError(
            f"member {name!r} {why}; nothing was unpacked",
            where=archive,
            fix="do not trust this archive",
        )


def _check_space(needed: int, archive: Path, out: Path) -> None:
    size = archive.stat().st_size
    if needed > max(_MOST_RATIO * size, _MOST_UNCHECKED):
        found = (
            f"{size / 1e9:.2f} GB would become {needed / 1e9:.2f} GB, more than {_MOST_RATIO} times"
            " as much"
        )
        raise DataError(
            f"{found}; nothing was unpacked", where=archive, fix="do not trust this archive"
        )
    free = shutil.disk_usage(out).free
    if needed > free:
        found = f"unpacking needs {needed / 1e9:.2f} GB, {free / 1e9:.2f} GB are free in {out}"
        raise DataError(found, where=archive, fix="free some space")


def _extract(zipped: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path) -> None:
    path = folder / member.filename
    if member.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Mode x: a second entry of the same name must not overwrite the first.
    with zipped.open(member) as source, path.open("xb") as target:
        shutil.copyfileobj(source, target, _CHUNK)
    sync(path)


def _settle(path: Path, out: Path) -> Path:
    final = out / path.name
    if path.is_dir():
        replace_directory(path, final)
    else:
        path.replace(final)
    return final
