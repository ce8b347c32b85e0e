"""Commands of `cortext`, one after another in one process.

For attacks that differ in a file: most take less time than a fork of a process that has loaded the
package. A command that ends the process fails alone; the next one gets a new process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from commands import CONTEXT, GIB, SCRIPT, Ended


class CommandLoop:
    """A process that runs commands, with `memory` bytes beyond what the loaded package has."""

    def __init__(self, memory: int = 6 * GIB) -> None:
        self._memory = memory
        self._process: Any = None
        self._pipe: Any = None

    def run(self, *arguments: str, patience_s: float = 60) -> Ended:
        """Run a command to its end. Fails, and kills it, when it takes too long."""
        if self._process is None or not self._process.is_alive():
            self._start()
        start_s = time.monotonic()
        self._pipe.send(arguments)
        is_done = self._pipe.poll(patience_s)
        try:
            if is_done:
                status, stdout, stderr, peak_mb = self._pipe.recv()
                return Ended(status, stdout, stderr, time.monotonic() - start_s, peak_mb)
        except EOFError:
            pass
        self.end()
        assert is_done, f"it takes longer than {patience_s} s"
        raise AssertionError("the process died")

    def _start(self) -> None:
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_serve, args=(theirs, self._memory), daemon=True)
        self._process.start()
        theirs.close()

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()


@contextlib.contextmanager
def command_loop() -> Iterator[CommandLoop]:
    """Yield a loop that ends with the context."""
    loop = CommandLoop()
    try:
        yield loop
    finally:
        loop.end()


def _serve(pipe: Connection, memory: int) -> None:
    gc.freeze()  # as in commands.py
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    main = SCRIPT.load()
    while True:
        arguments = list(pipe.recv())
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            status = _status_of(main, arguments)
            texts = []
            for file in (out, err):
                file.seek(0)
                texts.append(file.read().decode(errors="surrogateescape"))
        pipe.send((status, *texts, _peak_mb()))


def _status_of(main: Any, arguments: list[str]) -> int:
    """Run a command, and return the status that its process would end with."""
    try:
        status = main(arguments)
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return status if isinstance(status, int) else int(status is not None)


def _peak_mb() -> float:
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024
