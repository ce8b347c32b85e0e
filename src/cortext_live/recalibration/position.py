"""The part of a usage log that a learner has learnt from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from cortext_live.recalibration.chain_entries import ChainEntry
from cortext_live.usage.log import LogContents


@dataclass
class Position:
    """The part of a log that was learnt from; saved with the learner, by the names of its fields.

    Attributes:
        began: Second of the log's first entry, which tells one log from another; None before it.
        next: First utterance that was not considered yet.
        considered: Earlier utterances that had labels, and the revision of the label that was
            considered: a person may correct again.
        latest: Model of the chain that the learner continues from.
        before: Latest one from before the day that it learnt from last.
        decoded: Utterances that it has learnt from since `latest`, as they were decoded.
        corrected: Utterances that it has learnt from since, as they were corrected.
        today: Utterances of the latest day, where those of a day learn together.
        fresh: Utterances that are in no model of the chain yet, learnt or waiting.
        rested: The last steps of that day were taken.
        pending: The learner has learnt what the next model of the chain has to.
        ends: The next model (if `pending`) or else the latest one has the last steps of the day.
    """

    began: int | None = None
    next: int = 0
    considered: dict[int, int] = field(default_factory=dict)
    latest: int = 0
    before: int | None = None
    decoded: list[int] = field(default_factory=list)
    corrected: list[int] = field(default_factory=list)
    today: list[int] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)
    rested: bool = False
    pending: bool = False
    ends: bool = False

    def to_note(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self) | {"considered": list(self.considered.items())}

    @classmethod
    def of_note(cls, note: Mapping[str, Any]) -> Position:
        """Return the position of `to_note`."""
        return cls(**{**note, "considered": dict(note["considered"])})

    def begin(self, model: int, *, same_day: bool = False) -> None:
        """Continue from a model of the chain, with empty lists of learnt sentences.

        Args:
            model: Number of the model.
            same_day: The utterances of the day keep waiting to learn together.
        """
        self.latest = model
        self.rested = self.pending = False
        self.decoded, self.corrected = [], []
        if not same_day:
            self.ends, self.today, self.fresh = False, [], []

    def begin_log(self, log: LogContents, entries: Sequence[ChainEntry]) -> None:
        """Begin at the first utterance of another log that no model of the chain has learnt from.

        Args:
            log: The log.
            entries: The entries of the chain.
        """
        decoded, corrected = (
            {number for entry in entries for number in _learnt(entry, log.began, part)}
            for part in ("decoded", "corrected")
        )
        self.began, self.next = log.began, 1 + max(decoded | corrected, default=-1)
        # Which of several corrections was learnt is not known: one that followed is learnt, too.
        # A sentence that was learnt as decoded, and whose label was withdrawn, is not learnt again.
        self.considered = {
            number: log.utterances[number].revision
            for number in decoded & log.utterances.keys()
            if log.utterances[number].label is None and log.utterances[number].revision
        } | dict.fromkeys(corrected, 1)

    def learn_anew(self, learnt: Collection[tuple[int, int]]) -> None:
        """Go back to the first utterance that is in no model yet: other settings learn it anew.

        Args:
            learnt: Utterances that `latest` has learnt from; see `ChainContents.learnt`.
        """
        today = () if self.rested else self.today
        decoded = (number for number in self.decoded if number not in self.considered)
        anew = [number for number in decoded if (self.began, number) not in learnt]
        self.next = min([self.next, *anew, *today])
        self.considered = {
            number: revision
            for number, revision in self.considered.items()
            if number < self.next and number not in self.corrected and number not in self.decoded
        }

    def consider_again(self) -> None:
        """Let labels that changed since `latest` be learnt again: no model knows them yet."""
        for number in (*self.corrected, *self.fresh):
            self.considered.pop(number, None)

    def note_learnt(self, number: int, *, corrected: bool) -> None:
        """Note that an utterance was learnt from."""
        part = self.corrected if corrected else self.decoded
        if number not in part:
            part.append(number)

    def next_correction(self, log: LogContents) -> int | None:
        """Return an earlier utterance whose label has changed since it was considered, or None."""
        for number, utterance in log.utterances.items():
            if number >= self.next:
                break
            if utterance.revision != self.considered.get(number, 0):
                self.considered[number] = utterance.revision
                return number
        return None

    def next_utterance(self, log: LogContents, settled: datetime) -> int | None:
        """Return the next new utterance; None if there is none, or it has to wait.

        Args:
            log: The log.
            settled: An utterance after this time may still be corrected, unless a later one is
                older: clocks are set.
        """
        while self.next < len(log.entries) and self.next not in log.utterances:
            self.next += 1  # a partner's turn, or deleted
        if self.next >= len(log.entries):
            return None
        utterance = log.utterances[self.next]
        since = min(entry.when for entry in log.entries[self.next :])
        if utterance.label is None and since > settled:
            return None
        number, self.next = self.next, self.next + 1
        if utterance.revision:
            self.considered[number] = utterance.revision
        return number


def _learnt(entry: ChainEntry, began: int | None, part: str) -> list[int]:
    """Return the utterances of a log that a model has learnt from, by its entry alone."""
    learnt = entry.facts.get("learnt")
    return [] if learnt is None or learnt["log"] != began else learnt[part]
