"""A first mapping of any lab's file, for a person to edit.

The guesses are few: wide series are features, a column of texts is the sentence, a column with
`block` in its name is the block. A mapping of a simple file works as it is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cortext.errors import DataError, shown
from cortext.files import disk_error
from cortext_data.readers.mapped.mapping import FORMAT, FORMAT_VERSION

FEWEST_COLUMNS = 8
"""Columns from which on an array is taken for features of electrodes."""
LONGEST_MS = 50
"""Longest bin that is taken for one of features."""
SAMPLE = 2000
"""Bins that are read to tell counts from power."""
SENTENCE = re.compile("sentence|prompt|cue|transcript|utterance|phrase|text|label|word", re.I)
"""Part of the name of a column with sentences."""
_NOTHING = re.compile(r"(do[ _]?)?nothing|rest", re.I)
_FEW_LINES = 1000


@dataclass(frozen=True, slots=True)
class Item:
    """One part of a file.

    Attributes:
        name: Its name, as a mapping uses it.
        kind: What it is, such as `series`.
        shape: Its size.
        about: Rate, unit, or some of its values.
    """

    name: str
    kind: str
    shape: str
    about: str


@dataclass(frozen=True, slots=True)
class TrialColumn:
    """A value for each trial: texts or numbers [n]."""

    name: str
    values: np.ndarray | list[str]

    @property
    def is_text(self) -> bool:
        """True for texts."""
        return isinstance(self.values, list)


@dataclass(frozen=True, slots=True)
class Cues:
    """A column of numbers, and the variable with the cues that they count."""

    column: TrialColumn
    name: str
    texts: list[str]


@dataclass
class Guess:
    """Guessed contents of a file.

    Attributes:
        items: All parts of the file.
        features: Lines of the mapping's features.
        bin_ms: Lengths of the features' bins.
        columns: The columns of the trials.
        cues: Sentences by number, where no column has texts.
        bin_blocks: Name of a variable with the block of each bin, and the number of blocks.
    """

    items: list[Item] = field(default_factory=list)
    features: list[str] = field(default_factory=list)
    bin_ms: list[float] = field(default_factory=list)
    columns: list[TrialColumn] = field(default_factory=list)
    cues: Cues | None = None
    bin_blocks: tuple[str, int] | None = None


def write_first_mapping(path: Path, text: str) -> None:
    """Write a first mapping. Raises DataError where there is a file of that name."""
    try:
        with path.open("xb") as file:
            try:
                file.write(text.encode())
                file.flush()
            except OSError:
                path.unlink()  # a part of a mapping would be taken for one that was edited
                raise
    except FileExistsError:
        fix = "give the first mapping another name, or import with this one: leave out --inspect"
        raise DataError("is there already, and may be edited", where=path, fix=fix) from None
    except OSError as error:
        raise disk_error(error, path) from None


def first_lines(path: Path, reader: str) -> Iterator[str]:
    """Yield the lines that begin a mapping."""
    yield f"# A first mapping of {shown(path.name, 100)}. Check it, edit it, and import with it:"
    yield f"#   cortext import {reader} SOURCE --mapping THIS_FILE --out DIR"
    yield f"format: {FORMAT}"
    yield f"format_version: {FORMAT_VERSION}"
    yield f"reader: {reader}"


def common_keys(guess: Guess, states_bins: bool = True) -> Iterator[str]:
    """Yield bins, language, tokens and features.

    Args:
        guess: The features.
        states_bins: Whether the file says how long its bins are.
    """
    longest = max(guess.bin_ms, default=20)
    unsure = "" if states_bins else "; the file does not state it: check it"
    yield f"bin_ms: {longest if longest >= 5 else 20:g}  # length of the bins to write{unsure}"
    yield "language: en  # or es, de, fr, nl, zh, or a file"
    yield "inventory: arpabet  # or characters, handwriting, or a file"
    yield "# lexicon: lexicon.txt  # pronunciations, for an inventory of your own"
    yield "features:  # counts are summed where bins are joined, the mean is taken of power"
    yield "  # `columns: 0-127` in a feature takes some of its columns, counted from 0"
    if not guess.features:
        yield f"  # Nothing found with at least {FEWEST_COLUMNS} columns."
        yield from feature_keys("FEATURES", "counts", "a series or variable")
    yield from guess.features


def feature_keys(name: str, kind: str, about: str, bin_ms: float | None = None) -> list[str]:
    """Return the lines of one feature; `bin_ms` where the file does not state it."""
    lines = [
        f"  - name: {quoted(name)}  # {shown(about, 100)}",
        f"    kind: {kind}",
    ]
    return lines if bin_ms is None else [*lines, f"    bin_ms: {bin_ms:g}"]


def label_keys(guess: Guess) -> Iterator[str]:
    """Yield the sections of sentence, block and split."""
    split = next((each for each in guess.columns if _is_split(each)), None)
    texts = [each for each in guess.columns if each.is_text and each is not split]
    # Conditions and phases repeat; sentences differ more, and are longer.
    texts.sort(
        key=lambda each: (
            not SENTENCE.search(each.name),
            -len(set(each.values)),
            -_mean_length(each),
        )
    )
    yield "sentence:"
    if texts:
        yield from _sentence(texts[0].name, list(texts[0].values))
    elif guess.cues is not None:
        cues = guess.cues
        yield from _sentence(cues.column.name, cues.texts)
        yield f"  cues: {quoted(cues.name)}  # the texts that the numbers count"
        yield f"  first_cue: {min(int(np.nanmin(cues.column.values)), 1)}"
    else:
        yield "  name: SENTENCES  # not found: the column or variable with a text for each trial"
    n_blocks = 1
    block = next((each for each in guess.columns if _is_block(each)), None)
    if block is not None:
        n_blocks = len(np.unique(block.values))
        yield from ("block:", f"  name: {quoted(block.name)}  # {examples(block.values)}")
    elif guess.bin_blocks is not None:
        name, n_blocks = guess.bin_blocks
        yield from ("block:", f"  name: {quoted(name)}", "  per: bin")
    else:
        yield "# block: {name: BLOCKS}  # without it each file is a block"
    yield from _split(split, n_blocks)


def _sentence(name: str, texts: Sequence[str]) -> Iterator[str]:
    yield f"  name: {quoted(name)}  # {examples(texts)}"
    few = [each.strip() for each in texts[:_FEW_LINES]]
    if any(">" in each for each in few) and not any(" " in each for each in few):
        yield '  replace: {">": " "}'
    left_out = [each for each in dict.fromkeys(few) if _NOTHING.fullmatch(each)]
    if left_out:
        yield f"  leave_out: [{', '.join(map(quoted, left_out))}]"


def _split(column: TrialColumn | None, n_blocks: int) -> Iterator[str]:
    if column is not None:
        yield from ("split:", f"  name: {quoted(column.name)}")
        values: dict[str, list[str]] = {}
        for value in dict.fromkeys(str(each).strip() for each in column.values):
            values.setdefault(_split_of(value), []).append(value)
        for name, each in values.items():
            yield f"  {name}: [{', '.join(map(quoted, each))}]"
    elif n_blocks > 1:
        yield from ("split:", "  val_blocks: 1  # the last block of each session is for validation")
    else:
        yield "# split: {val_blocks: 1}  # without it all trials are for training"


def _is_block(column: TrialColumn) -> bool:
    values = column.values
    if "block" not in column.name.lower() or isinstance(values, list):
        return False
    return bool(np.all(np.mod(values, 1) == 0))


def _is_split(column: TrialColumn) -> bool:
    values = {str(value).lower() for value in column.values} if column.is_text else set()
    return any("train" in value for value in values) and len(values) <= 8


def _split_of(value: str) -> str:
    """Return the split that a value is named after."""
    for split, parts in (
        ("train", ("train",)),
        ("val", ("val", "dev")),
        ("test", ("test", "hold", "held", "eval")),
    ):
        if any(part in value.lower() for part in parts):
            return split
    return "leave_out"


def _mean_length(column: TrialColumn) -> float:
    return sum(len(str(each)) for each in column.values) / max(1, len(column.values))


def kind_of(x: np.ndarray) -> str:
    """Return `counts` for whole numbers that are not negative, else `power`."""
    return "counts" if bool(np.all((x >= 0) & (np.mod(x, 1) == 0))) else "power"


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as people write it."""
    return f"[{', '.join(map(str, shape))}]" if shape else ""


def examples(values: np.ndarray | Sequence[str]) -> str:
    """Return a few different values in one line."""
    if isinstance(values, np.ndarray):
        texts = [f"{value:g}" for value in dict.fromkeys(values[:_FEW_LINES].tolist())]
    else:
        texts = [repr(shown(value, 40)) for value in dict.fromkeys(values[:_FEW_LINES])]
    return ", ".join([*texts[:3], *(["..."] if len(texts) > 3 else [])])


def quoted(text: str) -> str:
    """Return a text as YAML reads it back."""
    words = ("yes", "no", "on", "off", "true", "false", "null", "y", "n")
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_/.]*", text) and text.lower() not in words:
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())
