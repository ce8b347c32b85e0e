"""Downloading a large file over a connection that breaks off.

Written here because pooch starts again from the first byte: it sends no `Range`.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import re
import shutil
import stat
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from cortext.errors import DataError, plain
from cortext.files import disk_errors, parse_json
from cortext.renames import rename_new

_CHUNK = 1 << 20
_TRIES = 5  # in a row without a single byte of progress
_MOST_LISTING = 1 << 26
_SCHEMES = ("http", "https")
_BUSY = (429, 500, 502, 503, 504)


@dataclass(frozen=True)
class RemoteFile:
    """A file to download, and the known facts about its content (the digest in hexadecimal)."""

    name: str
    url: str
    size: int | None = None
    digest: str | None = None
    digest_type: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for facts that cannot be: a server states them."""
        size, digest, kind = self.size, self.digest, self.digest_type
        if size is not None and (type(size) is not int or size < 0):
            raise ValueError(f"{size!r} bytes are stated for {self.name}")
        if digest is None:
            return
        if not isinstance(digest, str) or not re.fullmatch("[0-9a-fA-F]+", digest):
            raise ValueError(f"the digest of {self.name} is not hexadecimal")
        hasher = self.hasher()
        if hasher is None:
            raise ValueError(f"the digest of {self.name} is of type {kind!r}, which is not known")
        if len(digest) != 2 * hasher.digest_size:
            raise ValueError(f"the digest of {self.name} is too short or too long for {kind}")

    def hasher(self) -> Any | None:
        """Return an empty hash of the digest's type; None where none is stated or known."""
        if not self.digest or not isinstance(self.digest_type, str):
            return None
        name = self.digest_type.lower().replace("-", "")
        # The hash of a git object: a header goes first.
        if name == "gitsha1" and self.size is not None:
            return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)
        known = {each.replace("_", ""): each for each in hashlib.algorithms_guaranteed}
        # SHAKE's digests have no fixed length.
        if name not in known or name.startswith("shake"):
            return None
        return hashlib.new(known[name], usedforsecurity=False)


class _WebOnly(urllib.request.HTTPRedirectHandler):
    """Follows redirects to addresses of the web alone, and from `https` never to `http`."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str):  # type: ignore[no-untyped-def]
        _check_web(newurl, ("https",) if req.type == "https" else _SCHEMES)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_web(url: str, schemes: tuple[str, ...] = _SCHEMES) -> None:
    if urllib.parse.urlsplit(url).scheme not in schemes:
        raise ValueError(url)


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
        DataError: For another kind of address, also of a redirect.
        OSError: As `urllib.request.urlopen` does.
    """
    try:
        _check_web(url)
        request = urllib.request.Request(url, headers={"User-Agent": "cortext", **(headers or {})})
        if token:
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        return urllib.request.build_opener(_WebOnly).open(request, timeout=timeout)
    except http.client.HTTPException as error:
        reason = str(error) or type(error).__name__
        raise urllib.error.URLError(f"no answer that can be read: {reason}") from None
    except ValueError as error:  # also of a host that no name can be
        raise DataError(
            "is no address of the web",
            where=error.args[0] if len(error.args) == 1 else url,
            fix="check the list of files and --base-url",
        ) from None


def read_listing(response: Any) -> Any:
    """Parse the JSON of a server's answer.

    Raises:
        OSError: It breaks off.
        ValueError: It is something else, or has more than 64 MiB.
    """
    try:
        content = response.read(_MOST_LISTING + 1)
    except http.client.HTTPException as error:
        raise OSError(f"the answer breaks off: {type(error).__name__}") from None
    if len(content) > _MOST_LISTING:
        raise ValueError("more than 64 MiB")
    return parse_json(content)


def download(
    remote: RemoteFile,
    folder: Path,
    *,
    token: str | None = None,
    advance: Callable[[int], None] | None = None,
    timeout: float = 60.0,
    pause_s: float = 1.0,
) -> Path:
    """Download a file into a directory, continuing where an earlier try broke off.

    The bytes so far lie there under a hidden name that contains the digest, so that the rest of
    another version is never appended. Where no digest is known, each call begins anew.

    Args:
        remote: The file, with size and digest where they are known.
        folder: Directory to write in.
        token: Token of an account with that server.
        advance: Called with the bytes gained; negative when the server makes us start again.
        timeout: Seconds without a byte until a try is given up.
        pause_s: Pause after the first try without a byte; each further one is twice as long.

    Returns:
        The file, whole and checked, under the hidden name.

    Raises:
        DataError: When the server refuses, the connection fails again and again, the disk is full,
            or the content is not the announced one (it is then kept as `<name>.mismatch`).
    """
    part = folder / f".{remote.name}.{(remote.digest or 'unknown')[:12]}.part"
    transfer = _Transfer(remote, part, token, advance or (lambda _: None), timeout)
    _check_space(remote, part)
    tries = most = 0
    while not transfer.complete:
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
        # Count only tries that brought no further byte: 10 GB over a poor line break off often.
        tries = 0 if transfer.done > most else tries + 1
        most = max(most, transfer.done)
        if not transfer.complete and tries >= _TRIES:
            fix = f"check the network and try again; {transfer.done} bytes are kept"
            raise DataError(f"cannot be downloaded: {reason}", where=remote.url, fix=fix)
        if not transfer.complete and tries:
            time.sleep(pause_s * 2 ** (tries - 1))
    transfer.finish()
    return part


def _check_space(remote: RemoteFile, part: Path) -> None:
    missing = (remote.size or 0) - (part.stat().st_size if part.exists() else 0)
    free = shutil.disk_usage(part.parent).free
    if missing > free:
        problem = (
            f"{missing / 1e9:.2f} GB are missing, {free / 1e9:.2f} GB are free in {part.parent}"
        )
        raise DataError(problem, where=remote.name, fix="free some space")


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
        self.validator: str | None = None
        if not os.path.lexists(part):
            return
        with disk_errors(part), self._opened() as file:
            if remote.digest is None:  # nobody would see that it is of another version
                file.truncate(0)
            file.seek(0)
            while chunk := file.read(_CHUNK):
                self._count(chunk)

    def _opened(self) -> BinaryIO:
        """Open the bytes so far, which nobody else wrote: neither a link nor another's file."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            file = os.fdopen(os.open(self.part, flags, 0o666), "a+b")
            status = os.fstat(file.fileno())
            usual = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
            if usual and status.st_uid == os.geteuid():
                return file
            file.close()
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise
        raise DataError("is no file of an earlier download", where=self.part, fix="remove it")

    @property
    def complete(self) -> bool:
        return self.ended if self.size is None else self.done >= self.size

    def run(self) -> None:
        """Send one request and read from here to the end, or until the connection breaks."""
        if self.done and self.remote.digest is None and self.validator is None:
            self._restart()  # nobody would see that the rest is of another version
        headers = {"Range": f"bytes={self.done}-"} if self.done else {}
        if self.done and self.validator:
            headers["If-Range"] = self.validator
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
            self._note_facts(response)
            while chunk := response.read(_CHUNK):
                self._append(chunk)
        self.ended = self.size is None  # without a length the end is all there is to see

    def _note_facts(self, response: Any) -> None:
        """Take the length where none is known yet, and what tells this version from others."""
        etag = response.headers.get("ETag", "")
        self.validator = etag if re.fullmatch(r'"[!-~]{1,200}"', etag) else None
        length = response.headers.get("Content-Length")
        if self.size is not None or length is None:
            return
        if not re.fullmatch("[0-9]{1,15}", length.strip()):
            problem = f"the server states a length of {plain(length, 40)!r} bytes"
            raise DataError(problem, where=self.remote.url, fix="try again later")
        self.size = self.done + int(length)

    def _continues(self, response: Any) -> bool:
        """Return whether the answer starts where we stopped: servers may ignore the range."""
        content_range = response.headers.get("Content-Range", "")
        return bool(response.status == 206 and content_range.startswith(f"bytes {self.done}-"))

    def _append(self, chunk: bytes) -> None:
        if self.size is not None and self.done + len(chunk) > self.size:
            size = self.size
            self._restart()
            problem = f"the server sends more than the {size} bytes that were announced"
            raise DataError(problem, where=self.remote.url, fix="try again later")
        try:
            with self._opened() as file:
                file.write(chunk)
        except OSError as error:
            fix = f"free some space and try again; the first {self.done} bytes are kept"
            # Drop what the failed write left of the chunk.
            with suppress(OSError, DataError), self._opened() as file:
                file.truncate(self.done)
            raise DataError(
                f"cannot be written: {error.strerror}", where=self.part, fix=fix
            ) from None
        self._count(chunk)

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

    def finish(self) -> None:
        """Check the content, and flush it to disk."""
        problem = mismatch(self.remote, self.done, self.hash)
        if problem:
            aside = self.part.with_name(f"{self.remote.name}.mismatch")
            try:
                rename_new(self.part, aside)
                kept = f"kept as {aside.name}"
            except FileExistsError:
                self.part.unlink()
                kept = f"an earlier one is kept as {aside.name}"
            raise DataError(
                f"{problem}; {kept}", where=aside.with_name(self.remote.name), fix="try again"
            )
        with disk_errors(self.part), self._opened() as file:  # makes an empty one
            os.fsync(file.fileno())


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
