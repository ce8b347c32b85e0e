"""Arrays in the bytes of a variable of a MATLAB file of version 5.

An array is a header (class, shape, name) and its content; a cell is an array in it ("MAT-File
Format", MathWorks). Every size is compared with the bytes that there are.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cortext.data.checks import AGAIN, FaultError
from cortext_data.readers.files.matlab_classes import (
    COMPLEX,
    FUNCTION,
    SPARSE,
    STRUCT,
    object_of,
)

MATRIX = 14
"""Number of the element that is an array."""
_MOST_DIMS = 32
MOST_CELLS = 200_000
"""Most cells of a variable with those in its cells, and most rows of a text."""
_MOST_DEPTH = 8  # cells in cells
_MOST_FIELD = 64  # bytes of a field's name
_SURELY_PAIRS = 4  # a quarter of the Korean syllables look like two bytes of UTF-8
_STORED = {
    1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8",
    16: "utf-8", 17: "u2", 18: "u4",
}  # fmt: skip
_NUMBERS = {
    6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8",
}  # fmt: skip
_CELL, _STRUCT, _OBJECT, _CHAR, _SPARSE, _FUNCTION, _OPAQUE = 1, 2, 3, 4, 5, 16, 17
_KINDS = {
    _CELL: "cells", _CHAR: "chars", _STRUCT: STRUCT, _SPARSE: SPARSE, _FUNCTION: FUNCTION,
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
        part = self._stored[rows] if len(self.shape) < 2 else self._stored[rows, ..., columns]
        return np.ascontiguousarray(part, self.dtype)

    def release(self) -> None:
        """Keep numbers that can be read again out of memory."""
        if self._load is not None:
            self._stored = None

    def units(self) -> np.ndarray:
        """Return the characters, uint16 [rows, width] of UTF-16."""
        return np.zeros((0, 0), np.uint16) if self._stored is None else self._stored


class Header(NamedTuple):
    """Beginning of an array; `at` is the place of its content."""

    kind: str
    dtype: np.dtype
    shape: tuple[int, ...]
    name: str
    at: int


class Parser:
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

    def _damage(self, damage: str) -> FaultError:
        return FaultError(self._name or None, f"damaged: {damage}", AGAIN)

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

    def _header(self, at: int, end: int) -> Header:
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
        if number in (_OBJECT, _OPAQUE):
            kind_of_array = self._class(at, end, number)
        elif number in _NUMBERS:
            kind_of_array = COMPLEX if flags >> 8 & _COMPLEX else "numbers"
        else:
            kind_of_array = _KINDS.get(number, "an unknown type")
        return Header(kind_of_array, np.dtype(_NUMBERS.get(number, "V")), shape, name, at)

    def _class(self, at: int, end: int, number: int) -> str:
        """Return the kind of an object, whose class stands after its name."""
        name = ""
        with suppress(FaultError, UnicodeDecodeError):
            if number == _OPAQUE:  # MCOS, the system of its class
                *_, at = self._tag(at, end)
            kind, start, n_bytes, _ = self._tag(at, end)
            if kind in (1, 2, 16):
                name = bytes(self._content[start : start + n_bytes]).decode()
        return object_of(name)

    def fields(self) -> tuple[str, ...]:
        """Return the fields of a struct, as far as they lie in the content."""
        outer = self.header()
        with suppress(FaultError, UnicodeDecodeError, struct.error):
            if outer.kind == STRUCT:
                _, start, _, at = self._tag(outer.at, len(self._content))
                (width,) = struct.unpack_from(f"{self._order}I", self._content, start)
                _, start, n_bytes, _ = self._tag(at, len(self._content))
                if 0 < width <= _MOST_FIELD:
                    names = bytes(self._content[start : start + n_bytes])
                    parts = [names[i : i + width] for i in range(0, n_bytes, width)]
                    return tuple(part.partition(b"\0")[0].decode("ascii") for part in parts)
        return ()

    def header(self) -> Header:
        """Return the header of the variable."""
        (kind,) = struct.unpack_from(f"{self._order}I", self._content)
        if kind != MATRIX:
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
        array = Array5(self._name, kind, shape, dtype)
        if kind == "numbers":
            array._stored = self._numbers(at, end, shape, dtype)
        elif kind == "chars":
            array._stored = self._chars(at, end, shape)
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
                if inner != MATRIX:
                    raise self._damage("a cell that is no array")
                at = after
                if n_bytes:
                    cell = self._array(start, start + n_bytes, depth + 1)
                else:  # a cell that was never set
                    cell = Array5(self._name, "numbers", (0, 0), np.dtype("f8"))
                array._children.append(cell)
        return array

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
            units = _two_bytes(wide.astype(np.uint16)) if kind == 4 else wide.astype(np.uint16)
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


def _two_bytes(units: np.ndarray) -> np.ndarray:
    """Return characters as UTF-16 where `save -v6` put the two bytes of UTF-8 into one unit.

    é is C3 A9 in UTF-8, and MATLAB writes the unit C3A9, which is a Hangul syllable in UTF-16.
    Korean text has syllables that are no such pair, and no Latin letters in a word.
    """
    high, low = units >> 8, units & 0xFF
    is_pair = (high >= 0xC2) & (high <= 0xDF) & (low >= 0x80) & (low <= 0xBF)
    others = (units >= 0xAC00) & ~is_pair  # syllables and halves of characters beyond 16 bits
    is_latin = ((units | 0x20) >= ord("a")) & ((units | 0x20) <= ord("z"))
    if others.any() or not (is_latin.any() or np.count_nonzero(is_pair) >= _SURELY_PAIRS):
        return units
    return np.where(is_pair, (high & 0x1F) << 6 | low & 0x3F, units).astype(np.uint16)


def check_cells(name: str, n: int) -> None:
    """Raise FaultError for more cells, each of which takes memory, than recordings have."""
    if n > MOST_CELLS:
        raise FaultError(name, f"{n:,} cells found, at most {MOST_CELLS:,} expected", "save fewer")
