"""A small set of recordings for attacks, and files of another person beside it."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from cortext.data import Trial, write_session

DAY = "t15.2023.08.11"
OTHER_DAY = "t15.2023.08.13"
N_FEATURES = 16
BINS = 64
LABELS = np.array([8, 3, 40])
SECRET = 1234.5
"""The value that another file on the machine holds."""


def write_recordings(folder: Path) -> Path:
    """Write two sessions of three trials into `data`, and beside it another person's files.

    Return the folder.
    """
    generator = np.random.default_rng(0)
    for day in (DAY, OTHER_DAY):
        trials = [
            Trial(
                generator.standard_normal((BINS, N_FEATURES), np.float32),
                day,
                1,
                number,
                "a text",
                LABELS,
            )
            for number in range(3)
        ]
        write_session(folder / "data" / day / "data_train.hdf5", trials)
    with h5py.File(folder / "secret.hdf5", "w") as file:
        file["x"] = np.full((BINS, N_FEATURES), SECRET, np.float32)
    (folder / "secret.raw").write_bytes(np.full((BINS, N_FEATURES), SECRET, np.float32).tobytes())
    return folder
