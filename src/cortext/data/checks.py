"""Checks of a recording, and the messages about its faults.

A fault found in a trial becomes a `Problem`: either raised as a DataError of one line
(`Problem.error()`), or collected where bad trials are left out (`skip_bad`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cortext.data.conventions import Conventions
from cortext.data.outliers import features_named
from cortext.data.trial import BIN_MS, most_labels
from cortext.errors import DataError, shown
from cortext.memory import free_bytes
from cortext.text.inventory import RELEASE, Inventory

FLOAT16_MAX = 65504.0
_ALWAYS_FREE = 1 << 26
"""Bytes that are taken without a check of the free memory."""
SKIP_HINT = "or leave it out with --skip-bad"


@dataclass(frozen=True, slots=True)
class PatchGeometry:
    """Length and stride of a model's patches in bins, which bound the length of a label.

    The defaults are the published baseline's.
    """

    size: int = 14
    stride: int = 4

    def n_patches(self, n_bins: int) -> int:
        """Return the number of patches (CTC frames) of a trial of `n_bins` bins."""
        return max(0, (n_bins - self.size) // self.stride + 1)


PATCH = PatchGeometry()
"""Patches of the published baseline."""
ANY_PATCH = PatchGeometry(1, 1)
"""The finest patches that a model can have: as many frames as bins."""


def patch_for(conventions: Conventions) -> PatchGeometry:
    """Return the patches that bound trials and labels.

    They are the published baseline's for the release's tokens and bins. Models of other tokens or
    bins choose their patches themselves: then only what no model can align is refused here, and
    training refuses what its own model cannot.
    """
    usual = conventions.inventory.is_published and conventions.bin_ms == BIN_MS
    return PATCH if usual else ANY_PATCH


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest trial that is read from a session file.

    The defaults are 20 minutes of 20 ms bins, and more features than any array has. The size that a
    file declares is compared with them before memory is taken; `bins * features` float32 values
    bound wider types.
    """

    bins: int = 60_000
    features: int = 16_384


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Problem:
    """The reason why a trial, or a whole file (`trial` is None), cannot be used.

    Attributes:
        file: Path of the session file.
        trial: Name of the trial's group (`trial_0003`).
        field: The dataset or attribute concerned.
        message: The value found, the value expected, and what to do.
    """

    file: str
    trial: str | None
    field: str | None
    message: str

    def __str__(self) -> str:
        return shown(
            ": ".join(part for part in (self.file, self.trial, self.field, self.message) if part)
        )

    def error(self) -> DataError:
        """Return the problem as a DataError whose text is the problem's one line."""
        where = ": ".join(part for part in (self.file, self.trial, self.field) if part)
        return DataError(self.message, where=where)

    def to_json(self) -> dict[str, Any]:
        """Return the four fields."""
        return asdict(self)


OnBad = Callable[[Problem], None]


AGAIN = "copy or download the file again"
"""Advice for a damaged file."""


class FaultError(Exception):
    """A fault in one field of a trial; whoever opens the file adds the file and the trial."""

    def __init__(self, field: str | None, finding: str, fix: str) -> None:
        super().__init__(finding)
        self.field = field
        self.message = f"{finding}; {fix}"

    def problem(self, file: object, trial: str | None) -> Problem:
        """Return the fault with its place; a trial's line also says how to leave the trial out."""
        message = f"{self.message}, {SKIP_HINT}" if trial else self.message
        return Problem(str(file), trial, self.field, shown(message))


@contextmanager
def opening(path: Path) -> Iterator[None]:
    """Turn a failure to open a file within the context into a FaultError.

    Pipes are refused before: opening one would wait for somebody who writes into it. What a library
    raises about the content passes; it has no error number.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            if is_zarr(path):
                raise FaultError(None, ZARR, EXPORT_ZARR)
            raise FaultError(None, "is not a file but a folder, pipe or device", "check the path")
        yield
    except FileNotFoundError:
        if (fault := dead_link_fault(path)) is not None:
            raise fault from None
        raise FaultError(None, "no such file", "check the path") from None
    except OSError as error:
        if error.errno is None:
            raise
        finding = f"cannot be read: {os.strerror(error.errno)}"
        raise FaultError(None, finding, "check the path") from None


def dead_link(path: Path) -> Path | None:
    """Return the link on a path that leads nowhere: the file or a folder above; None without."""
    for each in (path, *path.parents):
        if each.is_symlink() and not each.exists():
            return each
    return None


def dead_link_fault(path: Path) -> FaultError | None:
    """Return the fault of a path with a link that leads nowhere; None without."""
    if (link := dead_link(path)) is None:
        return None
    which = "is" if link == path else f"its folder {link} is"
    finding = f"{which} a link to {link.readlink()}, which is not there"
    return FaultError(None, finding, "mount the disk that has it, or remove the link")


def is_lost_folder(path: Path) -> bool:
    """Return whether a path is a link to a folder of recordings that is not there.

    Such a folder's name has no suffix, or ends in a number, such as that of the day.
    """
    is_folder = not path.suffix or path.suffix[1:].isdigit()
    is_hidden = path.name.startswith(".")
    return is_folder and not is_hidden and path.is_symlink() and not path.exists()


ZARR = "is a Zarr folder, which is not read"
EXPORT_ZARR = "export it to HDF5, for NWB with NWBHDF5IO.export of pynwb"
ZARR_ZIP = ".zarr.zip"
"""End of the name of a Zarr folder in one file."""
_ZARR_FILES = (".zgroup", ".zattrs", ".zarray", ".zmetadata", "zarr.json")


def is_zarr(path: Path) -> bool:
    """Return whether a folder is an array or a group of Zarr, version 2 or 3."""
    return path.is_dir() and any((path / name).exists() for name in _ZARR_FILES)


def check_memory(field: str, n_bytes: int, fix: str) -> None:
    """Raise FaultError for an array that takes more than a third of the free memory."""
    if n_bytes < _ALWAYS_FREE:
        return
    free = free_bytes()
    if free is not None and n_bytes > free // 3:
        finding = f"{n_bytes / 1e9:,.1f} GB declared, at most {free / 3e9:,.1f} GB (a third of the"
        raise FaultError(field, f"{finding} free memory) expected", fix)


def frames_needed(labels_U: np.ndarray) -> int:
    """Return the fewest CTC frames for a label: one per token, and a blank between equal ones.

    CTC merges equal tokens of neighbouring frames: only a blank keeps two of them apart (Graves et
    al. 2006). With fewer frames no path writes the label, and torch's loss is infinite.
    """
    return len(labels_U) + int(np.count_nonzero(labels_U[1:] == labels_U[:-1]))


def check_features(
    features_TC: np.ndarray,
    n_features: int | None = None,
    *,
    max_abs: float | None = None,
    patch: PatchGeometry = PATCH,
) -> None:
    """Raise FaultError unless [T, C] holds `n_features` finite features of at least one patch.

    Args:
        features_TC: Float [T, C].
        n_features: The number of features expected; any by default.
        max_abs: Largest magnitude allowed (float16 ends at 65,504).
        patch: Its size is the shortest trial.
    """
    field = "input_features"
    n_bins, n_found = features_TC.shape
    if n_features is not None and n_found != n_features:
        fix = "give every trial of a dataset the same features"
        raise FaultError(
            field,
            f"{n_found} features found, {n_features} expected as in the dataset's other trials",
            fix,
        )
    if not n_found:
        raise FaultError(
            field, "0 features found, at least 1 expected", "write the recorded features"
        )
    if n_bins < patch.size:
        fix = "record longer trials"
        raise FaultError(
            field, f"{n_bins} bins found, at least {patch.size} (one patch) expected", fix
        )
    # Both are NaN where one value is; much faster than isfinite of all.
    low = float(features_TC.min())
    high = float(features_TC.max())
    if not np.isfinite(low + high):
        bad = np.argwhere(~np.isfinite(features_TC))
        bin_, feature = bad[0]
        n_found = (
            f"{len(bad)} NaN or Inf found, the first at bin {bin_} of feature {feature}; finite"
            " values expected"
        )
        fix = "replace them before writing the file"
        dead = np.flatnonzero(~np.isfinite(features_TC).any(axis=0)).tolist()
        if 0 < len(dead) < features_TC.shape[1]:
            fix = (
                f"{features_named(dead)} without any value: set to 0, or leave out of an"
                " import with columns:"
            )
        raise FaultError(field, n_found, fix)
    if max_abs is not None and max(-low, high) > max_abs:
        n_found = (
            f"a magnitude of {max(-low, high):g} found, at most {max_abs:g} (the end of float16)"
            " expected"
        )
        raise FaultError(field, n_found, "z-score the features")


def check_labels(
    labels_U: np.ndarray,
    n_bins: int,
    *,
    patch: PatchGeometry = PATCH,
    inventory: Inventory = RELEASE,
) -> None:
    """Check that a label has tokens only, fits in a file, and can be aligned by CTC.

    Args:
        labels_U: Tokens of the trial, int [U].
        n_bins: Length of the trial in bins.
        patch: Patches of the model; the published baseline's by default.
        inventory: Inventory of the tokens; the release's by default.

    Raises:
        FaultError: At the first of these faults.
    """
    field = "seq_class_ids"
    most = most_labels(inventory)
    last = len(inventory) - 1
    if not 0 < len(labels_U) <= most:
        raise FaultError(
            "seq_len", f"{len(labels_U)} found, 1 to {most} expected", "shorten the sentence"
        )
    outside = np.flatnonzero((labels_U < 1) | (labels_U > last))
    if outside.size:
        at = int(outside[0])
        raise FaultError(
            field,
            f"token {int(labels_U[at])} found at position {at}, 1 to {last} expected",
            f"use {numbers_of(inventory)} (0 is the CTC blank, which no label holds)",
        )
    needed = frames_needed(labels_U)
    patches = patch.n_patches(n_bins)
    if patches < needed:
        finding = (
            f"{n_bins} bins give {patches} patches, the label of {len(labels_U)} {inventory.unit}s"
            f" needs at least {needed}"
        )
        raise FaultError(
            "n_time_steps",
            finding,
            "the trial is too short for its label (CTC cannot align it): fix either",
        )


def numbers_of(inventory: Inventory) -> str:
    """Return the name of an inventory's numbers in messages."""
    if inventory.is_published:
        return "the release's phoneme numbers"
    return f"the {inventory.unit} numbers of inventory {inventory.name!r}"
