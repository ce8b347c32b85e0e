"""The published language-model protocol, without Redis: entries in, answers out.

It follows language_model/language-model-standalone.py and model_training/evaluate_model_helpers.py
of the public NEJM 2024 release. `docs/reference/redis-messages.md` describes it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Protocol as Interface

from cortext.decoding.decoder import Decoder
from cortext.decoding.nbest import Hypothesis, NBest
from cortext.decoding.options import DecoderOptions
from cortext.errors import shown
from cortext_live.core.decoder import Notes
from cortext_live.core.log import event, internal_error
from cortext_live.core.redis_connection import Stopped
from cortext_live.core.redis_streams import StreamEntry, StreamId, format_id
from cortext_live.lm_server.published_options import (
    PublishedOptions,
    candidates_of,
    scoring,
    without_separator,
)
from cortext_live.lm_server.utterance import ClientUtterance, served_conventions
from cortext_lm.llm.augment import augmented

CONTEXT_KEY = "contextual_decoding_current_context"
"""Redis key of the text before this sentence, for a large model."""
OWNER_SILENT_S = 30.0
"""Time without a request after which another client may take over an utterance."""
MOST_REFUSED = 20
"""Refused parameters that are named for one entry, at most."""
LONGEST_NAME = 200
"""Length to which a client's or a parameter's name is cut."""
NO_CANDIDATES = ";0.0;0.0;0.0;0.0"
"""The empty sentence; clients want at least one candidate."""
NO_LLM = "do_opt asks for a large model, and none is loaded: start the server with --llm MODEL"
LOST = "Redis lost its streams in mid-utterance (flushed or restarted); frames may be missing"


@dataclass(frozen=True)
class Answer:
    """An entry to be added to a stream."""

    stream: str
    fields: Mapping[str, str | int | float]


class Protocol(Interface):
    """The interface of a protocol for the server."""

    inputs: tuple[str, ...]
    """The streams to read; where entries of several have the same time, this is their order."""

    outputs: tuple[str, ...]
    """The streams of answers."""
    speech: str
    """The input stream of logits."""
    answers: Mapping[str, str]
    """The stream of the answers to each input stream."""
    anew: str
    """The input stream whose entries begin everything anew; empty where there is none."""
    missing: Callable[[], str]
    """Function of the server that reports entries of an utterance that were deleted unread.

    It is called when the utterance ends.
    """

    changes: dict[str, str]
    """Parameters that clients have changed."""

    def restore(self, changes: Mapping[str, str]) -> None:
        """Restore the parameters that clients changed with a server before this one."""

    def announcement(self) -> Answer:
        """Return the entry that announces the server, at its start and when that is missing."""

    def handle(self, entry: StreamEntry, get: Callable[[str], str]) -> list[Answer]:
        """Return the answers to an entry; `get` returns the text under a Redis key."""

    def in_utterance(self) -> bool:
        """Return whether there are frames without a result."""

    def first(self) -> tuple[str, StreamId] | None:
        """Return stream and id of the entry that began the oldest utterance in progress."""

    def is_answer(self, entry: StreamEntry) -> bool:
        """Return whether an entry of an output was written because of one entry of an input."""

    def lost(self, problem: str) -> list[Answer]:
        """Report lost entries now, and in the results of the utterances in progress."""

    def stop(self) -> list[Answer]:
        """Report the utterances that get no result, because the server ends."""


@dataclass(frozen=True)
class PublishedStreams:
    """The names of the streams."""

    input: str = "remote_lm_input"
    partial: str = "remote_lm_output_partial"
    final: str = "remote_lm_output_final"
    reset: str = "remote_lm_reset"
    reset_done: str = "remote_lm_done_resetting"
    finalize: str = "remote_lm_finalize"
    finalize_done: str = "remote_lm_done_finalizing"
    update: str = "remote_lm_update_params"
    update_done: str = "remote_lm_done_updating_params"
    args: str = "remote_lm_args"
    errors: str = "remote_lm_errors"

    def all(self) -> list[str]:
        """Return all names."""
        return [getattr(self, field.name) for field in fields(self)]


class PublishedProtocol:
    """Serves one client at a time, one utterance after the other.

    A client may put a field `client` into its entries; entries with another one are then refused
    while its utterance is in progress. Entries without one cannot be distinguished.

    Args:
        decoder: The word search, with a large model or without.
        params: The parameters at the start.
        streams: Names of the streams.
        stop: Asked during long searches; True ends them.
        context: The text before the utterance, where the key `CONTEXT_KEY` is empty.
    """

    def __init__(
        self,
        decoder: Decoder,
        params: PublishedOptions,
        streams: PublishedStreams = PublishedStreams(),
        stop: Callable[[], bool] = lambda: False,
        context: str = "",
    ) -> None:
        self._decoder = decoder
        self._stop = stop
        self._context = context
        self._notes = Notes(decoder)
        self.params = params
        self.streams = streams
        self.inputs: tuple[str, ...] = (
            streams.reset,
            streams.update,
            streams.input,
            streams.finalize,
        )
        self.outputs: tuple[str, ...] = tuple(
            name for name in streams.all() if name not in (*self.inputs, streams.args)
        )
        self.speech = streams.input
        self.anew = streams.reset
        self.answers: Mapping[str, str] = {
            streams.reset: streams.reset_done,
            streams.update: streams.update_done,
            streams.input: streams.partial,
            streams.finalize: streams.finalize_done,
        }
        self.missing: Callable[[], str] = lambda: ""
        self.changes: dict[str, str] = {}
        self._utterance: ClientUtterance | None = None
        self._owner = b""
        self._last_request_s = 0.0
        self._first: StreamId = (0, 0)
        self._actions: Mapping[str, Callable[[StreamEntry, Callable[[str], str]], list[Answer]]] = {
            streams.reset: self._reset,
            streams.update: self._update,
            streams.input: self._input,
            streams.finalize: self._finalize,
        }
        self._say_what_is_missing(("do_opt", "rescore"))

    def announcement(self) -> Answer:
        """Return the parameters in force."""
        conventions = served_conventions(self._decoder)
        facts = {name: json.dumps(value) for name, value in conventions.items()}
        return Answer(
            self.streams.args,
            {"lm_path": str(self._decoder.lm_dir), **self.params.announced(), **facts},
        )

    def handle(self, entry: StreamEntry, get: Callable[[str], str]) -> list[Answer]:
        """Handle an entry in its turn and return its answers."""
        client = entry.fields.get(b"client", b"")[:LONGEST_NAME]
        if self.in_utterance() and client != self._owner:
            silent_s = time.monotonic() - self._last_request_s
            if silent_s < OWNER_SILENT_S:
                return [
                    self._error(
                        entry, "another client's utterance is under way; use streams of your own"
                    )
                ]
            self._drop(f"another client began after {silent_s:.0f} s of silence")
        self._owner = client
        self._last_request_s = time.monotonic()
        try:
            return self._actions[entry.stream](entry, get)
        except Stopped:
            raise
        # whatever it is, the client waits for an answer, and the next utterance may go well
        except Exception as error:
            return self._after_failure(entry, error)

    def restore(self, changes: Mapping[str, str]) -> None:
        """Restore the parameters that clients changed with a server that was killed.

        They take precedence over this server's own settings.
        """
        if changes:
            self.changes = dict(changes)
            self.params, _ = self.params.updated(changes)
            event("parameters_restored", "warning", values=self.params.announced())

    def in_utterance(self) -> bool:
        """Return whether entries with frames have come that have no result."""
        return self._utterance is not None and self._utterance.n_entries > 0

    def first(self) -> tuple[str, StreamId] | None:
        """Return stream and id of the first entry with frames of the utterance in progress."""
        return (self.streams.input, self._first) if self.in_utterance() else None

    def is_answer(self, entry: StreamEntry) -> bool:
        """Return whether an entry answers a request: not so errors that name none."""
        return entry.stream != self.streams.errors or b"stream" in entry.fields

    def lost(self, problem: str) -> list[Answer]:
        """Report lost entries now, and in the result of the utterance in progress."""
        if self._utterance is not None:
            self._utterance.problem(problem)
        return [self._error(None, problem)]

    def stop(self) -> list[Answer]:
        """Report the utterance in progress; it has no result unless another server continues it."""
        if self._utterance is None or not self.in_utterance():
            return []
        event(
            "utterance_dropped",
            "warning",
            why="the server stops",
            n_frames=self._utterance.n_frames,
        )
        return [self._error(None, "the server stopped in mid-utterance")]

    def _reset(self, entry: StreamEntry, get: Callable[[str], str]) -> list[Answer]:
        self._drop("reset by the client")
        event("reset")
        return [Answer(self.streams.reset_done, {"done": 1})]

    def _input(self, entry: StreamEntry, get: Callable[[str], str]) -> list[Answer]:
        utterance = self._utterance or self._begin(get)
        if not utterance.n_entries:
            self._first = entry.id
        problem = utterance.take(entry.fields.get(b"logits"))
        answers = [Answer(self.streams.partial, {"lm_response_partial": utterance.partial.text})]
        event("partial", "debug", {"text": utterance.partial.text}, n_frames=utterance.n_frames)
        return [*answers, self._error(entry, problem)] if problem else answers

    def _finalize(self, entry: StreamEntry, get: Callable[[str], str]) -> list[Answer]:
        context = self._context_before(get)
        missing = self.missing()
        utterance = self._utterance or self._begin(get)
        self._utterance = None
        start = time.perf_counter()
        if missing:
            utterance.problem(missing)
        if not utterance.n_frames:
            utterance.problem("nothing to decode was sent")
        nbest = utterance.finish(context)
        degraded = NO_LLM if self.params.do_opt and self._decoder.llm is None else nbest.degraded
        result = self._result(nbest) | {"context_str": context}
        if utterance.problems:
            result["error"] = "; ".join(utterance.problems)
        if degraded:
            result["degraded"] = degraded
        self._notes.write_new()
        event(
            "utterance_finished",
            "warning" if utterance.problems or degraded else "info",
            {"text": result["lm_response_final"], "context": result["context_str"]},
            n_entries=utterance.n_entries,
            n_frames=utterance.n_frames,
            n_candidates=(str(result["scoring"]).count(";") + 1) // 5,
            search_ms=round(1000 * utterance.search_s, 2),
            finish_ms=round(1000 * (time.perf_counter() - start), 2),
            problems=utterance.problems,
            degraded=degraded,
        )
        answers = [
            Answer(self.streams.final, result),
            Answer(self.streams.finalize_done, {"done": 1}),
        ]
        return [self._error(entry, missing), *answers] if missing else answers

    def _result(self, nbest: NBest) -> dict[str, str | int | float]:
        hypotheses: Sequence[Hypothesis] = nbest
        if self.params.nbest > 1 and nbest[0].confidence is None:
            # Else the large model was given more of them
            top, penalty = self.params.top_candidates_to_augment, self.params.score_penalty_percent
            hypotheses = augmented(nbest, self._options(), top, penalty)
        candidates = candidates_of(hypotheses)
        return {
            "lm_response_final": without_separator(candidates[0].sentence),
            "scoring": scoring(candidates),
        }

    def _update(self, entry: StreamEntry, get: Callable[[str], str]) -> list[Answer]:
        texts = {
            name.decode(errors="replace"): value.decode(errors="replace")
            for name, value in entry.fields.items()
            if name != b"client"
        }
        self.params, refused = self.params.updated(texts)
        self.changes |= {name: text for name, text in texts.items() if name not in refused}
        if self._utterance is not None:
            self._utterance.set_options(self._options())
        event("parameters_updated", values=self.params.announced())
        errors = []
        for name, reason in islice(refused.items(), MOST_REFUSED):
            event("parameter_refused", "error", parameter=name, reason=reason)
            errors.append(self._error(entry, reason, parameter=shown(name, LONGEST_NAME)))
        if len(refused) > MOST_REFUSED:
            errors.append(
                self._error(entry, f"{len(refused) - MOST_REFUSED} more parameters were refused")
            )
        self._say_what_is_missing(texts.keys())
        return [*errors, self.announcement(), Answer(self.streams.update_done, {"done": 1})]

    def _say_what_is_missing(self, names: Collection[str]) -> None:
        """Log the named parameters that are kept and have no effect."""
        opt = [name for name in names if name in ("do_opt", "alpha") and self.params.do_opt]
        if opt and self._decoder.llm is None:
            event("parameters_kept", "warning", parameters=opt, reason=NO_LLM)
        if "rescore" in names and self.params.rescore:
            reason = "the search has the whole n-gram at once: there is no larger one to score with"
            event("parameters_kept", "warning", parameters=["rescore"], reason=reason)

    def _after_failure(self, entry: StreamEntry, error: Exception) -> list[Answer]:
        """Return the answers that a client waits for, after an unexpected error."""
        problem = internal_error(error)
        if entry.stream in (self.streams.reset, self.streams.update):
            answers = [Answer(self.answers[entry.stream], {"done": 1})]
        elif entry.stream == self.streams.input:
            if self._utterance:
                self._utterance.problem(problem)
            answers = [Answer(self.streams.partial, {"lm_response_partial": ""})]
        else:
            empty = {
                "lm_response_final": "",
                "scoring": NO_CANDIDATES,
                "context_str": "",
                "error": problem,
            }
            answers = [
                Answer(self.streams.final, {**empty}),
                Answer(self.streams.finalize_done, {"done": 1}),
            ]
        return [*answers, self._error(entry, problem)]

    def _begin(self, get: Callable[[str], str]) -> ClientUtterance:
        options = self._options()
        fused = self._decoder.llm is not None and options.llm.mode == "fusion"
        context = self._context_before(get) if fused else ""  # otherwise only the end needs it
        self._utterance = ClientUtterance(self._decoder, options, self._stop, context=context)
        return self._utterance

    def _options(self) -> DecoderOptions:
        base = self._decoder.options
        return self.params.options(base).changed({"llm": self.params.llm(base)})

    def _context_before(self, get: Callable[[str], str]) -> str:
        return get(CONTEXT_KEY).strip() or self._context

    def _drop(self, why: str) -> None:
        if self._utterance is not None and self._utterance.n_entries:
            event("utterance_dropped", "warning", why=why, n_frames=self._utterance.n_frames)
        self._utterance = None

    def _error(self, entry: StreamEntry | None, problem: str, **facts: str) -> Answer:
        """Log an error; return it for the stream of errors."""
        asked = {"stream": entry.stream, "id": format_id(entry.id)} if entry else {}
        if entry and (client := entry.fields.get(b"client")):
            asked["client"] = client[:LONGEST_NAME].decode(errors="replace")
        if not facts:
            event("request_failed", "error", error=problem, request=asked)
        return Answer(self.streams.errors, {"error": problem} | asked | facts)
