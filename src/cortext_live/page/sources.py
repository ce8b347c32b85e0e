"""The sources of trials: recordings, or a simulated participant without end.

T bins, C features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from cortext.data import PackedSplit, Trial
from cortext.data.conventions import Conventions
from cortext.errors import DataError, RunError, nearest
from cortext.training.participants.recordings import open_for
from cortext_data.simulate import preset_config
from cortext_data.simulate.brain import electrodes
from cortext_data.simulate.material import material_of
from cortext_data.simulate.plan import PlannedBlock, PlannedTrial, plan_days
from cortext_data.simulate.write import simulate_block

Kind = Literal["replay", "simulator"]
SIMULATED_BLOCK = 10
"""Trials simulated together: features are z-scored over a block, as those of a recording are."""

LAST_SIMULATED = 2**31


class TrialSource(Protocol):
    """Trials by number.

    Attributes:
        kind: Its kind.
        n_features: Features of a bin.
        conventions: Tokens, language and length of a bin.
        sessions: Recording days that there are trials of.
    """

    kind: Kind
    n_features: int
    conventions: Conventions
    sessions: tuple[str, ...]

    def listing(self) -> list[dict[str, Any]]:
        """Return `id, session, block, trial` of each trial; none where they never end."""
        ...

    def trial(self, number: int) -> Trial:
        """Return a trial. Raises DataError for one that does not exist or cannot be read."""
        ...

    def after(self, number: int | None, session: str | None) -> int | None:
        """Return the number of the next trial; None: there is none.

        Args:
            number: The trial before it; None for the first.
            session: Only trials of this session; None for any.
        """
        ...


class Replay:
    """A split of recordings: session files or a packed directory.

    Args:
        data: A directory that `open_data` takes; it raises for bad data.
        split: train, val or test.
        model: Conventions of the model; bins of session files are joined as they were for its
            training. None joins none.
        loop: Begin again after the last trial.
        skip_bad: Leave out damaged recordings.
        progress: Called with the number of trials read and in all.
    """

    kind: Kind = "replay"

    def __init__(
        self,
        data: str | Path,
        split: str = "val",
        *,
        model: Conventions | None = None,
        loop: bool = False,
        skip_bad: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        packed = open_for(model, data, skip_bad=skip_bad, progress=progress)
        self._split: PackedSplit = packed.split(split)
        self._loop = loop
        self.n_features = packed.n_features
        self.conventions = packed.conventions
        days = np.unique(self._split.day_N)
        self.sessions = tuple(packed.sessions[day] for day in days)

    def listing(self) -> list[dict[str, Any]]:
        """See `TrialSource`."""
        split = self._split
        return [
            {
                "id": i,
                "session": split.session(i),
                "block": int(split.block_N[i]),
                "trial": int(split.trial_N[i]),
            }
            for i in range(len(split))
        ]

    def trial(self, number: int) -> Trial:
        """See `TrialSource`.

        The file is read, not mapped: a mapped file that is cut short would end the process.
        """
        split = self._split
        if not 0 <= number < len(split):
            raise DataError(f"no trial {number}; there are 0 to {len(split) - 1}", where=split.path)
        n_bins = int(split.n_bins_N[number])
        width = split.bins.shape[1]
        path, byte = split.location(number)
        try:
            with path.open("rb") as file:
                file.seek(byte)
                stored = np.frombuffer(file.read(n_bins * width * 2), dtype=np.float16)
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", where=path) from None
        if stored.size != n_bins * width:
            raise DataError(
                "the file has become shorter", where=path, fix="pack the session files again"
            )
        features_TC = stored.reshape(n_bins, width).astype(np.float32)
        block, trial = int(split.block_N[number]), int(split.trial_N[number])
        return Trial(
            features_TC,
            split.session(number),
            block,
            trial,
            split.sentence(number),
            conventions=self.conventions,
        )

    def after(self, number: int | None, session: str | None) -> int | None:
        """See `TrialSource`. Raises DataError for a session without trials."""
        split = self._split
        if session is None:
            chosen: Sequence[int] = range(len(split))
        elif session in self.sessions:
            chosen = np.flatnonzero(
                [split.session(i) == session for i in range(len(split))]
            ).tolist()
        else:
            raise DataError(f"no trials of session {session!r}; {nearest(session, self.sessions)}")
        later = next((i for i in chosen if number is None or i > number), None)
        return chosen[0] if later is None and self._loop and chosen else later


class Simulator:
    """A simulated participant who says the held-out sentences again and again, with new noise.

    The model must have been trained on such data.

    Args:
        preset: See `cortext simulate`.
        sessions: The days that the model knows: the last of them that the preset simulates is
            today.
        overrides: See `cortext simulate`.

    Raises:
        ConfigError: A preset or override is wrong.
        RunError: The model knows none of the days.
    """

    kind: Kind = "simulator"

    def __init__(self, preset: str, sessions: Sequence[str], overrides: Iterable[str] = ()) -> None:
        config = preset_config(preset, overrides)
        config, material = material_of(config, preset)
        prompts, _ = material.prompts(config)
        held_out = [*prompts["val"], *prompts["test"]] or prompts["train"]
        days = {day.session: day for day in plan_days(config, prompts)}
        known = [session for session in days if session in sessions]
        if not known:
            problem = (
                f"the run knows none of the days that {preset!r} simulates ({min(days)} to"
                f" {max(days)})"
            )
            raise RunError(problem, fix="give a run that was trained on such data")
        day = days[known[-1]]
        e = electrodes(config, day.history)
        self.sessions: tuple[str, ...] = (day.session,)
        self.n_features = config.n_features
        self.conventions = config.conventions

        @lru_cache(maxsize=2)
        def block(number: int) -> list[Trial]:
            prompted = [
                held_out[(number * SIMULATED_BLOCK + i) % len(held_out)]
                for i in range(SIMULATED_BLOCK)
            ]
            trials = tuple(PlannedTrial(i, "val", prompt) for i, prompt in enumerate(prompted))
            # Block numbers follow those that the training data have.
            planned = PlannedBlock(day.blocks[-1].number + 1 + number, trials)
            return [simulated.trial for simulated in simulate_block(config, day, planned, e)]

        self._block = block

    def listing(self) -> list[dict[str, Any]]:
        """See `TrialSource`."""
        return []

    def trial(self, number: int) -> Trial:
        """See `TrialSource`. The same number is the same trial, bit for bit."""
        if not 0 <= number < LAST_SIMULATED:
            raise DataError(f"no trial {number}; there are 0 to {LAST_SIMULATED - 1}")
        block, place = divmod(number, SIMULATED_BLOCK)
        return self._block(block)[place]

    def after(self, number: int | None, session: str | None) -> int | None:
        """See `TrialSource`."""
        if session is not None and session not in self.sessions:
            raise DataError(f"the simulation is of session {self.sessions[0]!r}, not {session!r}")
        return 0 if number is None else number + 1
