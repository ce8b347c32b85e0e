"""The position of the language-model server in its streams, kept in Redis so that a server after
it can go on.

The hash holds, by the names of the streams, up to where nothing is needed any more (inputs) and the
newest answer (outputs); under `read:STREAM` how far an input has been answered, and how many
entries it had been given by then; under `given:STREAM` how many answers to later entries an output
has already.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cortext.errors import shown
from cortext.files import parse_json_object
from cortext.live.core.redis_link import RedisLink
from cortext.live.core.redis_streams import LAST, Entry, StreamId, before, format_id, parse_id

MOST_BYTES = 2**20
"""A position holds some thirty short texts; a larger one is not read."""
UNREADABLE = "where the server stood could not be read: words may be missing"


@dataclass
class StreamPosition:
    """The position in one input stream.

    n_read, n_answered: how many entries the stream had ever been given, up to `after` and up to
    `answered`

    Attributes:
        after: Id of the last entry that was read.
        marked: Up to here nothing is needed any more; a server after this one begins behind it.
        answered: Up to here all answers have been given; later than `after` while a search is done
            again.
        n_foreign: How many entries of the stream others had deleted when it was last asked; None
            before that.
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


class Position:
    """The position in all streams.

    Attributes:
        speech: The input stream whose gaps are looked for when an utterance ends.
        known: Whether a server before this one has left its position.
        changes: Parameters that clients had changed, as they were left.
        missing: What may be missing from utterances in progress; `take_missing` gives it once.
        newest: Ids of the newest answers that a server before this one has given.
        given: How many answers each output has to entries that are later than `answered`.
        saved: The fields as Redis has them, as far as this server knows.
    """

    def __init__(
        self, link: RedisLink, key: str, inputs: Iterable[str], outputs: Iterable[str], speech: str
    ) -> None:
        self._link = link
        self.key = key
        self._outputs = tuple(outputs)
        self._speech = speech
        self.places = {stream: StreamPosition() for stream in inputs}
        self.newest = dict.fromkeys(self._outputs, (0, 0))
        self.known = False
        self.changes = dict[str, str]()
        self.missing = ""
        self._told = True
        self._missing_until = (0, 0)
        self.given: dict[str, int] = {}
        self.saved: dict[str, str] = {}

    @property
    def after(self) -> dict[str, StreamId]:
        """Ids of the last entries that were read."""
        return {stream: place.after for stream, place in self.places.items()}

    def load(self) -> bool:
        """Take over what a server before this one has left.

        False where that could not be read and was set aside.
        """
        found = self._link.read_hash(self.key, MOST_BYTES)
        try:
            texts = {name.decode(): text.decode() for name, text in (found or {}).items()}
            self.changes = _changes(texts.get("changes", "{}"))
            if found is not None and not texts.keys() >= {*self.places, *self._outputs}:
                return True  # nobody was here, or under other names
            self.newest = {stream: _checked_id(texts[stream]) for stream in self._outputs}
            self.given = {
                stream: _checked_number(texts.get(f"given:{stream}", "0"))
                for stream in self._outputs
            }
            places = {stream: _place(stream, texts) for stream in self.places}
        except (ValueError, KeyError):
            self._link.set_aside(self.key)
            self.changes = {}
            return False
        self.places = places
        self.known = True
        self.miss(shown(texts.get("missing", "")))
        for stream, place in places.items():
            if place.n_answered < 0:  # a server of an older version did not count
                info = self._link.stream_info(stream)
                place.n_read = place.n_answered = (info["added"] or 0) - self._link.count(
                    stream, place.after
                )
                if stream == self._speech and was_trimmed(info, place.known):
                    self.miss(_said(-1, stream, "deleted before they were read"))
        return True

    def begin_after(self, ids: Mapping[str, StreamId], answered: Mapping[str, StreamId]) -> None:
        """Go on behind these ids: what came before them is void.

        What is not later than `answered` is not answered.
        """
        self.miss_nothing()
        for stream, place in self.places.items():
            to = ids[stream]
            if self.known:
                place.n_read = place.n_answered + self._link.count(stream, place.answered, to)
                place.n_read -= self._link.count(stream, to, place.answered)
            else:
                info = self._link.stream_info(stream)
                first = info["first"]
                # where nothing older is left, what was deleted may belong to what is read now
                older = stream != self._speech or first is None or first <= to
                place.n_read = (info["added"] or 0) - self._link.count(stream, to) if older else 0
            place.after = place.marked = to
            place.answered = max(to, answered[stream])
            place.n_answered = place.n_read + self._link.count(stream, to, place.answered)
            place.known = None

    def go_on(self) -> None:
        """Go on where the server before this one was, and see what was deleted that it had read."""
        found = []
        for stream, place in self.places.items():
            n_there = self._link.count(stream, place.after, place.answered)
            n_gone = place.n_answered - place.n_read - n_there
            place.n_read = place.n_answered - n_there
            if n_gone and stream == self._speech:
                found.append(_said(n_gone, stream, "deleted before their utterance had ended"))
        self.miss("; ".join(found))

    def take(self, entry: Entry) -> None:
        """An entry has been answered."""
        place = self.places[entry.stream]
        place.after = entry.id
        place.n_read += 1
        place.held.append((entry.id, entry.n_bytes))
        if place.after >= place.answered:
            place.answered = place.after
            place.n_answered = place.n_read

    def was_given(self, stream: str, request: StreamId) -> bool:
        """Whether an output has an answer to this entry already; asked once for each answer."""
        # an answer's id is later than its question's: of what was asked later nothing was answered
        if not self.given.get(stream) or not (0, 0) < request < self.newest[stream]:
            return False
        self.given[stream] -= 1
        return True

    def begin_anew(self, stream: str) -> None:
        """A stream is another one than before: read it from its beginning."""
        self.places[stream] = StreamPosition()
        self._missing_until = (0, 0)

    def mark(self, first: tuple[str, StreamId] | None) -> None:
        """Mark all entries before this one as no longer needed; without one, all that were read."""
        own = list(self.places).index(first[0]) if first else 0
        for number, place in enumerate(self.places.values()):
            to = place.after
            if first is not None:
                milliseconds = first[1][0]
                same_time = (milliseconds, LAST) if number < own else before((milliseconds, 0))
                to = min(to, before(first[1]) if number == own else same_time)
            place.marked = max(place.marked, to)
            while place.held and place.held[0][0] <= place.marked:
                place.done.append(place.held.popleft())
        if self.places[self._speech].marked >= self._missing_until:
            self.miss_nothing()

    def unsaved(self) -> dict[str, str]:
        """The fields that Redis does not have yet."""
        fields = {stream: format_id(self._link.newest[stream]) for stream in self._outputs}
        fields |= {f"given:{stream}": str(self.given.get(stream, 0)) for stream in self._outputs}
        fields["missing"] = self.missing
        for stream, place in self.places.items():
            fields[stream] = format_id(place.marked)
            n_marked = place.n_read - len(place.held)
            fields[f"read:{stream}"] = f"{n_marked} {format_id(place.answered)} {place.n_answered}"
        return {name: text for name, text in fields.items() if self.saved.get(name) != text}

    def save(self) -> None:
        """Write what Redis does not have yet."""
        if fields := self.unsaved():
            self._link.write_hash(self.key, fields)
            self.saved |= fields

    def retire(self) -> None:
        """Allow that entries up to the mark that Redis knows are deleted, when there are too
        many of them.
        """
        for stream, place in self.places.items():
            marked, done = parse_id(self.saved.get(stream, "0-0")), []
            while place.done and place.done[0][0] <= marked:
                done.append(place.done.popleft())
            self._link.retire(stream, done)

    def in_use(self) -> list[tuple[str, list[StreamId]]]:
        """Entries of utterances in progress, by stream.

        They may be deleted where nothing else makes room.
        """
        found = [
            (stream, [entry_id for entry_id, _ in (*place.done, *place.held)])
            for stream, place in self.places.items()
        ]
        for place in self.places.values():
            place.known = None
        return found

    def gap(self, stream: str) -> str:
        """Name entries that were deleted unread since the last call; empty for none."""
        place, info = self.places[stream], self._link.stream_info(stream)
        if self._only_ours_were_deleted(stream, info):
            return ""
        n_waiting = self._link.count(stream, place.after, info["last"])
        n_gone = n_lost(info, place, n_waiting)
        if info["added"] is not None:
            change = info["added"] - n_waiting - place.n_read
            place.n_read += change
            place.n_answered += change
        place.known = place.after
        return _said(n_gone, stream, "deleted before they were read") if n_gone else ""

    def _only_ours_were_deleted(self, stream: str, info: Mapping[str, Any]) -> bool:
        """Whether nobody else has deleted since this was asked last, in a stream that is still
        the same.

        Counting instead what waits would take the square of a backlog: it is asked at the end of
        each utterance.
        """
        place, held = self.places[stream], self.places[stream].held
        if info["added"] is None:
            return False
        n_before = place.n_foreign
        place.n_foreign = info["added"] - info["length"] - self._link.n_deleted.get(stream, 0)
        is_same = bool(held) and info["first"] is not None and info["first"] <= held[0][0]
        return is_same and place.n_foreign == n_before

    def miss(self, what: str) -> None:
        """Keep what is missing until every utterance that may lack it has its result."""
        if what:
            self.missing = "; ".join(filter(None, (self.missing, what)))
            self._told = False
            self._missing_until = (LAST, LAST)

    def miss_nothing(self) -> None:
        """Forget what is missing: its utterances are void."""
        self.missing = ""
        self._told = True

    def take_missing(self) -> str:
        """Name what utterances in progress lack, once; asked when one of them ends."""
        self.miss(self.gap(self._speech))
        said = "" if self._told else self.missing
        if said:
            self._told = True
            self._missing_until = self.places[self._speech].after
        return said


def n_lost(info: Mapping[str, Any], place: StreamPosition, n_waiting: int) -> int:
    """Number of entries that were deleted unread: -1 where that cannot be counted, 0 for none.

    Args:
        info: As `RedisLink.stream_info` gives it; n_waiting: how many entries come after those that
            were read.
    """
    if info["added"] is None:
        return -int(was_trimmed(info, place.known))
    n_gone: int = info["added"] - n_waiting - place.n_read
    if n_gone >= 0:
        return n_gone
    # the stream was deleted and has begun anew: in mid-utterance, if it has had fewer entries than
    # were read of that
    return -int(len(place.held) > info["added"] - n_waiting)


def was_trimmed(info: Mapping[str, Any], known: StreamId | None) -> bool:
    """Whether entries after a known one may have been deleted, by the ids alone.

    Redis 7 tells the latest id that XDEL deleted, but not that of XTRIM; before, there is only the
    first entry.
    """
    if known is None or info["last"] <= known:
        return False
    return (info["max_deleted"] or (0, 0)) > known or info["first"] is None or info["first"] > known


def _place(stream: str, texts: Mapping[str, str]) -> StreamPosition:
    """Raises ValueError for what no server has written."""
    marked = _checked_id(texts[stream])
    read = texts.get(f"read:{stream}", f"-1 {texts[stream]} -1")
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
    found = parse_json_object(text)
    if not all(isinstance(value, str) for value in found.values()):
        raise ValueError
    return found


def _said(n_gone: int, stream: str, what: str) -> str:
    if n_gone < 0:
        return f"entries of {stream} were {what}: words may be missing"
    return (
        f"{n_gone} {'entries' if n_gone > 1 else 'entry'} of {stream}"
        f" {'were' if n_gone > 1 else 'was'} {what}"
    )
