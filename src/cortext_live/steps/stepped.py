"""Phoneme errors of models that run patch by patch.

Shapes: P frames, V tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cortext.data import PackedDataset
from cortext.decoding.log_probs import greedy, log_softmax
from cortext.errors import DataError
from cortext.features import smooth
from cortext.processes import Progress
from cortext.text.metrics import error_rate
from cortext.training.participants.recordings import open_for
from cortext_live.steps.stepper import Stepper, patches_of


def stepped_errors(
    steppers: Mapping[str, Stepper],
    data: str | Path | PackedDataset,
    split: str = "val",
    progress: Progress | None = None,
) -> dict[str, dict[str, Any]]:
    """Measure PER of each stepper over the trials of a labelled split.

    Trials are smoothed as at evaluation, and each uses its day's layer.

    Args:
        steppers: Steppers by name.
        data: Directory of session files, a packed one, or its data.
        split: `train`, `val` or `test`.
        progress: Called with trials done and in all.

    Returns:
        By name `per`, `ci95`, `n_trials`, and `other_frames`, the share of frames whose best token
        is not the first stepper's.

    Raises:
        DataError: For data without labels, or of other conventions than a stepper's.
        RunError: For a session that a stepper does not know.
    """
    packed = open_for(next(iter(steppers.values())).conventions, data)
    for name, stepper in steppers.items():
        theirs = f"the model {name!r}"
        packed.conventions.require(
            stepper.conventions,
            mine="the data",
            theirs=theirs,
            where=packed.path,
            by_number=False,
        )
    trials = packed.split(split)
    references: list[list[str]] = []
    logits_of: dict[str, list[np.ndarray]] = {name: [] for name in steppers}
    for i in range(len(trials)):
        if (labels_U := trials.labels(i)) is None:
            continue
        references.append(packed.conventions.inventory.names(labels_U))
        features_TC = trials.batch([i]).features_BTC[0]
        for name, stepper in steppers.items():
            stepper.use(trials.session(i))
            logits_of[name].append(step_through(stepper, features_TC))
        if progress:
            progress(i + 1, len(trials))
    if not references:
        raise DataError(
            f"split {split!r} has no labelled trials",
            where=packed.path,
            fix="name a labelled split",
        )
    first = _best_tokens(next(iter(logits_of.values())))
    errors = {}
    for name, logits in logits_of.items():
        inventory = steppers[name].inventory
        decoded = [inventory.names(greedy(log_softmax(x), inventory)) for x in logits]
        rate = error_rate(references, decoded, unit="phoneme")
        errors[name] = {
            "per": rate.rate,
            "ci95": [rate.low, rate.high],
            "other_frames": float(np.mean(_best_tokens(logits) != first)),
            "n_trials": rate.n_trials,
        }
    return errors


def _best_tokens(logits: Sequence[np.ndarray]) -> np.ndarray:
    """Return the best token of every frame of all trials."""
    return np.concatenate([logits_PV.argmax(axis=1) for logits_PV in logits])


def step_through(stepper: Stepper, features_TC: np.ndarray) -> np.ndarray:
    """Return logits float32 [P, V] of raw features float [T, C], one patch after another.

    Raises:
        DataError: For a trial that is too short for one frame.
    """
    x_TC = np.asarray(features_TC, dtype=np.float32)
    smoothing = stepper.smoothing
    # A model that pads its last patch gives a frame for a single bin.
    needed = 1 if stepper.pads_last_patch else stepper.patch_size
    needed += smoothing.lost_bins
    if len(x_TC) < needed:
        raise DataError(f"a trial has {len(x_TC)} bins; one frame of this model needs {needed}")
    if smoothing.smooth_data:
        std_bins, size = smoothing.smooth_kernel_std, smoothing.smooth_kernel_size
        # As at evaluation: no bins are made up beyond the ends of the trial.
        x_TC = smooth(torch.from_numpy(x_TC)[None], std_bins, size, padding="valid")[0].numpy()
    stepper.start()
    return np.stack([stepper.step(bins_SC) for bins_SC in patches_of(stepper, x_TC)])
