"""Numbers and texts of an NWB file, read after a check of their types and sizes."""

from __future__ import annotations

import math
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5t

from cortext.data import hdf5_input
from cortext.data.checks import AGAIN, FaultError
from cortext.data.hdf5_attributes import check_text_lengths
from cortext.data.hdf5_chunks import Values
from cortext_data.readers.files.hdf5_text import are_texts, read_texts

EXPORT = "export the file again with pynwb or MatNWB"
_MOST_TEXT = 10_000  # characters of a cell of a table
_MOST_NAMES = 1 << 20  # bytes of the names of columns


def dataset(group: h5py.Group, name: str, field: str) -> Values:
    """Return the dataset of that name; raise FaultError where there is none."""
    opened = hdf5_input.member(group, name, field)
    if not isinstance(opened, h5d.DatasetID):
        raise FaultError(field, "dataset missing", EXPORT)
    return hdf5_input.own_values(opened, field)


def numbers(group: h5py.Group, name: str, field: str, most: int | None) -> Values:
    """Return a dataset of numbers in one dimension, at most `most`; see `is_vector`."""
    values = dataset(group, name, field)
    if not is_vector(values) or values.dtype.kind not in "iuf":
        finding = f"{values.dtype} of shape {values.shape} found, numbers in one dimension expected"
        raise FaultError(field, finding, EXPORT)
    if most is not None and length(values) > most:
        finding = f"{length(values)} numbers declared, at most {most} expected"
        raise FaultError(field, finding, EXPORT)
    return values


def is_vector(values: Values) -> bool:
    """Return whether values are in one dimension, or in two as MATLAB's rows and columns are."""
    return len(values.shape) == 1 or (len(values.shape) == 2 and 1 in values.shape)


def length(values: Values) -> int:
    """Return the number of values."""
    return math.prod(values.shape)


def read_all(values: Values) -> np.ndarray:
    """Read all values of a dataset in one dimension."""
    if not length(values):
        return np.empty(0, values.dtype)
    return hdf5_input.Boxes(values).read(*(slice(0, n) for n in values.shape)).ravel()


def read_whole(values: Values) -> np.ndarray:
    """Read all values of a dataset in one dimension as whole numbers, int64."""
    found_N = read_all(values)
    if found_N.dtype.kind == "f" and not np.isin(found_N % 1, 0).all():  # NaN is in nothing
        raise FaultError(values.name, "numbers found that are not whole", EXPORT)
    with np.errstate(invalid="ignore"):  # what int64 cannot hold becomes negative
        return found_N.astype(np.int64, copy=False)


def texts(values: Values) -> list[str]:
    """Return texts without the blanks that MATLAB and Fortran pad them with."""
    return [text(cell, values.name).rstrip(" ") for cell in read_texts(values)]


def text(cell: Any, field: str) -> str:
    """Return a text of the file; raise FaultError for anything else, and for a long one."""
    if isinstance(cell, bytes):
        try:
            cell = cell.decode()
        except UnicodeDecodeError:
            finding = f"{cell!r:.40} found, a text in UTF-8 expected"
            raise FaultError(field, finding, AGAIN) from None
    if not isinstance(cell, str):
        raise FaultError(field, f"{cell!r:.40} found, a text expected", EXPORT)
    if len(cell) > _MOST_TEXT:
        finding = f"{len(cell)} characters found, at most {_MOST_TEXT} expected"
        raise FaultError(field, finding, EXPORT)
    return cell


def scalar_text(file: h5py.File, path: str) -> str | None:
    """Return the text of a dataset with one value; None where there is none."""
    opened = hdf5_input.member(file, path, path)
    if not isinstance(opened, h5d.DatasetID):
        return None
    values = hdf5_input.own_values(opened, path)
    if math.prod(values.shape) != 1 or not are_texts(values):
        finding = f"{values.dtype} of shape {values.shape} found, a text expected"
        raise FaultError(path, finding, EXPORT)
    return texts(values)[0]


def attribute(owner: h5py.Group | h5py.Dataset, name: str, field: str) -> Any:
    """Return an attribute that is one number or text; None where there is none."""
    if not h5a.exists(owner.id, name.encode()):
        return None
    try:
        value = hdf5_input.attribute(owner, name)
    except FaultError as fault:
        raise FaultError(field, str(fault), EXPORT) from None
    return text(value, field) if isinstance(value, bytes) else value


def number_of(values: Values, name: str, default: float | None, field: str) -> float:
    """Return a number of an attribute; the default where there is none."""
    value = attribute(h5py.Dataset(values.id), name, f"{field}: {name}")
    value = default if value is None else value
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    raise FaultError(f"{field}: {name}", f"{value!r:.40} found, a number expected", EXPORT)


def names(group: h5py.Group, name: str, field: str) -> list[str]:
    """Return the texts of an attribute."""
    opened = h5a.open(group.id, name.encode())
    if opened.get_storage_size() > _MOST_NAMES:
        raise FaultError(field, f"more than {_MOST_NAMES} bytes of names found", EXPORT)
    kind = opened.get_type()
    if isinstance(kind, h5t.TypeStringID):
        check_text_lengths(group.id, name, kind)
    elif kind.get_class() not in (h5t.INTEGER, h5t.FLOAT):  # which may hold texts of any length
        raise FaultError(f"{field}: {name}", "values of another type found, texts expected", EXPORT)
    values = np.asarray(group.attrs[name]).ravel().tolist()
    return [text(value, f"{field}: {name}").rstrip(" ") for value in values]
