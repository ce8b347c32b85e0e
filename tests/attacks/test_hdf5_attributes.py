"""Attributes of HDF5 files whose texts state lengths that they do not have.

HDF5 takes as much memory as a length says. Session files, NWB and MATLAB 7.3 are read.
"""

from __future__ import annotations

import struct
from pathlib import Path

import h5py
import numpy as np
import pytest
from foreign_nwb import write_nwb
from refusals import harmless

from cortext.data import hdf5_input
from cortext.data.checks import FaultError
from cortext_data.readers.files.matlab import open_mat
from cortext_data.readers.files.nwb_file import open_nwb

TEXT = "a text of thirty-three letters, é"  # 34 bytes
TEXTS = h5py.string_dtype()


def lie(path: Path, length: int) -> None:
    """Give the text of 34 bytes another length, wherever its place is written."""
    content = path.read_bytes()
    start = content.index(TEXT.encode())
    heap = content.rindex(b"GCOL", 0, start)
    address = heap - (512 if content[512:516] == b"\x89HDF" else 0)  # MATLAB's header
    place = struct.pack("<IQ", 34, address)
    assert content.count(place) == 1
    path.write_bytes(content.replace(place, struct.pack("<IQ", length, address)))


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("n_others", [0, 6])
@pytest.mark.parametrize("userblock", [0, 512])
def test_the_stated_length_of_a_text_is_found(
    tmp_path: Path, libver: str, n_others: int, userblock: int
) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver=libver, userblock_size=userblock) as file:
        group = file.create_group("x")
        for number in range(n_others):  # the header continues in another place
            group.attrs[f"note{number}"] = np.arange(40 * number)
        group.attrs["said"] = TEXT
        group.attrs["long"] = 9_000_000 * "a"
    with hdf5_input.opened(path) as file:
        assert hdf5_input.text(file["x"], "said") == TEXT
        with pytest.raises(FaultError, match="texts of 9000000 bytes found, at most 8388608"):
            hdf5_input.text(file["x"], "long")
    if libver == "earliest":  # later ones have a checksum
        lie(path, 2**32 - 1)
        with (
            harmless(),
            pytest.raises(FaultError, match="texts of 4294967295 bytes found"),
            hdf5_input.opened(path) as file,
        ):
            hdf5_input.text(file["x"], "said")


def test_texts_among_many_attributes_of_new_files_are_refused(tmp_path: Path) -> None:
    # HDF5 stores them in a heap, whose lengths nobody checks.
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver="latest") as file:
        for number in range(20):
            file.attrs[f"note{number}"] = TEXT
    with (
        pytest.raises(FaultError, match="unusual HDF5 layout"),
        hdf5_input.opened(path) as file,
    ):
        hdf5_input.text(file, "note3")


def test_the_unit_and_columns_of_nwb_may_not_lie(tmp_path: Path) -> None:
    path = tmp_path / "x.nwb"
    for owner, name, value in (
        ("acquisition/threshold_crossings/data", "unit", TEXT),
        ("intervals/trials", "colnames", np.array(["start_time", TEXT], TEXTS)),
    ):
        write_nwb(path)
        with h5py.File(path, "a") as file:
            del file[owner].attrs[name]
            file[owner].attrs[name] = value
        lie(path, 2**31)
        with (
            harmless(),
            pytest.raises(FaultError, match="texts of 21474836"),
            open_nwb(path) as nwb,
        ):
            _ = nwb.one_series("acquisition/threshold_crossings"), nwb.table()


def test_columns_that_are_no_texts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.nwb"
    write_nwb(path)
    with h5py.File(path, "a") as file:
        columns = np.array([("start_time", 1.0)], [("name", TEXTS), ("x", "f8")])
        file["intervals/trials"].attrs["colnames"] = columns
    with pytest.raises(FaultError, match="texts expected"), open_nwb(path) as nwb:
        nwb.table()


def test_the_class_of_a_matlab_variable_may_not_lie(tmp_path: Path) -> None:
    path = tmp_path / "x.mat"
    with h5py.File(path, "w", userblock_size=512) as file:
        file["x"] = np.ones((2, 3))
        file["x"].attrs["MATLAB_class"] = TEXT
    lie(path, 2**32 - 1)
    with (
        harmless(),
        pytest.raises(FaultError, match="texts of 4294967295 bytes found"),
        open_mat(path, ["x"]) as file,
    ):
        file.numbers("x")
