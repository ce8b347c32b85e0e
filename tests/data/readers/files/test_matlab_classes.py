"""Variables that are no numbers, texts or cells say what they are, and what to save instead."""

from __future__ import annotations

import struct
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
import scipy.sparse
from foreign_matlab import save_v5, save_v73

from cortext.data.checks import FaultError
from cortext_data.readers.files.matlab import open_mat
from cortext_data.readers.mapped.inspect_mat import inspect_mat

STRUCT = (
    "save its parts as variables of their own: with save(FILE, '-struct', 'x'), or of a struct"
    " array with FIELD = {x.FIELD}"
)
COLUMNS = "save its columns as variables of their own, texts with cellstr(x.COLUMN)"
OBJECTS = {
    "string": "save it with cellstr(x)",
    "categorical": "save it with cellstr(x), or its numbers with double(x)",
    "datetime": "save it with cellstr(x), or its seconds with posixtime(x)",
    "duration": "save it with seconds(x)",
    "table": COLUMNS,
    "timetable": COLUMNS,
    "my.Rig": "save its parts as variables of their own, texts with cellstr, numbers with double",
}


def about(path: Path, name: str = "x") -> str:
    """Return how `--inspect` describes a variable, which it must not call numbers."""
    (item,) = [item for item in inspect_mat(path)[0] if item.name == name]
    assert item.kind == "other"
    return item.about


def refused(path: Path, name: str = "x") -> str:
    with open_mat(path, [name]) as file, pytest.raises(FaultError) as error:
        file.texts(name)
    return error.value.message


def element(kind: int, content: bytes) -> bytes:
    return struct.pack("<2I", kind, len(content)) + content + bytes(-len(content) % 8)


def write_v5(path: Path, *elements: bytes) -> None:
    """Write a file with one variable of these elements."""
    body = b"".join(elements)
    header = b"MATLAB 5.0 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x01IM"
    path.write_bytes(header + element(14, body))


@pytest.mark.parametrize(("of_class", "fix"), OBJECTS.items())
def test_objects_of_version_73_are_no_numbers(tmp_path: Path, of_class: str, fix: str) -> None:
    """As MATLAB writes them: six numbers that count entries of a subsystem (h5py issue 2077)."""
    path = tmp_path / "a.mat"
    save_v73(path, {"y": np.ones((2, 2))})
    with h5py.File(path, "r+") as file:
        made = file.create_dataset("x", data=np.array([[3707764736, 2, 6, 1, 1, 1]], "u4").T)
        made.attrs["MATLAB_class"] = np.bytes_(of_class)
        made.attrs["MATLAB_object_decode"] = np.int32(3)
    assert about(path) == f"an object of class {of_class}; {fix}"
    assert refused(path) == f"an object of class {of_class} found, texts expected; {fix}"


@pytest.mark.parametrize(("of_class", "fix"), OBJECTS.items())
def test_objects_of_version_5_name_their_class(tmp_path: Path, of_class: str, fix: str) -> None:
    """An opaque element: flags, name, MCOS, class (as in MAT.jl's and mat73's notes)."""
    path = tmp_path / "a.mat"
    flags, name = element(6, struct.pack("<2I", 17, 0)), element(1, b"x")
    write_v5(path, flags, name, element(1, b"MCOS"), element(1, of_class.encode()))
    assert about(path) == f"an object of class {of_class}; {fix}"


def test_an_object_of_the_old_kind_names_its_class(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    parts = (6, struct.pack("<2I", 3, 0)), (5, struct.pack("<2i", 1, 1)), (1, b"x"), (1, b"inline")
    write_v5(path, *(element(*part) for part in parts))
    assert about(path).startswith("an object of class inline; save its parts as variables")


@pytest.mark.parametrize("save", [save_v5, save_v73])
def test_a_struct_lists_its_fields_and_its_parts_are_refused(tmp_path: Path, save) -> None:
    path = tmp_path / "a.mat"
    save(path, {"x": {"tx1": np.ones((3, 3)), "cue": "hi"}})
    assert about(path).partition("; ")[0].startswith("a struct with the fields ")
    assert {"tx1", "cue"} <= set(about(path).partition(";")[0].replace(",", "").split())
    assert about(path).endswith(STRUCT)
    assert refused(path) == f"a struct found, texts expected; {STRUCT}"
    with pytest.raises(FaultError) as error:
        open_mat(path, ["x.tx1"]).__enter__()
    assert str(error.value) == "x is a struct or an object, whose parts are not read"
    assert error.value.message.endswith("or of a struct array with tx1 = {x.tx1}")


def test_sparse_and_complex_numbers_say_so(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"x": scipy.sparse.eye(5).tocsc(), "z": np.ones((2, 2)) * 1j})
    assert about(path) == "a sparse matrix; save it with full(x)"
    complex_ = "complex numbers; save it with abs(z), or with real(z) and imag(z)"
    assert about(path, "z") == complex_


def test_sparse_and_functions_of_version_73_say_so(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    save_v73(path, {"x": {"data": np.ones((3, 1))}, "f": np.ones((1, 1))})
    with h5py.File(path, "r+") as file:
        file["x"].attrs["MATLAB_sparse"] = np.uint64(5)
        file["x"].attrs["MATLAB_class"] = np.bytes_("double")
        file["f"].attrs["MATLAB_class"] = np.bytes_("function_handle")
        file["f"].attrs["MATLAB_object_decode"] = np.int32(1)
    assert about(path) == "a sparse matrix; save it with full(x)"
    assert about(path, "f") == "a function handle; save what it computes: it has no values"


@pytest.mark.parametrize(
    ("text", "units"),
    [
        ("thé qüîck", None),  # MATLAB's own file in MAT.jl's tests, test/v6/string.mat
        ("la señora tomó café", None),
        ("привет", None),  # no Latin letter, but more pairs than Korean has by chance
        ("안녕하세요", "안녕하세요"),
        ("OK 쎩쎼 학교", "OK 쎩쎼 학교"),  # two syllables look like pairs, and two do not
        ("café’s", None),  # beside a character beyond two bytes
    ],
)
def test_accents_of_save_v6_are_read(tmp_path: Path, text: str, units: str | None) -> None:
    """`save -v6` puts the two bytes of a letter's UTF-8 into one unit of 16 bits."""
    path = tmp_path / "a.mat"
    if units is None:
        numbers = [
            int.from_bytes(code, "big") if len(code := c.encode()) == 2 else ord(c) for c in text
        ]
    else:
        numbers = [ord(c) for c in units]
    content = struct.pack(f"<{len(text)}H", *numbers)
    shape = element(5, struct.pack("<2i", 1, len(text)))
    head = element(6, struct.pack("<2I", 4, 0))
    write_v5(path, head, shape, element(1, b"sentence"), element(4, content))
    with open_mat(path, ["sentence"]) as file:
        assert file.texts("sentence") == [text]


def test_a_file_of_a_lab_says_what_its_structs_hold(real_data: Path) -> None:
    """Degenhart et al. 2020: 1,268 trials in a struct array."""
    path = real_data / "neural" / "stabilizedbci_20160325.mat"
    parts = {item.name: item for item in inspect_mat(path)[0]}
    assert parts["trialData"].shape == "[1, 1268]"
    assert parts["trialData"].about.startswith(
        "a struct with the fields id, success, binCounts, refPos, tgtPos, decodedVl"
    )
    assert parts["goodElectrodes"].about == "float64: 1, 2, 3, ..."
