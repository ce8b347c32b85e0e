"""One thread that owns the pipelines.

It plays trials or takes a feed, obeys, and tells every reader.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from cortext.data.trial import BIN_MS, Trial
from cortext.errors import DataError, LiveError
from cortext.live.core.acoustic_stream import check_frames
from cortext.live.core.decoder import Notes
from cortext.live.core.log import event, internal_error
from cortext.live.core.statistics import Tally
from cortext.live.page.days import Days
from cortext.live.page.fanout import Fanout, Reader
from cortext.live.page.jobs import Jobs, Result
from cortext.live.page.log_writer import Scribe
from cortext.live.page.messages import Event, greeting
from cortext.live.page.sources import Source
from cortext.live.page.utterance import PageUtterance
from cortext.usage.writer import session_of_today

State = Literal["idle", "running", "ended"]
CHUNK_BINS = 4
"""Bins that are decoded at once, at most.

What is asked of the thread waits no longer than for them.
"""
PAUSE_S = 1.0
"""Between trials that are played at real speed, so that a sentence can be read."""
STATS_S = 1.0


@dataclass
class Playing:
    """A trial that is being played, and where it is."""

    number: int
    trial: Trial
    alone: bool
    next_bin: int = 0


class LiveSession:
    """Decodes trials of `source`, or the frames of a feed where that is None.

    All methods may be called from any thread; what they return is there when the thread has done
    it. Several who control it are served one after the other: the last one wins, and everybody is
    told the state.

    Args:
        speed: 1 is that of the recording; infinity as fast as can be.
        scribe: Keeps utterances, where that was asked for.
        about: More for the `hello` message: names of the run and of the language model, version.
    """

    def __init__(
        self,
        days: Days,
        source: Source | None,
        *,
        speed: float = 1.0,
        scribe: Scribe | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        n_features = days.pipeline.stepper.n_features
        if source is not None and source.n_features != n_features:
            found = (
                f"the recordings have {source.n_features} features, the model needs {n_features}"
            )
            raise DataError(found, fix="give recordings, or a preset, that the run was trained for")
        self.n_features, self.is_feed, self.scribe = n_features, source is None, scribe
        self._days, self._source, self._speed = days, source, speed
        # Made once: a list of ten thousand trials takes as long as several steps of the search.
        self._greeting = greeting(days.pipeline, days.known, source) | dict(about or {})
        self._tally, self.readers = Tally(), Fanout()
        assert days.pipeline.decoder is not None
        self._notes = Notes(days.pipeline.decoder)
        self._state: State = "idle"
        self._session: str | None = None
        self._playing: Playing | None = None
        self._last_trial: int | None = None
        self._block: tuple[str, int] | None = None
        self._utterance: PageUtterance | None = None
        self._n_utterances = 0
        self._said_in_trial: list[str] = []
        self._latest: Event | None = None
        self._due_s = self._stats_s = 0.0
        self._feed: object | None = None
        self._n_refused = 0
        self._jobs = Jobs("decoding", self._wait_s, lambda: self._guarded(self._play), self._end)

    @property
    def day(self) -> str:
        """The day whose layer is in use."""
        return self._days.pipeline.session

    @property
    def look_ahead_ms(self) -> float:
        """How much later a bin's smoothed value is known than the bin itself."""
        return self._days.pipeline.look_ahead_ms

    # What may be asked of it

    def close(self, timeout_s: float = 5.0) -> None:
        """End the utterance in progress, which is told and logged, and the thread."""
        self._jobs.close(timeout_s)
        if self.scribe is not None:
            self.scribe.close()

    def watch(self, reader: Reader, can_control: bool) -> Future[None]:
        """Send a reader the greeting, the latest utterance, the statistics, and everything from
        now on.
        """
        return self._ask(lambda: self._greet(reader, can_control))

    def state(self) -> Future[dict[str, Any]]:
        """The body of a `state` message."""
        return self._ask(self._state_body)

    def start(self, trial: int | None = None, session: str | None = None) -> Future[None]:
        """Play one trial, a session from its first trial on, or what comes next.

        What is playing ends as by `stop`.
        """
        return self._ask(lambda: self._start(trial, session))

    def stop(self) -> Future[None]:
        """End the utterance in progress, and the playing."""
        return self._ask(self._stop)

    def set_options(self, changes: Mapping[str, Any]) -> Future[None]:
        """Change decoder options from the next frame on."""
        return self._ask(lambda: self._days.set_options(changes), tell=True)

    def change_hotwords(self, bonuses: Mapping[str, Any]) -> Future[None]:
        """Change the bonuses of words (null takes one away), from the next utterance on."""
        return self._ask(lambda: self._days.change_hotwords(bonuses), tell=True)

    def set_context(self, text: str) -> Future[None]:
        """Say what was said before, for the large model. Raises LiveError where there is none."""
        return self._ask(lambda: self._set_context(text), tell=True)

    def choose_day(self, session: str | None) -> Future[None]:
        """Use a day's layer from the next utterance on; None: each recording's own."""
        return self._ask(lambda: self._choose_day(session), tell=True)

    def open_feed(self, feed: object) -> Future[None]:
        """Take the frames of this feed from now on. Raises LiveError while there is another."""
        return self._ask(lambda: self._open_feed(feed))

    def feed(self, frames_TC: np.ndarray) -> Future[None]:
        """Decode frames, float32 [T, C].

        Raises DataError for what cannot be used, which changes nothing else.
        """
        return self._ask(lambda: self._take_in(frames_TC))

    def end_fed_utterance(self) -> Future[None]:
        """The feed says that its utterance is over."""
        return self._ask(lambda: self._finish("end of trial"))

    def refuse_fed(self, what: str) -> Future[None]:
        """A message of the feed could not be used.

        All are told, and its utterance says so when it ends.
        """
        return self._ask(lambda: self._refuse_fed(what))

    def close_feed(self, feed: object, why: str | None) -> Future[None]:
        """The feed is gone; `why` is told where an utterance was in progress."""
        return self._ask(lambda: self._close_feed(feed, why))

    # The thread

    def _ask(self, work: Callable[[], Result], tell: bool = False) -> Future[Result]:
        return self._jobs.ask(work, self._tell_state if tell else None)

    def _wait_s(self) -> float | None:
        """Until the next bins of a trial are due."""
        return (
            None
            if self._state != "running" or self.is_feed
            else max(self._due_s - time.monotonic(), 0)
        )

    def _end(self) -> None:
        self._guarded(lambda: self._finish("stop", "the server was ended"))

    def _guarded(self, work: Callable[[], None]) -> None:
        """Whatever goes wrong ends the utterance and the playing with a named error, and not the
        thread.
        """
        try:
            work()
        except Exception as error:
            self._fail(internal_error(error))

    def _fail(self, what: str) -> None:
        event("decoding_failed", "error", error=what)
        self.readers.send(Event("error", {"what": what}))
        self._playing, self._state = None, "idle" if self._feed is None else "running"
        try:
            self._finish("stop", what)
        except Exception as error:
            event("decoding_failed", "error", error=internal_error(error))
            self._utterance = None
            self._days.pipeline.reset()
        self._tell_state()

    # Playing

    def _start(self, trial: int | None, session: str | None) -> None:
        if self._source is None:
            raise LiveError("frames come from a feed: it runs when one connects")
        if trial is not None and session is not None:
            raise DataError("a trial and a session; give one of them")
        if trial is not None:
            number: int | None = trial
        elif session is not None:
            number = self._source.after(None, session)
        else:
            number = self._source.after(self._last_trial, self._session)
            if number is None:  # all have been played: from the first one on
                number = self._source.after(None, self._session)
        if number is None:
            raise LiveError("there are no trials")
        playing = Playing(number, self._source.trial(number), alone=trial is not None)
        self._stop()
        self._session = session or self._session
        self._play_trial(playing)

    def _play_trial(self, playing: Playing) -> None:
        self._playing, self._last_trial, self._state = playing, playing.number, "running"
        self._said_in_trial = []
        self._due_s = time.monotonic()
        pipeline, block = (
            self._days.use(playing.trial.session),
            (playing.trial.session, playing.trial.block),
        )
        if block != self._block:
            self._block = block
            pipeline.start_block()
        self._tell_state()

    def _stop(self) -> None:
        self._finish("stop")
        self._playing = None
        if not self.is_feed:
            self._state = "idle"
        self._tell_state()

    def _play(self) -> None:
        """Decode the next bins of the trial, or go on to the next trial."""
        assert self._playing is not None
        playing, n_bins = self._playing, self._playing.trial.n_bins
        if playing.next_bin >= n_bins:
            self._go_on()
            return
        until = min(playing.next_bin + (1 if self._speed < math.inf else CHUNK_BINS), n_bins)
        self._decode(playing.trial.features_TC[playing.next_bin : until])
        self._due_s += (until - playing.next_bin) * BIN_MS / 1000 / self._speed
        playing.next_bin = until
        if until == n_bins:
            self._finish("end of trial")
            if playing.alone:
                self._playing, self._state = None, "idle"
                self._tell_state()
            self._due_s += PAUSE_S / self._speed

    def _go_on(self) -> None:
        source = self._source
        assert source is not None
        number = source.after(self._last_trial, self._session)
        if number is not None:
            self._play_trial(Playing(number, source.trial(number), alone=False))
            return
        self._playing, self._state = None, "ended"
        self._tell_state()

    # A feed

    def _open_feed(self, feed: object) -> None:
        if not self.is_feed:
            raise LiveError("this server plays recordings", fix="start it with --feed")
        if self._feed is not None:
            raise LiveError("another feed is connected", fix="end that one first")
        self._feed, self._state = feed, "running"
        self._days.pipeline.start_block()
        self._tell_state()

    def _take_in(self, frames_TC: np.ndarray) -> None:
        check_frames(frames_TC, self.n_features)
        self._guarded(lambda: self._decode(frames_TC))

    def _refuse_fed(self, what: str) -> None:
        self._n_refused += 1
        self.readers.send(Event("error", {"what": what}))

    def _close_feed(self, feed: object, why: str | None) -> None:
        if feed is not self._feed:
            return
        self._feed, self._state = None, "idle"
        self._finish("stop", why)
        self._tell_state()

    # Utterances

    def _begin(self) -> PageUtterance:
        self._n_utterances += 1
        keep = self.scribe is not None
        if self._playing is not None:
            trial = self._playing.trial
            pipeline = self._days.use(trial.session)
            utterance = PageUtterance(
                self._n_utterances,
                trial.session,
                self._playing.number,
                trial.sentence or None,
                keep,
            )
        else:
            pipeline = self._days.use(None)
            utterance = PageUtterance(
                self._n_utterances, session_of_today(pipeline.session), keep=keep
            )
        return utterance

    def _decode(self, frames_TC: np.ndarray) -> None:
        """Decode bins; where the utterance ends by itself among them, the rest begins another."""
        while len(frames_TC):
            if self._utterance is None:
                self._utterance = self._begin()
            pipeline, chunk_TC = self._days.pipeline, frames_TC[:CHUNK_BINS]
            update = pipeline.push(chunk_TC)
            used = len(chunk_TC) - update.held_bins
            step = self._utterance.step(chunk_TC[:used], update)
            if step is not None:
                self.readers.send(step)
            self._tally.times.add(update.stage_ms)
            frames_TC = frames_TC[used:]
            if update.reason is not None:
                self._finish(update.reason)
                pipeline.reset()  # what it holds is decoded next, perhaps by another day's pipeline
        if time.monotonic() - self._stats_s > STATS_S:
            self._tell_stats()

    def _finish(self, ended: str, error: str | None = None) -> None:
        """End the utterance in progress, if there is one.

        With its text, or at least a named error.
        """
        if (
            self._utterance is None and self._n_refused
        ):  # nothing of it could be used: it ends with that named
            self._utterance = self._begin()
        utterance, self._utterance = self._utterance, None
        if utterance is None:
            return
        pipeline, started = self._days.pipeline, time.perf_counter()
        nbest = pipeline.finish()
        final_ms = (time.perf_counter() - started) * 1000
        if self._n_refused:
            error = "; ".join(filter(None, (error, _refused(self._n_refused))))
            self._n_refused = 0
        assert pipeline.decoder is not None
        self._notes.tell()
        body = utterance.told(nbest, pipeline.decoder.options, ended, final_ms, error)
        # A feed's long silence, and what follows a trial's only sentence, are no utterances.
        only_silence = ended == "length" or (ended == "end of trial" and self._said_in_trial)
        if only_silence and not body["text"] and body["error"] is None:
            return
        if (
            utterance.reference is not None
        ):  # of a trial in several utterances it is their whole text that counts
            again = bool(self._said_in_trial)
            self._said_in_trial.append(body["text"])
            body["wer"] = self._tally.compare(
                utterance.reference, " ".join(self._said_in_trial), again
            )
        self._tally.add(len(body["text"].split()), body["duration_s"], final_ms)
        if (
            self.scribe is not None
        ):  # first of all, so that whoever hears of it can correct it at once
            kind = self._source.kind if self._source else "feed"
            self.scribe.append(
                body, kind, utterance.features_TC(pipeline.statistics), self.readers.send
            )
        self._latest = Event("utterance", body)
        self.readers.send(self._latest)
        self._tell_stats()
        event(
            "utterance",
            id=utterance.id,
            n_bins=utterance.n_bins,
            ended=ended,
            failed=error is not None,
        )

    def _choose_day(self, session: str | None) -> None:
        self._days.choose(session)
        if self._utterance is None:
            self._days.use(self._playing.trial.session if self._playing else None)

    def _set_context(self, text: str) -> None:
        decoder = self._days.pipeline.decoder
        if decoder is None or decoder.llm is None:
            raise LiveError(
                "no large model is there to read it", fix="start the server with --llm MODEL"
            )
        self._days.pipeline.context = text.strip()

    # What readers are told

    def _greet(self, reader: Reader, can_control: bool) -> None:
        hello = self._state_body() | self._greeting
        hello |= {"can_control": can_control, "session_log": self.scribe is not None}
        for message in (Event("hello", hello), self._latest, Event("stats", self._tally.to_json())):
            if message is not None:
                reader.put(message)
        self.readers.add(reader)

    def _state_body(self) -> dict[str, Any]:
        playing, decoder = self._playing, self._days.pipeline.decoder
        assert decoder is not None
        return {
            "state": self._state,
            "trial": playing.number if playing else None,
            "reference": playing.trial.sentence if playing else None,
            "session": self._session,
            "day": self._days.pipeline.session,
            "day_chosen": self._days.chosen,
            "options": (
                asdict(decoder.options) | {"label_priors": dict(decoder.options.label_priors)}
            ),
            "hotwords": self._days.pipeline.hotwords,
            "context": self._days.pipeline.context,
        }

    def _tell_state(self) -> None:
        self.readers.send(Event("state", self._state_body()))

    def _tell_stats(self) -> None:
        self._stats_s = time.monotonic()
        self.readers.send(Event("stats", self._tally.to_json()))


def _refused(n: int) -> str:
    return (
        f"{n} {'message' if n == 1 else 'messages'} of the feed could not be used: bins may be"
        " missing"
    )
