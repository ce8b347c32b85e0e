"""Logits of a validation, saved: an ensemble or another search needs no model then."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from cortext.data.disk import disk_errors, replace_directory, temporary_name
from cortext.data.packed import PackedSplit
from cortext.training.validate import TrialResult


def write_logits(folder: Path, split: PackedSplit, results: list[TrialResult]) -> None:
    """A file a trial, `<session>_b<block>_t<trial>.npy`, float16 [P, V] in the model's order.

    An older folder goes.
    """
    temporary = temporary_name(folder)
    with disk_errors(folder):
        try:
            temporary.mkdir(parents=True)
            for i, result in enumerate(results):
                name = f"{split.session(i)}_b{split.block_N[i]:02d}_t{split.trial_N[i]:03d}.npy"
                assert result.logits_PV is not None
                np.save(temporary / name, result.logits_PV)
            replace_directory(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
