"""Logits of the trials of a split, in batches.

Shapes: B trials, T bins, C features, P patches, V tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cortext.data import PackedSplit
from cortext.models import AcousticModel
from cortext.processes import Progress

TRIALS_AT_ONCE = 16


def logits_of(
    model: AcousticModel,
    split: PackedSplit,
    chosen: Sequence[int],
    progress: Progress | None,
    change: Callable[[int, np.ndarray], np.ndarray] | None = None,
) -> list[np.ndarray]:
    """Return the logits of trials.

    Args:
        model: The model.
        split: A split that it can read.
        chosen: Positions of the trials in the split.
        progress: Called with trials done and in all.
        change: Changes the features, float32 [T, C], of a trial, by its place in `chosen`; None
            leaves them.

    Returns:
        float32 [P, V] of each chosen trial.
    """
    # Trials of similar length go through the model together: a batch is padded to its longest.
    by_length = sorted(range(len(chosen)), key=lambda n: int(split.n_bins_N[chosen[n]]))
    logits: list[Any] = [None] * len(chosen)
    for start in range(0, len(by_length), TRIALS_AT_ONCE):
        numbers = by_length[start : start + TRIALS_AT_ONCE]
        rows = [chosen[n] for n in numbers]
        batch = split.batch(rows)
        sessions = [split.session(row) for row in rows]
        if change is not None:
            for n, x_TC, n_bins in zip(numbers, batch.features_BTC, batch.n_bins_B, strict=True):
                x_TC[:n_bins] = change(n, x_TC[:n_bins])
        logits_BPV, n_patches_B = model.logits_batch(batch.features_BTC, sessions, batch.n_bins_B)
        for n, logits_PV, n_patches in zip(numbers, logits_BPV, n_patches_B.tolist(), strict=True):
            # A copy: a view would keep the whole padded batch in memory.
            logits[n] = logits_PV[:n_patches].copy()
        if progress:
            progress(start + len(numbers), len(chosen))
    return logits
