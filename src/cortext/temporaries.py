"""Temporary files and directories: new ones, and those that killed processes left.

What becomes `NAME` is written beside it, and so on the same disk, as `.NAME.MACHINE-RANDOM.tmp`.
Nobody can foresee that name and plant a link there. Its process holds a lock on it, which the
system drops with the process: no process writes an unlocked one, in no container either.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import re
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cortext.errors import DataError
from cortext.renames import rename_new

OLD = ".old"
"""Added to the name of a temporary directory: the older directory that it replaces."""
_NAME = re.compile(
    r"\.(?P<stem>.+)\.(?P<machine>[0-9a-f]{8})-[0-9a-f]{16}\.tmp(?P<old>\.old)?", re.DOTALL
)
_MOST_NAME_BYTES = 200
_STREAM = re.compile(
    r"/dev/(?:(?P<name>stdout|stderr|null|tty)|fd/(?P<fd>[0-9]+))|/proc/self/fd/(?P<proc>[0-9]+)"
)
_TRIES = 8
_FOREIGN_DAYS = 7
"""Days without a change after which files of another machine are taken for left behind.

Locks are not seen through every network file system, and this machine is another one once it has
been started again.
"""
_UMASK = threading.Lock()


@dataclass(frozen=True)
class Temporary:
    """A new, empty file or directory that only its owner may read.

    Attributes:
        path: Its name for now.
        descriptor: Open, and locked by this process; a file is open for reading and writing.
    """

    path: Path
    descriptor: int

    def check(self) -> None:
        """Raise OSError where something else has its name by now."""
        try:
            same = os.path.samestat(os.fstat(self.descriptor), os.lstat(self.path))
        except FileNotFoundError:
            same = False
        if not same:
            raise OSError(errno.ESTALE, "another process has moved it away", str(self.path))

    def open_to_others(self) -> None:
        """Let others read and write it as far as the umask of this process does."""
        with _UMASK:
            umask = os.umask(0o077)
            os.umask(umask)
        mode = os.fstat(self.descriptor).st_mode
        most = 0o777 if stat.S_ISDIR(mode) else 0o666
        with suppress(OSError):  # disks of Windows and some network file systems keep no modes
            os.fchmod(self.descriptor, most & ~umask | mode & stat.S_ISGID)

    def unlock(self) -> None:
        """Let other processes lock it, those too that were forked from this one."""
        import fcntl

        with suppress(OSError):
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def discard(self) -> None:
        """Close it, and remove whatever still has its name."""
        with suppress(OSError):
            os.close(self.descriptor)
        with suppress(OSError):
            _remove(self.path)


def new_temporary(path: Path, *, directory: bool = False) -> Temporary:
    """Make a temporary file or directory that will become `path`; remove abandoned ones of it.

    Raises:
        DataError: For a path that nothing can be renamed to, such as `.` and where a disk is
            mounted, and for a pipe or device, which would be lost.
        OSError: It cannot be made.
    """
    if why := _fault(path):
        raise DataError(why, where=path, fix="give a new directory or file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # a file has the name of the parent
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from error
    with suppress(OSError):
        clear(path.parent, path.name)
    for _ in range(_TRIES):
        name = f".{_stem(path.name)}.{_machine()}-{secrets.token_hex(8)}.tmp"
        # A process that clears may remove it, or lock it to remove it, before it is locked here.
        try:
            temporary = _made(path.with_name(name), directory)
        except FileNotFoundError:
            continue
        if try_lock(temporary.descriptor) is not False:
            with suppress(OSError):
                temporary.check()
                return temporary
        temporary.discard()
    raise OSError(errno.EAGAIN, "other processes remove what is written here", str(path))


def _fault(path: Path) -> str | None:
    """Return why nothing may be renamed to a path: it is found before the work, not after it."""
    if path.name in ("", ".."):
        return "has no name that it could be written under"
    if path.is_mount():
        return "is where a disk is mounted, and cannot be replaced as a whole"
    kind = stat.S_IFMT(os.lstat(path).st_mode) if os.path.lexists(path) else stat.S_IFREG
    if _STREAM.fullmatch(str(path)) or kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
        return "is a pipe or a device, which would be lost"
    return None


def open_stream(path: Path) -> BinaryIO | None:
    """Open `/dev/stdout` and its like, which no file can replace; None for another path."""
    match = _STREAM.fullmatch(str(path))
    if match is None:
        return None
    number = {"stdout": "1", "stderr": "2"}.get(match["name"], match["fd"] or match["proc"])
    # A duplicate writes on from the stream's position; opened anew, a file would be overwritten.
    descriptor = os.open(path, os.O_WRONLY | os.O_NOCTTY) if number is None else os.dup(int(number))
    return os.fdopen(descriptor, "wb")


def _made(path: Path, directory: bool) -> Temporary:
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    if directory:
        path.mkdir(mode=0o700)
        return Temporary(path, os.open(path, flags | os.O_RDONLY | os.O_DIRECTORY))
    return Temporary(path, os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def try_lock(descriptor: int) -> bool | None:
    """Lock an open file or directory; return False where it is locked, None where nothing can be.

    The system drops the lock when the descriptor and its copies are closed, also by a kill.
    """
    # Its `FileLock` would leave a lock file in every run directory: the directory itself is locked.
    from filelock import lock_descriptor

    try:
        return lock_descriptor(descriptor, blocking=False)
    except OSError:
        return None


def clear(folder: Path, name: str | None = None) -> None:
    """Remove the files and directories in `folder` that killed processes were writing.

    A directory that a kill left without its name, as it was being replaced, gets it back.

    Args:
        folder: Directory, which need not exist.
        name: Only files and directories that were to get this name.

    Raises:
        OSError: Something cannot be removed.
    """
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        found = [match for entry in entries if (match := _NAME.fullmatch(entry.name))]
        for match in found:
            if name is None or match["stem"] == _stem(name):
                with suppress(FileNotFoundError, PermissionError):
                    _clear_one(folder, name or match["stem"], match)


def restore(path: Path) -> None:
    """Give a directory its name back that a kill left without it, as it was being replaced."""
    with suppress(OSError):
        if path.name and not os.path.lexists(path):
            clear(path.parent, path.name)


def _clear_one(folder: Path, name: str, match: re.Match[str]) -> None:
    path, target = folder / match.string, folder / name
    with _unlocked(path) as unlocked:
        if not unlocked:
            return
        if match["old"] and not os.path.lexists(target):
            with suppress(FileExistsError):
                rename_new(path, target)
            return
        # Of a network file system, the folder has the server's time: this clock may be ahead.
        now_s = min(time.time(), folder.stat().st_mtime)
        oldest_s = now_s - _FOREIGN_DAYS * 86400
        if match["machine"] == _machine() or _changed_s(path) < oldest_s:
            _remove(path)


@contextmanager
def _unlocked(path: Path) -> Iterator[bool]:
    """Hold a file or directory; yield False where it is not ours or a process writes it."""
    status = os.lstat(path)
    kind = stat.S_IFMT(status.st_mode)
    if status.st_uid != os.geteuid() or kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
        yield False
        return
    if kind == stat.S_IFLNK:  # it was an `out` until the directory that it pointed to was replaced
        yield True
        return
    # NFS locks only files that are open for writing.
    flags = os.O_RDONLY | os.O_DIRECTORY if kind == stat.S_IFDIR else os.O_RDWR
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield try_lock(descriptor) is True and os.path.samestat(
            os.fstat(descriptor), os.lstat(path)
        )
    finally:
        os.close(descriptor)


def _changed_s(path: Path) -> float:
    """Return the time of the last change of a file, or of anything in a directory."""
    latest = os.lstat(path).st_mtime
    for root, folders, files in os.walk(path):
        for name in (*folders, *files):
            with suppress(FileNotFoundError):
                latest = max(latest, (Path(root) / name).lstat().st_mtime)
    return latest


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _stem(name: str) -> str:
    """Return as much of a name as leaves space for more within the 255 bytes of a name."""
    encoded = os.fsencode(name)
    if len(encoded) <= _MOST_NAME_BYTES:
        return name
    # Without the hash, what becomes another long name would be taken for what becomes this one.
    end = hashlib.sha256(encoded).hexdigest()[:16]
    return f"{encoded[: _MOST_NAME_BYTES - 17].decode(errors='ignore')}-{end}"


@functools.cache
def _machine() -> str:
    """Return 8 digits for this machine since its start; its containers have the same."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        name = os.uname().nodename
    return hashlib.sha256(name.encode()).hexdigest()[:8]
