"""Tensors on disk: the safetensors format, with a checksum over everything in the file.

The format is a JSON header followed by the numbers. This module writes it itself, because the
library's writer makes files that only their owner may read, uses temporary names of its own, and
reports a full disk as text.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from cortext.errors import RunError
from cortext.files import atomic_file

_UNKNOWN = "00000000"
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str],
    keep: Path | None = None,
) -> str:
    """Write tensors of any device, one at a time, without a second copy of all in memory.

    Args:
        path: File to replace as a whole.
        tensors: Tensors by name.
        metadata: Texts by name for the header.
        keep: New name for the file that was at `path`; None replaces it.

    Returns:
        The checksum.

    Raises:
        RunError: If the file cannot be written (a full disk).
    """
    header, order = _header(tensors, metadata)
    with atomic_file(path, keep) as file:
        file.write(header)
        checksum = zlib.crc32(header)
        for name in order:
            content = _bytes(tensors[name])
            file.write(content)
            checksum = zlib.crc32(content, checksum)
        file.seek(header.index(f'"{_UNKNOWN}"'.encode()) + 1)
        file.write(f"{checksum:08x}".encode())
    return f"{checksum:08x}"


def read_tensors(
    path: Path, what: str = "the weights", fix: str = "copy the file again"
) -> tuple[dict[str, torch.Tensor], dict[str, str], str | None]:
    """Read a file of `write_tensors`, or another safetensors file.

    Args:
        path: The file.
        what: Its content, as messages name it.
        fix: What a person can do about a damaged file.

    Returns:
        Tensors and metadata by name, and the checksum. The checksum is None for a file that
        `write_tensors` did not write, whose content is not checked.

    Raises:
        RunError: For a file that is truncated, changed or of another format, and for tensors of a
            type that `write_tensors` does not write.
        FileNotFoundError: If there is no such file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except FileNotFoundError:
        raise
    # torch raises RuntimeError for a shape that no memory holds.
    except (SafetensorError, OSError, RuntimeError) as error:
        raise RunError(f"{what} cannot be read: {error}", where=path, fix=fix) from None
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            known = ", ".join(_DTYPES.values())
            raise RunError(
                f"{what} cannot be read: {name} has numbers of {tensor.dtype}, not {known}",
                where=path,
                fix=fix,
            )
    expected = metadata.pop("crc32", None)
    if expected is not None and expected != (own := _checksum(tensors, metadata)):
        damage = f"the checksum is {own}, {expected} was written"
        raise RunError(f"{what} cannot be read: {damage}", where=path, fix=fix)
    return tensors, metadata, expected


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata in a file's header, `crc32` included; its tensors are not read.

    Nothing where there is no such file, or none that can be read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError):
        return {}


def check_finite(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Raise RunError for the first tensor with NaN or infinity."""
    for name, tensor in tensors.items():
        if (
            tensor.numel()
            and tensor.is_floating_point()
            and not torch.stack(tensor.aminmax()).isfinite().all()
        ):
            problem = f"{name} has values that are not finite"
            raise RunError(
                problem,
                where=path,
                fix="take a model from before the training broke, or copy the file again",
            )


def _checksum(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> str:
    header, order = _header(tensors, metadata)
    checksum = zlib.crc32(header)
    for name in order:
        checksum = zlib.crc32(_bytes(tensors[name]), checksum)
    return f"{checksum:08x}"


def _header(
    tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
) -> tuple[bytes, list[str]]:
    """Return the header without its checksum, and the order of the tensors."""
    # Put wide numbers first, so that all are aligned.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    described: dict[str, Any] = {
        "__metadata__": {"crc32": _UNKNOWN} | dict(sorted(metadata.items()))
    }
    end = 0
    for name in order:
        tensor = tensors[name]
        begin = end
        end = end + tensor.numel() * tensor.element_size()
        described[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, order


def _bytes(tensor: torch.Tensor) -> memoryview:
    """Return the numbers of a tensor as bytes, without a copy if it is on the CPU."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
