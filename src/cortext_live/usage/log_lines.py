"""Lines of a usage log as bytes: their numbers and checksums, and the remains of damaged ones.

A written line ends in `"entry": NUMBER, "log": BEGAN, "crc": CHECKSUM}`: the number of the entry
that it is or is about, the second of the log's first entry, and the CRC-32 of the bytes before
`, "crc"`. So a damaged line costs itself alone, and no other entry its number. Lines of other
programs, which may lack the three keys, are numbered by counting.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import Any

KEYS = ("entry", "log", "crc")
MOST_ENTRIES = 5_000_000
"""Most entries of a log: a number in a hostile file must not fill the memory with missing ones."""
NUMBER_BYTES = 80
"""Most bytes that number and checksum add to a line."""

_CRC = b', "crc": '
_BEGINNING = re.compile(rb'(?=\{\s*"(?:id|when)"\s*:\s*")')
_ID = re.compile(rb'[^"]{0,4}"id"\s*:\s*"([^"\\]{0,64})"')
_WHEN = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:[+-]\d\d:\d\d|Z)")
_TURN = re.compile(rb'\{\s*"when"')
_ENTRY = re.compile(
    rb'"(?:session|duration_s|n_words|words_per_minute|text|source|partner|deleted|damaged)"\s*:'
)
_FEEDBACK = re.compile(rb'"(?:correction|rating)"\s*:')


def numbered(raw: bytes, entry: int, log: int) -> bytes:
    """Return a line, a JSON object without these keys, with its number and checksum.

    Args:
        raw: The line.
        entry: Number of the entry that it is, or is about.
        log: Second of the log's first entry.
    """
    content = raw.rstrip()[:-1] + b', "entry": %d, "log": %d' % (entry, log)
    return content + _CRC + b"%d}\n" % zlib.crc32(content)


def check_sum(raw: bytes, line: dict[str, Any]) -> None:
    """Raise ValueError for a numbered line that is not as it was written."""
    if not any(key in line for key in KEYS):
        return
    content, _, crc = raw.rpartition(_CRC)
    if crc.rstrip() != b"%d}" % zlib.crc32(content):
        raise ValueError("it was changed since it was written")


@dataclass(frozen=True)
class Remains:
    """An entry that a damaged line seems to have been.

    Attributes:
        id: Its id; None where it has none, or cannot be read.
        when: Its time as written; None where it cannot be read.
        is_sure: Whether it was a whole entry: not something else, and not the unfinished line of a
            killed process, which the next one does not count in logs without numbers.
        is_entry: Whether it was an entry, whole or not.
        is_known: Whether its id was read, or it has none.
    """

    id: str | None = None
    when: str | None = None
    is_sure: bool = False
    is_entry: bool = False
    is_known: bool = False


def remains(raw: bytes) -> list[Remains]:
    """Return the entries that a damaged line seems to hold: several where lines were joined."""
    pieces = [each for each in _BEGINNING.split(raw) if each.strip(b"\0 \t\r\n")]
    remains_found = []
    for n, piece in enumerate(pieces):
        is_turn = _TURN.match(piece) is not None
        is_entry = is_turn or _ENTRY.search(piece) is not None
        if not is_entry and (_FEEDBACK.search(piece) or (n == 0 and len(pieces) > 1)):
            continue
        # Without its end the last line may be one that is being written.
        is_whole = n + 1 < len(pieces) or piece.endswith((b"}\n", b"}\r\n"))
        id_, when = _ID.match(piece), _WHEN.search(piece)
        remains_found.append(
            Remains(
                None if id_ is None else id_[1].decode(errors="replace"),
                None if when is None else when[0].decode(errors="replace"),
                is_entry and is_whole,
                is_entry,
                is_turn or id_ is not None,
            )
        )
    return remains_found if pieces else [Remains()]
