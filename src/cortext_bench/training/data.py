"""Materials of both sides of the training benchmark: session files, and the same trials packed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cortext.data import (
    DayBalancedSampler,
    PackedSplit,
    Trial,
    open_packed,
    pack,
    write_session,
)
from cortext.data.dataset import open_session_files
from cortext_data.simulate import simulate

LABEL_BINS = 15
"""Bins per phoneme of the noise recordings: 300 ms, as in attempted speech."""


@dataclass(frozen=True)
class SimulatedRecordings:
    """Simulated recordings for a comparison.

    Attributes:
        preset: A simulator's preset, or None for noise: timing does not depend on the values.
        bins: The longest trial; lengths are uniform from half of it up.
    """

    n_sessions: int
    trials_per_session: int
    n_features: int
    bins: int
    preset: str | None = None

    def write(self, folder: Path) -> None:
        """Write `folder/data` (session files) and `folder/packed`."""
        if self.preset is None:
            write_noise(folder / "data", self)
        else:
            counts = {
                "train_per_day": self.trials_per_session,
                "val_per_day": max(2, self.trials_per_session // 8),
            }
            counts |= {
                "test_per_day": 1,
                "n_days": self.n_sessions,
                "n_electrodes": self.n_features // 2,
            }
            overrides = [f"{name}={value}" for name, value in counts.items()]
            simulate(folder / "data", self.preset, seed=1, overrides=overrides)
        pack(folder / "data", folder / "packed")


def write_noise(root: Path, recording: SimulatedRecordings) -> None:
    """Write session files of noise with labels drawn at random.

    Every trial is another stretch of the same noise.
    """
    generator = np.random.default_rng(0)
    longest = recording.bins
    noise = generator.standard_normal((2 * longest, recording.n_features), dtype=np.float32)

    def trials(session: str, count: int) -> Iterator[Trial]:
        for number in range(count):
            start = int(generator.integers(longest))
            length = int(generator.integers(longest // 2, longest + 1))
            labels_U = generator.integers(1, 41, max(1, length // LABEL_BINS))
            yield Trial(noise[start : start + length], session, 1, number, "a bench mark", labels_U)

    for day in range(recording.n_sessions):
        session = f"t15.20{23 + day // 12}.{day % 12 + 1:02d}.01"
        write_session(
            root / session / "data_train.hdf5", trials(session, recording.trials_per_session)
        )
        write_session(root / session / "data_val.hdf5", trials(session, 1))


class ReleaseBatches(Sequence):
    """The batches that our sampler draws, in the form that the release's loader takes.

    A batch has, by day, a file and the numbers of its trials.
    """

    def __init__(self, folder: Path, sampler: DayBalancedSampler, split: PackedSplit) -> None:
        self.sampler = sampler
        self.day_N = split.day_N
        self.paths = training_files(folder, split)
        self.number_N = numbers_in_files(split)

    def __len__(self) -> int:
        return 1 << 30  # a batch is drawn when it is asked for

    def __getitem__(self, step: int) -> dict[int, tuple[Path, list[int]]]:  # type: ignore[override]
        indices = self.sampler.indices(step)
        days = self.day_N[indices]
        return {
            int(day): (self.paths[int(day)], self.number_N[indices[days == day]].tolist())
            for day in dict.fromkeys(days.tolist())
        }


def training_files(folder: Path, split: PackedSplit) -> list[Path]:
    """Return the session file in `folder/data` for every day of a packed split."""
    sessions = {session.name: session for session in open_session_files(folder / "data").sessions}
    return [sessions[name].files[split.name] for name in split.sessions]


def numbers_in_files(split: PackedSplit) -> np.ndarray:
    """Return the number of each trial's group in its session file, int64 [N].

    Trials are packed in the order of the files.
    """
    number_N = np.zeros(len(split), dtype=np.int64)
    for day in np.unique(split.day_N):
        of_day = np.flatnonzero(split.day_N == day)
        number_N[of_day] = np.arange(len(of_day))
    return number_N


def validation_files(folder: Path) -> dict[int, tuple[Path, list[int]]]:
    """Return the validation trials as the restated trainer takes them: by day, file and numbers."""
    split = open_packed(folder / "packed").split("val")
    paths = training_files(folder, split)
    numbers = numbers_in_files(split)
    return {
        int(day): (paths[day], numbers[split.day_N == day].tolist())
        for day in np.unique(split.day_N)
    }
