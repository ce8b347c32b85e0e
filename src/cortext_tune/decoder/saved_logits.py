"""Logits that any program saved, with a file of the reference sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cortext.decoding.log_probs import LOGITS
from cortext.decoding.saved import natural_key
from cortext.errors import DataError, nearest
from cortext.files import check_file, parse_json_object
from cortext.text.inventory import Inventory
from cortext.text.language import EN, Language

MOST_BYTES = 64 << 20
"""Most bytes of a file of references; the benchmark's take 60 kB."""


@dataclass(frozen=True)
class SavedLogits:
    """Files that hold logits and their sentences.

    Attributes:
        logits: The logits, as `cortext.decoding.saved.read_saved` reads them.
        references: The sentences, as `read_references` reads them.
        order: Tokens of the columns, in order: an inventory, or the name of a built-in one.
        language: Normalisation of the sentences.
        scores: Kind of the numbers, a key of `cortext.decoding.log_probs.SCORES`.
    """

    logits: Path
    references: Path
    order: Inventory | str
    language: Language = EN
    scores: str = LOGITS

    def resolved(self) -> SavedLogits:
        """Return the same with absolute paths."""
        return replace(self, logits=self.logits.resolve(), references=self.references.resolve())


def read_references(path: Path, names: Sequence[str]) -> list[str]:
    """Return the sentence of each trial, empty where a trial has none.

    A file whose first line is a JSON object has one a line, with `name` and `text`, in any order.
    Any other file has a sentence a line, in the order of the names.

    Args:
        path: The file, UTF-8.
        names: Names of the trials, in the order of the logits.

    Raises:
        DataError: For a file that cannot be read, and unless each trial has one line. Sentences
            without names are refused where the arrays are not in the order of their names.
    """
    try:
        check_file(path, MOST_BYTES)
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=path) from None
    except ValueError as error:
        raise DataError(
            f"cannot be read: {error}", where=path, fix="give a sentence a line, as UTF-8"
        ) from None
    if lines and lines[0].lstrip().startswith("{"):
        return _named(lines, path, names)
    if sorted(names, key=natural_key) != list(names):
        raise DataError(
            "does not name its sentences, and the arrays are not in the order of their names",
            where=path,
            fix='give lines such as {"name": "trial_1", "text": "a sentence"}',
        )
    if len(lines) != len(names):
        raise DataError(
            f"has {len(lines)} lines for {len(names)} trials",
            where=path,
            fix="give a sentence a line, an empty line where it is not known",
        )
    return lines


def _named(lines: Sequence[str], path: Path, names: Sequence[str]) -> list[str]:
    """Return the sentences of JSON lines in the order of the names."""
    text_of: dict[str, str] = {}
    known = set(names)
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            values = parse_json_object(line)
        except ValueError as error:
            raise DataError(f"is no JSON object: {error}", where=where) from None
        name, text = values.get("name"), values.get("text", 0)
        if not isinstance(name, str) or not isinstance(text, str | None):
            raise DataError(
                "has no 'name' and 'text'",
                where=where,
                fix='write {"name": "trial_1", "text": "a sentence"}',
            )
        if name not in known:
            raise DataError(
                f"the logits have no trial {name!r}; {nearest(name, names)}", where=where
            )
        if name in text_of:
            raise DataError(f"the trial {name!r} is there twice", where=where)
        text_of[name] = text or ""
    if lacking := next((name for name in names if name not in text_of), None):
        raise DataError(
            f"has no line of trial {lacking!r}",
            where=path,
            fix="give every trial a line, with text null where it is not known",
        )
    return [text_of[name] for name in names]
