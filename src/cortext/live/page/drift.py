"""The drift report of the usage log, for the page.

It may read gigabytes, so it is made in a process of its own that computes only where a core is
idle. The page shows what `cortext report drift LOG --json` prints.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from cortext.errors import LiveError
from cortext.usage.log import LOG

COMMAND = (sys.executable, "-c", "from cortext.cli import main; main()")
LIMIT_S = 300.0
"""Seconds after which the process is killed."""


class DriftReports:
    """Makes one report at a time, and keeps it until the log has grown.

    Args:
        folder: The usage log; None where the server keeps none.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._turn = asyncio.Lock()
        self._state: tuple[int, int] | None = None
        self._report: dict[str, Any] = {}

    async def report(self) -> dict[str, Any]:
        """Return the report, as `DriftReport.to_json` describes it.

        Raises:
            LiveError: There is no log, or nothing can be said about it.
        """
        if self._folder is None:
            raise LiveError("there is no usage log", fix="start the server with --session-log DIR")
        async with self._turn:
            state = _state(self._folder / LOG)
            if state != self._state:
                self._report = await _made(self._folder)
                self._state = state
            return self._report


def _state(log: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        found = log.stat()
        return found.st_size, found.st_mtime_ns
    return None


async def _made(folder: Path) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "report", "drift", str(folder), "--json", "--skip-bad"),
        env=os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    if hasattr(os, "SCHED_IDLE"):
        with suppress(OSError):  # it has ended, or the system does not allow it
            os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
    try:
        async with asyncio.timeout(LIMIT_S):
            output, errors = await process.communicate()
    except TimeoutError:
        raise LiveError(
            f"the drift report takes longer than {LIMIT_S:g} s",
            fix="run `cortext report drift` on the log",
        ) from None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        said = errors.decode(errors="replace").strip().splitlines() or ["nothing was said"]
        raise LiveError("no drift report: " + said[-1].removeprefix("cortext: "))
    report: dict[str, Any] = json.loads(output)
    return report
