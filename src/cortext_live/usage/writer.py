"""Writer of the usage log: utterances, corrections and ratings, and recordings to learn from.

It is private, and kept only where the user asked for it.

    DIR/utterances.jsonl                      one line an utterance, a partner's turn, or feedback
                                              (usage/log.py)
    DIR/recordings/<session>/data_train.hdf5  corrected and confirmed utterances, labelled
    DIR/recordings/cortext.json               their conventions, where they are not the release's
    DIR/heard/                                features of all utterances (`kept_features`)
    DIR/heard.aged                            changed when some were deleted by age
    DIR/speaking                              changed when an utterance begins (usage/speaking.py)
    DIR/deleting.json                         while something is deleted (usage/deletion.py)

A kept trial's number is that of its utterance in the log, from 0, and its block is the second of
the log's first entry: recordings that lie there from another log, or written by hand, are not
taken for this one's.

Lines are appended, each flushed to disk before the call returns, so that a crash loses no more than
the line being written. Only deleting replaces the file. A session file is replaced whole. Only the
owner may read either.
"""

from __future__ import annotations

import json
import os
import threading
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from cortext.data.conventions import RELEASE_CONVENTIONS, Conventions
from cortext.data.trial import Session
from cortext.errors import LiveError
from cortext.files import lock
from cortext.renames import sync
from cortext.text.inventory import RELEASE
from cortext.text.language import EN, Language
from cortext.text.lexicon import Lexicon
from cortext_live.usage import deletion
from cortext_live.usage.deletion import Selection
from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.kept_recordings import KeptRecordings, failures
from cortext_live.usage.log import LOG, MOST_LINE_BYTES, LogContents, read_log
from cortext_live.usage.log_entries import (
    MOST_SECONDS,
    RATINGS,
    Damaged,
    Entry,
    spoken,
    wrong_with,
    wrong_with_session,
)
from cortext_live.usage.log_lines import NUMBER_BYTES, numbered


def now() -> datetime:
    """Return the time with the offset of this place: midnight there separates the days of use."""
    return datetime.now().astimezone()


def session_of_today(like: str, when: datetime | None = None) -> str:
    """Return the name of today's recording day, in the manner of a session that the model knows.

    `t15.2023.08.18` gives `t15.2026.11.21`; a name without a date becomes the part before today's.

    Args:
        like: Name of the session.
        when: Another time than now.
    """
    prefix = like.rsplit(".", 3)[0] if Session(like, {}).date else like
    return f"{prefix}.{when or now():%Y.%m.%d}"


@dataclass(frozen=True)
class UtteranceRecord:
    """A decoded utterance, to be logged.

    Attributes:
        id: Unique while the process runs; used again after a restart it means the newer utterance.
        session: The recording day that the features belong to: a replayed trial's own, or
            `session_of_today`.
        duration_s: Seconds from the first to the last bin.
        text: The decoded sentence; empty where there was none.
        source: Source of the features (`replay`, `feed` ...).
        nbest: Candidates as JSON objects, where they are to be kept.
        when: Time at which the text was there, with the offset from UTC.
        degraded: The part that was missing, such as a large model's scores; None for none.
        model: Name that a chain of models has for the one that spoke; None without a chain.
        confidence: Confidence of the text, 0 to 1; None where it is not known.
        shown: The sentence as it was shown, with capitals and marks; None where it is not known.
        features_notes: Lines on bad channels and outliers of its features.

    Raises:
        LiveError: A value that no log can hold.
    """

    id: str | int
    session: str
    duration_s: float
    text: str
    source: str = ""
    nbest: Sequence[dict[str, Any]] | None = None
    when: datetime = field(default_factory=now)
    degraded: str | None = None
    model: str | None = None
    confidence: float | None = None
    shown: str | None = None
    features_notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Check the values."""
        if problem := wrong_with_session(self.session):
            raise LiveError(problem, fix="give a name such as t15.2026.11.21")
        if not 0 <= self.duration_s <= MOST_SECONDS:
            most = f"at most {MOST_SECONDS:.0f}"
            raise LiveError(
                f"duration_s is {self.duration_s}; a number of seconds is needed, {most}"
            )
        if problem := wrong_with(self.when):
            raise LiveError(f"when is {self.when}, {problem}")

    def to_json(self, language: Language = EN) -> dict[str, Any]:
        """Return the utterance's line in the log; it names a language other than English."""
        n_words = language.n_words(self.text)
        line = {
            "id": str(self.id),
            "when": self.when.isoformat(timespec="milliseconds"),
            "session": self.session,
            "duration_s": round(self.duration_s, 3),
            "n_words": n_words,
            "words_per_minute": (
                round(60 * n_words / self.duration_s, 2) if self.duration_s > 0 else None
            ),
            "text": self.text,
            "source": self.source,
        }
        if language != EN:
            line["language"] = language.to_json()
        if self.degraded is not None:
            line["degraded"] = self.degraded
        if self.model is not None:
            line["model"] = self.model
        if self.confidence is not None:
            line["confidence"] = round(self.confidence, 4)
        if self.shown is not None and self.shown != self.text:
            line["shown"] = self.shown
        if self.features_notes:
            line["features_notes"] = list(self.features_notes)
        return line if self.nbest is None else line | {"nbest": list(self.nbest)}


class UsageLog:
    """The usage log in `folder`, which is made where there is none, locked against other processes.

    Calls may come from any thread. They return when the disk has their data: that takes a flush,
    and where features are kept the writing of the day's session file (some milliseconds for each
    trial in it). Every failure is a LiveError and leaves the log as it was before the call, or with
    the line that the error names; later calls work again when the cause is gone.

    Args:
        folder: Directory of the log.
        conventions: The model's tokens, language and length of a bin.
        lexicon: Pronunciations for the labels of an inventory of one's own.
        kept_features: Keeps the features of all utterances; None keeps those of
            corrected and confirmed ones alone.

    Raises:
        LiveError: The log is written by another process, or its recordings have other conventions.
    """

    def __init__(
        self,
        folder: str | Path,
        conventions: Conventions = RELEASE_CONVENTIONS,
        lexicon: Lexicon | None = None,
        kept_features: KeptFeatures | None = None,
    ) -> None:
        self.folder = Path(folder)
        self._kept_features = kept_features
        if conventions.inventory.is_published:  # session files are in the release's order
            conventions = replace(conventions, inventory=RELEASE)
        self._conventions = conventions
        self._path = self.folder / LOG
        self._mutex = threading.Lock()
        self._recordings = KeptRecordings(self.folder, conventions, lexicon)
        with failures(self._path):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._lock()
            with failures(self._path):
                notes = self._finish_deletion()
                self._log: LogContents = read_log(self.folder)
                self._settle()
                self._log.notes += notes
                self._end_torn_line()
                sync(self.folder)
            self._recordings.check_conventions()
            self._tidy()
            if kept_features is not None:
                kept_features.state(self._conventions)
                kept_features.tidy(self._log.began)
                self._log.notes += [kept_features.problem] if kept_features.problem else []
        except BaseException:
            self.close()
            raise

    @property
    def notes(self) -> list[str]:
        """A line for each damaged line that was found when the log was opened."""
        return self._log.notes

    @property
    def entries(self) -> list[Entry]:
        """The entries so far, by their numbers."""
        with self._mutex:
            return list(self._log.entries)

    def append(
        self,
        utterance: UtteranceRecord,
        features_TC: np.ndarray | None = None,
        number: int | None = None,
    ) -> None:
        """Log an utterance.

        Args:
            utterance: The utterance.
            features_TC: float32 [T, C] in bins as in a session file, z-scored and not
                smoothed. They stay in memory so that the utterance can be corrected or rated right,
                until others need the memory.
            number: Its number in the log, for a caller that counts entries. Where some before it
                could not be written, lines of deleted ones take their numbers. None: the next one.
        """
        features_TC = None if features_TC is None else np.array(features_TC, dtype=np.float32)
        with self._mutex:
            self._fill(number, utterance.when)
            self._write(utterance.to_json(self._conventions.language))
            if features_TC is not None:
                self._recordings.hold(len(self._log.entries) - 1, features_TC)

    def add_turn(self, text: str, when: datetime, number: int | None = None) -> None:
        """Log a partner's words, as typed; `number` is that of `append`."""
        with self._mutex:
            self._fill(number, when)
            self._write({"when": when.isoformat(timespec="milliseconds"), "partner": text})

    def delete(self, selection: Selection) -> list[int]:
        """Delete entries with all that is kept of them; return their numbers.

        Raises:
            DataError: There is no such entry.
            LiveError: The disk is full; the rest is deleted with the next call or at the next
                start.
        """
        with self._mutex:
            numbers = selection.of(self._log.entries)
            if not (numbers or selection.everything or deletion.is_pending(self.folder)):
                return []
            with deletion.failed_deletion(self._path):
                pending = deletion.begin(self.folder, self._log, numbers)
                self._recordings.forget(numbers)

                def reopened(descriptor: int) -> None:
                    self._descriptor = descriptor
                    self._log.forget(pending)

                deletion.finish(self.folder, self._descriptor, reopened)
        return numbers

    def keep_features(self, features_TC: np.ndarray) -> str:
        """Keep the features of the last logged utterance, float32 [T, C], where all are kept.

        Returns:
            Why those that are too old or too much were not deleted; empty for nothing.
        """
        with self._mutex:
            if self._kept_features is None or not self._log.entries:
                return ""
            self._kept_features.keep(self._block, len(self._log.entries) - 1, features_TC)
            return self._kept_features.problem

    def latest_features(self, most: int) -> list[np.ndarray]:
        """Return the raw features of the latest utterances, float32 [T, C], the oldest first.

        None where features are not kept, or were normalised before they came.

        Args:
            most: Number of the utterances.
        """
        with self._mutex:
            if self._kept_features is None or self._conventions.features != "raw":
                return []
            numbers = list(self._log.utterances)[-most:] if most > 0 else []
            features = [self._kept_features.read(self._block, number) for number in numbers]
        return [features_TC for features_TC in features if features_TC is not None]

    def correct(self, id_: str | int, text: str) -> bool:
        """Log the sentence that was meant; return whether the recording is kept with it.

        Raises:
            TextError: It has letters, or in other languages than English digits, that cannot be
                read.
            LiveError: It has no words, there is no such utterance, or it cannot be logged.
        """
        text = unicodedata.normalize("NFC", text)
        if not spoken(text, self._conventions.language):
            raise LiveError(
                "a correction needs at least one word", fix="rate the utterance 'wrong' instead"
            )
        return self._log_feedback(id_, {"correction": text})

    def rate(self, id_: str | int, rating: str) -> bool:
        """Log a rating, one of `RATINGS`; return whether the recording is kept."""
        if rating not in RATINGS:
            raise LiveError(
                f"unknown rating {rating!r}; one of {', '.join(map(repr, RATINGS))} is needed"
            )
        return self._log_feedback(id_, {"rating": rating})

    def close(self) -> None:
        """Unlock and close the log."""
        with self._mutex:  # or a line under way might go to the next file that gets this number
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def __enter__(self) -> UsageLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lock(self) -> None:
        current = lock(self._descriptor) and deletion.is_current(self._descriptor, self._path)
        if not current:
            fix = "give another --session-log, or end that process"
            raise LiveError("another process is writing this log", where=self._path, fix=fix)

    def _settle(self) -> None:
        """Leave the numbers alone that damaged lines at the end may have had."""
        if (began := self._log.began) is None:
            self._log.settle()
        else:
            self._log.settle(KeptFeatures(self.folder).next_number(began))

    def _finish_deletion(self) -> list[str]:
        """Finish what a killed process was deleting; return a note where that is not possible."""

        def reopened(descriptor: int) -> None:
            self._descriptor = descriptor

        try:
            with deletion.failed_deletion(self._path):
                deletion.finish(self.folder, self._descriptor, reopened)
        except LiveError as error:
            return [str(error)]
        return []

    def _end_torn_line(self) -> None:
        """End a line that a killed process left unfinished, so that the next one is its own."""
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")

    def _tidy(self) -> None:
        """Finish the work of a killed process: half-written session files, and its last label."""
        self._recordings.tidy()
        if self._log.last is not None:
            try:
                self._keep(self._log.last)
            except LiveError as error:
                self._log.notes.append(str(error))

    def _log_feedback(self, id_: str | int, feedback: dict[str, str]) -> bool:
        """Log a correction or a rating; return whether the recording is kept with it."""
        with self._mutex:
            number = self._log.find(str(id_))
            fix = "give the id of a logged one"
            if number is None:
                raise LiveError(f"no utterance {id_!r}", where=self._path, fix=fix)
            if number not in self._log.utterances:
                lost = "is damaged" if type(self._log.entries[number]) is Damaged else "was deleted"
                raise LiveError(f"utterance {id_!r} {lost}", where=self._path, fix=fix)
            when = now().isoformat(timespec="milliseconds")
            self._write({"id": str(id_), "when": when, **feedback}, number)
            return self._keep(number)

    def _fill(self, number: int | None, when: datetime) -> None:
        """Let lines of deleted entries take the numbers before `number` that are free."""
        while number is not None and len(self._log.entries) < number:
            self._write({"when": when.isoformat(timespec="milliseconds"), "deleted": True})

    def _write(self, line: dict[str, Any], entry: int | None = None) -> None:
        """Append a line that readers accept and flush it, or leave the file as it was.

        Args:
            line: The line.
            entry: Number of the entry that it is about; None for a new entry.
        """
        entry = len(self._log.entries) if entry is None else entry
        try:
            content = json.dumps(line, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise LiveError(
                f"the utterance cannot be written as JSON: {error}", where=self._path
            ) from None
        if len(content) > MOST_LINE_BYTES - NUMBER_BYTES:
            # Hours of speech: its candidates are no loss beside its text
            content = json.dumps(line | {"nbest": None}).encode()
        began = self._log.began
        if began is None:
            began = int(datetime.fromisoformat(line["when"]).timestamp())
        content = numbered(content, entry, began)
        line = line | {"entry": entry, "log": began}
        try:
            parsed = self._log.check(line)
        except ValueError as error:
            raise LiveError(f"it cannot be logged: {error}", where=self._path) from None
        with failures(self._path):
            if self._descriptor < 0 or not os.fstat(self._descriptor).st_nlink:
                raise FileNotFoundError(2, "the log was closed or removed")
            size = os.fstat(self._descriptor).st_size
            try:
                rest = memoryview(content)
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
                # On the disk before it is acknowledged: a correction is the participant's work.
                os.fsync(self._descriptor)
            except OSError:
                # A line written in part would swallow the next one.
                with suppress(OSError):
                    os.ftruncate(self._descriptor, size)
                raise
        self._log.add(parsed, line)

    def _keep(self, number: int) -> bool:
        """Make the recordings agree with the log; return whether they have the utterance."""
        # The time of the log's first entry is the block: a new log in the same folder counts from 0
        # again, and must not relabel the recordings of the one before.
        return self._recordings.keep((self._block, number), self._log.utterances[number])

    @property
    def _block(self) -> int:
        """Second of the log's first entry."""
        assert self._log.began is not None, "nothing was logged yet"
        return self._log.began
