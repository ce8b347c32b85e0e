"""Losses and gradients that are not finite: found without waiting for the device, and named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from cortext.data.packed import PackedSplit
from cortext.errors import RunError
from cortext.training.checkpoint import write_culprits
from cortext.training.distributed import Processes
from cortext.training.loss import name_trials


class Watch:
    """Remembers what was finite in each batch, on the device, until somebody asks."""

    def __init__(self, run_dir: Path, split: PackedSplit, processes: Processes) -> None:
        self.run_dir, self.split, self.processes = run_dir, split, processes
        self._noted: list[tuple[int, np.ndarray, torch.Tensor, torch.Tensor]] = []

    def note(self, step: int, indices: np.ndarray, losses_B: torch.Tensor, norm: torch.Tensor) -> None:
        """The losses of this process's trials (`indices`) in batch `step`, and the norm of the whole gradient."""
        self._noted.append((step, indices, losses_B.isfinite(), norm))

    def check(self) -> None:
        """Raise RunError for the first batch noted whose loss or gradient was not finite; all processes must ask.

        Its trials are in `not_finite.json` too: those whose loss was not finite, or all where only the gradient was.
        """
        noted, self._noted = self._noted, []
        if not noted:
            return
        sound = torch.stack([finite_B.all() & norm.isfinite() for _, _, finite_B, norm in noted]).tolist()
        found = self.processes.gather(self._culprits(*noted[sound.index(False)]) if not all(sound) else None)
        culprits = [culprit for culprit in found if culprit is not None]
        if not culprits:
            return
        step = min(culprit[0] for culprit in culprits)
        of_loss = any(culprit[1] for culprit in culprits if culprit[0] == step)
        indices = np.unique(np.concatenate([c[2] for c in culprits if c[0] == step and c[1] == of_loss]))
        what = f"the {'loss' if of_loss else 'gradient'} of batch {step} is not finite"
        if self.processes.first:
            split = self.split
            trials = [(split.session(i), int(split.block_N[i]), int(split.trial_N[i])) for i in indices.tolist()]
            write_culprits(self.run_dir, step, trials, what)
        fix = "see not_finite.json there; leave these trials out with dataset.bad_trials_dict, or lower lr_max"
        raise RunError(f"{what}, in trials {name_trials(self.split, indices)}", where=self.run_dir, fix=fix)

    @staticmethod
    def _culprits(
        step: int, indices: np.ndarray, finite_B: torch.Tensor, norm: torch.Tensor
    ) -> tuple[int, bool, np.ndarray]:
        """Batch, whether a loss was at fault, and the trials."""
        finite = finite_B.cpu().numpy()
        return (step, True, indices[~finite]) if not finite.all() else (step, False, indices)
