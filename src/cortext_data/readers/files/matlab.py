"""MATLAB files of version 5 (`save`, `save -v7`, SciPy) and 7.3 (`save -v7.3`).

Only names, types and shapes are read before they are asked for. A variable of version 5 is then
in memory once, as a whole; of version 7.3 the rows and columns that are asked for, and at most
64 MiB of chunks of the file.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np

from cortext.data import hdf5_input
from cortext.data.checks import AGAIN, FaultError, opening
from cortext_data.readers.files.matlab5 import File5, check_names
from cortext_data.readers.files.matlab5_arrays import MOST_CELLS
from cortext_data.readers.files.matlab73 import File73
from cortext_data.readers.files.matlab_classes import STRUCT, instead, listed

MOST_TEXT = 10_000
"""Most characters of a text, as in session files."""
_MOST_IN_VECTOR = 1 << 24  # bins of a day
_MOST_NESTED = 4  # cells around a text


class MatlabArray(Protocol):
    """An array in a file of either version."""

    kind: str
    shape: tuple[int, ...]
    dtype: np.dtype

    def children(self) -> Sequence[MatlabArray]:
        """Return the cells in MATLAB's order."""

    def box(self, rows: slice, columns: slice) -> np.ndarray:
        """Return rows of the first axis and columns of the last one."""

    def units(self) -> np.ndarray:
        """Return the characters, uint16 [rows, width]."""


@contextmanager
def open_mat(path: Path, names: Collection[str]) -> Iterator[MatFile]:
    """Open a MATLAB file. Raises FaultError for another format, and for damage.

    Args:
        path: The file, which is not trusted.
        names: Variables that it must have; only they are read.
    """
    with ExitStack() as stack:
        with opening(path):
            file = stack.enter_context(path.open("rb"))
            is_hdf5 = _is_hdf5(file.read(1024))
            file.seek(0)
        if is_hdf5:
            content: File5 | File73 = File73(stack.enter_context(hdf5_input.open_file(path)))
        else:
            content = File5(file, path)
            stack.callback(content.close)
        check_names(names, content.names)
        yield MatFile(path, content)


def _is_hdf5(head: bytes) -> bool:
    """Return whether a file begins as HDF5, with or without MATLAB's 512 bytes before it."""
    signature = b"\x89HDF\r\n\x1a\n"
    return head.startswith((signature, b"MATLAB 7.3")) or head[512:520] == signature


class MatFile:
    """An open MATLAB file. All methods raise FaultError, which names the variable.

    Attributes:
        path: Path of the file.
        version: `5` or `7.3`.
        names: Variables that the file has.
    """

    def __init__(self, path: Path, content: File5 | File73) -> None:
        self.path = path
        self.version = content.version
        self.names = content.names
        self._content = content

    def kind(self, name: str) -> str:
        """Return `numbers`, `cells` (of numbers), `texts` or `other`; reads no values."""
        kind, _, first = self._outline(name)
        if kind == "chars" or (kind == "cells" and first == "chars"):
            return "texts"
        if kind == "cells":
            return "cells" if first in (None, "numbers") else "other"
        return "numbers" if kind == "numbers" else "other"

    def fields(self, name: str) -> tuple[str, ...]:
        """Return the fields of a struct, as far as they are known; none of anything else."""
        return self._content.fields(name) if self._outline(name)[0] == STRUCT else ()

    def refusal(self, name: str) -> str:
        """Return what a variable of kind `other` is, and what to save instead."""
        kind, _, first = self._outline(name)
        if kind == "cells":
            return f"cells with {first}; {instead(str(first), f'{name}{{1}}')}"
        return f"{kind}{listed(self.fields(name))}; {instead(kind, name)}"

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape as MATLAB shows it; empty where the variable has none."""
        return self._outline(name)[1]

    def _outline(self, name: str) -> tuple[str, tuple[int, ...], str | None]:
        check_names([name], self.names)
        return self._content.outline(name)

    def _array(self, name: str, expected: str, *kinds: str) -> MatlabArray:
        # The outline first, from the first bytes: an object has parts that are not read.
        kind = self._outline(name)[0]
        if kind not in kinds:
            raise FaultError(name, f"{kind} found, {expected} expected", instead(kind, name))
        return self._content.array(name)

    def numbers(self, name: str, n_dims: int = 2) -> Numbers:
        """Return an array of numbers with that many dimensions."""
        array = self._array(name, "numbers", "numbers")
        if len(array.shape) != n_dims:
            finding = f"shape {list(array.shape)} found, {n_dims} dimensions expected"
            raise FaultError(name, finding, "save it in that form")
        return Numbers(name, array)

    def cells(self, name: str, *, checked: bool = True) -> list[Numbers]:
        """Return the arrays of a cell array, in MATLAB's order: down the columns.

        Without `checked` some may be no numbers, which `Numbers.check` says.
        """
        children = self._array(name, "a cell array", "cells").children()
        numbered = [Numbers(name, child, number) for number, child in enumerate(children, 1)]
        for cell in numbered if checked else ():
            cell.check()
        return numbered

    def texts(self, name: str) -> list[str]:
        """Return the rows of a char matrix, or the texts of a cell array, stripped on the right.

        A text may also be a cell with one text in it.
        """
        array = self._array(name, "texts", "chars", "cells")
        if array.kind == "chars":
            return _rows(array, name)
        children: Sequence[MatlabArray] = array.children()
        text_of: dict[int, str] = {}  # cells of version 7.3 may share a text
        for number, child in enumerate(children, 1):
            if id(child) not in text_of:
                text_of[id(child)] = _text(child, f"{name}{{{number}}}")
        return [text_of[id(child)] for child in children]

    def vector(self, name: str) -> np.ndarray:
        """Return the numbers of a row or column, int64 [n], or float64 [n] of such types."""
        array = self._array(name, "numbers", "numbers")
        if sum(size != 1 for size in array.shape) > 1 and 0 not in array.shape:
            finding = f"shape {list(array.shape)} found, one row or column expected"
            raise FaultError(name, finding, "save it in that form")
        if math.prod(array.shape) > _MOST_IN_VECTOR:
            finding = (
                f"shape {list(array.shape)} found, at most {_MOST_IN_VECTOR:,} numbers expected"
            )
            raise FaultError(name, finding, "save fewer")
        found_N = Numbers(name, array).read().ravel()
        if found_N.dtype == np.uint64 and found_N.size and found_N.max() > np.iinfo(np.int64).max:
            raise FaultError(
                name, f"{found_N.max()} found, a number of 64 bits expected", "check it"
            )
        return found_N.astype(np.float64 if found_N.dtype.kind == "f" else np.int64)

    def whole(self, name: str) -> np.ndarray:
        """Return whole numbers [n], as `vector` finds them, int64."""
        found_N = self.vector(name)
        if found_N.dtype.kind != "f":
            return found_N
        with np.errstate(invalid="ignore"):
            whole_N = found_N.astype(np.int64)
        if (broken := np.flatnonzero(whole_N != found_N)).size:
            finding = f"{found_N[broken[0]]} found at ({broken[0] + 1}), a whole number expected"
            raise FaultError(name, finding, "correct it")
        return whole_N

    def release(self) -> None:
        """Free the memory of numbers that were read; they are read again when asked for.

        Where several large files are open, call it before another one is read.
        """
        self._content.release()


class Numbers:
    """An array of numbers in a file.

    Attributes:
        shape: As MATLAB shows it: [T, C], [n, T, C].
        dtype: Type of the numbers.
    """

    def __init__(self, name: str, array: MatlabArray, cell: int | None = None) -> None:
        self._variable, self._cell = name, cell
        self._name = name if cell is None else f"{name}{{{cell}}}"
        self._array = array
        self.shape = array.shape
        self.dtype = array.dtype

    @property
    def is_readable(self) -> bool:
        """False for an array that is no numbers."""
        return self._array.kind == "numbers"

    def check(self) -> None:
        """Raise FaultError for an array that is no numbers."""
        if not self.is_readable:
            place = "" if self._cell is None else f" in cell {self._cell}"
            finding = f"{self._array.kind} found{place}, numbers expected"
            raise FaultError(self._variable, finding, instead(self._array.kind, self._name))

    def read(
        self,
        start: int = 0,
        stop: int | None = None,
        columns: Sequence[int] | None = None,
    ) -> np.ndarray:
        """Return rows of the first axis, and all or some columns of the last one.

        Args:
            start: First row, counted from 0.
            stop: The row after the last one; None for all.
            columns: Numbers of columns, counted from 0; None for all.

        Raises:
            FaultError: For rows and columns that the array lacks, and for damage.
        """
        if not self.shape:
            return np.zeros(0, self.dtype)
        n_rows, n_columns = self.shape[0], self.shape[-1]
        stop = n_rows if stop is None else stop
        if not 0 <= start <= stop <= n_rows:
            finding = f"rows {start} to {stop} asked for, {n_rows} found"
            raise FaultError(self._name, finding, "check what the file says of them")
        rows = slice(start, stop)
        if columns is None:
            return self._array.box(rows, slice(0, n_columns))
        chosen = np.asarray(columns, np.int64)
        low, high = (int(chosen.min()), int(chosen.max()) + 1) if chosen.size else (0, 0)
        if not 0 <= low <= high <= n_columns:
            finding = f"columns {low + 1} to {high} asked for, {n_columns} found"
            raise FaultError(self._name, finding, "choose columns that the array has")
        found_TC = self._array.box(rows, slice(low, high))
        if np.array_equal(chosen, np.arange(low, high)):
            return found_TC
        return np.ascontiguousarray(found_TC[..., chosen - low])


def _text(array: MatlabArray, name: str) -> str:
    """Return the text of a cell, or of a cell in it."""
    for _ in range(_MOST_NESTED):
        if array.kind != "cells" or math.prod(array.shape) != 1:
            break
        (array,) = array.children()
    if array.kind == "numbers" and 0 in array.shape:  # [] in place of ''
        return ""
    if array.kind != "chars":
        raise FaultError(name, f"{array.kind} found, a text expected", instead(array.kind, name))
    rows = _rows(array, name)
    if len(rows) > 1:
        raise FaultError(name, f"{len(rows)} rows found, one line of text expected", "join them")
    return rows[0] if rows else ""


def _rows(array: MatlabArray, name: str) -> list[str]:
    """Return the rows of a char matrix."""
    if len(array.shape) != 2:
        raise FaultError(name, f"a text of shape {list(array.shape)} found", "save rows of text")
    if array.shape[0] > MOST_CELLS:
        finding = f"{array.shape[0]:,} rows found, at most {MOST_CELLS:,} expected"
        raise FaultError(name, finding, "save fewer")
    units = array.units()
    if units.shape[1] > MOST_TEXT:
        finding = f"{units.shape[1]:,} characters found, at most {MOST_TEXT:,} expected"
        raise FaultError(name, finding, "shorten the text")
    try:
        return [
            np.ascontiguousarray(row, "<u2").tobytes().decode("utf-16-le").rstrip() for row in units
        ]
    except UnicodeDecodeError:
        raise FaultError(name, "a text that is not UTF-16 found", AGAIN) from None
