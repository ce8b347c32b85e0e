"""Reading `nbest.jsonl`, the sentences of each trial in an evaluation directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cortext.decoding.options import is_finite
from cortext.errors import DataError, TextError
from cortext.files import parse_json_object, read_json
from cortext.text.language import EN, Language

NBEST = "nbest.jsonl"
KEY = ("id", "session", "block", "trial")
"""The fields that must agree for two lines to be of one trial."""
TrialKey = tuple[Any, Any, Any, Any]
"""The `KEY` fields of a trial."""
MOST_WORDS = 1000
"""Words of the longest sentence: alignment takes the product of two lengths in time and memory."""
AGAIN = "evaluate the run again"


@dataclass(frozen=True, slots=True)
class SavedTrialLists:
    """A line of `nbest.jsonl`.

    Attributes:
        key: The trial's `KEY` fields.
        reference: Sentence to be decoded; None where it is unknown.
        hypotheses: Its sentences, best first, at least one; each has a `text`.
        degraded: One line that names what the list lacks; None where nothing is missing.
    """

    key: TrialKey
    reference: str | None
    hypotheses: list[dict[str, Any]]
    degraded: str | None

    @property
    def number(self) -> int:
        """The number of the trial, which its logits and its row of `predictions.csv` have."""
        return int(self.key[0])


def read_nbest(directory: Path) -> dict[TrialKey, SavedTrialLists]:
    """Return the lines of a directory's n-best file by the `KEY` fields of their trials.

    Raises:
        DataError: Naming the file and line, for anything that cannot be compared.
    """
    path = directory / NBEST
    if not path.is_file():
        fix = "give a directory that cortext evaluate wrote with --lm"
        raise DataError(f"no {NBEST}", where=directory, fix=fix)
    by_trial: dict[TrialKey, SavedTrialLists] = {}
    for number, line in json_objects(path):
        where = f"{path}, line {number}"
        missing = [name for name in (*KEY, "reference", "hypotheses") if name not in line]
        if missing:
            raise DataError(f"no field {missing[0]!r}", where=where, fix=AGAIN)
        key = (line["id"], line["session"], line["block"], line["trial"])
        check_reference(line["reference"], where)
        _check_hypotheses(line["hypotheses"], where)
        try:
            is_new = key not in by_trial
        except TypeError:
            raise DataError(
                f"{', '.join(KEY)} are {key}; numbers and names are needed", where=where
            ) from None
        if not is_new:
            raise DataError(f"{trial_name(key)} is there twice", where=where, fix=AGAIN)
        by_trial[key] = SavedTrialLists(
            key, line["reference"], line["hypotheses"], line.get("degraded")
        )
    return by_trial


def language_of(directory: Path) -> Language:
    """Return the language of an evaluation's sentences; English where it names none.

    Raises:
        DataError: For a `metrics.json` that names no language.
    """
    path = directory / "metrics.json"
    try:
        facts = read_json(path).get("provenance") or {}
        return Language.from_json(facts.get("language", "en"))
    except FileNotFoundError:
        return EN
    except (OSError, ValueError, AttributeError, TextError) as error:
        raise DataError(f"cannot read the language: {error}", where=path, fix=AGAIN) from None


def trial_name(key: TrialKey) -> str:
    """Return the name of a trial in messages."""
    number, session, block, trial = key
    return (
        f"trial {number}"
        if session is None
        else f"trial {number} ({session}/block {block}/trial {trial})"
    )


def json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number, from 1, and the object of each line that is not empty.

    Raises:
        DataError: For a file that cannot be read, holds anything else, or nothing.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=path) from None
    except UnicodeDecodeError:
        raise DataError(
            "is no text", where=path, fix="give a file with a JSON object a line"
        ) from None
    any_line = False
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        any_line = True
        try:
            parsed = parse_json_object(line)
        except ValueError as error:
            raise DataError(f"is no JSON object: {error}", where=f"{path}, line {number}") from None
        yield number, parsed
    if not any_line:
        raise DataError("holds no trials", where=path)


def check_reference(reference: Any, where: str) -> None:
    """Raise DataError for a reference that is no sentence, or too long to be aligned."""
    if reference is not None and not isinstance(reference, str):
        raise DataError(f"reference is {reference!r}; a sentence is needed", where=where)
    check_lengths([reference or ""], where)


def check_lengths(texts: Sequence[str], where: str) -> None:
    """Raise DataError for a sentence that is too long to be aligned."""
    for text in texts:
        if (n_words := len(text.split())) > MOST_WORDS:
            raise DataError(
                f"a sentence has {n_words:,} words; at most {MOST_WORDS:,} are aligned", where=where
            )


def _check_hypotheses(hypotheses: Any, where: str) -> None:
    if not isinstance(hypotheses, list) or not hypotheses:
        raise DataError("hypotheses is no list of sentences", where=where, fix=AGAIN)
    for hypothesis in hypotheses:
        score = hypothesis.get("score") if isinstance(hypothesis, dict) else "none"
        if not isinstance(hypothesis, dict) or not isinstance(hypothesis.get("text"), str):
            raise DataError("a hypothesis has no text", where=where, fix=AGAIN)
        check_lengths([hypothesis["text"]], where)
        if score is not None and not is_finite(score):
            raise DataError(
                f"the score of a hypothesis is {score!r}; a number is needed", where=where
            )
