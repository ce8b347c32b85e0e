"""Attacks on compiled code, each in a forked process of its own.

A wrong address is one failure, not the tests' end.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import select
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

PATIENCE_S = 20
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


def odd(array: np.ndarray) -> np.ndarray:
    """A copy at an address that no number of this type has."""
    room = np.zeros(array.nbytes + 64, np.uint8)
    start = 1 + -room.ctypes.data % 64
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    assert copy.ctypes.data % array.itemsize
    return copy


def check_attack(attack: Attack, there: object = None) -> None:
    """Do it in a process of its own, and look at how that ended."""
    kind, line = in_process_of_its_own(lambda: attack.do(there))
    assert kind is not None or not attack.says, "it is taken"
    if kind is not None:
        assert kind in REFUSALS, f"{kind}: {line}"
        assert kind == "TypeError" or "\n" not in line  # those list the types that are possible
        assert kind == "TypeError" or len(line) <= 1000
        assert re.search(attack.says, line), line


def in_process_of_its_own(do: Callable[[], object]) -> tuple[str | None, str]:
    """What it raised in a fork of this process, and with what message.

    Fails where the process died or hung.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        answer: tuple[str | None, str] = None, ""
        try:
            faulthandler.disable()
            do()
        except BaseException as error:
            answer = type(error).__name__, str(error)
        finally:
            os.write(write, json.dumps(answer).encode()[:60_000])
            os._exit(0)
    os.close(write)
    ready, _, _ = select.select([read], [], [], PATIENCE_S)
    said = os.read(read, 65_536) if ready else b""
    os.close(read)
    if not ready:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert ready, f"it is not done after {PATIENCE_S} s"
    assert os.waitstatus_to_exitcode(status) == 0, (
        f"the process died with {os.waitstatus_to_exitcode(status)}"
    )
    return tuple(json.loads(said))
