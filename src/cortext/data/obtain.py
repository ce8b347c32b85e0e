"""Published files in a directory: downloaded or copied, checked, unpacked, and marked as done."""

from __future__ import annotations

import json
import os
import shutil
import urllib.error
import zipfile
from collections.abc import Callable
from pathlib import Path

from cortext.data.archive import unpack
from cortext.data.download import RemoteFile, download, mismatch
from cortext.errors import DataError
from cortext.files import disk_error, disk_errors, read_json
from cortext.processes import Progress

_CHUNK = 1 << 20
Refused = Callable[[urllib.error.HTTPError, str], DataError]
"""Makes the error for an answer of a server to the request of a named file."""


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


def _mark(file: RemoteFile, out: Path) -> Path:
    return out / f".{file.name}.completed"


def completed(file: RemoteFile, out: Path, meter: Meter) -> list[Path]:
    """Return the files that an earlier call made of this very file, if all are still there.

    Args:
        file: Published file.
        out: Directory of the files.
        meter: Meter of progress, which counts the whole file as done.

    Returns:
        The files and folders; an empty list where one is missing or the file has changed.
    """
    try:
        mark = read_json(_mark(file, out))
        products = [out / name for name in mark["products"]]
        same = mark["size"] == file.size and file.digest in (None, mark["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return []
    if not same or not all(path.exists() for path in products):
        return []
    meter.advance(meter.weight(file))
    return products


def obtain(
    file: RemoteFile,
    out: Path,
    source: Path | None,
    token: str | None,
    meter: Meter,
    refused: Refused,
) -> list[Path]:
    """Download a file into `out`, or take it from `source`; unpack an archive; mark it as done.

    Args:
        file: The file, with size and digest where they are known.
        out: An existing directory.
        source: The file as it was downloaded by hand.
        token: Token of an account with the server.
        meter: Counts the bytes.
        refused: Makes the error for an answer of the server that is not the file.

    Returns:
        The files and folders that it consists of.

    Raises:
        DataError: Where it cannot be downloaded, taken or unpacked.
    """
    path = out / file.name
    if source is None:
        try:
            download(file, path, token=token, advance=meter.advance)
        except urllib.error.HTTPError as error:
            raise refused(error, file.name) from None
    else:
        path = _take(file, source, path, meter)
    if path.suffix == ".zip":
        products = unpack(path, out, meter.advance)
        if source is None:
            # its content is unpacked and checked; the archive of the recordings is 10 GB
            path.unlink()
    else:
        products = [path]
    mark = {
        "size": file.size,
        "digest": file.digest,
        "products": [product.name for product in products],
    }
    with disk_errors(out):
        _mark(file, out).write_text(json.dumps(mark))
    return products


def _take(file: RemoteFile, source: Path, path: Path, meter: Meter) -> Path:
    """Check a file downloaded by hand; archives are read where they lie, other files are copied."""
    hash_ = file.hasher()
    archive = source.suffix == ".zip"
    temporary = path.with_name(f".{path.name}.part")
    try:
        with (
            source.open("rb") as reader,
            (Path(os.devnull) if archive else temporary).open("wb") as writer,
        ):
            while chunk := reader.read(_CHUNK):
                writer.write(chunk)
                meter.advance(len(chunk))
                if hash_:
                    hash_.update(chunk)
        problem = mismatch(file, source.stat().st_size, hash_)
        if problem or (archive and not zipfile.is_zipfile(source)):
            raise DataError(problem or "not a zip archive", where=source, fix="download it again")
        if archive:
            return source
        if not (path.exists() and path.samefile(source)):
            shutil.move(temporary, path)
        return path
    except OSError as error:
        raise disk_error(error, path) from None
    finally:
        temporary.unlink(missing_ok=True)
