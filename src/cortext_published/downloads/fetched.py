"""The record of a published file, `.NAME.completed`: what `fetch` wrote, and so may replace."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cortext.errors import DataError
from cortext.files import atomic_stream, disk_errors, is_plain_name, read_json, replace_directory
from cortext.renames import rename_new
from cortext_published.downloads.download import RemoteFile

Manifest = dict[str, list[int] | None]
"""Size and time of change (ns) by path of a file, None by path of a folder."""


class Fetched:
    """The record of a published file in a directory.

    Attributes:
        out: Directory of the files.
        products: Names of the files and folders that an earlier call made of this very version of
            the file; empty where they are not all there.
    """

    def __init__(self, file: RemoteFile, out: Path) -> None:
        self.out = out
        self._file = file
        self._path = out / f".{file.name}.completed"
        self._manifests: list[Manifest] = []
        self.products: list[str] = []
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            self._read(read_json(self._path))

    def _read(self, values: dict[str, Any]) -> None:
        self._manifests = [dict(manifest) for manifest in values["manifests"]]
        names = [name for name in values["products"] if is_plain_name(name)]
        file = self._file
        same = values["size"] == file.size and file.digest in (None, values["digest"])
        there = all((self.out / name).exists() for name in names)
        if same and there and values["complete"]:
            self.products = names

    def owns(self, name: str) -> bool:
        """Return whether a file or folder is just as `fetch` wrote it, with nothing beside."""
        here = manifest(self.out / name, name)
        # Of a call that was killed, either the old version or the new one is in place.
        return any(here.items() <= known.items() for known in self._manifests)

    def refuse(self, name: str) -> None:
        """Raise DataError where something has this name that `fetch` did not write."""
        path = self.out / name
        if os.path.lexists(path) and not self.owns(name):
            raise DataError(
                "is there already, and is not, or no longer, what fetch wrote",
                where=path,
                fix="move it away, or fetch into another directory",
            )

    def settle(self, made: Mapping[str, Path]) -> list[Path]:
        """Give complete files and folders their names in the directory, and record them.

        Args:
            made: Files and folders on the same disk by their names.

        Raises:
            DataError: Something that `fetch` did not write has one of the names; nothing changes.
            OSError: The disk is full.
        """
        for name in made:
            self.refuse(name)
        new: Manifest = {}
        for name, path in made.items():
            new |= manifest(path, name)
        # Before the first one is renamed: the files there after a kill are known to be ours.
        self._write(list(made), [new, *self._manifests], complete=False)
        for name, path in made.items():
            target = self.out / name
            try:
                rename_new(path, target)
            except FileExistsError:
                self.refuse(name)
                replace_directory(path, target) if path.is_dir() else path.replace(target)
        return self.keep(list(made), new)

    def keep(self, names: list[str], manifest: Manifest | None = None) -> list[Path]:
        """Record that these files and folders are complete.

        Args:
            names: Their names in the directory.
            manifest: Of those that `fetch` wrote; none that were there before.
        """
        self._write(names, [manifest or {}], complete=True)
        return [self.out / name for name in names]

    def _write(self, products: list[str], manifests: list[Manifest], *, complete: bool) -> None:
        mark = {
            "size": self._file.size,
            "digest": self._file.digest,
            "products": products,
            "complete": complete,
            "manifests": manifests,
        }
        with disk_errors(self.out), atomic_stream(self._path) as file:
            file.write(json.dumps(mark).encode())
        self._manifests = manifests


def manifest(path: Path, name: str) -> Manifest:
    """Return the manifest of a file or folder that has, or will have, that name.

    A link or a device has neither a size nor a time that a record knows.
    """
    status = os.lstat(path)
    if stat.S_ISREG(status.st_mode):
        return {name: [status.st_size, status.st_mtime_ns]}
    if not stat.S_ISDIR(status.st_mode):
        return {name: [-1, -1]}
    digests: Manifest = {name: None}
    for inner in path.iterdir():
        digests |= manifest(inner, f"{name}/{inner.name}")
    return digests
