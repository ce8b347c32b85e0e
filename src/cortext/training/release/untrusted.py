"""Files of `torch.save` from any source, read without running anything that they hold.

Such a file is a zip archive with a pickle, and a pickle is a program. torch's restricted unpickler
knows tensors and plain containers. The release's checkpoints also hold a number as `numpy.float64`:
two stand-ins of this module take the places of NumPy's dtype and scalar. NumPy itself is not
called, because its dtypes accept any state.
"""

from __future__ import annotations

import pickle
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import torch

from cortext.errors import RunError
from cortext.files import MOST_LEVELS

FIX = "give a checkpoint that the release's trainer wrote"
_MOST_OBJECTS = 1_000_000
_LARGEST_PICKLE = 64 << 20


def read_torch_file(path: Path) -> Any:
    """Read a file of `torch.save` that holds plain containers, numbers, texts and tensors.

    Tensors are on the CPU and are read from the file when they are first used.

    Raises:
        RunError: For a file that is damaged, holds other types, or claims to hold more than its
            length allows.
    """
    _check_archive(path)
    try:
        with torch.serialization.safe_globals(_STAND_INS):
            content = torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # an untrusted pickle can raise any error in its reader
        raise RunError(_reason(error), where=path, fix=FIX) from None
    _check_content(content, path)
    return content


class _NumpyDtype:
    """Stand-in for `numpy.dtype`: the type of one little-endian number."""

    def __init__(self, code: Any, *_: Any) -> None:
        if code not in _FORMATS:
            raise ValueError(f"a number of NumPy's type {code!r}")
        self.code = code

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", "|"):
            raise ValueError("a number of NumPy that is not little-endian")


_FORMATS = {"f8": "<d", "f4": "<f", "f2": "<e", "i8": "<q", "i4": "<i", "b1": "<?"}


def _numpy_scalar(dtype: Any, content: Any) -> float | int | bool:
    """Return a plain number from bytes; the stand-in for NumPy's function that makes a scalar."""
    if type(dtype) is not _NumpyDtype or type(content) is not bytes:
        raise ValueError("a NumPy scalar that is not a number")
    number: float | int | bool = struct.unpack(_FORMATS[dtype.code], content)[0]
    return number


_STAND_INS: list[Any] = [
    (_NumpyDtype, "numpy.dtype"),
    (_numpy_scalar, "numpy.core.multiarray.scalar"),  # NumPy 1
    (_numpy_scalar, "numpy._core.multiarray.scalar"),  # NumPy 2
]


def _check_archive(path: Path) -> None:
    """Raise RunError unless the file is a whole, uncompressed archive.

    Its entries together are then no larger than the file.
    """
    try:
        length = path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except OSError as error:
        raise RunError(f"cannot be read: {error.strerror}", where=path, fix=FIX) from None
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        what = "is empty" if not length else "is not a file of torch.save, or not all of it"
        raise RunError(what, where=path, fix="copy the file again") from None
    names = [entry.filename for entry in entries]
    if not any(name.endswith("/data.pkl") for name in names):
        raise RunError("is a zip archive, but not one of torch.save", where=path, fix=FIX)
    packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
    if packed or len(set(names)) < len(names) or sum(entry.file_size for entry in entries) > length:
        raise RunError("its archive is not as torch.save writes it", where=path, fix=FIX)
    if (
        max(entry.file_size for entry in entries if entry.filename.endswith(".pkl"))
        > _LARGEST_PICKLE
    ):
        raise RunError("holds far more objects than a checkpoint does", where=path, fix=FIX)


def _reason(error: Exception) -> str:
    """Return one line about an error, with the name of the first object that is not data."""
    text = str(error)
    if name := re.search(r"GLOBAL ([\w.]+)", text):
        return f"refused: it asks for {name[1]}, which is not data; nothing of it was run"
    if isinstance(error, ValueError) and "NumPy" in text:
        return f"refused: it holds {text}"
    # torch's own message says how to run the file's content: do not pass it on.
    if isinstance(error, pickle.UnpicklingError):
        return "refused: it holds something that is not data; nothing of it was run"
    return (
        f"cannot be read as a checkpoint: {type(error).__name__}:"
        f" {(text.splitlines() or [''])[0][:200]}"
    )


def _check_content(content: Any, path: Path) -> None:
    """Raise RunError for unknown types, too many or too deep objects, and too large tensors."""
    left = [(content, 0)]
    n_objects = 0
    n_bytes = 0
    length = path.stat().st_size
    while left:
        item, level = left.pop()
        n_objects += 1
        inner: list[Any] = []
        if isinstance(item, torch.Tensor):
            if item.layout != torch.strided or item.device.type != "cpu" or item.is_quantized:
                raise RunError("holds a tensor that is not a plain array", where=path, fix=FIX)
            n_bytes += item.numel() * item.element_size()
        elif isinstance(item, dict):
            inner = [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            inner = list(item)
        elif isinstance(item, int) and not -(1 << 63) <= item < 1 << 64:
            raise RunError(
                "holds an integer beyond 64 bits, which no checkpoint does", where=path, fix=FIX
            )
        elif not isinstance(item, str | int | float | bool | None):
            raise RunError(
                f"holds a {type(item).__name__}, which no checkpoint does", where=path, fix=FIX
            )
        left += [(each, level + 1) for each in inner]
        # Containers may hold each other many times, and a tensor may repeat one number any number
        # of times.
        if n_objects + len(left) > _MOST_OBJECTS or n_bytes > length or level > MOST_LEVELS:
            what = f"claims to hold far more than its length, or has more than {MOST_LEVELS} levels"
            raise RunError(what, where=path, fix=FIX)
