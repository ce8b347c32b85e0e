"""The clients of a replay: a BRAND stream of features, or logits to a language-model server.

T bins, C features, P frames, V tokens.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cortext.data import Trial
from cortext.data.conventions import Conventions
from cortext.decoding.nbest import FRAME_MS
from cortext.errors import ConfigError, CortextError, DataError, LiveError, first_line
from cortext.files import parse_json_object
from cortext.text.inventory import LM
from cortext.text.language import EN
from cortext_live.brand.entries import index_of, timestamp, uint64
from cortext_live.brand.parameters import NodeConfig, with_names
from cortext_live.brand.position import NodePosition
from cortext_live.brand.process import read_parameters
from cortext_live.core.acoustic_stream import AcousticStream, PipelineOptions
from cortext_live.core.log import event
from cortext_live.core.redis_connection import Stopped
from cortext_live.core.redis_link import RedisLink
from cortext_live.core.redis_streams import StreamId
from cortext_live.lm_server.json_protocol import INPUT, OUTPUT
from cortext_live.lm_server.published_protocol import PublishedStreams
from cortext_live.steps.stepper import Stepper

WAITING_S = 3.0
"""Seconds of waiting after which the log names the missing message."""
POLL_MS = 200
_PACKED = PipelineOptions(normalise="none")
"""Options for the trials of packed data, which hold z-scores."""


@dataclass(frozen=True)
class ReplayAnswer:
    """The decoded text of a trial, and its error."""

    text: str
    error: str = ""


class Client(Protocol):
    """A destination of trials, bin by bin."""

    bins_per_entry: int
    """Bins that `send` takes at once."""

    def ready(self, conventions: Conventions) -> None:
        """Wait until a server is ready.

        Raises DataError or LiveError where recordings of these conventions are not for it.
        """

    def begin(self, number: int, trial: Trial) -> None:
        """Begin a trial."""

    def send(self, bins_TC: np.ndarray) -> None:
        """Send bins, float32 [T, C]; wait where earlier ones were not taken yet."""

    def end(self) -> ReplayAnswer | None:
        """End the trial; return its answer, where there is one."""


class Patience:
    """Waits for others: logs that after a while, and gives up in the end."""

    def __init__(self, link: RedisLink, patience_s: float) -> None:
        self._link = link
        self._patience_s = patience_s

    def wait(self, poll: Callable[[], Any], awaited: str, fix: str) -> Any:
        """Return the first result of `poll` that is not None.

        Args:
            poll: Called again and again.
            awaited: The thing that is waited for.
            fix: Advice where it does not come.

        Raises:
            LiveError: It did not come in time.
            Stopped: The process was asked to stop.
        """
        start = time.monotonic()
        logged = False
        while True:
            if (answer := poll()) is not None:
                return answer
            if self._link.stop.is_set():
                raise Stopped
            waited_s = time.monotonic() - start
            if waited_s > WAITING_S and not logged:
                event("replay_waits", "warning", what=awaited)
                logged = True
            if waited_s > self._patience_s:
                raise LiveError(
                    f"waited {waited_s:.0f} s for {awaited}", where=self._link.where, fix=fix
                )

    def answer(self, stream: str, after: StreamId, fix: str) -> tuple[StreamId, dict[bytes, bytes]]:
        """Wait for the first entry of a stream after an id; return its id and its fields.

        Args:
            stream: Name of the stream.
            after: Id before the answer.
            fix: Advice of the error where no answer comes.

        Raises:
            LiveError: Where no answer comes in time.
        """

        def poll() -> tuple[StreamId, dict[bytes, bytes]] | None:
            entries = self._link.read({stream: after}, POLL_MS, 1)
            return (entries[0].id, entries[0].fields) if entries else None

        entry: tuple[StreamId, dict[bytes, bytes]] = self.wait(poll, f"an answer on {stream}", fix)
        return entry


class BrandStream:
    """Features as a BRAND stream, with starts and stops on a control stream.

    Args:
        link: The connection.
        patience: Waits for the node.
        node: Nickname of a node of the published graph: its parameters give the names, the replay
            waits for it, and reads its texts. None writes under the default names and waits for no
            node.
        keep: Most entries of a replay in the stream; the node may be half of them behind.
    """

    CONTROL = "trial_control"

    def __init__(self, link: RedisLink, patience: Patience, node: str | None, keep: int) -> None:
        self._link = link
        self._patience = patience
        self._node = node
        self._keep = keep
        self._p = read_parameters(link, node) if node else _default_names()
        self._dtype = np.dtype(self._p.input_dtype)
        if self._dtype.kind != "f":
            raise ConfigError(
                f"parameters.input_dtype is {self._p.input_dtype!r}; replayed features are floats"
            )
        self.bins_per_entry = self._p.bins_per_entry or 1
        self._next = self._first_number()
        self._taken = -1
        self._final: StreamId = link.newest_id(self._p.final_stream) or (0, 0)
        self._number = -1

    def ready(self, conventions: Conventions) -> None:
        """See `Client`."""
        if self._p.bin_ms is not None:
            self._check(conventions, replace(conventions, bin_ms=self._p.bin_ms))
        if self._node is None:
            return
        if conventions.features == "raw" and self._p.normalise != "none":
            raise DataError(
                f"packed recordings hold z-scores; node {self._node} would normalise them again",
                fix="set its parameter normalise to none for a replay",
            )
        fix = f"start it: cortext brand-node -n {self._node} -i HOST -p PORT"
        state: dict[bytes, bytes] = self._patience.wait(
            self._node_is_ready, f"node {self._node}", fix
        )
        self._check(conventions, _stated(state.get(b"conventions", b"{}"), f"node {self._node}"))

    def _check(self, recorded: Conventions, needed: Conventions) -> None:
        recorded.require(needed, mine="the recordings", theirs=f"node {self._node}")

    def begin(self, number: int, trial: Trial) -> None:
        """See `Client`."""
        self._number = number
        self._mark(self._p.start_value, self._next, session=trial.session, block=trial.block)

    def send(self, bins_TC: np.ndarray) -> None:
        """See `Client`."""
        p = self._p
        if self._node and self._next - self._taken > max(self._keep // 2, 1):
            self._patience.wait(
                self._has_room,
                f"node {self._node} to read {p.input_stream}",
                "is it still running?",
            )
        fields = {
            p.input_field: bins_TC.astype(self._dtype).tobytes(),
            p.index_field: uint64(self._next),
            p.sync_key: json.dumps({"replay": self._next}),
            p.time_key: timestamp(),
        }
        self._link.add(p.input_stream, fields)
        self._next += 1

    def end(self) -> ReplayAnswer | None:
        """See `Client`. The texts of a node that ends utterances by itself belong to no trial."""
        self._mark(self._p.stop_value, self._next - 1)
        if self._node is None or not self._p.control_stream:
            return None
        number = str(self._number).encode()
        while True:
            self._final, fields = self._patience.answer(
                self._p.final_stream, self._final, "see the node's log"
            )
            if fields.get(b"trial") == number:
                text = fields.get(self._p.final_field.encode(), b"").decode(errors="replace")
                return ReplayAnswer(text, fields.get(b"error", b"").decode(errors="replace"))

    def _mark(self, value: str, index: int, **facts: Any) -> None:
        p = self._p
        if p.control_stream:
            fields = {
                p.control_field: value,
                p.index_field: uint64(index),
                "trial": self._number,
                **facts,
            }
            self._link.add(p.control_stream, fields | {p.time_key: timestamp()})

    def _first_number(self) -> int:
        """Return the number after the last one in the stream.

        A node takes numbers that begin anew for another source.
        """
        stream = self._p.input_stream
        self._link.trim([stream])  # what an earlier replay has left
        newest = self._link.call(lambda redis: redis.xrevrange(stream, count=1))
        last = index_of(newest[0][1].get(self._p.index_field.encode())) if newest else None
        return 0 if last is None else last + 1

    def _node_is_ready(self) -> dict[bytes, bytes] | None:
        """Return the newest of the node's states, without messages, where that is ready."""
        stream = f"{self._node}_state"
        newest = self._link.call(lambda redis: redis.xrevrange(stream, count=100))
        passing = (b"NODE_WARNING", b"NODE_INFO")
        states = [fields for _, fields in newest if fields.get(b"status") not in passing]
        if states and states[0].get(b"status") == b"NODE_READY":
            return dict(states[0])
        time.sleep(0.02)
        return None

    def _has_room(self) -> bool | None:
        position = NodePosition.load(self._link, f"{self._node}_position")
        self._taken = position.i_in if position and position.i_in is not None else self._taken
        if self._next - self._taken <= max(self._keep // 2, 1):
            return True
        time.sleep(0.005)
        return None


def _default_names() -> NodeConfig:
    return with_names(NodeConfig(run=Path(), control_stream=BrandStream.CONTROL), "node")


class PublishedClient:
    """Logits to the server of the published protocol, frame by frame like the release's client."""

    bins_per_entry = 1

    def __init__(
        self, link: RedisLink, patience: Patience, stepper: Stepper, names: PublishedStreams
    ) -> None:
        self._link = link
        self._patience = patience
        self._names = names
        self._stream = AcousticStream(stepper, options=_PACKED)
        answers = (names.partial, names.final, names.reset_done, names.finalize_done)
        self._seen = {name: link.newest_id(name) or (0, 0) for name in answers}
        self._sent = False

    def ready(self, conventions: Conventions) -> None:
        """See `Client`."""
        check_recordings(conventions, self._stream.conventions)
        self._ask(self._names.reset, {"done": 0}, self._names.reset_done)
        newest = self._link.call(lambda redis: redis.xrevrange(self._names.args, count=1))
        stated = newest[0][1] if newest else {}
        quoted = [
            f'"{name}": {stated[name.encode()].decode(errors="replace")}'
            for name in ("inventory", "language")
            if name.encode() in stated
        ]
        check_server(self._stream, _stated(f"{{{', '.join(quoted)}}}", SERVER))

    def begin(self, number: int, trial: Trial) -> None:
        """See `Client`."""
        begin_trial(self._stream, trial)
        self._ask(self._names.reset, {"done": 0}, self._names.reset_done)

    def send(self, bins_TC: np.ndarray) -> None:
        """See `Client`."""
        self._send(self._stream.push(bins_TC))

    def _send(self, logits_PV: np.ndarray) -> None:
        if len(logits_PV):
            self._ask(
                self._names.input,
                {"logits": in_lm_order(self._stream, logits_PV)},
                self._names.partial,
            )

    def end(self) -> ReplayAnswer | None:
        """See `Client`."""
        self._send(self._stream.finish())
        fields = self._ask(self._names.finalize, {"done": 0}, self._names.final)
        self._next(self._names.finalize_done)
        text = fields.get(b"lm_response_final", b"").decode(errors="replace")
        return ReplayAnswer(text, fields.get(b"error", b"").decode(errors="replace"))

    def _ask(self, stream: str, fields: dict[str, Any], answer: str) -> dict[bytes, bytes]:
        self._link.add(stream, fields)
        return self._next(answer)

    def _next(self, stream: str) -> dict[bytes, bytes]:
        self._seen[stream], fields = self._patience.answer(
            stream,
            self._seen[stream],
            "start it: cortext lm-server --lm DIR --redis-host HOST --redis-port PORT",
        )
        return fields


class JsonClient:
    """Logits to the language-model server of the JSON profile."""

    bins_per_entry = 1

    def __init__(
        self, link: RedisLink, patience: Patience, stepper: Stepper, names: tuple[str, str]
    ) -> None:
        self._link = link
        self._patience = patience
        self._stream = AcousticStream(stepper, options=_PACKED)
        self._input, self._output = names
        self._seen = link.newest_id(self._output) or (0, 0)
        self._name = ""

    def ready(self, conventions: Conventions) -> None:
        """See `Client`: the first answer shows that the server is there."""
        check_recordings(conventions, self._stream.conventions)

    def begin(self, number: int, trial: Trial) -> None:
        """See `Client`."""
        begin_trial(self._stream, trial)
        self._name = f"replay-{time.monotonic_ns()}-{number}"
        mine = self._stream.conventions
        order = LM.name if mine.inventory.is_published else mine.inventory.to_json()
        begin: dict[str, Any] = {"type": "begin", "order": order}
        if mine.language != EN:
            begin["language"] = mine.language.to_json()
        if self._stream.frame_ms != FRAME_MS:
            begin["frame_ms"] = self._stream.frame_ms
        begun = self._ask(begin, "begun")
        language = {"language": begun["language"]} if "language" in begun else {}
        conventions = _stated(json.dumps(language), SERVER)
        check_server(self._stream, replace(conventions, inventory=mine.inventory))

    def send(self, bins_TC: np.ndarray) -> None:
        """See `Client`."""
        self._send(self._stream.push(bins_TC))

    def _send(self, logits_PV: np.ndarray) -> None:
        if len(logits_PV):
            self._ask({"type": "frames"}, "partial", logits=in_lm_order(self._stream, logits_PV))

    def end(self) -> ReplayAnswer | None:
        """See `Client`."""
        self._send(self._stream.finish())
        final = self._ask({"type": "end"}, "final")
        return ReplayAnswer(final["text"], final["error"] or "")

    def _ask(self, message: dict[str, Any], answer: str, **fields: bytes) -> dict[str, Any]:
        text = json.dumps(message | {"utterance": self._name})
        self._link.add(self._input, {"message": text, **fields})
        while True:
            fix = (
                "start it: cortext lm-server --lm DIR --profile json --redis-host HOST --redis-port"
                " PORT"
            )
            self._seen, entry = self._patience.answer(self._output, self._seen, fix)
            reply: dict[str, Any] = json.loads(entry[b"message"])
            if reply["utterance"] != self._name:
                continue
            if reply["type"] == "error":
                raise LiveError(f"the server refuses: {reply['error']}", where=self._link.where)
            if reply["type"] == answer:
                return reply


def begin_trial(stream: AcousticStream, trial: Trial) -> None:
    """Begin a trial with the layer of its day. Raises RunError if the model has no such day."""
    stream.stepper.use(trial.session)
    stream.reset()


def in_lm_order(stream: AcousticStream, logits_PV: np.ndarray) -> bytes:
    """Return bytes of logits, float32 [P, V], in the order of the language model's files.

    Of the two published orders that is the language models'; any other inventory has one order.
    """
    inventory = stream.conventions.inventory
    columns = LM.order_from(inventory) if inventory.is_published else np.arange(len(inventory))
    return np.ascontiguousarray(logits_PV[:, columns], dtype=np.float32).tobytes()


SERVER = "the language-model server"


def check_recordings(recorded: Conventions, needed: Conventions) -> None:
    """Raise DataError unless a model's conventions are those of the recordings."""
    recorded.require(
        needed,
        mine="the recordings",
        theirs="the model",
        fix="give the run that was trained on such recordings",
    )


def check_server(stream: AcousticStream, served: Conventions) -> None:
    """Raise LiveError unless a server's language model is for the model of a stream."""
    stream.conventions.require(
        replace(served, bin_ms=stream.conventions.bin_ms),
        mine="the model",
        theirs=SERVER,
        error=LiveError,
        fix="start cortext lm-server with the language model of these tokens and language",
    )


def _stated(written: bytes | str, by: str) -> Conventions:
    """Return the conventions in a JSON object that a node or a server wrote."""
    try:
        return Conventions.from_json(parse_json_object(written))
    except (ValueError, CortextError) as error:
        raise LiveError(f"its conventions cannot be read: {first_line(error)}", where=by) from None


JSON_STREAMS = (INPUT, OUTPUT)
