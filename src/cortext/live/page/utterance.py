"""One utterance after the other: bins in, messages to the page and records for the usage log out.

T bins, C features, P frames.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from cortext.casing import Caser, caser_for
from cortext.casing.large import LargeCaser
from cortext.data.conventions import RELEASE_CONVENTIONS, Conventions
from cortext.decoding.nbest import Hypothesis, NBest, hypothesis_json
from cortext.decoding.options import DecoderOptions
from cortext.errors import DataError, LiveError
from cortext.live.core.chain_follower import ChainModel
from cortext.live.core.log import event, internal_error
from cortext.live.core.log_writer import (
    MAX_NBEST,
    LogWriter,
    candidates,
    logged_features,
    record_of,
    spoken_s,
)
from cortext.live.core.on_final import FinalCommand
from cortext.live.core.pipeline import Update
from cortext.live.core.statistics import RunningStatistics, words_per_minute
from cortext.live.page.conversation import Conversation
from cortext.live.page.day_pipeline import DayPipeline
from cortext.live.page.messages import Event, Fanout, StepMessage, shown_bins, shown_posteriors
from cortext.usage.log import Entry
from cortext.usage.writer import now, session_of_today

STEP_MS = 80
"""Milliseconds of bins after which a page is sent a step even if no frame is complete."""
CHUNK_BINS = 4
"""Most bins that are decoded at once; a request to the thread waits for no more than these."""
STATS_S = 1.0
"""Seconds between two `stats` messages."""


@dataclass
class BinOrigin:
    """The source of bins: a trial of a session, or by default a feed of today.

    Attributes:
        session: The recording day; None for a feed.
        trial: Number of the trial; None for a feed.
        reference: What was to be said, where that is known.
        texts: Decoded texts of the utterances of the trial so far, where it has a reference.
    """

    session: str | None = None
    trial: int | None = None
    reference: str | None = None
    texts: list[str] = field(default_factory=list)


@dataclass
class PageUtterance:
    """An utterance in progress.

    Attributes:
        id: Counts from 1.
        session: The recording day that its features are of.
        trial: Number of its trial, None for a feed.
        reference: What was to be said, where that is known.
        keep: Whether its features are kept for the usage log.
        model: Name of the model that decodes it; None without a chain of models.
        conventions: The language of its text and the length of its bins.
        private: Whether nothing of it is kept.
    """

    id: int
    session: str
    trial: int | None = None
    reference: str | None = None
    keep: bool = False
    model: str | None = None
    conventions: Conventions = RELEASE_CONVENTIONS
    private: bool = False
    n_bins: int = 0
    _kept: list[np.ndarray] = field(default_factory=list)
    _unsent: list[np.ndarray] = field(default_factory=list)
    _n_unsent: int = 0

    def step(self, bins_TC: np.ndarray, update: Update) -> StepMessage | None:
        """Return the message to send after decoded bins; None while there is too little to send."""
        self.n_bins += len(bins_TC)
        self._unsent.append(bins_TC)
        self._n_unsent += len(bins_TC)
        if self.keep:
            self._kept.append(bins_TC.copy())
        unsent_ms = self._n_unsent * self.conventions.bin_ms
        if not len(update.logits_PV) and unsent_ms < STEP_MS:
            return None
        shown_TC = shown_bins(np.concatenate(self._unsent))
        self._unsent = []
        self._n_unsent = 0
        stage_ms = {stage: round(max(ms), 3) for stage, ms in update.stage_ms.items() if ms} or None
        return StepMessage(
            self.id,
            self.n_bins * self.conventions.bin_ms,
            shown_TC,
            shown_posteriors(update.logits_PV),
            update.stable,
            update.tail,
            stage_ms,
        )

    def make_private(self) -> None:
        """Keep nothing of it."""
        self.private, self.keep = True, False
        self._kept.clear()

    def features_TC(self, statistics: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray | None:
        """Return the features to log, float32 [T, C], given the rolling statistics."""
        return logged_features(self._kept, statistics, self.conventions)

    def message(
        self,
        nbest: NBest,
        shown: Sequence[str],
        options: DecoderOptions,
        ended: str,
        final_ms: float,
        error: str | None,
    ) -> dict[str, Any]:
        """Return the body of its `utterance` message, without an error rate.

        Args:
            nbest: The candidate sentences.
            shown: The first of them as they are shown.
            options: The decoder options that ranked them.
            ended: Why it has ended.
            final_ms: Milliseconds from its end to its text.
            error: What went wrong.
        """
        duration_s = spoken_s(nbest, self.n_bins, ended, self.conventions.bin_ms)
        return {
            "id": self.id,
            "session": self.session,
            "trial": self.trial,
            "model": self.model,
            "text": nbest[0].text,
            "shown": shown[0],
            "words": hypothesis_json(nbest[0])["words"],
            "confidence": nbest.confidence,
            "nbest": [
                found | {"shown": text}
                for found, text in zip(candidates(nbest), shown, strict=True)
            ],
            "reference": self.reference,
            "wer": None,
            "words_per_minute": words_per_minute(
                self.conventions.language.n_words(nbest[0].text), duration_s
            ),
            "duration_s": duration_s,
            "latency_ms": final_ms,
            "ended": ended,
            "error": error,
            "ngram_text": ngram_text(nbest, options),
            "degraded": nbest.degraded,
        }


def ngram_text(nbest: NBest, options: DecoderOptions) -> str | None:
    """Return the best candidate without the large model's scores; None if it ranked nothing."""
    if nbest[0].confidence is None:
        return None
    ngram, llm = options.llm.shares(options.lm_weight)

    def without(found: Hypothesis) -> float:
        return (
            found.score
            + (options.lm_weight - ngram) * found.lm_score
            - llm * (found.llm_score or 0.0)
        )

    return max(nbest, key=without).text


class UtteranceDecoder:
    """Decodes bins into utterances, and sends pages and the usage log each one. For one thread.

    Args:
        days: The pipeline.
        readers: The pages.
        log_writer: Keeps utterances; None keeps nothing.
        source: Where bins come from, as the usage log names it.
        on_swap: Is called when another model speaks.
        on_final: Gets each final sentence as it is shown; None for none.
        caser: Gives sentences capitals and marks for showing; None: as the language has it.

    Attributes:
        origin: Where the next bins come from.
        statistics: Counts since the server started.
        latest: The latest `utterance` message; None before the first. Of a private one, it is not
            sent to pages that connect later.
        conversation: The latest sentences and turns.
        chosen: The `chosen` message about it; None unless another of its candidates was chosen.
    """

    def __init__(
        self,
        days: DayPipeline,
        readers: Fanout,
        log_writer: LogWriter | None,
        source: str,
        on_swap: Callable[[], None],
        on_final: FinalCommand | None = None,
        caser: Caser | None = None,
    ) -> None:
        self.days = days
        self.origin = BinOrigin()
        self.statistics = RunningStatistics(days.pipeline.conventions.language)
        self.latest: Event | None = None
        self.chosen: Event | None = None
        self._readers = readers
        self._log_writer = log_writer
        self._source = source
        self._on_swap = on_swap
        self._on_final = on_final
        self._caser = caser or caser_for(days.pipeline.conventions.language)
        self._show_final = self._caser.show
        if isinstance(self._caser, LargeCaser):
            self._show_final = self._caser.show_final
        entries = () if log_writer is None else log_writer.entries
        self.conversation = Conversation(entries, self.shown)
        self._utterance: PageUtterance | None = None
        self._next_model: ChainModel | None = None
        # Feedback names an utterance by its number: one of an earlier run is never used again.
        self._n_utterances = max(map(_number, entries), default=0)
        self._n_refused = 0
        self._stats_sent_s = 0.0

    @property
    def in_progress(self) -> bool:
        """Tell whether an utterance is in progress."""
        return self._utterance is not None

    def push(self, bins_TC: np.ndarray) -> None:
        """Decode bins; where the utterance ends by itself among them, the rest begin another."""
        while len(bins_TC):
            if self._utterance is None and self.days.pipeline.is_idle:
                bins_TC = self.days.pipeline.listen(bins_TC)
                continue
            utterance = self._utterance = self._utterance or self._begin()
            pipeline = self.days.pipeline
            chunk_TC = bins_TC[:CHUNK_BINS]
            update = pipeline.push(chunk_TC)
            used = len(chunk_TC) - update.held_bins
            self._show(utterance, chunk_TC[:used], update)
            bins_TC = bins_TC[used:]
            if update.reason is not None:
                self.finish(update.reason)
                # What it holds is decoded next, perhaps with another day's layer.
                pipeline.reset()
        if time.monotonic() - self._stats_sent_s > STATS_S:
            self._send_statistics()

    def follow(self, model: ChainModel) -> None:
        """Let another model speak from the next utterance on."""
        self._next_model = model
        if not self.in_progress:
            self._swap()

    def refuse(self, problem: str) -> None:
        """Report bins that could not be used: at once, and when their utterance ends."""
        self._n_refused += 1
        self._say(problem)

    def shown(self, texts: Sequence[str]) -> list[str]:
        """Return decoded texts as they are shown: with capitals and marks, hotwords as typed."""
        return self._shown(texts, self._caser.show)

    def _shown(self, texts: Sequence[str], show: Callable[..., list[str]]) -> list[str]:
        try:
            return show(texts, self.days.spellings)
        except Exception as error:  # a sentence without capitals is better than none
            event("not_cased", "error", error=internal_error(error))
            return list(texts)

    def finish(self, ended: str, error: str | None = None) -> None:
        """End the utterance in progress, if any, with its text or at least a named error."""
        utterance = self._utterance
        if utterance is None:
            if not self._n_refused:
                return
            utterance = self._begin()  # Nothing of it could be used: it ends with that error.
        self._utterance = None
        self._note_speaking(False)
        started = time.perf_counter()
        update = self.days.pipeline.flush()
        if len(update.logits_PV):
            none_TC = np.empty((0, self.days.pipeline.stepper.n_features), dtype=np.float32)
            self._show(utterance, none_TC, update)
        nbest = self.days.pipeline.finish()
        shown = self._shown([found.text for found in nbest[:MAX_NBEST]], self._show_final)
        final_ms = (time.perf_counter() - started) * 1000
        self._swap()
        if self._n_refused:
            error = "; ".join(filter(None, (error, _refused(self._n_refused))))
            self._n_refused = 0
        self.days.notes.write_new()
        body = utterance.message(nbest, shown, self.days.options, ended, final_ms, error)
        # A feed's long silence, and what follows a trial's only sentence, are no utterances.
        only_silence = ended in ("length", "idle") or (
            ended == "end of trial" and self.origin.texts
        )
        if only_silence and not body["text"] and body["error"] is None:
            return
        self._count(body, final_ms)
        self._report(utterance, body, nbest)
        event(
            "utterance",
            id=utterance.id,
            n_bins=utterance.n_bins,
            ended=ended,
            failed=error is not None,
        )

    def choose(self, utterance: int, text: str) -> bool:
        """Show pages another candidate of the latest utterance; return whether it can be logged.

        Args:
            utterance: Number of the utterance.
            text: One of its candidates.

        Raises:
            LiveError: It is not the latest utterance.
            DataError: It has no such candidate, or one without words.
        """
        if self.latest is None or self.latest.body["id"] != utterance:
            raise LiveError(f"utterance {utterance} is not the latest", fix="correct it instead")
        body = self.latest.body
        found = next((each for each in body["nbest"] if each["text"] == text), None)
        if found is None or not text:
            raise DataError("the text is none of the candidates of the utterance")
        chosen = {"utterance": utterance, "entry": body.get("entry"), "text": text}
        self.chosen = Event("chosen", {**chosen, "shown": found.get("shown", text)})
        self._readers.send(self.chosen)
        return self._log_writer is not None and body.get("entry", 0) is not None

    def set_private(self, on: bool) -> None:
        """Keep nothing from now on, and nothing of the utterance in progress; or keep again.

        An utterance that has begun in private stays so.
        """
        self.conversation.private = on
        if on and self._utterance is not None:
            self._utterance.make_private()

    def forget(self, numbers: set[int], everything: bool = False) -> None:
        """Forget entries of the conversation, and tell pages to.

        Args:
            numbers: The entries.
            everything: They are all, but for those that were added meanwhile.
        """
        self.conversation.forget(numbers)
        everything = everything and not self.conversation.history()
        if self.latest and (everything or self.latest.body["entry"] in numbers):
            self.latest = self.chosen = None
        self.read_conversation()
        entries = None if everything else sorted(numbers)
        self._readers.send(Event("forgotten", {"entries": entries}))

    def read_conversation(self) -> None:
        """Give a large model that reads the conversation its end."""
        if self.conversation.is_context:
            self.days.add_context(self.conversation.context())

    def abandon(self, error: str) -> None:
        """End the utterance after a failure; where even that fails, drop it."""
        try:
            self.finish("stop", error)
        except Exception as second:
            event("decoding_failed", "error", error=internal_error(second))
            self._utterance = None
            self.days.pipeline.reset()

    def _note_speaking(self, speaking: bool) -> None:
        if self._log_writer is not None:
            self._log_writer.speaking(speaking)

    def _swap(self) -> None:
        """Exchange the model, if another is there."""
        model, self._next_model = self._next_model, None
        if model is None:
            return
        try:
            self.days.swap(model, self.origin.session)
        except Exception as error:  # the utterance that ends is worth more than another model
            event("model_not_swapped", "error", model=model.name, error=internal_error(error))
            return
        event("model_swapped", model=model.name, day=self.days.pipeline.session)
        self._on_swap()

    def _show(self, utterance: PageUtterance, bins_TC: np.ndarray, update: Update) -> None:
        """Send readers what decoded bins gave, and count their times."""
        step = utterance.step(bins_TC, update)
        if step is not None:
            self._readers.send(step)
        self.statistics.times.add(update.stage_ms)

    def _begin(self) -> PageUtterance:
        self._n_utterances += 1
        self._note_speaking(True)
        origin = self.origin
        pipeline = self.days.use(origin.session)
        self.read_conversation()
        private = self.conversation.private
        return PageUtterance(
            self._n_utterances,
            origin.session or session_of_today(pipeline.session),
            origin.trial,
            origin.reference,
            keep=self._log_writer is not None and not private,
            private=private,
            model=self.days.model,
            conventions=pipeline.conventions,
        )

    def _count(self, body: dict[str, Any], final_ms: float) -> None:
        """Count an utterance, and add its error rate to its message."""
        if body["reference"] is not None:
            # Of a trial in several utterances their whole text counts, once.
            texts = self.origin.texts
            again = bool(texts)
            texts.append(body["text"])
            body["wer"] = self.statistics.compare(body["reference"], " ".join(texts), again)
        n_words = self.statistics.language.n_words(body["text"])
        self.statistics.add(n_words, body["duration_s"], final_ms)

    def _report(self, utterance: PageUtterance, body: dict[str, Any], nbest: NBest) -> None:
        when = now()
        body |= {"private": utterance.private, "when": when.isoformat(timespec="milliseconds")}
        body["entry"] = entry = None
        if utterance.private:
            self.conversation.add_private(utterance.id)
        else:
            said = utterance.id, body["text"], body["shown"], when
            body["entry"] = entry = self.conversation.add_utterance(*said)
        # The log comes first, so that a reader of the message can correct it at once.
        if self._log_writer is not None and not utterance.private:
            features_TC = utterance.features_TC(self.days.pipeline.statistics)
            facts = utterance.id, utterance.session, body["duration_s"], nbest, self._source
            make = partial(record_of, *facts, utterance.model, shown=body["shown"])
            self._log_writer.append(utterance.id, make, features_TC, self._say, when, entry)
        self.latest, self.chosen = Event("utterance", body), None
        self._readers.send(self.latest)
        if self._on_final is not None and body["text"]:
            self._on_final.put(body["shown"], self._say)
        self._send_statistics()

    def _say(self, problem: str) -> None:
        self._readers.send(Event("error", {"what": problem}))

    def _send_statistics(self) -> None:
        self._stats_sent_s = time.monotonic()
        self._readers.send(Event("stats", self.statistics.to_json()))


def _number(entry: Entry) -> int:
    """Return the number of a logged utterance; 0 for a turn, and for an id that is no number."""
    id_ = getattr(entry, "id", None) or ""
    return int(id_) if id_.isascii() and id_.isdecimal() and len(id_) <= 15 else 0


def _refused(n: int) -> str:
    return (
        f"{n} {'message' if n == 1 else 'messages'} of the feed could not be used: bins may be"
        " missing"
    )
