"""Downloading a large file over a connection that breaks off.

Written here because pooch starts again from the first byte: it sends no `Range`.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cortext.errors import DataError
from cortext.files import parse_json

_CHUNK = 1 << 20
_TRIES = 5  # in a row without a single byte of progress
_MOST_LISTING = 1 << 26
_BUSY = (429, 500, 502, 503, 504)


@dataclass(frozen=True)
class RemoteFile:
    """A file to download, and what is known about its content (the digest in hexadecimal)."""

    name: str
    url: str
    size: int | None = None
    digest: str | None = None
    digest_type: str | None = None

    def __post_init__(self) -> None:
        # The digest is part of a file's name, and comes from a server.
        if self.digest is not None and not re.fullmatch("[0-9a-fA-F]+", self.digest):
            raise ValueError("a digest that is not hexadecimal")

    def hasher(self) -> Any | None:
        """Return an empty hash of the digest's type; None where that is not stated or not known."""
        name = (self.digest_type or "").lower().replace("-", "")
        # The hash of a git object: a header goes first.
        if name == "gitsha1" and self.digest and self.size is not None:
            return hashlib.sha1(b"blob %d\0" % self.size)
        # SHAKE's digests have no fixed length.
        known = name in hashlib.algorithms_available and not name.startswith("shake")
        return hashlib.new(name) if self.digest and known else None


def open_url(
    url: str, *, headers: dict[str, str] | None = None, token: str | None = None, timeout: float
) -> Any:
    """Send a GET request and return the response.

    A list of files may name any address: one that is not of the web, such as `file:`, is refused.

    Args:
        url: An address of `http` or `https`.
        headers: Sent beside `User-Agent`.
        token: Sent to this server only, not to where it redirects (a storage service).
        timeout: Seconds without a byte.

    Raises:
        DataError: For another kind of address.
        OSError: As `urllib.request.urlopen` does.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise DataError(
            "is no address of the web", where=url, fix="check the list of files and --base-url"
        )
    request = urllib.request.Request(url, headers={"User-Agent": "cortext", **(headers or {})})
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    return urllib.request.urlopen(request, timeout=timeout)


def read_listing(response: Any) -> Any:
    """Parse the JSON of a server's answer; raise ValueError for other content or over 64 MiB."""
    content = response.read(_MOST_LISTING + 1)
    if len(content) > _MOST_LISTING:
        raise ValueError("more than 64 MiB")
    return parse_json(content)


def download(
    remote: RemoteFile,
    path: Path,
    *,
    token: str | None = None,
    advance: Callable[[int], None] | None = None,
    timeout: float = 60.0,
    pause_s: float = 1.0,
) -> None:
    """Download into `path`, going on where an earlier try broke off.

    The digest is checked before `path` appears. The bytes so far lie beside `path` under a name
    that contains the digest, so that the rest of another version is never appended.

    Args:
        remote: The file, with size and digest where they are known.
        path: Where it goes.
        token: Token of an account with that server.
        advance: Called with the bytes gained; negative when the server makes us start again.
        timeout: Seconds without a byte until a try is given up.
        pause_s: Pause after the first try without a byte; each further one is twice as long.

    Raises:
        DataError: When the server refuses, the connection fails again and again, the disk is full,
            or the content is not what was announced (it is then kept as `<name>.mismatch`).
    """
    part = path.with_name(f".{path.name}.{(remote.digest or 'unknown')[:12]}.part")
    if path.exists():  # whole, but what should have followed failed: check it and go on
        path.replace(part)
    transfer = _Transfer(remote, part, token, advance or (lambda _: None), timeout)
    _check_space(remote, part)
    tries = 0
    while not transfer.complete:
        before = transfer.done
        try:
            transfer.run()
        except urllib.error.HTTPError as error:
            if error.code not in _BUSY:
                raise
            reason = f"status {error.code}"
        except (OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        else:
            reason = f"the connection closed after {transfer.done} of {transfer.size} bytes"
        # Count only tries that brought no byte: 10 GB over a poor line break off often.
        tries = 0 if transfer.done > before else tries + 1
        if not transfer.complete and tries >= _TRIES:
            fix = f"check the network and try again; {transfer.done} bytes are kept"
            raise DataError(f"cannot be downloaded: {reason}", where=remote.url, fix=fix)
        if not transfer.complete and tries:
            time.sleep(pause_s * 2 ** (tries - 1))
    transfer.finish(path)


def _check_space(remote: RemoteFile, part: Path) -> None:
    part.parent.mkdir(parents=True, exist_ok=True)
    missing = (remote.size or 0) - (part.stat().st_size if part.exists() else 0)
    free = shutil.disk_usage(part.parent).free
    if missing > free:
        found = f"{missing / 1e9:.2f} GB are missing, {free / 1e9:.2f} GB are free in {part.parent}"
        raise DataError(found, where=remote.name, fix="free some space")


class _Transfer:
    """One file on its way: the bytes so far and their hash."""

    def __init__(
        self,
        remote: RemoteFile,
        part: Path,
        token: str | None,
        advance: Callable[[int], None],
        timeout: float,
    ) -> None:
        self.remote = remote
        self.part = part
        self.token = token
        self.advance = advance
        self.timeout = timeout
        self.done = 0
        self.hash = remote.hasher()
        self.size = remote.size
        self.ended = False
        if part.exists():
            with part.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    self._count(chunk)

    @property
    def complete(self) -> bool:
        return self.ended if self.size is None else self.done >= self.size

    def run(self) -> None:
        """Send one request and read from here to the end, or until the connection breaks."""
        headers = {"Range": f"bytes={self.done}-"} if self.done else {}
        try:
            response = open_url(
                self.remote.url, headers=headers, token=self.token, timeout=self.timeout
            )
        except urllib.error.HTTPError as error:
            if error.code != 416:
                raise
            self._restart()  # more here than the server has: not the same file
            return
        with response:
            if self.done and not self._continues(response):
                self._restart()
            length = response.headers.get("Content-Length")
            if self.size is None and length is not None:
                self.size = self.done + int(length)
            while chunk := response.read(_CHUNK):
                self._append(chunk)
        self.ended = self.size is None  # without a length the end is all there is to see

    def _continues(self, response: Any) -> bool:
        """Return whether the answer starts where we stopped: servers may ignore the range."""
        content_range = response.headers.get("Content-Range", "")
        return bool(response.status == 206 and content_range.startswith(f"bytes {self.done}-"))

    def _append(self, chunk: bytes) -> None:
        try:
            with self.part.open("ab") as file:
                file.write(chunk)
        except OSError as error:
            fix = f"free some space and try again; the first {self.done} bytes are kept"
            self._cut()
            raise DataError(
                f"cannot be written: {error.strerror}", where=self.part, fix=fix
            ) from None
        self._count(chunk)

    def _cut(self) -> None:
        """Drop what a failed write left of a chunk."""
        with suppress(OSError):
            os.truncate(self.part, self.done)

    def _count(self, chunk: bytes) -> None:
        self.done += len(chunk)
        self.advance(len(chunk))
        if self.hash:
            self.hash.update(chunk)

    def _restart(self) -> None:
        self.advance(-self.done)
        self.part.unlink(missing_ok=True)
        self.done = 0
        self.hash = self.remote.hasher()

    def finish(self, path: Path) -> None:
        """Check the content and give the file its name."""
        problem = mismatch(self.remote, self.done, self.hash)
        if problem:
            aside = path.with_name(f"{path.name}.mismatch")
            self.part.replace(aside)
            raise DataError(f"{problem}; kept as {aside.name}", where=path, fix="try again")
        self.part.replace(path)


def mismatch(remote: RemoteFile, size: int, hash_: Any | None) -> str | None:
    """Return the difference of a content from the announced file; None where there is none.

    Args:
        remote: File as the server announces it.
        size: Bytes of the content.
        hash_: Hash of the content; None where no digest is announced.
    """
    if remote.size is not None and size != remote.size:
        return f"{size} bytes found, {remote.size} expected"
    if hash_ is not None and hash_.hexdigest() != (remote.digest or "").lower():
        return f"{remote.digest_type} {hash_.hexdigest()} found, {remote.digest} expected"
    return None
