"""Recordings in a format of others: sessions, blocks and trials, before z-scoring.

A reader returns a `Source`. `importing.import_source` writes it as session files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from cortext.data.checks import FaultError
from cortext.data.scaling import Scale
from cortext.data.trial import BIN_MS
from cortext.text.inventory import RELEASE, Inventory
from cortext.text.language import EN, Language
from cortext.text.lexicon import Lexicon

_MOST_BLOCKS = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class RecordedTrial:
    """One attempted sentence in a foreign file.

    Attributes:
        number: Number of the trial in its block.
        n_bins: Length in the file's bins.
        read: Reads the recorded numbers, [T, C] of any numeric type; may be called twice. Raises
            FaultError for damage.
        sentence: The prompt in words; None where labels are withheld.
        corpus: The text corpus, or the way of speaking the sentence.
    """

    number: int
    n_bins: int
    read: Callable[[], np.ndarray]
    sentence: str | None = None
    corpus: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """The trials of one block that belong to one split, in order.

    Attributes:
        number: Number of the block. Blocks of the same number in one recording are z-scored
            together.
        split: `train`, `val` or `test`.
        trials: At least one.
        published: Scale that the release uses for this block, for `normalise="published"`.
    """

    number: int
    split: str
    trials: Sequence[RecordedTrial]
    published: Scale | None = None


@dataclass(frozen=True, slots=True, eq=False)
class FeatureGroup:
    """Features that come from one part of a file.

    Attributes:
        name: Name of the part in the mapping; empty where the format has no mapping.
        columns: Number of each feature in that part.
        is_counts: Whether they are counts.
        is_divided: Whether bins were divided, which makes fractions of counts.
    """

    name: str
    columns: Sequence[int]
    is_counts: bool = False
    is_divided: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """An opened recording.

    Attributes:
        blocks: In the order in which they were recorded; none of a file that is left out.
        bin_ms: Length of a bin in the file.
        counts: Numbers of the features that are counts: summed where bins are joined; the mean is
            taken of all others.
        notes: What the user should know, one line each, such as `left_out_notes` of trials.
        groups: The parts of the file that the features come from, in the order of the features.
    """

    blocks: Sequence[Block]
    bin_ms: float = BIN_MS
    counts: Sequence[int] = ()
    notes: Sequence[str] = ()
    groups: Sequence[FeatureGroup] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """One session, or some splits of it, in one or several files.

    Attributes:
        session: Name of the session, such as `t12.2022.04.28`.
        paths: Files that it is read from; the first one names it in messages and in the
            record of the import, so it belongs to no other recording.
        open: Opens the files; raises FaultError or DataError.
        whole: True where no trial may be left out: a submission names trials by their places.
    """

    session: str
    paths: Sequence[Path]
    open: Callable[[], AbstractContextManager[Contents]]
    whole: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Recordings that belong together, and how their numbers and texts are read.

    Attributes:
        reader: Name of the format, as in `cortext import`.
        recordings: By session, in the order of their dates.
        inventory: Tokens of the labels.
        language: Language of the sentences.
        lexicon: Pronunciations for an inventory of one's own.
        normalise: How features are z-scored unless the user says otherwise, one of
            `importing.NORMALISATIONS`.
        published: The release's own scaling in words, for `normalise="published"`.
        settings: Options that change the output; an import continues only with the same ones.
    """

    reader: str
    recordings: Sequence[Recording]
    inventory: Inventory = RELEASE
    language: Language = EN
    lexicon: Lexicon | None = None
    normalise: str = "block"
    published: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def divided_note(what: str, found_ms: float, bin_ms: float) -> str:
    """Return the note on bins that are longer than those that are written."""
    return (
        f"{what} of {found_ms:g} ms are divided into bins of {bin_ms:g} ms, which say nothing new"
    )


def block_number(number: float, field: str, fix: str) -> int:
    """Return a number of a file as that of a block; raise FaultError for one that is none."""
    if not 0 <= number < _MOST_BLOCKS or number != int(number):
        raise FaultError(field, f"{number:g} found, the number of a block expected", fix)
    return int(number)


def check_number(field: str, found: int, expected: int, what: str, other: str, fix: str) -> None:
    """Raise FaultError unless a field has as many entries as another one.

    Args:
        field: The field, which the message names.
        found: Its number of entries.
        expected: Number of entries of the other field.
        what: What the entries are, such as `trials`.
        other: The other field.
        fix: What to do.
    """
    if found != expected:
        raise FaultError(field, f"{found} {what} found, {expected} expected as in {other}", fix)


def numbers_in_blocks(blocks: Iterable[int]) -> list[int]:
    """Return the number of each trial in its block, from 0, given the trials' blocks."""
    seen: Counter[int] = Counter()
    numbers = []
    for block in blocks:
        numbers.append(seen[block])
        seen[block] += 1
    return numbers


def in_blocks(trials: Iterable[tuple[int, str, RecordedTrial]]) -> list[Block]:
    """Return each run of trials of one block and split as a `Block`, in the order given.

    Args:
        trials: Number of the block, split, and trial.
    """
    return [
        Block(number, split, [trial for *_, trial in run])
        for (number, split), run in groupby(trials, key=lambda each: each[:2])
    ]


def side_by_side(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return numbers [T, C] of any types beside each other, float32."""
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes Inf, which is named
        return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe")


def left_out_notes(reasons: Mapping[str, int]) -> list[str]:
    """Return notes such as `left out: 2 trials without a sentence`, by reason."""
    return [
        f"left out: {n} {'trial' if n == 1 else 'trials'} {why}" for why, n in reasons.items() if n
    ]
