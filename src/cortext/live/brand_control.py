"""Starts and stops of trials from a control stream, put in their places among the entries of the data stream."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from cortext.live.brand_entries import index_of
from cortext.live.brand_parameters import NodeParameters
from cortext.live.redis_link import Entry

PATIENCE_S = 1.0
"""How long no entries may come before a mark no longer waits for the one that it names."""


@dataclass(frozen=True)
class Mark:
    """A start, stop or block.

    index:   number of the data entry that is a trial's first (start) or last (stop), where the control entry has it;
             without it the times at which Redis took the entries decide, to the millisecond
    trial:   what the control entry's field `trial` says, copied through
    since_s: when it was read, on the monotonic clock
    """

    what: Literal["start", "stop", "block"]
    entry: Entry
    index: int | None
    trial: bytes
    since_s: float


class ControlReader:
    """Reads marks from control entries, and holds them until their place has come."""

    def __init__(self, parameters: NodeParameters) -> None:
        self._field = parameters.control_field.encode()
        self._index_field = parameters.index_field.encode()
        self._values: dict[bytes, Literal["start", "stop", "block"]] = {
            parameters.start_value.encode(): "start",
            parameters.stop_value.encode(): "stop",
            parameters.block_value.encode(): "block",
        }
        self._waiting: deque[Mark] = deque()
        self._heard_s = 0.0

    def mark(self, entry: Entry) -> Mark | None:
        """The mark of a control entry; None for entries that are others' business."""
        what = self._values.get(entry.fields.get(self._field, b""))
        if what is None:
            return None
        index = index_of(entry.fields.get(self._index_field))
        return Mark(what, entry, index, entry.fields.get(b"trial", b""), time.monotonic())

    def add(self, entry: Entry) -> None:
        """Hold the mark of a control entry."""
        if (mark := self.mark(entry)) is not None:
            self._waiting.append(mark)

    @property
    def stop_waits(self) -> bool:
        """Whether a stop is held: somebody waits for a result."""
        return any(mark.what == "stop" for mark in self._waiting)

    def before(self, entry: Entry, index: int | None) -> Iterator[Mark]:
        """The marks that come before a data entry."""
        self._heard_s = time.monotonic()
        while self._waiting:
            mark = self._waiting[0]
            if mark.index is None or index is None:
                due = mark.what != "stop" or entry.id[0] > mark.entry.id[0]
            else:
                due = index > mark.index if mark.what == "stop" else index >= mark.index
            if not due:
                return
            yield self._waiting.popleft()

    def all(self) -> Iterator[Mark]:
        """All marks that wait: the numbers that they name will not come any more."""
        while self._waiting:
            yield self._waiting.popleft()

    def after(self, index: int | None) -> Iterator[Mark]:
        """The stops that name the data entry that was just taken."""
        while self._waiting and index is not None:
            mark = self._waiting[0]
            if mark.what != "stop" or mark.index is None or mark.index > index:
                return
            yield self._waiting.popleft()

    def idle(self) -> Iterator[Mark]:
        """The marks that are due when no data come: those without a number, and after a while those with one.

        A trial that begins later waits for its first entry as long as it takes.
        """
        while self._waiting:
            mark = self._waiting[0]
            if mark.index is not None:
                begins_later = mark.what == "start" and len(self._waiting) == 1
                if begins_later or time.monotonic() - max(mark.since_s, self._heard_s) < PATIENCE_S:
                    return
            yield self._waiting.popleft()
