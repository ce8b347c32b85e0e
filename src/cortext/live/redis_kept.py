"""Bounds on the answered entries of a stream."""

from __future__ import annotations

from collections import deque

from cortext.live.redis_ids import StreamId


class Kept:
    """The answered entries that streams still hold, oldest first."""

    def __init__(self, most_entries: int, most_bytes: int) -> None:
        self.most_entries, self._most_bytes = most_entries, most_bytes
        self._inputs: set[str] = set()
        self._entries: dict[str, deque[tuple[StreamId, int]]] = {}
        self._n_bytes: dict[str, int] = {}

    def add(self, stream: str, entry_id: StreamId, n_bytes: int, is_input: bool) -> list[StreamId]:
        """Take note of an entry; returns the surplus, a tenth or more at once."""
        if is_input:
            self._inputs.add(stream)
        kept = self._entries.setdefault(stream, deque())
        kept.append((entry_id, n_bytes))
        self._n_bytes[stream] = self._n_bytes.get(stream, 0) + n_bytes
        if len(kept) <= self.most_entries and self._n_bytes[stream] <= self._most_bytes:
            return []
        surplus = []
        while len(kept) > 1 and (
            len(kept) > 0.9 * self.most_entries or self._n_bytes[stream] > 0.9 * self._most_bytes
        ):
            oldest, size = kept.popleft()
            self._n_bytes[stream] -= size
            surplus.append(oldest)
        return surplus

    def all_inputs(self) -> list[tuple[str, list[StreamId]]]:
        """Ids of all entries of input streams, by stream; they are forgotten here."""
        found = [
            (stream, [entry_id for entry_id, _ in self._entries[stream]]) for stream in self._inputs
        ]
        for stream in self._inputs:
            self._entries[stream].clear()
            self._n_bytes[stream] = 0
        return found
