"""Losses and gradients that are not finite: found without waiting for the device, and named."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cortext.data.packed import PackedSplit
from cortext.errors import RunError
from cortext.training.checkpoint import write_culprits
from cortext.training.distributed import Processes
from cortext.training.engine import Found
from cortext.training.loss import name_trials


def check_finite(
    found: Sequence[Found], run_dir: Path, split: PackedSplit, processes: Processes
) -> None:
    """Raise RunError for the first batch whose loss or gradient was not finite.

    All processes must ask.

    Its trials are in `not_finite.json` too: those whose loss was not finite, or all where only the
    gradient was.
    """
    if not found:
        return
    own = next((culprit for culprit in map(_culprits, found) if culprit is not None), None)
    culprits = [culprit for culprit in processes.gather(own) if culprit is not None]
    if not culprits:
        return
    step = min(culprit[0] for culprit in culprits)
    of_loss = any(culprit[1] for culprit in culprits if culprit[0] == step)
    indices = np.unique(
        np.concatenate([c[2] for c in culprits if c[0] == step and c[1] == of_loss])
    )
    what = f"the {'loss' if of_loss else 'gradient'} of batch {step} is not finite"
    if processes.first:
        trials = [
            (split.session(i), int(split.block_N[i]), int(split.trial_N[i]))
            for i in indices.tolist()
        ]
        write_culprits(run_dir, step, trials, what)
    fix = (
        "see not_finite.json there; leave these trials out with dataset.bad_trials_dict, or lower"
        " lr_max"
    )
    raise RunError(f"{what}, in trials {name_trials(split, indices)}", where=run_dir, fix=fix)


def _culprits(found: Found) -> tuple[int, bool, np.ndarray] | None:
    """Batch, whether a loss was at fault, and the trials; None where all is finite."""
    finite_B = np.isfinite(found.losses["loss"])
    if not finite_B.all():
        return found.step, True, found.indices[~finite_B]
    return None if math.isfinite(found.norm) else (found.step, False, found.indices)
