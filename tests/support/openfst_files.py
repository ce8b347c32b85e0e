"""A writer of OpenFst files of our own, sound or not: facts of the format."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

Arcs = Sequence[tuple[int, int, float, int]]
"""Input, output, weight and target of each."""


def header(
    start: int = 0,
    n_states: int = 1,
    n_arcs: int = 0,
    kind: bytes = b"vector",
    arc: bytes = b"standard",
    flags: int = 0,
) -> bytes:
    """The header of a file."""
    names = b"".join(struct.pack("<i", len(name)) + name for name in (kind, arc))
    numbers = struct.pack("<iiQqqq", 2, flags, 0, start, n_states, n_arcs)
    return struct.pack("<i", 2125659606) + names + numbers


def state(final: float | None, arcs: Arcs = (), n_arcs: int | None = None) -> bytes:
    """A state with its final weight, if it is one, and its arcs; it may announce other arcs."""
    start = struct.pack(
        "<fq", math.inf if final is None else final, len(arcs) if n_arcs is None else n_arcs
    )
    return start + b"".join(struct.pack("<iifi", *each) for each in arcs)


def openfst(
    start: int,
    states: Sequence[tuple[float | None, Arcs]],
    kind: bytes = b"vector",
    arc: bytes = b"standard",
    flags: int = 0,
    symbols: bytes = b"",
) -> bytes:
    """A whole file."""
    n_arcs = sum(len(arcs) for _, arcs in states)
    body = b"".join(state(final, arcs) for final, arcs in states)
    return header(start, len(states), n_arcs, kind, arc, flags) + symbols + body
