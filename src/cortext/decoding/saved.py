"""Reading and decoding of logits that any program saved as .npz, .npy or HDF5.

Log-probabilities are taken for logits, too: log-softmax is the identity for them. Other numbers
are read where they are named; `cortext.decoding.log_probs.SCORES` lists them.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import h5py
import numpy as np
from h5py import h5d

from cortext.arguments import as_path, check_type
from cortext.data import hdf5_input
from cortext.data.checks import LIMITS, FaultError
from cortext.data.hdf5_chunks import Values
from cortext.decoding.decoder import Decoder
from cortext.decoding.log_probs import (
    FEWEST_FRAMES,
    LOGITS,
    as_logits,
    check_kind,
    doubts,
    kind_of,
    unlike,
)
from cortext.decoding.nbest import NBest
from cortext.decoding.options import is_finite
from cortext.errors import DecodingError
from cortext.files import atomic_stream, check_writable, disk_errors
from cortext.tables import sentence_table
from cortext.text.inventory import Inventory, get_inventory

LENGTHS = "lengths"
"""Name of the array with the number of frames of each trial of a batch."""

UNPAD = "where it is padding, save the trial without it"

MOST_BYTES = 2 << 30
"""Most bytes of all arrays of a file: an hour of speech takes 15 MB."""
_MOST_HEADER = 1 << 16  # bytes; NumPy's own headers have 128
_MOST_FILL = 1 << 16  # bytes that may be declared and not written

# NumPy and h5py raise almost anything on damaged files: TokenError, TypeError, BadZipFile, ...
_DAMAGE = Exception


@dataclass(frozen=True)
class SavedTrial:
    """Frames of one trial as they were saved.

    Attributes:
        name: Name of the array, or the trial's number in a batch.
        logits_PV: Float [P, V].
    """

    name: str
    logits_PV: np.ndarray


def read_saved(
    path: str | Path, inventory: Inventory | str, scores: str = LOGITS
) -> list[SavedTrial]:
    """Read the trials of a file.

    They come in the order of the file for `.npz`, and sorted by name for `.h5` and `.hdf5`.

    `.npz`: an array [P, V] per trial, or one array [B, P, V] and an integer array `lengths` [B]
    `.h5`, `.hdf5`: the same as datasets, in groups or not
    `.npy`: one array [P, V], named as the file

    V must be the size of `inventory`, in whose order the tokens are; nothing is guessed or
    reordered. Raises DecodingError that names the file and the trial for anything else, for NaN and
    infinity (-inf is allowed), for files that hold Python objects, and for arrays that declare more
    than the file has or more than `MOST_BYTES`.

    Args:
        path: The file.
        inventory: Tokens of the columns, in order, or the name of a built-in inventory.
        scores: Kind of the numbers, a key of `cortext.decoding.log_probs.SCORES`. The trials get
            logits. Numbers that are recognised as another kind raise DecodingError.
    """
    path = as_path(path, "path")
    inventory = get_inventory(inventory)
    check_kind(scores)
    readers = {".npz": _read_npz, ".npy": _read_npy, ".h5": _read_hdf5, ".hdf5": _read_hdf5}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise DecodingError(
            f"the suffix {path.suffix!r} is not known", where=path, fix=f"use {', '.join(readers)}"
        )
    if not path.is_file():
        raise DecodingError("no such file", where=path)
    try:
        arrays = reader(path)
    except DecodingError:
        raise
    except _DAMAGE as error:
        raise DecodingError(f"cannot be read: {error}", where=path, fix="save it anew") from None
    trials = list(_trials(arrays, path))
    if not trials:
        raise DecodingError("holds no trials", where=path)
    for trial in trials:
        _check_array(trial, inventory, path)
    _check_kinds(trials, scores, path)
    trials = [SavedTrial(each.name, as_logits(each.logits_PV, scores)) for each in trials]
    for trial in trials:
        _check_logits(trial, path)
    return trials


def to_log_probs(logits_PV: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Return the log-softmax of logits / temperature, float32 [P, V], C-contiguous."""
    check_type(logits_PV, np.ndarray, "logits", "a NumPy array [frames, tokens]")
    if logits_PV.ndim != 2 or logits_PV.dtype.kind not in "fiu":
        found = f"logits are of shape {list(logits_PV.shape)} and type {logits_PV.dtype}"
        raise DecodingError(f"{found}; numbers [frames, tokens] are needed")
    if not (is_finite(temperature) and temperature > 0):
        raise DecodingError(f"temperature is {temperature}; a number above 0 is needed")
    x_PV = logits_PV.astype(np.float64)
    with np.errstate(over="ignore"):  # a number too small for float32 becomes -inf
        if len(x_PV):
            x_PV = (x_PV - x_PV.max(axis=1, keepdims=True)) / temperature
            x_PV -= np.log(np.exp(x_PV).sum(axis=1, keepdims=True))
        return np.ascontiguousarray(x_PV, dtype=np.float32)


def decode_saved(
    path: str | Path,
    order: Inventory | str,
    decoder: Decoder,
    out: str | Path,
    *,
    scores: str = LOGITS,
    temperature: float = 1.0,
    threads: int = 1,
    context: str = "",
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> dict[str, NBest]:
    """Decode the trials of a saved file, write `id,text` rows to `out`, and return the lists.

    Errors are those of `read_saved`, `to_log_probs` and `Decoder.decode_batch`, and a
    LanguageModelError where the language model is of other tokens.

    Args:
        path: The saved file; see `read_saved`.
        order: Tokens of the columns, in order: an `Inventory`, or the name of a built-in one.
        decoder: The decoder.
        out: CSV file to write, or text file (`.txt`).
        scores: Kind of the numbers; see `read_saved`.
        temperature: Divisor of the logits, above 0; see `to_log_probs`.
        threads: Number of threads that decode.
        context: See `Decoder.stream`; the same for all trials.
        progress: Called with trials done and in all.
        note: Called with a line for each doubt about the numbers (`doubts`).

    Returns:
        The n-best list of each trial by its name, in the order of `read_saved`.
    """
    out = Path(out)
    inventory = get_inventory(order)
    if out.is_dir():
        raise DecodingError("is a directory; the name of a CSV file is needed", where=out)
    decoder.lm.require(inventory, theirs=f"the order of {path}")
    trials = read_saved(path, inventory, scores)
    for line in doubts([trial.logits_PV for trial in trials], inventory):
        note(f"{path}: {line}")
    log_probs = [to_log_probs(trial.logits_PV, temperature) for trial in trials]
    check_writable(out)  # before the work
    found = decoder.decode_batch(log_probs, inventory, threads, progress, context)
    results = {trial.name: nbest for trial, nbest in zip(trials, found, strict=True)}
    rows = [(name, nbest[0].text) for name, nbest in results.items()]
    with disk_errors(out), atomic_stream(out) as file:
        file.write(sentence_table(out, rows))
    return results


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    total = 0
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                where = f"{path}, trial {entry.filename}"
                with archive.open(entry) as member:
                    declared = _declared_bytes(member, entry.file_size, where)
                # NumPy would return such an entry as bytes, of any size that it inflates to.
                if declared is None:
                    raise DecodingError(
                        "is no array", where=where, fix="save the file with numpy.savez"
                    )
                total += declared
                _check_total(total, path)
    with path.open("rb") as opened:  # NumPy leaves a damaged file open
        file = np.load(opened, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise DecodingError(
                "is no .npz file", where=path, fix="name it .npy if it holds one array"
            )
        return {name: _array(file, name, path) for name in file.files}


def _declared_bytes(file: IO[bytes], n_bytes: int, where: str | Path) -> int | None:
    """Return the bytes of numbers that an .npy file declares; None for other files.

    NumPy takes memory for all of them before it reads the first. Raises DecodingError where the
    file is shorter.
    """
    start = file.read(12)
    if not start.startswith(np.lib.format.MAGIC_PREFIX):
        return None
    if (
        int.from_bytes(start[8:10] if start[6:7] == b"\x01" else start[8:12], "little")
        > _MOST_HEADER
    ):
        raise DecodingError("has a header of no array", where=where)
    file.seek(0)
    version = np.lib.format.read_magic(file)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read(file)
    declared = math.prod(shape) * dtype.itemsize
    if declared > n_bytes or min(shape, default=0) < 0:
        what = f"declares {declared:,} bytes; the file has {n_bytes:,}"
        raise DecodingError(what, where=where, fix="save it anew")
    return declared


def _check_total(n_bytes: int, path: Path) -> None:
    if n_bytes > MOST_BYTES:
        raise DecodingError(
            f"holds more than {MOST_BYTES:,} bytes of arrays", where=path, fix="save several files"
        )


def _read_npy(path: Path) -> dict[str, np.ndarray]:
    with path.open("rb") as opened:
        _check_total(_declared_bytes(opened, path.stat().st_size, path) or 0, path)
    array = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        array.close()
        raise DecodingError(
            "is no .npy file", where=path, fix="name it .npz if it holds several arrays"
        )
    return {path.stem: array}


def _read_hdf5(path: Path) -> dict[str, np.ndarray]:
    names: list[str] = []
    try:
        with hdf5_input.opened(path) as file:
            file.visititems(
                lambda name, item: (
                    names.append(str(name)) if isinstance(item, h5py.Dataset) else None
                )
            )
            names.sort(key=natural_key)
            datasets = [hdf5_input.own_values(file[name].id, name) for name in names]
            _check_total(sum(_stored_bytes(values, path) for values in datasets), path)
            return {
                name: (
                    hdf5_input.first_rows(values, values.shape[0], LIMITS)
                    if values.layout == h5d.CHUNKED
                    else _array(file, name, path)
                )
                for name, values in zip(names, datasets, strict=True)
            }
    except FaultError as fault:
        where = f"{path}, trial {fault.field}" if fault.field else path
        raise DecodingError(fault.message, where=where) from None


def _stored_bytes(values: Values, path: Path) -> int:
    """Return the bytes of a dataset's numbers.

    Raises:
        DecodingError: For other than numbers, and for numbers that were never written: such a file
            of a few bytes could declare more than the memory holds.
    """
    where = f"{path}, trial {values.name}"
    if values.dtype.kind not in "fiu" or values.id.shape is None:
        raise DecodingError(f"has type {values.dtype}; an array of numbers is needed", where=where)
    n_bytes = math.prod(values.shape) * values.n_bytes
    if n_bytes > _MOST_FILL and not values.id.get_storage_size():
        raise DecodingError(
            f"declares {n_bytes:,} bytes, none of which was ever written", where=where
        )
    return n_bytes


def _array(file: Any, name: str, path: Path) -> np.ndarray:
    """Return one array of a file."""
    try:
        return np.asarray(file[name][()])
    except _DAMAGE as error:
        raise DecodingError(
            f"cannot be read: {error}",
            where=f"{path}, trial {name}",
            fix="save it as an array of numbers",
        ) from None


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts `trial_9` before `trial_10`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _trials(arrays: dict[str, np.ndarray], path: Path) -> Iterator[SavedTrial]:
    """Yield one trial per array, or the trials of a batch without the frames that do not count."""
    lengths = next((name for name in arrays if name.rpartition("/")[2] == LENGTHS), None)
    if lengths is None:
        for name, array in arrays.items():
            if array.ndim == 3:
                raise DecodingError(
                    f"has shape {list(array.shape)}: a batch, without its lengths",
                    where=f"{path}, trial {name}",
                    fix=(
                        f"save the number of frames of each trial as {LENGTHS!r}, or one array [P,"
                        " V] per trial"
                    ),
                )
            yield SavedTrial(name, array)
        return
    batches = [name for name in arrays if name != lengths]
    if len(batches) != 1 or arrays[batches[0]].ndim != 3:
        raise DecodingError(
            f"has {LENGTHS!r}, but not one array [B, P, V] beside it",
            where=path,
            fix="save one batch per file",
        )
    batch_BPV = arrays[batches[0]]
    lengths_B = arrays[lengths]
    if lengths_B.shape != batch_BPV.shape[:1] or lengths_B.dtype.kind not in "iu":
        raise DecodingError(
            f"{LENGTHS!r} is {lengths_B.dtype} of shape {list(lengths_B.shape)}; {len(batch_BPV)}"
            " integers are needed",
            where=path,
        )
    for number, (logits_PV, length) in enumerate(zip(batch_BPV, lengths_B.tolist(), strict=True)):
        if not 0 <= length <= len(logits_PV):
            raise DecodingError(
                f"its length is {length}; the batch has {len(logits_PV)} frames",
                where=f"{path}, trial {number}",
            )
        yield SavedTrial(str(number), logits_PV[:length])


def _check_array(trial: SavedTrial, inventory: Inventory, path: Path) -> None:
    """Raise DecodingError unless an array has numbers [P, V] for the inventory's tokens."""
    scores_PV = trial.logits_PV
    where = f"{path}, trial {trial.name}"
    if scores_PV.dtype.kind != "f" or scores_PV.dtype.itemsize > 8:
        raise DecodingError(
            f"has type {scores_PV.dtype}; float16, float32 or float64 is needed", where=where
        )
    if scores_PV.ndim != 2 or scores_PV.shape[1] != len(inventory):
        is_turned = scores_PV.ndim == 2 and scores_PV.shape[0] == len(inventory)
        raise DecodingError(
            f"has shape {list(scores_PV.shape)}; [frames, {len(inventory)}] is needed for the"
            f" tokens of order {inventory.name!r}",
            where=where,
            fix="save it transposed" if is_turned else None,
        )
    if (nan_P := np.isnan(scores_PV).any(axis=1)).any():
        raise DecodingError(
            f"has NaN or infinity, first in frame {int(nan_P.argmax())}", where=where, fix=UNPAD
        )


def _check_kinds(trials: Sequence[SavedTrial], scores: str, path: Path) -> None:
    """Raise DecodingError where numbers of a trial are of another kind than the given one.

    Trials too short to tell are judged together.
    """
    short = [each for each in trials if len(each.logits_PV) < FEWEST_FRAMES]
    wrong = [(trial, why) for trial in trials if (why := unlike(trial.logits_PV, scores))]
    if short and not wrong:
        joined = SavedTrial(short[0].name, np.concatenate([each.logits_PV for each in short]))
        wrong = [(joined, why) for why in [unlike(joined.logits_PV, scores)] if why]
    if not wrong:
        return
    trial, why = wrong[0]
    found = kind_of(trial.logits_PV)
    like_it = f", like {len(wrong) - 1} others" if len(wrong) > 1 else ""
    raise DecodingError(
        f"{why}{like_it}",
        where=f"{path}, trial {trial.name}",
        fix=f"give them by name: --scores {found or LOGITS}, in Python scores={found or LOGITS!r}",
    )


def _check_logits(trial: SavedTrial, path: Path) -> None:
    """Raise DecodingError for infinite logits, and where no token is possible in a frame."""
    where = f"{path}, trial {trial.name}"
    high_P = np.isposinf(trial.logits_PV).any(axis=1)
    if high_P.any():
        raise DecodingError(
            f"has NaN or infinity, first in frame {int(high_P.argmax())}", where=where
        )
    empty_P = np.isneginf(trial.logits_PV).all(axis=1)
    if empty_P.any():
        raise DecodingError(
            f"leaves no token possible in frame {int(empty_P.argmax())}", where=where, fix=UNPAD
        )
