"""Variables of a MATLAB file of version 7.3, which is HDF5.

MATLAB's arrays lie transposed in it. A cell array is an array of references to other objects of
the file, an array of characters one of uint16, and an empty array a list of its dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5o, h5r, h5t

from cortext.data import hdf5_input
from cortext.data.checks import AGAIN, FaultError
from cortext.data.hdf5_attributes import check_text_lengths
from cortext.data.hdf5_chunks import Values
from cortext_data.readers.files.matlab5_arrays import check_cells
from cortext_data.readers.files.matlab_classes import (
    COMPLEX,
    FUNCTION,
    SPARSE,
    STRUCT,
    is_numeric,
    object_of,
)

_MOST_DEPTH = 8  # cells in cells
_MOST_UNITS = 1 << 26  # characters of a variable
_MOST_ATTRIBUTE = 64  # bytes of a class name
_UNKNOWN = "unknown"  # class of an attribute that cannot be one of MATLAB's
_BAND = 1 << 26  # bytes of neighbouring rows that are kept of a 3-D array


@contextmanager
def _of(name: str) -> Iterator[None]:
    """Turn what h5py raises within the context into a FaultError that names the variable."""
    try:
        with hdf5_input.damage():
            yield
    except FaultError as fault:
        fault.field = fault.field or name
        raise


@dataclass(eq=False)
class Array73:
    """An array of a file of version 7.3, of which no values have been read.

    Attributes:
        name: Variable that it belongs to.
        kind: `numbers`, `chars`, `cells`, or what else it is, in words.
        shape: As MATLAB shows it.
        dtype: Type of the numbers.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: np.dtype
    _kept: hdf5_input.KeptChunks = field(repr=False)
    _values: Values | None = None
    _band: tuple[int, np.ndarray] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, opened: Any, name: str, kept: hdf5_input.KeptChunks) -> Array73:
        """Return the array of an object of the file, whose decoded chunks are kept with others."""
        if not isinstance(opened, h5d.DatasetID):
            return cls(name, _kind_of_group(opened), (), np.dtype("V"), kept)
        values = hdf5_input.own_values(opened, name)
        matlab = _class(opened)
        if other := _other_kind(opened, matlab):
            return cls(name, other, (), values.dtype, kept)
        if h5a.exists(opened, b"MATLAB_empty"):
            kind = {"cell": "cells", "char": "chars"}.get(matlab, "numbers")
            return cls(name, kind, (0, 0), np.dtype("f8"), kept)
        shape = values.shape[::-1]
        reference = h5py.check_ref_dtype(values.dtype)
        if matlab == "cell" or (not matlab and reference is h5py.Reference):
            kind = "cells" if reference is h5py.Reference else "a cell array without references"
        elif matlab == "char":
            is_text = values.dtype.kind == "u" and values.dtype.itemsize in (1, 2)
            kind = "chars" if is_text else "a text of no characters"
        elif values.dtype.kind in "fiu":
            kind = "numbers"
        elif values.dtype.names == ("real", "imag"):
            kind = COMPLEX
        else:
            kind = f"an array of class {matlab or values.dtype}"
        return cls(name, kind, shape, values.dtype, kept, values)

    @cached_property
    def _boxes(self) -> hdf5_input.Boxes:
        assert self._values is not None
        return hdf5_input.Boxes(self._values, self._kept)

    def children(self) -> list[Array73]:
        """Return the cells in MATLAB's order, down the columns."""
        if self._values is None:
            return []
        check_cells(self.name, math.prod(self.shape))
        with _of(self.name):
            references = self._read(tuple(slice(0, size) for size in self._values.shape)).ravel()
            known: dict[int, tuple[int, Array73]] = {}
            return [self._child(number, each, known) for number, each in enumerate(references, 1)]

    def _child(self, number: int, reference: Any, known: dict[int, tuple[int, Array73]]) -> Array73:
        """Return a cell; `known` has the cells before it by their places in the file."""
        target = self._target(number, reference)
        place = h5o.get_info(target).addr
        if place not in known:
            known[place] = number, self._array(number, target)
        first, child = known[place]
        # MATLAB writes a copy of each. A trial that is there twice would become two.
        if first != number and child.kind == "numbers" and 0 not in child.shape:
            finding = (
                f"cell {number} and cell {first} have the same numbers at one place of the file"
            )
            raise FaultError(self.name, finding, "save it with MATLAB")
        return child

    def first(self) -> Array73 | None:
        """Return the first cell; None where there is none."""
        if self.kind != "cells" or self._values is None or 0 in self.shape:
            return None
        with _of(self.name):
            (reference,) = self._read((slice(0, 1),) * len(self.shape)).ravel()
            return self._array(1, self._target(1, reference))

    def _target(self, number: int, reference: Any) -> Any:
        """Return the object that a cell refers to."""
        name = f"{self.name}{{{number}}}"
        if not isinstance(reference, h5r.Reference) or not reference:
            raise FaultError(name, "the cell refers to nothing", AGAIN)
        assert self._values is not None
        # A reference is a place in the same file, and may be any number.
        with _of(name):
            return h5r.dereference(reference, self._values.id)

    def _array(self, number: int, target: Any) -> Array73:
        name = f"{self.name}{{{number}}}"
        with _of(name):
            return Array73.of(target, name, self._kept)

    def _read(self, box: tuple[slice, ...]) -> np.ndarray:
        return self._boxes.read(*box)

    def box(self, rows: slice, columns: slice) -> np.ndarray:
        """Return rows of the first axis and columns of the last one."""
        if self._values is None:
            return np.zeros((0,) * len(self.shape), self.dtype)
        with _of(self.name):
            if len(self.shape) < 3:
                stored = self._read((columns, rows)[2 - len(self.shape) :])
                return np.ascontiguousarray(stored.T)
            return np.concatenate([self._rows(each)[..., columns] for each in self._bands(rows)])

    def _bands(self, rows: slice) -> Iterator[slice]:
        """Yield a slice of rows for each band that it lies in."""
        at = rows.start
        while at < rows.stop:
            end = min((at // self._rows_of_band + 1) * self._rows_of_band, rows.stop)
            yield slice(at, end)
            at = end

    @cached_property
    def _rows_of_band(self) -> int:
        return max(1, _BAND // max(1, math.prod(self.shape[1:]) * self.dtype.itemsize))

    def _rows(self, rows: slice) -> np.ndarray:
        """Return rows of one band, which is read as a whole: its rows lie interleaved."""
        size = self._rows_of_band
        number = rows.start // size
        if self._band is None or self._band[0] != number:
            self._band = None
            band = slice(number * size, min((number + 1) * size, self.shape[0]))
            inner = [slice(0, n) for n in self.shape[:0:-1]]
            self._band = (number, np.ascontiguousarray(self._read((*inner, band)).T))
        start = number * size
        return self._band[1][rows.start - start : rows.stop - start]

    def release(self) -> None:
        """Keep no rows in memory."""
        self._band = None

    def units(self) -> np.ndarray:
        """Return the characters, uint16 [rows, width] of UTF-16."""
        if self._values is None:
            return np.zeros((0, 0), np.uint16)
        if math.prod(self.shape) > _MOST_UNITS:
            finding = (
                f"{math.prod(self.shape):,} characters found, at most {_MOST_UNITS:,} expected"
            )
            raise FaultError(self.name, finding, "shorten the text")
        with _of(self.name):
            box = tuple(slice(0, size) for size in self._values.shape)
            return self._read(box).T.astype(np.uint16)


class File73:
    """An open file of version 7.3, of which only names have been read.

    Args:
        file: The file.
    """

    version = "7.3"

    def __init__(self, file: h5py.File) -> None:
        self._file = file
        self._arrays: dict[str, Array73] = {}
        self._kept = hdf5_input.KeptChunks()
        with hdf5_input.damage():
            self.names = tuple(name for name in file if not name.startswith("#"))

    def array(self, name: str) -> Array73:
        """Return a variable, of which no values have been read."""
        if name not in self._arrays:
            with _of(name):
                self._arrays[name] = Array73.of(
                    hdf5_input.member(self._file, name, name), name, self._kept
                )
        return self._arrays[name]

    def release(self) -> None:
        """Keep nothing that was read in memory."""
        self._kept.clear()
        for array in self._arrays.values():
            array.release()

    def fields(self, name: str) -> tuple[str, ...]:
        """Return the fields of a struct."""
        with _of(name):
            opened = hdf5_input.member(self._file, name, name)
            return tuple(h5py.Group(opened)) if isinstance(opened, h5g.GroupID) else ()

    def outline(self, name: str) -> tuple[str, tuple[int, ...], str | None]:
        """Return kind and shape of a variable, and the kind of its first cell."""
        array = self.array(name)
        first = None
        inner = array.first()
        for _ in range(_MOST_DEPTH):
            if inner is None:
                break
            first, inner = inner.kind, inner.first()
        return array.kind, array.shape, first


def _kind_of_group(group: Any) -> str:
    """Return what a group is: a struct has a member for each field."""
    if h5a.exists(group, b"MATLAB_sparse"):
        return SPARSE
    return _other_kind(group, _class(group)) or STRUCT


def _other_kind(opened: Any, matlab: str) -> str | None:
    """Return what an array is that holds no values of its own; None for all others.

    The numbers of an object count entries of `#subsystem#`, which MATLAB alone knows.
    """
    if matlab == "function_handle":
        return FUNCTION
    if h5a.exists(opened, b"MATLAB_object_decode"):
        return object_of(matlab)
    if matlab == "struct":
        return STRUCT
    is_known = matlab in ("", "cell", "char", _UNKNOWN) or is_numeric(matlab)
    return None if is_known else object_of(matlab)


def _class(opened: h5d.DatasetID | h5g.GroupID) -> str:
    """Return MATLAB's class of an object of the file; empty where it does not say."""
    if not h5a.exists(opened, b"MATLAB_class"):
        return ""
    attribute = h5a.open(opened, b"MATLAB_class")
    if attribute.shape not in ((), (1,)) or attribute.get_storage_size() > _MOST_ATTRIBUTE:
        return _UNKNOWN
    kind = attribute.get_type()
    if not isinstance(kind, h5t.TypeStringID):
        return _UNKNOWN
    check_text_lengths(opened, "MATLAB_class", kind)
    owner = h5py.Dataset if isinstance(opened, h5d.DatasetID) else h5py.Group
    value = owner(opened).attrs["MATLAB_class"]
    value = value.item() if isinstance(value, np.ndarray | np.generic) else value
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
