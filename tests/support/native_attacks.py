"""Attacks on compiled code, in a forked process that a wrong address may end.

The attacks of a table share one such process: a fork of a process that has loaded torch takes
longer than most of them. After an attack that kills or hangs the process the next one gets a new
process.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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


@dataclass
class Victim:
    """A process that makes the attacks of a table, one after another.

    attacks: what can be asked for; a forked process has them already, and gets only numbers
    there:   what each attack is given
    """

    attacks: Sequence[Attack]
    there: object = None
    _process: tuple[int, int, int] | None = None
    _made: list[str] = field(default_factory=list)

    def check(self, attack: Attack) -> None:
        """Make the attack, and check that it was answered or refused in one line."""
        kind, line = self.make(attack)
        assert kind is not None or not attack.says, "it is taken"
        if kind is not None:
            assert kind in REFUSALS, f"{kind}: {line}"
            assert kind == "TypeError" or "\n" not in line  # those list the types that are possible
            assert kind == "TypeError" or len(line) <= 1000
            assert re.search(attack.says, line), line

    def make(self, attack: Attack) -> tuple[str | None, str]:
        """What the attack raised, and with what message. Fails where the process died or hung."""
        _, ask, answers = self._process or self._start()
        os.write(ask, self.attacks.index(attack).to_bytes(4, "little"))
        ready, _, _ = select.select([answers], [], [], PATIENCE_S)
        said = os.read(answers, 65_536) if ready else b""
        if not said:
            status = self.end(kill=not ready)
            before = ", ".join(self._made[-3:]) or "none"
            assert ready, f"it is not done after {PATIENCE_S} s; attacks before it: {before}"
            raise AssertionError(f"the process died with {status}; attacks before it: {before}")
        self._made.append(attack.name)
        return tuple(json.loads(said))

    def _start(self) -> tuple[int, int, int]:
        (asked, ask), (answers, answer) = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            try:
                faulthandler.disable()
                os.close(ask)
                while number := os.read(asked, 4):
                    _answer(self.attacks[int.from_bytes(number, "little")], self.there, answer)
            finally:
                os._exit(0)
        os.close(asked)
        os.close(answer)
        self._process, self._made = (child, ask, answers), []
        return self._process

    def end(self, kill: bool = False) -> int:
        """End the process, if there is one; return its exit code, negative for a signal."""
        if self._process is None:
            return 0
        child, ask, answers = self._process
        self._process = None
        if kill:
            os.kill(child, signal.SIGKILL)
        os.close(ask)
        os.close(answers)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _answer(attack: Attack, there: object, answer: int) -> None:
    result: tuple[str | None, str] = None, ""
    try:
        attack.do(there)
    except BaseException as error:
        result = type(error).__name__, str(error)
    os.write(answer, json.dumps(result).encode()[:60_000])


@contextmanager
def victim(attacks: Sequence[Attack], there: object = None) -> Iterator[Victim]:
    """A process for the attacks of a table, which ends with the context."""
    process = Victim(attacks, there)
    try:
        yield process
    finally:
        status = process.end()
    assert status == 0, f"the process died with {status} at its end"
