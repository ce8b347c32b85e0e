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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np

from cortext.arguments import as_path, check_text
from cortext.data.checks import FaultError, dead_link
from cortext.data.trial import Session
from cortext.errors import ConfigError, DataError, nearest
from cortext.settings import Setting
from cortext_data.readers.files.matlab import MatFile, Numbers, open_mat
from cortext_data.readers.recording import (
    Contents,
    RecordedTrial,
    Recording,
    Source,
    block_number,
    check_number,
    in_blocks,
    numbers_in_blocks,
    side_by_side,
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


def t12(
    source: Annotated[
        str | Path,
        Setting(help="Directory that the archive was unpacked in.", argument=True, kind=Path),
    ],
    *,
    columns: Annotated[
        str,
        Setting(
            help="Columns of the arrays: 1-128 is area 6v, 129-256 area 44; also 1-64,97-128.",
            metavar="RANGES",
        ),
    ] = "1-128",
    threshold: Annotated[
        str,
        Setting(help="Threshold crossings: tx1 (-3.5 times the RMS voltage) to tx4 (-6.5)."),
    ] = "tx1",
) -> Source:
    """Read the recordings of Brain-to-Text '24 (participant T12, Willett 2023).

    SOURCE is competitionData, or a folder that it lies in. Its folders train, test and
    competitionHoldOut become the splits train, val and test. The sentences of competitionHoldOut
    are not read.

    Example: cortext import t12 competitionData --out data/t12

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
    recordings = [
        Recording(
            file.session,
            (file.path,),
            open=partial(_open, file, files, chosen, threshold),
            whole=file.folder == HOLDOUT,  # a submission has each of its trials
        )
        for file in files
    ]
    settings = {"columns": columns.replace(" ", ""), "threshold": threshold}
    return Source("t12", recordings, settings=settings)


@contextmanager
def _open(
    file: SessionFile, files: Sequence[SessionFile], columns: Sequence[int], threshold: str
) -> Iterator[Contents]:
    """Open a file of the release. The features of a trial are read when they are asked for."""
    is_withheld = file.folder == HOLDOUT
    with open_mat(file.path, [threshold, POWER, BLOCKS] + [SENTENCES] * (not is_withheld)) as mat:
        blocks = block_numbers(mat)
        crossings, power = mat.cells(threshold), mat.cells(POWER)
        sentences: Sequence[str | None] = [None] * len(blocks)
        if not is_withheld:
            sentences = [text.strip() for text in mat.texts(SENTENCES)]
        for name, values in ((threshold, crossings), (POWER, power), (SENTENCES, sentences)):
            check_number(name, len(values), len(blocks), "trials", BLOCKS, _AGAIN)
        width = _width([*crossings, *power])
        if max(columns) >= width:
            found = f"{width} columns found, {max(columns) + 1} asked for"
            raise FaultError(threshold, found, "choose others with --columns")
        _check_other_trials(file, files, threshold, blocks, [x.shape[0] for x in crossings])
        trials = []
        for i, number in enumerate(numbers_in_blocks(blocks)):
            arrays = {threshold: crossings[i], POWER: power[i]}
            read = partial(_features, arrays, width, columns, sentences[i])
            trial = RecordedTrial(number, crossings[i].shape[0], read, sentences[i])
            trials.append((blocks[i], FOLDERS[file.folder], trial))
        yield Contents(in_blocks(trials), BIN_MS, counts=range(len(columns)))


def _features(
    arrays: Mapping[str, Numbers], width: int, columns: Sequence[int], sentence: str | None
) -> np.ndarray:
    """Return threshold crossings, then power of the chosen columns of a trial, float32 [T, C].

    Nothing of the two arrays, which should be [T, width], or of the sentence has been checked.
    """
    if sentence == "":
        raise FaultError(SENTENCES, "no sentence found, one expected", _AGAIN)
    crossings, _ = arrays.values()
    for name, array in arrays.items():
        if array.shape != (crossings.shape[0], width):
            expected = f"[{crossings.shape[0]}, {width}] expected"
            if array is crossings:
                expected = f"[bins, {width}] expected as in other trials"
            raise FaultError(name, f"{list(array.shape)} found, {expected}", _AGAIN)
    x_TC = side_by_side([array.read(columns=columns) for array in arrays.values()])
    if crossings.dtype.kind == "f":  # saved as counts, unless they were scaled
        counts_TC = x_TC[:, : len(columns)]
        odd = counts_TC[(counts_TC < 0) | (np.floor(counts_TC) != counts_TC)]
        odd = odd[np.isfinite(odd)]
        if len(odd):
            found = f"{odd[0]:g} found, counts of threshold crossings expected"
            raise FaultError(next(iter(arrays)), found, _AGAIN)
    return x_TC


def _width(arrays: Sequence[Numbers]) -> int:
    """Return the number of columns that most arrays have."""
    widths = Counter(array.shape[-1] for array in arrays if len(array.shape) == 2)
    return widths.most_common(1)[0][0] if widths else 0


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


def _check_other_trials(
    file: SessionFile,
    files: Sequence[SessionFile],
    threshold: str,
    blocks: Sequence[int],
    lengths: Sequence[int],
) -> None:
    """Refuse the trials of another folder: a model would be tested on what it was trained on."""
    same_day = [other for other in files if other.session == file.session]
    for other in same_day[: same_day.index(file)]:
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
