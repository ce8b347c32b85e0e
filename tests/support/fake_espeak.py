"""A program in place of espeak-ng, whose sound is known, and which fails where the text says so."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = r"""#!{python} -ISE
import json, os, sys, time
if "--version" in sys.argv:
    print("eSpeak NG text-to-speech: 1.51")
    sys.exit()
said = sys.stdin.buffer.read().decode()
with open({log!r}, "a") as log:
    log.write(json.dumps([os.getpid(), sys.argv[1:], said]) + "\n")
out = sys.stdout.buffer
if "crash" in said:
    os.kill(os.getppid(), 9)
if "hang" in said or "crash" in said:
    time.sleep(60)
if "fail" in said:
    sys.exit(3)
rate = (22050).to_bytes(4, "little")
out.write(b"RIFF....WAVEfmt ........" + rate + b"......data....".ljust(16, b"."))
if "slow" in said:
    for _ in range(3000):
        out.write(b"\1\0" * 1000)
        out.flush()
        time.sleep(0.02)
out.write(b"\1\0\2")
out.flush()
time.sleep(0.05)
out.write(b"\0\3")  # half a sample is left
"""
SOUND = b"\1\0\2\0"
"""What it says, but for `slow`."""


@dataclass(frozen=True)
class Said:
    """A call of the program."""

    pid: int
    arguments: list[str]
    text: str


class FakeEspeak:
    """The program, first on the PATH, and a log of its calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.log.touch()
        program = folder / "espeak-ng"
        text = PROGRAM.replace("{python}", sys.executable).replace("{log!r}", repr(str(self.log)))
        program.write_text(text)
        program.chmod(0o755)

    @property
    def said(self) -> list[Said]:
        """Its calls, but for the first word of each process."""
        calls: list[Any] = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [Said(*call) for call in calls if call[2] != "hello"]
