"""An unfinished cache of audio targets: part files beside the file, merged in the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from cortext.errors import DataError, RunError
from cortext.files import disk_errors, exclusive
from cortext.temporaries import clear
from cortext_speechllm.targets.cache import TargetCache, TargetOrigin, write_targets

PART_BYTES = 64 << 20
PART_S = 30.0
"""Age of a part in seconds; written at this age or at `PART_BYTES`. A kill costs at most that."""
GO_ON = "the same command goes on with what is done"


class UnfinishedCache:
    """The finished targets of the cache `out`: its file, if any, and the parts with new targets.

    Attributes:
        n_damaged: Number of damaged parts that were removed.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.folder = out.with_name(f"{out.name}.parts")
        self.n_damaged = 0
        self._stored: dict[str, TargetCache] = {}
        self._fresh: dict[str, torch.Tensor] = {}
        self._since = time.monotonic()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from making this cache. Raises DataError or RunError."""
        if self.out.is_dir():
            raise DataError(
                "is a directory; a file is to be written", where=self.out, fix="give another --out"
            )
        with disk_errors(self.out):
            self.folder.mkdir(parents=True, exist_ok=True)
        fix = "wait for it, or give another --out"
        try:
            with exclusive(
                self.folder,
                RunError("another process is making this cache", where=self.out, fix=fix),
            ):
                yield
        finally:
            with suppress(OSError):  # there are parts in it
                self.folder.rmdir()

    def open(self, revision: str, voice_revision: str) -> None:
        """Read the file and the parts.

        Raises DataError where another model or voice made them, or the file is damaged.
        """
        for folder, name in ((self.folder, None), (self.out.parent, self.out.name)):
            clear(folder, name)  # of a process that was killed
        if self.out.exists():
            cache = TargetCache(self.out)
            cache.check(f"give another --out, or delete {self.out}", revision, voice_revision)
            self._take(cache)
        for path in self._parts:
            try:
                part = TargetCache(path)
                part.verify()
            except DataError:
                path.unlink()
                self.n_damaged += 1
                continue
            part.check(f"give another --out, or delete {self.folder}", revision, voice_revision)
            self._take(part)

    @property
    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("part-*.safetensors"))

    def _take(self, cache: TargetCache) -> None:
        self._stored = dict.fromkeys(cache.keys(), cache) | self._stored

    def __contains__(self, key: str) -> bool:
        return key in self._stored or key in self._fresh

    def add(self, key: str, target_NA: torch.Tensor) -> None:
        """Take a target, float16 [N, A]."""
        self._fresh[key] = target_NA

    def save(self, origin: TargetOrigin, now: bool = False) -> None:
        """Write the new targets as a part once they are many or old, or `now`.

        Raises RunError for a full disk.
        """
        size = sum(
            target_NA.numel() * target_NA.element_size() for target_NA in self._fresh.values()
        )
        if not self._fresh or not (
            now or size >= PART_BYTES or time.monotonic() - self._since >= PART_S
        ):
            return
        last = max((int(path.stem.removeprefix("part-")) for path in self._parts), default=0)
        path = self.folder / f"part-{last + 1:06d}.safetensors"
        _write(path, self._fresh, origin)
        self._take(TargetCache(path))
        self._fresh = {}
        self._since = time.monotonic()

    def finish(self) -> None:
        """Merge the file and the parts, if there are any, and remove the parts."""
        assert not self._fresh
        made = next((cache for cache in self._stored.values() if cache.path != self.out), None)
        if made is not None:
            # Views of mapped files: only the one being copied is in memory.
            _write(
                self.out,
                {key: cache.target(key) for key, cache in self._stored.items()},
                made.origin,
            )
        for path in self._parts:
            path.unlink()


def _write(path: Path, targets: dict[str, torch.Tensor], origin: TargetOrigin) -> None:
    try:
        write_targets(path, targets, origin)
    except RunError as error:
        raise RunError(error.what, where=error.where, fix=f"free some space; {GO_ON}") from None
