"""Where a BRAND node is in its streams, kept in Redis so that a node that was killed knows what it missed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cortext.data.trial import BIN_MS
from cortext.live.brand_control import ControlReader, Mark
from cortext.live.brand_entries import index_of
from cortext.live.brand_parameters import NodeParameters
from cortext.live.redis_link import Entry, RedisLink, StreamId, format_id, parse_id


@dataclass
class Position:
    """Kept in the hash NICK_position.

    id_in, i_in: id and running number of the last data entry that was taken
    control_id:  id of the last control entry that was carried out
    utterance:   number of the last utterance; i_out: number of the next entry of the output stream
    running:     whether an utterance is in progress
    clean:       whether the node was shut down, and nobody expects it to have listened since
    """

    id_in: StreamId = (0, 0)
    i_in: int | None = None
    control_id: StreamId = (0, 0)
    utterance: int = 0
    i_out: int = 0
    running: bool = False
    clean: bool = False

    def save(self, link: RedisLink, key: str) -> bool:
        """Write it; whether the key was there before."""
        mapping: dict[str, Any] = {
            "id_in": format_id(self.id_in),
            "i_in": "" if self.i_in is None else self.i_in,
            "control_id": format_id(self.control_id),
            "utterance": self.utterance,
            "i_out": self.i_out,
            "running": int(self.running),
            "clean": int(self.clean),
        }
        return not link.call(lambda redis: redis.hset(key, mapping=mapping))

    @classmethod
    def load(cls, link: RedisLink, key: str) -> Position | None:
        """What was written last; None where there is nothing, or nothing that can be read."""
        found = {k.decode(): v.decode() for k, v in link.call(lambda redis: redis.hgetall(key)).items()}
        try:
            return cls(
                parse_id(found["id_in"]),
                int(found["i_in"]) if found["i_in"] else None,
                parse_id(found["control_id"]),
                int(found["utterance"]),
                int(found["i_out"]),
                found["running"] == "1",
                found["clean"] == "1",
            )
        except (KeyError, ValueError):
            return None


@dataclass(frozen=True)
class Missed:
    """What went by while no node listened.

    n_entries: data entries, None where they have no running numbers; ms: by the ids of the entries
    trials:    starts of trials that have begun since
    """

    n_entries: int | None
    ms: int
    trials: tuple[Mark, ...]

    def __str__(self) -> str:
        if self.n_entries is None:
            return f"about {round(self.ms / BIN_MS)} entries ({self.ms} ms) were missed"
        return f"{self.n_entries} entries ({self.ms} ms) were missed"

    def __bool__(self) -> bool:
        return bool(self.n_entries or self.ms or self.trials)


def catch_up(link: RedisLink, parameters: NodeParameters, position: Position, known: bool) -> Missed:
    """Move a position to the streams' ends; tell what lies between.

    known: whether the position is that of a node before this one; else only a trial that has begun and not ended is
           missed
    """
    newest = _newest(link, parameters.input_stream)
    n_entries, ms = (None, 0) if known else (0, 0)
    if newest is not None:
        index = index_of(newest.fields.get(parameters.index_field.encode()))
        if known:
            ms = max(newest.id[0] - position.id_in[0], 0)
            if index is not None and position.i_in is not None and index >= position.i_in:
                n_entries = index - position.i_in
        position.id_in, position.i_in = newest.id, index
    trials = _trials(link, parameters, position, known) if parameters.control_stream else ()
    return Missed(n_entries if newest is not None else 0, ms, trials)


def _trials(link: RedisLink, parameters: NodeParameters, position: Position, known: bool) -> tuple[Mark, ...]:
    stream, control = str(parameters.control_stream), ControlReader(parameters)
    if known:
        after = format_id((position.control_id[0], position.control_id[1] + 1))
        found = link.call(lambda redis: redis.xrange(stream, min=after))
    else:
        found = link.call(lambda redis: redis.xrevrange(stream, count=1))
    entries = [Entry(stream, parse_id(entry_id), fields) for entry_id, fields in found]
    marks = [control.mark(entry) for entry in entries if entry.id > position.control_id]
    position.control_id = max([position.control_id, *(entry.id for entry in entries)])
    return tuple(mark for mark in marks if mark is not None and mark.what == "start")


def _newest(link: RedisLink, stream: str) -> Entry | None:
    found = link.call(lambda redis: redis.xrevrange(stream, count=1))
    return Entry(stream, parse_id(found[0][0]), found[0][1]) if found else None
