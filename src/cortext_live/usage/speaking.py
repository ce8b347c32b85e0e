"""A sign in a usage log that an utterance is being decoded, for programs that should then wait.

    DIR/speaking    its time of change is that of the utterance's beginning; 1970 between utterances

A process that was killed in mid-utterance leaves the sign behind; it counts for two minutes.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

FILE = "speaking"
LONGEST_S = 120.0
"""Seconds after which a sign counts no longer: live decoding ends an utterance after 60."""


def note_speaking(folder: str | Path, speaking: bool) -> None:
    """Set or remove the sign. Raises OSError where it cannot be written."""
    path = Path(folder) / FILE
    if speaking:
        path.touch(mode=0o600)
        os.utime(path)
    elif path.exists():
        os.utime(path, (0, 0))


def is_speaking(folder: str | Path) -> bool:
    """Tell whether an utterance is being decoded."""
    with suppress(OSError):
        return 0 <= time.time() - (Path(folder) / FILE).stat().st_mtime < LONGEST_S
    return False
