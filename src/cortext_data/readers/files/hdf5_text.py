"""Texts of HDF5 datasets, whose stated lengths are checked before HDF5 takes memory for them.

A text of variable length lies elsewhere in the file. Its element holds the place: a length, the
address of a collection and a number in it, little-endian. HDF5 takes as much memory as the length
says before it looks there.
"""

from __future__ import annotations

import math
import os

import h5py
import numpy as np
from h5py import h5d, h5i, h5z

from cortext.data.checks import AGAIN, FaultError
from cortext.data.hdf5_chunks import Values, inflated
from cortext.data.hdf5_input import Boxes

MOST_BYTES = 1 << 26
"""Most bytes of the texts of a dataset, and of their places."""
_LONGEST = 40_000  # bytes of a text: 10,000 characters of UTF-8
_PLACE = np.dtype([("length", "<u4"), ("address", "<u8"), ("number", "<u4")])
_KNOWN = {h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32}
_FIX = "write the texts again, uncompressed"


def are_texts(values: Values) -> bool:
    """Return whether a dataset holds texts."""
    return values.dtype.kind == "S" or h5py.check_string_dtype(values.dtype) is not None


def read_texts(values: Values) -> list[bytes]:
    """Return the texts of a dataset in any number of dimensions, flat.

    Raises FaultError for damage, and for texts that are too long.
    """
    n = math.prod(values.shape)
    if n * values.n_bytes > MOST_BYTES:
        finding = f"{n} texts of {values.n_bytes} bytes declared"
        raise FaultError(values.name, f"{finding}, at most {MOST_BYTES} in all expected", AGAIN)
    if not n:
        return []
    boxes = Boxes(values)
    if values.dtype.kind != "S":
        lengths = np.frombuffer(_places(values), _PLACE)["length"]
        longest, total = int(lengths.max(initial=0)), int(lengths.sum(dtype=np.int64))
        if longest > _LONGEST or total > MOST_BYTES:
            finding = f"texts of up to {longest} bytes found, at most {_LONGEST} expected"
            raise FaultError(values.name, finding, AGAIN)
    cells = boxes.read(*(slice(0, size) for size in values.shape))
    return list(cells.ravel().tolist())


def _places(values: Values) -> bytes:
    """Return the bytes of all elements as they lie in the file."""
    if values.layout == h5d.CONTIGUOUS:
        offset = values.id.get_offset()
        size = math.prod(values.shape) * _PLACE.itemsize
        content = os.pread(h5i.get_file_id(values.id).get_vfd_handle(), size, offset or 0)
        if offset is None or len(content) != size:
            raise FaultError(values.name, "damaged HDF5 (texts beyond the end)", AGAIN)
        return content
    properties = values.id.get_create_plist()
    filters = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    if values.layout != h5d.CHUNKED or not set(filters) <= _KNOWN:
        raise FaultError(values.name, "texts in an unusual HDF5 layout found", _FIX)
    size = math.prod(properties.get_chunk()) * _PLACE.itemsize
    chunks: list[h5d.StoreInfo] = []
    values.id.chunk_iter(chunks.append)
    return b"".join(_chunk(values, chunk, filters, size) for chunk in chunks)


def _chunk(values: Values, chunk: h5d.StoreInfo, filters: list[int], size: int) -> bytes:
    """Return the bytes of one chunk without its filters."""
    mask, content = values.id.read_direct_chunk(chunk.chunk_offset)
    for bit, code in reversed(list(enumerate(filters))):
        if mask >> bit & 1:
            continue
        if code == h5z.FILTER_FLETCHER32:
            content = content[:-4]
        elif code == h5z.FILTER_DEFLATE:
            content = inflated(content, size + 5)
        elif len(content) == size:
            content = np.frombuffer(content, np.uint8).reshape(_PLACE.itemsize, -1).T.tobytes()
    if len(content) != size:
        raise FaultError(values.name, f"damaged HDF5 (a chunk does not hold {size} bytes)", AGAIN)
    return bytes(content)
