"""Attacks on MATLAB files. A row says what is done; each ends in the one line that it says."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import pytest
from foreign_matlab import cells, save_v5, save_v73, texts
from h5py import h5r
from refusals import harmless

from cortext.data.checks import FaultError
from cortext_data.readers.files.matlab import open_mat

AGAIN = "copy or download the file again"
SAVE = "give a .mat file as MATLAB's save writes it, with -v7 or -v7.3"


def read_all(path: Path) -> None:
    """Read all that the variable `x` may be."""
    with open_mat(path, ["x"]) as file:
        kind = file.kind("x")
        if kind == "texts":
            file.texts("x")
        elif kind in ("cells", "other"):
            for cell in file.cells("x"):
                cell.read()
        else:
            file.numbers("x").read(0, 1)
            file.numbers("x").read()


def line(path: Path) -> str:
    """Return the line that says why a file is refused, without the path, and bound the costs."""
    with harmless(most_mb=100, most_s=20), pytest.raises(FaultError) as caught:
        read_all(path)
    said = str(caught.value.problem("FILE", None))
    assert said.isprintable()
    assert len(said) <= 1000
    return said.replace(str(path), "FILE")


# --- version 5 ------------------------------------------------------------------------------


def element(kind: int, content: bytes, declared: int | None = None) -> bytes:
    """Return an element of a file of version 5."""
    n_bytes = len(content) if declared is None else declared
    return struct.pack("<2I", kind, n_bytes) + content.ljust(-(-len(content) // 8) * 8, b"\0")


def array(
    data: bytes,
    shape: tuple[int, ...] = (2, 2),
    number: int = 6,
    name: bytes = b"x",
    declared: int | None = None,
) -> bytes:
    """Return an array of class `number`, by default double."""
    content = element(6, struct.pack("<2I", number, 0))
    content += element(5, struct.pack(f"<{len(shape)}i", *shape))
    return element(14, content + element(1, name) + data, declared)


GOOD = array(element(9, np.arange(4.0).tobytes()))


def packed(content: bytes) -> bytes:
    """Return a compressed element."""
    made = zlib.compress(content)
    return struct.pack("<2I", 15, len(made)) + made


def nested(depth: int) -> bytes:
    """Return cells in cells."""
    inner = array(element(9, bytes(8)), (1, 1), name=b"")
    for _ in range(depth):
        inner = array(inner, (1, 1), 1, b"")
    return array(inner, (1, 1), 1)


def text(units: bytes, kind: int, width: int) -> bytes:
    return array(element(kind, units), (1, width), 4)


def named(name: bytes) -> bytes:
    """Return an array whose name is this element."""
    content = element(6, struct.pack("<2I", 6, 0)) + element(5, struct.pack("<2i", 2, 2))
    return element(14, content + name + element(9, bytes(32)))


HEADER = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 256) + b"IM"
NOISE = array(element(2, np.random.default_rng(0).bytes(80_000)), (1, 80_000))
# Of a line that ends in a blank, the rest may be anything.
V5 = {
    "nothing at all": (None, f"not a MATLAB file but an empty file (0 bytes); {AGAIN}"),
    "cut off in a tag": (
        GOOD[:5],
        f"truncated: the variable at byte 128 ends beyond the file's 133 bytes; {AGAIN}",
    ),
    "cut off in the numbers": (
        GOOD[:-8],
        f"truncated: the variable at byte 128 ends beyond the file's 216 bytes; {AGAIN}",
    ),
    "a length beyond the file": (
        array(element(9, bytes(32)), declared=2**32 - 1),
        f"truncated: the variable at byte 128 ends beyond the file's 224 bytes; {AGAIN}",
    ),
    "an element of no known type": (
        element(99, bytes(64)),
        f"damaged at byte 128: no variable begins there; {AGAIN}",
    ),
    "compressed by nothing": (
        element(15, b"no zlib at all.."),
        f"damaged at byte 128: not compressed by zlib; {AGAIN}",
    ),
    "a name in Latin-1": (
        array(element(9, bytes(32)), name=b"\xe4rger"),
        f"damaged at byte 128: no variable begins there; {AGAIN}",
    ),
    "a name that is stored as numbers": (
        named(element(9, b"x")),
        f"damaged at byte 128: no variable begins there; {AGAIN}",
    ),
    "a name of five bytes in a place for four": (
        named(struct.pack("<2H", 1, 5) + b"xxxx"),
        f"damaged at byte 128: no variable begins there; {AGAIN}",
    ),
    "two variables of a name": (GOOD + GOOD, "x: there twice in the file; save it once"),
    "ten thousand variables": (
        b"".join(array(element(9, b""), (0, 0), name=b"v%d" % n) for n in range(10_001)),
        "more than 10000 variables found; save fewer variables",
    ),
    "a million cells in a few kilobytes": (
        lambda: packed(array(1_000_000 * element(14, b""), (1, 1_000_000), 1)),
        "x: 1,000,000 cells found, at most 200,000 expected; save fewer",
    ),
    "cells in cells that are many together": (
        lambda: packed(array(201 * array(1000 * element(14, b""), (1, 1000), 1, b""), (1, 201), 1)),
        "x: 200,201 cells found, at most 200,000 expected; save fewer",
    ),
    "no variable of that name": (
        array(element(9, bytes(32)), name=b"y"),
        "x: variable missing; the file has y; give the file that has it, or correct the name",
    ),
    "more numbers declared than there are": (
        array(element(9, bytes(32)), (2**31 - 1, 2**31 - 1)),
        f"x: damaged: 2147483647 x 2147483647 numbers of 8 bytes declared, 32 bytes found; {AGAIN}",
    ),
    "fewer numbers declared than there are": (
        array(element(9, bytes(32)), (1, 2)),
        f"x: damaged: 1 x 2 numbers of 8 bytes declared, 32 bytes found; {AGAIN}",
    ),
    "a shape below zero": (
        array(element(9, bytes(32)), (-2, -2)),
        f"damaged at byte 128: no variable begins there; {AGAIN}",
    ),
    "numbers of no known type": (
        array(element(55, bytes(32))),
        f"x: damaged: numbers of float64 stored as type 55; {AGAIN}",
    ),
    "bytes that hold fractions": (
        array(element(9, bytes(32)), number=9),
        f"x: damaged: numbers of uint8 stored as type 9; {AGAIN}",
    ),
    "numbers that end beyond the variable": (
        array(element(9, bytes(32), declared=4000)),
        f"x: damaged: an element ends beyond the variable; {AGAIN}",
    ),
    "a stream that ends before the size it declares": (
        packed(array(element(9, bytes(32)), declared=5000)),
        f"x: damaged: 5,008 bytes declared, 96 found; {AGAIN}",
    ),
    "a stream that goes on after the size it declares": (
        lambda: packed(array(element(2, bytes(30_000_000)), (1, 30_000_000), declared=64)),
        "x: damaged: 72 bytes declared, ",
    ),
    "four gigabytes in a few bytes": (
        packed(array(element(9, bytes(32)), declared=2**32 - 16)),
        "x: declares 4,294,967,288 bytes, which ",
    ),
    "a stream that is cut off": (
        struct.pack("<2I", 15, 40_000) + zlib.compress(NOISE)[:40_000],
        "x: damaged: 80,064 bytes declared, ",
    ),
    "cells a thousand deep": (nested(1000), f"x: damaged: cells in cells, 8 deep; {AGAIN}"),
    "a billion cells in no bytes": (
        array(b"", (2**15, 2**15), 1),
        f"x: damaged: 1,073,741,824 cells declared in 0 bytes; {AGAIN}",
    ),
    "a cell that is no array": (
        array(element(9, bytes(8)), (1, 1), 1),
        f"x: damaged: a cell that is no array; {AGAIN}",
    ),
    "a text that is not UTF-8": (
        text(b"\xff\xfe", 16, 2),
        f"x: damaged: a text that is not UTF-8; {AGAIN}",
    ),
    "half a character": (
        text(b"\x00\xd8", 17, 1),
        f"x: a text that is not UTF-16 found; {AGAIN}",
    ),
    "a character of four bytes": (
        text(struct.pack("<I", 0x1F600), 18, 1),
        f"x: damaged: a character beyond 16 bits; {AGAIN}",
    ),
    "a text of more characters than there are": (
        text(b"abc", 16, 10**9),
        f"x: damaged: 1 x 1000000000 characters declared, 3 found; {AGAIN}",
    ),
    "a sentence of a megabyte": (
        text(b"a" * 10**6, 16, 10**6),
        "x: 1,000,000 characters found, at most 10,000 expected; shorten the text",
    ),
    "a text of three dimensions": (
        array(element(16, b"ab"), (1, 1, 2), 4),
        "x: a text of shape [1, 1, 2] found; save rows of text",
    ),
    "two rows in a cell of texts": (
        array(array(element(16, b"abcd"), (2, 2), 4, b""), (1, 1), 1),
        "x{1}: 2 rows found, one line of text expected; join them",
    ),
    "a function": (
        array(b"", (1, 1), 16),
        "x: a function handle found, a cell array expected; save what it computes: it has no values",
    ),
    "complex numbers": (
        GOOD[:17] + b"\x08" + GOOD[18:],
        "x: complex numbers found, a cell array expected; save it with abs(x), or with real(x) and"
        " imag(x)",
    ),
}


@pytest.mark.parametrize("attack", V5)
def test_version_5_is_refused_in_one_line(attack: str, tmp_path: Path) -> None:
    content, says = V5[attack]
    if callable(content):
        content = content()
    (tmp_path / "x.mat").write_bytes(b"" if content is None else HEADER + content)
    said = line(tmp_path / "x.mat").removeprefix("FILE: ")
    assert said.startswith(says) if says.endswith(" ") else said == says


def test_no_changed_byte_does_harm(tmp_path: Path) -> None:
    """Every byte of a small file is changed in turn: it is read, or refused in one line."""
    path = tmp_path / "x.mat"
    variables = {"x": cells([np.arange(4.0)[None], np.ones((2, 3), np.uint8)])}
    for value in (variables, {"x": texts(["ab", "c"], (2, 1))}):
        save_v5(path, value, compress=False)
        good = path.read_bytes()
        with harmless(most_mb=100):
            for at in range(len(good)):
                for change in (0x01, 0x80, 0xFF):
                    path.write_bytes(good[:at] + bytes([good[at] ^ change]) + good[at + 1 :])
                    with suppress(FaultError):
                        read_all(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "notes").write_text("x = 1\n" * 99)
    assert line(tmp_path / "pipe") == (
        "FILE: is not a file but a folder, pipe or device; check the path"
    )
    assert line(tmp_path) == "FILE: is not a file but a folder, pipe or device; check the path"
    assert line(tmp_path / "none") == "FILE: no such file; check the path"
    assert line(tmp_path / "notes") == f"FILE: not a MATLAB file of version 5 or 7.3; {SAVE}"


# --- version 7.3 ----------------------------------------------------------------------------

V73 = [
    (
        "a variable in another file",
        lambda file, folder: file.__setitem__("x", h5py.ExternalLink(folder / "secret.h5", "x")),
        "x: an external link found, which reads another file; copy the values into the file itself",
    ),
    (
        "soft links in a circle",
        lambda file, _: (
            file.__setitem__("x", h5py.SoftLink("/y")),
            file.__setitem__("y", h5py.SoftLink("/x")),
        ),
        f"x: damaged HDF5 (soft links in a circle); {AGAIN}",
    ),
    (
        "values stored in another file",
        lambda file, folder: file.create_dataset(
            "x", (2, 2), "f8", external=[(str(folder / "secret.raw"), 0, 32)]
        ),
        "x: external storage found, which reads other files; copy the values into the file itself",
    ),
    (
        "a dataset made of others",
        lambda file, folder: file.create_virtual_dataset("x", virtual(folder)),
        "x: a virtual dataset found, which reads other files; copy the values into the file itself",
    ),
    (
        "a terabyte of which nothing was written",
        lambda file, _: file.create_dataset("x", (10**6, 10**6), "f8", chunks=(100, 100)),
        f"x: only declared, no values were ever written; {AGAIN}",
    ),
    (
        "a billion cells of which nothing was written",
        lambda file, _: cell(file, file.create_dataset("x", (10**9, 1), h5py.ref_dtype)),
        f"x: only declared, no values were ever written; {AGAIN}",
    ),
    (
        "a cell that refers to nothing",
        lambda file, _: cell(
            file, file.create_dataset("x", (2, 1), h5py.ref_dtype, data=[[h5r.Reference()]] * 2)
        ),
        f"x{{1}}: the cell refers to nothing; {AGAIN}",
    ),
    (
        "a cell of itself",
        lambda file, _: itself(file),
        "x: cells found in cell 1, numbers expected; save it in that form",
    ),
    (
        "a chunk that holds more than its size",
        lambda file, _: lying_chunk(file, zlib.compress(bytes(40_000_000))),
        f"x: damaged HDF5 (a chunk does not hold 80000 bytes); {AGAIN}",
    ),
    (
        "a chunk that holds less than its size",
        lambda file, _: lying_chunk(file, zlib.compress(bytes(99))),
        f"x: damaged HDF5 (a chunk does not hold 80000 bytes); {AGAIN}",
    ),
    (
        "a trial that is there twice",
        lambda file, _: cell(
            file, file.create_dataset("x", data=[[file.create_dataset("y", data=[[1.0]]).ref]] * 2)
        ),
        "x: cell 2 and cell 1 have the same numbers at one place of the file; save it with MATLAB",
    ),
    (
        "a group",
        lambda file, _: file.create_group("x"),
        "x: a struct found, a cell array expected; save its parts as variables of their own: with"
        " save(FILE, '-struct', 'x'), or of a struct array with FIELD = {x.FIELD}",
    ),
    (
        "a text of real numbers",
        lambda file, _: of_class(file.create_dataset("x", data=np.ones((3, 1))), "char"),
        "x: a text of no characters found, a cell array expected; save it in that form",
    ),
    (
        "half a character",
        lambda file, _: of_class(
            file.create_dataset("x", data=np.full((1, 1), 0xD800, "u2")), "char"
        ),
        f"x: a text that is not UTF-16 found; {AGAIN}",
    ),
    (
        "a text of a billion characters",
        lambda file, _: a_few_written(file.create_dataset("x", (10**9, 1), "u2", chunks=(999, 1))),
        "x: 1,000,000,000 characters found, at most 67,108,864 expected; shorten the text",
    ),
    (
        "a class name of a megabyte",
        lambda file, _: of_class(file.create_dataset("x", data=np.array([b"a"])), "c" * 60_000),
        "x: an array of class unknown found, a cell array expected; save it in that form",
    ),
]


def virtual(folder: Path) -> h5py.VirtualLayout:
    layout = h5py.VirtualLayout((2, 2), "f8")
    layout[:] = h5py.VirtualSource(folder / "secret.h5", "x", (2, 2))
    return layout


def of_class(made: h5py.Dataset, kind: str) -> h5py.Dataset:
    made.attrs["MATLAB_class"] = np.bytes_(kind)
    return made


def cell(file: h5py.File, made: h5py.Dataset) -> None:
    of_class(made, "cell")


def itself(file: h5py.File) -> None:
    made = file.create_dataset("x", (1, 1), h5py.ref_dtype)
    made[0, 0] = made.ref
    of_class(made, "cell")


def a_few_written(made: h5py.Dataset) -> None:
    made[:3] = 97
    of_class(made, "char")


def lying_chunk(file: h5py.File, content: bytes) -> None:
    made = file.create_dataset("x", (100, 100), "f8", chunks=(100, 100), compression="gzip")
    made.id.write_direct_chunk((0, 0), content)


@pytest.mark.parametrize(("make", "says"), [row[1:] for row in V73], ids=[row[0] for row in V73])
def test_version_73_is_refused_in_one_line(
    make: Callable[[h5py.File, Path], object], says: str, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "secret.h5", "w") as secret:
        secret["x"] = np.ones((2, 2))
    (tmp_path / "secret.raw").write_bytes(bytes(32))
    with h5py.File(tmp_path / "x.mat", "w", userblock_size=512) as file:
        make(file, tmp_path)
    assert line(tmp_path / "x.mat") == f"FILE: {says}"


def test_references_to_any_place_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "x.mat"
    save_v73(path, {"x": cells([np.ones((3, 2)), np.ones((4, 2))])})
    with h5py.File(path) as file:
        at = file["x"].id.get_offset()
    good = path.read_bytes()
    draw = np.random.default_rng(0)
    with harmless(most_mb=100):
        for number in range(200):
            place = int(draw.integers(len(good))) if number % 2 else int(draw.integers(2**62))
            path.write_bytes(good[:at] + struct.pack("<Q", place) + good[at + 8 :])
            with suppress(FaultError):
                read_all(path)


@pytest.mark.parametrize("version", ["5", "7.3"])
def test_a_million_rows_of_text_are_refused(version: str, tmp_path: Path) -> None:
    path = tmp_path / "x.mat"
    if version == "5":
        n = 10_000_000
        path.write_bytes(HEADER + packed(array(element(2, n * b"a"), (n, 1), 4)))
    else:
        n = 60_000_000
        with h5py.File(path, "w", userblock_size=512) as file:
            made = file.create_dataset("x", (1, n), "u2", chunks=(1, 10**6), compression="gzip")
            a_few_written(made)
    with (
        harmless(most_s=20),
        pytest.raises(FaultError, match=f"{n:,} rows found, at most 200,000"),
        open_mat(path, ["x"]) as opened,
    ):
        opened.texts("x")


def test_many_cells_of_one_text_are_read_once(tmp_path: Path) -> None:
    path = tmp_path / "x.mat"
    with h5py.File(path, "w", userblock_size=512) as file:
        said = of_class(file.create_dataset("y", data=np.full((2, 1), 97, "u2")), "char")
        made = file.create_dataset("x", (100_000, 1), h5py.ref_dtype)
        made[...] = said.ref
        cell(file, made)
    with harmless(most_s=20), open_mat(path, ["x"]) as opened:
        assert opened.texts("x") == 100_000 * ["aa"]


def test_a_cut_off_file_of_version_73_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.mat"
    save_v73(path, {"x": np.ones((300, 20))})
    path.write_bytes(path.read_bytes()[:-100])
    said = line(path)
    assert said.startswith("FILE: truncated HDF5: ")
    path.write_bytes(path.read_bytes()[:600])
    said = f"truncated HDF5: 600 bytes found, more expected; {AGAIN}"
    assert line(path) == f"FILE: {said}"
    path.write_bytes(path.read_bytes()[:300])
    assert line(path) == f"FILE: not an HDF5 file, or a badly damaged one; {AGAIN}"
