"""Files of `torch.save` from any source, read without running anything that they hold.

Such a file is a zip archive with a pickle, and a pickle is a program. Neither Python's unpickler
nor torch's restricted one runs here: 100 bytes make that one take any memory. The pickle is read as
data (`cortext_data.readers.files.pickles`), with two stand-ins for the functions that make tensors.
"""

from __future__ import annotations

import io
import mmap
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from cortext.errors import RunError
from cortext.files import MOST_LEVELS
from cortext_data.readers.files.pickles import DamagedError, RefusedError, interpret

FIX = "give a checkpoint that the release's trainer wrote"
_MOST_OBJECTS = 1_000_000
_MOST_TENSORS = 100_000
_MOST_AXES = 16
_MOST_SHARING = 4
"""Times that tensors may take the file's length: tied weights and views share their numbers."""
_LARGEST_PICKLE = 64 << 20
_LARGEST_DIRECTORY = 4 << 20
"""Longest list of an archive's entries: zipfile keeps half a kilobyte for 50 bytes of it."""
_KINDS = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}


def read_torch_file(path: Path) -> Any:
    """Read a file of `torch.save` that holds plain containers, numbers, texts and tensors.

    Tensors are on the CPU and are read from the file when they are first used.

    Raises:
        RunError: For a file that is damaged, holds other types, or claims to hold more than its
            length allows.
    """
    archive = _Archive(path)
    try:
        content = interpret(archive.read("data.pkl"), archive.names, archive.storage)
    except (RefusedError, DamagedError) as error:
        raise RunError(str(error), where=path, fix=FIX) from None
    _check_content(content, path)
    return content


@dataclass(frozen=True)
class _Storage:
    """Numbers of one type in the file, from byte `start` on."""

    dtype: torch.dtype
    start: int
    length: int


class _Archive:
    """The entries of one file, and the tensors that are made of them. Raises RunError."""

    def __init__(self, path: Path) -> None:
        entries = _entries(path)
        (program,) = (name for name in entries if name.endswith("/data.pkl"))
        self._folder = program.removesuffix("data.pkl")
        self._entries = entries
        self._n_tensors = 0
        with path.open("rb") as file:
            # torch takes only memory that can be written; writes stay in memory.
            self._content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        if entries[program].file_size > _LARGEST_PICKLE:
            raise RunError("holds far more objects than a checkpoint does", where=path, fix=FIX)
        try:
            if "byteorder" in self and self.read("byteorder") != b"little":
                raise RunError("its numbers are not little-endian", where=path, fix=FIX)
        except RefusedError as error:
            raise RunError(str(error), where=path, fix=FIX) from None

    def __contains__(self, name: str) -> bool:
        return self._folder + name in self._entries

    def read(self, name: str) -> bytes:
        """Return the content of an entry; raises RefusedError where the file does not hold it."""
        start, length = self._place(name)
        return self._content[start : start + length]

    @property
    def names(self) -> dict[str, Any]:
        """Names that the pickle of a checkpoint may hold beside plain data (`interpret`)."""
        storages = {f"torch.{name}Storage": kind for name, kind in _KINDS.items()}
        tensors = {"_rebuild_tensor_v2": self._tensor, "_rebuild_parameter": _parameter}
        return storages | {f"torch._utils.{name}": call for name, call in tensors.items()}

    def storage(self, named: Any) -> _Storage:
        """Return the numbers that a persistent id of torch names; raises RefusedError."""
        if type(named) is not tuple or len(named) != 5 or type(named[2]) is not str:
            raise RefusedError("it names no numbers of the file")
        dtype, length = getattr(named[1], "value", None), named[4]
        if type(dtype) is not torch.dtype or type(length) is not int:
            raise RefusedError("it names no numbers of the file")
        start, n_bytes = self._place(f"data/{named[2]}")
        if length * dtype.itemsize != n_bytes:
            raise RefusedError(f"it claims {length} numbers for {n_bytes} bytes")
        if start % dtype.itemsize:
            raise RefusedError("its numbers are not aligned as torch.save aligns them")
        return _Storage(dtype, start, length)

    def _place(self, name: str) -> tuple[int, int]:
        """Return where the content of an entry begins in the file, and its length."""
        if name not in self:
            raise RefusedError("it names numbers that the file lacks")
        entry = self._entries[self._folder + name]
        head = self._content[entry.header_offset : entry.header_offset + 30]
        # The entry's own head has a name and padding of other lengths than the archive's list.
        lengths = (int.from_bytes(head[at : at + 2], "little") for at in (26, 28))
        start = entry.header_offset + 30 + sum(lengths)
        if start + entry.file_size > len(self._content):
            raise RefusedError("its archive ends early")
        return start, entry.file_size

    def _tensor(self, storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Any:
        """Return a tensor of a storage; the stand-in for torch's function.

        Size and stride are in numbers, not in bytes. What torch notes besides (`rest`: gradient,
        hooks) is not needed.
        """
        if type(storage) is not _Storage or type(size) is not tuple or type(stride) is not tuple:
            raise RefusedError("it makes a tensor of what are no numbers")
        numbers = (offset, *size, *stride)
        if len(size) != len(stride) or len(size) > _MOST_AXES:
            raise RefusedError("it makes a tensor without a shape")
        is_plain = all(each is None or (type(each) is dict and not each) for each in rest[2:])
        if not all(type(n) is int and n >= 0 for n in numbers) or not is_plain:
            raise RefusedError("it makes a tensor that is no plain array")
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        # A tensor may repeat one number any number of times: it is then larger than its storage.
        is_larger = prod(size) and (last >= storage.length or prod(size) > storage.length)
        if is_larger or max(numbers) > len(self._content):
            raise RefusedError("a tensor claims to hold far more than its part of the file")
        self._n_tensors += 1
        if self._n_tensors > _MOST_TENSORS:
            raise RefusedError("it makes more tensors than a checkpoint has")
        if not prod(size):
            return torch.empty(size, dtype=storage.dtype)
        whole = torch.frombuffer(
            self._content, dtype=storage.dtype, count=storage.length, offset=storage.start
        )
        return whole.as_strided(size, stride, offset)


def _parameter(tensor: Any, *_: Any) -> torch.Tensor:
    """Return the tensor of a parameter; the stand-in for torch's function."""
    if type(tensor) is not torch.Tensor:
        raise RefusedError("it makes a parameter of what is no tensor")
    return tensor


class _Bounded(io.FileIO):
    """A file of which zipfile reads no long list of entries."""

    def read(self, size: int | None = -1, /) -> Any:
        if size is not None and size > _LARGEST_DIRECTORY:
            raise zipfile.BadZipFile
        return super().read(size)


def _entries(path: Path) -> Mapping[str, zipfile.ZipInfo]:
    """Return the entries of an archive by name; they are together no larger than the file.

    Raises RunError unless it is a whole, uncompressed archive of `torch.save`.
    """
    try:
        length = path.stat().st_size
        with _Bounded(path) as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except OSError as error:
        raise RunError(f"cannot be read: {error.strerror}", where=path, fix=FIX) from None
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        problem = "is empty" if not length else "is not a file of torch.save, or not all of it"
        raise RunError(problem, where=path, fix="copy the file again") from None
    names = [entry.filename for entry in entries]
    if not any(name.endswith("/data.pkl") for name in names):
        raise RunError("is a zip archive, but not one of torch.save", where=path, fix=FIX)
    plain = all(
        entry.compress_type == zipfile.ZIP_STORED and not entry.flag_bits & 1 for entry in entries
    )
    is_one = sum(name.endswith("/data.pkl") for name in names) == 1 and len(set(names)) == len(
        names
    )
    if not plain or not is_one or sum(entry.file_size for entry in entries) > length:
        raise RunError("its archive is not as torch.save writes it", where=path, fix=FIX)
    return dict(zip(names, entries, strict=True))


def _check_content(content: Any, path: Path) -> None:
    """Raise RunError for unknown types, too many or too deep objects, and too large tensors."""
    left = [(content, 0)]
    n_objects = 0
    n_bytes = 0
    most_bytes = _MOST_SHARING * path.stat().st_size
    while left:
        item, level = left.pop()
        n_objects += 1
        inner: list[Any] = []
        if isinstance(item, torch.Tensor):
            n_bytes += item.numel() * item.element_size()
        elif isinstance(item, dict):
            inner = [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            inner = list(item)
        elif type(item) not in (str, int, float, bool, type(None)):
            raise RunError(
                f"holds a {type(item).__name__}, which no checkpoint does", where=path, fix=FIX
            )
        left += [(each, level + 1) for each in inner]
        # Containers may hold each other many times, and tensors may share their numbers.
        if n_objects + len(left) > _MOST_OBJECTS or n_bytes > most_bytes or level > MOST_LEVELS:
            problem = (
                f"claims to hold far more than its length, or has more than {MOST_LEVELS} levels"
            )
            raise RunError(problem, where=path, fix=FIX)
