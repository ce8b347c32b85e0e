"""The verification of Brain-to-Text '24 (participant T12): its stages, in order."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from cortext.arguments import as_path, check_type
from cortext.data.checks import AGAIN, FaultError, Problem
from cortext.data.conventions import RELEASE_CONVENTIONS, Conventions
from cortext.data.dataset import open_session_files
from cortext.data.inspect import inspect
from cortext.errors import ConfigError
from cortext.files import read_json
from cortext.processes import Progress
from cortext_data.readers.files.matlab import open_mat
from cortext_data.readers.import_record import RECORD
from cortext_data.readers.t12 import (
    BLOCKS,
    FOLDERS,
    HOLDOUT,
    POWER,
    SENTENCES,
    THRESHOLDS,
    SessionFile,
    block_numbers,
    find_competition_data,
    parse_columns,
    session_files,
)
from cortext_published.verification.checks import (
    Check,
    StageOutcome,
    Verification,
    judged,
    not_checked,
)
from cortext_published.verification.machine import machine, private_texts
from cortext_published.verification.published import PublishedT12, t12_facts
from cortext_published.verification.recordings import (
    check_labels,
    first_problem,
    same_sessions,
    some,
    split_counts,
)
from cortext_published.verification.report import write_verification
from cortext_published.verification.stages import (
    ShowStage,
    Stages,
    fingerprint,
    verification_directory,
)

_ARRAYS = (*THRESHOLDS, POWER)
_IMPORT = "cortext import t12"
_AS_SCALED = 1e-3
"""Largest difference of a block's mean from 0, and of its standard deviation from 1."""


def verify_t12(
    directory: str | Path,
    out: str | Path,
    *,
    data: str | Path | None = None,
    published: PublishedT12 | None = None,
    stage: ShowStage = lambda name: None,
) -> Verification:
    """Compare the recordings of Brain-to-Text '24 with the published facts about them.

    Writes `out/verify.html` and `out/verify.json`, which hold no text of the data and no path of
    this machine. The other files in `out` are kept so that a second call does only the rest.

    Args:
        directory: Directory that the release was unpacked in, at any depth.
        out: Directory of the verification.
        data: Session files that `cortext import t12` wrote, to be compared with the release.
        published: The facts to compare with; those of T12 by default.
        stage: Shows a stage that begins.

    Raises:
        DataError: For a directory without the release, and an `out` that is something else or
            cannot be written. All that is wrong with a file is a line of the page.
        ConfigError: For `data` that is no directory.
    """
    directory, out = as_path(directory, "directory"), as_path(out, "out")
    data = None if data is None else as_path(data, "data")
    check_type(published, (PublishedT12, type(None)), "published", "PublishedT12 or None")
    facts = published or t12_facts()
    root = find_competition_data(directory)
    if data is not None and not data.is_dir():
        raise ConfigError("no such directory", where=data, fix=f"give what `{_IMPORT}` wrote")
    private = private_texts({"DIR": directory, "OUT": out, "DATA": data})
    with verification_directory(out):
        stages = Stages(out, {"published": zlib.crc32(repr(facts).encode())}, private, stage)
        made_from = fingerprint([*root.glob("*/*.mat")], root)
        stages.run("files", made_from, lambda _: check_files(root, facts))
        stages.run(
            "recordings", made_from, lambda progress: check_recordings(root, facts, progress)
        )
        if data is None:
            because = "no imported data were given; they can be given with --data"
            stages.skip("import", [not_checked("Imported data", because)])
        else:
            written = fingerprint([*data.glob("*/data_*.hdf5"), *data.glob("*.json")], data)
            stages.run(
                "import",
                {"release": made_from, "written": written},
                lambda progress: check_import(data, stages.sessions, progress),
            )
        result = Verification(
            dataset="t12",
            stages=stages.results,
            facts=stages.facts,
            sessions=stages.sessions,
            published={},
            machine=machine("cpu"),
        )
        write_verification(out, result)
    return result


def check_files(root: Path, published: PublishedT12) -> StageOutcome:
    """Compare the days of each folder with the published ones."""
    files = session_files(root)
    return StageOutcome(
        [
            same_sessions(
                f"Sessions of {folder}",
                [file.session for file in files if file.folder == folder],
                expected,
            )
            for folder, expected in published.sessions.items()
        ]
    )


@dataclass
class _Recorded:
    """Contents of one file of the release."""

    file: SessionFile
    blocks: list[int] = field(default_factory=list)
    n_bins: int = 0
    n_sentences: int = 0
    columns: set[int] = field(default_factory=set)
    crossings: Counter[str] = field(default_factory=Counter)
    """Sum of the threshold crossings by variable."""
    problems: list[Problem] = field(default_factory=list)


def check_recordings(
    root: Path, published: PublishedT12, progress: Progress | None
) -> StageOutcome:
    """Read every array of every file, and compare numbers with the published ones."""
    files = session_files(root)
    read = []
    for number, file in enumerate(files, start=1):
        read.append(_read(file))
        if progress is not None:
            progress(number, len(files))
    counts = {
        folder: sum(len(one.blocks) for one in read if one.file.folder == folder)
        for folder in FOLDERS
    }
    checks = [
        _readable(read),
        judged(
            "Trials",
            counts == published.n_trials,
            f"{split_counts(counts)}; published: {split_counts(published.n_trials)}",
        ),
        *(_n_blocks(read, folder, n) for folder, n in published.n_blocks.items()),
        _block_order(read),
        _columns(read, published.n_columns),
        _thresholds(read),
        _sentences(read),
        not_checked(f"Sentences of {HOLDOUT}", "they are withheld, and never read"),
    ]
    sessions: dict[str, dict[str, Any]] = {}
    for one in read:
        values = sessions.setdefault(one.file.session, {})
        values[f"n_{FOLDERS[one.file.folder]}"] = len(one.blocks)
    minutes = round(sum(one.n_bins for one in read) * 0.02 / 60, 1)
    return StageOutcome(checks, {"minutes": minutes, "sessions": sessions})


def _read(file: SessionFile) -> _Recorded:
    """Read a file, one variable in memory at a time."""
    recorded = _Recorded(file)

    def note(fault: FaultError) -> None:
        recorded.problems.append(Problem(str(file.path), None, fault.field, fault.message))

    try:
        with open_mat(file.path, [BLOCKS]) as mat:
            recorded.blocks = block_numbers(mat)
        if file.folder != HOLDOUT:
            with open_mat(file.path, [SENTENCES]) as mat:
                recorded.n_sentences = sum(bool(text.strip()) for text in mat.texts(SENTENCES))
    except FaultError as fault:
        note(fault)
        return recorded
    lengths: list[int] | None = None
    for name in _ARRAYS:
        try:
            lengths = _read_array(recorded, name, lengths)
        except FaultError as fault:
            note(fault)
    recorded.n_bins = sum(lengths or ())
    return recorded


def _read_array(recorded: _Recorded, name: str, lengths: Sequence[int] | None) -> list[int]:
    """Read an array of all trials, and return their lengths in bins.

    Raises FaultError where they are not as many or not as long as those of the arrays before.
    """
    with open_mat(recorded.file.path, [name]) as mat:
        cells = mat.cells(name)
        own = [cell.shape[0] if len(cell.shape) == 2 else -1 for cell in cells]
        if len(own) != len(recorded.blocks):
            finding = f"{len(own)} trials found, {len(recorded.blocks)} expected as in {BLOCKS}"
            raise FaultError(name, finding, AGAIN)
        for number, (n_bins, expected) in enumerate(zip(own, lengths or own, strict=True)):
            if n_bins != expected:
                finding = (
                    f"{n_bins} bins found in trial {number}, {expected} as in {_ARRAYS[0]} expected"
                )
                raise FaultError(name, finding, AGAIN)
        for number, cell in enumerate(cells):
            x_TC = cell.read()
            recorded.columns.add(x_TC.shape[-1])
            if not np.isfinite(x_TC).all():
                raise FaultError(name, f"NaN or Inf found in trial {number}", AGAIN)
            if name != POWER:
                recorded.crossings[name] += int(x_TC.sum(dtype=np.float64))
    return own


def _readable(read: Sequence[_Recorded]) -> Check:
    problems = [problem for one in read for problem in one.problems]
    n_trials = sum(len(one.blocks) for one in read)
    if not problems:
        return judged("Recordings", True, f"{n_trials:,} trials were read without a problem")
    n = len(problems)
    finding = f"{n:,} problem{'' if n == 1 else 's'}; {first_problem(problems)}"
    return judged("Recordings", False, finding)


def _n_blocks(read: Sequence[_Recorded], folder: str, n_blocks: int) -> Check:
    counts = {one.file.session: len(set(one.blocks)) for one in read if one.file.folder == folder}
    if not counts:
        return not_checked(f"Blocks of {folder}", "no file was found")
    other = [f"{session} has {n}" for session, n in counts.items() if n != n_blocks]
    finding = f"{n_blocks} on every day"
    if other:
        finding = f"{n_blocks} on each day published; {some(other)}"
    return judged(f"Blocks of {folder}", not other, finding)


def _block_order(read: Sequence[_Recorded]) -> Check:
    """Check that the holdout is the first of a day's blocks, and test the last one."""
    name = "Order of the blocks"
    days: dict[str, dict[str, set[int]]] = {}
    for one in read:
        if one.blocks:
            days.setdefault(one.file.session, {})[one.file.folder] = set(one.blocks)
    shared = [
        session
        for session, folders in days.items()
        if sum(map(len, folders.values())) != len(set().union(*folders.values()))
    ]
    if shared:
        because = f"folders share numbers of blocks on {some(shared)}"
        return not_checked(name, f"{because}: they may be counted in each file")
    odd = []
    for session, folders in days.items():
        parts = [folders[folder] for folder in (HOLDOUT, "train", "test") if folder in folders]
        if any(max(a) > min(b) for a, b in pairwise(parts)):
            odd.append(session)
    finding = "the holdout comes first and test last"
    return judged(
        name, not odd, f"{finding}, but not on {some(odd)}" if odd else f"{finding} on all days"
    )


def _columns(read: Sequence[_Recorded], n_columns: int) -> Check:
    widths = sorted(set().union(*(one.columns for one in read)))
    finding = f"{', '.join(map(str, widths)) or 'none'} in each array; {n_columns} published"
    return judged("Columns", widths == [n_columns], finding)


def _thresholds(read: Sequence[_Recorded]) -> Check:
    """Check that a higher threshold is crossed less often: variables were not swapped."""
    odd = [
        f"{one.file.folder}/{one.file.path.name}"
        for one in read
        if not one.problems
        and sorted(_ARRAYS[:-1], key=lambda name: -one.crossings[name]) != list(THRESHOLDS)
    ]
    finding = "tx1 has most crossings and tx4 fewest"
    return judged("Thresholds", not odd, f"{finding}, but not in {some(odd)}" if odd else finding)


def _sentences(read: Sequence[_Recorded]) -> Check:
    wrong = [
        f"{one.n_sentences} of {len(one.blocks)} in {one.file.folder}/{one.file.path.name}"
        for one in read
        if one.file.folder != HOLDOUT and one.n_sentences != len(one.blocks)
    ]
    finding = some(wrong) if wrong else "every trial of train and test has one"
    return judged("Sentences", not wrong, finding)


def check_import(
    data: Path, recorded: Mapping[str, Mapping[str, Any]], progress: Progress | None
) -> StageOutcome:
    """Compare imported session files with the release.

    Args:
        data: Directory of the session files.
        recorded: Number of trials of the release by session and split, such as `n_train`.
        progress: Called with trials done and in all.
    """
    try:
        settings = read_json(data / RECORD)["settings"]
        columns = parse_columns(str(settings["columns"])) if settings["reader"] == "t12" else []
    except (OSError, ValueError, KeyError, TypeError, ConfigError):
        columns = []
    if not columns:
        finding = f"no {RECORD} of `{_IMPORT}` was found"
        return StageOutcome([judged("Imported data", False, finding)])
    report = inspect(data, progress)
    counts = {(row.session, row.split): row.n_trials + row.n_bad for row in report.rows}
    expected = {
        (session, split): values[f"n_{split}"]
        for session, values in recorded.items()
        for split in FOLDERS.values()
        if values.get(f"n_{split}")
    }
    other = [
        f"{session} {split} has {counts.get((session, split), 0)}, the release"
        f" {expected.get((session, split), 0)}"
        for session, split in sorted(expected.keys() | counts.keys())
        if counts.get((session, split), 0) != expected.get((session, split), 0)
    ]
    finding = some(other) if other else f"{sum(counts.values()):,}, on each day as in the release"
    n = len(report.problems)
    problems = f"{n} problems; {first_problem(report.problems)}" if n else "none"
    return StageOutcome(
        [
            judged("Imported trials", not other, finding),
            judged("Problems of the imported data", not n, problems),
            _conventions(report.conventions),
            judged(
                "Imported features",
                report.n_features == 2 * len(columns),
                f"{report.n_features}; crossings and power of {len(columns)} columns are"
                f" {2 * len(columns)}",
            ),
            check_labels({row.split: row for row in report.totals}),
            _scaled(data, settings.get("normalise")),
        ]
    )


def _conventions(conventions: Conventions) -> Check:
    """Compare tokens and language with those that `t12` writes; bins may have been joined."""
    other = RELEASE_CONVENTIONS.difference(replace(conventions, bin_ms=RELEASE_CONVENTIONS.bin_ms))
    finding = f"the import writes others: in it {other}" if other else "ARPABET, English"
    return judged("Tokens and language", not other, finding)


def _scaled(data: Path, normalise: str | None) -> Check:
    """Check means and standard deviations of the first block of each session file."""
    name = "Z-scores by block"
    if normalise != "block":
        return not_checked(name, f"the data were imported with --normalise {normalise}")
    dataset = open_session_files(data)
    odd = []
    n_blocks = 0
    for session in dataset.sessions:
        for split in session.files:
            trials = dataset.trials(split, [session.name])
            _, block = next(groupby(trials, key=lambda trial: trial.block))
            x_TC = np.concatenate([trial.features_TC for trial in block])
            sd_C = x_TC.std(axis=0, dtype=np.float64)
            off = np.abs(x_TC.mean(axis=0, dtype=np.float64)).max()
            off = max(off, np.abs(sd_C[sd_C > 0] - 1).max(initial=0.0))
            n_blocks += 1
            if off > _AS_SCALED:
                odd.append(f"{session.name} {split} (by {off:.2g})")
    finding = f"mean 0 and standard deviation 1 over {n_blocks} blocks, the first of each file"
    return judged(name, not odd, f"{finding}, but not over {some(odd)}" if odd else finding)
