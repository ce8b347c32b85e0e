"""Starts and stops of trials from a control stream, placed among the entries of the data stream."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from cortext_live.brand.entries import index_of, no_index
from cortext_live.brand.parameters import NodeConfig
from cortext_live.brand.sequence import MOST_LOST
from cortext_live.core.redis_streams import StreamEntry, StreamId

PATIENCE_S = 1.0
"""Seconds without entries after which a mark no longer waits for the entry that it names."""
SETTLED_S = 0.002
"""Longest time between reading a mark and an entry that Redis took in the same millisecond.

Ids have no finer clock, and a read returns entries of the control stream first.
"""
MOST_WAITING = 10_000
"""Marks that are held."""
LONGEST_LABEL = 1 << 16
"""Most bytes of a label that is copied to every output, and of a context."""


@dataclass(frozen=True)
class Mark:
    """A start, stop or block.

    Attributes:
        what: Its kind.
        id: Id of the control entry.
        index: Number of the data entry that is a trial's first (start) or last (stop), where the
            control entry has it. Without it the times at which Redis took the entries decide, to
            the millisecond.
        trial: The control entry's field `trial`, copied to the outputs.
        context: Its field `context`; None where it has none.
        since_s: Time at which it was read, on the monotonic clock.
        problem: Fields of the control entry that could not be used.
    """

    what: Literal["start", "stop", "block"]
    id: StreamId
    index: int | None
    trial: bytes
    context: bytes | None
    since_s: float
    problem: str = ""


class ControlReader:
    """Reads marks from control entries, and holds each one until its place has come."""

    def __init__(self, parameters: NodeConfig) -> None:
        self._field = parameters.control_field.encode()
        self._index_name = parameters.index_field
        self._index_field = parameters.index_field.encode()
        self._values: dict[bytes, Literal["start", "stop", "block"]] = {
            parameters.start_value.encode(): "start",
            parameters.stop_value.encode(): "stop",
            parameters.block_value.encode(): "block",
        }
        self._waiting: deque[Mark] = deque()
        self._last_entry_s = 0.0
        self._is_open = False  # whether the last mark was a start
        # Whether a mark has a lower number than one before it
        self._highest = 0
        self._is_disordered = False

    def mark(self, entry: StreamEntry, near: int | None = None) -> Mark | None:
        """Return the mark of a control entry; None for entries that are no marks.

        Args:
            entry: The control entry.
            near: The last number of the data. A mark with an impossible number is placed by time.
        """
        kind = self._values.get(entry.fields.get(self._field, b""))
        if kind is None:
            return None
        number, trial = entry.fields.get(self._index_field, b""), entry.fields.get(b"trial", b"")
        index = index_of(number, near)
        problems = []
        if number and index is None:
            problems.append(no_index(self._index_name, number))
        elif index is not None and near is not None and index > near + MOST_LOST:
            # It would hold up all marks after it
            problems.append(f"{self._index_name} {index} is too far ahead of {near}")
            index = None
        if len(trial) > LONGEST_LABEL:
            problems.append(f"trial has {len(trial)} bytes; at most {LONGEST_LABEL} are copied")
            trial = b""
        context = entry.fields.get(b"context")
        context = None if context is None else context[-LONGEST_LABEL:]
        problem = (
            f"the {kind} {entry.id[0]}-{entry.id[1]} is unusable in part: {'; '.join(problems)}"
            if problems
            else ""
        )
        return Mark(kind, entry.id, index, trial, context, time.monotonic(), problem)

    def add(self, mark: Mark) -> None:
        """Hold a mark."""
        if mark.index is not None:
            self._is_disordered = self._is_disordered or mark.index < self._highest
            self._highest = max(self._highest, mark.index)
        self._waiting.append(mark)

    @property
    def first_id(self) -> StreamId:
        """The id of the oldest mark that is held; without one, an id beyond all others."""
        return self._waiting[0].id if self._waiting else (1 << 64, 0)

    def surplus(self) -> Iterator[Mark]:
        """Yield the oldest marks beyond `MOST_WAITING`."""
        while len(self._waiting) > MOST_WAITING:
            yield self._give()

    @property
    def stop_waits(self) -> bool:
        """Tell whether a stop is held: a client waits for a result."""
        return any(mark.what == "stop" for mark in self._waiting)

    def before(self, entry: StreamEntry, index: int | None) -> Iterator[Mark]:
        """Yield the marks that come before a data entry."""
        self._last_entry_s = time.monotonic()
        while (n := self._first_due(entry, index)) is not None:
            due = self._waiting[n]
            if due.what == "stop" and self._waiting[0].what != "stop" and self._is_open:
                yield self._give(n)  # a late stop, and a start that was announced
                continue
            for _ in range(n):
                mark = self._give()
                problem = (
                    f"the {mark.what} {mark.id[0]}-{mark.id[1]} is unusable in part:"
                    f" {self._index_name} "
                )
                problem += f"{mark.index} is beyond {due.index} of the {due.what} after it"
                problem = "; ".join(filter(None, (mark.problem, problem)))
                yield mark if mark.index is None else replace(mark, index=None, problem=problem)
            yield self._give()

    def _first_due(self, entry: StreamEntry, index: int | None) -> int | None:
        """Return the place of the first mark that is due.

        A later mark goes before the first one only if it has a lower number.
        """
        if not self._waiting or _is_due(self._waiting[0], entry, index):
            return 0 if self._waiting else None
        first = self._waiting[0].index
        if first is None or not self._is_disordered:
            return None
        for n, mark in enumerate(self._waiting):
            if mark.index is not None and mark.index < first and _is_due(mark, entry, index):
                return n
        return None

    def _give(self, n: int = 0) -> Mark:
        mark = self._waiting[n]
        del self._waiting[n]
        self._is_open = mark.what == "start"
        if not self._waiting:
            self._highest = 0
            self._is_disordered = False
        return mark

    def beyond(self, index: int | None) -> Iterator[Mark]:
        """Yield the marks of numbers that will not come: numbering began anew after this one."""
        while self._waiting and index is not None and (self._waiting[0].index or 0) > index:
            yield self._give()

    def after(self, index: int | None) -> Iterator[Mark]:
        """Yield the stops that name the data entry that was just taken."""
        while self._waiting and index is not None:
            mark = self._waiting[0]
            if mark.what != "stop" or mark.index is None or mark.index > index:
                return
            yield self._give()

    def idle(self) -> Iterator[Mark]:
        """Yield the marks that are due when no data come.

        Those without a number are due, and after a while those with one. A trial that begins later
        waits for its first entry as long as it takes.
        """
        while self._waiting:
            mark = self._waiting[0]
            now_s = time.monotonic()
            if mark.index is None:
                if now_s - mark.since_s < SETTLED_S:
                    return
            else:
                begins_later = mark.what == "start" and len(self._waiting) == 1
                if begins_later or now_s - max(mark.since_s, self._last_entry_s) < PATIENCE_S:
                    return
            yield self._give()


def _is_due(mark: Mark, entry: StreamEntry, index: int | None) -> bool:
    """Tell whether a mark comes before a data entry."""
    if mark.index is None or index is None:
        return mark.what != "stop" or entry.id[0] > mark.id[0]
    return index > mark.index if mark.what == "stop" else index >= mark.index
