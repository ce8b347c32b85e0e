"""Variables of a MATLAB file of version 5 (also called 6 and 7).

The file is a row of elements, each a variable, mostly compressed as a whole
("MAT-File Format", MathWorks). SciPy takes the sizes that the file declares at their word, and
follows cells in cells until the stack ends. Here every size is compared with the bytes that there
are before memory is taken, and a variable is in memory once.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cortext.data.checks import AGAIN, FaultError, check_memory

_HEADER = 128
_HEAD = 1024  # bytes that hold the type, size and name of a variable and of its first cell
_COMPRESSED, _MATRIX = 15, 14
_MOST_VARIABLES = 10_000
_MOST_DIMS = 32
MOST_CELLS = 200_000
"""Most cells of a variable with those in its cells, and most rows of a text."""
_MOST_DEPTH = 8  # cells in cells
_BEST_COMPRESSION = 1032  # of zlib, by its authors
_PIECE = 1 << 20
_STORED = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8",
    16: "utf-8", 17: "u2", 18: "u4",
}  # fmt: skip
_NUMBERS = {
    6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8",
}  # fmt: skip
_CELL, _CHAR, _OPAQUE = 1, 4, 17
_OTHERS = {
    2: "a struct", 3: "an object", 5: "a sparse matrix", 16: "a function", 17: "an object",
}  # fmt: skip
_COMPLEX = 0x08


@dataclass(eq=False)
class Array5:
    """An array of a file of version 5.

    Attributes:
        name: Variable that it belongs to.
        kind: `numbers`, `chars`, `cells`, or what else it is, in words.
        shape: As MATLAB shows it.
        dtype: Type of the numbers, as MATLAB shows it.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: np.dtype
    _children: list[Array5] = field(default_factory=list, repr=False)
    _stored: np.ndarray | None = field(default=None, repr=False)
    _load: Callable[[], np.ndarray | None] | None = field(default=None, repr=False)

    def children(self) -> list[Array5]:
        """Return the cells in MATLAB's order, down the columns."""
        return self._children

    def box(self, rows: slice, columns: slice) -> np.ndarray:
        """Return rows of the first axis and columns of the last one."""
        if self._stored is None and self._load is not None:
            self._stored = self._load()
        if self._stored is None:
            return np.zeros((0,) * len(self.shape), self.dtype)
        if len(self.shape) > 2 and not self._stored.flags.c_contiguous:
            # The first axis lies innermost: each row would be gathered from the whole array.
            self._stored = np.ascontiguousarray(self._stored)
        found = self._stored[rows] if len(self.shape) < 2 else self._stored[rows, ..., columns]
        return np.ascontiguousarray(found, self.dtype)

    def release(self) -> None:
        """Keep numbers that can be read again out of memory."""
        if self._load is not None:
            self._stored = None

    def units(self) -> np.ndarray:
        """Return the characters, uint16 [rows, width] of UTF-16."""
        return np.zeros((0, 0), np.uint16) if self._stored is None else self._stored


@dataclass(frozen=True)
class _Element:
    """A variable in the file: its place, and its first bytes, decompressed."""

    name: str
    at: int
    n_bytes: int
    is_compressed: bool
    head: bytes


class File5:
    """An open file of version 5, whose elements have been walked and none read.

    Args:
        file: The file.
        path: Its path.
    """

    version = "5"

    def __init__(self, file: BufferedReader, path: Path) -> None:
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        header = file.read(_HEADER)
        self._order = {b"IM": "<", b"MI": ">"}.get(header[126:128], "")
        if len(header) < _HEADER or not self._order:
            raise FaultError(
                None,
                "not a MATLAB file of version 5 or 7.3",
                "give a .mat file as MATLAB's save writes it, with -v7 or -v7.3",
            )
        self._elements: dict[str, _Element] = {}
        self._arrays: dict[str, Array5] = {}
        at = _HEADER
        while at < self._size:
            element, at = self._walk(at)
            if not element.name:  # the workspace of functions
                continue
            if element.name in self._elements:
                raise FaultError(element.name, "there twice in the file", "save it once")
            self._elements[element.name] = element
            if len(self._elements) > _MOST_VARIABLES:
                raise FaultError(
                    None, f"more than {_MOST_VARIABLES} variables found", "save fewer variables"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all variables."""
        return tuple(self._elements)

    def _walk(self, at: int) -> tuple[_Element, int]:
        """Return the element at a place of the file, and where the next one begins."""
        self._file.seek(at)
        tag = self._file.read(8)
        kind, n_bytes = struct.unpack(f"{self._order}2I", tag) if len(tag) == 8 else (0, 0)
        if len(tag) < 8 or at + 8 + n_bytes > self._size:
            raise FaultError(
                None,
                f"truncated: the variable at byte {at:,} ends beyond the file's {self._size:,}"
                " bytes",
                AGAIN,
            )
        if kind not in (_COMPRESSED, _MATRIX):
            raise FaultError(None, f"damaged at byte {at:,}: no variable begins there", AGAIN)
        head = self._file.read(min(n_bytes, 4 * _HEAD))
        if kind == _COMPRESSED:
            try:
                head = zlib.decompressobj().decompress(head, _HEAD)
            except zlib.error:
                head = b""
            if len(head) < 8:
                raise FaultError(None, f"damaged at byte {at:,}: not compressed by zlib", AGAIN)
        else:
            head = tag + head
        try:
            name = _Parser(head, self._order, "").header().name
        except FaultError:
            raise FaultError(
                None, f"damaged at byte {at:,}: no variable begins there", AGAIN
            ) from None
        return _Element(name, at, n_bytes, kind == _COMPRESSED, head), at + 8 + n_bytes

    def array(self, name: str) -> Array5:
        """Return a variable: numbers are read when they are asked for, all others now.

        Raises FaultError for damage.
        """
        if name not in self._arrays:
            header = self._parser(name).header()
            if header.kind == "numbers":
                load = partial(self._numbers, name)
                self._arrays[name] = Array5(name, "numbers", header.shape, header.dtype, _load=load)
            else:
                self._arrays[name] = self._read(name)
        return self._arrays[name]

    def _read(self, name: str) -> Array5:
        content = self._content(self._elements[name])
        return _Parser(content, self._order, name).array()

    def _numbers(self, name: str) -> np.ndarray | None:
        return self._read(name)._stored

    def _parser(self, name: str) -> _Parser:
        return _Parser(self._elements[name].head, self._order, name)

    def release(self) -> None:
        """Keep no numbers in memory."""
        for array in self._arrays.values():
            array.release()

    def close(self) -> None:
        """Forget all variables: they refer to this file, and both would wait for the collector."""
        self._arrays.clear()

    def outline(self, name: str) -> tuple[str, tuple[int, ...], str | None]:
        """Return kind and shape of a variable, and the kind of its first cell; reads no values."""
        return self._parser(name).outline()

    def _content(self, element: _Element) -> memoryview:
        """Return the bytes of an element, decompressed, after a check of the size it declares."""
        declared = element.n_bytes + 8
        if element.is_compressed:
            declared = 8 + int(struct.unpack_from(f"{self._order}I", element.head, 4)[0])
            if declared > _BEST_COMPRESSION * (element.n_bytes + 64):
                raise FaultError(
                    element.name,
                    f"declares {declared:,} bytes, which {element.n_bytes:,} compressed ones"
                    " cannot hold",
                    AGAIN,
                )
        fix = "use a machine with more memory, or save it with -v7.3"
        check_memory(element.name, declared, fix)
        content = bytearray(declared)
        if not element.is_compressed:
            self._file.seek(element.at)
            found = self._file.readinto(content)
        else:
            found = self._inflate(element, content)
        if found != declared:
            raise FaultError(
                element.name, f"damaged: {declared:,} bytes declared, {found:,} found", AGAIN
            )
        return memoryview(content)

    def _inflate(self, element: _Element, into: bytearray) -> int:
        """Decompress an element and return the number of its bytes, or some larger one."""
        self._file.seek(element.at + 8)
        left = element.n_bytes
        engine = zlib.decompressobj()
        n = 0
        try:
            while left and not engine.eof:
                given = self._file.read(min(left, _PIECE))
                left -= len(given)
                while given and not engine.eof:
                    piece = engine.decompress(given, _PIECE)
                    given = engine.unconsumed_tail
                    if n + len(piece) > len(into):
                        return n + len(piece)
                    into[n : n + len(piece)] = piece
                    n += len(piece)
            rest = engine.flush()
        except zlib.error as error:
            raise FaultError(element.name, f"damaged ({error})", AGAIN) from None
        if not engine.eof or rest:
            return -1 if not engine.eof and n == len(into) else n + len(rest)
        return n


class _Header(NamedTuple):
    """Beginning of an array; `at` is the place of its content."""

    kind: str
    dtype: np.dtype
    shape: tuple[int, ...]
    name: str
    at: int


class _Parser:
    """The arrays in the bytes of a variable.

    Args:
        content: The element, decompressed, from its tag on.
        order: `<` or `>`.
        name: Name of the variable, for messages.
    """

    def __init__(self, content: bytes | memoryview, order: str, name: str) -> None:
        self._content = content
        self._order = order
        self._name = name
        self._n_cells = 0

    def _damage(self, what: str) -> FaultError:
        return FaultError(self._name or None, f"damaged: {what}", AGAIN)

    def _tag(self, at: int, end: int) -> tuple[int, int, int, int]:
        """Return type, first byte and length of an element, and where the next one begins."""
        if at + 8 > end:
            raise self._damage("an element ends beyond the variable")
        kind, n_bytes = struct.unpack_from(f"{self._order}2I", self._content, at)
        if kind >> 16:  # at most four bytes, within the tag
            kind, n_bytes, start, after = kind & 0xFFFF, kind >> 16, at + 4, at + 8
            if n_bytes > 4:
                raise self._damage(f"{n_bytes} bytes in an element of 4")
        else:
            start = at + 8
            after = min(start + -(-n_bytes // 8) * 8, end)
        if start + n_bytes > end:
            raise self._damage("an element ends beyond the variable")
        return kind, start, n_bytes, after

    def _header(self, at: int, end: int) -> _Header:
        """Return the header of the array at a place."""
        kind, start, n_bytes, at = self._tag(at, end)
        if kind != 6 or n_bytes != 8:
            raise self._damage("an array without a class")
        (flags,) = struct.unpack_from(f"{self._order}I", self._content, start)
        shape: tuple[int, ...] = ()
        if flags & 0xFF != _OPAQUE:
            kind, start, n_bytes, at = self._tag(at, end)
            if kind not in (5, 6) or n_bytes % 4 or not 8 <= n_bytes <= 4 * _MOST_DIMS:
                raise self._damage("an array without a shape")
            shape = struct.unpack_from(f"{self._order}{n_bytes // 4}i", self._content, start)
            if min(shape) < 0:
                raise self._damage(f"an array of shape {list(shape)}")
        kind, start, n_bytes, at = self._tag(at, end)
        if kind not in (1, 2, 16):
            raise self._damage("an array without a name")
        try:
            name = bytes(self._content[start : start + n_bytes]).decode()
        except UnicodeDecodeError:
            raise self._damage("a name that is not UTF-8") from None
        number = flags & 0xFF
        kind_of_array = _kind(number, bool(flags >> 8 & _COMPLEX))
        return _Header(kind_of_array, np.dtype(_NUMBERS.get(number, "V")), shape, name, at)

    def header(self) -> _Header:
        """Return the header of the variable."""
        (kind,) = struct.unpack_from(f"{self._order}I", self._content)
        if kind != _MATRIX:
            raise self._damage("no array")
        return self._header(8, len(self._content))

    def outline(self) -> tuple[str, tuple[int, ...], str | None]:
        """Return kind and shape of the array, and the kind of its first cell."""
        outer = self.header()
        first = None
        if outer.kind == "cells" and 0 not in outer.shape:
            with suppress(FaultError):  # an empty cell, or one beyond the first bytes
                inner = outer
                while inner.kind == "cells":
                    inner = self._header(inner.at + 8, len(self._content))
                    first = inner.kind
        return outer.kind, outer.shape, first

    def array(self) -> Array5:
        """Return the array with all its cells, in the bytes of the variable."""
        return self._array(8, len(self._content), 0)

    def _array(self, at: int, end: int, depth: int) -> Array5:
        kind, dtype, shape, _, at = self._header(at, end)
        found = Array5(self._name, kind, shape, dtype)
        if kind == "numbers":
            found._stored = self._numbers(at, end, shape, dtype)
        elif kind == "chars":
            found._stored = self._chars(at, end, shape)
        elif kind == "cells":
            n = math.prod(shape)
            if depth == _MOST_DEPTH:
                raise self._damage(f"cells in cells, {_MOST_DEPTH} deep")
            if 8 * n > end - at:
                raise self._damage(f"{n:,} cells declared in {end - at:,} bytes")
            self._n_cells += n
            check_cells(self._name, self._n_cells)
            for _ in range(n):
                inner, start, n_bytes, after = self._tag(at, end)
                if inner != _MATRIX:
                    raise self._damage("a cell that is no array")
                at = after
                if n_bytes:
                    cell = self._array(start, start + n_bytes, depth + 1)
                else:  # a cell that was never set
                    cell = Array5(self._name, "numbers", (0, 0), np.dtype("f8"))
                found._children.append(cell)
        return found

    def _numbers(self, at: int, end: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return stored numbers, which may be of a shorter type than MATLAB shows."""
        kind, start, n_bytes, _ = self._tag(at, end)
        stored = np.dtype(self._order + _STORED[kind]) if kind in _STORED and kind < 16 else None
        if stored is None or not np.can_cast(stored, dtype, "same_kind"):
            raise self._damage(f"numbers of {dtype} stored as type {kind}")
        n = math.prod(shape)
        if n * stored.itemsize != n_bytes:
            raise self._damage(
                f"{' x '.join(map(str, shape))} numbers of {stored.itemsize} bytes declared,"
                f" {n_bytes:,} bytes found"
            )
        flat = np.frombuffer(self._content, stored, n, start)
        return flat.reshape(shape, order="F")

    def _chars(self, at: int, end: int, shape: tuple[int, ...]) -> np.ndarray:
        """Return characters as uint16 of UTF-16, in their shape."""
        n = math.prod(shape)
        if not n and at + 8 > end:
            return np.zeros(shape, np.uint16)
        kind, start, n_bytes, _ = self._tag(at, end)
        content = bytes(self._content[start : start + n_bytes])
        if kind == 16:
            try:
                content = content.decode().encode("utf-16-le")
            except UnicodeDecodeError:
                raise self._damage("a text that is not UTF-8") from None
            units = np.frombuffer(content, "<u2")
        elif kind in (1, 2, 4, 17, 18):
            stored = np.dtype(self._order + _STORED[kind].replace("i", "u"))
            if n_bytes % stored.itemsize:
                raise self._damage("a text that ends within a character")
            wide = np.frombuffer(content, stored)
            units = wide.astype(np.uint16)
            if kind == 18 and wide.size and wide.max() > 0xFFFF:
                raise self._damage("a character beyond 16 bits")
        else:
            raise self._damage(f"a text stored as type {kind}")
        if units.size > n and len(shape) == 2 and shape[0] == 1:
            # SciPy counts a character beyond 16 bits once, MATLAB its two halves.
            halves = np.count_nonzero((units & 0xFC00) == 0xDC00)
            if units.size - halves == n:
                return units[None]
        if units.size != n:
            raise self._damage(
                f"{' x '.join(map(str, shape))} characters declared, {units.size:,} found"
            )
        return units.reshape(shape, order="F")


def _kind(number: int, is_complex: bool) -> str:
    if number in _NUMBERS:
        return "complex numbers" if is_complex else "numbers"
    return {_CELL: "cells", _CHAR: "chars"}.get(number) or _OTHERS.get(number, "an unknown type")


def check_cells(name: str, n: int) -> None:
    """Raise FaultError for more cells, each of which takes memory, than recordings have."""
    if n > MOST_CELLS:
        raise FaultError(name, f"{n:,} cells found, at most {MOST_CELLS:,} expected", "save fewer")


def check_names(names: Collection[str], found: Collection[str]) -> None:
    """Raise FaultError for a name that the file lacks."""
    for name in names:
        if name not in found:
            listed = ", ".join(found) or "none"
            raise FaultError(
                name,
                f"variable missing; the file has {listed[:200]}",
                "give the file that has it, or correct the name",
            )
