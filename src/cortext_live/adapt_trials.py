"""Choice of the trials that a model adapts to: trials of the new day, and some of known days."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cortext.data.packed import PackedDataset, PackedSplit
from cortext.errors import DataError, nearest
from cortext.models import AcousticModel
from cortext.processes import Progress
from cortext.training.config import TrainConfig
from cortext.training.participants.recordings import open_for
from cortext.training.setup import with_labels


def opened(
    data: str | Path | PackedDataset,
    model: AcousticModel,
    splits: Sequence[str],
    skip_bad: bool,
    reading: Progress,
    shown: bool,
) -> PackedDataset:
    """Return the data, opened and verified, with bins joined as they were for the model.

    Args:
        data: Packed directory, directory of session files, or data that are open already; these
            are only checked for their conventions and number of features.
        model: The model that is adapted.
        splits: Names of the splits to verify, where the data have them.
        skip_bad: Leave out trials that cannot be read, as in `pack`.
        reading: Progress callback, called with the parts done and their total.
        shown: Print a line where bins are joined.

    Raises:
        DataError: For data that cannot be read, and for those whose conventions or number of
            features are not the model's.
    """
    is_open = isinstance(data, PackedDataset)
    data = open_for(model.conventions, data, skip_bad=skip_bad, progress=reading, shown=shown)
    if not is_open:
        data.verify(reading, splits=[name for name in splits if name in data.splits])
    data.conventions.require(
        model.conventions,
        mine="the data",
        theirs="the run",
        where=data.path,
        fix="give recordings like those the run was trained on",
    )
    if data.n_features != model.n_features:
        problem = f"{data.n_features} features found, the model needs {model.n_features}"
        raise DataError(
            problem, where=data.path, fix="give recordings like those the run was trained on"
        )
    return data


@dataclass(frozen=True)
class DayTrials:
    """The trials of a day to adapt to.

    Attributes:
        session: The day.
        data: The recordings, showing the day's trials alone.
        n_unlabelled: Number of its training trials that were left out because they have no label.
    """

    session: str
    data: PackedDataset
    n_unlabelled: int


def choose_day(
    model: AcousticModel,
    data: PackedDataset,
    wanted: str | None,
    trials: int | None,
    config: TrainConfig,
) -> DayTrials:
    """Return the day to adapt to, with its trials.

    Args:
        model: The model that is adapted.
        data: The recordings.
        wanted: See `session_to_adapt_to`.
        trials: See `trials_of_day`.
        config: See `trials_of_day`.
    """
    labelled = with_labels(data)
    recorded = [labelled.sessions[day] for day in np.unique(labelled.split("train").day_N)]
    wanted_of = "training trials of session {} with a label"
    name = session_to_adapt_to(model, recorded, wanted, labelled.path, wanted_of)
    every, known = (
        len(in_order_of_recording(each.split("train"), name)) for each in (data, labelled)
    )
    return DayTrials(name, trials_of_day(labelled, name, trials, config), every - known)


def session_to_adapt_to(
    model: AcousticModel, recorded: Sequence[str], wanted: str | None, where: Path, trials: str
) -> str:
    """Return the day to adapt to.

    Args:
        model: The model that is adapted.
        recorded: Sessions that have trials to learn from.
        wanted: Session to adapt to. None takes the only session that the model does not know; if
            the model knows all, the only session.
        where: The data, for messages.
        trials: Trials of a session that can be learnt from, with a place for its name: "training
            trials of session {}".

    Raises:
        DataError: If `wanted` is not recorded, or if None leaves no session, or several to choose
            from.
    """
    if wanted is not None:
        if wanted not in recorded:
            problem = f"there are no {trials.format(repr(wanted))}; {nearest(wanted, recorded)}"
            raise DataError(problem, where=where)
        return wanted
    unknown = [name for name in recorded if name not in model.sessions]
    choice: Sequence[str] = unknown or recorded
    if not choice:
        raise DataError("there are no trials to learn from", where=where)
    if len(choice) > 1:
        problem = (
            f"{len(choice)} sessions are new to the model"
            if unknown
            else "the model knows every session here"
        )
        raise DataError(
            f"{problem}: {', '.join(choice)}", where=where, fix="name one with --session"
        )
    return choice[0]


def in_order_of_recording(split: PackedSplit, session: str) -> np.ndarray:
    """Return the numbers of the session's trials, int64, in the order of recording."""
    trials = np.flatnonzero(split.day_N == split.sessions.index(session))
    return trials[np.lexsort((split.trial_N[trials], split.block_N[trials]))]


def trials_of_day(
    data: PackedDataset, session: str, trials: int | None, config: TrainConfig
) -> PackedDataset:
    """Return the data with only the day's first training trials and its validation split.

    Args:
        data: The recordings.
        session: The day.
        trials: Number of training trials, in the order of recording; None for all.
        config: Training configuration, whose bad trials are left out.

    Raises:
        DataError: For more trials than the day has, or for one trial without a validation split.
    """
    data = data.select(bad_trials=config.dataset.bad_trials_dict)
    train = data.split("train")
    recorded = in_order_of_recording(train, session)
    validates = "val" in data.splits and len(in_order_of_recording(data.split("val"), session)) > 0
    count = len(recorded) if trials is None else trials
    if count > len(recorded):
        problem = (
            f"session {session} has {len(recorded)} training trials, and {count} are asked for"
        )
        raise DataError(
            problem, where=data.path, fix=f"give --trials {len(recorded)}, or leave it out"
        )
    if count < 2 and not validates:
        problem = f"one trial of session {session} cannot be both learnt from and validated on"
        raise DataError(problem, where=data.path, fix="give --trials 2 or more")
    splits = {"train": train.take(recorded[:count])}
    if validates:
        splits["val"] = data.split("val").select(sessions=[session])
    return data.showing(splits)


def trials_of_old_days(
    data: PackedDataset, known: Sequence[str], most: int, config: TrainConfig
) -> PackedDataset:
    """Return the data with some training trials, evenly spread over the known days.

    Args:
        data: The recordings.
        known: Sessions to take trials from, in the order of recording.
        most: Most trials in all. Where they do not divide evenly, the latest days get one more.
        config: Training configuration, whose bad trials are left out.

    Raises:
        DataError: If the data have training trials of no known day.
    """
    data = data.select(bad_trials=config.dataset.bad_trials_dict)
    train = data.split("train")
    days = [
        trials
        for name in known
        if name in data.sessions and len(trials := in_order_of_recording(train, name))
    ]
    if not days:
        problem = f"none of its sessions is known to the model; known: {', '.join(known)}"
        raise DataError(
            problem, where=data.path, fix="give data of the days it was trained on as old data"
        )
    each, rest = divmod(most, len(days))
    chosen = []
    for number, trials in enumerate(days):
        count = min(len(trials), each + (number >= len(days) - rest))
        chosen.append(trials[np.linspace(0, len(trials) - 1, count).astype(np.int64)])
    return data.showing({"train": train.take(np.concatenate(chosen))})
