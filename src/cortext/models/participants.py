"""Runs of several participants: one directory with a model of each.

`participants.json` names the participants and their recording days. `participants/NAME` is a run
directory of its own: every command reads its model as that of any run.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cortext.data.dataset import Dataset
from cortext.data.packed import PackedDataset
from cortext.data.packed_dataset import open_dataset
from cortext.errors import RunError, nearest
from cortext.files import atomic_write, is_plain_name, read_json

FILE = "participants.json"
FOLDER = "participants"
FORMAT_VERSION = 1


def write_participants(run: Path, sessions: Mapping[str, Sequence[str]]) -> None:
    """Write `participants.json` into a run directory.

    Args:
        run: The run directory.
        sessions: Recording days by participant.
    """
    days = {name: list(names) for name, names in sessions.items()}
    content = {"format_version": FORMAT_VERSION, "participants": days}
    atomic_write(run / FILE, json.dumps(content, indent=2, ensure_ascii=False).encode())


def read_participants(run: Path) -> dict[str, list[str]]:
    """Return the recording days by participant; nothing for a run of one participant.

    Raises RunError for a damaged `participants.json`.
    """
    path = run / FILE
    if not path.is_file():
        return {}
    try:
        mapping = read_json(path)
        if mapping["format_version"] != FORMAT_VERSION:
            raise ValueError(f"its version is {mapping['format_version']!r}, not {FORMAT_VERSION}")
        found: dict[str, Any] = mapping["participants"]
        for name, sessions in found.items():
            if not all(map(is_plain_name, (name, *sessions))):
                raise ValueError("it holds a name that cannot be one")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"cannot be read: {error}"
        raise RunError(problem, where=path, fix=f"give {run / FOLDER / 'NAME'}") from None
    return found


def participant_folder(run: Path, name: str) -> Path:
    """Return the run directory of a participant in a run of several."""
    return run / FOLDER / name


def same_participant(
    name: str | None, sessions: Iterable[str], other_name: str | None, other_sessions: Iterable[str]
) -> bool:
    """Tell whether recordings or models are of one participant.

    Args:
        name: Name of the participant, where it is stated.
        sessions: Recording days.
        other_name: The other's name; where one of them is not stated, a common day decides.
        other_sessions: The other's recording days.
    """
    if name is not None and other_name is not None:
        return name == other_name
    return not set(sessions).isdisjoint(other_sessions)


def participant_run(
    run: Path, participant: str | None = None, sessions: Sequence[str] | None = None
) -> Path:
    """Return the directory of the participant that is meant; a run of one is its own.

    Args:
        run: A run directory.
        participant: Name of the participant; None finds the one who has recordings of `sessions`.
        sessions: Recording days; None for none.

    Raises:
        RunError: Where nobody, or more than one, is found.
    """
    known = read_participants(run)
    if not known:
        if participant is not None:
            problem = "not a run of several participants"
            raise RunError(problem, where=run, fix="leave out --participant")
        return run
    if participant is not None:
        if participant not in known:
            problem = f"no participant {participant!r}; {nearest(participant, known)}"
            raise RunError(problem, where=run)
        return participant_folder(run, participant)
    given = set(sessions or ())
    owners = [name for name, days in known.items() if given & set(days)]
    if len(owners) == 1:
        return participant_folder(run, owners[0])
    problem = "a run of several participants"
    if given:
        whose = " and ".join(owners) or "none of them"
        problem = f"it has a model for each participant, and the recordings have days of {whose}"
    fix = f"name the participant: {' or '.join(owners or known)}, with --participant or as"
    raise RunError(problem, where=run, fix=f"{fix} {run / FOLDER / 'NAME'}")


def run_for(
    run: Path, data: Dataset | PackedDataset | str | Path, participant: str | None = None
) -> Path:
    """Return the directory of the participant whose recordings these are; see `participant_run`.

    Args:
        run: A run directory.
        data: Recordings, or their directory; not read for a run of one participant.
        participant: Name of the participant; None takes the one whom the recordings name, or finds
            the one who has recordings of these days.
    """
    if not read_participants(run):
        return participant_run(run, participant)
    opened = data if isinstance(data, Dataset | PackedDataset) else open_dataset(data)
    stated = opened.conventions.participant
    if None not in (participant, stated) and participant != stated:
        problem = f"the recordings are of participant {stated!r}, not of {participant!r}"
        raise RunError(problem, where=run, fix="leave out --participant, or give the other's data")
    return participant_run(run, participant or stated, opened.session_names)


def joined_checksum(checksums: Sequence[str | None]) -> str | None:
    """Return one checksum of the weights of several models; None where one is not known."""
    if len(checksums) == 1:
        return checksums[0]
    known = [checksum for checksum in checksums if checksum is not None]
    if len(known) < len(checksums):
        return None
    return f"{zlib.crc32(','.join(known).encode()):08x}"
