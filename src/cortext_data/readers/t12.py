"""Recordings of participant T12 as Brain-to-Text '24 has them (Willett et al. 2023).

Dryad doi:10.5061/dryad.x69p8czpq, `competitionData.tar.gz`; its `competitionData_readme.txt` has
the layout: `competitionData/{train,test,competitionHoldOut}/t12.YYYY.MM.DD.mat`, MATLAB v5. Each
sentence has a cell of [T, 256], in bins of 20 ms, in `tx1` to `tx4` (threshold crossings at -3.5,
-4.5, -5.5 and -6.5 times the RMS voltage) and in `spikePow` (spike band power in microvolt^2), a
row of `sentenceText` and a number in `blockIdx`. Columns 1 to 128 are area 6v, columns 129 to 256
area 44. The readme advises `tx1` and `spikePow` of area 6v, z-scored by block.

Shapes: T bins, C features.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np

from cortext.arguments import as_path, check_text
from cortext.data.checks import FaultError, dead_link
from cortext.data.trial import Session
from cortext.errors import ConfigError, DataError, nearest
from cortext_data.readers.files.matlab import MatFile, Numbers, open_mat
from cortext_data.readers.recording import (
    Block,
    Contents,
    RecordedTrial,
    Recording,
    Source,
    block_number,
)
from cortext_data.readers.source_files import files_in

FOLDERS = {"train": "train", "test": "val", "competitionHoldOut": "test"}
"""Folder of the release -> split. The sentences of `competitionHoldOut` are withheld."""
HOLDOUT = "competitionHoldOut"
THRESHOLDS = ("tx1", "tx2", "tx3", "tx4")
POWER = "spikePow"
BLOCKS = "blockIdx"
SENTENCES = "sentenceText"
BIN_MS = 20
_DEEPEST = 4
"""Levels of folders below the given one that are searched."""
_MOST_COLUMNS = 16_384
_MOST_TRIALS = 100_000
_UNPACK = "give the folder that competitionData.tar.gz was unpacked in"
_AGAIN = "take the file of the release"


@dataclass(frozen=True, slots=True)
class SessionFile:
    """One file of the release.

    Attributes:
        session: Its name without `.mat`, such as `t12.2022.04.28`.
        folder: One of `FOLDERS`.
        path: Where it lies.
    """

    session: str
    folder: str
    path: Path


def t12(source: str | Path, *, columns: str = "1-128", threshold: str = "tx1") -> Source:
    """Return the recordings of Brain-to-Text '24.

    Features are the threshold crossings of the chosen columns, then their spike band power.

    Args:
        source: Folder that the release was unpacked in: `competitionData`, or one above it.
        columns: Columns of the arrays, counted from 1, such as `1-128` or `1-64,97-128`.
        threshold: `tx1`, the lowest one, to `tx4`.

    Raises:
        ConfigError: For columns or a threshold that there are not.
        DataError: For a folder without the release, or with files of others in it.
    """
    source = as_path(source, "source")
    check_text(columns, "columns")
    check_text(threshold, "threshold")
    if threshold not in THRESHOLDS:
        raise ConfigError(f"unknown threshold {threshold!r}; {nearest(threshold, THRESHOLDS)}")
    chosen = parse_columns(columns)
    files = session_files(find_competition_data(source))
    recordings = []
    for number, file in enumerate(files):
        others = [other for other in files[:number] if other.session == file.session]
        opens = partial(_open, file, others, chosen, threshold)
        recordings.append(Recording(file.session, (file.path,), opens, file.folder == HOLDOUT))
    settings = {"columns": columns.replace(" ", ""), "threshold": threshold}
    return Source("t12", recordings, settings=settings)


def parse_columns(text: str) -> list[int]:
    """Return columns such as `1-64, 97` as numbers from 0; raise ConfigError for anything else."""
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        ends = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, 0)
        if not 1 <= first <= last <= _MOST_COLUMNS:
            raise ConfigError(
                f"columns are {text!r:.60}; ranges such as 1-128 or 1-64,97-128 needed, counted"
                " from 1"
            )
        found += range(first - 1, last)
    if len(set(found)) != len(found):
        raise ConfigError(f"columns are {text!r:.60}; each can be chosen once")
    return found


def find_competition_data(source: Path) -> Path:
    """Return the folder of `train`, `test` and `competitionHoldOut`, at or below `source`.

    Raises:
        DataError: Where there is none, or more than one.
    """
    if source.is_file():
        raise DataError("is a file", where=source, fix=f"unpack it, then {_UNPACK}")
    if not source.is_dir():
        raise DataError("no such directory", where=source, fix=_UNPACK)
    found = []
    top = len(source.parts)
    for name, folders, _ in os.walk(source):
        folder = Path(name)
        if {"train", "test"} <= set(folders) and files_in(folder / "train", ".mat", deep=False):
            found.append(folder)
            folders.clear()
        elif len(folder.parts) - top >= _DEEPEST:
            folders.clear()
        folders[:] = sorted(inner for inner in folders if not inner.startswith("."))
    if not found:
        raise DataError(
            "holds no folders train and test with files such as t12.2022.04.28.mat",
            where=source,
            fix=_UNPACK,
        )
    if len(found) > 1:
        names = " and ".join(os.path.relpath(folder, source) for folder in found[:3])
        raise DataError(f"holds the recordings twice, in {names}", where=source, fix="give one")
    return found[0]


def session_files(root: Path) -> list[SessionFile]:
    """Return the files by session, and those of a session in the order of `FOLDERS`.

    Raises:
        DataError: For a file that is not named as the sessions of T12 are.
    """
    files = []
    for folder in FOLDERS:
        if (link := dead_link(root / folder)) is not None:
            what = f"is a link to {link.readlink()}, which is not there"
            raise DataError(what, where=link, fix="mount the disk that has it, or remove the link")
        for path in files_in(root / folder, ".mat", deep=False):
            name = path.stem
            if not re.fullmatch(r"t12(\.\d+){3}", name) or Session(name, {}).date is None:
                raise DataError(
                    "is no session of T12: a name such as t12.2022.04.28.mat expected",
                    where=path,
                    fix="take it away, or import it in its own format",
                )
            files.append(SessionFile(name, folder, path))
    return sorted(files, key=lambda file: file.session)


@contextmanager
def _open(
    file: SessionFile, others: Sequence[SessionFile], columns: Sequence[int], threshold: str
) -> Iterator[Contents]:
    """Open a file; `others` are those of the same session that come before it."""
    withheld = file.folder == HOLDOUT
    names = [threshold, POWER, BLOCKS, *([] if withheld else [SENTENCES])]
    with open_mat(file.path, names) as mat:
        trials = _trials(mat, columns, threshold, withheld)
        _check_other_trials(file, others, threshold, trials)
        blocks = [
            Block(number, FOLDERS[file.folder], [trial for _, trial in run])
            for number, run in groupby(trials, key=lambda one: one[0])
        ]
        yield Contents(blocks, BIN_MS, counts=range(len(columns)))


def block_numbers(mat: MatFile) -> list[int]:
    """Return the block of each trial; raise FaultError for anything but block numbers."""
    numbers = mat.vector(BLOCKS)
    if len(numbers) > _MOST_TRIALS:
        raise FaultError(
            BLOCKS, f"{len(numbers)} trials found, at most {_MOST_TRIALS} expected", _AGAIN
        )
    if not len(numbers):
        raise FaultError(BLOCKS, "no trials found, the number of a block expected", _AGAIN)
    return [block_number(number, BLOCKS, _AGAIN) for number in numbers.tolist()]


def _trials(
    mat: MatFile, columns: Sequence[int], threshold: str, withheld: bool
) -> list[tuple[int, RecordedTrial]]:
    """Return the trials in the file's order, each with the number of its block."""
    blocks = block_numbers(mat)
    crossings, power = mat.cells(threshold), mat.cells(POWER)
    sentences = None if withheld else [text.strip() for text in mat.texts(SENTENCES)]
    for name, values in ((threshold, crossings), (POWER, power), (SENTENCES, sentences)):
        if values is not None and len(values) != len(blocks):
            found = f"{len(values)} trials found, {len(blocks)} expected as in {BLOCKS}"
            raise FaultError(name, found, _AGAIN)
    widths = Counter(cell.shape[-1] for cell in (*crossings, *power) if len(cell.shape) == 2)
    width = widths.most_common(1)[0][0] if widths else 0
    if max(columns) >= width:
        found = f"{width} columns found, {max(columns) + 1} asked for"
        raise FaultError(threshold, found, "choose others with --columns")
    trials = []
    numbers: Counter[int] = Counter()
    for i, block in enumerate(blocks):
        said = None if sentences is None else sentences[i]
        pair = _Pair(threshold, crossings[i], power[i], width, columns, said)
        n_bins = crossings[i].shape[0]
        trials.append((block, RecordedTrial(numbers[block], n_bins, pair.read, said)))
        numbers[block] += 1
    return trials


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    """The two arrays of a trial, [T, width] each, and its sentence, of which nothing is checked."""

    threshold: str
    crossings: Numbers
    power: Numbers
    width: int
    columns: Sequence[int]
    sentence: str | None

    def read(self) -> np.ndarray:
        """Return threshold crossings, then power of the chosen columns, float32 [T, C]."""
        if self.sentence == "":
            raise FaultError(SENTENCES, "no sentence found, one expected", _AGAIN)
        n_bins = self.crossings.shape[0]
        for name, cell in ((self.threshold, self.crossings), (POWER, self.power)):
            if cell.shape != (n_bins, self.width):
                expected = f"[{n_bins}, {self.width}] expected"
                if cell is self.crossings:
                    expected = f"[bins, {self.width}] expected as in other trials"
                raise FaultError(name, f"{list(cell.shape)} found, {expected}", _AGAIN)
        x_TC = np.empty((n_bins, 2 * len(self.columns)), np.float32)
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes Inf, which is named
            x_TC[:, : len(self.columns)] = self.crossings.read(columns=self.columns)
            x_TC[:, len(self.columns) :] = self.power.read(columns=self.columns)
        self._check_counts(x_TC[:, : len(self.columns)])
        return x_TC

    def _check_counts(self, x_TC: np.ndarray) -> None:
        """Refuse threshold crossings that were scaled, or are another variable."""
        if self.crossings.dtype.kind != "f":
            return
        odd = x_TC[(x_TC < 0) | (np.floor(x_TC) != x_TC)]
        odd = odd[np.isfinite(odd)]
        if len(odd):
            found = f"{odd[0]:g} found, counts of threshold crossings expected"
            raise FaultError(self.threshold, found, _AGAIN)


def _check_other_trials(
    file: SessionFile,
    others: Sequence[SessionFile],
    threshold: str,
    trials: Sequence[tuple[int, RecordedTrial]],
) -> None:
    """Refuse the trials of another folder: a model would be tested on what it was trained on."""
    blocks = [block for block, _ in trials]
    lengths = [trial.n_bins for _, trial in trials]
    for other in others:
        with suppress(FaultError):  # its own import names the fault
            with open_mat(other.path, [BLOCKS]) as mat:
                if block_numbers(mat) != blocks:
                    continue
            with open_mat(other.path, [threshold]) as mat:
                if [cell.shape[0] for cell in mat.cells(threshold)] != lengths:
                    continue
            raise DataError(
                f"holds the trials of {other.folder}/{other.path.name}", where=file.path, fix=_AGAIN
            )
