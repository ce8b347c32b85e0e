"""The messages to the pages, as JSON, and the queues from the decoding thread to each page.

T bins, C features, P frames, V tokens.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import unicodedata
from base64 import b64encode
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cortext.errors import LiveError
from cortext.text.inventory import Inventory
from cortext.text.language import Language
from cortext_data.simulate.config import ARRAYS
from cortext_live.core.pipeline import Pipeline
from cortext_live.page.kinds import KINDS
from cortext_live.page.sources import TrialSource

MAX_FRAMES = 64
"""Most frames in one message; a page that reads slowly gets steps joined up to here."""
MAX_BINS = 4 * MAX_FRAMES
SHOWN_Z = 3.0
"""Largest z-score that is shown, of either sign; larger ones are clipped."""


@dataclass(frozen=True, eq=False)
class Event:
    """A message.

    Attributes:
        kind: One of `KINDS`.
        body: Its fields.

    Raises:
        ValueError: There is no such kind.
    """

    kind: str
    body: dict[str, Any]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(
                f"{self.kind!r} is no kind of message; add it to cortext_live.page.kinds"
            )

    @cached_property
    def text(self) -> str:
        """The message as JSON; made once for all readers."""
        return json.dumps({"type": self.kind, **self.body}, allow_nan=False, separators=(",", ":"))

    @cached_property
    def text_for_strangers(self) -> str:
        """The same for pages without a token, with the fields that these are sent."""
        body = KINDS[self.kind].for_strangers(self.body)
        return self.text if body == self.body else Event(self.kind, body).text


@dataclass(frozen=True, eq=False)
class StepMessage:
    """The news after the latest bins of an utterance.

    Attributes:
        utterance: Its number.
        t_ms: Milliseconds of the utterance so far.
        bins_TC: uint8 [T, C], see `shown_bins`.
        posteriors_PV: uint8 [P, V], see `shown_posteriors`.
        stable: Words that will not change any more.
        tail: The current guess after them.
        stage_ms: Milliseconds by stage of the slowest of its frames; None without frames.
        dropped: Bins before these that this reader was not sent.
    """

    utterance: int
    t_ms: float
    bins_TC: np.ndarray
    posteriors_PV: np.ndarray
    stable: str
    tail: str
    stage_ms: dict[str, float] | None
    dropped: int = 0
    kind = "step"

    def joined(self, later: StepMessage) -> StepMessage:
        """Return one step for two.

        Words are the later one's; bins and frames beyond the largest message are dropped. Only the
        count remains of a step of another utterance: its words come with its `utterance` message.
        """
        if later.utterance != self.utterance:
            return replace(later, dropped=later.dropped + self.dropped + len(self.bins_TC))
        bins_TC = np.concatenate((self.bins_TC, later.bins_TC))
        lost = max(len(bins_TC) - MAX_BINS, 0)
        return replace(
            later,
            bins_TC=bins_TC[lost:],
            posteriors_PV=np.concatenate((self.posteriors_PV, later.posteriors_PV))[-MAX_FRAMES:],
            stage_ms=_largest(self.stage_ms, later.stage_ms),
            dropped=self.dropped + later.dropped + lost,
        )

    @cached_property
    def event(self) -> Event:
        """The message as it is sent; made once for all readers who get the same."""
        return Event(
            "step",
            {
                "utterance": self.utterance,
                "t_ms": self.t_ms,
                "bins": b64encode(self.bins_TC.tobytes()).decode(),
                "n_bins": len(self.bins_TC),
                "posteriors": b64encode(self.posteriors_PV.tobytes()).decode(),
                "n_frames": len(self.posteriors_PV),
                "stable": self.stable,
                "tail": self.tail,
                "stage_ms": self.stage_ms,
                "dropped": self.dropped,
            },
        )


Message = Event | StepMessage


def _largest(
    first: dict[str, float] | None, second: dict[str, float] | None
) -> dict[str, float] | None:
    if not first or not second:
        return first or second
    return {stage: max(ms, second.get(stage, 0.0)) for stage, ms in first.items()}


def shown_bins(features_TC: np.ndarray) -> np.ndarray:
    """Return features [T, C] as uint8 [T, C]: z-scores from -3 to 3 become 0 to 255."""
    scaled_TC = (features_TC + SHOWN_Z) * (255 / (2 * SHOWN_Z))
    shown_TC: np.ndarray = np.rint(np.clip(scaled_TC, 0, 255)).astype(np.uint8)
    return shown_TC


def shown_posteriors(logits_PV: np.ndarray) -> np.ndarray:
    """Return logits [P, V] as uint8 [P, V]: probabilities from 0 to 1 become 0 to 255."""
    weights_PV = np.exp(logits_PV - logits_PV.max(axis=1, keepdims=True, initial=-np.inf))
    probs_PV = weights_PV / weights_PV.sum(axis=1, keepdims=True)
    shown_PV: np.ndarray = np.rint(255 * probs_PV).astype(np.uint8)
    return shown_PV


def feature_groups(n_features: int) -> list[dict[str, Any]]:
    """Return names and columns (first and last) of the features, in the order of the release.

    The release has crossings, then power, by array. Features that are not two for each electrode of
    four equal arrays make one group.
    """
    size, rest = divmod(n_features, 2 * len(ARRAYS))
    if rest:
        return [{"name": "features", "columns": [0, n_features - 1]}]
    names = [f"{array} {kind}" for kind in ("crossings", "power") for array in ARRAYS]
    return [
        {"name": name, "columns": [i * size, (i + 1) * size - 1]} for i, name in enumerate(names)
    ]


def token_groups(inventory: Inventory) -> list[dict[str, Any]]:
    """Return names and token numbers of the groups in which the page shows the tokens."""
    return [
        {"name": name, "tokens": inventory.ids(symbols).tolist()}
        for name, symbols in inventory.grouped
    ]


def language_facts(language: Language) -> dict[str, Any]:
    """Return what a page needs to show texts of a language.

    `lang` is a BCP 47 tag, for the browser's choice of fonts and voices, or empty; `direction` is
    the one in which lines are read; `unit` is `character` where each letter is a word.
    """
    sides = Counter(unicodedata.bidirectional(letter) for letter in language.letters)
    is_tag = re.fullmatch(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*", language.name)
    return {
        "name": language.name,
        "lang": language.name if is_tag else "",
        "direction": "rtl" if sides["R"] + sides["AL"] > sides["L"] else "ltr",
        "unit": language.unit,
    }


def greeting(pipeline: Pipeline, source: TrialSource | None) -> dict[str, Any]:
    """Return the constant part of a `hello` message: the model and the source.

    Args:
        pipeline: Model and search.
        source: Source of trials; None for a feed.
    """
    stepper = pipeline.stepper
    inventory = pipeline.conventions.inventory
    return {
        "n_features": stepper.n_features,
        "arrays": feature_groups(stepper.n_features),
        "bin_ms": pipeline.conventions.bin_ms,
        "frame_ms": pipeline.frame_ms,
        "budget_ms": pipeline.frame_ms,
        "look_ahead_ms": pipeline.look_ahead_ms,
        "tokens": list(inventory.symbols),
        "groups": token_groups(inventory),
        "unit": inventory.unit,
        "separator": inventory.sil,
        "language": language_facts(pipeline.conventions.language),
        "gate": pipeline.gate and [asdict(each) for each in pipeline.gate.card.measured],
        "source": {
            "kind": source.kind if source else "feed",
            "sessions": list(source.sessions) if source else [],
            "trials": source.listing() if source else [],
        },
    }


MAX_WAITING = 512
"""Messages that wait for one reader before it is given up: the sentences of half an hour."""


class Reader:
    """The queue of one page, on an event loop.

    At most one step waits, in which all unsent ones are joined, and one message of each kind of
    which only the latest matters. All others wait, up to `MAX_WAITING`: then the reader is given
    up. Every message to a page leaves here: `KINDS` says what of it a stranger is sent.

    Args:
        loop: The event loop.
        is_stranger: Whether the page has shown no token.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, is_stranger: bool = False) -> None:
        self.is_stranger = is_stranger
        self._loop = loop
        self._ready = asyncio.Event()
        self._mutex = threading.Lock()
        self._waiting: deque[Message] = deque()
        self._overrun = False

    def put(self, message: Message) -> None:
        """Add a message; from any thread, without waiting."""
        if self.is_stranger and not KINDS[message.kind].strangers:
            return
        with self._mutex:
            if self._overrun:
                return
            self._waiting.append(self._supersede(message))
            if len(self._waiting) > MAX_WAITING:
                self._overrun = True
                self._waiting.clear()
            notify = len(self._waiting) <= 1
        if notify:
            self._notify()

    async def get(self) -> str:
        """Return the next message. Raises LiveError when the reader has been given up."""
        while True:
            with self._mutex:
                if self._overrun:
                    raise LiveError("messages were not read in time", fix="connect again")
                if self._waiting:
                    message = self._waiting.popleft()
                    break
                self._ready.clear()
            await self._ready.wait()
        event = message.event if isinstance(message, StepMessage) else message
        return event.text_for_strangers if self.is_stranger else event.text

    def __len__(self) -> int:
        return len(self._waiting)

    def _supersede(self, message: Message) -> Message:
        """Remove the messages that this one replaces; return the message that stands for both."""
        for waiting in self._waiting:
            if isinstance(message, StepMessage) and isinstance(waiting, StepMessage):
                self._waiting.remove(waiting)
                return waiting.joined(message)
            if KINDS[message.kind].only_latest and waiting.kind == message.kind:
                self._waiting.remove(waiting)
                break
        return message

    def _notify(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._ready.set)
        except RuntimeError:  # the loop has ended, and with it the reader
            self._waiting.clear()


class Fanout:
    """All readers."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._readers: set[Reader] = set()
        self._admitted: set[Reader] = set()

    def admit(self, reader: Reader, most: int) -> bool:
        """Keep a place for a reader before it is added; return False where `most` have one.

        One call decides and takes the place: connections that come at the same time cannot all find
        it free.
        """
        with self._mutex:
            if len(self._admitted) >= most:
                return False
            self._admitted.add(reader)
            return True

    def add(self, reader: Reader, first: Iterable[Message] = ()) -> None:
        """Send a reader everything from now on.

        Args:
            reader: The reader.
            first: What it is sent before: those of kinds of which a page that connects later is
                sent something.
        """
        for message in first:
            if KINDS[message.kind].later != "nothing":
                reader.put(message)
        with self._mutex:
            self._readers.add(reader)

    def remove(self, reader: Reader) -> None:
        """Send a reader nothing more, and give up its place."""
        with self._mutex:
            self._readers.discard(reader)
            self._admitted.discard(reader)

    def send(self, message: Message) -> None:
        """Send a message to all readers, without waiting."""
        with self._mutex:
            readers = list(self._readers)
        for reader in readers:
            reader.put(message)

    def __len__(self) -> int:
        return len(self._readers)
