"""MATLAB files: what SciPy, h5py and MATLAB itself wrote is what is read, in rows and columns."""

import random
import struct
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
from foreign_matlab import cells, column, save_v5, save_v73, texts
from refusals import harmless

from cortext.data import hdf5_input
from cortext.data.checks import FaultError
from cortext_data.readers.files.matlab import open_mat

MATLAB = Path(scipy.io.__file__).parent / "matlab/tests/data"
"""Files that MATLAB saved on several systems, which SciPy is tested with."""
WRITERS = {
    "v5": lambda path, variables: save_v5(path, variables, compress=False),
    "v7": save_v5,
    "v7.3": save_v73,
}


def material():
    rng = np.random.default_rng(0)
    return {
        "double": rng.normal(size=(7, 5)),
        "single": rng.normal(size=(3, 4)).astype(np.float32),
        "counts": rng.poisson(2, (40, 6)).astype(np.uint8),
        "signed": np.array([[-3, 5], [7, -(2**40)]]),
        "cube": rng.integers(0, 99, (5, 6, 4)).astype(np.uint16),
        "trials": cells([rng.normal(size=(4 + i, 3)) for i in range(6)], (3, 2)),
        "column": column([3, 4, 9]),
        "half": np.array([[0.5, 2]]),
        "huge": np.array([[2**63]], np.uint64),
        "said": texts(["déjà vu ", "", "私は >~"], (3, 1)),
        "nested": cells([texts(["up"], (1, 1)), texts(["down right"], (1, 1))], (2, 1)),
        "empty": np.zeros((0, 3)),
        "yes": np.array([[True, False]]),
        "parts": {"a": np.ones((2, 2))},
    }


@pytest.fixture(scope="module")
def written():
    return material()


@pytest.fixture(scope="module", params=WRITERS)
def path(request, written, tmp_path_factory):
    found = tmp_path_factory.mktemp("mat") / "file.mat"
    WRITERS[request.param](found, written)
    return found


def fault(call, *arguments):
    with pytest.raises(FaultError) as caught:
        call(*arguments)
    return f"{caught.value.field}: {caught.value.message}"


@pytest.mark.parametrize("name", ["double", "single", "counts", "signed", "column", "yes"])
def test_numbers_are_read_as_they_were_written(path, written, name):
    with open_mat(path, [name]) as file:
        numbers = file.numbers(name)
        assert numbers.shape == written[name].shape
        found = numbers.read()
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, written[name])
        assert found.dtype == numbers.dtype
        assert found.dtype == np.dtype(np.uint8 if name == "yes" else written[name].dtype)


def test_any_rows_and_columns_are_read_alone(path, written):
    with open_mat(path, ["double", "counts", "cube"]) as file:
        whole = written["double"]
        double = file.numbers("double")
        np.testing.assert_array_equal(double.read(2, 5), whole[2:5])
        np.testing.assert_array_equal(double.read(0, None, range(1, 4)), whole[:, 1:4])
        np.testing.assert_array_equal(double.read(6, 7, [4, 0, 0]), whole[6:7, [4, 0, 0]])
        np.testing.assert_array_equal(double.read(3, 3), whole[3:3])
        np.testing.assert_array_equal(double.read(0, 2, []), whole[:2, []])
        cube = file.numbers("cube", 3)
        for row in (4, 0, 2):
            np.testing.assert_array_equal(cube.read(row, row + 1), written["cube"][row : row + 1])
        found = cube.read(1, 4, range(2, 4))
        np.testing.assert_array_equal(found, written["cube"][1:4, :, 2:4])


def test_cells_come_down_the_columns_as_in_matlab(path, written):
    with open_mat(path, ["trials"]) as file:
        found = [numbers.read() for numbers in file.cells("trials")]
    expected = written["trials"].ravel(order="F")
    assert [len(cell) for cell in found] == [4, 6, 8, 5, 7, 9]
    for cell, whole in zip(found, expected, strict=True):
        np.testing.assert_array_equal(cell, whole)


def test_texts_of_any_script_are_read(path):
    with open_mat(path, ["said", "nested"]) as file:
        assert file.texts("said") == ["déjà vu", "", "私は >~"]
        assert file.texts("nested") == ["up", "down right"]


def test_rows_of_a_char_matrix_lose_their_padding(tmp_path):
    save_v5(tmp_path / "5.mat", {"rows": np.array(["ab   ", " cde "])})
    save_v73(tmp_path / "73.mat", {"rows": ["ab", " cde "]})
    for name in ("5.mat", "73.mat"):
        with open_mat(tmp_path / name, []) as file:
            assert file.texts("rows") == ["ab", " cde"]


def test_characters_beyond_sixteen_bits_are_two_units_as_in_matlab(tmp_path):
    units = np.frombuffer("𝄞 clef".encode("utf-16-le"), np.uint16)
    with h5py.File(tmp_path / "file.mat", "w", userblock_size=512) as file:
        file["said"] = units[:, None]
        file["said"].attrs["MATLAB_class"] = np.bytes_("char")
    with open_mat(tmp_path / "file.mat", ["said"]) as file:
        assert file.texts("said") == ["𝄞 clef"]
    save_v5(tmp_path / "scipy.mat", {"said": texts(["𝄞 clef"], (1, 1))})  # counts it once
    with open_mat(tmp_path / "scipy.mat", ["said"]) as file:
        assert file.texts("said") == ["𝄞 clef"]


def test_vectors_are_flat_and_of_64_bits(path):
    with open_mat(path, ["column"]) as file:
        assert file.vector("column").tolist() == [3.0, 4.0, 9.0]
        assert file.vector("yes").tolist() == [1, 0]
        assert file.vector("yes").dtype == np.int64
        assert file.vector("empty").tolist() == []
        assert file.whole("column").dtype == np.int64
        said = fault(file.whole, "half")
        assert said == "half: 0.5 found at (1), a whole number expected; correct it"
        said = fault(file.vector, "huge")
        assert said == "huge: 9223372036854775808 found, a number of 64 bits expected; check it"
        said = fault(file.vector, "double")
        assert said == (
            "double: shape [7, 5] found, one row or column expected; save it in that form"
        )


def test_kinds_and_shapes_are_known_without_reading(path, written):
    with open_mat(path, []) as file:
        assert sorted(file.names) == sorted(written)
        kinds = {name: file.kind(name) for name in file.names}
        shapes = {name: file.shape(name) for name in ("cube", "trials", "said")}
    special = {"trials": "cells", "said": "texts", "nested": "texts", "parts": "other"}
    assert kinds == dict.fromkeys(written, "numbers") | special
    assert shapes == {"cube": (5, 6, 4), "trials": (3, 2), "said": (3, 1)}


def test_what_the_file_lacks_is_named(path):
    said = fault(lambda: open_mat(path, ["tx1"]).__enter__())
    assert said.startswith("tx1: variable missing; the file has ")
    assert said.endswith("; give the file that has it, or correct the name")
    with open_mat(path, []) as file:
        assert fault(file.numbers, "double", 3) == (
            "double: shape [7, 5] found, 3 dimensions expected; save it in that form"
        )
        said = fault(file.numbers, "parts")
        assert said.startswith("parts: a struct")
        assert said.endswith(
            "expected; save its parts as variables of their own: with save(FILE, '-struct', 'parts'), or"
            " of a struct array with FIELD = {parts.FIELD}"
        )
        assert fault(file.cells, "said").startswith("said: chars found in cell 1, numbers expected")
        assert fault(file.cells, "double").startswith(
            "double: numbers found, a cell array expected"
        )
        assert fault(file.texts, "trials").startswith("trials{1}: numbers found, a text expected")
        double = file.numbers("double")
        assert fault(double.read, 5, 8).startswith("double: rows 5 to 8 asked for, 7 found;")
        said = fault(double.read, 0, 1, [2, 5])
        assert said.startswith("double: columns 3 to 6 asked for, 5 found;")


# --- files that MATLAB saved ----------------------------------------------------------------


@pytest.mark.parametrize("version", ["6.1_SOL2", "6.5.1_GLNX86", "7.1_GLNX86", "7.4_GLNX86"])
@pytest.mark.parametrize("name", ["test3dmatrix", "testdouble", "testmatrix", "testminus"])
def test_numbers_of_matlab_are_those_that_scipy_finds(name, version):
    # Version 6.1 on Solaris wrote the highest byte first.
    source = MATLAB / f"{name}_{version}.mat"
    expected = scipy.io.loadmat(source, mat_dtype=True)[name]
    with open_mat(source, [name]) as file:
        found = file.numbers(name, expected.ndim).read()
    assert found.dtype == np.float64  # stored as bytes where that is shorter
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("version", ["6.1_SOL2", "6.5.1_GLNX86", "7.1_GLNX86", "7.4_GLNX86"])
def test_texts_of_matlab_are_those_that_scipy_finds(version):
    for name in ("teststring", "teststringarray"):
        source = MATLAB / f"{name}_{version}.mat"
        expected = [text.rstrip() for text in scipy.io.loadmat(source)[name]]
        with open_mat(source, [name]) as file:
            assert file.texts(name) == expected


def test_japanese_and_cells_of_matlab_are_read():
    source = MATLAB / "testunicode_7.4_GLNX86.mat"
    with open_mat(source, []) as file:
        assert file.texts("testunicode") == [scipy.io.loadmat(source)["testunicode"][0].rstrip()]
    with open_mat(MATLAB / "testemptycell_7.4_GLNX86.mat", []) as file:
        shapes = [numbers.shape for numbers in file.cells("testemptycell")]
    assert shapes == [(1, 1), (1, 1), (0, 0), (0, 0), (1, 1)]


@pytest.mark.parametrize("name", ["testsparse", "testcomplex", "testobject", "teststruct"])
def test_what_is_no_array_of_numbers_is_other(name):
    with open_mat(MATLAB / f"{name}_7.4_GLNX86.mat", []) as file:
        assert file.kind(name) == "other"
        assert fault(file.numbers, name).startswith(f"{name}: ")


def test_no_file_of_matlab_ends_otherwise_than_read_or_refused():
    n_read = 0
    for source in sorted(MATLAB.glob("*.mat")):
        try:
            with open_mat(source, []) as file:
                for name in file.names:
                    kind, shape = file.kind(name), file.shape(name)
                    if kind == "numbers":
                        n_read += file.numbers(name, len(shape)).read().shape == shape
                    elif kind == "texts":
                        n_read += bool(file.texts(name))
                    elif kind == "cells":
                        n_read += bool(file.cells(name))
        except FaultError:
            continue
    assert n_read >= 40


# --- parts of large arrays ------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": (3, 4, 2)},
        {"chunks": (3, 4, 2), "compression": "gzip"},
        {"chunks": (2, 9, 1), "compression": "gzip", "shuffle": True},
        {"chunks": (4, 4, 4), "compression": "lzf"},
        {"chunks": (5, 2, 3), "compression": "gzip", "fletcher32": True},
    ],
    ids=["contiguous", "chunked", "gzip", "shuffled", "lzf", "checksum"],
)
@pytest.mark.parametrize("dtype", ["<f4", ">i2"])
def test_any_box_is_the_one_that_h5py_reads(tmp_path, options, dtype):
    shape = (10, 9, 7)
    whole = np.random.default_rng(0).integers(-999, 999, shape).astype(dtype)
    with h5py.File(tmp_path / "boxes.h5", "w") as file:
        file.create_dataset("x", data=whole, **options)
    draw = random.Random(0)
    with hdf5_input.opened(tmp_path / "boxes.h5") as file:
        boxes = hdf5_input.Boxes(hdf5_input.dataset(file, "x", 3))
        for _ in range(60):
            box = [slice(*sorted(draw.choices(range(size + 1), k=2))) for size in shape]
            np.testing.assert_array_equal(boxes.read(*box), whole[tuple(box)])


def test_chunks_that_were_never_written_have_the_fill_value(tmp_path):
    with h5py.File(tmp_path / "holes.h5", "w") as file:
        made = file.create_dataset(
            "x", (8, 6), "f4", chunks=(2, 3), compression="gzip", fillvalue=7
        )
        made[4:6, 0:3] = 1
    with hdf5_input.opened(tmp_path / "holes.h5") as file:
        found = hdf5_input.Boxes(hdf5_input.dataset(file, "x", 2)).read(slice(3, 7), slice(0, 6))
    expected = np.full((4, 6), 7.0)
    expected[1:3, :3] = 1
    np.testing.assert_array_equal(found, expected)


def damaged_chunk(path, corner):
    """Overwrite the middle of a chunk."""
    with h5py.File(path) as file:
        info = file["x"].id.get_chunk_info_by_coord(corner)
    with path.open("r+b") as raw:
        raw.seek(info.byte_offset + info.size // 2)
        raw.write(bytes(8))


def test_only_chunks_of_the_chosen_columns_are_decoded(tmp_path):
    path = tmp_path / "file.mat"
    whole = np.random.default_rng(0).normal(size=(500, 256))
    with h5py.File(path, "w", userblock_size=512) as file:
        file.create_dataset("x", data=whole.T, chunks=(64, 250), compression="gzip")
    damaged_chunk(path, (128, 250))
    with open_mat(path, ["x"]) as file:
        found = file.numbers("x").read(columns=range(128))
        np.testing.assert_array_equal(found, whole[:, :128])
        np.testing.assert_array_equal(file.numbers("x").read(0, 250), whole[:250])
        assert fault(file.numbers("x").read) == (
            "x: damaged HDF5 (a chunk does not hold 128000 bytes); copy or download the file again"
        )


def test_only_the_variables_that_are_asked_for_are_decompressed(tmp_path):
    path = tmp_path / "file.mat"
    rng = np.random.default_rng(0)
    save_v5(path, {"good": rng.normal(size=(9, 9)), "bad": rng.normal(size=(300, 90))})
    content = bytearray(path.read_bytes())
    content[-20:-10] = bytes(10)
    path.write_bytes(content)
    with open_mat(path, ["good"]) as file:
        assert file.numbers("good").read().shape == (9, 9)
        assert fault(lambda: file.numbers("bad").read()).startswith("bad: damaged")


def test_a_cell_that_was_never_set_is_empty(tmp_path):
    """MATLAB writes an element without content for it; SciPy writes none."""

    def element(kind, content):
        return struct.pack("<2I", kind, len(content)) + content.ljust(
            -(-len(content) // 8) * 8, b"\0"
        )

    flags = element(6, struct.pack("<2I", 1, 0))
    name = element(1, b"c")
    shape = element(5, struct.pack("<2i", 1, 2))
    inner = element(6, struct.pack("<2I", 6, 0)) + element(5, struct.pack("<2i", 1, 2))
    inner += element(1, b"") + element(2, bytes([4, 5]))  # doubles, kept as bytes
    content = element(14, flags + shape + name + element(14, b"") + element(14, inner))
    header = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 256) + b"IM"
    packed = zlib.compress(content)
    for body in (content, struct.pack("<2I", 15, len(packed)) + packed):
        (tmp_path / "file.mat").write_bytes(header + body)
        with open_mat(tmp_path / "file.mat", ["c"]) as file:
            first, second = file.cells("c")
            assert first.shape == (0, 0)
            assert second.dtype == np.float64
            assert second.read().tolist() == [[4, 5]]


def test_boxes_larger_than_the_chunks_that_are_kept_are_whole(tmp_path):
    # 16 chunks of 8 MB, of which 8 are kept: those of the first box leave while the second is read.
    whole = np.repeat(np.arange(2048, dtype=np.int16), 32_768).reshape(2048, 32_768)
    with h5py.File(tmp_path / "large.h5", "w") as file:
        file.create_dataset("x", data=whole, chunks=(128, 32_768), compression=1)
    with hdf5_input.opened(tmp_path / "large.h5") as file:
        boxes = hdf5_input.Boxes(hdf5_input.dataset(file, "x", 2))
        for rows in (slice(1024, 2048), slice(0, 2048), slice(1000, 1100)):
            found = boxes.read(rows, slice(0, 32_768))
            np.testing.assert_array_equal(found[:, [0, -1]], whole[rows][:, [0, -1]])


def test_numbers_are_read_again_after_their_memory_was_freed(path, written):
    with open_mat(path, ["counts", "cube"]) as file:
        counts, cube = file.numbers("counts"), file.numbers("cube", 3)
        for _ in range(2):
            np.testing.assert_array_equal(counts.read(), written["counts"])
            np.testing.assert_array_equal(cube.read(1, 2), written["cube"][1:2])
            file.release()


def test_chunks_of_many_cells_do_not_fill_the_memory(tmp_path):
    path = tmp_path / "file.mat"
    one = np.ones((2**12, 32))  # 1 MiB
    save_v73(path, {"x": cells([one] * 160)})
    with open_mat(path, ["x"]) as file, harmless(most_mb=90):
        trials = file.cells("x")
        assert all(trial.read().sum() == one.size for trial in trials)
