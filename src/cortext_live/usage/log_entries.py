"""The entries of a usage log, and what a person says of them: parsed from the objects of its lines.

See `usage.log` for the lines.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from cortext.errors import TextError, shown
from cortext.files import is_plain_name
from cortext.text.language import EN, Language
from cortext.text.prose import spoken_sign, typed

RATINGS = ("right", "mostly right", "wrong")
MOST_CHARACTERS = 100_000
"""Longest text of a line.

It holds eight hours of speech, and is still compared with its correction in a second.
"""
MOST_SECONDS = 86_400.0
"""Longest utterance."""


def spoken(text: str, language: Language = EN) -> str:
    """Return text that a person typed as spoken words.

    In English numbers are written out; in other languages the text is normalised.

    Raises:
        TextError: Words would be lost.
    """
    if language.is_benchmark:
        return typed(text)
    if sign := spoken_sign(text, language.letters):
        fix = "write it as a word"
        raise TextError(f"language {language.name!r} does not read the sign {sign}", fix=fix)
    language.require(text)
    return language.normalize(text)


@dataclass
class LoggedUtterance:
    """An utterance with its feedback.

    Attributes:
        id: Its id in the log.
        when: Time at which its text was there, with the offset from UTC of the place.
        session: Recording day that its features belong to.
        duration_s: Its seconds.
        text: The decoded text.
        source: Source of its features.
        correction: The sentence that was meant, as typed; None without a correction.
        rating: One of `RATINGS`, or None.
        degraded: Whether something that was asked for, such as a large model, had no part in it.
        has_bad_features: Whether a channel of its features was bad, or values were far out.
        language: Language of its text.
        model: Name that a chain of models has for the one that spoke; None without a chain.
        confidence: Confidence of the text, 0 to 1; None where the log lacks it.
        shown: The text as people saw it; None where the log lacks it.
        revision: How often feedback has changed its label.
    """

    id: str
    when: datetime
    session: str
    duration_s: float
    text: str
    source: str = ""
    correction: str | None = None
    rating: str | None = None
    degraded: bool = False
    has_bad_features: bool = False
    language: Language = EN
    model: str | None = None
    confidence: float | None = None
    shown: str | None = None
    revision: int = 0

    def take(self, feedback: Feedback) -> None:
        """Take a person's feedback; of several corrections or ratings the last one counts."""
        before = self.label
        if feedback.correction is not None:
            self.correction = feedback.correction
        else:
            self.rating = feedback.rating
        self.revision += self.label != before

    @property
    def n_words(self) -> int:
        """Number of words of the decoded text."""
        return self.language.n_words(self.text)

    @property
    def label(self) -> str | None:
        """The words that were meant: the correction, or the text that was rated right; or None."""
        if self.correction is not None:
            return spoken(self.correction, self.language)
        return self.text if self.rating == "right" and self.text.split() else None


@dataclass(frozen=True)
class PartnerTurn:
    """A turn of the participant's partner, as typed on the page.

    Attributes:
        when: Time at which it was sent, with the offset from UTC of the place.
        text: The turn.
    """

    when: datetime
    text: str


@dataclass(frozen=True)
class Deleted:
    """An entry that was deleted, or that could not be written. It counts nowhere.

    Attributes:
        when: Time of the entry.
        id: Id of the utterance; None for a turn.
    """

    when: datetime
    id: str | None = None


@dataclass(frozen=True)
class Damaged(Deleted):
    """An entry whose line is damaged or missing. It counts nowhere.

    Attributes:
        when: Time of the entry above.
        id: Id of the utterance, as far as it can be read.
    """


Entry = LoggedUtterance | PartnerTurn | Deleted


@dataclass(frozen=True)
class Feedback:
    """A correction or a rating (the other is None) of an utterance.

    Attributes:
        id: Id of the utterance.
        correction: The sentence that was meant, as typed.
        rating: One of `RATINGS`.
        entry: Number of the utterance; None for the last one above that has the id.
    """

    id: str
    correction: str | None
    rating: str | None
    entry: int | None = None


def parsed_line(line: dict[str, Any]) -> Entry | Feedback:
    """Return the content of a line, every field checked. Raises ValueError for a wrong one."""
    for key, kind in (("deleted", Deleted), ("damaged", Damaged)):
        if key in line:
            if line[key] is not True:
                raise ValueError(f"{key} is {found_value(line[key])}")
            id_ = None if line.get("id") is None else _text(line, "id")
            return kind(time_of(line), id_)
    if "partner" in line:
        text = _text(line, "partner")
        if not text.strip():
            raise ValueError("the partner's turn has no words")
        return PartnerTurn(time_of(line), text)
    return _feedback(line) if "correction" in line or "rating" in line else _entry(line)


def _entry(line: dict[str, Any]) -> LoggedUtterance:
    id_ = _text(line, "id")
    when = time_of(line)
    session = _text(line, "session")
    if problem := wrong_with_session(session):
        raise ValueError(problem)
    duration_s = line.get("duration_s")
    if (
        isinstance(duration_s, bool)
        or not isinstance(duration_s, int | float)
        or not 0 <= duration_s <= MOST_SECONDS
    ):
        raise ValueError(f"duration_s is {found_value(duration_s)}")
    text = _text(line, "text")
    source, degraded, model, seen = (
        None if line.get(key) is None else _text(line, key)
        for key in ("source", "degraded", "model", "shown")
    )
    notes = line.get("features_notes", [])
    if not isinstance(notes, list):
        raise ValueError(f"features_notes is {found_value(notes)}")
    confidence = line.get("confidence")
    if confidence is not None and (
        isinstance(confidence, bool)
        or not isinstance(confidence, int | float)
        or not 0 <= confidence <= 1
    ):
        raise ValueError(f"confidence is {found_value(confidence)}")
    return LoggedUtterance(
        id_,
        when,
        session,
        float(duration_s),
        text,
        source or "",
        degraded=bool(degraded),
        has_bad_features=bool(notes),
        language=_language(json.dumps(line.get("language", EN.name))),
        model=model,
        confidence=None if confidence is None else float(confidence),
        shown=seen,
    )


@lru_cache(maxsize=16)
def _language(written: str) -> Language:
    try:
        return Language.from_json(json.loads(written))
    except TextError as error:
        raise ValueError(error.what) from None


def _feedback(line: dict[str, Any]) -> Feedback:
    id_ = _text(line, "id")
    time_of(line)  # not used, but a line without a time is damaged
    if "correction" in line:
        return Feedback(id_, _text(line, "correction"), None)
    return Feedback(id_, None, _rating(line))


def _text(line: dict[str, Any], key: str) -> str:
    value = line.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key} is {found_value(value)} and not a text")
    if len(value) > MOST_CHARACTERS:
        raise ValueError(f"{key} has {len(value)} characters; at most {MOST_CHARACTERS} are read")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{key} holds half a character (a lone surrogate)") from None
    return value


def found_value(value: Any) -> str:
    """Return a value in a few characters, however long or deep it is."""
    return f"a {type(value).__name__}" if isinstance(value, list | dict) else shown(value, 40)


def time_of(line: dict[str, Any]) -> datetime:
    """Return the time of a line. Raises ValueError for one that no clock shows."""
    text = _text(line, "when")
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"when is {text[:40]!r} and not a time") from None
    if problem := wrong_with(when):
        raise ValueError(f"when is {text[:40]!r}, {problem}")
    return when


def wrong_with(when: datetime) -> str | None:
    """Return why this is no time of use; None if it is one."""
    if not 1969 <= when.year < 3000:  # a clock that was never set shows 1970, in America still 1969
        return "which no clock shows"
    return "a time without its offset from UTC" if when.utcoffset() is None else None


def wrong_with_session(name: str) -> str | None:
    """Return why no folder of recordings can have this name; None if one can."""
    if is_plain_name(name) and not name.startswith("."):
        return None
    return f"session {shown(repr(name), 60)} cannot name a folder"


def _rating(line: dict[str, Any]) -> str:
    rating = _text(line, "rating")
    if rating not in RATINGS:
        raise ValueError(f"rating is {rating[:40]!r}")
    return rating
