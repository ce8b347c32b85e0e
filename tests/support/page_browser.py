"""Chromium and the page's server, for tests and screenshots."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from page_process import program

CHROMIUM = "/usr/bin/chromium"
TOKEN = "secret"


class PageServer:
    """`page_process.py` in a process of its own, on a free port that it keeps when it is started
    again.
    """

    def __init__(self, root: Path, *options: str) -> None:
        self.root, self.options, self.port = root, options, 0

    def start(self) -> PageServer:
        command = program(self.root, "--port", str(self.port), *self.options)
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, env=environment, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.kill()
            raise RuntimeError(f"{command} ended before it listened")
        self.port = int(line)
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def kill(self) -> None:
        """As a crash ends it."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        self._process.send_signal(how)
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


# Contrast as the Web Content Accessibility Guidelines 2.2 define it (relative luminance, section
# "Definitions").


def luminance(rgb: tuple[float, ...]) -> float:
    """Of red, green and blue from 0 to 255."""
    red, green, blue = (
        (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4)
        for c in (v / 255 for v in rgb)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """From 1 (the same) to 21 (black on white)."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
