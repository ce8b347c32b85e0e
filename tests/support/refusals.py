"""Refusals of what a user gives, run in this process."""

from __future__ import annotations

import re
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from cortext.cli import run
from cortext.errors import CortextError

GIB = 2**30


def complaint(capsys, *arguments: object) -> str:
    """Return the one line that a command prints for a user's error, and nothing else."""
    capsys.readouterr()
    status = run([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert status == 2, printed
    assert not printed.out
    assert printed.err.startswith("cortext: ")
    assert printed.err.count("\n") == 1
    assert "Traceback" not in printed.err
    return printed.err


@contextmanager
def refused(
    says: str,
    most_mb: float = 100,
    most_s: float = 60,
    error: type[CortextError] = CortextError,
) -> Iterator[pytest.ExceptionInfo[CortextError]]:
    """Check that a call ends with one line for the user, as `commands.Ended.check_refused` does.

    The line matches the pattern, has only printable characters, and at most 1,000 of them. A
    command puts `cortext: ` before it.

    Args:
        says: A pattern that the line has.
        most_mb: Most memory that the call may take beyond what the process holds.
        most_s: Most seconds that it may take; a call that waits for ever is ended.
        error: The class of the error.
    """
    with pytest.raises(error) as caught, harmless(most_mb, most_s):
        yield caught
    line = str(caught.value)
    assert re.search(says, line), line
    assert line.isprintable(), repr(line)
    assert len(line) <= 1000, len(line)


@contextmanager
def harmless(most_mb: float = 100, most_s: float = 60) -> Iterator[None]:
    """Bound the memory and the time of what is called in this context."""

    def late(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it takes longer than {most_s} s")

    # The address space is bounded, too: memory that is asked for and never touched is not resident.
    before = resource.getrlimit(resource.RLIMIT_AS)
    held_mb = _memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest mark of memory begins here
    limit = int(_memory_mb("VmSize") * 2**20) + 6 * GIB
    usual = signal.signal(signal.SIGALRM, late)
    start_s = time.monotonic()
    signal.alarm(int(most_s) + 1)
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, usual)
        assert time.monotonic() - start_s < most_s
        assert _memory_mb("VmHWM") - held_mb < most_mb


def _memory_mb(name: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) / 1024
