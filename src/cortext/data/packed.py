"""Making packed data from session files, and deciding when to do so."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from cortext.arguments import as_path, check_list
from cortext.data.checks import FLOAT16_MAX, LIMITS, Limits, OnBad, Problem
from cortext.data.conventions import FILE, MOST_NOTE, Conventions
from cortext.data.dataset import Dataset, open_session_files
from cortext.data.feature_survey import FeatureSurvey
from cortext.data.packed_dataset import PackedDataset, open_packed, source_files
from cortext.data.packed_index import PACKED_FILES, is_packed, write_index
from cortext.data.packed_split import Batch, PackedSplit
from cortext.data.rebin import Rebinning
from cortext.data.scaling import ROLLING_NOTE, RollingZScore
from cortext.data.trial import Trial
from cortext.entry_points import load
from cortext.errors import ConfigError, DataError, shown
from cortext.files import atomic_directory, disk_errors, refuse_foreign
from cortext.processes import Progress
from cortext.renames import sync

__all__ = ["Batch", "PackedDataset", "PackedSplit", "is_packed", "open_data", "open_packed", "pack"]

FORMATS = ("f16", "tfrecord")


def pack(
    data: Dataset | str | Path,
    out: str | Path,
    *,
    format: str = "f16",
    bin_ms: float | None = None,
    sums: Iterable[int] = (),
    skip_bad: bool = False,
    progress: Progress | None = None,
    limits: Limits = LIMITS,
) -> PackedDataset:
    """Pack session files into directory `out`, one trial in memory at a time.

    Raw features (`features` of `cortext.json`) become rolling z-scores, trial by trial in the order
    of recording, all splits together.

    An older packed directory is replaced when the new one is complete.

    Args:
        data: A directory of session files.
        out: The packed directory to write.
        format: `f16`, a memory map for each split, or `tfrecord`, TFRecord files (needs
            TensorFlow); both can be read by everything.
        bin_ms: Length of the packed bins, 5 to 50 ms; as in the session files by default.
        sums: With `bin_ms`: features whose bins are summed, such as spike counts; all others are
            averaged (`cortext.features.rebin`).
        skip_bad: Leave bad trials out and record why in `bad_trials`; otherwise the first one is
            raised as DataError.
        progress: Called with trials done and in all.
        limits: The largest trial that is read from a directory; a Dataset has its own.

    Raises:
        DataError: For a bad trial, a full disk, or an `out` that holds something else.
        ConfigError: For another format, and features to sum that the data lack.
        MissingLibrary: Where TensorFlow is needed and not installed.
    """
    if not isinstance(format, str) or format not in FORMATS:
        raise ConfigError(f"unknown format {format!r} of packed data; use {' or '.join(FORMATS)}")
    dataset = data if isinstance(data, Dataset) else _unpacked(data, limits)
    if bin_ms is not None:
        dataset = dataset.rebinned(bin_ms, sums)
    elif list(check_list(sums, "sums", "a list of features' numbers")):
        raise ConfigError("sums is given without bin_ms", fix="give the length of the packed bins")
    out = as_path(out, "out")
    if out.exists() and not is_packed(out) and (not out.is_dir() or any(out.iterdir())):
        raise DataError(
            "exists and is not a packed directory",
            where=out,
            fix="choose another name or remove it",
        )
    refuse_foreign(out, PACKED_FILES, "packed data")
    with disk_errors(out), atomic_directory(out) as temporary:
        _write(dataset, temporary, format, skip_bad, progress)
    return open_packed(out)


def _unpacked(data: str | Path | PackedDataset, limits: Limits) -> Dataset:
    """Open session files; raise DataError where they are packed already."""
    path = data_path(data)
    if is_packed(path):
        source = open_packed(path).source
        raise DataError(
            "is packed already, and every command takes it as it is",
            where=path,
            fix=f"to pack the session files again, give {source}",
        )
    return open_session_files(path, limits=limits)


def _write(
    dataset: Dataset, folder: Path, format: str, skip_bad: bool, progress: Progress | None
) -> None:
    # Before reading: a file that changes meanwhile makes the result stale.
    files = source_files(dataset.root)
    _check_unchanged(dataset)
    problems: list[Problem] = []
    arrays: dict[str, np.ndarray] = {}
    splits: dict[str, Any] = {}
    total = sum(map(dataset.n_trials, dataset.splits))
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(min(done + len(problems), total), total)

    on_bad = problems.append if skip_bad else None
    survey = FeatureSurvey()
    with ExitStack() as opened:
        writers = {
            name: opened.enter_context(closing(_SplitWriter(dataset, name, folder, format)))
            for name in dataset.splits
        }
        for name, trial in _trials(dataset, on_bad, survey):
            writers[name].add(trial)
            advance()
    for name, writer in writers.items():
        entry, split_arrays = writer.index()
        if len(split_arrays["n_bins"]):
            splits[name] = entry
            arrays |= {f"{name}/{array}": values for array, values in split_arrays.items()}
    if not splits:
        raise DataError(f"every trial is bad; the first: {problems[0]}", where=dataset.root)
    index = {
        "n_features": dataset.n_features,
        "sessions": [session.name for session in dataset.sessions],
        "post_implant_day": dataset.post_implant_days(),
        "bad_trials": [problem.to_json() for problem in problems],
        "source": str(dataset.root.resolve()),
        "source_files": files,
        "splits": splits,
    }
    if notes := survey.notes(dataset.conventions.features):
        index["notes"] = [shown(note) for note in notes]
    conventions = packed_conventions(dataset.conventions)
    if conventions.features == "raw":
        conventions = replace(conventions, feature_range=survey.range)
    write_index(folder, index, arrays, conventions)
    for path in folder.iterdir():
        sync(path)


def _check_unchanged(dataset: Dataset) -> None:
    """Raise DataError where `cortext.json` has changed since the dataset was opened."""
    opened = dataset.conventions
    if dataset.rebinning is not None:
        opened = replace(opened, bin_ms=dataset.rebinning.from_ms)
    if opened.difference(Conventions.read(dataset.root)):
        raise DataError(f"{FILE} has changed meanwhile", where=dataset.root, fix="open it again")


def _trials(
    dataset: Dataset, on_bad: OnBad | None, survey: FeatureSurvey
) -> Iterator[tuple[str, Trial]]:
    """Yield split and trial: split by split, and raw features in the order of recording."""
    if dataset.conventions.features == "raw":
        yield from _rolling(dataset.as_recorded(on_bad=on_bad), survey)
        return
    for name in dataset.splits:
        # A feature beyond float16 would be packed as Inf: its trial is bad.
        for trial in dataset.trials(name, on_bad=on_bad, max_abs=FLOAT16_MAX):
            survey.add(trial)
            yield name, trial


def _rolling(
    recorded: Iterable[tuple[str, Trial]], survey: FeatureSurvey
) -> Iterator[tuple[str, Trial]]:
    """Yield trials with rolling z-scores, as live decoding of the same recordings has them.

    A block begins with the statistics in force, and so does a day: the first trials of a day are
    scored with the day before. A cold start would cost five seconds of each day, and waiting for
    the day's own statistics would use the future.
    """
    normaliser: RollingZScore | None = None
    block: tuple[str, int] | None = None
    for split, trial in recorded:
        normaliser = normaliser or RollingZScore(trial.features_TC.shape[1])
        if block != (trial.session, trial.block):
            block = trial.session, trial.block
            normaliser.start_block()
        survey.add(trial)
        z_TC = normaliser.push(trial.features_TC)
        normaliser.end_utterance()
        yield split, replace(trial, features_TC=z_TC)


def packed_conventions(source: Conventions) -> Conventions:
    """Return the conventions of the packed form of session files.

    Those of raw recordings name the parameters of the rolling z-scores: where these change, they
    are packed again.
    """
    if source.features != "raw":
        return source
    notes = filter(None, (ROLLING_NOTE, source.normalised))
    return replace(source, normalised=shown("; ".join(notes), MOST_NOTE))


class _SplitWriter:
    """Files and index of a split, being written trial by trial."""

    def __init__(self, dataset: Dataset, split: str, folder: Path, format: str) -> None:
        self._days = {session.name: day for day, session in enumerate(dataset.sessions)}
        writer = load("cortext.packed_formats", format) if format == "tfrecord" else MapFile
        self._files = writer(folder, split)
        self._numbers: list[tuple[int, ...]] = []
        self._labels: list[np.ndarray] = [np.empty(0, dtype=np.int16)]
        self._sentences: list[str | None] = []
        self._corpora: list[str | None] = []
        self._checksum = 0

    def add(self, trial: Trial) -> None:
        """Write a trial."""
        rows_TC = trial.features_TC.astype(np.float16)
        day = self._days[trial.session]
        self._files.write(trial, rows_TC, day)
        self._checksum = zlib.crc32(rows_TC.data, self._checksum)
        ids = np.empty(0) if trial.phoneme_ids is None else trial.phoneme_ids
        self._labels.append(ids.astype(np.int16))
        self._numbers.append((trial.n_bins, day, trial.block, trial.trial, len(ids)))
        self._sentences.append(trial.sentence)
        self._corpora.append(trial.corpus)

    def close(self) -> None:
        """End the files."""
        self._files.close()

    def index(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the split's part of `index.json` and its arrays, once the files are closed."""
        columns = np.array(self._numbers, dtype=np.int64).reshape(-1, 5).T.copy()
        arrays = dict(zip(("n_bins", "day", "block", "trial", "n_labels"), columns, strict=True))
        arrays["labels"] = np.concatenate(self._labels)
        entry = {
            "crc32": self._checksum,
            "sentences": self._sentences,
            "corpora": self._corpora,
        }
        if not isinstance(self._files, MapFile):  # TFRecord files
            entry["records"] = self._files.sizes
            records = np.array(self._files.records, dtype=np.int64).reshape(-1, 2)
            arrays["file"], arrays["byte"] = records.T.copy()
        return entry, arrays


class MapFile:
    """The memory map of a split, being written; there is none as long as there is no trial."""

    def __init__(self, folder: Path, split: str) -> None:
        self._path = folder / f"{split}.f16"
        self._file: BinaryIO | None = None

    def write(self, trial: Trial, rows_TC: np.ndarray, day: int) -> None:
        """Add the features of a trial; the index holds the rest.

        Args:
            trial: Unused.
            rows_TC: Features of the trial, float16 [T, C].
            day: Unused.
        """
        if self._file is None:
            self._file = self._path.open("wb")
        self._file.write(rows_TC.data)

    def close(self) -> None:
        """End the file."""
        if self._file is not None:
            self._file.close()


def data_path(data: Dataset | PackedDataset | str | Path) -> Path:
    """Return the directory of data, which may be open already."""
    if isinstance(data, Dataset):
        return data.root
    return data.path if isinstance(data, PackedDataset) else as_path(data, "data")


def open_data(
    path: Dataset | PackedDataset | str | Path,
    packed_cache: str | Path | None = None,
    bin_ms: float | None = None,
    *,
    sums: Iterable[int] = (),
    skip_bad: bool = False,
    progress: Progress | None = None,
    limits: Limits = LIMITS,
) -> PackedDataset:
    """Open a packed directory, or session files, which are packed once and then used again.

    Args:
        path: The DATA of every command, or data that are open: packed ones are returned as they
            are.
        packed_cache: Where session files are packed to; made again when a session file was added,
            removed or changed. Default: `.packed` inside `path`, `.packed-20ms` with `bin_ms=20`.
        bin_ms: Length that the bins of session files get as they are packed, in milliseconds;
            None keeps it.
        sums: With `bin_ms`: features whose bins are summed; all others are averaged.
        skip_bad: Leave bad trials out; without it a cache made with it is refused as the session
            files would be.
        progress: Called with trials packed and in all.
        limits: The largest trial that is read from session files.

    Raises:
        DataError: Also for a packed directory whose session files are at hand and have changed.
    """
    if isinstance(path, PackedDataset):
        return path
    limits = path.limits if isinstance(path, Dataset) else limits
    path = data_path(path)
    if is_packed(path):
        packed = open_packed(path)
        if packed.stale():
            length = packed.conventions.bin_ms
            rebinned = Conventions.read(packed.source).bin_ms != length
            joined = Rebinning.noted(packed.conventions)
            options = (joined.options if joined else f" --bin-ms {length:g}") if rebinned else ""
            fix = f"run cortext pack {packed.source} --out {path}{options} again"
            raise DataError(
                f"the session files in {packed.source} have changed since it was packed",
                where=path,
                fix=fix,
            )
        return packed
    dataset = open_session_files(path, limits=limits)
    if bin_ms is not None:
        dataset = dataset.rebinned(bin_ms, sums)
    name = ".packed" if dataset.rebinning is None else f".packed-{dataset.conventions.bin_ms:g}ms"
    cache = Path(packed_cache) if packed_cache is not None else path / name
    cached = _usable(cache, dataset)
    if cached is None:
        if packed_cache is None and not os.access(path, os.W_OK):
            options = dataset.rebinning.options if dataset.rebinning else ""
            fix = f"run cortext pack {path} --out PACKED{options}, and give PACKED"
            raise DataError(
                "cannot be written, and its session files are to be packed there",
                where=path,
                fix=fix,
            )
        return pack(dataset, cache, skip_bad=skip_bad, progress=progress)
    if cached.bad_trials and not skip_bad:
        raise cached.bad_trials[0].error()
    return cached


def _usable(cache: Path, dataset: Dataset) -> PackedDataset | None:
    if not is_packed(cache):
        return None
    try:
        packed = open_packed(cache)
    except DataError:
        return None
    same = (
        packed.source == dataset.root.resolve()
        and packed.source_files == source_files(dataset.root)
        and replace(packed.conventions, feature_range=None)
        == packed_conventions(dataset.conventions)  # bins may have been made longer
    )
    return packed if same else None
