"""Pickles from anywhere, read as data: nothing that they name is imported or called.

A pickle is a program for a small stack machine, and Python's own machine runs whatever functions it
names. This machine knows the few instructions that build containers, numbers, texts and arrays of
NumPy; it has none that looks a name up. (A restricted `pickle.Unpickler` was the alternative. Its
`find_class` stops foreign functions, but not dictionaries whose keys take for ever to hash, nor a
memo of 16 GB that an instruction of five bytes asks for.)

Work and memory are bounded by the length of the file. An instruction takes at most about 100 bytes
beside what it copies from the file, and all calls together work through a few times the file's
length: a program can name a long text again in two bytes.
"""

from __future__ import annotations

import mmap
import pickletools
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from cortext.errors import DataError

MOST_INSTRUCTIONS = 3_000_000
"""Longest program that is read: the published results of 183,060 sentences take about a million."""
MOST_PASSES = 4
"""Times that calls may work through the file; two of them are needed at most."""
MOST_AXES = 32
"""Most axes of an array, as NumPy 1 has it."""
_MOST_ARGUMENTS = 16
_MOST_NAME = 200
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
                return interpret(content)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=path) from None
    except DamagedError as error:
        raise DataError(str(error), where=path, fix="copy the file again") from None
    except RefusedError as error:
        raise DataError(str(error), where=path, fix="give the file as it was published") from None


class RefusedError(Exception):
    """A program asks for more than plain data need; the message is one line."""


class DamagedError(Exception):
    """A program is no whole pickle; the message is one line."""


def interpret(
    content: bytes | mmap.mmap,
    known: Mapping[str, Any] | None = None,
    stored: Callable[[Any], Any] | None = None,
) -> Any:
    """Follow a program and return the data that it builds. See `read_pickle` for those.

    Args:
        content: The program.
        known: Further names, `module.name`, and their values: functions that a program may call, or
            data. A function gets what the program gives it, and must check that.
        stored: Returns the data that a persistent id names; None refuses such ids.

    Raises:
        RefusedError: For a program that asks for something else, or for too much.
        DamagedError: For a program that ends early, or takes from an empty stack.
    """
    return _Machine({**_KNOWN, **(known or {})}, stored, MOST_PASSES * len(content)).run(content)


class _Name:
    """The value of a name that the program has asked for."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class _Dtype(str):
    """The kind of a number or text that the program has named, as `_KINDS` has it."""


class _Empty:
    """An array whose numbers are still to come, and where the memo holds it."""

    __slots__ = ("key",)

    def __init__(self) -> None:
        self.key: int | None = None


class _Machine:
    """The stack machine of one program.

    Args:
        known: See `interpret`, as for `stored`.
        stored: Returns what a persistent id names.
        most_work: Bytes and items that calls may work through.
    """

    def __init__(
        self, known: Mapping[str, Any], stored: Callable[[Any], Any] | None, most_work: int
    ) -> None:
        self.known = known
        self.stored = stored
        self.work_left = most_work
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, content: Any) -> Any:
        """Follow the instructions to the last one and return the value on the stack."""
        position: int | None = 0
        try:
            for number, (instruction, argument, at) in enumerate(pickletools.genops(content)):
                position = at
                if number > MOST_INSTRUCTIONS:
                    raise RefusedError("it holds more objects than any file of results")
                if instruction.name == "STOP":
                    (result,) = self.stack
                    return result
                self._step(instruction.name, argument)
        except RefusedError as refused:
            raise RefusedError(
                f"refused at byte {position}: {refused}; nothing of it was run"
            ) from None
        except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError):
            # A program that takes from an empty stack, or a file that ends early.
            raise DamagedError(f"is damaged at byte {position}, or is no pickle") from None
        raise AssertionError("genops ends with STOP or an error")

    def _step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _LITERALS:
            # Arithmetic on integers of any length takes any time.
            if type(argument) is int and not -(1 << 63) <= argument < 1 << 64:
                raise RefusedError("it holds an integer beyond 64 bits")
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
        elif (follow := _INSTRUCTIONS.get(name)) is not None:
            follow(self, argument)
        elif name == "BINPERSID" and self.stored is not None:
            stack.append(self.stored(stack.pop()))
        else:
            raise RefusedError(f"it has the instruction {name}, which plain data does not need")

    def _since_mark(self) -> list[Any]:
        """Take the values pushed since the last mark, and the mark."""
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
            raise RefusedError("it appends to what is no list")
        target.extend(items)

    def _set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) not in (dict, OrderedDict):
            raise RefusedError("it sets items of what is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # The hash of a tuple of tuples takes exponential time.
            if type(key) not in (str, int, float, bool, bytes):
                raise RefusedError(f"it has a key that is a {type(key).__name__}")
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

    def _name(self, *parts: Any) -> None:
        # Of a tuple of tuples of ..., a message would be exponentially long.
        if not all(type(part) is str and len(part) <= _MOST_NAME for part in parts):
            raise RefusedError("it asks for something whose name is no short text")
        name = ".".join(parts)
        if name not in self.known:
            raise RefusedError(f"it asks for {name}, which is not data")
        self.stack.append(_Name(self.known[name]))

    def _call(self) -> None:
        builder, arguments = self._pop_pair()
        if type(builder) is not _Name or type(arguments) is not tuple:
            raise RefusedError("it calls what is no function")
        self._count_work(arguments)
        self.stack.append(builder.value(*arguments))

    def _count_work(self, arguments: tuple[Any, ...]) -> None:
        if len(arguments) > _MOST_ARGUMENTS:
            raise RefusedError(f"it calls with {len(arguments)} arguments")
        self.work_left -= sum(len(each) for each in arguments if type(each) in _SIZED)
        if self.work_left < 0:
            raise RefusedError("it uses the same content again and again")

    def _build(self) -> None:
        """Give the array on the stack its numbers; the state of a dtype is only looked at."""
        state = self.stack.pop()
        top = self.stack[-1]
        if type(top) is _Dtype:
            if type(state) is not tuple or state[1] not in ("<", "|"):
                raise RefusedError("it holds numbers that are not little-endian")
        elif type(top) is OrderedDict and type(state) is dict:
            pass  # attributes of a module's weights, which nobody needs
        elif type(top) is _Empty and type(state) is tuple:
            self._count_work(state)
            _, shape, dtype, is_fortran, content = state
            array = _array(content, dtype, shape, "F" if is_fortran is True else "C")
            self.stack[-1] = array
            if top.key is not None:
                self.memo[top.key] = array
        else:
            raise RefusedError("it gives a state to what is no array")


def _array(content: Any, dtype: Any, shape: Any, order: Any) -> Any:
    """Return an array of numbers, or a list for one of objects; both have what they claim."""
    if type(dtype) is not _Dtype or type(shape) is not tuple or len(shape) > MOST_AXES:
        raise RefusedError("it holds an array without a type or shape")
    if not all(type(n) is int and n >= 0 for n in shape):
        raise RefusedError("it holds an array without a type or shape")
    if dtype == "O8":
        if type(content) is not list or shape != (len(content),):
            raise RefusedError("it holds an array of objects that is no list")
        return content
    if type(content) not in (bytes, bytearray):
        raise RefusedError("it holds an array without numbers")
    kind = np.dtype("?" if dtype == "b1" else f"<{dtype}")
    if len(content) != prod(shape) * kind.itemsize:
        raise RefusedError(f"it claims {list(shape)} numbers for {len(content)} bytes")
    if dtype[0] == "U" and (np.frombuffer(content, "<u4") > sys.maxunicode).any():
        raise RefusedError("it holds a text of what are no characters")
    return np.frombuffer(content, kind).reshape(shape, order="F" if order == "F" else "C")


def _dtype(kind: Any, *_: Any) -> _Dtype:
    if type(kind) is not str or not _KINDS.fullmatch(kind):
        named = f"{kind[:20]!r}" if type(kind) is str else "that has no name"
        raise RefusedError(f"it holds numbers of NumPy's type {named}")
    return _Dtype(kind)


def _scalar(dtype: Any, content: Any) -> Any:
    array = _array(content, dtype, (1,), "C")
    return array.item() if isinstance(array, np.ndarray) else array[0]


def _encode(text: Any, encoding: Any = "utf-8") -> bytes:
    # How bytes are written in the pickles of Python 2.
    if type(text) is not str or encoding not in ("latin1", "latin-1", "utf-8"):
        raise RefusedError("it encodes what is no text")
    return text.encode(encoding)


def _no_bytes(*arguments: Any) -> bytes:
    # Python 2 has another form for none at all.
    if arguments:
        raise RefusedError("it makes bytes of what is no text")
    return b""


def _ordered(pairs: Any = ()) -> OrderedDict[Any, Any]:
    if type(pairs) not in (tuple, list) or pairs:
        raise RefusedError("it holds an ordered dict in a form of old")
    return OrderedDict()


_SIZED = (str, bytes, bytearray, list, tuple)
_KNOWN: dict[str, Any] = {
    f"{package}.{name}": value
    for package in ("numpy.core", "numpy._core")
    for name, value in (
        ("multiarray._reconstruct", lambda *_: _Empty()),
        ("multiarray.scalar", _scalar),
        ("numeric._frombuffer", _array),
    )
} | {
    "numpy.dtype": _dtype,
    "numpy.ndarray": None,
    "_codecs.encode": _encode,
    "__builtin__.bytes": _no_bytes,
    "collections.OrderedDict": _ordered,
}
"""Names in pickles of plain data -> their stand-ins in this module."""
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
