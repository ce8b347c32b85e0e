"""Trials of several packed directories as one dataset, held in memory."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cortext.data.store import PackedDataset, PackedSplit


def joined(datasets: Sequence[PackedDataset]) -> PackedDataset:
    """The trials that the datasets show, copied into memory, as one dataset.

    It is named after the first.

    Sessions are those of all, in the order in which they first come. The datasets have the same
    number of features.
    """
    sessions = tuple(dict.fromkeys(name for data in datasets for name in data.sessions))
    names = dict.fromkeys(name for data in datasets for name in data.splits)
    splits = {
        name: _joined([data.split(name) for data in datasets if name in data.splits], sessions)
        for name in names
    }
    bins = {name: split.in_memory for name, split in splits.items()}
    return replace(
        datasets[0],
        sessions=sessions,
        bad_trials=tuple(problem for data in datasets for problem in data.bad_trials),
        post_implant_day={
            session: day for data in datasets for session, day in data.post_implant_day.items()
        },
        source_files={},
        checksums={
            name: zlib.crc32(bins_TC.data) for name, bins_TC in bins.items() if bins_TC is not None
        },
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
        shape=(len(bins_TC), bins_TC.shape[1]),
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
        in_memory=bins_TC,
    )
