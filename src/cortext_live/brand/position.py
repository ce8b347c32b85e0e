"""The position of a BRAND node in its streams.

It is kept in Redis, so that the next node knows which entries were missed after a kill.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cortext_live.brand.control import LONGEST_LABEL, ControlReader, Mark
from cortext_live.brand.entries import index_of
from cortext_live.brand.parameters import NodeConfig
from cortext_live.brand.sequence import MOST_LOST
from cortext_live.core.redis_link import RedisLink
from cortext_live.core.redis_streams import StreamEntry, StreamId, format_id, parse_id


@dataclass
class NodePosition:
    """The position, kept in the hash NICK_position.

    Attributes:
        id_in: Id of the last data entry that was taken.
        i_in: Its running number.
        control_id: Id of the last control entry that was carried out.
        utterance: Number of the last utterance.
        i_out: Number of the next entry of the output stream.
        running: Whether an utterance is in progress.
        clean: Whether the node was shut down, and nobody expects it to have listened since.
        trial: Label of the last utterance.
    """

    id_in: StreamId = (0, 0)
    i_in: int | None = None
    control_id: StreamId = (0, 0)
    utterance: int = 0
    i_out: int = 0
    running: bool = False
    clean: bool = False
    trial: bytes = b""

    def save(self, link: RedisLink, key: str) -> bool:
        """Write the position as `RedisLink.write_hash` does; return whether the key existed."""
        mapping: dict[str, Any] = {
            "id_in": format_id(self.id_in),
            "i_in": "" if self.i_in is None else self.i_in,
            "control_id": format_id(self.control_id),
            "utterance": self.utterance,
            "i_out": self.i_out,
            "running": int(self.running),
            "clean": int(self.clean),
            "trial": self.trial,
        }
        return link.write_hash(key, mapping)

    @classmethod
    def load(cls, link: RedisLink, key: str) -> NodePosition | None:
        """Return the position that was written last; None where there is none that can be read."""
        return cls._read(link.call(lambda redis: redis.hgetall(key)))

    @classmethod
    def take_over(
        cls, link: RedisLink, key: str, parameters: NodeConfig
    ) -> tuple[NodePosition | None, str]:
        """Return the position that was written last, and the new name of a key that cannot be read.

        A position with an id in the future cannot be used: a node that continued from it would read
        nothing until that time.

        Args:
            link: Connection to Redis.
            key: Key of the position.
            parameters: Names of the streams.

        Returns:
            The position, or None; the new name, or an empty text.
        """
        kind = link.call(lambda redis: redis.type(key))
        if kind == b"none":
            return None, ""
        position = cls.load(link, key) if kind == b"hash" else None
        if position is not None:
            now = link.now()
            places = [(parameters.input_stream, position.id_in)]
            if parameters.control_stream is not None:
                places.append((parameters.control_stream, position.control_id))
            if all(
                entry_id <= max(now, link.newest_id(stream) or now) for stream, entry_id in places
            ):
                return position, ""
        return None, link.set_aside(key)

    @classmethod
    def _read(cls, fields: Mapping[bytes, bytes]) -> NodePosition | None:
        try:
            values = {name: fields[name.encode()].decode("ascii") for name in _PATTERNS}
            trial = fields[b"trial"][:LONGEST_LABEL]
        except (KeyError, UnicodeDecodeError):
            return None
        if not all(re.fullmatch(pattern, values[name]) for name, pattern in _PATTERNS.items()):
            return None
        return cls(
            parse_id(values["id_in"]),
            int(values["i_in"]) if values["i_in"] else None,
            parse_id(values["control_id"]),
            int(values["utterance"]),
            int(values["i_out"]),
            values["running"] == "1",
            values["clean"] == "1",
            trial,
        )


_ID = r"[0-9]{1,19}-[0-9]{1,19}"
_NUMBER = r"[0-9]{1,18}"
_PATTERNS = {
    "id_in": _ID,
    "i_in": f"({_NUMBER})?",
    "control_id": _ID,
    "utterance": _NUMBER,
    "i_out": _NUMBER,
    "running": "[01]",
    "clean": "[01]",
}


@dataclass(frozen=True)
class Missed:
    """The entries that went by while no node listened.

    Attributes:
        n_entries: Data entries, None where they have no running numbers.
        ms: Milliseconds, by the ids of the entries.
        trials: Starts of trials that have begun since.
        bin_ms: Length of a bin, and of an entry as far as is known.
    """

    n_entries: int | None
    ms: int
    trials: tuple[Mark, ...]
    bin_ms: float

    def __str__(self) -> str:
        if self.n_entries is None:
            return f"about {round(self.ms / self.bin_ms)} entries ({self.ms} ms) were missed"
        return f"{self.n_entries} entries ({self.ms} ms) were missed"

    def __bool__(self) -> bool:
        return bool(self.n_entries or self.ms or self.trials)


def catch_up(
    link: RedisLink,
    parameters: NodeConfig,
    position: NodePosition,
    known: bool,
    bin_ms: float,
) -> Missed:
    """Move a position to the streams' ends; return what lies between.

    Args:
        link: The connection.
        parameters: The node's parameters.
        position: It is changed.
        known: Whether a node before this one wrote the position; else only a trial that has begun
            and not ended is missed.
        bin_ms: Length of a bin.
    """
    newest = newest_of(link, parameters.input_stream)
    n_entries, ms = (None, 0) if known else (0, 0)
    if newest is not None:
        index = index_of(newest.fields.get(parameters.index_field.encode()), position.i_in)
        if known:
            ms = max(newest.id[0] - position.id_in[0], 0)
            if (
                index is not None
                and position.i_in is not None
                and 0 <= index - position.i_in <= MOST_LOST
            ):
                n_entries = index - position.i_in
        position.id_in = newest.id
        position.i_in = index
    trials = _trials(link, parameters, position, known) if parameters.control_stream else ()
    return Missed(n_entries if newest is not None else 0, ms, trials, bin_ms)


def _trials(
    link: RedisLink, parameters: NodeConfig, position: NodePosition, known: bool
) -> tuple[Mark, ...]:
    stream = str(parameters.control_stream)
    control = ControlReader(parameters)
    newest = None if known else newest_of(link, stream)
    starts: list[Mark] = []
    for entry in link.entries(stream, position.control_id) if known else filter(None, [newest]):
        mark = control.mark(entry) if entry.id > position.control_id else None
        position.control_id = max(position.control_id, entry.id)
        if mark is not None and mark.what == "start":
            starts.append(mark)
    return tuple(starts)


def newest_of(link: RedisLink, stream: str) -> StreamEntry | None:
    """Return the newest entry of a stream."""
    newest = link.call(lambda redis: redis.xrevrange(stream, count=1))
    return StreamEntry(stream, parse_id(newest[0][0]), newest[0][1]) if newest else None
