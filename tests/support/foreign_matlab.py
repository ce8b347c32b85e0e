"""MATLAB files for tests: v5 with scipy.io.savemat, v7.3 with h5py as MATLAB's `save -v7.3` does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import h5py
import numpy as np
import scipy.io


def texts(strings: Sequence[str], shape: tuple[int, int]) -> np.ndarray:
    """Return a cell array of texts, as `savemat` and `save_v73` take it."""
    return cells([np.array(text) for text in strings], shape)


def cells(contents: Sequence[object], shape: tuple[int, int] | None = None) -> np.ndarray:
    """Return a cell array: [1, n], or another shape."""
    made = np.empty(len(contents), object)
    for i, content in enumerate(contents):
        made[i] = content
    return made.reshape(shape or (1, len(contents)))


def column(numbers: Sequence[float], dtype: str = "f8") -> np.ndarray:
    """Return numbers [n, 1], doubles as MATLAB saves them."""
    return np.asarray(numbers, dtype)[:, None]


def save_v5(path: Path, variables: Mapping[str, object], compress: bool = True) -> None:
    """Write a MATLAB v5 file as `scipy.io.savemat` does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy.io.savemat(path, dict(variables), do_compression=compress)


def save_v73(path: Path, variables: Mapping[str, object]) -> None:
    """Write a MATLAB v7.3 file: HDF5 as MATLAB's `save -v7.3` makes it.

    Args:
        variables: Number arrays (at least two-dimensional, else made a row), `str` (a char row), a
            2-D array of `U` strings of one character or a list of `str` (a char matrix), object
            arrays (cells of all these), bool arrays (logical), and dicts (a scalar struct).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w", userblock_size=512, libver="earliest") as file:
        for name, value in variables.items():
            _put(file, file, name, value)
    header = b"MATLAB 7.3 MAT-file, Platform: GLNXA64, Created on: Mon May  4 10:00:00 2026"
    header += b" HDF5 schema 1.00 ."
    with path.open("r+b") as raw:
        raw.write(header.ljust(116) + bytes(8) + b"\x00\x02IM")


def _put(file: h5py.File, group: h5py.Group, name: str, value: object) -> h5py.Dataset | h5py.Group:
    """Write one MATLAB value, transposed, with the attributes that name its class."""
    if isinstance(value, Mapping):
        made = group.create_group(name)
        for key, inner in value.items():
            _put(file, made, key, inner)
        made.attrs["MATLAB_class"] = np.bytes_(b"struct")
        return made
    array, kind, decode = _stored(value)
    if array.size == 0:
        made = group.create_dataset(name, data=np.array(array.shape, np.uint64))
        made.attrs["MATLAB_empty"] = np.uint8(1)
    elif kind == "cell":
        made = group.create_dataset(name, array.T.shape, h5py.ref_dtype)
        refs = file.require_group("#refs#")
        for at in np.ndindex(array.T.shape):
            made[at] = _put(file, refs, _next_name(len(refs)), array.T[at]).ref
    else:
        # MATLAB cuts arrays into chunks and compresses them with gzip at level 3.
        big = array.size > 1
        made = group.create_dataset(
            name, data=array.T, chunks=True if big else None, compression=3 if big else None
        )
    made.attrs["MATLAB_class"] = np.bytes_(kind.encode())
    if decode is not None:
        made.attrs["MATLAB_int_decode"] = np.int32(decode)
    return made


def _next_name(n: int) -> str:
    """Return MATLAB's names of referenced objects: a, b, .. z, then ba, bb, ..."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    name = letters[n % 26]
    while n := n // 26:
        name = letters[n % 26] + name
    return name


def _stored(value: object) -> tuple[np.ndarray, str, int | None]:
    """Return what HDF5 stores, its MATLAB class, and `MATLAB_int_decode`."""
    if isinstance(value, str) or (isinstance(value, list) and isinstance(value[0], str)):
        rows = [value] if isinstance(value, str) else value
        width = max(map(len, rows))
        codes = [[ord(letter) for letter in row.ljust(width)] for row in rows]
        return np.array(codes, np.uint16).reshape(len(rows), width), "char", 2
    array = np.asarray(value)
    if array.dtype.kind == "U":
        return _stored([str(text) for text in np.atleast_1d(array)])
    array = np.atleast_2d(array)
    if array.dtype == object:
        return array, "cell", None
    if array.dtype == bool:
        return array.astype(np.uint8), "logical", 1
    names = {"f4": "single", "f8": "double"}
    return array, names.get(array.dtype.str[1:], str(array.dtype)), None
