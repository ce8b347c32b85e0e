"""The language-model server: a protocol's entries come from Redis, are answered, and nothing is lost silently."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from cortext.decoding.session import Decoder
from cortext.errors import ConfigError, LiveError, nearest
from cortext.live.lm_json import INPUT, OUTPUT, JsonProtocol
from cortext.live.lm_params import PublishedParams, changed_params
from cortext.live.lm_protocol import Answer, Protocol, PublishedProtocol, PublishedStreams
from cortext.live.log import event
from cortext.live.redis_link import RedisLink, Stopped, StreamId, format_id

BLOCK_MS = 100
"""How long a read waits before the server looks whether it was asked to stop, and whether Redis was flushed."""


PROFILES = ("published", "json")
PRESETS = ("published",)


def make_protocol(
    decoder: Decoder,
    profile: str = "published",
    preset: str | None = None,
    changes: Iterable[str] = (),
    streams: Mapping[str, str | None] | None = None,
    stop: threading.Event | None = None,
) -> Protocol:
    """A protocol that speaks for a decoder.

    profile: "published", or "json" for messages of our own
    preset:  "published" for the published parameters; without it the decoder's options hold
    changes: `name=value` of published parameters
    streams: other names for the streams `input`, `partial` and `final`
    stop:    the server's, so that long searches end when it is set
    Raises ConfigError for a profile, preset, parameter or stream that cannot be.
    """
    if profile not in PROFILES:
        raise ConfigError(f"unknown profile {profile!r}; {nearest(profile, PROFILES)}")
    if preset is not None and preset not in PRESETS:
        raise ConfigError(f"unknown preset {preset!r}; {nearest(preset, PRESETS)}")
    params = changed_params(PublishedParams() if preset else PublishedParams.of(decoder.options), changes)
    names = {role: name for role, name in (streams or {}).items() if name}
    is_set = (stop or threading.Event()).is_set
    if profile == "published":
        published = PublishedStreams(**names)
        if len(set(published.all())) < len(published.all()):
            raise ConfigError("two streams have the same name", fix="name them apart")
        return PublishedProtocol(decoder, params, published, is_set)
    if "partial" in names:
        raise ConfigError("the json profile has no stream of partial results; they come on the final one")
    if names.get("input", INPUT) == names.get("final", OUTPUT):
        raise ConfigError("two streams have the same name", fix="name them apart")
    options = params.options(decoder.options)
    return JsonProtocol(decoder, options, names.get("input", INPUT), names.get("final", OUTPUT), is_set)


class LMServer:
    """Serves one protocol on one Redis database.

    url:       as `RedisLink` takes it
    stop:      set it to end `run`
    keep:      most entries and most bytes that stay in a stream
    take_over: end a server that serves the same streams, instead of refusing to start beside it
    Raises LiveError for a URL that is none.
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
        self._protocol, self._take_over = protocol, take_over
        name = f"cortext-lm-server:{protocol.inputs[0]}"
        self._link = RedisLink(url, name, self.stop, timeout_s, keep)
        self._after: dict[str, StreamId] = {}
        self._n_connections = 0
        self._looked_at = 0.0
        self._first_answer: tuple[str, StreamId] | None = None
        self._skip: dict[str, int] = {}

    def run(self) -> None:
        """Serve until told to stop. Raises LiveError where Redis refuses, or another server has these streams."""
        try:
            self._start()
            while not self.stop.is_set():
                self._look_after()
                for entry in self._link.read(self._after, BLOCK_MS):
                    self._answer_to(entry.id, self._protocol.handle(entry, self._text))
                    self._after[entry.stream] = entry.id
                    self._link.retire(entry)
                    if self.stop.is_set():
                        break
        except Stopped:
            pass
        finally:
            self._end()

    def _start(self) -> None:
        self._refuse_rivals(self._take_over)
        self._n_connections = self._link.n_connections
        now = self._link.now()
        self._after = dict.fromkeys(self._protocol.inputs, now)
        if isinstance(self._protocol, PublishedProtocol):
            self._resume(self._protocol.streams)
        self._answer_to((0, 0), [self._protocol.announcement()])
        event("serving", redis=self._link.where, streams=list(self._protocol.inputs))

    def _resume(self, streams: PublishedStreams) -> None:
        """Go on where a server before this one ended: after the newest reset, or with it if nobody has answered it.

        A client that waits for an answer gets it, and an utterance that is under way is searched from its beginning.
        """
        reset = self._link.newest_id(streams.reset)
        if reset is None:
            return
        final = self._link.newest_id(streams.final) or (0, 0)
        self._after = dict.fromkeys(self._protocol.inputs, max(reset, final))
        answered = (self._link.newest_id(streams.reset_done) or (0, 0)) > reset
        if not answered:
            self._after[streams.reset] = (reset[0], reset[1] - 1) if reset[1] else (reset[0] - 1, 2**64 - 1)
        first = format_id(max(reset, final))
        partials = self._link.call(lambda redis: redis.xrange(streams.partial, first, count=100_000))
        self._skip = {streams.partial: len(partials)}
        event("resuming", after=first, reset_was_answered=answered, partials_answered=len(partials))

    def _look_after(self) -> None:
        """See, ten times a second and after every reconnection, whether Redis still has what was said."""
        reconnected = self._link.n_connections != self._n_connections
        if not reconnected and time.monotonic() - self._looked_at < BLOCK_MS / 1000:
            return
        if reconnected:
            self._n_connections = self._link.n_connections
            self._refuse_rivals(take_over=False)
        announcement = self._protocol.announcement()
        if not self._link.call(lambda redis: redis.exists(announcement.stream)):
            self._after_loss()
            self._answer_to((0, 0), [announcement])
        self._looked_at = time.monotonic()

    def _after_loss(self) -> None:
        """The streams are gone: read the new ones from their beginning, and name what may be missing."""
        event("streams_lost", "warning", in_utterance=self._protocol.in_utterance())
        for stream, entry_id in self._after.items():
            if (self._link.newest_id(stream) or (0, 0)) < entry_id:
                self._after[stream] = (0, 0)
        if self._first_answer and not self._link.has(*self._first_answer):
            self._first_answer = None
            self._answer_to((0, 0), self._protocol.streams_lost())

    def _answer_to(self, request: StreamId, answers: list[Answer]) -> None:
        for answer in answers:
            if self._skip.get(answer.stream):  # a server before this one has said it
                self._skip[answer.stream] -= 1
                continue
            try:
                entry_id = self._link.add(answer.stream, answer.fields, request)
            except (Stopped, LiveError):
                event("answer_lost", "error", stream=answer.stream, request=format_id(request))
                raise
            if not self._protocol.in_utterance():
                self._first_answer, self._skip = None, {}
            elif self._first_answer is None:
                self._first_answer = answer.stream, entry_id

    def _text(self, key: str) -> str:
        """The text under a key, empty where there is none."""
        if self._link.call(lambda redis: redis.type(key)) != b"string":
            return ""
        found: bytes | None = self._link.call(lambda redis: redis.get(key))
        return found.decode(errors="replace") if found else ""

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

    def _end(self) -> None:
        """Name what has no result, and leave."""
        with suppress(Stopped, LiveError):  # Redis is away: the log has it
            self._answer_to((0, 0), self._protocol.stop())
        event("stopped", redis=self._link.where)
        self._link.close()
