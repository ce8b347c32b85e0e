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
"""A check's name, and the function that returns a note or raises the fault."""
NEEDED = {"builds", "shapes", "shape", "values", "repeats", "input", "random numbers", "gradients"}
"""Checks without which those after them mean nothing."""


class NotChecked(Exception):
    """Raised by a check that cannot be made; its text says why."""


def skip(reason: str) -> str:
    """Raise `NotChecked`; for functions that a check is."""
    raise NotChecked(reason)


def methods(checks: object, *names: str) -> list[Named]:
    """Return an object's methods as checks by their names; `long trials` is `long_trials`."""
    return [(name, getattr(checks, name.lower().replace(" ", "_"))) for name in names]


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        subject: The model, loss, augmentation or task, as `model conv`.
        name: The requirement.
        status: `PASS`, `FAIL` or `not checked`.
        found: The finding, with numbers; the reason of a check that was not made.
    """

    subject: str
    name: str
    status: Status
    found: str

    def __str__(self) -> str:
        because = "because " if self.status == "not checked" else ""
        line = shown(f"{self.subject}: {self.name}: {because}{self.found}")
        return f"{self.status:<11}  {line}"


Report = Callable[[CheckResult], None]
"""A function that is called with each result when it is there."""


@dataclass(frozen=True, repr=False)
class CheckReport:
    """The results of all checks, in their order; its text has a line for each.

    Attributes:
        checks: The results.
    """

    checks: tuple[CheckResult, ...]

    @property
    def failed(self) -> list[CheckResult]:
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
    report: Report | None = None,
) -> list[CheckResult]:
    """Make checks one after the other, up to one of `NEEDED` that fails.

    Args:
        subject: What they examine, as `model conv`.
        checks: Names and functions. A function returns a note; it raises `NotChecked`, or any other
            exception if the check fails.
        blamed: Classes whose functions are named where an exception comes from.
        until_s: Time of `time.process_time` after which no check begins.
        report: Called with each result when it is there.
    """
    found = list[CheckResult]()
    for name, check in checks:
        failed = [one.name for one in found if one.status == "FAIL" and one.name in NEEDED]
        found.append(_result(subject, name, check, blamed, failed, time.process_time() > until_s))
        if report is not None:
            report(found[-1])
    return found


def _result(
    subject: str,
    name: str,
    check: Callable[[], str],
    blamed: Sequence[Any],
    failed: Sequence[str],
    is_late: bool,
) -> CheckResult:
    try:
        if is_late:
            raise NotChecked("there was no time left")
        if failed:
            raise NotChecked(f"{failed[0]} failed")
        return CheckResult(subject, name, "PASS", check())
    except (NotChecked, MissingLibrary) as reason:
        return CheckResult(subject, name, "not checked", str(reason))
    except CortextError as error:
        return CheckResult(subject, name, "FAIL", str(located(error, *blamed)))
    # The user's own code may raise anything.
    except Exception as error:
        line = fault(error, *blamed)
        said = str(line or f"{type(error).__name__}: {first_line(error)}")
        if line is None and blamed:
            said = _misfit(subject, said, blamed)
        return CheckResult(subject, name, "FAIL", said)


def _misfit(subject: str, said: str, blamed: Sequence[Any]) -> str:
    """Return the line for an exception outside the user's own code: arguments that do not fit."""
    is_loss = not subject.startswith("augmentation")
    calls = {
        "forward": "x_BTC, day_B, state=None, *, n_patches_B=None",
        "__call__": "network, batch, fraction" if is_loss else "x_BTC, n_bins_B, generator",
    }
    for thing in blamed:
        cls = thing if isinstance(thing, type) else type(thing)
        for method, arguments in calls.items():
            if f" {cls.__qualname__}.{method}() " in said:
                return f"{place(cls, method)}: {said}; write def {method}(self, {arguments})"
    return f"{place(blamed[0], '__init__')}: {said}"
