"""Pickles from anywhere, read as data: nothing that they name is imported or called.

A pickle is a program for a small stack machine, and Python's own machine runs whatever functions it
names. This machine knows the few instructions that build containers, numbers, texts and arrays of
NumPy; it has none that looks a name up. (A restricted `pickle.Unpickler` was the alternative. Its
`find_class` stops foreign functions, but not dictionaries whose keys take for ever to hash, nor a
memo of 16 GB that an instruction of five bytes asks for.)
"""

from __future__ import annotations

import mmap
import pickletools
import re
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from cortext.errors import DataError

MOST_INSTRUCTIONS = 5_000_000
"""Longest program that is read: the published results of 183,060 sentences take about a million."""
_MARK = object()
_LITERALS = frozenset(
    (
        "INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT UNICODE SHORT_BINUNICODE"
        " BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8 BYTEARRAY8 STRING BINSTRING"
        " SHORT_BINSTRING"
    ).split()
)
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_KINDS = re.compile(r"b1|[iu][1248]|f[248]|O8|U[1-9]\d{0,6}")
_BUILDERS = {
    f"{package}.{name}": name
    for package in ("numpy.core.multiarray", "numpy._core.multiarray")
    for name in ("_reconstruct", "scalar")
} | {
    "numpy.core.numeric._frombuffer": "_frombuffer",
    "numpy._core.numeric._frombuffer": "_frombuffer",
    "numpy.dtype": "dtype",
    "numpy.ndarray": "ndarray",
    "_codecs.encode": "encode",
    "__builtin__.bytes": "bytes",
    "collections.OrderedDict": "OrderedDict",
}
"""Functions and classes that a pickle of plain data names -> their stand-ins in this module."""


def read_pickle(path: str | Path) -> Any:
    """Read a pickle of dicts, lists, tuples, numbers, texts and NumPy arrays, of any protocol.

    A scalar of NumPy becomes a Python number; an array of objects becomes a list.

    Raises:
        DataError: For a file that is damaged or holds anything else, with its position.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise DataError("is empty", where=path, fix="copy the file again")
            # A map reads no more than the file has, whatever length an instruction claims.
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _Machine(path).run(content)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=path) from None


class _Name(str):
    """A builder that the program has named: one of the values of `_BUILDERS`."""


class _Dtype(str):
    """The kind of a number or text that the program has named, as `_KINDS` has it."""


class _Empty:
    """An array whose numbers are still to come, and where the memo holds it."""

    key: int | None = None


class _Machine:
    """The stack machine of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, content: Any) -> Any:
        """Follow the instructions to the last one and return what is on the stack."""
        position: int | None = 0
        try:
            for number, (instruction, argument, position) in enumerate(pickletools.genops(content)):
                if number > MOST_INSTRUCTIONS:
                    raise self._refuse("it holds more objects than any published file", position)
                if instruction.name == "STOP":
                    (result,) = self.stack
                    return result
                self._step(instruction.name, argument)
        except _RefusedError as refused:
            raise self._refuse(str(refused), position) from None
        except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError):
            # A program that takes from an empty stack, or a file that ends early.
            raise DataError(
                f"is damaged at byte {position}, or is no pickle",
                where=self.path,
                fix="copy the file again",
            ) from None
        raise AssertionError("genops ends with STOP or an error")

    def _refuse(self, why: str, position: int | None) -> DataError:
        return DataError(
            f"refused at byte {position}: {why}; nothing of it was run",
            where=self.path,
            fix="give the file as it was published",
        )

    def _step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _LITERALS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
        elif (follow := _INSTRUCTIONS.get(name)) is not None:
            follow(self, argument)
        else:
            raise _RefusedError(f"it has the instruction {name}, which plain data does not need")

    def _since_mark(self) -> list[Any]:
        """Take what was pushed since the last mark, and the mark."""
        start = len(self.stack) - 1
        while self.stack[start] is not _MARK:
            start -= 1
            if start < 0:
                raise IndexError
        items = self.stack[start + 1 :]
        del self.stack[start:]
        return items

    def _append(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise _RefusedError("it appends to what is no list")
        target.extend(items)

    def _set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict:
            raise _RefusedError("it sets items of what is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # The hash of a tuple of tuples takes exponential time.
            if type(key) not in (str, int, float, bool, bytes):
                raise _RefusedError(f"it has a key that is a {type(key).__name__}")
            target[key] = value

    def _new_dict(self, items: list[Any]) -> None:
        self.stack.append({})
        self._set(items)

    def _pop_pair(self) -> list[Any]:
        pair = self.stack[-2:]
        del self.stack[-2:]
        return pair

    def _put(self, key: int) -> None:
        self.memo[key] = top = self.stack[-1]
        if type(top) is _Empty:
            top.key = key

    def _name(self, module: str, name: str) -> None:
        builder = _BUILDERS.get(f"{module}.{name}")
        if builder is None:
            raise _RefusedError(f"it asks for {module}.{name}, which is not data")
        self.stack.append(_Name(builder))

    def _call(self) -> None:
        builder, arguments = self._pop_pair()
        if type(builder) is not _Name or type(arguments) is not tuple:
            raise _RefusedError("it calls what is no function")
        self.stack.append(_CALLS[builder](*arguments))

    def _build(self) -> None:
        """Give the array on the stack its numbers; the state of a dtype is only looked at."""
        state = self.stack.pop()
        top = self.stack[-1]
        if type(top) is _Dtype:
            if state[1] not in ("<", "|"):
                raise _RefusedError("it holds numbers that are not little-endian")
        elif type(top) is _Empty:
            _, shape, dtype, is_fortran, content = state
            array = _array(content, dtype, shape, "F" if is_fortran else "C")
            self.stack[-1] = array
            if top.key is not None:
                self.memo[top.key] = array
        else:
            raise _RefusedError("it gives a state to what is no array")


class _RefusedError(Exception):
    """Something that plain data does not need."""


def _array(content: Any, dtype: Any, shape: Any, order: Any) -> Any:
    """Return an array of numbers, or a list for one of objects; both have what they claim."""
    if type(dtype) is not _Dtype or not all(type(n) is int and n >= 0 for n in shape):
        raise _RefusedError("it holds an array without a type or shape")
    if dtype == "O8":
        if type(content) is not list or shape != (len(content),):
            raise _RefusedError("it holds an array of objects that is no list")
        return content
    if type(content) not in (bytes, bytearray):
        raise _RefusedError("it holds an array without numbers")
    kind = np.dtype("?" if dtype == "b1" else f"<{dtype}")
    if len(content) != prod(shape) * kind.itemsize:
        raise _RefusedError(f"it claims {list(shape)} numbers for {len(content)} bytes")
    if dtype[0] == "U" and (np.frombuffer(content, "<u4") > sys.maxunicode).any():
        raise _RefusedError("it holds a text of what are no characters")
    return np.frombuffer(content, kind).reshape(shape, order="F" if order == "F" else "C")


def _dtype(kind: Any, *_: Any) -> _Dtype:
    if type(kind) is not str or not _KINDS.fullmatch(kind):
        raise _RefusedError(f"it holds numbers of NumPy's type {kind!r}")
    return _Dtype(kind)


def _scalar(dtype: Any, content: Any) -> Any:
    array = _array(content, dtype, (1,), "C")
    return array.item() if isinstance(array, np.ndarray) else array[0]


def _encode(text: Any, encoding: Any = "utf-8") -> bytes:
    # How bytes are written in the pickles of Python 2.
    if type(text) is not str or encoding not in ("latin1", "latin-1", "utf-8"):
        raise _RefusedError("it encodes what is no text")
    return text.encode(encoding)


def _no_bytes(*arguments: Any) -> bytes:
    # Python 2 has another form for none at all.
    if arguments:
        raise _RefusedError("it makes bytes of what is no text")
    return b""


def _ordered(pairs: Any = ()) -> dict[Any, Any]:
    if pairs:
        raise _RefusedError("it holds an ordered dict in a form of old")
    return {}


_CALLS: dict[str, Callable[..., Any]] = {
    "_reconstruct": lambda *_: _Empty(),
    "_frombuffer": _array,
    "scalar": _scalar,
    "dtype": _dtype,
    "encode": _encode,
    "bytes": _no_bytes,
    "OrderedDict": _ordered,
}
_INSTRUCTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda machine, _: None,
    "FRAME": lambda machine, _: None,
    "MARK": lambda machine, _: machine.stack.append(_MARK),
    "POP": lambda machine, _: machine.stack.__delitem__(-1),
    "POP_MARK": lambda machine, _: machine._since_mark().clear(),
    "LIST": lambda machine, _: machine.stack.append(machine._since_mark()),
    "DICT": lambda machine, _: machine._new_dict(machine._since_mark()),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine._since_mark())),
    "APPEND": lambda machine, _: machine._append([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine._append(machine._since_mark()),
    "SETITEM": lambda machine, _: machine._set(machine._pop_pair()),
    "SETITEMS": lambda machine, _: machine._set(machine._since_mark()),
    "PUT": lambda machine, key: machine._put(key),
    "BINPUT": lambda machine, key: machine._put(key),
    "LONG_BINPUT": lambda machine, key: machine._put(key),
    "MEMOIZE": lambda machine, _: machine._put(len(machine.memo)),
    "GET": lambda machine, key: machine.stack.append(machine.memo[key]),
    "BINGET": lambda machine, key: machine.stack.append(machine.memo[key]),
    "LONG_BINGET": lambda machine, key: machine.stack.append(machine.memo[key]),
    "GLOBAL": lambda machine, name: machine._name(*name.split(" ", 1)),
    "STACK_GLOBAL": lambda machine, _: machine._name(*machine._pop_pair()),
    "REDUCE": lambda machine, _: machine._call(),
    "BUILD": lambda machine, _: machine._build(),
}
