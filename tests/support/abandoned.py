"""Temporary files as a killed process leaves them."""

import os
from pathlib import Path

from cortext.temporaries import new_temporary


def abandoned(path: Path, directory: bool = False) -> Path:
    """Leave a half-written file or directory that was to become `path`; nobody locks it."""
    left = new_temporary(path, directory=directory)
    os.close(left.descriptor)
    half = left.path / "half" if directory else left.path
    half.write_bytes(b"half")
    return left.path
