"""The language-model server: reads a protocol's entries from Redis and writes its answers.

Whatever is lost on the way is reported.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from cortext.decoding.decoder import Decoder
from cortext.errors import ConfigError, LiveError, nearest
from cortext_live.core.log import event
from cortext_live.core.redis_connection import Stopped
from cortext_live.core.redis_link import RedisLink
from cortext_live.core.redis_streams import LAST, StreamEntry, StreamId, before, format_id
from cortext_live.lm_server.json_protocol import INPUT, OUTPUT, JsonProtocol
from cortext_live.lm_server.position import UNREADABLE, ServerPosition
from cortext_live.lm_server.published_options import PublishedOptions, changed_params
from cortext_live.lm_server.published_protocol import (
    LOST,
    Answer,
    Protocol,
    PublishedProtocol,
    PublishedStreams,
)

BLOCK_MS = 100
"""Longest wait of a read, after which the server checks for a stop and for a flushed Redis."""
SAVE_EVERY = 64
"""Most entries until the position is saved in mid-utterance; otherwise each read saves it."""
LONGEST_TEXT = 2**20
"""Bytes of a text from a client's key that are read, and sent back."""

PROFILES = ("published", "json")
PRESETS = ("published",)


def make_protocol(
    decoder: Decoder,
    profile: str = "published",
    preset: str | None = None,
    changes: Iterable[str] = (),
    streams: Mapping[str, str | None] | None = None,
    stop: threading.Event | None = None,
    context: str = "",
) -> Protocol:
    """Return a protocol that serves a decoder.

    Args:
        decoder: The word search, with a large model or without.
        profile: "published", or "json" for messages of our own.
        preset: "published" for the published parameters; without it the decoder's options hold. A
            large model, where the decoder has one, scores candidates until `do_opt` is 0.
        changes: `name=value` of published parameters.
        streams: Other names for the streams `input`, `partial` and `final`.
        stop: The server's, so that long searches end when it is set.
        context: The text before the utterance, where clients do not send it.

    Raises:
        ConfigError: A profile, preset, parameter or stream is wrong.
    """
    if profile not in PROFILES:
        raise ConfigError(f"unknown profile {profile!r}; {nearest(profile, PROFILES)}")
    if preset is not None and preset not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r}; {nearest(preset, PRESETS)}")
    params = PublishedOptions() if preset else PublishedOptions.of(decoder.options)
    params = changed_params(replace(params, do_opt=decoder.llm is not None), changes)
    names = {role: name for role, name in (streams or {}).items() if name is not None}
    if not all(name.strip() for name in names.values()):
        raise ConfigError("a stream has an empty name", fix="name it, or leave the option out")
    is_set = (stop or threading.Event()).is_set
    if profile == "published":
        published = PublishedStreams(**names)
        if len(set(published.all())) < len(published.all()):
            raise ConfigError("two streams have the same name", fix="name them apart")
        return PublishedProtocol(decoder, params, published, is_set, context)
    if "partial" in names:
        raise ConfigError(
            "the json profile has no stream of partial results; they come on the final one"
        )
    if names.get("input", INPUT) == names.get("final", OUTPUT):
        raise ConfigError("two streams have the same name", fix="name them apart")
    options = params.options(decoder.options).changed({"llm": params.llm(decoder.options)})
    return JsonProtocol(
        decoder, options, names.get("input", INPUT), names.get("final", OUTPUT), is_set, context
    )


class LMServer:
    """Serves one protocol on one Redis database.

    Args:
        protocol: The protocol.
        url: See `RedisLink`.
        stop: Set it to end `run`.
        keep: Most entries and most bytes that stay in a stream, of those that no utterance in
            progress needs.
        timeout_s: See `RedisLink`.
        take_over: End a server that serves the same streams, instead of refusing to start beside
            it.

    Raises:
        LiveError: The URL cannot be read.
    """

    def __init__(
        self,
        protocol: Protocol,
        url: str,
        stop: threading.Event | None = None,
        keep: tuple[int, int] = (10_000, 64 * 2**20),
        timeout_s: float = 10.0,
        take_over: bool = False,
    ) -> None:
        self.stop = stop or threading.Event()
        self._protocol = protocol
        self._take_over = take_over
        name = f"cortext-lm-server:{protocol.inputs[0]}"
        self._link = RedisLink(url, name, self.stop, timeout_s, keep)
        self._position = ServerPosition(
            self._link,
            f"cortext_lm_position:{protocol.inputs[0]}",
            protocol.inputs,
            protocol.outputs,
            protocol.speech,
        )
        self._link.in_use = self._position.in_use
        protocol.missing = self._position.take_missing
        self._n_connections = 0
        self._first_answer: tuple[str, StreamId] | None = None
        self._changes: dict[str, str] = {}
        self._announced = protocol.announcement().stream
        # answers that come after the position are counted when a server begins: none of them may be
        # deleted here
        self._save_every = max(min(keep[0] // 2, SAVE_EVERY), 1)
        self._n_unsaved = 0
        self._idle = self._in_entry = False

    def run(self) -> None:
        """Serve until `stop` is set.

        Raises:
            LiveError: Redis refuses, or another server has these streams.
        """
        try:
            self._start()
            with suppress(Stopped):
                while not self.stop.is_set():
                    self._serve()
            self._answer_to((0, 0), self._protocol.stop())
            if self._in_entry:  # it is asked for again of the server after this one
                return
            self._mark()
            self._position.save()
            if not self._protocol.in_utterance():
                self._link.write_hash(self._position.key, {"changes": "{}"})
        except Stopped:  # Redis is away: the log has the answers that were lost
            pass
        except LiveError:
            self._protocol.stop()
            raise
        finally:
            event("stopped", redis=self._link.where)
            self._link.close()

    def _start(self) -> None:
        self._refuse_rivals(self._take_over)
        self._n_connections = self._link.n_connections
        for stream in self._protocol.outputs:
            self._link.newest[stream] = self._link.newest_id(stream) or (0, 0)
        self._resume()
        self._name_gaps()
        self._link.trim(self._protocol.outputs)
        for stream, at in self._position.by_stream.items():
            self._link.retire_up_to(stream, at.marked)
        self._announce()
        event("serving", redis=self._link.where, streams=list(self._protocol.inputs))

    def _resume(self) -> None:
        """Continue where a server before this one ended, so that a waiting client gets its answer.

        Entries after the last utterance that ended are done again, without the answers that are
        there already. An unanswered entry that begins everything anew makes earlier ones void.
        """
        link = self._link
        position = self._position
        answers = self._protocol.answers
        readable = position.load()
        self._protocol.restore(position.changes)
        asked = self._protocol.anew
        anew = link.newest_id(asked) if asked else None
        if not readable:
            begin = dict.fromkeys(answers, (anew[0] - 1, LAST) if anew else _now(link))
            # an answer's id is later than its question's: entries after the newest answer have
            # none
            answered = {
                stream: link.newest_id(answers[stream]) or begin[stream]
                for stream in self._protocol.inputs
            }
            position.begin_after(begin if anew else answered, answered)
            if asked and not anew:
                # Named utterances without their beginning are refused one by one
                position.miss(UNREADABLE)
        elif (
            anew
            and anew > position.by_stream[asked].answered
            and (position.known or not self._has_answer(anew))
        ):
            begin = dict.fromkeys(answers, (anew[0] - 1, LAST))
            position.begin_after(begin, begin)
            position.newest = dict.fromkeys(self._protocol.outputs, anew)
            position.given = {}
        elif position.known:
            position.resume()
        else:
            begin = dict.fromkeys(answers, _now(link))
            position.begin_after(begin, begin)
            return
        if readable:
            self._count_given()
        position.newest = {stream: link.newest[stream] for stream in self._protocol.outputs}
        since = max(at.marked for at in position.by_stream.values())
        n_answers = {stream: link.count(stream, since) for stream in self._protocol.outputs}
        event(
            "resuming",
            after={s: format_id(i) for s, i in position.after.items()},
            answered=n_answers,
        )

    def _count_given(self) -> None:
        """Count the answers that a server before this one gave after its position."""
        given = self._position.given
        for stream, last in self._position.newest.items():
            answers = map(self._protocol.is_answer, self._link.entries(stream, last))
            given[stream] = given.get(stream, 0) + sum(answers)

    def _has_answer(self, anew: StreamId) -> bool:
        """Return whether a server of another kind has answered the entry that resets everything."""
        return (self._link.newest_id(self._protocol.answers[self._protocol.anew]) or (0, 0)) > anew

    def _mark(self) -> dict[str, str]:
        """Mark the answered entries; return the fields that Redis does not have yet."""
        position = self._position
        self._n_unsaved = 0
        position.mark(self._protocol.first())
        if not position.saved:
            position.save()
        return position.unsaved()

    def _serve(self) -> None:
        """Wait for entries, and answer them."""
        position = self._position
        due = self._idle or self._n_unsaved >= self._save_every or self._protocol.first() is None
        keys = (self._announced, position.key)
        fields = self._mark() if due else {}
        steady, entries = self._link.read_and_save(
            keys, position.after, BLOCK_MS, (position.key, fields)
        )
        if self._link.n_connections != self._n_connections:
            self._n_connections = self._link.n_connections
            self._refuse_rivals(take_over=False)
        if steady:
            position.saved |= fields
        else:
            self._after_loss()
            self._announce()
        self._idle = not entries
        if self._idle:  # all that was there has been done again
            position.given = {}
        for entry in entries:
            self._answer(entry)
            if self.stop.is_set():
                break
        if due:
            position.retire()

    def _answer(self, entry: StreamEntry) -> None:
        self._in_entry = True
        answers = self._protocol.handle(entry, self._text)
        if self._protocol.changes != self._changes:
            self._keep_changes()
        if entry.id > self._position.by_stream[entry.stream].answered:
            # Else a server before this one has answered it
            self._answer_to(entry.id, answers)
        elif self._protocol.in_utterance() and self._first_answer is None:
            stream = self._protocol.answers[entry.stream]
            self._first_answer = stream, self._link.newest[stream]
        self._position.take(entry)
        self._in_entry = False
        self._n_unsaved += 1
        if entry.stream == self._protocol.anew:
            self._position.miss_nothing()

    def _announce(self) -> None:
        """Announce the server."""
        announcement = self._protocol.announcement()
        entry_id = self._link.add(announcement.stream, announcement.fields)
        self._link.write_hash(self._position.key, {"announced": format_id(entry_id)})
        self._keep_changes()
        self._position.saved = {}
        self._mark()

    def _keep_changes(self) -> None:
        """Save the parameters that clients changed, should this server be killed."""
        self._changes = dict(self._protocol.changes)
        self._link.write_hash(self._position.key, {"changes": json.dumps(self._changes)})

    def _after_loss(self) -> None:
        """Read new streams from their beginning, and report entries that may be missing."""
        event("streams_lost", "warning", in_utterance=self._protocol.in_utterance())
        self._position.given = {}
        for stream, entry_id in self._position.after.items():
            if (self._link.newest_id(stream) or (0, 0)) < entry_id:
                self._position.begin_anew(stream)
        gap = self._position.gap(self._protocol.speech)
        if self._first_answer and not self._link.has(*self._first_answer):
            self._first_answer = None
            self._answer_to((0, 0), self._protocol.lost(LOST))
        else:
            self._position.miss(gap)

    def _answer_to(self, request: StreamId, answers: list[Answer]) -> None:
        entry_id: StreamId | None = None
        for answer in answers:
            # A server before this one has given this answer.
            if self._position.was_given(answer.stream, request):
                continue
            n_connections = self._link.n_connections
            try:
                entry_id = self._link.add(answer.stream, answer.fields, request, now=entry_id)
            except (Stopped, LiveError):
                event("answer_lost", "error", stream=answer.stream, request=format_id(request))
                raise
            if not self._protocol.in_utterance():
                self._first_answer = None
            elif self._first_answer is None:
                # added over two connections it may be in a Redis that knows nothing of what came
                # before
                steady = n_connections == self._link.n_connections
                self._first_answer = answer.stream, entry_id if steady else (0, 0)

    def _name_gaps(self) -> None:
        """Report questions that were deleted while no server was there.

        Deleted speech is reported by its utterance.
        """
        for stream in self._protocol.inputs:
            if stream not in (self._protocol.speech, self._protocol.anew) and (
                gap := self._position.gap(stream)
            ):
                self._answer_to((0, 0), self._protocol.lost(gap))

    def _text(self, key: str) -> str:
        """Return the text under a key, empty where there is none; of a very long one the end."""
        text = self._link.read_end(key, LONGEST_TEXT)
        if len(text) == LONGEST_TEXT:  # it may begin within a character
            text = re.sub(rb"^[\x80-\xbf]{1,3}", b"", text)
        return text.decode(errors="replace")

    def _refuse_rivals(self, take_over: bool) -> None:
        rivals = self._link.rivals()
        for rival in rivals if take_over else ():
            event("rival_ended", "warning", rival=rival)
            self._link.end_connection(rival)
        if rivals and not take_over:
            raise LiveError(
                f"another language-model server (connected from {rivals[0]}) serves these streams",
                where=self._link.where,
                fix="end it, start with --take-over, or use another database",
            )


def _now(link: RedisLink) -> StreamId:
    """Return the id before all of Redis's present millisecond, which is no entry's."""
    return before(link.now())
