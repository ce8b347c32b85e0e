"""Contents of a MATLAB file, and a first mapping of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path, PurePath

import numpy as np

from cortext.data.checks import FaultError
from cortext.files import is_plain_name
from cortext_data.readers.files.matlab import MatFile, open_mat
from cortext_data.readers.mapped.first_mapping import (
    FEWEST_COLUMNS,
    LONGEST_MS,
    SAMPLE,
    SENTENCE,
    Cues,
    Guess,
    Item,
    TrialColumn,
    common_keys,
    examples,
    feature_keys,
    first_lines,
    kind_of,
    label_keys,
    quoted,
    shape_text,
)
from cortext_data.readers.mapped.mapping import SessionNames
from cortext_data.readers.source_files import file_faults

_LENGTH = re.compile("len|bins|steps|dur|sample", re.I)
_BIN = re.compile("bin.?(size|width|ms|len|dur)", re.I)
_FEW = 3  # cells whose equal rows say something
_MOST = 0.5  # part of the trials that fits; others were skipped (NaN), or need a correction
_FEWEST_BINS = 10  # times as many bins as columns, in continuous recordings
_EPOCHS = ("go", "speech", "trial", "epoch", "")
_FORMS = {
    "YYYY.MM.DD": "%Y.%m.%d",
    "YYYY-MM-DD": "%Y-%m-%d",
    "YYYY_MM_DD": "%Y_%m_%d",
    "YYYYMMDD": "%Y%m%d",
    "YYMMDD": "%y%m%d",
}


@dataclass
class _Variable:
    """A MATLAB variable.

    Attributes:
        item: Its line of the printed table.
        kind: `numbers`, `cells`, `texts` or `other`.
        shape: As MATLAB shows it.
        counts: Kind of the feature that it would be.
        cells: Shapes of its cells that are not empty.
        n_cells: Number of its cells.
        values: Texts, or the numbers of a row or column.
        pairs: The numbers of a variable [n, 2].
    """

    item: Item
    kind: str = "other"
    shape: tuple[int, ...] = ()
    counts: str = "power"
    cells: list[tuple[int, ...]] = field(default_factory=list)
    n_cells: int = 0
    values: np.ndarray | list[str] | None = None
    pairs: np.ndarray | None = None


def inspect_mat(path: Path) -> tuple[list[Item], str]:
    """Return the variables of a MATLAB file, and the text of a first mapping.

    Raises DataError naming the file.
    """
    with file_faults(path), open_mat(path, ()) as file:
        names = file.names
    variables: dict[str, _Variable] = {}
    for name in names:
        # One at a time: variables of version 5 stay in memory while their file is open.
        with file_faults(path), open_mat(path, ()) as file:
            variables[name] = _variable(file, name)
    guess = Guess([each.item for each in variables.values()])
    trials, n_trials = _layout(guess, variables)
    guess.columns = [
        TrialColumn(name, each.values)
        for name, each in variables.items()
        if each.values is not None and len(each.values) == n_trials
    ]
    guess.cues = _cues(guess.columns, variables)
    stated = _stated_bin_ms(variables)
    guess.bin_ms = [stated or 20]
    participant, session = _names_of(path)
    lines = [
        *first_lines(path, "mat"),
        f"participant: {quoted(participant)}  # in the names of sessions",
        *session,
        *common_keys(guess, stated is not None),
        *trials,
        *label_keys(guess),
    ]
    return guess.items, "\n".join(lines) + "\n"


def _variable(file: MatFile, name: str) -> _Variable:
    """Return a variable; its item has the fault of one that cannot be read."""
    try:
        kind, shape = file.kind(name), file.shape(name)
    except FaultError as fault:
        return _Variable(Item(name, "damaged", "", fault.message))
    variable = _Variable(Item(name, kind, shape_text(shape), ""), kind, shape)
    try:
        about = ""
        if kind == "texts":
            variable.values = file.texts(name)
            about = examples(variable.values)
        elif kind == "cells":
            about = _read_cells(file, name, variable)
        elif kind == "other":
            about = file.refusal(name)
        elif kind == "numbers" and len(shape) >= 2:
            about = _read_numbers(file, name, variable)
    except FaultError as fault:
        variable = _Variable(variable.item)
        about = fault.message
    variable.item = Item(name, kind, shape_text(shape), about)
    return variable


def _read_cells(file: MatFile, name: str, variable: _Variable) -> str:
    cells = file.cells(name, checked=False)
    variable.n_cells = len(cells)
    readable = [cell for cell in cells if cell.is_readable]
    if cells and not readable:
        cells[0].check()
    full = [cell for cell in readable if 0 not in cell.shape]
    variable.cells = [cell.shape for cell in full]
    if full and len(full[0].shape) == 2:
        variable.counts = kind_of(full[0].read(0, min(full[0].shape[0], SAMPLE)))
    about = ", ".join(f"{cell.dtype} {shape_text(cell.shape)}" for cell in readable[:3])
    about += ", ..." if len(readable) > 3 else ""
    if len(full) < len(readable):
        about += f"; {len(readable) - len(full)} of {len(cells)} are empty"
    if len(readable) < len(cells):
        about += f"; {len(cells) - len(readable)} of {len(cells)} are no numbers"
    rows = {shape[0] for shape in variable.cells if len(shape) == 2}
    if len(full) >= _FEW and len(rows) == 1:
        about += f"; all have {rows.pop()} rows: transpose them if these are channels"
    return about


def _read_numbers(file: MatFile, name: str, variable: _Variable) -> str:
    numbers = file.numbers(name, len(variable.shape))
    if sum(size != 1 for size in variable.shape) <= 1:
        variable.values = file.vector(name)
        return f"{numbers.dtype}: {examples(variable.values)}"
    if len(variable.shape) == 2 and variable.shape[1] == 2:
        variable.pairs = numbers.read()
        n_absent = int(np.isnan(variable.pairs.astype(np.float64)).any(axis=1).sum())
        if n_absent:
            return f"{numbers.dtype}; {n_absent} of {len(variable.pairs)} rows have NaN"
    elif len(variable.shape) in (2, 3):
        n_rows = min(variable.shape[0], SAMPLE if len(variable.shape) == 2 else 1)
        variable.counts = kind_of(numbers.read(0, n_rows))
        if len(variable.shape) == 2 and variable.shape[1] > _FEWEST_BINS * variable.shape[0]:
            return f"{numbers.dtype}; transpose it if the {variable.shape[1]} columns are bins"
    else:
        return f"{numbers.dtype}; {len(variable.shape)} dimensions, of which at most 3 are read"
    return str(numbers.dtype)


def _layout(guess: Guess, variables: dict[str, _Variable]) -> tuple[list[str], int]:
    """Guess the features; return the section of the trials, and the number of trials."""
    cells = {name: each for name, each in variables.items() if _has_trials(each)}
    if cells:
        n_trials = max(each.n_cells for each in cells.values())
        for name, each in cells.items():
            if each.n_cells == n_trials:
                about = f"{n_trials} cells with {each.cells[0][1]} columns"
                guess.features += feature_keys(name, each.counts, about)
        return ["trials:", "  layout: cells"], n_trials
    for name, each in variables.items():
        if len(each.shape) == 3 and each.kind == "numbers" and each.shape[2] >= FEWEST_COLUMNS:
            guess.features += feature_keys(name, each.counts, shape_text(each.shape))
            lengths = _lengths(variables, each.shape[0], each.shape[1])
            unsure = "" if lengths else "  # not found: a variable with the bins of each trial"
            named = f"  lengths: {quoted(lengths or 'LENGTHS')}{unsure}"
            return ["trials:", "  layout: cube", named], each.shape[0]
    wide = [
        name
        for name, each in variables.items()
        if len(each.shape) == 2 and each.kind == "numbers" and each.shape[1] >= FEWEST_COLUMNS
    ]
    n_bins = max((variables[name].shape[0] for name in wide), default=0)
    epochs = _epochs(variables, n_bins)
    if epochs is None:
        return ["trials:", "  layout: cells  # or cube, or epochs"], -1
    for name in wide:
        if variables[name].shape[0] == n_bins:
            about = shape_text(variables[name].shape)
            guess.features += feature_keys(name, variables[name].counts, about)
    guess.bin_blocks = _bin_blocks(variables, n_bins)
    lines = ["trials:", "  layout: epochs", f"  epochs: {quoted(epochs)}"]
    lines.append("  stop_bin: included  # whether the last bin of an epoch belongs to the trial")
    return lines, variables[epochs].shape[0]


def _has_trials(variable: _Variable) -> bool:
    """Return whether each cell is [T, C] with the same columns, as many as electrodes have."""
    shapes = variable.cells
    if not shapes or any(len(shape) != 2 or shape[0] < 2 for shape in shapes):
        return False
    return shapes[0][1] >= FEWEST_COLUMNS and len({shape[1] for shape in shapes}) == 1


def _lengths(variables: dict[str, _Variable], n_trials: int, n_bins: int) -> str | None:
    """Return the variable with the length of each trial of a cube."""
    for name, each in variables.items():
        values = each.values
        if not _LENGTH.search(name) or not isinstance(values, np.ndarray):
            continue
        if len(values) == n_trials and ((values >= 1) & (values <= n_bins)).mean() > _MOST:
            return name
    return None


def _epochs(variables: dict[str, _Variable], n_bins: int) -> str | None:
    """Return the variable with the first and last bin of each trial."""
    fitting = []
    for name, each in variables.items():
        if each.pairs is None:
            continue
        pairs = each.pairs.astype(np.float64)
        is_within = ((pairs >= 1) & (pairs <= n_bins)).all(axis=1)
        if len(pairs) and (is_within & (pairs[:, 0] <= pairs[:, 1])).mean() > _MOST:
            fitting.append(name)

    def rank(name: str) -> int:
        return next(at for at, part in enumerate(_EPOCHS) if part in name.lower())

    return min(fitting, key=rank, default=None)


def _bin_blocks(variables: dict[str, _Variable], n_bins: int) -> tuple[str, int] | None:
    """Return the variable with the block of each bin, and the number of blocks."""
    for name, each in variables.items():
        is_block = "block" in name.lower() and isinstance(each.values, np.ndarray)
        if is_block and each.values is not None and len(each.values) == n_bins:
            return name, len(np.unique(each.values))
    return None


def _cues(columns: list[TrialColumn], variables: dict[str, _Variable]) -> Cues | None:
    """Return the column with numbers of cues, and the variable with the cues."""
    for column in columns:
        numbers = column.values
        if isinstance(numbers, list) or not SENTENCE.search(column.name):
            continue
        numbers = numbers[np.isfinite(numbers)]
        if not len(numbers):
            continue
        for name, each in variables.items():
            texts = each.values
            if not isinstance(texts, list) or len(texts) < 2 or not SENTENCE.search(name):
                continue
            if 0 <= numbers.min() <= numbers.max() <= len(texts):
                return Cues(column, name, texts)
    return None


def _stated_bin_ms(variables: dict[str, _Variable]) -> float | None:
    """Return the length of a bin that a variable states in ms or seconds."""
    for name, each in variables.items():
        if _BIN.search(name) and isinstance(each.values, np.ndarray) and len(each.values) == 1:
            value = float(each.values[0])
            ms = value if value >= 1 else 1000 * value
            if 5 <= ms <= LONGEST_MS:
                return ms
    return None


def _names_of(path: Path) -> tuple[str, list[str]]:
    """Return the participant and the section of the session that a file's name states."""
    within = PurePath(path.absolute().parent.name, path.name)
    for form, code in _FORMS.items():
        day = SessionNames(date=form).date_of(within)
        if day is not None:
            digits = day.strftime(code)
            part = next(part for part in reversed(within.parts) if digits in part)
            name = part.split(digits)[0].strip("._- ")
            lines = ["session:", f"  date: {form}  # its form in the name of the file or folder"]
            return name if is_plain_name(name) else "participant", lines
    lines = ["session:", "  files:  # the name has no date: write the day of the recording"]
    return "participant", [*lines, f"    {quoted(path.name)}: 2000-01-01"]
