"""One utterance after the other: bins in, messages to the page and records for the usage log out.

T bins, C features, P frames.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np

from cortext.decoding.nbest import NBest
from cortext.errors import DataError, LiveError
from cortext_live.casing import Caser, caser_for
from cortext_live.casing.large import LargeCaser
from cortext_live.core.chain_follower import ChainModel
from cortext_live.core.log import event, internal_error
from cortext_live.core.log_writer import MAX_NBEST, LogWriter, record_of
from cortext_live.core.on_final import FinalCommand
from cortext_live.core.pipeline import Update
from cortext_live.core.statistics import RunningStatistics
from cortext_live.page.conversation import Conversation
from cortext_live.page.day_pipeline import DayPipeline
from cortext_live.page.messages import Event, Fanout
from cortext_live.page.utterance import BinOrigin, PageUtterance
from cortext_live.usage.log_entries import Entry
from cortext_live.usage.writer import now, session_of_today

CHUNK_BINS = 4
"""Most bins that are decoded at once; a request to the thread waits for no more than these."""
STATS_S = 1.0
"""Seconds between two `stats` messages."""


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
        latest: The latest `utterance` message; None before the first. A private one is not sent to
            pages that connect later.
        chosen: The `chosen` message about that utterance; None unless another of its candidates was
            chosen.
        conversation: The latest sentences and turns.
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
        self._features_notes: list[str] = []
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
        self._say_notes()
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
        shown = self._shown([hypothesis.text for hypothesis in nbest[:MAX_NBEST]], self._show_final)
        final_ms = (time.perf_counter() - started) * 1000
        self._say_notes()
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
        candidate = next((each for each in body["nbest"] if each["text"] == text), None)
        if candidate is None or not text:
            raise DataError("the text is none of the candidates of the utterance")
        chosen = {"utterance": utterance, "entry": body.get("entry"), "text": text}
        self.chosen = Event("chosen", {**chosen, "shown": candidate.get("shown", text)})
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
        self._features_notes = []
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
        """Log a decoded utterance, then send it to pages and to the program of final sentences."""
        when = now()
        body |= {"private": utterance.private, "when": when.isoformat(timespec="milliseconds")}
        if utterance.private:
            body["entry"] = None
            self.conversation.add_private(utterance.id)
        else:
            body["entry"] = self.conversation.add_utterance(
                utterance.id, body["text"], body["shown"], when
            )
            # Before the message, so that its reader can correct the sentence at once.
            self._log(utterance, body, nbest, when)
        self.latest, self.chosen = Event("utterance", body), None
        self._readers.send(self.latest)
        if self._on_final is not None and body["text"]:
            self._on_final.put(body["shown"], self._say)
        self._send_statistics()

    def _log(
        self, utterance: PageUtterance, body: dict[str, Any], nbest: NBest, when: datetime
    ) -> None:
        notes, self._features_notes = self._features_notes, []
        if self._log_writer is None:
            return
        make = partial(
            record_of,
            utterance.id,
            utterance.session,
            body["duration_s"],
            nbest,
            self._source,
            utterance.model,
            shown=body["shown"],
            features_notes=notes,
        )
        features_TC = utterance.features_TC(self.days.pipeline.statistics)
        self._log_writer.append(utterance.id, make, features_TC, self._say, when, body["entry"])

    def _say(self, problem: str) -> None:
        self._readers.send(Event("error", {"what": problem}))

    def _say_notes(self) -> None:
        """Log the notes on unusual features, and send them to pages."""
        for note in self.days.pipeline.take_notes():
            event("features_note", "warning", note=note)
            self._say(note)
            self._features_notes.append(note)

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
