"""Guarded access to HDF5 files that somebody else made.

HDF5 follows what a file says: links, virtual datasets and external storage into other files,
whatever size a shape declares, and compressed chunks of any length. A chunk that is shorter than
declared is filled with whatever the process has in memory (HDF5 2.0). So everything that is read is
checked first: it lies in the file itself, its size is within bounds, and every chunk holds as many
bytes as it should.
"""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5l, h5o, h5t

from cortext.data.checks import AGAIN, FaultError, Limits, check_memory, opening
from cortext.data.hdf5_attributes import check_text_lengths
from cortext.data.hdf5_chunks import Chunks, Values, repack
from cortext.data.hdf5_refused import refusal

DAMAGE = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError)
"""Errors that h5py raises for structures that make no sense."""
_SURROGATE = re.compile("[\ud800-\udfff]")  # what h5py makes of bytes that are not UTF-8
_WRITE = "write the trial with write_session"
_INSIDE = "copy the values into the file itself"
_MOST_LINKS = 16  # soft links in a row; HDF5's own number
_MOST_ATTRIBUTE = 1 << 16  # bytes of an attribute
_MOST_TEXT = 10_000  # characters of an attribute
_MOST_KEPT = 1 << 26  # bytes of decoded chunks
_MOST_AT_ONCE = 100_000  # chunks of a box
_SINGLE_VALUES = (h5t.INTEGER, h5t.FLOAT, h5t.STRING, h5t.ENUM)


@contextmanager
def opened(path: Path) -> Iterator[h5py.File]:
    """Open a file as `open_file` does; what h5py raises within the context is a FaultError."""
    with open_file(path) as file, damage():
        yield file


def open_file(path: Path) -> h5py.File:
    """Open a file; a FaultError says why it cannot be read, and who holds it."""
    with opening(path):
        try:
            return h5py.File(path, "r")
        except DAMAGE as error:
            if (fault := refusal(path, error)) is None:
                raise
            raise fault from None


@contextmanager
def damage() -> Iterator[None]:
    """Turn what h5py raises within the context, and a lack of memory, into a FaultError."""
    try:
        yield
    except MemoryError:
        raise FaultError(
            None, "does not fit into memory", "use a machine with more memory"
        ) from None
    except DAMAGE as error:
        raise FaultError(None, f"damaged HDF5 ({error})", AGAIN) from None


def member(group: h5py.Group, name: str, field: str | None = None) -> Any:
    """Return the low-level object of that name in the same file; None where there is none.

    Soft links are followed here: HDF5 itself would follow them into another file, or a pipe.

    Args:
        group: Where the name is looked up.
        name: May be a path.
        field: The field that faults name.
    """
    here: Any = group.id
    rest = name.encode().split(b"/")
    n_links = 0
    while rest:
        part = rest.pop(0)
        if part in (b"", b"."):
            continue
        kind = _kind_of_link(here, part)
        if kind == h5l.TYPE_HARD:
            here = h5o.open(here, part)
        elif kind == h5l.TYPE_SOFT and n_links < _MOST_LINKS:
            target = here.links.get_val(part)
            n_links += 1
            here = h5o.open(group.file.id, b"/") if target.startswith(b"/") else here
            rest = target.split(b"/") + rest
        elif kind == h5l.TYPE_SOFT:
            raise FaultError(field, "damaged HDF5 (soft links in a circle)", AGAIN)
        elif kind is not None:
            raise FaultError(field, "an external link found, which reads another file", _INSIDE)
        elif n_links:
            raise FaultError(field, "damaged HDF5 (a soft link leads nowhere)", AGAIN)
        else:
            return None
    return here


def _kind_of_link(here: Any, name: bytes) -> int | None:
    if not isinstance(here, h5g.GroupID):
        return None
    try:
        return int(here.links.get_info(name).type)
    except (KeyError, RuntimeError):
        if here.links.exists(name):
            raise
        return None


def has(group: h5py.Group, name: str) -> bool:
    """Return whether the group has a link or an attribute of that name; no link is followed."""
    return bool(group.id.links.exists(name.encode()) or h5a.exists(group.id, name.encode()))


def dataset(group: h5py.Group, name: str, n_dims: int) -> Values:
    """Return the dataset of numbers of that name.

    Args:
        group: Group of the trial.
        name: Name of the dataset.
        n_dims: Dimensions that it must have.

    Raises:
        FaultError: Where it is missing or is anything else.
    """
    data = member(group, name, name)
    if not isinstance(data, h5d.DatasetID):
        raise FaultError(name, "dataset missing, expected in every trial", _WRITE)
    values = own_values(data, name)
    if len(values.shape) != n_dims or values.dtype.kind not in "fiu":
        finding = (
            f"{values.dtype} of shape {values.shape} found, numbers in {n_dims} dimension(s)"
            " expected"
        )
        raise FaultError(name, finding, _WRITE)
    return values


def own_values(data: h5d.DatasetID, name: str) -> Values:
    """Return the values of a dataset. Raises FaultError where they lie in other files."""
    properties = data.get_create_plist()
    layout = properties.get_layout()
    if layout == h5d.VIRTUAL:  # asked before the shape, which may open the other files
        raise FaultError(name, "a virtual dataset found, which reads other files", _INSIDE)
    if properties.get_external_count():
        raise FaultError(name, "external storage found, which reads other files", _INSIDE)
    shape = data.shape or ()  # None of an empty dataset
    try:
        dtype = data.dtype
    except TypeError:
        dtype = np.dtype("V")  # a type that NumPy lacks
    return Values(data, name, shape, dtype, layout)


def number(group: h5py.Group, name: str) -> int:
    """Read an attribute that is a whole number of 64 bits."""
    value = attribute(group, name)
    try:
        integer = int(value)
    except (TypeError, ValueError, OverflowError):
        integer = None
    if integer is None or integer != value:
        raise FaultError(name, f"{value!r} found, a whole number expected", _WRITE)
    if not -(2**63) <= integer < 2**63:
        raise FaultError(name, f"{integer} found, a number of 64 bits expected", _WRITE)
    return integer


def text(group: h5py.Group, name: str) -> str:
    """Read an attribute that is a text of at most 10,000 characters."""
    value = attribute(group, name)
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            value = value.decode()
    if not isinstance(value, str) or (not value.isascii() and _SURROGATE.search(value)):
        raise FaultError(name, f"{value!r} found, a text in UTF-8 expected", _WRITE)
    if len(value) > _MOST_TEXT:
        raise FaultError(
            name, f"{len(value)} characters found, at most {_MOST_TEXT} expected", _WRITE
        )
    return value


def attribute(group: h5py.Group, name: str) -> Any:
    """Read an attribute that is one number or text. Raises FaultError for anything else."""
    try:
        attribute = h5a.open(group.id, name.encode())
    except KeyError:
        if h5a.exists(group.id, name.encode()):
            raise
        raise FaultError(name, "attribute missing, expected in every trial", _WRITE) from None
    kind = attribute.get_type().get_class()
    shape = attribute.shape
    if kind not in _SINGLE_VALUES or shape is None or math.prod(shape) != 1:
        raise FaultError(name, "a value of another type found, one number or text expected", _WRITE)
    if attribute.get_storage_size() > _MOST_ATTRIBUTE:
        raise FaultError(name, f"a value of more than {_MOST_ATTRIBUTE} bytes found", _WRITE)
    if kind == h5t.STRING:
        check_text_lengths(group.id, name, attribute.get_type())
        value = group.attrs[name]
        return (
            value.item()
            if isinstance(value, np.ndarray | np.generic) and value.size == 1
            else value
        )
    value = np.empty(shape, attribute.dtype)
    attribute.read(value)
    return value.item()


def check_size(values: Values, limits: Limits) -> None:
    """Raise FaultError for a dataset [bins, features] that is larger than the limits allow."""
    n_bins, n_features = values.shape
    most = limits.bins * limits.features * np.dtype(np.float32).itemsize
    if (
        n_bins > limits.bins
        or n_features > limits.features
        or n_bins * n_features * values.n_bytes > most
    ):
        finding = f"{n_bins} bins x {n_features} features of {values.n_bytes} bytes declared"
        expected = f"at most {limits.bins} x {limits.features} of 4 bytes expected"
        fix = "raise it with --max-bins and --max-features of `cortext pack`"
        raise FaultError(values.name, f"{finding}, {expected}", fix)


def first_rows(values: Values, n_rows: int, limits: Limits) -> np.ndarray:
    """Read the first rows of a dataset whose size has been checked.

    Args:
        values: Dataset.
        n_rows: Number of rows to read.
        limits: Bounds of a trial, which its chunks must respect, too.

    Raises:
        FaultError: Where no values were ever written, or the chunks are damaged.
    """
    chunks = Chunks(values, limits.bins) if values.layout == h5d.CHUNKED else None
    stored = chunks.stored(n_rows) if chunks else []
    _check_written(values)
    if chunks is None or not chunks.decode(stored):
        return np.asarray(h5py.Dataset(values.id)[:n_rows])
    shape = (n_rows, *values.shape[1:])
    rows = np.full(shape, _fill_value(values), values.dtype)
    for chunk in stored:
        corner = chunk.chunk_offset
        target = rows[tuple(map(slice, corner, np.add(corner, chunks.shape)))]
        target[...] = chunks.decoded(chunk)[tuple(map(slice, target.shape))]
    return rows


class KeptChunks:
    """Decoded chunks that the next boxes may need again, up to 64 MiB: neighbours share them."""

    def __init__(self) -> None:
        self._chunks: OrderedDict[Any, np.ndarray] = OrderedDict()
        self._n_bytes = 0
        self._n_datasets = 0

    def number(self) -> int:
        """Return a number for the chunks of another dataset."""
        self._n_datasets += 1
        return self._n_datasets

    def get(self, key: Any) -> np.ndarray | None:
        """Return a chunk; None where it is not kept."""
        return self._chunks.get(key)

    def keep(self, key: Any, chunk: np.ndarray) -> None:
        """Keep a chunk that was just used; those whose use is longest ago leave."""
        if key not in self._chunks:
            self._n_bytes += chunk.nbytes
        self._chunks[key] = chunk
        self._chunks.move_to_end(key)
        while self._n_bytes > _MOST_KEPT and len(self._chunks) > 1:
            self._n_bytes -= self._chunks.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        """Keep none of them."""
        self._chunks.clear()
        self._n_bytes = 0


class Boxes:
    """Boxes of a dataset that may be larger than memory.

    Args:
        values: Dataset, of which nothing has been read.
        kept: Decoded chunks of several datasets; of this one alone by default.
    """

    def __init__(self, values: Values, kept: KeptChunks | None = None) -> None:
        self._values = values
        self._chunks = Chunks(values) if values.layout == h5d.CHUNKED else None
        self._kept = KeptChunks() if kept is None else kept
        self._number = self._kept.number()
        _check_written(values)

    def read(self, *box: slice) -> np.ndarray:
        """Read a box: a slice with start and stop for each dimension, within the dataset."""
        values = self._values
        shape = [each.stop - each.start for each in box]
        if not math.prod(shape):
            return np.empty(shape, values.dtype)
        n_bytes = math.prod(shape) * values.n_bytes
        check_memory(values.name, n_bytes, "use a machine with more memory")
        if self._chunks is None:
            return np.asarray(h5py.Dataset(values.id)[box])
        size = self._chunks.shape
        n_chunks = math.prod(
            -(-each.stop // n) - each.start // n for each, n in zip(box, size, strict=True)
        )
        if n_chunks > _MOST_AT_ONCE:
            finding = f"{n_chunks} chunks found where at most {_MOST_AT_ONCE} are read at once"
            raise FaultError(values.name, finding, repack(values))
        parts = [_parts(each, n) for each, n in zip(box, size, strict=True)]
        pieces = [tuple(zip(*piece, strict=True)) for piece in product(*parts)]
        known = {}
        stored = {}
        for corner, _, _ in pieces:
            if (chunk := self._kept.get((self._number, corner))) is not None:
                known[corner] = chunk
                continue
            info = values.id.get_chunk_info_by_coord(corner)
            if info.byte_offset is not None:
                stored[corner] = info
        if not self._chunks.decode(list(stored.values())):
            return np.asarray(h5py.Dataset(values.id)[box])
        values_read = np.full(shape, _fill_value(values), values.dtype)
        for corner, into, part in pieces:
            chunk = known.get(corner)
            if chunk is None and corner in stored:
                chunk = self._chunks.decoded(stored[corner])
            if chunk is not None:
                values_read[into] = chunk[part]
                self._kept.keep((self._number, corner), chunk)
        return values_read


def _parts(along: slice, size: int) -> list[tuple[int, slice, slice]]:
    """Return what chunks have of a slice: where each begins, its part in the slice and in it."""
    return [
        (
            corner,
            slice(max(corner - along.start, 0), min(corner + size, along.stop) - along.start),
            slice(max(along.start - corner, 0), min(along.stop - corner, size)),
        )
        for corner in range(along.start // size * size, along.stop, size)
    ]


def _fill_value(values: Values) -> Any:
    """Return the number in place of chunks that were never written."""
    # Asked first: HDF5 2.0 crashes the process where it reads a damaged note of the number.
    given = values.id.get_create_plist().fill_value_defined() == h5d.FILL_VALUE_USER_DEFINED
    return h5py.Dataset(values.id).fillvalue if given else 0


def _check_written(values: Values) -> None:
    if math.prod(values.shape) and not values.id.get_storage_size():
        raise FaultError(values.name, "only declared, no values were ever written", AGAIN)
