"""Trials of mapped files as a recording: blocks, splits, sentences, and features joined in time.

The NWB and the MATLAB reader open a file as `MappedFile`; this module does what both share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cortext.data.checks import FaultError
from cortext_data.readers.mapped.mapping import AnyMapping, Sentences, import_settings
from cortext_data.readers.mapped.parts import EDIT, FeaturePart, joined
from cortext_data.readers.recording import (
    Block,
    Contents,
    FeatureGroup,
    RecordedTrial,
    Recording,
    Source,
    divided_note,
    left_out_notes,
)
from cortext_data.readers.source_files import named_faults

ColumnValues = np.ndarray | list[Any]
"""A value for each trial: numbers [n], or texts."""


class MappedFile(Protocol):
    """An opened file of trials, as its mapping says.

    Attributes:
        n_trials: Number of trials that the file lists.
        widths: Number of columns of each feature of the mapping.
        n_overlaps: Trials that begin before the one before them has ended.
    """

    n_trials: int
    widths: Sequence[int]
    n_overlaps: int

    def column(self, name: str) -> ColumnValues:
        """Return the value of each trial in a column or variable; texts or numbers."""

    def blocks(self, name: str) -> ColumnValues:
        """Return the block of each trial, or a FaultError that says why it has none."""

    def cues(self, name: str) -> Sequence[str]:
        """Return the cues of a variable."""

    def parts(self, trial: int) -> list[FeaturePart]:
        """Return the features of a trial. Raises FaultError for damage."""

    def absent(self, trial: int) -> str | None:
        """Return why a trial was never recorded, such as `whose epoch is NaN`; None for others."""

    def notes(self) -> Sequence[str]:
        """Return what the user should know of the file."""


def count_overlaps(start_N: np.ndarray, stop_N: np.ndarray) -> int:
    """Return how many trials begin before the one before them has ended.

    Args:
        start_N: Start of each trial, in any unit and order.
        stop_N: Its end, which the next trial may begin at.
    """
    order = np.argsort(start_N, kind="stable")
    return int((start_N[order][1:] < stop_N[order][:-1]).sum())


OpenFile = Callable[[Path], AbstractContextManager[MappedFile]]


@dataclass(frozen=True, slots=True)
class _MappedTrial:
    """A trial of one file, as the mapping reads it.

    Attributes:
        number: Counts all trials of the block.
        fault: Why its block or sentence is unknown; reading the trial says so.
    """

    path: Path
    index: int
    block: int
    number: int
    split: str
    sentence: str | None
    n_bins: int
    fault: FaultError | None = None


class _OneFile(AbstractContextManager["_OneFile"]):
    """Keeps one file of a session open: MATLAB v5 files are in memory as a whole."""

    def __init__(self, open_file: OpenFile) -> None:
        self._open = open_file
        self._stack = ExitStack()
        self._path: Path | None = None
        self._file: MappedFile | None = None

    def get(self, path: Path) -> MappedFile:
        """Return an opened file; another one is closed."""
        if self._file is None or path != self._path:
            self._file = None
            self._stack.close()
            self._file = self._stack.enter_context(self._open(path))
            self._path = path
        return self._file

    def __exit__(self, *raised: Any) -> bool | None:
        """Close the file, which turns what its library raised into a FaultError."""
        self._file = None
        return self._stack.__exit__(*raised)


def mapped_source(
    reader: str,
    sessions: Mapping[str, Sequence[Path]],
    open_file: OpenFile,
    mapping: AnyMapping,
    mapping_path: Path,
    damaged: Sequence[Recording] = (),
) -> Source:
    """Return the recordings of mapped files.

    Args:
        reader: `nwb` or `mat`.
        sessions: Files of each session, in the order in which they were recorded.
        open_file: Opens one of them.
        mapping: The mapping.
        mapping_path: Its file, beside which inventory, language and lexicon may lie.
        damaged: Recordings of files that state no session; each says why when it is opened.

    Raises:
        ConfigError: For an inventory, a language or a lexicon that cannot be used.
    """
    folder = Path(mapping_path).parent
    inventory, language, lexicon = mapping.texts(folder)
    recordings = [
        Recording(name, sessions[name], partial(_contents, sessions[name], open_file, mapping))
        for name in sorted(sessions, key=lambda name: (name[-10:], name))  # they end in their date
    ]
    return Source(
        reader,
        [*recordings, *damaged],
        inventory,
        language,
        lexicon,
        settings=import_settings(mapping, folder),
    )


@contextmanager
def _contents(
    paths: Sequence[Path], open_file: OpenFile, mapping: AnyMapping
) -> Iterator[Contents]:
    with _OneFile(open_file) as files:
        rows: list[_MappedTrial] = []
        left_out: Counter[str] = Counter()
        longer: dict[str, None] = {}
        n_overlaps = 0
        widths: Sequence[int] | None = None
        for number, path in enumerate(paths):
            with named_faults(_place(path, paths)):
                file = files.get(path)
                longer |= dict.fromkeys(_longer_bins(file, mapping.bin_ms))
                rows += _rows(file, path, number, mapping, left_out)
                place = _place(path, paths)
                longer |= dict.fromkeys(": ".join(filter(None, (place, n))) for n in file.notes())
                if widths is not None and list(widths) != list(file.widths):
                    finding = (
                        f"{list(file.widths)} columns found, {list(widths)} in {paths[0].name}"
                    )
                    raise FaultError("features", finding, "name columns that all files have")
                widths = file.widths
                n_overlaps += file.n_overlaps
        _check_files_of_blocks(rows)
        notes = list(longer)
        if n_overlaps:
            notes.append(f"trials that begin before the one before them ends: {n_overlaps}")
        notes += left_out_notes(left_out)
        rows = _with_last_blocks(rows, mapping, notes)
        yield Contents(
            blocks=_blocks(rows, files, paths, mapping),
            bin_ms=mapping.bin_ms,
            counts=_counts(mapping, widths or ()),
            notes=notes,
            groups=_groups(mapping, widths or ()),
        )


def _longer_bins(file: MappedFile, bin_ms: float) -> list[str]:
    """Return a note for each feature whose bins are longer than those of the mapping."""
    for trial in range(file.n_trials):
        with suppress(FaultError):  # named where the trial is read
            parts = [part for part in file.parts(trial) if part.bin_ms > bin_ms]
            return [divided_note(f"bins of {part.name}", part.bin_ms, bin_ms) for part in parts]
    return []


def _place(path: Path, paths: Sequence[Path]) -> str:
    """Return the name of any file but the first one, which messages name anyway."""
    return "" if path == paths[0] else path.name


def _blocks_of(
    file: MappedFile, number: int, mapping: AnyMapping
) -> tuple[list[int], dict[int, FaultError]]:
    """Return the block of each trial, and the fault of each trial that names none.

    Such a trial counts to the block before it, or to the first one.
    """
    if mapping.block is None:
        return [number] * file.n_trials, {}
    name = mapping.block.name
    known: dict[int, int] = {}
    faults: dict[int, FaultError] = {}
    for index, value in enumerate(file.blocks(name)):
        try:
            if isinstance(value, FaultError):
                raise value
            known[index] = _whole_number(value, name)
        except FaultError as fault:
            faults[index] = fault
    if not known:
        raise faults[0]
    blocks = [next(iter(known.values()))]
    for index in range(file.n_trials):
        blocks.append(known.get(index, blocks[-1]))
    return blocks[1:], faults


def _rows(
    file: MappedFile, path: Path, number: int, mapping: AnyMapping, left_out: Counter[str]
) -> Iterator[_MappedTrial]:
    """Yield the trials of a file that are read; count the others by the reason."""
    blocks, faults = _blocks_of(file, number, mapping)
    sentences, unknown = _sentences(file, mapping.sentence)
    faults = unknown | faults
    splits: ColumnValues | None = None
    if mapping.split is not None and mapping.split.name is not None:
        splits = file.column(mapping.split.name)
    n_before: Counter[int] = Counter()
    for index in range(file.n_trials):
        block = blocks[index]
        trial_number = n_before[block]
        n_before[block] += 1
        if (why := file.absent(index)) is not None:
            left_out[why] += 1
            continue
        split: str | None = "train"
        if mapping.split is not None and splits is not None:
            split = mapping.split.of(splits[index])
            if split is None:
                raise FaultError(
                    mapping.split.name,
                    f"{_shown(splits[index])} found, which split does not name",
                    "name it under train, val, test or leave_out",
                )
            if split == "leave_out":
                left_out[f"of split {_shown(splits[index])}"] += 1
                continue
        if index in faults:
            yield _MappedTrial(path, index, block, trial_number, str(split), None, 0, faults[index])
            continue
        sentence = None if sentences is None else sentences[index].strip()
        if sentence and mapping.sentence is not None:
            if sentence in map(str.strip, mapping.sentence.leave_out):
                left_out[f"of {sentence!r:.60}"] += 1
                continue
            sentence = mapping.sentence.prompt(sentence)
        if not sentence and split != "test":
            if sentences is None:
                raise FaultError("sentence", f"trials for {split} found", "name the sentences")
            left_out["without a sentence"] += 1
            continue
        n_bins = _n_bins(file, index, mapping.bin_ms)
        yield _MappedTrial(path, index, block, trial_number, str(split), sentence or None, n_bins)


def _n_bins(file: MappedFile, trial: int, bin_ms: float) -> int:
    """Return the length of a trial; 0 for a damaged one, which `read` refuses."""
    try:
        return min(part.n_rebinned(bin_ms) for part in file.parts(trial))
    except FaultError:
        return 0


def _sentences(
    file: MappedFile, sentences: Sentences | None
) -> tuple[ColumnValues | None, dict[int, FaultError]]:
    """Return the sentences as the file has them, also those that numbers name.

    And the fault of each trial whose number names none.
    """
    if sentences is None:
        return None, {}
    values = file.column(sentences.name)
    if sentences.cues is None:
        if len(values) and not isinstance(values[0], str):
            raise FaultError(
                sentences.name, "numbers found, texts expected", "name their cues in sentence.cues"
            )
        return values, {}
    given = sentences.cues
    cues = file.cues(given) if isinstance(given, str) else given
    texts: list[Any] = []
    faults: dict[int, FaultError] = {}
    for index, value in enumerate(values):
        try:
            texts.append(_cue(value, cues, sentences))
        except FaultError as fault:
            faults[index] = fault
            texts.append("")
    if len(faults) == len(texts):
        raise faults[0]
    return texts, faults


def _cue(value: Any, cues: Sequence[str], sentences: Sentences) -> str:
    """Return the cue of a number; raise FaultError for one that names none."""
    first = sentences.first_cue
    at = _whole_number(value, sentences.name) - first
    if 0 <= at < len(cues):
        return cues[at]
    finding = f"cue {at + first} found, {first} to {first + len(cues) - 1} expected"
    raise FaultError(sentences.name, finding, "correct sentence.cues or sentence.first_cue")


def _whole_number(value: Any, name: str) -> int:
    """Return a value of a file as a whole number, also where it is a text."""
    try:
        number = int(value)
        if number == float(value) and abs(number) < 1 << 53:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise FaultError(name, f"{_shown(value)} found, a whole number expected", EDIT)


def _shown(value: Any) -> str:
    return f"{value!r:.60}" if isinstance(value, str) else f"{value!s:.60}"


def _check_files_of_blocks(rows: Sequence[_MappedTrial]) -> None:
    """Raise FaultError where two files of a session have blocks of the same number."""
    owner: dict[int, Path] = {}
    for row in rows:
        if owner.setdefault(row.block, row.path) != row.path:
            raise FaultError(
                "block",
                f"block {row.block} is in {owner[row.block].name} and in {row.path.name}",
                "remove a file that is there twice, or remove block from the mapping, which makes"
                " each file a block",
            )


def _with_last_blocks(
    rows: list[_MappedTrial], mapping: AnyMapping, notes: list[str]
) -> list[_MappedTrial]:
    """Return the rows with the last blocks of the session for validation, where that is asked."""
    if mapping.split is None or mapping.split.val_blocks is None:
        return rows
    blocks = list(dict.fromkeys(row.block for row in rows))
    n_val = mapping.split.val_blocks
    if len(blocks) <= n_val:
        count = "is 1 block" if len(blocks) == 1 else f"are {len(blocks)} blocks"
        notes.append(f"no trials for val: val_blocks is {n_val}, and there {count} to train on")
        return rows
    last = set(blocks[-n_val:])
    return [replace(row, split="val" if row.block in last else "train") for row in rows]


def _blocks(
    rows: Sequence[_MappedTrial], files: _OneFile, paths: Sequence[Path], mapping: AnyMapping
) -> list[Block]:
    """Return the trials in the order of the files, which causal z-scores need."""
    return [
        Block(block, split, [_trial(row, files, paths, mapping.bin_ms) for row in run])
        for (block, split), run in groupby(rows, lambda row: (row.block, row.split))
    ]


def _trial(
    row: _MappedTrial, files: _OneFile, paths: Sequence[Path], bin_ms: float
) -> RecordedTrial:
    def read() -> np.ndarray:
        with named_faults(_place(row.path, paths)):
            if row.fault is not None:
                raise row.fault
            return joined(files.get(row.path).parts(row.index), bin_ms)

    return RecordedTrial(row.number, row.n_bins, read, row.sentence)


def _groups(mapping: AnyMapping, widths: Sequence[int]) -> list[FeatureGroup]:
    """Return the columns of each feature of the mapping, of which each has so many."""
    groups = []
    for feature, width in zip(mapping.features, widths, strict=True):
        columns = feature.numbers() or range(width)
        is_divided = (mapping.bin_ms / mapping.bin_ms_of(feature)) % 1 != 0
        groups.append(FeatureGroup(feature.name, columns, feature.is_counts, is_divided))
    return groups


def _counts(mapping: AnyMapping, widths: Sequence[int]) -> list[int]:
    """Return the numbers of the features that are counts."""
    counts: list[int] = []
    first = 0
    for feature, width in zip(mapping.features, widths, strict=True):
        if feature.is_counts:
            counts += range(first, first + width)
        first += width
    return counts
