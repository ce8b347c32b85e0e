"""The thread that decodes for the page: it owns the pipeline, and runs requests in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cortext.errors import DataError, LiveError
from cortext_live.casing import Caser
from cortext_live.core.chain_follower import ChainFollower, ChainModel, OpenModel
from cortext_live.core.jobs import Jobs
from cortext_live.core.log import event, internal_error
from cortext_live.core.log_writer import LogWriter
from cortext_live.core.on_final import FinalCommand
from cortext_live.core.speech import Speech
from cortext_live.page.access.tokens import Right
from cortext_live.page.conversation import MOST_KEPT
from cortext_live.page.day_pipeline import DayPipeline
from cortext_live.page.forgetting import forget, forget_in_memory
from cortext_live.page.inputs import FeedInput, Input, TrialPlayer
from cortext_live.page.messages import Event, Fanout, Reader, greeting
from cortext_live.page.sources import TrialSource
from cortext_live.page.utterance_decoder import UtteranceDecoder
from cortext_live.usage.conversation import ConversationEntry, latest
from cortext_live.usage.deletion import Selection
from cortext_live.usage.writer import UsageLog, now

Result = TypeVar("Result")


class DecodingThread:
    """Decodes trials of a source, or bins of a feed, and sends readers what it finds.

    All methods may be called from any thread; the future that they return is done when the work is.
    Clients that control it are served one after the other: the last one wins, and every reader is
    sent the new state.

    Args:
        days: The pipeline.
        source: The trials; None decodes bins of a feed.
        speed: 1 is the recording's own; infinity as fast as can be.
        log_writer: Keeps utterances in the usage log.
        about: More for the `hello` message: names of the run and of the language model, version.
        on_final: Gets each final sentence as it is shown; None for none.
        caser: Gives sentences capitals and marks for showing; None: rules for English.
        run: Run directory of the model, for what reads its files; None without one.

    Attributes:
        chain: Directory of the chain of models that it follows; None for none.

    Raises:
        DataError: The recordings have another number of features than the model, or other tokens,
            another language or another length of a bin.
    """

    def __init__(
        self,
        days: DayPipeline,
        source: TrialSource | None,
        *,
        speed: float = 1.0,
        log_writer: LogWriter | None = None,
        about: Mapping[str, Any] | None = None,
        on_final: FinalCommand | None = None,
        caser: Caser | None = None,
        run: Path | None = None,
    ) -> None:
        self.n_features = days.pipeline.stepper.n_features
        self.bin_ms = days.pipeline.conventions.bin_ms
        if source is not None and source.n_features != self.n_features:
            problem = (
                f"the recordings have {source.n_features} features, the model needs"
                f" {self.n_features}"
            )
            raise DataError(
                problem, fix="give recordings, or a preset, that the run was trained for"
            )
        if source is not None:
            source.conventions.require(
                days.pipeline.conventions,
                mine="the recordings",
                theirs="the model",
                fix="give recordings, or a preset, that the run was trained for",
            )
        self.log_writer = log_writer
        self.run = run
        self.chain: Path | None = None
        self._on_final = on_final
        self.speech: Speech | None = None
        self.readers = Fanout()
        self._days = days
        # Made once: a list of ten thousand trials takes as long as several steps of the search.
        self._greeting = greeting(days.pipeline, source) | dict(about or {})
        kind = "feed" if source is None else source.kind
        self._utterances = UtteranceDecoder(
            days, self.readers, log_writer, kind, self._send_state, on_final, caser
        )
        self._follower: ChainFollower | None = None
        self._input: Input = (
            FeedInput(self._utterances, self._send_state)
            if source is None
            else TrialPlayer(source, speed, self._utterances, self._send_state)
        )
        self._jobs = Jobs(
            "decoding",
            self._input.wait_s,
            lambda: self._guarded(self._input.advance),
            lambda: self._guarded(self._end),
        )

    @property
    def is_feed(self) -> bool:
        """Tell whether bins come from a feed."""
        return self._input.is_feed

    @property
    def model(self) -> str | None:
        """Name of the model that speaks; None without a chain of models."""
        return self._days.model

    @property
    def day(self) -> str:
        """The day whose layer is in use."""
        return self._days.pipeline.session

    @property
    def look_ahead_ms(self) -> float:
        """Milliseconds from a bin until its smoothed value is known."""
        return self._days.pipeline.look_ahead_ms

    def follow(self, chain: Path, open_model: OpenModel) -> None:
        """Let the model speak that a chain says, each from the next utterance on.

        Args:
            chain: Directory of the chain; it may not exist yet.
            open_model: Loads the model of a run directory.
        """

        def offer(model: ChainModel) -> None:
            self._jobs.ask(lambda: self._guarded(lambda: self._utterances.follow(model)))

        days, self.chain = self._days, chain
        self._follower = ChainFollower(chain, open_model, days.pipeline.stepper, days.model, offer)

    def use_voice(self, speech: Speech) -> None:
        """Let this voice speak to pages; what it fails on is a line on them."""
        self.speech = speech
        speech.failed = lambda problem: self.readers.send(Event("error", {"what": problem}))

    def close(self, timeout_s: float = 5.0) -> None:
        """End the utterance in progress, which is sent and logged, and the thread."""
        if self._follower is not None:
            self._follower.close(timeout_s)
        self._jobs.close(timeout_s)
        if self._on_final is not None:
            self._on_final.close(timeout_s)
        if self.speech is not None:
            self.speech.close(timeout_s)
        if self.log_writer is not None:
            self.log_writer.close()

    def subscribe(self, reader: Reader, rights: Right) -> Future[None]:
        """Send a reader the greeting, the latest utterance, the statistics, and then everything."""
        return self._jobs.ask(lambda: self._greet(reader, rights))

    def state(self) -> Future[dict[str, Any]]:
        """Return the body of a `state` message."""
        return self._jobs.ask(self._state)

    def start(self, trial: int | None = None, session: str | None = None) -> Future[None]:
        """Play one trial, a session from its first trial on, or the next trial.

        A trial that is playing ends as with `stop`.
        """
        return self._jobs.ask(lambda: self._input.start(trial, session))

    def stop(self) -> Future[None]:
        """End the utterance in progress, and the playing."""
        return self._jobs.ask(self._input.stop)

    def set_options(self, changes: Mapping[str, Any]) -> Future[None]:
        """Change decoder options from the next frame on."""
        return self._change(lambda: self._days.set_options(changes))

    def change_hotwords(self, bonuses: Mapping[str, Any]) -> Future[None]:
        """Change the bonuses of words (null removes one), from the next utterance on."""
        return self._change(lambda: self._days.change_hotwords(bonuses))

    def set_context(self, text: str) -> Future[None]:
        """Set the text before the next utterance. Raises LiveError without a large model."""
        return self._change(lambda: self._days.set_context(text))

    def read_conversation(self, on: bool) -> Future[None]:
        """Let the large model read the end of the conversation, or no longer.

        Raises LiveError without a large model.
        """

        def change() -> None:
            self._days.add_context(self._utterances.conversation.context() if on else "")
            self._utterances.conversation.is_context = on

        return self._change(change)

    def set_private(self, on: bool) -> Future[None]:
        """Keep nothing from now on, and nothing of the utterance in progress; or keep again."""

        def change() -> None:
            self._utterances.set_private(on)
            event("private_changed", on=on)

        return self._change(change)

    def add_turn(self, text: str) -> Future[int | None]:
        """Add a partner's words; return their entry, None where nothing is kept."""
        return self._jobs.ask(lambda: self._add_turn(text))

    def correct(self, utterance: int, text: str) -> Future[bool]:
        """Log the sentence that was meant; return whether the recording is kept with it."""
        return self._feedback(utterance, lambda log: log.correct(utterance, text), correction=text)

    def rate(self, utterance: int, rating: str) -> Future[bool]:
        """Log a rating; return whether the recording is kept."""
        return self._feedback(utterance, lambda log: log.rate(utterance, rating), rating=rating)

    async def forget(self, selection: Selection) -> dict[str, Any]:
        """Delete entries wherever they are kept; see `forgetting.forget`.

        Returns:
            The fields of the answer: how many, models that learnt from them, and notes.
        """
        utterances, chain, ask = self._utterances, self.chain, self._jobs.ask
        if self.log_writer is None:
            return await asyncio.wrap_future(ask(lambda: forget_in_memory(utterances, selection)))
        # Asked first: known sentences wait for the log's thread before the deletion does.
        known = await asyncio.wrap_future(ask(lambda: utterances.conversation.selected(selection)))

        def forget_numbers(numbers: set[int], everything: bool) -> None:
            ask(lambda: utterances.forget(numbers, everything)).result()

        return await asyncio.wrap_future(
            self.log_writer.ask(lambda log: forget(log, known, forget_numbers, chain, selection))
        )

    def found(
        self, search: str = "", before: int | None = None, most: int | None = None
    ) -> Future[list[ConversationEntry]]:
        """Return the latest entries that hold a text, the oldest first; see `latest`.

        Without a usage log only those in memory.
        """
        conversation = self._utterances.conversation
        if self.log_writer is None:
            return self._jobs.ask(lambda: conversation.found(search, before, most or MOST_KEPT))

        def show(text: str) -> str:
            return self._utterances.shown([text])[0]

        def find(log: UsageLog) -> list[ConversationEntry]:
            entries = log.entries
            wanted = len(entries) if most is None else most
            return latest(entries, wanted, before=before, search=search, show=show)

        return self.log_writer.ask(find)

    def set_gate_threshold(self, threshold: float) -> Future[None]:
        """Open the idle gate above another probability. Raises LiveError without a gate."""

        def change() -> None:
            self._days.set_gate_threshold(threshold)
            event("gate_changed", threshold=threshold)

        return self._change(change)

    def choose_day(self, session: str | None) -> Future[None]:
        """Use a day's layer from the next utterance on; None: each recording's own."""
        return self._change(lambda: self._choose_day(session))

    def choose(self, utterance: int, text: str) -> Future[bool]:
        """Show pages another candidate of the latest utterance; see `UtteranceDecoder.choose`."""
        return self._jobs.ask(lambda: self._utterances.choose(utterance, text))

    def open_feed(self, feed: object) -> Future[None]:
        """Take the bins of this feed from now on. Raises LiveError while there is another."""
        return self._jobs.ask(lambda: self._input.open_feed(feed))

    def feed(self, bins_TC: np.ndarray) -> Future[None]:
        """Decode bins, float32 [T, C]. Raises DataError, and changes nothing, for no such bins."""
        return self._jobs.ask(lambda: self._decode(bins_TC))

    def end_fed_utterance(self) -> Future[None]:
        """End the utterance, because the feed says so."""
        return self._jobs.ask(lambda: self._utterances.finish("end of trial"))

    def refuse_fed(self, problem: str) -> Future[None]:
        """Report a message of the feed that could not be used: now, and when its utterance ends."""
        return self._jobs.ask(lambda: self._utterances.refuse(problem))

    def close_feed(self, feed: object, why: str | None) -> Future[None]:
        """End a feed; `why` becomes the error of an utterance in progress."""
        return self._jobs.ask(lambda: self._input.close_feed(feed, why))

    # In the thread

    def _change(self, work: Callable[[], Result]) -> Future[Result]:
        return self._jobs.ask(work, self._send_state)

    def _add_turn(self, text: str) -> int | None:
        utterances, when, entry = self._utterances, now(), None
        if not utterances.conversation.private:
            entry = utterances.conversation.add_turn(text, when)
            if self.log_writer is not None:
                self.log_writer.add_turn(text, when, entry, self._say)
            utterances.read_conversation()
        turn = {"entry": entry, "when": when.isoformat(timespec="milliseconds"), "text": text}
        self.readers.send(Event("turn", turn))
        return entry

    def _feedback(
        self, utterance: int, write: Callable[[UsageLog], bool], **feedback: str
    ) -> Future[bool]:
        """Log feedback on an utterance, then add it to the conversation in memory.

        `write` writes it to the log and returns whether the recording is kept. `feedback` is the
        correction or the rating, as `Conversation.note` takes it.
        """
        if self.log_writer is None:
            fix = "start the server with --session-log DIR"
            raise LiveError("there is no usage log", fix=fix)
        conversation = self._utterances.conversation
        if conversation.is_private(utterance):
            raise LiveError("the sentence was private: nothing of it is kept")

        def log(writer: UsageLog) -> bool:
            kept = write(writer)
            self._jobs.ask(lambda: conversation.note(utterance, **feedback))
            return kept

        return self.log_writer.ask(log)

    def _say(self, problem: str) -> None:
        self.readers.send(Event("error", {"what": problem}))

    def _decode(self, bins_TC: np.ndarray) -> None:
        usable_TC = self._days.pipeline.usable(bins_TC)
        self._guarded(lambda: self._utterances.push(usable_TC))

    def _choose_day(self, session: str | None) -> None:
        self._days.choose(session)
        if not self._utterances.in_progress:
            self._days.use(self._utterances.origin.session)

    def _end(self) -> None:
        self._utterances.finish("stop", "the server was stopped")

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do work whose failure ends the utterance with a named error, and not the thread."""
        try:
            work()
        except (Exception, SystemExit) as error:  # a plug-in may call sys.exit
            problem = internal_error(error)
            event("decoding_failed", "error", error=problem)
            self.readers.send(Event("error", {"what": problem}))
            self._utterances.abandon(problem)
            self._input.abort()
            self._send_state()

    def _greet(self, reader: Reader, rights: Right) -> None:
        hello = self._state() | self._greeting
        hello |= {"rights": rights, "can_control": rights == "control"}
        hello["session_log"] = self.log_writer is not None
        last = self._utterances.latest
        if last is not None and last.body["private"]:
            last = None
        hello["latest"] = None if last is None else last.body["id"]
        speech = self.speech
        hello |= {"voice": speech and speech.name, "voice_takes": speech and speech.takes}
        messages = [
            Event("hello", hello),
            Event("history", {"entries": self._utterances.conversation.history()}),
            last,
            self._utterances.chosen if last else None,
            Event("stats", self._utterances.statistics.to_json()),
        ]
        self.readers.add(reader, filter(None, messages))

    def _state(self) -> dict[str, Any]:
        options = self._days.options
        return {
            **self._input.status(),
            "model": self._days.model,
            "days": list(self._days.known),
            "day": self._days.pipeline.session,
            "day_chosen": self._days.chosen,
            "options": asdict(options) | {"label_priors": dict(options.label_priors)},
            "hotwords": self._days.pipeline.hotwords,
            "hotword_spelling": self._days.spellings,
            "context": self._days.context,
            "context_conversation": self._utterances.conversation.is_context,
            "private": self._utterances.conversation.private,
            "gate_threshold": None if self._days.gate is None else self._days.gate.threshold,
        }

    def _send_state(self) -> None:
        self.readers.send(Event("state", self._state()))
