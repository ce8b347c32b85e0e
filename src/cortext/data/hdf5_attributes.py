"""Texts of HDF5 attributes, whose stated lengths are checked before HDF5 takes memory for them.

A text of variable length lies elsewhere in the file. The attribute holds its length and its place,
and HDF5 takes as much memory as the length says, up to 4 GB, before it looks there. None of its
functions returns these bytes, so the object's header is read here ("HDF5 File Format
Specification", IV.A).
"""

from __future__ import annotations

import os
import struct
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from h5py import h5d, h5g, h5i, h5o, h5t

from cortext.data.checks import AGAIN, FaultError

MOST_BYTES = 1 << 23
"""Most bytes of the texts of an attribute, and of an object's header."""
_ATTRIBUTE, _CONTINUATION = 0x0C, 0x10
_SHARED = 0x02  # a message that lies in another place
_MOST_PARTS = 1_000
_FIX = "write the file again, with at most 8 attributes each"


def check_text_lengths(
    owner: h5g.GroupID | h5d.DatasetID, name: str, kind: h5t.TypeStringID
) -> None:
    """Raise FaultError for texts of an attribute that take, or say that they take, too much memory.

    Args:
        owner: Group or dataset.
        name: The attribute.
        kind: Its type.
    """
    if not kind.is_variable_str():
        return  # as many bytes as HDF5 says that it stores
    lengths = _lengths(owner).get(name.encode())
    if not lengths:
        raise FaultError(name, "an attribute in an unusual HDF5 layout found", _FIX)
    if sum(lengths) > MOST_BYTES:
        finding = f"texts of {sum(lengths)} bytes found, at most {MOST_BYTES} expected"
        raise FaultError(name, finding, AGAIN)


_latest: tuple[weakref.ref[Any], dict[bytes, list[int]]] | None = None
"""The object whose header was read last: a trial has three texts, and one header."""


def _lengths(owner: h5g.GroupID | h5d.DatasetID) -> dict[bytes, list[int]]:
    """Return the stated lengths of the texts of each attribute in an object's header."""
    global _latest
    latest = _latest
    if latest is not None and latest[0]() is owner:
        return latest[1]
    header = _Header.of(owner)
    step = 8 + header.n_address
    by_name: dict[bytes, list[int]] = {}
    for message in header.attributes():
        name, content = _parts(message)
        lengths = by_name.setdefault(name, [])  # a damaged header may have a name twice
        for at in range(0, len(content) - step + 1, step):
            lengths.append(struct.unpack_from("<I", content, at)[0])
    _latest = weakref.ref(owner), by_name
    return by_name


@dataclass(frozen=True, slots=True)
class _Header:
    """Header of an object in a file.

    Attributes:
        file: Descriptor of the open file.
        base: Place in the file from which addresses count.
        at: Address of the header.
        n_address: Bytes of an address.
        n_length: Bytes of a length.
    """

    file: int
    base: int
    at: int
    n_address: int
    n_length: int

    @classmethod
    def of(cls, owner: h5g.GroupID | h5d.DatasetID) -> _Header:
        file = h5i.get_file_id(owner)
        properties = file.get_create_plist()
        sizes = properties.get_sizes()
        descriptor = file.get_vfd_handle()
        return cls(descriptor, properties.get_userblock(), h5o.get_info(owner).addr, *sizes)

    def _read(self, at: int, n_bytes: int) -> bytes:
        content = b""
        if 0 < n_bytes <= MOST_BYTES and 0 <= at < 2**62:
            content = os.pread(self.file, n_bytes, self.base + at)
        if len(content) != n_bytes or not content:
            raise ValueError("an object's header is cut off")
        return content

    def attributes(self) -> Iterator[bytes]:
        """Yield the attributes that lie in the header. Raises ValueError for damage."""
        start = self._read(self.at, 16)
        if start.startswith(b"OHDR"):
            flags = start[5]
            before = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
            width = 1 << (flags & 3)
            size = int.from_bytes(self._read(self.at + before, width), "little")
            waiting = [(self.at + before + width, size)]
        else:
            flags = None
            waiting = [(self.at + 16, int.from_bytes(start[8:12], "little"))]
        n_read = 0
        for n_parts, (at, size) in enumerate(waiting):
            n_read += size
            if n_parts > _MOST_PARTS or n_read > MOST_BYTES:
                raise ValueError("an object's header is too long")
            content = self._read(at, size) if size else b""
            if flags is not None and n_parts:  # a signature before it, a checksum behind it
                content = content[4:-4]
            for kind, is_shared, message in _messages(content, flags):
                if kind == _CONTINUATION:
                    place = message[: self.n_address]
                    length = message[self.n_address :][: self.n_length]
                    waiting.append(
                        (int.from_bytes(place, "little"), int.from_bytes(length, "little"))
                    )
                elif kind == _ATTRIBUTE and not is_shared:
                    yield message


def _messages(content: bytes, flags: int | None) -> Iterator[tuple[int, bool, bytes]]:
    """Yield kind and content of each message; `flags` are those of a header of version 2."""
    n_head = 8 if flags is None else 6 if flags & 4 else 4
    at = 0
    while at + n_head <= len(content):
        if flags is None:
            kind, size, bits = struct.unpack_from("<HHB", content, at)
        else:
            kind, size, bits = struct.unpack_from("<BHB", content, at)
        at += n_head
        yield kind, bool(bits & _SHARED), content[at : at + size]
        at += size


def _parts(message: bytes) -> tuple[bytes, bytes]:
    """Return the name of an attribute, and its content."""
    if len(message) < 9:
        raise ValueError("an attribute is cut off")
    version = message[0]
    sizes = struct.unpack_from("<3H", message, 2)  # of name, type and shape
    at = 9 if version == 3 else 8
    name = message[at : at + sizes[0]]
    # Version 1 fills each of the three up to 8 bytes.
    at += sum(-(-size // 8) * 8 if version == 1 else size for size in sizes)
    return name.rstrip(b"\0"), message[at:]
