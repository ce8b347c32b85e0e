"""The entries of a chain of models, and what follows from them; `chain` keeps them on the disk."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from cortext.errors import RunError
from cortext.files import parse_json_object

ADDS = ("base", "candidate")
"""Kinds of entries that add a model; all others are about an earlier one."""
KINDS = (
    *(*ADDS, "judged", "provisional", "promoted"),
    *("checked", "rejected", "rolled_back", "removed"),
)
CLOCK_ERROR = timedelta(minutes=10)
"""Most by which clocks are set back, and by which those of two computers differ."""
_OWN = ("number", "when", "kind", "previous", "hash")


@dataclass(frozen=True)
class ChainEntry:
    """A model or a decision.

    Attributes:
        number: Its place in the chain, from 0.
        when: Its time, with the offset from UTC.
        kind: One of `KINDS`.
        facts: The rest. `model` is the number of the model that a decision is about, and the only
            one that all of them have.
        previous: Hash of the entry before; empty for the first.
        hash: SHA-256 of all of the above.
    """

    number: int
    when: datetime
    kind: str
    facts: dict[str, Any]
    previous: str
    hash: str

    @classmethod
    def made(
        cls, number: int, when: datetime, kind: str, facts: dict[str, Any], previous: str
    ) -> ChainEntry:
        """Return an entry with its hash."""
        return cls(number, when, kind, facts, previous, _hash(number, when, kind, facts, previous))

    @classmethod
    def read(cls, line: bytes) -> ChainEntry:
        """Return the entry of a line. Raises ValueError for one that is damaged."""
        values = parse_json_object(line)
        if missing := [name for name in _OWN if name not in values]:
            raise ValueError(f"it lacks {missing[0]!r}")
        facts = {name: value for name, value in values.items() if name not in _OWN}
        entry = cls.made(
            values["number"],
            datetime.fromisoformat(values["when"]),
            values["kind"],
            facts,
            values["previous"],
        )
        if entry.line() != line:
            raise ValueError("its content does not agree with its hash")
        return entry

    @property
    def model(self) -> int:
        """Number of the model that it adds or is about."""
        return self.number if self.kind in ADDS else int(self.facts["model"])

    @property
    def model_name(self) -> str:
        """Name of the model that it adds: its number and the beginning of its digest."""
        return f"{self.number}-{self.facts['digest'][:8]}"

    def line(self) -> bytes:
        """Return its line in the file."""
        head = _head(self.number, self.when, self.kind)
        return _json(head | self.facts | {"previous": self.previous, "hash": self.hash}) + b"\n"


def _head(number: int, when: datetime, kind: str) -> dict[str, Any]:
    return {"number": number, "when": when.isoformat(timespec="seconds"), "kind": kind}


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, allow_nan=False).encode()


def _hash(number: int, when: datetime, kind: str, facts: dict[str, Any], previous: str) -> str:
    content = _head(number, when, kind) | facts | {"previous": previous}
    return hashlib.sha256(_json(content)).hexdigest()


@dataclass(frozen=True)
class _Provisional:
    """A model that speaks for a time."""

    model: int
    since: datetime
    until: datetime

    def lasts(self, now: datetime) -> bool:
        """Tell whether its time is now, which it is not where the clock was ahead when it began."""
        return self.since - CLOCK_ERROR <= now < self.until


@dataclass
class ChainContents:
    """The entries of a chain, and what follows from them.

    A candidate's `parent` is the model that it is compared with; `after` is the one whose weights
    it learnt on from, the parent where there is none, and `learnt` names what it has learnt from
    since.

    Attributes:
        entries: All entries.
        parent: Number of the model that was promoted last, or that the chain began with or was
            rolled back to.
    """

    entries: list[ChainEntry] = field(default_factory=list)
    parent: int = 0
    _provisional: _Provisional | None = None
    _models: dict[int, ChainEntry] = field(default_factory=dict)
    _left: set[int] = field(default_factory=set)

    @property
    def head(self) -> str:
        """Hash of the last entry; empty for an empty chain."""
        return self.entries[-1].hash if self.entries else ""

    @property
    def id(self) -> str:
        """Hash of the first entry, which tells one chain from another."""
        return self.entries[0].hash

    def speaking(self, now: datetime) -> int:
        """Return the number of the model that speaks at a time.

        It is the parent, or the model that speaks provisionally until its time is over.
        """
        if self._provisional is not None and self._provisional.lasts(now):
            return self._provisional.model
        return self.parent

    @property
    def provisional(self) -> int | None:
        """Number of the model that speaks provisionally, or did so last.

        None where none has since the last promotion or rollback, or where it was rejected or
        removed.
        """
        if self._provisional is None or self._provisional.model not in self._models:
            return None
        return self._provisional.model

    def lapsed(self, now: datetime) -> int | None:
        """Return the number of the model whose provisional time is over; None for none."""
        if self._provisional is None or self._provisional.lasts(now):
            return None
        return self.provisional

    def at(self, when: datetime) -> ChainContents:
        """Return the chain as it was at a time; without entries before its first one."""
        then = ChainContents()
        for entry in self.entries:
            if entry.when > when:
                break
            then.add(entry)
        return then

    def model(self, number: int) -> ChainEntry:
        """Return the entry that added a model.

        Raises:
            RunError: There is no such model, or it was removed.
        """
        if number not in self._models:
            known = ", ".join(map(str, self._models))
            raise RunError(f"the chain has no model {number}", fix=f"give one of {known}")
        return self._models[number]

    @property
    def models(self) -> list[int]:
        """Numbers of the models that are kept."""
        return list(self._models)

    def added_at(self, number: int) -> datetime:
        """Return when a model was added.

        While the clock is behind that, since it had been ahead, it is the earliest time since.
        """
        added, *later = (entry.when for entry in self.entries[number:])
        return min(later) if later and later[-1] < added else added

    def of(self, number: int, kind: str) -> list[ChainEntry]:
        """Return the decisions of a kind about a model."""
        return [each for each in self.entries if each.kind == kind and each.model == number]

    def lineage(self, number: int) -> list[int]:
        """Return a model, its parent and so on back to the model that the chain began with."""
        numbers = [number]
        while (entry := self.entries[numbers[-1]]).kind == "candidate":
            numbers.append(entry.facts["parent"])
        return numbers

    def descent(self, number: int) -> list[int]:
        """Return a model, the one whose weights it learnt on from, and so on back to the base."""
        numbers = [number]
        while (entry := self.entries[numbers[-1]]).kind == "candidate":
            numbers.append(entry.facts.get("after", entry.facts["parent"]))
        return numbers

    def learnt(self, number: int) -> set[tuple[int, int]]:
        """Return the utterances that a model or any in its descent has learnt from or replayed.

        An utterance is the second of its log's first entry, and its number there.
        """
        utterances = set[tuple[int, int]]()
        for each in self.descent(number):
            learnt = self.entries[each].facts.get("learnt")
            if learnt is not None and "log" in learnt:
                parts = ("decoded", "corrected", "replayed")
                utterances.update(
                    (learnt["log"], n) for part in parts for n in learnt.get(part, ())
                )
        return utterances

    def may_learn_from(self, number: int) -> bool:
        """Tell whether learning may continue from a model.

        It descends from the parent, was not rejected, and no rollback has left it behind.
        """
        descent = self.descent(number)
        return self.parent in descent and self._left.isdisjoint(descent)

    def learns_from(self, latest: int) -> int:
        """Return the model that learning continues from: the latest one, if it may.

        If not, it is the one from before a day that was left out (`on_from`); or the one that
        speaks provisionally or did so last; or the parent.
        """
        named = [each.facts.get("on_from") for each in self.of(latest, "rejected")]
        for number in (latest, *named, self.provisional):
            if number is not None and self.may_learn_from(number):
                return number
        return self.parent

    def add(self, entry: ChainEntry) -> None:
        """Add an entry. Raises ValueError for one that cannot follow; nothing has changed then."""
        self.check(entry)
        number, spoke = entry.model, self._provisional
        # A model speaks provisionally until a time. If the clock was ahead when it began, that end
        # may be years away: the first entry with an earlier time ends it.
        if spoke is not None and entry.when < spoke.since - CLOCK_ERROR:
            self._provisional = replace(spoke, until=entry.when)
        if entry.kind in ADDS:
            self._models[number] = entry
        elif entry.kind == "provisional":
            until = datetime.fromisoformat(entry.facts["until"])
            self._provisional = _Provisional(number, entry.when, until)
        elif entry.kind == "promoted":
            self._provisional = None
        elif entry.kind in ("rejected", "rolled_back"):
            # A rollback is a person's word against all models since, whichever speaks.
            if entry.kind == "rolled_back" or self._speaks_provisionally(number):
                self._provisional = None
            self._left |= {number} if entry.kind == "rejected" else set(self._models)
            if entry.kind == "rolled_back":
                # Those it goes back through are wanted again, also ones that an earlier rollback
                # left.
                self._left -= set(self.descent(number))
        elif entry.kind == "removed":
            del self._models[number]
        if entry.kind in ("promoted", "rolled_back"):
            self.parent = number
        self.entries.append(entry)

    def _speaks_provisionally(self, number: int) -> bool:
        return self._provisional is not None and self._provisional.model == number

    def check(self, entry: ChainEntry) -> None:
        """Raise ValueError for an entry that cannot follow."""
        if entry.number != len(self.entries):
            raise ValueError(f"its number is {entry.number}, not {len(self.entries)}")
        # Numbers alone would let lines of another chain, or of a restored copy, join unseen.
        if entry.previous != self.head:
            raise ValueError("it does not follow the entry before it")
        if entry.kind not in KINDS:
            raise ValueError(f"its kind {entry.kind!r} is unknown")
        if (entry.kind == "base") != (entry.number == 0):
            raise ValueError("a chain begins with its base, and has one")
        if entry.when.utcoffset() is None:
            raise ValueError("its time has no offset from UTC")
        if entry.kind in ADDS and not isinstance(entry.facts.get("digest"), str):
            raise ValueError("its model has no digest")
        facts = entry.facts
        about = [facts.get("parent" if entry.kind == "candidate" else "model")]
        if "after" in facts:
            about.append(facts["after"])
        for model in about if entry.kind != "base" else ():
            if model not in self._models:
                raise ValueError(f"it is about model {model!r}, which the chain does not have")
        if entry.kind == "provisional":
            until = datetime.fromisoformat(str(entry.facts.get("until")))
            if until.utcoffset() is None:
                raise ValueError("its end has no offset from UTC")
        if entry.kind == "removed" and (
            entry.model == self.parent or self._speaks_provisionally(entry.model)
        ):
            raise ValueError("the model that speaks cannot be removed")
