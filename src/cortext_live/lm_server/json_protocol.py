"""The JSON profile of the language-model server, without Redis: entries in, answers out.

It has one stream in, one out, and utterances with names. Clients that name their utterances apart
do not disturb each other. `docs/reference/redis-messages.md` describes the messages.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from cortext import __version__
from cortext.decoding.decoder import Decoder
from cortext.decoding.nbest import FRAME_MS, hypothesis_json
from cortext.decoding.options import DecoderOptions, is_finite
from cortext.errors import LiveError, nearest, shown
from cortext.text.inventory import Inventory, get_inventory
from cortext.text.language import Language
from cortext_live.core.decoder import LIVE_BOUNDS, Notes, check_options, checked_hotwords
from cortext_live.core.log import event, internal_error
from cortext_live.core.redis_connection import Stopped
from cortext_live.core.redis_streams import StreamEntry, StreamId, format_id
from cortext_live.lm_server.published_protocol import Answer
from cortext_live.lm_server.utterance import ClientUtterance, served_conventions, usual_order

INPUT = "cortext_lm_input"
OUTPUT = "cortext_lm_output"
MOST_UTTERANCES = 16
"""Most utterances in progress at once; each holds a search and its lattice."""
LARGEST_MESSAGE = 2**20
"""Bytes of a message, beside its logits."""
SILENT_S = 600.0
"""Seconds without a request after which an utterance may be dropped for a new one."""

SHORTEST_FRAME_MS, LONGEST_FRAME_MS = 5, 10_000

Message = dict[str, Any]


class JsonProtocol:
    """Serves any number of clients, each with utterances of its own.

    Args:
        decoder: The word search, with a large model or without.
        options: Decoder options; a `begin` may change some of them for its utterance.
        input_stream: The stream of requests.
        output_stream: The stream of answers.
        stop: Asked during long searches; True ends them.
        context: The text before the utterance, for a large model, where a `begin` has none.
    """

    def __init__(
        self,
        decoder: Decoder,
        options: DecoderOptions,
        input_stream: str = INPUT,
        output_stream: str = OUTPUT,
        stop: Callable[[], bool] = lambda: False,
        context: str = "",
    ) -> None:
        self._decoder = decoder
        self._options = options
        self._stop = stop
        self._context = context
        self._notes = Notes(decoder)
        self.inputs: tuple[str, ...] = (input_stream,)
        self.outputs: tuple[str, ...] = (output_stream,)
        self.speech = input_stream
        self.anew = ""
        self._output = output_stream
        self.answers: Mapping[str, str] = {input_stream: output_stream}
        self.missing: Callable[[], str] = lambda: ""
        self.changes: dict[str, str] = {}
        self._utterances: dict[str, ClientUtterance] = {}
        self._last_request_s: dict[str, float] = {}
        self._began: dict[str, StreamId] = {}
        self._actions: dict[str, Callable[[str, Message, StreamEntry], list[Answer]]] = {
            "begin": self._begin,
            "frames": self._frames,
            "end": self._end,
            "drop": self._drop,
        }

    def restore(self, changes: Mapping[str, str]) -> None:
        """Do nothing: options belong to utterances."""

    def announcement(self) -> Answer:
        """Return the message `ready`: the server's version, language model and options."""
        options = asdict(self._options) | {"label_priors": dict(self._options.label_priors)}
        facts = {"version": __version__, "lm": str(self._decoder.lm_dir), "options": options}
        return self._say("ready", None, **facts, **served_conventions(self._decoder))

    def handle(self, entry: StreamEntry, get: Callable[[str], str]) -> list[Answer]:
        """Handle a request and return its answers."""
        name: str | None = None
        try:
            message = _message(entry, tuple(self._actions))
            name = message["utterance"]
            if name in self._utterances:
                self._last_request_s[name] = time.monotonic()
            return self._actions[message["type"]](name, message, entry)
        except Stopped:
            raise
        except RecursionError:
            return [self._error(name, "the message is nested too deeply", entry)]
        except Exception as error:  # the client waits for an answer, whatever it is
            return [self._error(name, internal_error(error), entry)]

    def in_utterance(self) -> bool:
        """Return whether an utterance is in progress."""
        return bool(self._utterances)

    def first(self) -> tuple[str, StreamId] | None:
        """Return stream and id of the oldest `begin` of an utterance that is not silent."""
        long_ago = time.monotonic() - SILENT_S
        began = [
            self._began[name] for name in self._utterances if self._last_request_s[name] > long_ago
        ]
        return (self.speech, min(began)) if began else None

    def is_answer(self, entry: StreamEntry) -> bool:
        """Return whether an entry answers a request: not so `ready`, and errors that name none."""
        try:
            message = json.loads(entry.fields[b"message"])
            return bool(message["type"] != "ready" and message.get("request", "") is not None)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            return False  # another program's entry

    def lost(self, problem: str, entry: StreamEntry | None = None) -> list[Answer]:
        """Report lost entries now, and in the results of the utterances in progress."""
        for utterance in self._utterances.values():
            utterance.problem(problem)
        return [self._error(name, problem, entry) for name in self._utterances or (None,)]

    def stop(self) -> list[Answer]:
        """Report the utterances in progress, which get no result."""
        names = list(self._utterances)
        for name in names:
            self._forget(name)
        return [self._error(name, "the server stopped in mid-utterance") for name in names]

    def _begin(self, name: str, message: Message, entry: StreamEntry) -> list[Answer]:
        answers = []
        if name in self._utterances:
            answers.append(
                self._error(name, "begun again before its end; what it had is dropped", entry)
            )
            self._forget(name)
        self._drop_silent_utterance()
        changes = _mapping(message, "options")
        hotwords = _mapping(message, "hotwords")
        options = self._options.changed(changes)
        check_options(_bounded(changes))
        hotwords = checked_hotwords(hotwords, self._decoder.language)
        inventory = self._order(message)
        context = _text(message, "context", self._context)
        self._utterances[name] = ClientUtterance(
            self._decoder,
            options,
            self._stop,
            inventory,
            hotwords,
            context,
            _frame_ms(message),
        )
        self._began[name] = entry.id
        self._last_request_s[name] = time.monotonic()
        language = served_conventions(self._decoder)
        language.pop("inventory", None)
        return [*answers, self._say("begun", name, order=inventory.name, **language)]

    def _order(self, message: Message) -> Inventory:
        """Return the order of the client's tokens.

        Raises LanguageModelError where its tokens or its language are not the language model's.
        """
        mine = self._decoder.inventory
        given = message.get("order")
        if given is None:
            order = usual_order(self._decoder)
        elif isinstance(given, list):  # an order alone: the roles are those of the language model
            order = Inventory.from_json(mine.to_json() | {"name": "client", "symbols": given})
        elif isinstance(given, dict):
            order = Inventory.from_json({"name": "client"} | given)
        else:
            order = get_inventory(_text(message, "order", ""))
        language = self._decoder.language
        if message.get("language") is not None:
            language = Language.from_json(message["language"])
        self._decoder.lm.require(order, language, theirs="the client")
        return order

    def _frames(self, name: str, message: Message, entry: StreamEntry) -> list[Answer]:
        utterance = self._under_way(name)
        problem = utterance.take(entry.fields.get(b"logits"))
        partial = utterance.partial
        event("partial", "debug", {"text": partial.text}, n_frames=utterance.n_frames)
        answer = self._say(
            "partial", name, frames=utterance.n_frames, stable=partial.stable, tail=partial.tail
        )
        return [answer, self._error(name, problem, entry)] if problem else [answer]

    def _end(self, name: str, message: Message, entry: StreamEntry) -> list[Answer]:
        utterance = self._under_way(name)
        missing = self.missing()
        answers = self.lost(missing, entry) if missing else []
        self._forget(name)
        start = time.perf_counter()
        if not utterance.n_frames:
            utterance.problem("nothing to decode was sent")
        nbest = utterance.finish()
        hypotheses = [hypothesis_json(hypothesis) for hypothesis in nbest]
        finish_ms = round(1000 * (time.perf_counter() - start), 2)
        self._notes.write_new()
        event(
            "utterance_finished",
            "warning" if utterance.problems or nbest.degraded else "info",
            {"text": hypotheses[0]["text"]},
            n_entries=utterance.n_entries,
            n_frames=utterance.n_frames,
            n_candidates=len(hypotheses),
            search_ms=round(1000 * utterance.search_s, 2),
            finish_ms=finish_ms,
            problems=utterance.problems,
            degraded=nbest.degraded,
        )
        return [
            *answers,
            self._say(
                "final",
                name,
                frames=utterance.n_frames,
                text=hypotheses[0]["text"],
                hypotheses=hypotheses,
                finish_ms=finish_ms,
                error="; ".join(utterance.problems) or None,
                degraded=nbest.degraded,
            ),
        ]

    def _drop(self, name: str, message: Message, entry: StreamEntry) -> list[Answer]:
        n_frames = self._under_way(name).n_frames
        self._forget(name)
        event("utterance_dropped", "warning", why="dropped by the client", n_frames=n_frames)
        return [self._say("dropped", name, frames=n_frames)]

    def _under_way(self, name: str) -> ClientUtterance:
        if name not in self._utterances:
            raise LiveError("no such utterance is under way", fix="send 'begin' first")
        return self._utterances[name]

    def _drop_silent_utterance(self) -> None:
        """Drop the longest silent utterance where too many are in progress, or raise LiveError."""
        if len(self._utterances) < MOST_UTTERANCES:
            return
        oldest = min(self._utterances, key=lambda name: self._last_request_s[name])
        if time.monotonic() - self._last_request_s[oldest] < SILENT_S:
            raise LiveError(
                f"{MOST_UTTERANCES} utterances are under way", fix="end or drop one of them"
            )
        event(
            "utterance_dropped", "error", why="silent", n_frames=self._utterances[oldest].n_frames
        )
        self._forget(oldest)

    def _forget(self, name: str) -> None:
        del self._utterances[name], self._began[name], self._last_request_s[name]

    def _say(self, kind: str, utterance: str | None, **facts: Any) -> Answer:
        message = {"type": kind, "utterance": utterance} | facts
        return Answer(self._output, {"message": json.dumps(message, allow_nan=False)})

    def _error(
        self, utterance: str | None, problem: str, entry: StreamEntry | None = None
    ) -> Answer:
        asked = format_id(entry.id) if entry else None
        event("request_failed", "error", error=problem, request=asked)
        return self._say("error", utterance, error=problem, request=asked)


def _message(entry: StreamEntry, kinds: tuple[str, ...]) -> Message:
    """Return the message of an entry. Raises LiveError unless it is one of these kinds."""
    raw = entry.fields.get(b"message", b"")
    if len(raw) > LARGEST_MESSAGE:
        raise LiveError(f"the message has {len(raw)} bytes; at most {LARGEST_MESSAGE} are read")
    try:
        message = json.loads(raw)
    except (ValueError, RecursionError):
        raise LiveError("the field 'message' holds no JSON") from None
    # `kinds` is a tuple: to look a list or an object up in a dict would raise TypeError.
    if not isinstance(message, dict) or message.get("type") not in kinds:
        kind = message.get("type") if isinstance(message, dict) else None
        given = shown(kind, 40)
        raise LiveError(f"the message's type is {given!r}; {nearest(given, kinds)}")
    if not isinstance(message.get("utterance"), str) or not 0 < len(message["utterance"]) <= 200:
        raise LiveError(
            "the message names no utterance", fix="give a text of at most 200 characters"
        )
    return message


def _bounded(changes: Mapping[str, Any]) -> DecoderOptions:
    """Return default options with those changes that a live search bounds."""
    bounded = {name: changes[name] for name in LIVE_BOUNDS if name in changes}
    budget_ms = dict(changes.get("llm") or {}).get("budget_ms", 0.0)
    return DecoderOptions().changed(bounded | {"llm": {"budget_ms": budget_ms}})


def _frame_ms(message: Message) -> float:
    frame_ms = message.get("frame_ms", FRAME_MS)
    if not is_finite(frame_ms) or not SHORTEST_FRAME_MS <= frame_ms <= LONGEST_FRAME_MS:
        raise LiveError(
            f"frame_ms is {shown(repr(frame_ms), 40)}; {SHORTEST_FRAME_MS} to {LONGEST_FRAME_MS}"
            " are possible"
        )
    return float(frame_ms)


def _text(message: Message, name: str, default: str) -> str:
    text = message.get(name, default)
    if not isinstance(text, str):
        raise LiveError(f"{name} is no text")
    return text


def _mapping(message: Message, name: str) -> Mapping[str, Any]:
    mapping = message.get(name)
    if mapping is None:
        return {}
    if not isinstance(mapping, dict):
        raise LiveError(f"{name} is no object")
    return mapping
