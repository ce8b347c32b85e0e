"""The result of checks, and the function that makes one of a function that may fail."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cortext.errors import CortextError, MissingLibrary, first_line, shown
from cortext.plugins import fault, located, place

Status = Literal["PASS", "FAIL", "not checked"]
Named = tuple[str, Callable[[], str]]
"""A check's name, and the function that returns a note or raises what is wrong."""
NEEDED = {"builds", "shapes", "shape", "values", "repeats", "input", "random numbers", "gradients"}
"""Checks without which those after them mean nothing."""


class NotChecked(Exception):
    """Raised by a check that cannot be made; its text says why."""


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        subject: The model, loss, augmentation or task, as `model conv`.
        name: The requirement.
        status: `PASS`, `FAIL` or `not checked`.
        found: What was found, with numbers; the reason of a check that was not made.
    """

    subject: str
    name: str
    status: Status
    found: str

    def __str__(self) -> str:
        because = "because " if self.status == "not checked" else ""
        line = shown(f"{self.subject}: {self.name}: {because}{self.found}")
        return f"{self.status:<11}  {line}"


@dataclass(frozen=True, repr=False)
class CheckReport:
    """The results of all checks, in their order; its text has a line for each.

    Attributes:
        checks: The results.
    """

    checks: tuple[Check, ...]

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.status == "FAIL"]

    @property
    def passed(self) -> bool:
        """True if no check failed."""
        return not self.failed

    def __str__(self) -> str:
        return "\n".join(map(str, self.checks))

    __repr__ = __str__


def examine(
    subject: str,
    checks: Iterable[Named],
    blamed: Sequence[Any] = (),
    until_s: float = math.inf,
) -> list[Check]:
    """Make checks one after the other, up to one of `NEEDED` that fails.

    Args:
        subject: What they examine, as `model conv`.
        checks: Names and functions. A function returns a note; it raises `NotChecked`, or any other
            exception if the check fails.
        blamed: Classes whose functions are named where an exception comes from.
        until_s: Time of `time.process_time` after which no check begins.
    """
    found = list[Check]()
    for name, check in checks:
        try:
            if time.process_time() > until_s:
                raise NotChecked("there was no time left")
            for before in found:
                if before.status == "FAIL" and before.name in NEEDED:
                    raise NotChecked(f"{before.name} failed")
            found.append(Check(subject, name, "PASS", check()))
        except (NotChecked, MissingLibrary) as reason:
            found.append(Check(subject, name, "not checked", str(reason)))
        except CortextError as error:
            found.append(Check(subject, name, "FAIL", str(located(error, *blamed))))
        # The user's own code may raise anything.
        except Exception as error:
            line = fault(error, *blamed)
            said = str(line or f"{type(error).__name__}: {first_line(error)}")
            if line is None and blamed:
                said = f"{place(blamed[0], '__init__')}: {said}"
            found.append(Check(subject, name, "FAIL", said))
    return found
