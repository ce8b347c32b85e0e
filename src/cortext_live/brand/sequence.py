"""Entries of a data stream, in the order of their running numbers.

Streams hold each entry once, but the programs that write them may repeat, swap or damage entries.
An entry that comes in order is given back at once. One that is early waits for those before it, at
most `WAIT_BINS`.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass
from typing import Literal, NamedTuple

from cortext_live.core.redis_streams import StreamEntry

WAIT_BINS = 2
"""Longest wait of an early entry for earlier ones, in bins of 20 ms.

While no entries come at all, it waits `WAIT_S`.
"""
WAIT_S = 0.04
N_RECENT = 64
"""Newest numbers among which a repeated one is sought.

A number that comes again after more than a second belongs to another recording.
"""
MOST_LOST = 180_000
"""Most entries that are lost at once, an hour of bins: beyond it numbers have jumped."""
_WRAPS = (2**16 - 1, 2**32 - 1)
"""Largest numbers of sources that count with 2 or 4 bytes; the next one is 0."""


@dataclass(frozen=True)
class OrderedEntry:
    """An entry in its place.

    Attributes:
        entry: The entry.
        index: Its number; None in a stream without numbers.
        guessed: Whether the entry has no number that can be read, and `index` is the next possible
            one.
        kind: `next` is to be decoded; a `duplicate` came before, a `late` one was given up as lost,
            an `unusable` one has an impossible number.
        missing: Numbers that were lost before it.
        first: Whether no number was known before it.
        anew: Whether numbering began anew with it.
        problem: Why it is unusable; of others, the problem of their numbers.
    """

    entry: StreamEntry
    index: int | None
    guessed: bool = False
    kind: Literal["next", "duplicate", "late", "unusable"] = "next"
    missing: range = range(0)
    first: bool = False
    anew: bool = False
    problem: str = ""


class _Arrival(NamedTuple):
    """An entry with its number, its arrival, and a hash of its content that shows a duplicate."""

    number: int
    n: int
    digest: int
    entry: StreamEntry


class Sequencer:
    """Gives entries back in the order of their numbers.

    `take` and `release` return the entries whose place has come.

    A number far from the last one is doubted until the next entry comes. If the next one does not
    continue from it, it is damaged, and takes the place of a missing number. If it does, entries
    were lost, or the source began anew.

    Args:
        bins_per_entry: Bins in an entry; None for any number.
        last: Number of the entry before the first one.
    """

    def __init__(self, bins_per_entry: int | None = 1, last: int | None = None) -> None:
        self.last = last
        self._n_unnumbered = 0  # entries since the last number that have none
        self._most_early = max(1, WAIT_BINS // (bins_per_entry or 1))
        self._recent: dict[int, int | None] = {}  # digest by number, None for a lost one
        self._early: list[_Arrival] = []
        self._doubted: _Arrival | None = None
        self._n_arrived = 0

    @property
    def reach(self) -> int | None:
        """The last number, counting on through entries that have none."""
        return None if self.last is None else self.last + self._n_unnumbered

    @property
    def waits(self) -> bool:
        """Tell whether entries are held."""
        return bool(self._early) or self._doubted is not None

    def take(self, entry: StreamEntry, index: int, content: bytes | None) -> list[OrderedEntry]:
        """Take a numbered entry.

        Args:
            entry: The entry.
            index: Its number.
            content: Tells a duplicate from another entry of the same number.
        """
        self._n_arrived += 1
        arrival = _Arrival(index, self._n_arrived, hash(content), entry)
        if self.last is None:
            return [self._in_order(arrival, first=True)]
        return self._sort(arrival, self.last) + self._overdue()

    def take_unnumbered(self, entry: StreamEntry, problem: str = "") -> list[OrderedEntry]:
        """Take an entry without a number, which takes the place of the next one.

        An entry with a problem is unusable.
        """
        self._n_arrived += 1
        return [self._unnumbered(entry, problem), *self._follow(), *self._overdue()]

    def release(self, confirmed: bool = False) -> list[OrderedEntry]:
        """Give back all entries that are held; the entries that they wait for are lost.

        `confirmed` means that a doubted number is right.
        """
        placed = []
        while self._early:
            placed += [self._in_order(self._early.pop(0)), *self._follow()]
        if (doubted := self._doubted) is None:
            return placed
        is_low = 0 < doubted.number < (self.last or 0)  # a source begins anew at 0
        if not confirmed and (is_low or doubted.number > (self.reach or 0) + MOST_LOST):
            return placed + self._stray()
        self._doubted = None
        return [*placed, self._jump(doubted)]

    def _sort(self, arrival: _Arrival, last: int) -> list[OrderedEntry]:
        index, digest = arrival.number, arrival.digest
        if index == last + 1 and not self.waits:
            return [self._in_order(arrival)]
        if any(
            held.number == index and held.digest == digest
            for held in (*self._early, self._doubted)
            if held
        ):
            return [OrderedEntry(arrival.entry, index, kind="duplicate")]
        # The content decides, too: a source that was restarted counts from 0 again, and its entries
        # are no duplicates of those before.
        if last - N_RECENT < index <= last and index in self._recent:
            known = self._recent[index]
            if known is None or known == digest:
                return [
                    OrderedEntry(
                        arrival.entry, index, kind="late" if known is None else "duplicate"
                    )
                ]
        if index == 0 and last in _WRAPS:
            return [*self.release(), self._jump(arrival)]
        if not self._is_near(index):
            return self._doubt(arrival)
        placed: list[OrderedEntry] = []  # numbers continue from the last one
        if (
            self._doubted is not None
            and last <= self._doubted.number <= index + 1 + self._most_early
        ):
            bisect.insort(self._early, self._doubted)
            self._doubted = None
        else:
            placed = self._stray()
        bisect.insort(self._early, arrival)
        return placed + self._follow()

    def _is_near(self, number: int) -> bool:
        """Tell whether a number is among the next ones."""
        last = self.last or 0
        reach = self.reach or 0
        highest = self._early[-1].number + 1 if self._early else 0
        return last <= number <= max(reach + 1 + self._most_early, highest)

    def _doubt(self, arrival: _Arrival) -> list[OrderedEntry]:
        doubted = self._doubted
        if doubted is None or abs(arrival.number - doubted.number) > N_RECENT:
            placed = self._stray()
            self._doubted = arrival
            return placed
        first, second = sorted((doubted, arrival))
        self._doubted = first
        return self.release(confirmed=True) + self._sort(second, first.number)

    def _stray(self) -> list[OrderedEntry]:
        """Return the doubted entry, if any, as unusable."""
        if (doubted := self._doubted) is None:
            return []
        self._doubted = None
        problem = f"its number {doubted.number} fits neither those before it nor those after it"
        return [self._unnumbered(doubted.entry, problem), *self._follow()]

    def _follow(self) -> list[OrderedEntry]:
        """Return the early entries whose turn has come."""
        placed: list[OrderedEntry] = []
        while self._early and self._early[0].number <= (self.reach or 0) + 1:
            placed.append(self._in_order(self._early.pop(0)))
        return placed

    def _overdue(self) -> list[OrderedEntry]:
        """Return the entries that have waited long enough."""
        placed: list[OrderedEntry] = []
        while (
            self._early
            and self._n_arrived - min(held.n for held in self._early) >= self._most_early
        ):
            placed += [self._in_order(self._early.pop(0)), *self._follow()]
        if self._doubted is not None and self._n_arrived - self._doubted.n >= self._most_early:
            placed += self.release()
        return placed

    def _unnumbered(self, entry: StreamEntry, problem: str) -> OrderedEntry:
        if self.last is not None:
            self._n_unnumbered += 1
        kind: Literal["next", "unusable"] = "unusable" if problem else "next"
        if self.last is not None and not problem:
            problem = f"is missing in entry {entry.id[0]}-{entry.id[1]}"
        return OrderedEntry(entry, self.reach, guessed=True, kind=kind, problem=problem)

    def _jump(self, arrival: _Arrival) -> OrderedEntry:
        """Continue from a number far away: entries were lost, or the source began anew."""
        last = self.last
        if last is None or arrival.number > last:
            return self._in_order(arrival)
        self.last = None
        self._n_unnumbered = 0
        self._recent.clear()
        placed = self._in_order(arrival)
        problem = (
            ""
            if last in _WRAPS and not arrival.number
            else f"begins anew at {arrival.number} after {last}"
        )
        return OrderedEntry(placed.entry, placed.index, anew=True, problem=problem)

    def _in_order(self, arrival: _Arrival, first: bool = False) -> OrderedEntry:
        index = arrival.number
        reach = self.reach
        missing = range(0) if reach is None else range(reach + 1, max(index, reach + 1))
        self._recent.update(dict.fromkeys(missing[-N_RECENT:]))
        self._recent[index] = arrival.digest
        # Twice the length, so that the dictionary is not built anew for every entry.
        if len(self._recent) > 2 * N_RECENT:
            self._recent = {n: digest for n, digest in self._recent.items() if n > index - N_RECENT}
        problem = f"{index} comes again with other samples" if index == self.last else ""
        self.last = index
        self._n_unnumbered = 0
        return OrderedEntry(arrival.entry, index, missing=missing, first=first, problem=problem)
