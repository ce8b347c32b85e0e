"""One attempted sentence, and the day it was recorded on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from cortext.arguments import as_count, check_text, check_type
from cortext.data.conventions import RELEASE_CONVENTIONS, Conventions
from cortext.describe import Described
from cortext.errors import DataError
from cortext.text.inventory import Inventory
from cortext.text.lexicon import Lexicon

BIN_MS = 20
"""Length of a bin of features in milliseconds in the published data."""
SPLITS = ("train", "val", "test")
"""Names of the splits."""
MAX_LABEL = 500
"""Length of the zero-padded label and transcription arrays in a session file of the release."""
LONGEST_LABEL = 10_000
"""Most tokens of a label, and under so many characters in its sentence, of any other inventory."""


def most_labels(inventory: Inventory) -> int:
    """Return the most tokens of a label: 500, as in the release's files, for its inventory."""
    return MAX_LABEL if inventory.is_published else LONGEST_LABEL


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Trial(Described):
    """One attempted sentence.

    Attributes:
        features_TC: float32 [T, C], z-scored neural features by bin.
        phoneme_ids: int64 [U], tokens of the conventions' inventory, without the blank; None where
            labels are withheld (test).
        sentence: The prompt as written; None where labels are withheld.
        corpus: The text corpus of the block (`50-Word`, `Switchboard`, `handwritten` ...) where it
            is known.
        conventions: Tokens, language and length of a bin.
        absent: Features that the file has no value of, whose bins are 0.
    """

    features_TC: np.ndarray
    session: str
    block: int
    trial: int
    sentence: str | None = None
    phoneme_ids: np.ndarray | None = None
    corpus: str | None = None
    conventions: Conventions = RELEASE_CONVENTIONS
    absent: tuple[int, ...] = ()

    @property
    def n_bins(self) -> int:
        """Length of the trial in bins."""
        return int(self.features_TC.shape[0])

    @property
    def name(self) -> str:
        """Name of the trial in messages and result files."""
        return f"{self.session}/block {self.block}/trial {self.trial}"

    def _facts(self) -> dict[str, Any]:
        shape = getattr(self.features_TC, "shape", ())  # a Trial takes whatever it is given
        return {
            "trial": self.name,
            "bins and features": list(shape),
            "seconds": shape[0] * self.conventions.bin_ms / 1000 if shape else None,
            "sentence": "withheld" if self.sentence is None else repr(self.sentence),
            f"{self.conventions.inventory.unit}s": getattr(self.phoneme_ids, "size", None),
            "corpus": self.corpus,
        }


def make_trial(
    features_TC: np.ndarray,
    session: str,
    block: int,
    trial: int,
    sentence: str | None = None,
    *,
    phoneme_ids: Iterable[int] | np.ndarray | None = None,
    corpus: str | None = None,
    conventions: Conventions = RELEASE_CONVENTIONS,
    lexicon: Lexicon | None = None,
) -> Trial:
    """Make a Trial of what a lab has: neural features and the prompted sentence.

    Args:
        features_TC: [T, C], in bins of the conventions' length.
        session: The recording day, such as `t15.2023.08.11`.
        block: Number of the block in the session.
        trial: Number of the trial in the block.
        sentence: The prompt as written; without one there are no phonemes.
        phoneme_ids: Tokens of the conventions' inventory; found by `cortext.text.to_tokens` where
            they are not given.
        corpus: The text corpus of the block.
        conventions: Tokens, language and length of a bin; the release's by default.
        lexicon: Pronunciations for an inventory of one's own.

    Raises:
        DataError, TextError, WrongType: For features, a sentence or numbers that a trial cannot
            have, such as a sentence with letters that its language lacks.
    """
    check_type(conventions, Conventions, "conventions", "Conventions")
    inventory = conventions.inventory
    if sentence is not None:
        conventions.language.require(sentence)
    if phoneme_ids is None and sentence is not None:
        from cortext.text import to_tokens  # loads the dictionary

        phoneme_ids = inventory.ids(to_tokens(sentence, inventory, conventions.language, lexicon))
    ids = None
    if phoneme_ids is not None:
        inventory.names(phoneme_ids)  # refuses all that are no tokens
        ids = np.asarray(phoneme_ids, dtype=np.int64)
    check_text(session, "session")
    check_type(corpus, (str, type(None)), "corpus", "a text")
    features = as_features(features_TC).astype(np.float32, copy=False)
    return Trial(
        features,
        session,
        as_count(block, "block"),
        as_count(trial, "trial"),
        sentence,
        ids,
        corpus,
        conventions,
    )


def as_features(features_TC: Any) -> np.ndarray:
    """Return features [T, C] as an array of numbers; raise DataError for what has no such form."""
    if hasattr(features_TC, "detach"):  # a tensor, also one with a gradient
        features_TC = features_TC.detach().cpu()
    try:
        array = np.asarray(features_TC)
        if array.dtype.kind in "fiub" and array.ndim == 2:
            return array
        kind = f"shape {list(array.shape)} and type {array.dtype}"
    except ValueError:  # rows of different lengths
        kind = "rows of different lengths"
    raise DataError(f"features_TC has {kind}; numbers [bins, features] are needed")


@dataclass(frozen=True, slots=True, repr=False)
class Session(Described):
    """One recording day: its name (`t15.2023.08.11`) and the session files it has, by split."""

    name: str
    files: dict[str, Path]

    @property
    def date(self) -> date | None:
        """The recording day that the name states, or None for a name without one."""
        parts = self.name.split(".")[-3:]
        try:
            year, month, day = (int(part) for part in parts)
            return date(year, month, day)
        except ValueError:
            return None

    def _facts(self) -> dict[str, Any]:
        return {"name": self.name, "splits": ", ".join(self.files)}
