"""Variables of a MATLAB file of version 5 (also called 6 and 7).

The file is a row of elements, each a variable, mostly compressed as a whole
("MAT-File Format", MathWorks). SciPy takes the sizes that the file declares at their word, and
follows cells in cells until the stack ends. Here every size is compared with the bytes that there
are before memory is taken, and a variable is in memory once.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path

import numpy as np

from cortext.data.checks import AGAIN, FaultError, check_memory
from cortext.data.hdf5_refused import other_format
from cortext_data.readers.files.matlab5_arrays import MATRIX, Array5, Parser
from cortext_data.readers.files.matlab_classes import STRUCT, instead

_HEADER = 128
_HEAD = 1024  # bytes that hold the type, size and name of a variable and of its first cell
_COMPRESSED = 15
_MOST_VARIABLES = 10_000
_BEST_COMPRESSION = 1032  # of zlib, by its authors
_PIECE = 1 << 20


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
            raise other_format(path, "a MATLAB file", header) or FaultError(
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
        if kind not in (_COMPRESSED, MATRIX):
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
            name = Parser(head, self._order, "").header().name
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
        return Parser(content, self._order, name).array()

    def _numbers(self, name: str) -> np.ndarray | None:
        return self._read(name)._stored

    def _parser(self, name: str) -> Parser:
        return Parser(self._elements[name].head, self._order, name)

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

    def fields(self, name: str) -> tuple[str, ...]:
        """Return the fields of a struct, as far as they lie in the first bytes."""
        return self._parser(name).fields()

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
            n_read = self._file.readinto(content)
        else:
            n_read = self._inflate(element, content)
        if n_read != declared:
            raise FaultError(
                element.name, f"damaged: {declared:,} bytes declared, {n_read:,} found", AGAIN
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


def check_names(names: Collection[str], known: Collection[str]) -> None:
    """Raise FaultError for a name that the file lacks, or that is a part of a struct."""
    for name in names:
        whole, _, part = name.partition(".")
        if name not in known and part and whole in known:
            finding = f"{whole} is a struct or an object, whose parts are not read"
            raise FaultError(name, finding, instead(STRUCT, whole, part))
        if name not in known:
            listed = ", ".join(known) or "none"
            raise FaultError(
                name,
                f"variable missing; the file has {listed[:200]}",
                "give the file that has it, or correct the name",
            )
