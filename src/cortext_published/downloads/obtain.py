"""Published files in a directory: downloaded or copied, checked, unpacked, and recorded."""

from __future__ import annotations

import os
import urllib.error
import zipfile
from collections.abc import Callable
from pathlib import Path

from cortext.errors import DataError
from cortext.files import disk_error
from cortext.processes import Progress
from cortext.temporaries import new_temporary
from cortext_published.downloads.archive import unpacked
from cortext_published.downloads.download import RemoteFile, download, mismatch
from cortext_published.downloads.fetched import Fetched

_CHUNK = 1 << 20
Refused = Callable[[urllib.error.HTTPError, str], DataError]
"""Makes the error for an answer of a server to the request of a named file."""
BUSY = "another process fetches into this directory"
Note = Callable[[str], None]
"""Gets a line that the user should see."""


class Meter:
    """Bytes done of all files; an archive counts twice, for coming and for unpacking."""

    def __init__(self, files: list[RemoteFile], progress: Progress | None) -> None:
        self.total = sum(map(self.weight, files))
        self.done = 0
        self.progress = progress

    @staticmethod
    def weight(file: RemoteFile) -> int:
        """Return the number of bytes to work off for a file."""
        return (file.size or 0) * (2 if file.name.endswith(".zip") else 1)

    def advance(self, n_bytes: int) -> None:
        """Count bytes that are done."""
        self.done += n_bytes
        if self.progress:
            self.progress(min(self.done, self.total), self.total)


def obtain(
    file: RemoteFile,
    out: Path,
    source: Path | None,
    token: str | None,
    meter: Meter,
    refused: Refused,
    note: Note,
) -> list[Path]:
    """Download a file into `out`, or take it from `source`; unpack an archive; record what it is.

    Nothing is done where an earlier call has done it. A file or folder that `fetch` did not write
    is never changed.

    Args:
        file: The file, with size and digest where they are known.
        out: An existing directory.
        source: The file as it was downloaded by hand.
        token: Token of an account with the server.
        meter: Counts the bytes.
        refused: Makes the error for an answer of the server that is not the file.
        note: Gets a line about content that could not be checked.

    Returns:
        The files and folders that it consists of.

    Raises:
        DataError: Where it cannot be downloaded, taken or unpacked, and where something else has
            its name.
    """
    fetched = Fetched(file, out)
    is_archive = file.name.endswith(".zip")
    if fetched.products:
        meter.advance(meter.weight(file))
        return [out / name for name in fetched.products]
    try:
        is_there = _is_there(file, out / file.name, source)
        if is_there and is_archive:
            source = out / file.name
        elif is_there:
            meter.advance(meter.weight(file))
            return fetched.keep([file.name])
        if not is_archive:
            fetched.refuse(file.name)
        if file.digest is None:
            note(f"{file.name}: its content is not checked: no digest of it is known")
        if source is not None:
            products = _take(file, source, fetched, meter)
        else:
            part = download(file, out, token=token, advance=meter.advance)
            products = _settle(part, file.name, fetched, meter)
            # The content of an archive is unpacked and checked; that of the recordings is 10 GB.
            part.unlink(missing_ok=True)
    except urllib.error.HTTPError as error:
        raise refused(error, file.name) from None
    except OSError as error:
        raise disk_error(error, out / file.name) from None
    return products


def _settle(content: Path, name: str, fetched: Fetched, meter: Meter) -> list[Path]:
    if not name.endswith(".zip"):
        return fetched.settle({name: content})
    with unpacked(content, fetched.out, meter.advance) as folder:
        return fetched.settle({path.name: path for path in sorted(folder.iterdir())})


def _is_there(file: RemoteFile, path: Path, source: Path | None) -> bool:
    """Return whether the very file has its name already, whoever put it there."""
    if source is not None and path.exists() and path.samefile(source):
        problem = _problem(file, source, lambda chunk: None)
        if problem:
            raise DataError(problem, where=source, fix="download it again")
        return True
    usable = file.digest is not None and path.is_file() and not path.is_symlink()
    return usable and _problem(file, path, lambda chunk: None) is None


def _take(file: RemoteFile, source: Path, fetched: Fetched, meter: Meter) -> list[Path]:
    """Check a file downloaded by hand; archives are read where they lie, other files are copied."""
    archive = file.name.endswith(".zip")
    temporary = None if archive else new_temporary(fetched.out / file.name)
    try:

        def count(chunk: bytes) -> None:
            if temporary is not None:
                _write_all(temporary.descriptor, chunk)
            meter.advance(len(chunk))

        problem = _problem(file, source, count)
        if problem or (archive and not zipfile.is_zipfile(source)):
            raise DataError(problem or "not a zip archive", where=source, fix="download it again")
        if temporary is None:
            return _settle(source, file.name, fetched, meter)
        temporary.open_to_others()
        os.fsync(temporary.descriptor)
        return fetched.settle({file.name: temporary.path})
    finally:
        if temporary is not None:
            temporary.discard()


def _write_all(descriptor: int, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _problem(file: RemoteFile, path: Path, use: Callable[[bytes], None]) -> str | None:
    """Read a file, and return its difference from the published one."""
    hash_ = file.hasher()
    size = 0
    with path.open("rb") as reader:
        while chunk := reader.read(_CHUNK):
            use(chunk)
            size += len(chunk)
            if hash_:
                hash_.update(chunk)
    return mismatch(file, size, hash_)
