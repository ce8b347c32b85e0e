"""Files of a folder that are no recordings of the mapping, or that cannot be read as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from cortext.data.checks import FaultError
from cortext_data.readers.recording import Contents, Recording


def without_strays(
    paths: Sequence[Path], names: Sequence[str], has_one: Callable[[Path, Sequence[str]], bool]
) -> tuple[list[Path], list[Recording]]:
    """Divide files into those to read, and those that have none of the mapping's features.

    Parameters and results often lie beside recordings. An import leaves them out with a note.
    Where no file has a feature, none is a stray: the mapping has another name than the files.

    Args:
        paths: Files of the source.
        names: Names of the mapping's features.
        has_one: Returns whether a file has one of the names; may raise FaultError.
    """
    strays = []
    for path in paths if len(paths) > 1 else ():
        try:
            if not has_one(path, names):
                strays.append(path)
        except FaultError:  # named when its turn comes
            continue
    if len(strays) == len(paths):
        return list(paths), []
    kept = [path for path in paths if path not in strays]
    return kept, [_left_out(path, names) for path in strays]


def refused(path: Path, fault: FaultError) -> Recording:
    """Return the recording of a file that states no session; opening it says why."""
    return Recording(path.stem, [path], partial(_refuse, fault))


def _refuse(fault: FaultError) -> AbstractContextManager[Contents]:
    raise fault


def _left_out(path: Path, names: Sequence[str]) -> Recording:
    listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")

    @contextmanager
    def opened() -> Iterator[Contents]:
        note = f"left out: the file has none of the mapping's features ({listed})"
        yield Contents([], notes=[note])

    return Recording(path.name, [path], opened)
