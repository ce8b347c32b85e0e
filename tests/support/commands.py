"""Commands of `cortext` as a user starts them.

Each in a process of its own, with limits of memory and time.

The processes are forked from one that has loaded the package, which saves the seconds of loading it
for each command.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import json
import multiprocessing
import os
import pkgutil
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import weakref
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from cortext.entry_points import joined

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        # Commands are imported when they are asked for: here, once for all processes.
        *(
            f"{package}.{module.name}"
            for package in ("cortext.cli", *(entry.module for entry in joined("cortext.commands")))
            for module in pkgutil.iter_modules(import_module(package).__path__)
        ),
        "rich.progress",
        "rich.table",
        "cortext.training",
        "cortext_lm.ensemble",
        "cortext.evaluation.run",
        "cortext_live.usage.report",
        "cortext_live.page.server",
        "cortext_live.lm_server.server",
        "cortext_live.brand.process",
    ]
)
# Found once: looking through all installed packages takes longer than most commands.
SCRIPT = next(iter(importlib.metadata.entry_points(group="console_scripts", name="cortext")))
GIB = 2**30
NOT_PRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    `status` is negative for a signal; `peak_mb` is the most memory that it held.
    """

    status: int
    stdout: str
    stderr: str
    seconds: float
    peak_mb: float

    @property
    def said(self) -> str:
        """All that it wrote."""
        return self.stdout + self.stderr

    def check_harmless(self, most_mb: float = 1500, most_s: float = 60) -> None:
        """Check what holds after any attack.

        No traceback, no escapes for the terminal, bounded memory and time.
        """
        assert "Traceback" not in self.said, self.said[-3000:]
        assert not NOT_PRINTABLE.search(self.said), repr(self.said[:2000])
        assert self.status in (0, 2), (self.status, self.said[-2000:])
        assert self.peak_mb < most_mb
        assert self.seconds < most_s

    def check_refused(self, says: str = "", most_mb: float = 1500, most_s: float = 60) -> None:
        """Check that it ended with status 2 and one line of at most 1,000 characters that
        matches the pattern.
        """
        self.check_harmless(most_mb, most_s)
        lines = [line for line in self.stderr.splitlines() if line.startswith("cortext: ")]
        assert self.status == 2, (self.status, self.said[-2000:])
        assert len(lines) == 1, self.stderr
        assert len(lines[0]) <= 1000, len(lines[0])
        assert re.search(says, lines[0]), lines[0]


class Command:
    """A command under way.

    arguments: what follows `cortext`
    memory:    most bytes that it may take from the system beyond what the loaded package has
    """

    def __init__(self, *arguments: str | Path, memory: int = 6 * GIB, **environment: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="command-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        texts = [str(argument) for argument in arguments]
        self.process = CONTEXT.Process(
            target=_run, args=(texts, self._folder, memory, environment), daemon=True
        )
        self.process.start()
        self._start_s = time.monotonic()  # the first start loads what the others are forked from

    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.is_alive()

    def kill(self) -> Ended:
        """End it with SIGKILL."""
        self.process.kill()
        return self.wait()

    def interrupt(self, patience_s: float = 20) -> Ended:
        """End it with SIGINT."""
        if self.process.pid is not None and self.running():
            os.kill(self.process.pid, signal.SIGINT)
        return self.wait(patience_s)

    def wait(self, patience_s: float = 120) -> Ended:
        """Wait for its end. Fails, and kills it, when it takes too long."""
        self.process.join(patience_s)
        seconds = time.monotonic() - self._start_s
        late = self.process.exitcode is None
        if late:
            self.process.kill()
            self.process.join()
        out, err = self.stdout, self.stderr
        assert not late, f"it takes longer than {patience_s} s; it said {err[-2000:]}"
        peak_mb = 0.0
        with contextlib.suppress(OSError, ValueError):
            peak_mb = json.loads((self._folder / "peak_mb").read_text())
        return Ended(int(self.process.exitcode or 0), out, err, seconds, peak_mb)

    @property
    def stdout(self) -> str:
        """What it has written so far."""
        return self._read("stdout")

    @property
    def stderr(self) -> str:
        """What it has written to the other stream so far."""
        return self._read("stderr")

    def _read(self, name: str) -> str:
        path = self._folder / name
        return path.read_bytes().decode(errors="surrogateescape") if path.exists() else ""


def run(
    *arguments: str | Path, patience_s: float = 120, memory: int = 6 * GIB, **environment: str
) -> Ended:
    """Run a command to its end."""
    return Command(*arguments, memory=memory, **environment).wait(patience_s)


def _run(arguments: list[str], folder: Path, memory: int, environment: dict[str, str]) -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        with (folder / name).open("wb") as file:
            os.dup2(file.fileno(), number)
    # Searches for garbage pass over what was loaded before the fork: a server that begins searches
    # all of it, half a second, and would copy its pages.
    gc.freeze()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.freeze()  # a search of what the package holds would copy its memory into this process
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    main: Any = SCRIPT.load()
    try:
        main(arguments)
    finally:
        sys.stdout.flush()
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        (folder / "peak_mb").write_text(str(peak_mb))
