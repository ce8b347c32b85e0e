"""Attacks on compiled code."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from attack_process import check_all

REFUSALS = (
    "ValueError",
    "TypeError",
    "IndexError",
    "UnicodeEncodeError",
    "DecodingError",
    "LanguageModelError",
)


@dataclass(frozen=True)
class Attack:
    """What is done, and that it is refused with one line that the pattern `says`.

    Empty: an answer will do, too.
    """

    name: str
    do: Callable[[Any], object]
    says: str = ""

    def __str__(self) -> str:
        return self.name


def check_native(table: Sequence[Attack], there: object = None) -> None:
    """Make the attacks of a table, and check that each is answered or refused in one line.

    Args:
        table: The attacks.
        there: What each attack is given.
    """
    check_all(table, lambda attack: _check(attack, there), patience_s=20)


def _check(attack: Attack, there: object) -> None:
    try:
        attack.do(there)
    except BaseException as error:
        kind, line = type(error).__name__, str(error)
    else:
        assert not attack.says, "it is taken"
        return
    assert kind in REFUSALS, f"{kind}: {line}"
    assert kind == "TypeError" or "\n" not in line  # those list the types that are possible
    assert kind == "TypeError" or len(line) <= 1000
    assert re.search(attack.says, line), line


def odd(array: np.ndarray) -> np.ndarray:
    """A copy at an address that no number of this type has."""
    room = np.zeros(array.nbytes + 64, np.uint8)
    start = 1 + -room.ctypes.data % 64
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    assert copy.ctypes.data % array.itemsize
    return copy
