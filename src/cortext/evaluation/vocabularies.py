"""The vocabularies that limit trials of an evaluation: its file `vocabularies.json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cortext.errors import DataError
from cortext.files import read_json
from cortext.tables import json_text

VOCABULARIES = "vocabularies.json"


@dataclass(frozen=True)
class Vocabulary:
    """Words that some trials of an evaluation are made of; the others may hold any word.

    Attributes:
        name: Name of the vocabulary.
        words: Its words, normalised.
        trials: Numbers of the trials.
    """

    name: str
    words: tuple[str, ...]
    trials: tuple[int, ...]


def write_vocabularies(directory: Path, vocabularies: Sequence[Vocabulary]) -> None:
    """Write the file `vocabularies.json` of an evaluation directory."""
    content = {each.name: {"words": each.words, "trials": each.trials} for each in vocabularies}
    (directory / VOCABULARIES).write_text(json_text(content, indent=1) + "\n", encoding="utf-8")


def read_vocabularies(directory: str | Path) -> tuple[Vocabulary, ...]:
    """Return the vocabularies of an evaluation directory; most have none.

    Raises:
        DataError: For a file that cannot be read.
    """
    path = Path(directory) / VOCABULARIES
    if not path.is_file():
        return ()
    try:
        content = read_json(path)
        found = tuple(
            Vocabulary(name, tuple(each["words"]), tuple(each["trials"]))
            for name, each in content.items()
        )
        if not all(
            each.words
            and all(isinstance(word, str) for word in each.words)
            and all(type(number) is int for number in each.trials)
            for each in found
        ):
            raise ValueError("words and numbers of trials are needed")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"cannot be read: {error}", where=path, fix="evaluate or import again"
        ) from None
    return found
