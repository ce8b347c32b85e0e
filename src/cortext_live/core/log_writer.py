"""A thread that writes utterances to the usage log: a slow or full disk never holds up decoding."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cortext.data.conventions import Conventions
from cortext.decoding import Decoder, NBest
from cortext.decoding.nbest import hypothesis_json
from cortext.errors import TextError
from cortext.text.lexicon import Lexicon
from cortext.text.pronunciation import pronouncer
from cortext_live.core.acoustic_stream import Normalise
from cortext_live.core.log import event, internal_error
from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.log_entries import Entry
from cortext_live.usage.speaking import note_speaking
from cortext_live.usage.writer import UsageLog, UtteranceRecord, now

Result = TypeVar("Result")
MAX_WAITING = 32
"""Utterances that wait for the disk before the next is given up."""
MAX_NBEST = 20
"""Candidates that a page is sent, and that a log keeps."""


class LogWriter:
    """Appends to a usage log, in order."""

    def __init__(self, log: UsageLog) -> None:
        self._log = log
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="session-log")
        self._waiting = queue.Queue[None](MAX_WAITING)
        self._problem = ""

    @property
    def folder(self) -> Path:
        """The usage log's directory."""
        return self._log.folder

    def append(
        self,
        number: int,
        make: Callable[[datetime], UtteranceRecord],
        features_TC: np.ndarray | None,
        failed: Callable[[str], None] = lambda _: None,
        when: datetime | None = None,
        entry: int | None = None,
    ) -> None:
        """Log an utterance; a failure is in the log of events, and is reported in a line.

        Args:
            number: The utterance's number, for messages.
            make: Returns its record, given the time at which it ended; what it raises is a failure.
            features_TC: float32 [T, C], see `logged_features`; None for none.
            failed: Gets the line, in this writer's thread.
            when: Time at which it ended; None for now.
            entry: Its number in the log; see `UsageLog.append`.
        """
        ended = when or now()
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            _fail(number, "the disk is too slow", failed)
            return

        def write() -> None:
            # No one waits for this thread: without a message what failed would be missing unseen.
            try:
                self._log.append(make(ended), features_TC, entry)
            except Exception as error:
                _fail(number, internal_error(error), failed)
            else:
                self._keep(number, features_TC, failed)
            finally:
                self._waiting.get_nowait()

        self._pool.submit(write)

    def _keep(
        self, number: int, features_TC: np.ndarray | None, failed: Callable[[str], None]
    ) -> None:
        """Keep the features of an utterance that was logged, where all are kept."""
        try:
            problem = "" if features_TC is None else self._log.keep_features(features_TC)
            if problem and not self._problem:  # once, not after each utterance
                event("features_not_deleted", "warning", reason=problem)
                failed(problem)
            self._problem = problem
        except Exception as error:
            event("features_not_kept", "error", utterance=number)
            opening = f"utterance {number} is logged, but its features are not: "
            failed(opening + internal_error(error))

    def add_turn(
        self, text: str, when: datetime, entry: int, failed: Callable[[str], None]
    ) -> None:
        """Log a partner's words, in order; a failure is reported in a line."""
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            failed("what the partner said is not in the usage log: the disk is too slow")
            return

        def write() -> None:
            try:
                self._log.add_turn(text, when, entry)
            except Exception as error:
                event("turn_not_logged", "error")
                failed(f"what the partner said is not in the usage log: {internal_error(error)}")
            finally:
                self._waiting.get_nowait()

        self._pool.submit(write)

    def ask(self, work: Callable[[UsageLog], Result]) -> Future[Result]:
        """Do something with the log, in order."""
        return self._pool.submit(work, self._log)

    @property
    def entries(self) -> list[Entry]:
        """The entries of the log so far."""
        return self._log.entries

    def speaking(self, speaking: bool) -> None:
        """Tell programs that follow the log whether an utterance is being decoded."""

        def note() -> None:
            with suppress(OSError):  # they then compute during it, and nothing is lost
                note_speaking(self._log.folder, speaking)

        self._pool.submit(note)

    def latest_features(self, most: int) -> list[np.ndarray]:
        """Return the raw features of the latest utterances; see `UsageLog.latest_features`."""
        return self._log.latest_features(most)

    def correct(self, utterance: int, text: str) -> Future[bool]:
        """Log a correction, in order; return whether the recording is kept."""
        return self._pool.submit(self._log.correct, utterance, text)

    def rate(self, utterance: int, rating: str) -> Future[bool]:
        """Log a rating, in order; return whether the recording is kept."""
        return self._pool.submit(self._log.rate, utterance, rating)

    def close(self) -> None:
        """Write the utterances that wait, and close the log."""
        self._pool.shutdown()
        self._log.close()


def _fail(number: int, why: str, failed: Callable[[str], None]) -> None:
    event("utterance_not_logged", "error", utterance=number)
    failed(f"utterance {number} is not in the usage log: {why}")


def open_log(
    folder: Path,
    conventions: Conventions,
    normalise: Normalise,
    decoder: Decoder,
    *,
    record_all: bool,
    quota_gb: float,
    days: float,
) -> LogWriter:
    """Open a usage log for writing.

    Args:
        folder: Its directory.
        conventions: Those of the model.
        normalise: Normalisation of the features that come.
        decoder: The search, for the pronunciations of corrected sentences.
        record_all: Whether the features of all utterances are kept.
        quota_gb: Most space of these features.
        days: Days for which they are kept.

    Raises:
        LiveError: The disk is full, or another program writes the log.
    """
    if normalise == "none":  # the log keeps the features as they are sent
        conventions = replace(conventions, features="z-scored")
    kept_features = KeptFeatures(folder, 1e9 * quota_gb, days) if record_all else None
    log = UsageLog(folder, conventions, _lexicon(decoder), kept_features)
    for note in log.notes:
        event("session_log_damaged", "warning", note=note)
    return LogWriter(log)


def _lexicon(decoder: Decoder) -> Lexicon | None:
    """Return the lexicon that labels need; None where the inventory has its own pronunciations."""
    try:
        pronouncer(decoder.inventory, decoder.language)
    except TextError:
        return decoder.lm.lexicon
    return None


def logged_features(
    bins: Sequence[np.ndarray],
    statistics: tuple[np.ndarray, np.ndarray] | None,
    conventions: Conventions,
) -> np.ndarray | None:
    """Return the features of an utterance, float32 [T, C]; z-scores where statistics are given.

    Those of a model of raw recordings stay raw: packing them computes the z-scores again.

    Args:
        bins: Its bins as they came, float32 [t, C] each; without any, there are no features.
        statistics: Rolling mean and standard deviation, float32 [C] each; None without.
        conventions: Those of the model.
    """
    if not bins:
        return None
    features_TC = np.concatenate(bins)
    if statistics is None or conventions.features == "raw":
        return features_TC
    mean_C, std_C = statistics
    z_TC: np.ndarray = ((features_TC - mean_C) / np.where(std_C > 0, std_C, 1)).astype(np.float32)
    return z_TC


def record_of(
    number: int,
    session: str,
    duration_s: float,
    nbest: NBest,
    source: str,
    model: str | None,
    when: datetime,
    shown: str | None = None,
    features_notes: Sequence[str] = (),
) -> UtteranceRecord:
    """Return the record of a decoded utterance.

    Args:
        number: Its number.
        session: The recording day that its features are of.
        duration_s: Seconds from its first word to its last.
        nbest: Its sentences.
        source: Where its features came from.
        model: Name of the model that decoded it; None without a chain of models.
        when: Time at which it ended.
        shown: Its text as people saw it; None where nobody did.
        features_notes: Lines on bad channels and outliers of its features.
    """
    return UtteranceRecord(
        number,
        session,
        duration_s,
        nbest[0].text,
        source=source,
        nbest=candidates(nbest),
        when=when,
        degraded=nbest.degraded,
        model=model,
        confidence=nbest.confidence,
        shown=shown,
        features_notes=features_notes,
    )


def candidates(nbest: NBest) -> list[dict[str, Any]]:
    """Return the best sentences with their scores, as pages are sent and logs keep them."""
    names = ("text", "score", "acoustic", "ngram", "llm")
    hypotheses = [hypothesis_json(hypothesis) for hypothesis in nbest[:MAX_NBEST]]
    return [{name: each[name] for name in names} for each in hypotheses]


def spoken_s(nbest: NBest, n_bins: int, ended: str, bin_ms: float) -> float:
    """Return the seconds of an utterance.

    A feed has no end: where a pause ended it, the time from the first word to the last
    counts.

    Args:
        nbest: Its sentences.
        n_bins: Number of its bins.
        ended: Why it has ended.
        bin_ms: Length of a bin.
    """
    words = nbest[0].words
    if ended in ("silence", "length", "idle") and words:
        return (words[-1].end_ms - words[0].start_ms) / 1000
    return n_bins * bin_ms / 1000
