"""A search of all files under directories for bytes: whether something is really gone."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def files_with(content: bytes, *folders: Path) -> list[Path]:
    """The files that hold these bytes, in their content or their name."""
    return [
        path
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if content in str(path).encode() or (path.is_file() and content in path.read_bytes())
    ]


def traces(text: str, features_TC: np.ndarray, *folders: Path) -> list[Path]:
    """The files that hold a word of a text, or one bin of features.

    In UTF-8, UTF-16 and as code points of 32 bits (`transcription` of session files); float32 as it
    is kept, and float16 as packed data have it.
    """
    found: list[Path] = []
    for word in text.split():
        codes = np.array([ord(letter) for letter in word], "<i4").tobytes()
        for content in (word.encode(), word.upper().encode(), word.encode("utf-16-le"), codes):
            found += files_with(content, *folders)
    for bin_C in features_TC[:: max(1, len(features_TC) // 5)]:
        found += files_with(bin_C.astype("<f4").tobytes(), *folders)
        found += files_with(bin_C.astype("<f2").tobytes(), *folders)
    return sorted(set(found))
