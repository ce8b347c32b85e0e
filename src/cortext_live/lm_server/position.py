"""The position of the language-model server in its streams.

Redis keeps it, so that the next server can continue. The hash holds, by the names of the streams,
the last entry that is no longer needed (inputs) and the newest answer (outputs); under
`read:STREAM` the last answered entry of an input, and the number of entries until then; under
`given:STREAM` the number of answers to later entries that an output has already.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cortext.errors import shown
from cortext.files import parse_json_object
from cortext_live.core.redis_link import RedisLink
from cortext_live.core.redis_streams import LAST, StreamEntry, StreamId, before, format_id, parse_id

MOST_BYTES = 2**20
"""A position holds some thirty short texts; a larger one is not read."""
UNREADABLE = "where the server stood could not be read: words may be missing"


@dataclass
class StreamPosition:
    """The position in one input stream.

    Attributes:
        after: Id of the last entry that was read.
        marked: Entries up to here are no longer needed; the next server begins behind it.
        answered: Entries up to here have all their answers; later than `after` while a search is
            done again.
        n_read: Number of entries that the stream had ever been given up to `after`.
        n_answered: Number of entries that the stream had ever been given up to `answered`.
        n_foreign: Entries of the stream that others had deleted when it was last asked; None before
            that.
        known: An entry that was read and that this server does not delete, or None.
        held: Ids and sizes of entries that were read and are not marked, oldest first.
        done: The same of those that are marked, until Redis knows it.
    """

    after: StreamId = (0, 0)
    marked: StreamId = (0, 0)
    answered: StreamId = (0, 0)
    n_read: int = 0
    n_answered: int = 0
    n_foreign: int | None = None
    known: StreamId | None = None
    held: deque[tuple[StreamId, int]] = field(default_factory=deque)
    done: deque[tuple[StreamId, int]] = field(default_factory=deque)


class ServerPosition:
    """The position in all streams.

    Args:
        link: The connection.
        key: Key of the hash.
        inputs: The input streams.
        outputs: The output streams.
        speech: The input stream whose gaps are looked for when an utterance ends.

    Attributes:
        known: Whether a server before this one has left its position.
        changes: Parameters that clients had changed, as they were left.
        missing: Entries that may be missing in utterances in progress; `take_missing` returns it
            once.
        newest: Ids of the newest answers that a server before this one has given.
        given: Number of answers of each output to entries that are later than `answered`.
        saved: The fields as Redis has them, as far as this server knows.
    """

    def __init__(
        self, link: RedisLink, key: str, inputs: Iterable[str], outputs: Iterable[str], speech: str
    ) -> None:
        self._link = link
        self.key = key
        self._outputs = tuple(outputs)
        self._speech = speech
        self.by_stream = {stream: StreamPosition() for stream in inputs}
        self.newest = dict.fromkeys(self._outputs, (0, 0))
        self.known = False
        self.changes = dict[str, str]()
        self.missing = ""
        self._reported = True
        self._missing_until = (0, 0)
        self.given: dict[str, int] = {}
        self.saved: dict[str, str] = {}

    @property
    def after(self) -> dict[str, StreamId]:
        """The ids of the last entries that were read."""
        return {stream: position.after for stream, position in self.by_stream.items()}

    def load(self) -> bool:
        """Load the position that a server before this one has left.

        Returns:
            False where it could not be read and was set aside.
        """
        fields = self._link.read_hash(self.key, MOST_BYTES)
        try:
            texts = {name.decode(): text.decode() for name, text in (fields or {}).items()}
            self.changes = _changes(texts.get("changes", "{}"))
            if fields is not None and not texts.keys() >= {*self.by_stream, *self._outputs}:
                return True  # nobody was here, or under other names
            self.newest = {stream: _checked_id(texts[stream]) for stream in self._outputs}
            self.given = {
                stream: _checked_number(texts[f"given:{stream}"]) for stream in self._outputs
            }
            by_stream = {stream: _stream_position(stream, texts) for stream in self.by_stream}
            missing = shown(texts["missing"])
        except (ValueError, KeyError):
            self._link.set_aside(self.key)
            self.changes = {}
            return False
        self.by_stream = by_stream
        self.known = True
        self.miss(missing)
        return True

    def begin_after(self, ids: Mapping[str, StreamId], answered: Mapping[str, StreamId]) -> None:
        """Continue behind these ids; earlier entries are void.

        Args:
            ids: Id by input stream.
            answered: Ids up to which the entries have their answers.
        """
        self.miss_nothing()
        for stream, position in self.by_stream.items():
            to = ids[stream]
            if self.known:
                position.n_read = position.n_answered + self._link.count(
                    stream, position.answered, to
                )
                position.n_read -= self._link.count(stream, to, position.answered)
            else:
                info = self._link.stream_info(stream)
                first = info["first"]
                # where nothing older is left, deleted entries may belong to the utterance read now
                older = stream != self._speech or first is None or first <= to
                position.n_read = (
                    (info["added"] or 0) - self._link.count(stream, to) if older else 0
                )
            position.after = position.marked = to
            position.answered = max(to, answered[stream])
            position.n_answered = position.n_read + self._link.count(stream, to, position.answered)
            position.known = None

    def resume(self) -> None:
        """Continue where the server before this one was; note entries deleted since."""
        missing = []
        for stream, position in self.by_stream.items():
            n_there = self._link.count(stream, position.after, position.answered)
            n_gone = position.n_answered - position.n_read - n_there
            position.n_read = position.n_answered - n_there
            if n_gone and stream == self._speech:
                missing.append(_missing(n_gone, stream, "deleted before their utterance had ended"))
        self.miss("; ".join(missing))

    def take(self, entry: StreamEntry) -> None:
        """Note that an entry has been answered."""
        position = self.by_stream[entry.stream]
        position.after = entry.id
        position.n_read += 1
        position.held.append((entry.id, entry.n_bytes))
        if position.after >= position.answered:
            position.answered = position.after
            position.n_answered = position.n_read

    def was_given(self, stream: str, request: StreamId) -> bool:
        """Return whether an output has an answer to this entry already; called once per answer."""
        # an answer's id is later than its question's: later questions have no answer yet
        if not self.given.get(stream) or not (0, 0) < request < self.newest[stream]:
            return False
        self.given[stream] -= 1
        return True

    def begin_anew(self, stream: str) -> None:
        """Read a stream from its beginning: it is another one than before."""
        self.by_stream[stream] = StreamPosition()
        self._missing_until = (0, 0)

    def mark(self, first: tuple[str, StreamId] | None) -> None:
        """Mark the entries before this one as no longer needed; without one, all that were read."""
        own = list(self.by_stream).index(first[0]) if first else 0
        for number, position in enumerate(self.by_stream.values()):
            to = position.after
            if first is not None:
                milliseconds = first[1][0]
                same_time = (milliseconds, LAST) if number < own else before((milliseconds, 0))
                to = min(to, before(first[1]) if number == own else same_time)
            position.marked = max(position.marked, to)
            while position.held and position.held[0][0] <= position.marked:
                position.done.append(position.held.popleft())
        if self.by_stream[self._speech].marked >= self._missing_until:
            self.miss_nothing()

    def unsaved(self) -> dict[str, str]:
        """Return the fields that Redis does not have yet."""
        fields = {stream: format_id(self._link.newest[stream]) for stream in self._outputs}
        fields |= {f"given:{stream}": str(self.given.get(stream, 0)) for stream in self._outputs}
        fields["missing"] = self.missing
        for stream, position in self.by_stream.items():
            fields[stream] = format_id(position.marked)
            n_marked = position.n_read - len(position.held)
            fields[f"read:{stream}"] = (
                f"{n_marked} {format_id(position.answered)} {position.n_answered}"
            )
        return {name: text for name, text in fields.items() if self.saved.get(name) != text}

    def save(self) -> None:
        """Write the fields that Redis does not have yet."""
        if fields := self.unsaved():
            self._link.write_hash(self.key, fields)
            self.saved |= fields

    def retire(self) -> None:
        """Allow the deletion of entries up to the mark that Redis knows, if too many are there."""
        for stream, position in self.by_stream.items():
            marked = parse_id(self.saved.get(stream, "0-0"))
            done = []
            while position.done and position.done[0][0] <= marked:
                done.append(position.done.popleft())
            self._link.retire(stream, done)

    def in_use(self) -> list[tuple[str, list[StreamId]]]:
        """Return the entries of utterances in progress, by stream.

        They are deleted only where nothing else makes room.
        """
        unanswered = [
            (stream, [entry_id for entry_id, _ in (*position.done, *position.held)])
            for stream, position in self.by_stream.items()
        ]
        for position in self.by_stream.values():
            position.known = None
        return unanswered

    def gap(self, stream: str) -> str:
        """Report entries that were deleted unread since the last call; empty for none."""
        position = self.by_stream[stream]
        info = self._link.stream_info(stream)
        if self._only_ours_were_deleted(stream, info):
            return ""
        n_waiting = self._link.count(stream, position.after, info["last"])
        n_gone = n_lost(info, position, n_waiting)
        if info["added"] is not None:
            change = info["added"] - n_waiting - position.n_read
            position.n_read += change
            position.n_answered += change
        position.known = position.after
        return _missing(n_gone, stream, "deleted before they were read") if n_gone else ""

    def _only_ours_were_deleted(self, stream: str, info: Mapping[str, Any]) -> bool:
        """Return whether only this server has deleted since the last call, in an unchanged stream.

        Counting the waiting entries instead would take the square of a backlog: this is asked at
        the end of each utterance.
        """
        position = self.by_stream[stream]
        held = position.held
        if info["added"] is None:
            return False
        n_before = position.n_foreign
        position.n_foreign = info["added"] - info["length"] - self._link.n_deleted.get(stream, 0)
        is_same = bool(held) and info["first"] is not None and info["first"] <= held[0][0]
        return is_same and position.n_foreign == n_before

    def miss(self, problem: str) -> None:
        """Keep a report of missing entries until all utterances that may lack them have results."""
        if problem:
            self.missing = "; ".join(filter(None, (self.missing, problem)))
            self._reported = False
            self._missing_until = (LAST, LAST)

    def miss_nothing(self) -> None:
        """Forget the missing entries: their utterances are void."""
        self.missing = ""
        self._reported = True

    def take_missing(self) -> str:
        """Return the entries that utterances in progress lack, once; called when one ends."""
        self.miss(self.gap(self._speech))
        report = "" if self._reported else self.missing
        if report:
            self._reported = True
            self._missing_until = self.by_stream[self._speech].after
        return report


def n_lost(info: Mapping[str, Any], position: StreamPosition, n_waiting: int) -> int:
    """Return the number of entries that were deleted unread; -1 where it cannot be counted.

    Args:
        info: Description of the stream, from `RedisLink.stream_info`.
        position: The position in the stream.
        n_waiting: Number of entries after those that were read.
    """
    if info["added"] is None:
        return -int(was_trimmed(info, position.known))
    n_gone: int = info["added"] - n_waiting - position.n_read
    if n_gone >= 0:
        return n_gone
    # the stream was deleted and has begun anew: in mid-utterance, if it has had fewer entries than
    # were read of that
    return -int(len(position.held) > info["added"] - n_waiting)


def was_trimmed(info: Mapping[str, Any], known: StreamId | None) -> bool:
    """Return whether entries after a known one may have been deleted, by the ids alone.

    Redis 7 tells the latest id that XDEL deleted, but not that of XTRIM; before, there is only the
    first entry.
    """
    if known is None or info["last"] <= known:
        return False
    return (info["max_deleted"] or (0, 0)) > known or info["first"] is None or info["first"] > known


def _stream_position(stream: str, texts: Mapping[str, str]) -> StreamPosition:
    """Raises ValueError for what no server has written."""
    marked = _checked_id(texts[stream])
    read = texts[f"read:{stream}"]
    if not re.fullmatch(r"-?[0-9]{1,20} [0-9-]{3,41} -?[0-9]{1,20}", read):
        raise ValueError
    n_marked, answered, n_answered = read.split(" ")
    last = _checked_id(answered)
    known = last if last > (0, 0) and last[1] < LAST else None
    return StreamPosition(
        marked, marked, max(last, marked), int(n_marked), int(n_answered), known=known
    )


def _checked_id(text: str) -> StreamId:
    if not re.fullmatch(r"[0-9]{1,20}-[0-9]{1,20}", text):
        raise ValueError
    entry_id = parse_id(text)
    if max(entry_id) > LAST:
        raise ValueError
    return entry_id


def _checked_number(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise ValueError
    return int(text)


def _changes(text: str) -> dict[str, str]:
    changes = parse_json_object(text)
    if not all(isinstance(value, str) for value in changes.values()):
        raise ValueError
    return changes


def _missing(n_gone: int, stream: str, fate: str) -> str:
    if n_gone < 0:
        return f"entries of {stream} were {fate}: words may be missing"
    return (
        f"{n_gone} {'entries' if n_gone > 1 else 'entry'} of {stream}"
        f" {'were' if n_gone > 1 else 'was'} {fate}"
    )
