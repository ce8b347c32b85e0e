"""HDF5 datasets that somebody else made, and their chunks, decoded after a check of lengths.

A chunk that is shorter than declared is filled with whatever the process has in memory (HDF5 2.0),
and a longer one takes as much memory as it likes.
"""

from __future__ import annotations

import math
import shlex
import zlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from h5py import h5d, h5i, h5t, h5z

from cortext.data.checks import AGAIN, FaultError

_ROWS, _COLUMNS, _ALONE = 1000, 256, 1 << 16  # of a chunk of features, and of one of times
_PLACE = 16  # bytes: a length, an address and a number
_MOST_CHUNK = 1 << 26  # bytes of a chunk
_MOST_OVERHEAD = 1 << 16  # bytes that a filter may add to a small chunk
_CHECKSUM = 4  # bytes that Fletcher's checksum adds to a chunk


@dataclass(frozen=True, slots=True)
class Values:
    """A dataset in the file itself, of which nothing has been read."""

    id: h5d.DatasetID
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    layout: int

    @property
    def n_bytes(self) -> int:
        """Size of a number in the file, or of the place where a text of any length lies."""
        kind = self.id.get_type()
        if isinstance(kind, h5t.TypeStringID) and kind.is_variable_str():
            return _PLACE
        return int(kind.get_size())


def repack(values: Values) -> str:
    """Return the command that stores a dataset in chunks that are read.

    It names the dataset, with chunks no longer than its axes: h5repack leaves others as they are.
    """
    place = h5i.get_name(values.id)
    n_dims = len(values.shape)
    most = {1: [_ALONE], 2: [_ROWS, _COLUMNS]}.get(n_dims, [64] * n_dims)
    if n_dims == 2 and values.shape[0] < values.shape[1]:
        most.reverse()  # MATLAB's arrays lie transposed in the file
    shape = "x".join(str(max(1, min(n, size))) for n, size in zip(values.shape, most, strict=True))
    before = "" if place is None else f"{place.decode(errors='replace')}:"
    chunk, gzip = shlex.quote(f"{before}CHUNK={shape}"), shlex.quote(f"{before}GZIP=4")
    return f"run `h5repack -l {chunk} -f {gzip}` with its name and a new one, and read the new one"


class Chunks:
    """The chunks of a dataset. Nothing is decoded before its stored size has been checked.

    Args:
        values: A chunked dataset.
        most: Most chunks that it may have; any number by default.
    """

    def __init__(self, values: Values, most: int | None = None) -> None:
        properties = values.id.get_create_plist()
        name = values.name
        self.values = values
        self.shape: tuple[int, ...] = properties.get_chunk()
        self.n_bytes = math.prod(self.shape) * values.n_bytes
        if self.n_bytes > _MOST_CHUNK:
            raise FaultError(
                name,
                f"chunks of {self.n_bytes} bytes found, at most {_MOST_CHUNK} expected",
                repack(values),
            )
        n_chunks = math.prod(
            -(-n // size) for n, size in zip(values.shape, self.shape, strict=True)
        )
        if most is not None and n_chunks > most:  # HDF5 keeps notes of each: 6 million take 4 GB
            finding = f"{n_chunks} chunks found, at most {most} expected"
            raise FaultError(name, finding, repack(values))
        filters = [properties.get_filter(number) for number in range(properties.get_nfilters())]
        self.filters = [code for code, *_ in filters]
        self.settings = {code: settings for code, _, settings, _ in filters}
        n_compressors = sum(code in _LENGTHS for code in self.filters)
        if n_compressors > 1 or not set(self.filters) <= {*_LENGTHS, *_KEEP_VALUES}:
            raise FaultError(
                name, f"HDF5 filters {self.filters} found, gzip or lzf expected", repack(values)
            )

    def stored(self, n_rows: int) -> list[h5d.StoreInfo]:
        """Return the chunks of the first rows that have been written."""
        chunks: list[h5d.StoreInfo] = []
        self.values.id.chunk_iter(chunks.append)
        return [chunk for chunk in chunks if chunk.chunk_offset[0] < n_rows]

    def decode(self, chunks: list[h5d.StoreInfo]) -> bool:
        """Check the lengths of chunks, and return whether `decoded` reads them.

        Gzip is decoded here, once; the rest by HDF5 if all lengths are right.
        """
        if any(chunk.size > 2 * self.n_bytes + _MOST_OVERHEAD for chunk in chunks):
            raise self._damage()
        if self._is_plain:
            return True
        for chunk in chunks:
            if self._unfiltered_size(chunk) != self.n_bytes:
                raise self._damage()
        return False

    @cached_property
    def _is_plain(self) -> bool:
        dtype = self.values.dtype
        shuffled = self.settings.get(h5z.FILTER_SHUFFLE, (dtype.itemsize,))[:1] == (dtype.itemsize,)
        # Texts of any length lie elsewhere in the file: HDF5 itself has to look them up.
        plain = dtype.kind != "O" and self.values.id.get_type() == h5t.py_create(dtype)
        return (
            plain
            and shuffled
            and self.filters
            in (
                [h5z.FILTER_DEFLATE],
                [h5z.FILTER_SHUFFLE, h5z.FILTER_DEFLATE],
            )
        )

    def _used(self, chunk: h5d.StoreInfo) -> list[int]:
        return [code for bit, code in enumerate(self.filters) if not chunk.filter_mask >> bit & 1]

    def _unfiltered_size(self, chunk: h5d.StoreInfo) -> int:
        """Return the number of bytes that the filters make of a chunk, or some larger one."""
        size = int(chunk.size)
        for code in reversed(self._used(chunk)):
            if code == h5z.FILTER_FLETCHER32:
                size -= _CHECKSUM
            elif code in _LENGTHS:
                _, content = self.values.id.read_direct_chunk(chunk.chunk_offset)
                size = _LENGTHS[code](content[:size], self.n_bytes + _CHECKSUM + 1)
        return size

    def decoded(self, chunk: h5d.StoreInfo) -> np.ndarray:
        """Return the values of a chunk that `decode` has approved."""
        dtype = self.values.dtype
        _, content = self.values.id.read_direct_chunk(chunk.chunk_offset)
        used = self._used(chunk)
        if h5z.FILTER_DEFLATE in used:
            content = inflated(content, self.n_bytes + 1)
        if len(content) != self.n_bytes:
            raise self._damage()
        # Shuffled: the first byte of every number, then the second of every number ...
        if h5z.FILTER_SHUFFLE in used:
            content = np.frombuffer(content, np.uint8).reshape(dtype.itemsize, -1).T.tobytes()
        return np.frombuffer(content, dtype).reshape(self.shape)

    def _damage(self) -> FaultError:
        return FaultError(
            self.values.name,
            f"damaged HDF5 (a chunk does not hold {self.n_bytes} bytes)",
            AGAIN,
        )


def inflated(content: bytes, most: int) -> bytes:
    """Return at most so many bytes of what gzip's method makes of the content."""
    try:
        return zlib.decompressobj().decompress(content, most)
    except zlib.error:
        return b""


def _inflated_length(content: bytes, most: int) -> int:
    return len(inflated(content, most))


def _lzf_length(content: bytes, most: int) -> int:
    """Return the number of bytes that LZF (Lehmann's, version 3) makes of the content.

    The content is literals, and copies of what came before.
    """
    length = 0
    at = 0
    end = len(content)
    while at < end and length < most:
        control = content[at]
        if control < 32:  # a run of control + 1 literal bytes
            length += control + 1
            at += control + 2
        elif control < 224:  # a short copy: its length in 3 bits, its distance in 13
            length += (control >> 5) + 2
            at += 2
        elif at + 1 < end:  # a long copy, with a byte for the rest of its length
            length += 9 + content[at + 1]
            at += 3
        else:
            return 0
    return length if at <= end or length >= most else 0


_LENGTHS = {h5z.FILTER_DEFLATE: _inflated_length, h5z.FILTER_LZF: _lzf_length}
_KEEP_VALUES = (h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32)
