"""A packed directory, its splits, source and checksums; and opening recordings, packed or not.

It holds, per split, `<split>.f16` (the bins of all trials one after another, [sum of T, C] float16)
or TFRecord files (`<split>-00000.tfrecord` ..., written by `cortext_tpu`), which TensorFlow reads
without this package; `index.npz` (numbers per trial, labels) and `index.json` (sessions, sentences,
sources, trials left out, checksums). Half precision keeps three significant digits of z-scored
features, well below their noise, and halves memory and disk.

Opening checks the index by checksum and the bins by size, which finds the usual accidents (a copy
cut short, a changed file) in milliseconds; `PackedDataset.verify` reads every byte, which for the
full release means 10 GB.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cortext.arguments import as_path, check_function, check_list
from cortext.data.bin_source import BinSource, MappedBins, MemoryBins, RecordBins
from cortext.data.checks import LIMITS, Limits, Problem
from cortext.data.conventions import (
    FILE,
    RELEASE_CONVENTIONS,
    Conventions,
    conventions_given,
)
from cortext.data.dataset import Dataset, find_sessions, open_session_files
from cortext.data.packed_index import AGAIN, is_packed, read_index
from cortext.data.packed_split import BadTrials, PackedSplit
from cortext.data.trial import SPLITS, Trial
from cortext.describe import Described, some
from cortext.errors import DataError, nearest
from cortext.processes import Progress


@dataclass(frozen=True, eq=False, repr=False)
class PackedDataset(Described):
    """A packed directory.

    Attributes:
        sessions: Names; `day_N` of the splits are positions in it.
        bad_trials: Trials that packing left out, and why.
        post_implant_day: Days since implantation by session, where the release's table of blocks
            has them.
        source: The directory of session files, with the size and time of change (ns) of each.
        conventions: Tokens, language and length of a bin.
        notes: What packing noticed about the features (`FeatureSurvey`), a line each.
    """

    path: Path
    sessions: tuple[str, ...]
    n_features: int
    bad_trials: tuple[Problem, ...]
    post_implant_day: dict[str, int]
    source: Path
    source_files: dict[str, tuple[int, int]] = field(repr=False)
    checksums: dict[str, int] = field(repr=False)
    """crc32 of each split's bins, the same whether they lie in a map or in TFRecords."""
    _splits: dict[str, PackedSplit] = field(repr=False)
    conventions: Conventions = RELEASE_CONVENTIONS
    notes: tuple[str, ...] = ()

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits that have trials."""
        return tuple(self._splits)

    @property
    def session_names(self) -> tuple[str, ...]:
        """The sessions' names, in order: `sessions`, as a Dataset has them."""
        return self.sessions

    def n_trials(self, split: str) -> int:
        """Return the number of trials of a split."""
        return len(self.split(split))

    def trials(self, split: str, sessions: Iterable[str] | None = None) -> Iterator[Trial]:
        """Yield the trials of a split, one in memory at a time, by session and trial.

        Args:
            split: `train`, `val` or `test`.
            sessions: Names to read, all by default.

        Raises:
            DataError: For a split or a session that the data lack.
        """
        chosen = self.split(split).select(sessions=sessions)
        return (chosen.trial(i) for i in range(len(chosen)))

    def __iter__(self) -> Iterator[Trial]:
        """Yield the trials of train, val and test."""
        for split in self.splits:
            yield from self.trials(split)

    def split(self, name: str) -> PackedSplit:
        """Return the split of that name. Raises DataError where there is none."""
        if not isinstance(name, str) or name not in self.splits:
            raise DataError(f"no split {name!r}; {nearest(name, self._splits)}", where=self.path)
        return self._splits[name]

    def select(
        self, *, bad_trials: BadTrials | None = None, feature_subset: Sequence[int] | None = None
    ) -> PackedDataset:
        """Return the dataset with `PackedSplit.select` applied to every split."""
        splits = {
            name: split.select(bad_trials=bad_trials, feature_subset=feature_subset)
            for name, split in self._splits.items()
        }
        return replace(self, _splits=splits, n_features=next(iter(splits.values())).n_features)

    def showing(self, splits: Mapping[str, PackedSplit]) -> PackedDataset:
        """Return the dataset with these splits, which show trials of its own."""
        return replace(self, _splits=dict(splits))

    def stale(self) -> bool:
        """Return whether a session file was added, removed or changed since packing.

        So for `cortext.json`. False where the whole source is gone.
        """
        try:
            return source_files(self.source) != self.source_files
        except (DataError, OSError):
            return False

    def _facts(self) -> dict[str, Any]:
        counts = ", ".join(f"{name} {len(split):,}" for name, split in self._splits.items())
        return {
            "packed in": self.path,
            "sessions": some(self.sessions),
            "features": self.n_features,
            "trials": counts,
            "left out as bad": len(self.bad_trials) or None,
            **self.conventions.facts(),
        }

    def _table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        splits = self._splits.values()
        rows = [
            (name, *(int((split.day_N == day).sum()) for split in splits))
            for day, name in enumerate(self.sessions)
        ]
        return ("trials of session", *self._splits), rows

    def verify(
        self, progress: Progress | None = None, *, splits: Iterable[str] | None = None
    ) -> None:
        """Read every byte, of all splits or some, and compare the checksums.

        Raises DataError for a difference.
        """
        check_function(progress, "progress")
        names = self.splits if splits is None else check_list(splits, "splits", "a list of splits")
        chosen = {name: self.split(name) for name in names}
        total = sum(2 * n_bins * n for n_bins, n in (s.bins.shape for s in chosen.values()))
        done = 0

        def advance(n_bytes: int) -> None:
            nonlocal done
            done += n_bytes
            if progress:
                progress(done, total)

        for name, split in chosen.items():
            checksum = _crc32(split.bins, advance)
            if checksum != self.checksums[name]:
                problem = f"checksum {checksum:08x} found, {self.checksums[name]:08x} expected"
                raise DataError(problem, where=split.path, fix=AGAIN)


def _crc32(bins: BinSource, advance: Callable[[int], None]) -> int:
    checksum = 0
    for piece in bins.pieces():
        checksum = zlib.crc32(piece, checksum)
        advance(memoryview(piece).nbytes)
    return checksum


def source_files(root: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change (ns) of every session file under `root`, by relative path.

    So of `cortext.json`, where there is one.
    """
    files = [path for session in find_sessions(root) for path in session.files.values()]
    if conventions_given(root):
        files.append(root / FILE)
    return {str(path.relative_to(root)): _state(path) for path in files}


def _state(path: Path) -> tuple[int, int]:
    """Return size and time of change; zeros for a link that leads nowhere, which is a problem."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def open_dataset(root: str | Path, *, limits: Limits = LIMITS) -> Dataset | PackedDataset:
    """Open recordings: a directory of session files, or a packed one.

    Either has `session_names`, `splits`, `n_features`, `n_trials(split)` and
    `trials(split, sessions)`, and yields all its trials. Trials of packed data have been rounded to
    float16. `cortext.data.open_data` gives packed data of either.

    Args:
        root: The directory that holds `<session>/data_{train,val,test}.hdf5`, or that `pack` wrote.
        limits: The largest trial that is read from session files.

    Raises:
        DataError: Where there are no recordings.
    """
    root = as_path(root, "data")
    return open_packed(root) if is_packed(root) else open_session_files(root, limits=limits)


def open_packed(path: str | Path) -> PackedDataset:
    """Open a packed directory; sizes and the index are checked.

    Raises DataError for anything else or a damaged one.
    """
    path = as_path(path, "data")
    index, arrays, conventions = read_index(path)
    if conventions_given(path):  # put there by somebody: packed data state their own in the index
        conventions.require(
            Conventions.read(path),
            mine="the packed data",
            theirs=f"its {FILE}",
            where=path,
            fix=f"remove its {FILE}, and pack session files with one again",
        )
    named = {name: index["splits"][name] for name in SPLITS if name in index["splits"]}
    return PackedDataset(
        path,
        tuple(index["sessions"]),
        int(index["n_features"]),
        tuple(Problem(**problem) for problem in index["bad_trials"]),
        index["post_implant_day"],
        Path(index["source"]),
        {name: (size, changed) for name, (size, changed) in index["source_files"].items()},
        {name: int(entry["crc32"]) for name, entry in named.items()},
        {name: _open_split(path, name, index, arrays, conventions) for name in named},
        conventions,
        tuple(index.get("notes", ())),
    )


def _open_split(
    path: Path,
    name: str,
    index: dict[str, Any],
    arrays: dict[str, np.ndarray],
    conventions: Conventions,
) -> PackedSplit:
    entry = index["splits"][name]
    n_bins_N = arrays[f"{name}/n_bins"]
    n_labels_N = arrays[f"{name}/n_labels"]
    first_bin_N = np.cumsum(n_bins_N) - n_bins_N
    shape = int(n_bins_N.sum()), int(index["n_features"])
    sizes = entry.get("records") or {
        f"{name}.f16": shape[0] * shape[1] * np.dtype(np.float16).itemsize
    }
    files = [path / file for file in sizes]
    for file, expected in zip(files, sizes.values(), strict=True):
        n_bytes = file.stat().st_size if file.is_file() else 0
        if n_bytes != expected:
            raise DataError(f"{n_bytes} bytes found, {expected} expected", where=file, fix=AGAIN)
    # The file is mapped when a trial is read: opening a data set touches no bins.
    bins: BinSource = MappedBins(files[0], shape)
    if "records" in entry:
        at = zip(arrays[f"{name}/file"].tolist(), arrays[f"{name}/byte"].tolist(), strict=True)
        records = {
            first: (files[number], byte)
            for first, (number, byte) in zip(first_bin_N.tolist(), at, strict=True)
        }
        bins = RecordBins(records, shape)
    return PackedSplit(
        name=name,
        path=files[0],
        bins=bins,
        sessions=tuple(index["sessions"]),
        n_bins_N=n_bins_N,
        day_N=arrays[f"{name}/day"],
        block_N=arrays[f"{name}/block"],
        trial_N=arrays[f"{name}/trial"],
        n_labels_N=n_labels_N,
        first_bin_N=first_bin_N,
        first_label_N=np.cumsum(n_labels_N) - n_labels_N,
        label_tokens=arrays[f"{name}/labels"],
        sentences=tuple(entry["sentences"]),
        corpora=tuple(entry["corpora"]),
        conventions=conventions,
    )


def joined(datasets: Sequence[PackedDataset]) -> PackedDataset:
    """Copy the trials that the datasets show into memory, as one dataset with the first one's path.

    Its sessions are those of all, in the order in which they first come. The datasets have the same
    number of features. Raises DataError where their conventions differ.
    """
    for other in datasets[1:]:
        datasets[0].conventions.require(
            other.conventions,
            mine=f"the data in {datasets[0].path}",
            theirs=f"the data in {other.path}",
        )
    sessions = tuple(dict.fromkeys(name for data in datasets for name in data.sessions))
    names = dict.fromkeys(name for data in datasets for name in data.splits)
    splits = {
        name: _joined([data.split(name) for data in datasets if name in data.splits], sessions)
        for name in names
    }
    return replace(
        datasets[0],
        sessions=sessions,
        bad_trials=tuple(problem for data in datasets for problem in data.bad_trials),
        post_implant_day={
            session: day for data in datasets for session, day in data.post_implant_day.items()
        },
        source_files={},
        checksums={name: _crc32(split.bins, lambda size: None) for name, split in splits.items()},
        _splits=splits,
    )


def _joined(parts: Sequence[PackedSplit], sessions: tuple[str, ...]) -> PackedSplit:
    trials = [(part, i) for part in parts for i in range(len(part))]
    bins_TC = np.ascontiguousarray(np.concatenate([part.features(i) for part, i in trials]))
    labels = [
        part.label_tokens[part.first_label_N[i] :][: part.n_labels_N[i]] for part, i in trials
    ]
    n_bins_N, n_labels_N, block_N, trial_N = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("n_bins_N", "n_labels_N", "block_N", "trial_N")
    )
    return PackedSplit(
        name=parts[0].name,
        path=parts[0].path,
        bins=MemoryBins(bins_TC),
        sessions=sessions,
        n_bins_N=n_bins_N,
        day_N=np.array([sessions.index(part.session(i)) for part, i in trials], dtype=np.int64),
        block_N=block_N,
        trial_N=trial_N,
        n_labels_N=n_labels_N,
        first_bin_N=np.cumsum(n_bins_N) - n_bins_N,
        first_label_N=np.cumsum(n_labels_N) - n_labels_N,
        label_tokens=np.concatenate(labels),
        sentences=tuple(part.sentences[i] for part, i in trials),
        corpora=tuple(part.corpora[i] for part, i in trials),
        conventions=parts[0].conventions,
    )
