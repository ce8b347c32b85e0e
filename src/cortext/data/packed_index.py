"""The index of a packed directory: `index.json` and `index.npz`, with checksums.

A checksum finds accidents. Who changes an index on purpose changes the checksum, too; so each value
that could name another file, leave an array or take memory is checked before it is used.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from cortext.data.checks import dead_link_fault
from cortext.data.conventions import RELEASE_CONVENTIONS, Conventions
from cortext.data.trial import SPLITS, most_labels
from cortext.errors import DataError, TextError
from cortext.files import is_plain_name, parse_json_object, read_json
from cortext.temporaries import restore
from cortext.text.inventory import Inventory

FORMAT = "cortext-packed"
FORMAT_VERSION = 1
AGAIN = "pack the session files again"
_JSON = "index.json"
_ARRAYS = "index.npz"
_MOST_BYTES = 1 << 28  # of the arrays; 1,000,000 trials take half of it
_MOST_FEATURES = 1 << 24  # and 2^31 bins: no size in bytes is beyond 64 bits
_NUMBERS = ("n_bins", "day", "block", "trial", "n_labels")
_RECORDS = ("file", "byte")
_DAMAGE = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TokenError,
    TypeError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""Errors that the readers of JSON, zip archives and arrays raise for damaged files."""


PACKED_FILES = (_JSON, _ARRAYS, "*.f16", "*.tfrecord")
"""Names of all files of a packed directory."""


def is_packed(path: Path) -> bool:
    """Return whether `path` is a packed directory."""
    restore(path)
    # A link that leads nowhere stays, and is named when it is opened.
    return (path / _JSON).is_file() or (path / _JSON).is_symlink()


def write_index(
    folder: Path,
    index: dict[str, Any],
    arrays: Mapping[str, np.ndarray],
    conventions: Conventions = RELEASE_CONVENTIONS,
) -> None:
    """Write `index.json` and `index.npz`.

    Args:
        folder: Packed directory.
        index: Content of `index.json`, without its checksum.
        arrays: Content of `index.npz`.
        conventions: Tokens, language and length of a bin; they are written where they differ from
            the release's.
    """
    np.savez(folder / _ARRAYS, allow_pickle=False, **arrays)
    if differing := conventions.to_json():
        # A text: the index sorts its keys, and the order of an inventory's groups has a meaning.
        index = index | {"conventions": json.dumps(differing, ensure_ascii=False)}
    index = index | {"arrays": _digest((folder / _ARRAYS).read_bytes())}
    outer = {"format": FORMAT, "format_version": FORMAT_VERSION, "checksum": _digest(_dump(index))}
    (folder / _JSON).write_bytes(_dump(outer | {"index": index}))


def read_index(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray], Conventions]:
    """Read and check the index of a packed directory, its arrays by name, and its conventions.

    Raises DataError.
    """
    if not is_packed(path):
        problem = f"not a packed directory (no {_JSON})" if path.is_dir() else "no such directory"
        raise DataError(problem, where=path, fix="make one with cortext pack")
    for name in (_JSON, _ARRAYS):
        if (fault := dead_link_fault(path / name)) is not None:
            raise fault.problem(path / name, None).error()
    try:
        outer = read_json(path / _JSON)
        if outer.get("format") != FORMAT or outer.get("format_version") != FORMAT_VERSION:
            problem = (
                f"format {outer.get('format')!r} version {outer.get('format_version')!r} found"
            )
            raise DataError(
                f"{problem}, {FORMAT!r} version {FORMAT_VERSION} expected", where=path, fix=AGAIN
            )
        _need((path / _ARRAYS).is_file(), f"no file {_ARRAYS}")
        _need((path / _ARRAYS).stat().st_size <= _MOST_BYTES, f"{_ARRAYS} has more than 256 MiB")
        index = outer["index"]
        content = (path / _ARRAYS).read_bytes()
        _need(
            _digest(_dump(index)) == outer["checksum"] and _digest(content) == index["arrays"],
            "another checksum",
        )
        arrays = _arrays(content, index["splits"])
        _check(index)
        conventions = _conventions(index)
        for name, entry in index["splits"].items():
            _check_split(
                {key.removeprefix(f"{name}/"): array for key, array in arrays.items()},
                entry,
                index,
                conventions.inventory,
            )
    except _DAMAGE as error:
        raise DataError(
            f"the index is damaged ({error or type(error).__name__})", where=path, fix=AGAIN
        ) from None
    return index, arrays, conventions


def _arrays(content: bytes, splits: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Read the arrays that the splits need.

    They must not be compressed, so that they take no more memory than the file.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as members:
        stored = all(member.compress_type == zipfile.ZIP_STORED for member in members.infolist())
        _need(stored, f"{_ARRAYS} is compressed")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return {
            f"{split}/{name}": arrays[f"{split}/{name}"]
            for split, entry in splits.items()
            for name in (*_NUMBERS, "labels", *(_RECORDS if "records" in entry else ()))
        }


def _check(index: Mapping[str, Any]) -> None:
    _need(
        all(is_plain_name(name) for name in index["sessions"]),
        "a session's name is no name of a folder",
    )
    _need(
        _integer(index["n_features"], 1) and index["n_features"] < _MOST_FEATURES,
        "n_features out of range",
    )
    _need(set(index["splits"]) <= set(SPLITS), "another split than train, val and test")
    _need(
        all(_text(name) and _integer(day) for name, day in index["post_implant_day"].items()),
        "post_implant_day",
    )
    _need(_text(index["source"]) and "\0" not in index["source"], "the source is no path")
    _need(
        all(_integer(size) and _integer(at) for size, at in index["source_files"].values()),
        "source_files",
    )
    _need(all(_text(note) for note in index.get("notes", [])), "notes")
    for problem in index["bad_trials"]:
        _need(
            _text(problem["file"]) and _text(problem["message"]) and len(problem) == 4, "bad_trials"
        )
        _need(
            all(problem[name] is None or _text(problem[name]) for name in ("trial", "field")),
            "bad_trials",
        )


def _conventions(index: Mapping[str, Any]) -> Conventions:
    text = index.get("conventions", "{}")
    _need(_text(text), "conventions")
    try:
        return Conventions.from_json(parse_json_object(text))
    except (DataError, TextError) as error:
        raise ValueError(f"conventions: {error.what}") from None


def _check_split(
    arrays: Mapping[str, np.ndarray],
    entry: Mapping[str, Any],
    index: Mapping[str, Any],
    inventory: Inventory,
) -> None:
    numbers = [arrays[name] for name in (*_NUMBERS, *(_RECORDS if "records" in entry else ()))]
    n_bins_N, day_N, _, _, n_labels_N, *records = numbers
    n_trials = len(n_bins_N)
    _need(
        all(array.shape == (n_trials,) and array.dtype == np.int64 for array in numbers),
        "numbers of another kind",
    )
    _need(1 <= n_bins_N.min(initial=1) <= n_bins_N.max(initial=1) < 2**31, "n_bins out of range")
    _need(
        0 <= day_N.min(initial=0) <= day_N.max(initial=0) < len(index["sessions"]),
        "a day without a session",
    )
    _need(
        0 <= n_labels_N.min(initial=0) <= n_labels_N.max(initial=0) <= most_labels(inventory),
        "n_labels out of range",
    )
    labels = arrays["labels"]
    _need(
        labels.dtype == np.int16 and labels.shape == (n_labels_N.sum(),), "labels of another number"
    )
    _need(
        1 <= labels.min(initial=1) <= labels.max(initial=1) < len(inventory),
        f"a label that is no {inventory.unit}",
    )
    _need(_integer(entry["crc32"]), "crc32 is no number")
    for texts in (entry["sentences"], entry["corpora"]):
        _need(
            len(texts) == n_trials and all(text is None or _text(text) for text in texts),
            "texts of another kind",
        )
    if records:
        file_N, byte_N = records
        _check_records(entry["records"], file_N, byte_N, n_bins_N * (2 * index["n_features"]))


def _check_records(
    sizes: Mapping[str, Any], file_N: np.ndarray, byte_N: np.ndarray, n_bytes_N: np.ndarray
) -> None:
    """Raise ValueError unless every trial lies within its TFRecord file."""
    plain = all(is_plain_name(name) and _integer(size, 1) for name, size in sizes.items())
    _need(plain, "records")
    in_a_file = 0 <= file_N.min(initial=0) <= file_N.max(initial=0) < len(sizes)
    _need(in_a_file, "a record in no file")
    last_N = np.array(list(sizes.values()), dtype=np.int64)[file_N] - n_bytes_N
    _need(bool(np.all((byte_N >= 0) & (byte_N <= last_N))), "a record beyond the end of its file")


def _need(right: bool, problem: str) -> None:
    if not right:
        raise ValueError(problem)


def _integer(value: Any, least: int = -(2**63)) -> bool:
    return type(value) is int and least <= value < 2**63


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def _dump(index: Mapping[str, Any]) -> bytes:
    """Return the index as text, always the same for the same content, so that it has a checksum.

    Paths may hold bytes that are not UTF-8; Python represents them as lone surrogates.
    """
    return json.dumps(index, ensure_ascii=False, sort_keys=True).encode(errors="surrogatepass")
