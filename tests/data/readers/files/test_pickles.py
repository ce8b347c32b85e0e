"""Pickles read as data: Python's own `pickle` writes them, and what it would run is refused."""

from __future__ import annotations

import os
import pickle
import pickletools
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numbers

from cortext.errors import DataError
from cortext_data.readers.files import pickles
from cortext_data.readers.files.pickles import read_pickle

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
WHOLE = st.integers(-(1 << 63), (1 << 64) - 1)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | WHOLE
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.text(max_size=5) | WHOLE, inner, max_size=5)
    ),
    max_leaves=20,
)


def read(tmp_path: Path, content: bytes) -> Any:
    path = tmp_path / "some.pkl"
    path.write_bytes(content)
    return read_pickle(path)


@given(content=PLAIN, protocol=st.sampled_from(PROTOCOLS))
def test_plain_data_of_every_protocol_are_read_as_pickle_reads_them(
    tmp_path_factory: pytest.TempPathFactory, content: Any, protocol: int
) -> None:
    assert read(tmp_path_factory.getbasetemp(), pickle.dumps(content, protocol)) == content


@given(
    array=numbers.arrays(
        st.sampled_from("?bhilBHILefd"), numbers.array_shapes(min_dims=0, min_side=0)
    ),
    protocol=st.sampled_from(PROTOCOLS),
    is_fortran=st.booleans(),
)
def test_arrays_are_read_as_pickle_reads_them(
    tmp_path_factory: pytest.TempPathFactory, array: np.ndarray, protocol: int, is_fortran: bool
) -> None:
    array = np.asfortranarray(array) if is_fortran else array
    # Twice, as a memo holds it, and a scalar beside it.
    content = pickle.dumps([array, array, np.float32(0.5), np.int64(-3)], protocol)
    found = read(tmp_path_factory.getbasetemp(), content)
    for one in found[:2]:
        np.testing.assert_array_equal(one, array)
        assert one.dtype == array.dtype
    assert found[2:] == [0.5, -3]


def test_arrays_of_objects_become_lists_and_ordered_dicts_dicts(tmp_path: Path) -> None:
    texts = np.array(["a", "bc"], object)
    for protocol in PROTOCOLS[2:]:
        content = pickle.dumps((texts, OrderedDict(a=1)), protocol)
        assert read(tmp_path, content) == (["a", "bc"], {"a": 1})


def test_texts_of_numpy_are_read(tmp_path: Path) -> None:
    texts = np.array(["correct", "one word wrong", ""])
    for protocol in PROTOCOLS:
        found = read(tmp_path, pickle.dumps([texts, texts[1]], protocol))
        assert found[0].tolist() == texts.tolist()
        assert found[1] == "one word wrong"


class Runs:
    """What runs a function when Python's own unpickler reads it."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call, self.arguments


def array_of(shape: tuple[int, ...], content: bytes, dtype: str = "f4") -> bytes:
    """A program that builds an array from what it claims."""

    class Claims:
        def __reduce__(self) -> tuple[Any, ...]:
            start, arguments, *_ = np.zeros(3).__reduce__()
            return start, arguments, (1, shape, np.dtype(dtype), False, content)

    return pickle.dumps(Claims(), 4)


def tuples_of_tuples() -> bytes:
    """A tuple of a tuple of ..., each twice: its hash and its text take 2 ** 60 steps."""
    return b")" + b"".join(b"q" + bytes([n]) + b"h" + bytes([n]) + b"\x86" for n in range(60))


def again(function: bytes, arguments: bytes) -> bytes:
    """A program that calls a function a thousand times, with the same arguments."""
    start = b"\x80\x04" + function + b"q\x000" + arguments + b"q\x010]"
    return start + b"h\x00h\x01Ra" * 1_000 + b"."


def text(length: int) -> bytes:
    return b"X" + length.to_bytes(4, "little") + b"a" * length + b"\x85"


def array_arguments(length: int) -> bytes:
    content = b"B" + length.to_bytes(4, "little") + bytes(length)
    size = b"J" + length.to_bytes(4, "little") + b"\x85"
    return b"(" + content + b"cnumpy\ndtype\nU\x02u1\x85R" + size + b"U\x01Ct"


def scalar_arguments(length: int) -> bytes:
    kind = b"U%d" % (length // 4)
    kind = b"cnumpy\ndtype\nU" + bytes([len(kind)]) + kind + b"\x85R"
    return kind + b"B" + length.to_bytes(4, "little") + bytes(length) + b"\x86"


MACHINE = {
    "a command": (pickle.dumps(Runs(os.system, "touch ran")), "asks for posix.system"),
    "an expression": (pickle.dumps(Runs(eval, "1 + 1"), 0), "asks for __builtin__.eval"),
    "an attribute of something known": (b"\x80\x04cnumpy\ndtype.mro\n.", "numpy.dtype.mro"),
    "an object": (pickle.dumps(Path("x")), "asks for pathlib"),
    "an instance": (b"(ios\nsystem\n.", "instruction INST"),
    "an object of a class": (b"(cnumpy\ndtype\nU\x01xo.", "instruction OBJ"),
    "a new object": (b"\x80\x02cnumpy\ndtype\n)\x81.", "instruction NEWOBJ"),
    "an extension": (b"\x80\x02\x82\x01.", "instruction EXT1"),
    "something elsewhere": (b"P1\n.", "instruction PERSID"),
    "a state of a dict": (b"\x80\x02}}b.", "a state to what is no array"),
    "a state of a function": (b"\x80\x02cnumpy\ndtype\n}b.", "a state to what is no array"),
    "a call of a text": (b"\x80\x02U\x01x)R.", "calls what is no function"),
    "a call of a builder of arrays": (b"\x80\x02cnumpy\nndarray\n)R.", "damaged at byte"),
    "an integer of 255 bytes": (b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b".", "beyond 64 bits"),
    "an integer of 100,000 bytes": (
        b"\x80\x02\x8b" + (100_000).to_bytes(4, "little") + b"\x7f" * 100_000 + b".",
        "beyond 64 bits",
    ),
    "an integer of 5,000 digits": (b"I" + b"9" * 5000 + b"\n.", "damaged at byte"),
    "a shape of 100,000 numbers": (array_of((2,) * 100_000, b"\0" * 12), "without a type or shape"),
    "a name that is a tuple of tuples": (
        b"\x80\x04" + tuples_of_tuples() + b"\x8c\x01x\x93.",
        "no short text",
    ),
    "a type that is a tuple of tuples": (
        b"\x80\x04cnumpy\ndtype\n" + tuples_of_tuples() + b"\x85R.",
        "NumPy's type that has no name",
    ),
    "a name of 1 MB": (b"\x80\x02c" + b"x" * (1 << 20) + b"\ny\n.", "no short text"),
    "a state of a type that is a text": (b"\x80\x04cnumpy\ndtype\nU\x02f8\x85RU\x02<|b.", "little"),
    "an ordered dict of pairs": (
        b"\x80\x02ccollections\nOrderedDict\nK\x01\x85R.",
        "a form of old",
    ),
    "a thousand copies of a text": (again(b"c_codecs\nencode\n", text(1 << 20)), "again and again"),
    "a thousand arrays of the same content": (
        again(b"cnumpy.core.numeric\n_frombuffer\n", array_arguments(1 << 20)),
        "again and again",
    ),
    "a thousand scalars of the same content": (
        again(b"cnumpy.core.multiarray\nscalar\n", scalar_arguments(1 << 20)),
        "again and again",
    ),
    "a call with many arguments": (
        b"\x80\x02c_codecs\nencode\n(" + b"K\x01" * 1000 + b"tR.",
        "with 1000 arguments",
    ),
    "a key that hashes for ever": (
        b"\x80\x02}" + tuples_of_tuples() + b"K\x01s.",
        "a key that is a tuple",
    ),
    "items of a text": (b"\x80\x02U\x01xU\x01aK\x01s.", "sets items of what is no dict"),
    "one more item for a number": (b"\x80\x02K\x01K\x02a.", "appends to what is no list"),
    "more numbers than there are": (array_of((1 << 40,), b"\0" * 12), "claims"),
    "fewer than no numbers": (array_of((-3,), b"\0" * 12), "without a type or shape"),
    "numbers of another size": (array_of((3,), b"\0" * 12, "f8"), "claims"),
    "numbers of an unknown type": (array_of((3,), b"\0" * 12, "M8[s]"), "NumPy's type 'M8'"),
    "characters beyond Unicode": (array_of((1,), b"\xff" * 4, "U1"), "no characters"),
    "texts of 4 GB": (array_of((1 << 30,), b"\0" * 4, "U1"), "claims"),
    "big-endian numbers": (array_of((3,), b"\0" * 12, ">f4"), "not little-endian"),
    "a list in an array": (pickle.dumps(np.array([[1, "a"]], object), 2), "no list"),
    "a text of 4 GB in 20 bytes": (b"\x80\x04X\xff\xff\xff\xffabc.", "damaged at byte"),
    "bytes of 2 ** 62": (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x3fabc.", "damaged at byte"),
    "an empty stack": (b"\x80\x02.", "damaged at byte"),
    "no mark": (b"\x80\x02K\x01t.", "damaged at byte"),
    "a memo that is empty": (b"\x80\x02h\x05.", "damaged at byte"),
    "no end": (b"\x80\x02K\x01", "damaged at byte"),
    "no pickle": (b"subject,rating\n", "damaged at byte"),
    "nothing": (b"", "is empty"),
    "text": ("é".encode() * 100, "damaged at byte"),
}


@pytest.mark.parametrize("name", MACHINE)
def test_what_is_no_data_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    content, says = MACHINE[name]
    with pytest.raises(DataError, match=says) as caught:
        read(tmp_path, content)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["some.pkl"]  # nothing ran


def test_a_memo_may_have_holes(tmp_path: Path) -> None:
    # The same five bytes make Python's own unpickler take 16 GB.
    assert read(tmp_path, b"\x80\x02K\x07r\xff\xff\xff\x7f0j\xff\xff\xff\x7f.") == 7


def test_a_program_that_is_too_long_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles, "MOST_INSTRUCTIONS", 1000)
    with pytest.raises(DataError, match="more objects than any file of results"):
        read(tmp_path, b"\x80\x02" + b"}0" * 600 + b"}.")
    assert read(tmp_path, b"\x80\x02" + b"}0" * 400 + b"}.") == {}


@given(content=PLAIN, data=st.data())
def test_damage_is_an_error_or_other_data(
    tmp_path_factory: pytest.TempPathFactory, content: Any, data: st.DataObject
) -> None:
    program = bytearray(pickle.dumps([content, np.arange(5)], 4))
    for _ in range(data.draw(st.integers(1, 4))):
        program[data.draw(st.integers(0, len(program) - 1))] = data.draw(st.integers(0, 255))
    with suppress(DataError):
        read(tmp_path_factory.getbasetemp(), bytes(program))


def test_a_file_that_is_absent_or_a_folder_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.pkl", tmp_path):
        with pytest.raises(DataError, match=path.name):
            read_pickle(path)


def test_every_instruction_of_plain_data_is_one_that_pickle_has() -> None:
    known = {opcode.name for opcode in pickletools.opcodes}
    assert (
        pickles._LITERALS
        | set(pickles._CONSTANTS)
        | set(pickles._TUPLES)
        | set(pickles._INSTRUCTIONS)
        <= known
    )
