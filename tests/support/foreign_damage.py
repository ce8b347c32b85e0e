"""Damage to recordings of other labs: to any file, to MATLAB v5, and to HDF5 (NWB, MATLAB v7.3)."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import scipy.io
from foreign_matlab import save_v5

Change = Callable[[Path], object]


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def content(data: bytes) -> Change:
    return lambda path: path.write_bytes(data)


def terabyte(path: Path) -> None:
    """A file of a terabyte that takes no place on the disk."""
    os.truncate(path, 2**40)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def link_to_itself(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def renamed(name: str) -> Change:
    return lambda path: path.rename(path.with_name(name))


def variables(path: Path) -> dict[str, object]:
    return {k: v for k, v in scipy.io.loadmat(path).items() if not k.startswith("__")}


def resaved(**changes: object) -> Change:
    """Variables changed by functions or values, or left out (None)."""

    def change(path: Path) -> None:
        found = variables(path)
        for name, new in changes.items():
            found[name] = new(found[name]) if callable(new) else new
        save_v5(path, {k: v for k, v in found.items() if v is not None}, compress=False)

    return change


def one(change: Callable[[np.ndarray], object], at: tuple[int, int] = (0, 1)) -> Callable:
    """Change one cell of a cell array."""

    def of_cells(found: np.ndarray) -> np.ndarray:
        made = found.copy()
        made[at] = change(found[at])
        return made

    return of_cells


def with_value(value: float, dtype: str = "f8") -> Callable[[np.ndarray], np.ndarray]:
    def change(x: np.ndarray) -> np.ndarray:
        made = x.astype(dtype)
        made.flat[3] = value
        return made

    return change


def declared(name: str, *dims: int) -> Change:
    """Dimensions of a variable that the file does not have. The name has more than 4 letters."""

    def change(path: Path) -> None:
        save_v5(path, variables(path), compress=False)
        data = path.read_bytes()
        tag = struct.pack("<II", 1, len(name)) + name.encode()
        at = data.index(tag)
        assert len(dims) == 2
        assert data[at - 16 : at - 8] == struct.pack("<II", 5, 8)
        path.write_bytes(data[: at - 8] + struct.pack("<ii", *dims) + data[at:])

    return change


def longer_element(path: Path) -> None:
    """The first variable declares 4 GB."""
    save_v5(path, variables(path), compress=False)
    data = path.read_bytes()
    path.write_bytes(data[:132] + struct.pack("<I", 0xFFFFFFF0) + data[136:])


def gzip_bomb(path: Path) -> None:
    """The blocks of 64 Mi trials: zeros in 64 KiB."""
    found = variables(path)
    del found["blockIdx"]
    save_v5(path, found)
    n = 2**26
    parts = (6, 8, 9, 0, 5, 8, n, 1, 1, 8)
    inner = struct.pack("<10I", *parts) + b"blockIdx" + struct.pack("<II", 2, n) + bytes(n)
    packed = zlib.compress(struct.pack("<II", 14, len(inner)) + inner, 1)
    with path.open("ab") as file:
        file.write(struct.pack("<II", 15, len(packed)) + packed)


def twice(path: Path) -> None:
    """All variables are there twice."""
    with path.open("ab") as file:
        file.write(path.read_bytes()[128:])


def not_utf8(text: str) -> Change:
    """A text of the file gets bytes that are no UTF-8, in a place that says UTF-8."""

    def change(path: Path) -> None:
        save_v5(path, variables(path), compress=False)
        data = path.read_bytes()
        wrong = b"\xff\xfe" + text.encode()[2:]
        assert text.encode() in data
        path.write_bytes(data.replace(text.encode(), wrong))

    return change


def h5(change: Callable[[h5py.File], object]) -> Change:
    """Change an HDF5 file: NWB, or MATLAB v7.3."""

    def changed(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            change(file)

    return changed


def instead(name: str, make: object) -> Change:
    """A dataset replaced; its attributes stay."""

    def change(file: h5py.File) -> None:
        old = file[name]
        attributes = dict(old.attrs)
        data = make(old[()]) if callable(make) else make
        del file[name]
        if isinstance(data, (h5py.SoftLink, h5py.ExternalLink)):
            file[name] = data
            return
        new = file.create_dataset(name, data=data)
        new.attrs.update(attributes)

    return h5(change)


def huge(name: str, *shape: int) -> Change:
    def change(file: h5py.File) -> None:
        attributes, dtype = dict(file[name].attrs), file[name].dtype
        del file[name]
        new = file.create_dataset(name, shape, dtype, chunks=tuple(min(n, 64) for n in shape))
        new.attrs.update(attributes)

    return h5(change)


def stored_outside(name: str) -> Change:
    """The numbers lie in another file."""

    def change(file: h5py.File) -> None:
        shape, attributes = file[name].shape, dict(file[name].attrs)
        del file[name]
        size = int(np.prod(shape)) * 8
        new = file.create_dataset(name, shape, "f8", external=[("/etc/hostname", 0, size)])
        new.attrs.update(attributes)

    return h5(change)


def set_nan(x: np.ndarray) -> np.ndarray:
    """NaN in every second bin of a channel: it is no dead one."""
    made = x.astype("f8")
    made[::2, 40] = np.nan
    made[40, ::2] = np.nan
    return made
