"""Packed data: one float16 memory map per split and an index, made once from session files.

A packed directory holds, per split, `<split>.f16` (the bins of all trials one after another, [sum
of T, C] float16), or TFRecord files (`<split>-00000.tfrecord` ..., see `records.py`), which
TensorFlow reads without this package; `index.npz` (numbers per trial, labels) and `index.json`
(sessions, sentences, sources, what was left out, checksums). Half precision keeps three significant
digits of z-scored features, well below their noise, and halves memory and disk.

Opening checks the index by checksum and the maps by size, which finds the usual accidents (a copy
cut short, a changed file) in milliseconds; `PackedDataset.verify` reads every byte, which for the
full release means 10 GB.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cortext.data.buffers import BufferPool
from cortext.data.checks import Problem
from cortext.data.hdf5 import open_dataset
from cortext.data.packed_index import AGAIN, read_index
from cortext.data.trial import SPLITS, Trial
from cortext.errors import ConfigError, DataError, nearest
from cortext.processes import Progress

BadTrials = Mapping[str, Mapping[Any, Iterable[int]]]
_PIECE = 1 << 24  # bytes read at once


@dataclass(frozen=True, slots=True)
class Batch:
    """Trials side by side, padded with zeros to the longest (or to `pad_to`) bins and to the
    longest label.

    The features live in memory that is used again for a later batch once nothing refers to this one
    any more.
    """

    features_BTC: np.ndarray
    """float16 [B, T, C]"""
    n_bins_B: np.ndarray
    """int64 [B]"""
    labels_BU: np.ndarray
    """int64 [B, U]; 0 (the blank) is padding"""
    n_labels_B: np.ndarray
    """int64 [B]; 0 where labels are withheld"""
    day_B: np.ndarray
    """int64 [B], positions in the dataset's `sessions`"""


@dataclass(frozen=True, eq=False)
class PackedSplit:
    """The trials of one split, readable in any order.

    Arrays have one entry per trial (`_N`), all int64.

    Indices into a split count the trials it shows: `select` gives a split that shows fewer of them,
    or fewer features.
    """

    name: str
    path: Path
    shape: tuple[int, int]
    """Bins and features in the file."""
    sessions: tuple[str, ...]
    n_bins_N: np.ndarray
    day_N: np.ndarray
    """Position of the trial's session in `sessions`."""
    block_N: np.ndarray
    trial_N: np.ndarray
    n_labels_N: np.ndarray
    """Phonemes in the label; 0 where labels are withheld."""
    first_bin_N: np.ndarray
    first_label_N: np.ndarray
    label_tokens: np.ndarray = field(repr=False)
    """Labels of all trials one after another, int16."""
    sentences: tuple[str | None, ...] = field(repr=False)
    corpora: tuple[str | None, ...] = field(repr=False)
    columns: np.ndarray | None = None
    """Features shown, as columns of the file; all by default."""
    in_memory: np.ndarray | None = field(default=None, repr=False)
    """The bins themselves, float16 of `shape`, where they are not those of a file."""
    places: Mapping[int, tuple[Path, int]] | None = field(default=None, repr=False)
    """By a trial's first bin.

    The TFRecord file that holds its bins, and the byte where they begin.
    """

    def __len__(self) -> int:
        return len(self.n_bins_N)

    @property
    def n_features(self) -> int:
        """Features shown."""
        return self.shape[1] if self.columns is None else len(self.columns)

    @cached_property
    def _maps(self) -> dict[Path, np.ndarray]:
        return {}  # made where they are first needed: a training run may never look into some files

    @cached_property
    def _columns(self) -> slice | np.ndarray:
        if self.columns is None:
            return slice(None)
        first = int(self.columns[0])
        contiguous = np.array_equal(self.columns, np.arange(first, first + len(self.columns)))
        return slice(first, first + len(self.columns)) if contiguous else self.columns

    @cached_property
    def _pool(self) -> BufferPool:
        return BufferPool(np.float16)

    def __getstate__(self) -> dict[str, Any]:
        """For worker processes: they map the file themselves."""
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_maps", "_pool")
        }

    def features(self, i: int) -> np.ndarray:
        """float16 [T, C] of trial `i`.

        A read-only view of the map (a copy where scattered features are selected).
        """
        return np.require(
            self._rows(i)[:, self._columns], requirements="A"
        )  # bins in a TFRecord may begin anywhere

    def _rows(self, i: int) -> np.ndarray:
        n_bins = int(self.n_bins_N[i])
        if self.in_memory is not None:
            first = int(self.first_bin_N[i])
            return self.in_memory[first : first + n_bins]
        path, byte = self.place(i)
        if path not in self._maps:
            self._maps[path] = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
        return np.ndarray((n_bins, self.shape[1]), np.float16, self._maps[path].data, byte)

    def place(self, i: int) -> tuple[Path, int]:
        """The file that holds all features of trial `i`, float16 [T, C], and the byte where they
        begin.
        """
        first = int(self.first_bin_N[i])
        return (self.path, first * self._bin_bytes) if self.places is None else self.places[first]

    @property
    def _bin_bytes(self) -> int:
        return self.shape[1] * np.dtype(np.float16).itemsize

    def stored(self) -> Iterator[tuple[Path, int, int]]:
        """File, first byte and number of bytes of all bins that were packed, in order, also of
        trials not shown.
        """
        end = self.shape[0] * self._bin_bytes
        if self.places is None:
            yield from (
                (self.path, byte, min(_PIECE, end - byte)) for byte in range(0, end, _PIECE)
            )
            return
        ends = [*(first * self._bin_bytes for first in self.places), end][1:]
        for (first, (path, byte)), last in zip(self.places.items(), ends, strict=True):
            yield path, byte, last - first * self._bin_bytes

    def labels(self, i: int) -> np.ndarray | None:
        """int64 [U] phonemes of trial `i` in the release's order.

        None where labels are withheld.
        """
        first, n_labels = int(self.first_label_N[i]), int(self.n_labels_N[i])
        return self.label_tokens[first : first + n_labels].astype(np.int64) if n_labels else None

    def sentence(self, i: int) -> str | None:
        """The prompt of trial `i`; None where it is withheld."""
        return self.sentences[i]

    def session(self, i: int) -> str:
        """The name of the session of trial `i`."""
        return self.sessions[int(self.day_N[i])]

    def trial(self, i: int) -> Trial:
        """Trial `i` with float32 features in memory of its own."""
        features_TC = np.array(self.features(i), dtype=np.float32)
        block, trial = int(self.block_N[i]), int(self.trial_N[i])
        return Trial(
            features_TC,
            self.session(i),
            block,
            trial,
            self.sentences[i],
            self.labels(i),
            self.corpora[i],
        )

    def batch(self, indices: Sequence[int] | np.ndarray, pad_to: int | None = None) -> Batch:
        """The trials of `indices` [B] side by side.

        `pad_to` bins long where given (no trial may be longer).
        """
        chosen = np.asarray(indices, dtype=np.int64)
        n_bins_B = self.n_bins_N[chosen]
        longest = int(n_bins_B.max(initial=0))
        n_bins = longest if pad_to is None else pad_to
        if n_bins < longest:
            raise DataError(
                f"pad_to is {pad_to}; the longest trial of the batch has {longest} bins",
                where=self.name,
            )
        features_BTC = self._pool.array((len(chosen), n_bins, self.n_features))
        columns = self._columns
        for features_TC, i, length in zip(
            features_BTC, chosen.tolist(), n_bins_B.tolist(), strict=True
        ):
            features_TC[:length] = self._rows(i)[:, columns]
            features_TC[length:] = 0
        return Batch(features_BTC, n_bins_B, *self.labels_batch(chosen), self.day_N[chosen])

    def labels_batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The labels of `indices` [B] side by side, int64 [B, U] (0-padded), and their lengths,
        int64 [B].
        """
        chosen = np.asarray(indices, dtype=np.int64)
        n_labels_B = self.n_labels_N[chosen]
        labels_BU = np.zeros((len(chosen), int(n_labels_B.max(initial=0))), dtype=np.int64)
        firsts = self.first_label_N[chosen].tolist()
        for labels_U, first, length in zip(labels_BU, firsts, n_labels_B.tolist(), strict=True):
            labels_U[:length] = self.label_tokens[first : first + length]
        return labels_BU, n_labels_B

    def select(
        self,
        *,
        sessions: Iterable[str] | None = None,
        bad_trials: BadTrials | None = None,
        feature_subset: Sequence[int] | None = None,
    ) -> PackedSplit:
        """This split with only some trials or features.

        Nothing is copied on disk and days keep their numbers.

        Args:
            sessions: Names to keep.
            bad_trials: Trials to leave out, `{session: {block: [trial, ...]}}` as the release's
                configuration has them.
            feature_subset: Features to keep, in this order, counted among those that this split
                shows.

        Raises:
            DataError: For an unknown session.
            ConfigError: For a feature that is not there.
        """
        keep = np.ones(len(self), dtype=bool)
        if sessions is not None:
            names = list(sessions)
            for name in names:
                if name not in self.sessions:
                    raise DataError(
                        f"unknown session {name!r}; {nearest(name, self.sessions)}",
                        where=self.path.parent,
                    )
            keep &= np.isin(self.day_N, [self.sessions.index(name) for name in names])
        for session, blocks in (bad_trials or {}).items():
            day = self.sessions.index(session) if session in self.sessions else -1
            for block, trials in blocks.items():
                keep &= ~(
                    (self.day_N == day)
                    & (self.block_N == int(block))
                    & np.isin(self.trial_N, list(trials))
                )
        return self._showing(np.flatnonzero(keep), feature_columns(self, feature_subset))

    def take(self, indices: np.ndarray) -> PackedSplit:
        """This split with only the trials of `indices`, in that order."""
        return self._showing(np.asarray(indices, dtype=np.int64), self.columns)

    def _showing(self, chosen: np.ndarray, columns: np.ndarray | None) -> PackedSplit:
        per_trial = (
            "n_bins_N",
            "day_N",
            "block_N",
            "trial_N",
            "n_labels_N",
            "first_bin_N",
            "first_label_N",
        )
        changes: dict[str, Any] = {name: getattr(self, name)[chosen] for name in per_trial}
        changes |= {
            name: tuple(getattr(self, name)[i] for i in chosen) for name in ("sentences", "corpora")
        }
        return replace(self, columns=columns, **changes)


def feature_columns(split: PackedSplit, feature_subset: Sequence[int] | None) -> np.ndarray | None:
    """Columns of the file that `feature_subset` of a split stands for."""
    if feature_subset is None:
        return split.columns
    subset = np.asarray(feature_subset, dtype=np.int64)
    if not subset.size or len(np.unique(subset)) != subset.size:
        raise ConfigError(
            "feature_subset is empty or names a feature twice; give distinct feature numbers"
        )
    outside = subset[(subset < 0) | (subset >= split.n_features)]
    if outside.size:
        raise ConfigError(
            f"feature_subset names feature {outside[0]}; the data has 0 to {split.n_features - 1}"
        )
    return subset if split.columns is None else split.columns[subset]


@dataclass(frozen=True, eq=False)
class PackedDataset:
    """A packed directory.

    Attributes:
        sessions: Names; `day_N` of the splits are positions in it.
        bad_trials: What was left out when it was packed, and why.
        post_implant_day: By session, where the release's table of blocks told.
        source: The directory of session files, with the size and time of change (ns) of each.
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

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits that have trials."""
        return tuple(self._splits)

    def split(self, name: str) -> PackedSplit:
        """The split of that name. Raises DataError where there is none."""
        if name not in self._splits:
            raise DataError(f"no split {name!r}; {nearest(name, self._splits)}", where=self.path)
        return self._splits[name]

    def select(
        self, *, bad_trials: BadTrials | None = None, feature_subset: Sequence[int] | None = None
    ) -> PackedDataset:
        """The dataset with `PackedSplit.select` applied to every split."""
        splits = {
            name: split.select(bad_trials=bad_trials, feature_subset=feature_subset)
            for name, split in self._splits.items()
        }
        return replace(self, _splits=splits, n_features=next(iter(splits.values())).n_features)

    def showing(self, splits: Mapping[str, PackedSplit]) -> PackedDataset:
        """The dataset with these splits, which show trials of its own."""
        return replace(self, _splits=dict(splits))

    def stale(self) -> bool:
        """Whether a session file was added, removed or changed since.

        False where the source is gone altogether.
        """
        try:
            return source_files(self.source) != self.source_files
        except (DataError, OSError):
            return False

    def verify(
        self, progress: Progress | None = None, *, splits: Iterable[str] | None = None
    ) -> None:
        """Read every byte, of all splits or some, and compare the checksums.

        Raises DataError for a difference.
        """
        chosen = {name: self.split(name) for name in (self.splits if splits is None else splits)}
        total = sum(size for split in chosen.values() for _, _, size in split.stored())
        done = 0
        for name, split in chosen.items():
            checksum = 0
            for path, byte, size in split.stored():
                with path.open("rb") as file:
                    file.seek(byte)
                    checksum = zlib.crc32(file.read(size), checksum)
                done += size
                if progress:
                    progress(done, total)
            if checksum != self.checksums[name]:
                found = f"checksum {checksum:08x} found, {self.checksums[name]:08x} expected"
                raise DataError(found, where=split.path, fix=AGAIN)


def source_files(root: Path) -> dict[str, tuple[int, int]]:
    """Size and time of change (ns) of every session file under `root`, by relative path."""
    files = [path for session in open_dataset(root).sessions for path in session.files.values()]
    return {
        str(path.relative_to(root)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in files
    }


def open_packed(path: str | Path) -> PackedDataset:
    """Open a packed directory; sizes and the index are checked.

    Raises DataError for anything else or a damaged one.
    """
    path = Path(path)
    index, arrays = read_index(path)
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
        {name: _open_split(path, name, index, arrays) for name in named},
    )


def _open_split(
    path: Path, name: str, index: dict[str, Any], arrays: dict[str, np.ndarray]
) -> PackedSplit:
    entry = index["splits"][name]
    n_bins_N, n_labels_N = arrays[f"{name}/n_bins"], arrays[f"{name}/n_labels"]
    first_bin_N = np.cumsum(n_bins_N) - n_bins_N
    shape = int(n_bins_N.sum()), int(index["n_features"])
    sizes = entry.get("records") or {
        f"{name}.f16": shape[0] * shape[1] * np.dtype(np.float16).itemsize
    }
    files = [path / file for file in sizes]
    for file, expected in zip(files, sizes.values(), strict=True):
        found = file.stat().st_size if file.is_file() else 0
        if found != expected:
            raise DataError(f"{found} bytes found, {expected} expected", where=file, fix=AGAIN)
    places = None
    if "records" in entry:
        at = zip(arrays[f"{name}/file"].tolist(), arrays[f"{name}/byte"].tolist(), strict=True)
        places = {
            first: (files[number], byte)
            for first, (number, byte) in zip(first_bin_N.tolist(), at, strict=True)
        }
    return PackedSplit(
        name=name,
        path=files[0],
        shape=shape,
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
        places=places,
    )
