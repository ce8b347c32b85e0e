"""Unpacking archives that somebody else made."""

from __future__ import annotations

import lzma
import re
import shutil
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath

from cortext.errors import DataError
from cortext.files import disk_error, disk_errors
from cortext.renames import sync_tree
from cortext.temporaries import new_temporary

_CHUNK = 1 << 20
_MOST_RATIO = 100
"""Most bytes for each one of an archive; recordings take 1 to 4 times the archive."""
_MOST_UNCHECKED = 1 << 30
"""Most bytes of any archive: a small one may be all zeros."""
_MOST_LEVELS = 32
_MOST_MEMBERS = 100_000
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?|.*[. ]", re.IGNORECASE)
"""Names of devices on Windows, and ends that it takes off."""
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


@contextmanager
def unpacked(
    archive: Path, out: Path, advance: Callable[[int], None] | None = None
) -> Iterator[Path]:
    """Yield a temporary directory in `out` with all that a zip archive holds.

    It vanishes at the end, with what has not been renamed until then.

    Args:
        archive: The zip file, which is not trusted.
        out: An existing directory.
        advance: Called with the number of compressed bytes worked off since the last call.

    Raises:
        DataError: For a damaged archive, a member that would land outside `out`, is no plain file
            or has a name that not every system takes, and for a full disk.
    """
    with disk_errors(out):
        temporary = new_temporary(out / archive.name, directory=True)
    try:
        _unpack(archive, temporary.path, advance)
        yield temporary.path
    finally:
        temporary.discard()


def _unpack(archive: Path, folder: Path, advance: Callable[[int], None] | None) -> None:
    try:
        with zipfile.ZipFile(archive) as zipped:
            members = [member for member in zipped.infolist() if not _is_litter(member.filename)]
            _check_members(members, archive)
            _check_space(sum(member.file_size for member in members), archive, folder.parent)
            for member in members:
                _extract(zipped, member, folder)
                if advance:
                    advance(member.compress_size)
        sync_tree(folder)
    except (zipfile.BadZipFile, *_DAMAGE) as error:
        raise DataError(
            f"damaged archive ({error})", where=archive, fix="download it again"
        ) from None
    except OSError as error:
        raise disk_error(error, folder.parent) from None


def _is_litter(name: str) -> bool:
    """Return whether macOS has added a member to the archive."""
    return name.startswith("__MACOSX/") or name.rpartition("/")[2] == ".DS_Store"


def _check_members(members: list[zipfile.ZipInfo], archive: Path) -> None:
    """Raise DataError for members that are no files, and for names that not every system takes."""
    kinds: dict[str, tuple[str, bool]] = {}
    why: str | None = f"is one of {len(members):,}; at most {_MOST_MEMBERS:,} are unpacked"
    for member in members:
        if len(members) <= _MOST_MEMBERS:
            why = _fault(member) or _clash(member, kinds)
        if why:
            raise DataError(
                f"member {member.filename!r} {why}; nothing was unpacked",
                where=archive,
                fix="do not trust this archive",
            )


def _fault(member: zipfile.ZipInfo) -> str | None:
    """Return the reason why a member is not unpacked."""
    name = member.filename
    mode = member.external_attr >> 16
    # A backslash or a drive is part of a plain name on Linux, and a way out on Windows.
    posix = PurePosixPath(name)
    windows = PureWindowsPath(name)
    outside = posix.is_absolute() or windows.drive or windows.root or ".." in windows.parts
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        return "is a link or a device"
    if outside or not 0 < len(posix.parts) <= _MOST_LEVELS:
        return "would be unpacked outside the directory"
    if not name.isprintable():
        return "has a character that cannot be shown"
    if posix.parts[0].startswith("."):
        return "would be hidden"
    if any(_RESERVED.fullmatch(part) for part in posix.parts):
        return "has a name that not every system takes"
    return None


def _clash(member: zipfile.ZipInfo, kinds: dict[str, tuple[str, bool]]) -> str | None:
    """Return the reason why a member cannot stand beside the others, and add it to them.

    Args:
        member: Member with a path that can stand alone.
        kinds: Paths so far, and whether they are files, by the path as a disk takes it that knows
            no capitals.
    """
    path = PurePosixPath(member.filename)
    for part in (*reversed(path.parents[:-1]), path):
        is_file = part is path and not member.is_dir()
        key = unicodedata.normalize("NFC", str(part)).casefold()
        before, was_file = kinds.get(key, (None, False))
        if before is not None and (is_file or was_file or before != str(part)):
            return f"and {before!r} are one name on some systems"
        kinds[key] = (str(part), is_file)
    return None


def _check_space(needed: int, archive: Path, out: Path) -> None:
    size = archive.stat().st_size
    if needed > max(_MOST_RATIO * size, _MOST_UNCHECKED):
        problem = (
            f"{size / 1e9:.2f} GB would become {needed / 1e9:.2f} GB, more than {_MOST_RATIO} times"
            " as much"
        )
        raise DataError(
            f"{problem}; nothing was unpacked", where=archive, fix="do not trust this archive"
        )
    free = shutil.disk_usage(out).free
    if needed > free:
        problem = f"unpacking needs {needed / 1e9:.2f} GB, {free / 1e9:.2f} GB are free in {out}"
        raise DataError(problem, where=archive, fix="free some space")


def _extract(zipped: zipfile.ZipFile, member: zipfile.ZipInfo, folder: Path) -> None:
    path = folder / member.filename
    if member.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Mode x: a second entry of the same name must not overwrite the first.
    with zipped.open(member) as source, path.open("xb") as target:
        shutil.copyfileobj(source, target, _CHUNK)
