"""The trials of one split of packed data, and batches of them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from cortext.arguments import as_count, check_list, check_type
from cortext.data.bin_source import BinSource
from cortext.data.conventions import RELEASE_CONVENTIONS, Conventions
from cortext.data.trial import Trial
from cortext.describe import Described, some
from cortext.errors import ConfigError, DataError, nearest

BadTrials = Mapping[str, Mapping[Any, Iterable[int]]]

MAX_BUFFERS = 4
"""Most buffers that are kept; further batches that live at once get memory of their own."""
HEADROOM = 1.25
"""Size of a new buffer over the batch it is made for: a batch that is a little longer fits, too."""


class BufferPool:
    """Uninitialised arrays whose memory is used again once nothing refers to them.

    A batch is some 60 MB, for which every allocation gets fresh pages from the system; filling
    those costs more than copying the trials. Arrays, and tensors made from them, refer to their
    buffer, so its reference count tells whether it is free.
    """

    def __init__(self, dtype: type[np.generic]) -> None:
        self._dtype = np.dtype(dtype)
        self._buffers: list[np.ndarray] = []
        self._lock = Lock()

    def array(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return an array whose content is arbitrary."""
        size = math.prod(shape)
        with self._lock:
            free = [i for i in range(len(self._buffers)) if self._references(i) == _FREE]
            fitting = [i for i in free if self._buffers[i].size >= size]
            if fitting:
                return self._buffers[fitting[0]][:size].reshape(shape)
            buffer = np.empty(int(size * HEADROOM), dtype=self._dtype)
            if free:
                self._buffers[free[0]] = buffer
            elif len(self._buffers) < MAX_BUFFERS:
                self._buffers.append(buffer)
        return buffer[:size].reshape(shape)

    def _references(self, i: int) -> int:
        return sys.getrefcount(self._buffers[i])


def _references_when_free() -> int:
    pool = BufferPool(np.float16)
    pool._buffers.append(np.empty(0))
    return pool._references(0)


# Measured: the number depends on how the interpreter holds an argument while it counts.
_FREE = _references_when_free()


@dataclass(frozen=True, slots=True, repr=False)
class Batch(Described):
    """Trials side by side, zero-padded to the longest (or to `pad_to`) and to the longest label.

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

    def _facts(self) -> dict[str, Any]:
        n_trials, n_bins, n_features = self.features_BTC.shape
        return {
            "trials": n_trials,
            "bins": n_bins,
            "features": n_features,
            "labels": self.labels_BU.shape[1],
            "days": len(np.unique(self.day_B)),
        }


@dataclass(frozen=True, eq=False, repr=False)
class PackedSplit(Described):
    """The trials of one split, readable in any order.

    Arrays have one entry per trial (`_N`), all int64. Indices into a split count the trials it
    shows: `select` gives a split that shows fewer of them, or fewer features.
    """

    name: str
    path: Path
    bins: BinSource = field(repr=False)
    """The features of all trials that were packed, also of those that are not shown."""
    sessions: tuple[str, ...]
    n_bins_N: np.ndarray
    day_N: np.ndarray
    """Position of the trial's session in `sessions`."""
    block_N: np.ndarray
    trial_N: np.ndarray
    n_labels_N: np.ndarray
    """Tokens in the label; 0 where labels are withheld."""
    first_bin_N: np.ndarray
    first_label_N: np.ndarray
    label_tokens: np.ndarray = field(repr=False)
    """Labels of all trials one after another, int16."""
    sentences: tuple[str | None, ...] = field(repr=False)
    corpora: tuple[str | None, ...] = field(repr=False)
    columns: np.ndarray | None = None
    """Features shown, as columns of the file; all by default."""
    conventions: Conventions = RELEASE_CONVENTIONS
    """Tokens, language and length of a bin."""

    def __len__(self) -> int:
        return len(self.n_bins_N)

    @property
    def n_features(self) -> int:
        """Features shown."""
        return self.bins.shape[1] if self.columns is None else len(self.columns)

    def _facts(self) -> dict[str, Any]:
        days = [self.sessions[day] for day in np.unique(self.day_N)]
        minutes = int(self.n_bins_N.sum()) * self.conventions.bin_ms / 60_000
        return {
            "split": self.name,
            "trials": len(self),
            "with labels": int(np.count_nonzero(self.n_labels_N)),
            "sessions": some(days),
            "features": self.n_features,
            "minutes": f"{minutes:.1f}",
            **self.conventions.facts(),
            "in": self.path.parent,
        }

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
        """Leave the buffers out: worker processes have their own."""
        return {name: value for name, value in self.__dict__.items() if name != "_pool"}

    def features(self, i: int) -> np.ndarray:
        """Return the features of trial `i`, float16 [T, C].

        It is a read-only view of the map (a copy where scattered features are selected).
        """
        # Bins in a TFRecord may begin anywhere: they are copied where they are not aligned.
        return np.require(self._rows(i)[:, self._columns], requirements="A")

    def _position(self, i: int) -> int:
        """Return the number of a trial; negative ones count from the end. Raises DataError."""
        number = as_count(i, "the number of a trial", -len(self))
        if number >= len(self):
            raise DataError(
                f"there is no trial {number}; split {self.name!r} has {len(self)}",
                where=self.path.parent,
            )
        return number

    def _positions(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return numbers of trials, int64 [B]. Raises DataError for others than there are."""
        chosen = np.asarray(check_list(indices, "indices", "a list of trials' numbers"))
        if chosen.ndim != 1 or (len(chosen) and chosen.dtype.kind not in "iu"):
            raise DataError(
                f"indices have shape {list(chosen.shape)} and type {chosen.dtype}; whole numbers"
                " [trials] are needed"
            )
        if len(chosen):
            self._position(chosen.min())
            self._position(chosen.max())
        return chosen.astype(np.int64, copy=False)

    def _rows(self, i: int) -> np.ndarray:
        i = self._position(i)
        return self.bins.rows(int(self.first_bin_N[i]), int(self.n_bins_N[i]))

    def location(self, i: int) -> tuple[Path, int]:
        """Return the file that holds all features of trial `i`, float16 [T, C], and their byte."""
        return self.bins.location(int(self.first_bin_N[self._position(i)]))

    def labels(self, i: int) -> np.ndarray | None:
        """Return the tokens of trial `i`, int64 [U]; None where labels are withheld."""
        i = self._position(i)
        first = int(self.first_label_N[i])
        n_labels = int(self.n_labels_N[i])
        return self.label_tokens[first : first + n_labels].astype(np.int64) if n_labels else None

    def sentence(self, i: int) -> str | None:
        """Return the prompt of trial `i`; None where it is withheld."""
        return self.sentences[self._position(i)]

    def session(self, i: int) -> str:
        """Return the name of the session of trial `i`."""
        return self.sessions[int(self.day_N[self._position(i)])]

    def trial(self, i: int) -> Trial:
        """Return trial `i` with float32 features in memory of its own."""
        features_TC = np.array(self.features(i), dtype=np.float32)
        block = int(self.block_N[i])
        trial = int(self.trial_N[i])
        return Trial(
            features_TC,
            self.session(i),
            block,
            trial,
            self.sentences[i],
            self.labels(i),
            self.corpora[i],
            self.conventions,
        )

    def batch(self, indices: Sequence[int] | np.ndarray, pad_to: int | None = None) -> Batch:
        """Return the trials of `indices` [B] side by side, `pad_to` bins long where it is given.

        Raises DataError for a trial that is longer.
        """
        chosen = self._positions(indices)
        n_bins_B = self.n_bins_N[chosen]
        longest = int(n_bins_B.max(initial=0))
        n_bins = longest if pad_to is None else pad_to
        if n_bins < longest:
            raise DataError(
                f"pad_to is {pad_to}; the longest trial of the batch has {longest} bins",
                where=self.name,
            )
        features_BTC = self._pool.array((len(chosen), n_bins, self.n_features))
        rows = self.bins.rows
        columns = self._columns
        firsts = self.first_bin_N[chosen].tolist()
        for features_TC, first, length in zip(features_BTC, firsts, n_bins_B.tolist(), strict=True):
            features_TC[:length] = rows(first, length)[:, columns]
            features_TC[length:] = 0  # the buffer still holds an earlier batch
        return Batch(features_BTC, n_bins_B, *self.labels_batch(chosen), self.day_N[chosen])

    def labels_batch(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return labels of `indices` [B], int64 [B, U] (0-padded), and their lengths, int64 [B]."""
        chosen = self._positions(indices)
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
        """Return this split with only some trials or features.

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
            names = list(check_list(sessions, "sessions", "a list of names"))
            for name in names:
                if name not in self.sessions:
                    raise DataError(
                        f"unknown session {name!r}; {nearest(name, self.sessions)}",
                        where=self.path.parent,
                    )
            keep &= np.isin(self.day_N, [self.sessions.index(name) for name in names])
        kinds = Mapping, type(None)
        check_type(bad_trials, kinds, "bad_trials", "a mapping of sessions to blocks")
        for session, blocks in (bad_trials or {}).items():
            check_type(blocks, Mapping, f"bad_trials of {session}", "a mapping of blocks to trials")
            day = self.sessions.index(session) if session in self.sessions else -1
            for block, trials in blocks.items():
                keep &= ~(
                    (self.day_N == day)
                    & (self.block_N == int(block))
                    & np.isin(self.trial_N, list(trials))
                )
        return self._showing(np.flatnonzero(keep), feature_columns(self, feature_subset))

    def take(self, indices: np.ndarray) -> PackedSplit:
        """Return this split with only the trials of `indices`, in that order."""
        return self._showing(self._positions(indices), self.columns)

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
    """Return the columns of the file that `feature_subset` of a split stands for."""
    if feature_subset is None:
        return split.columns
    given = check_list(feature_subset, "feature_subset", "a list of numbers")
    subset = np.array([as_count(number, "a feature") for number in given], np.int64)
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
