"""The drift report of the usage log, for the page.

It may read gigabytes, so it is made in a process of its own that computes only where a core is
idle. The page shows what `cortext report drift LOG --json` prints; `--chain` or `--run` says which
model the day layers are of.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cortext.errors import LiveError
from cortext_live.recalibration.chain import chain_state
from cortext_live.usage.drift.report import has_day_layers
from cortext_live.usage.log import LOG

COMMAND = (sys.executable, "-c", "from cortext.cli import main; main()")
LIMIT_S = 300.0
"""Seconds after which the process is killed."""


class DriftReports:
    """Makes one report at a time, and keeps it until the log or the chain has grown.

    Args:
        folder: The usage log; None where the server keeps none.
        run: Run directory of the model that decodes until there is a chain; None without one.
        chain: The chain of models that the server follows, which may not exist yet; None for none.
    """

    def __init__(
        self, folder: Path | None, run: Path | None = None, chain: Path | None = None
    ) -> None:
        self._folder = folder
        self._run = run
        self._chain = chain
        self._turn = asyncio.Lock()
        self._state: tuple[object, object] | None = None
        self._report: dict[str, Any] = {}

    async def report(self) -> dict[str, Any]:
        """Return the report, as `DriftReport.to_json` describes it.

        Raises:
            LiveError: There is no log, or too little for a report.
        """
        if self._folder is None:
            raise LiveError("there is no usage log", fix="start the server with --session-log DIR")
        async with self._turn:
            chain = chain_state(self._chain) if self._chain else None
            state = _state(self._folder / LOG), chain
            if state != self._state:
                self._report = await _made(self._folder, self._layers(chain is not None))
                self._state = state
            return self._report

    def _layers(self, has_chain: bool) -> list[str]:
        """Return the option that names the model with the day layers; nothing where none has."""
        if has_chain:
            return ["--chain", str(self._chain)]
        has_layers = self._run is not None and has_day_layers(self._run)
        return ["--run", str(self._run)] if has_layers else []


def _state(log: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        status = log.stat()
        return status.st_size, status.st_mtime_ns
    return None


async def _made(folder: Path, options: Sequence[str]) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "report", "drift", str(folder), "--json", "--skip-bad", *options),
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
        lines = errors.decode(errors="replace").strip().splitlines() or ["nothing was said"]
        raise LiveError("no drift report: " + lines[-1].removeprefix("cortext: "))
    report: dict[str, Any] = json.loads(output)
    return report
