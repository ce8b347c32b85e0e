"""The inputs of live decoding: trials that are played, or a feed of bins."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from cortext.data.trial import Trial
from cortext.errors import DataError, LiveError
from cortext_live.page.sources import TrialSource
from cortext_live.page.utterance import BinOrigin
from cortext_live.page.utterance_decoder import CHUNK_BINS, UtteranceDecoder

State = Literal["idle", "running", "ended"]
PAUSE_S = 1.0
"""Pause between trials that are played at real speed, so that a sentence can be read."""


class Input(Protocol):
    """An input. Its methods run in the decoding thread; `changed` is called with each new state."""

    is_feed: bool

    def status(self) -> dict[str, Any]:
        """Return its part of a `state` message: `state, trial, reference, session`."""

    def wait_s(self) -> float | None:
        """Return the seconds until `advance` is due; None where it waits for a request."""

    def advance(self) -> None:
        """Decode the bins that are due."""

    def start(self, trial: int | None, session: str | None) -> None:
        """Start playing."""

    def stop(self) -> None:
        """End the utterance in progress and the playing."""

    def abort(self) -> None:
        """Stop playing after a failure; the utterance has been ended."""

    def open_feed(self, feed: object) -> None:
        """Accept a feed."""

    def close_feed(self, feed: object, why: str | None) -> None:
        """End the feed."""


@dataclass
class _Playback:
    """A trial that is being played, up to `next_bin`."""

    number: int
    trial: Trial
    alone: bool
    next_bin: int = 0


class TrialPlayer:
    """Plays trials of a source.

    Args:
        source: The trials.
        speed: 1 is the recording's own; infinity as fast as can be.
        utterances: Takes the bins.
        changed: Called when the state has changed.
    """

    is_feed = False

    def __init__(
        self,
        source: TrialSource,
        speed: float,
        utterances: UtteranceDecoder,
        changed: Callable[[], None],
    ) -> None:
        self._source = source
        self._bin_s = source.conventions.bin_ms / 1000
        self._speed = speed
        self._utterances = utterances
        self._changed = changed
        self._playback: _Playback | None = None
        self._ended = False
        self._session: str | None = None
        self._last_trial: int | None = None
        self._block: tuple[str, int] | None = None
        self._due_s = 0.0

    def status(self) -> dict[str, Any]:
        """See `Input`."""
        playback = self._playback
        state: State = "running" if playback else "ended" if self._ended else "idle"
        return {
            "state": state,
            "trial": playback.number if playback else None,
            "reference": playback.trial.sentence if playback else None,
            "session": self._session,
        }

    def wait_s(self) -> float | None:
        """See `Input`."""
        return None if self._playback is None else max(self._due_s - time.monotonic(), 0)

    def start(self, trial: int | None, session: str | None) -> None:
        """Play one trial, a session from its first trial on, or the next trial."""
        if trial is not None and session is not None:
            raise DataError("a trial and a session are given; give one of them")
        number = trial if trial is not None else self._next(session)
        if number is None:
            raise LiveError("the source has no trials")
        # Read before the stop: where it cannot be read, the trial in play continues.
        playback = _Playback(number, self._source.trial(number), alone=trial is not None)
        self.stop()
        self._session = session or self._session
        self._play(playback)

    def _next(self, session: str | None) -> int | None:
        """Return the first trial of a session, or the one after the last that was played."""
        if session is not None:
            return self._source.after(None, session)
        number = self._source.after(self._last_trial, self._session)
        # All have been played: begin again with the first.
        return self._source.after(None, self._session) if number is None else number

    def stop(self) -> None:
        """See `Input`."""
        self._utterances.finish("stop")
        self.abort()
        self._changed()

    def abort(self) -> None:
        """See `Input`."""
        self._playback = None
        self._ended = False
        self._utterances.origin = BinOrigin()

    def advance(self) -> None:
        """Decode the next bins of the trial, or move to the next trial."""
        playback = self._playback
        if playback is None:
            return
        n_bins = playback.trial.n_bins
        if playback.next_bin >= n_bins:
            self._next_trial()
            return
        until = min(playback.next_bin + (1 if self._speed < math.inf else CHUNK_BINS), n_bins)
        self._utterances.push(playback.trial.features_TC[playback.next_bin : until])
        self._due_s += (until - playback.next_bin) * self._bin_s / self._speed
        playback.next_bin = until
        if until == n_bins:
            self._utterances.finish("end of trial")
            if playback.alone:
                self.abort()
                self._changed()
            self._due_s += PAUSE_S / self._speed

    def _next_trial(self) -> None:
        number = self._source.after(self._last_trial, self._session)
        if number is not None:
            self._play(_Playback(number, self._source.trial(number), alone=False))
            return
        self.abort()
        self._ended = True
        self._changed()

    def _play(self, playback: _Playback) -> None:
        trial = playback.trial
        self._playback = playback
        self._ended = False
        self._last_trial = playback.number
        self._due_s = time.monotonic()
        self._utterances.origin = BinOrigin(trial.session, playback.number, trial.sentence or None)
        pipeline = self._utterances.days.use(trial.session)
        if (trial.session, trial.block) != self._block:
            self._block = trial.session, trial.block
            pipeline.start_block()
        self._changed()

    def open_feed(self, feed: object) -> None:
        """Raise LiveError: there is no feed."""
        raise LiveError("this server plays recordings", fix="start it with --feed")

    def close_feed(self, feed: object, why: str | None) -> None:
        """Do nothing: there is no feed."""


class FeedInput:
    """Takes bins of one feed at a time, a web socket.

    Args:
        utterances: Takes the bins.
        changed: Called when the state has changed.
    """

    is_feed = True

    def __init__(self, utterances: UtteranceDecoder, changed: Callable[[], None]) -> None:
        self._utterances = utterances
        self._changed = changed
        self._feed: object | None = None

    def status(self) -> dict[str, Any]:
        """See `Input`."""
        state: State = "idle" if self._feed is None else "running"
        return {"state": state, "trial": None, "reference": None, "session": None}

    def wait_s(self) -> float | None:
        """See `Input`."""
        return None

    def advance(self) -> None:
        """Do nothing: bins are decoded when they come."""

    def start(self, trial: int | None, session: str | None) -> None:
        """Raise LiveError: there is nothing to play."""
        raise LiveError("bins come from a feed; decoding starts when one connects")

    def stop(self) -> None:
        """See `Input`."""
        self._utterances.finish("stop")
        self._changed()

    def abort(self) -> None:
        """Do nothing: a feed does not end."""

    def open_feed(self, feed: object) -> None:
        """See `Input`. Raises LiveError while another feed is connected."""
        if self._feed is not None:
            raise LiveError("another feed is connected", fix="end that one first")
        self._feed = feed
        self._utterances.days.pipeline.start_block()
        self._changed()

    def close_feed(self, feed: object, why: str | None) -> None:
        """See `Input`; a feed that was refused changes nothing."""
        if feed is not self._feed:
            return
        self._feed = None
        self._utterances.finish("stop", why)
        self._changed()
