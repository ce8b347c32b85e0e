"""The recordings of several participants, in bins of one length, and their order in training."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from cortext.arguments import as_path
from cortext.data.checks import Problem
from cortext.data.conventions import Conventions
from cortext.data.dataset import Dataset
from cortext.data.packed import PackedDataset, data_path, open_data, open_packed
from cortext.data.packed_dataset import open_dataset
from cortext.data.rebin import Rebinning
from cortext.errors import ConfigError, DataError, wrong_type
from cortext.files import is_plain_name
from cortext.models.card import read_card
from cortext.models.participants import (
    participant_folder,
    read_participants,
    same_participant,
)
from cortext.processes import Progress
from cortext.training.progress import reading_bar, say

Given = PackedDataset | str | Path | Mapping[str, PackedDataset | str | Path]
"""The data of one participant, or those of several by name."""
TURN = 0x9E3779B97F4A7C15
"""The golden ratio's fraction as a share of 2 ** 64."""


@dataclass(frozen=True)
class Recordings:
    """The packed data of each participant, by name."""

    of: dict[str, PackedDataset]

    @property
    def conventions(self) -> Conventions:
        """Tokens, language and length of a bin, which all share."""
        return next(iter(self.of.values())).conventions

    @property
    def bad_trials(self) -> tuple[Problem, ...]:
        """Trials and files of all participants that were left out as bad."""
        return tuple(problem for data in self.of.values() for problem in data.bad_trials)


def open_recordings(
    given: Given,
    run: Path,
    skip_bad: bool,
    shown: bool,
    init_from: Path | None = None,
    begun: bool = False,
) -> Recordings:
    """Open and check the data of several participants.

    Session files are packed into the participants' folders of the run. Their bins are joined as the
    run to start from had them joined, and again so at resume; otherwise to the longest that a
    participant has.

    Args:
        given: Data by participant: packed, or a directory of session files or of packed data.
        run: The run directory.
        skip_bad: Leave out trials that cannot be read, as in `pack`.
        shown: Draw bars on stderr if it is a terminal.
        init_from: A run whose weights to start from; None for fresh ones.
        begun: The run is resumed.

    Raises:
        ConfigError: For a name that no folder can have, and for fewer than two participants.
        DataError: For data that cannot be read, or that differ in more than their bins.
    """
    if not isinstance(given, Mapping):
        raise wrong_type("data", given, "a mapping of participants to their data")
    for name in given:
        if not is_plain_name(name):
            what = f"{name!r} cannot name a participant"
            raise ConfigError(what, fix="use up to 200 letters, digits, dots and dashes")
    if len(given) < 2:
        what = f"data name {len(given)} participant{'' if given else 's'}; two or more are needed"
        raise ConfigError(what, fix="give the data of one participant without a name")
    _check_distinct(given)
    given = {name: given[name] for name in sorted(given)}  # a resumed run may get another order
    wanted = _wanted(given, run, init_from, begun)
    opened = {
        name: _opened(data, wanted[name], participant_folder(run, name), skip_bad, shown)
        for name, data in given.items()
    }
    first = next(iter(opened))
    for name, dataset in opened.items():
        replace(opened[first].conventions, participant=None).require(
            dataset.conventions,
            mine=f"the data of {first}",
            theirs=f"those of {name}",
            where=dataset.path,
            fix="take participants with the same tokens, language and kind of features",
        )
    return Recordings(opened)


def _check_distinct(given: Mapping[str, PackedDataset | str | Path]) -> None:
    """Raise ConfigError for participants with the same folder in the run or the same recordings."""
    folders: dict[str, str] = {}
    recordings: dict[Path, str] = {}
    for name, data in given.items():
        # File systems of macOS and Windows take `A` and `a` for one folder.
        other = folders.setdefault(name.casefold(), name)
        if other != name:
            what = f"participants {other!r} and {name!r} differ only in case"
            raise ConfigError(what, fix="give them other names")
        path = (data.path if isinstance(data, PackedDataset) else as_path(data, "data")).resolve()
        other = recordings.setdefault(path, name)
        if other != name:
            what = f"participants {other!r} and {name!r} have the same recordings"
            raise ConfigError(what, where=path, fix="give each participant's own")


def _wanted(
    given: Mapping[str, PackedDataset | str | Path], run: Path, init_from: Path | None, begun: bool
) -> dict[str, Conventions]:
    """Return the conventions by participant that their packed data get; see `open_recordings`.

    Raises:
        DataError: For recordings of another participant than the name says, and for bins that
            cannot be joined to those of the run to start from.
    """
    recorded = {name: _conventions(name, data) for name, data in given.items()}
    found = dict(recorded)
    for name, data in given.items():
        own, model = recorded[name], None
        if init_from is not None:
            model = conventions_to_start_from(own_source(init_from, name), data)
        elif begun:
            with suppress(DataError):  # lost or damaged: packed again
                model = open_packed(participant_folder(run, name) / "packed").conventions
        if model is not None and joined_for(model, own) is not None:
            found[name] = model
        elif init_from is not None and model is not None and own.bin_ms != model.bin_ms:
            what = f"bins last {own.bin_ms:g} ms, and {model.bin_ms:g} ms in the run to start from"
            fix = "start from a run on such bins, or leave out --init-from"
            raise DataError(what, where=data_path(data), fix=fix)
    longest = max(each.bin_ms for each in found.values())
    for name, own in recorded.items():
        if found[name].bin_ms != longest:
            found[name] = Rebinning(own.bin_ms, longest).conventions(own)
    return found


def _conventions(name: str, data: PackedDataset | str | Path) -> Conventions:
    """Return the conventions of a participant's data; DataError where they are of another's."""
    given = data if isinstance(data, PackedDataset) else open_dataset(as_path(data, "data"))
    stated = given.conventions.participant
    if stated not in (None, name):
        what = f"the recordings are of participant {stated!r}, not of {name!r}"
        raise DataError(what, where=data_path(data), fix=f"name the data {stated!r}")
    return given.conventions


def _opened(
    data: PackedDataset | str | Path, wanted: Conventions, folder: Path, skip_bad: bool, shown: bool
) -> PackedDataset:
    """Return the data of a participant, read to the last byte."""
    with reading_bar(shown, f"reading {folder.name}") as reading:
        cache = folder / "packed"
        dataset = open_for(wanted, data, cache, skip_bad=skip_bad, progress=reading, shown=shown)
        dataset.verify(reading)
    return dataset


def open_for(
    model: Conventions | None,
    data: Dataset | PackedDataset | str | Path,
    packed_cache: Path | None = None,
    *,
    skip_bad: bool = False,
    progress: Progress | None = None,
    shown: bool = True,
) -> PackedDataset:
    """Open data for a model, with bins joined as they were for its training; see `open_data`.

    Args:
        model: Conventions of the model, which note how bins were joined. Bins of another length
            than they note are not joined; None joins none.
        data: Session files, whose bins may be joined, or packed data.
        packed_cache: Where session files are packed to.
        skip_bad: Leave out trials that cannot be read, as in `pack`.
        progress: Called with trials packed and in all.
        shown: Print a line where bins are joined, and the notes of packing.

    Raises:
        DataError: For data that cannot be read, and for packed data whose bins are to be joined.
    """
    given = data if isinstance(data, PackedDataset) else open_dataset(data_path(data))
    joined = None if model is None else joined_for(model, given.conventions)
    if joined is None:
        opened = open_data(data, packed_cache, skip_bad=skip_bad, progress=progress)
    else:
        _check_joined(given, joined)
        ms = f"{given.conventions.bin_ms:g} ms joined to the model's {joined.to_ms:g} ms"
        say(f"{data_path(data)}: bins of {ms}", shown)
        opened = open_data(
            data,
            packed_cache,
            joined.to_ms,
            sums=joined.sums,
            skip_bad=skip_bad,
            progress=progress,
        )
    if not isinstance(given, PackedDataset):  # otherwise `cortext pack` has printed them
        for note in opened.notes:
            say(f"note: {note}", shown)
    return opened


def _check_joined(given: Dataset | PackedDataset, joined: Rebinning) -> None:
    """Raise DataError where the bins of recordings cannot be joined as they were for training."""
    if isinstance(given, PackedDataset):
        bin_ms = given.conventions.bin_ms
        what = f"bins last {bin_ms:g} ms, and training joined them to {joined.to_ms:g} ms"
        fix = f"give {given.source}, or pack it with cortext pack{joined.options}"
        raise DataError(what, where=given.path, fix=fix)
    if max(joined.sums, default=0) >= given.n_features:
        what = f"{given.n_features} features found, and training summed feature {max(joined.sums)}"
        fix = "give recordings like those the run was trained on"
        raise DataError(what, where=given.root, fix=fix)


def joined_for(model: Conventions, data: Conventions) -> Rebinning | None:
    """Return how a model's training joined bins such as those of some data; None where it did not.

    An integer ratio is not needed: other bins are divided as they were for training.
    """
    noted = Rebinning.noted(model)
    if noted is None or f"{noted.from_ms:g}" != f"{data.bin_ms:g}" or data.bin_ms == noted.to_ms:
        return None
    return noted


def own_source(run: Path, name: str) -> Path:
    """Return the run to start a participant's model from: in a run of several, its own."""
    return participant_folder(run, name) if name in read_participants(run) else run


def conventions_to_start_from(
    run: Path, data: Dataset | PackedDataset | str | Path
) -> Conventions | None:
    """Return the conventions that the models of a run have for some recordings.

    They are those of the same participant, with as many features. The bins of a
    participant who is new to a body are averaged, as in a training of several.

    Args:
        run: The run to start from; a task of one's own may read other directories.
        data: Session files, or packed data.

    Returns:
        The conventions, for `open_for`; None where the directory has no model.
    """
    folders = [participant_folder(run, name) for name in read_participants(run)] or [run]
    files = [folder / "model.json" for folder in folders]
    if not all(file.is_file() for file in files):
        return None
    cards = [read_card(file) for file in files]
    given = open_dataset(data_path(data))
    name, days = given.conventions.participant, given.session_names
    for card in cards:
        same = same_participant(name, days, card.participant, card.sessions)
        if same and card.n_features == given.n_features:
            return card.conventions
    first = cards[0]
    reads_in = first.config.get("input_network", {}).get("read_in") is not None
    if reads_in and given.conventions.bin_ms < first.bin_ms:
        averaged = Rebinning(given.conventions.bin_ms, first.bin_ms)
        return averaged.conventions(given.conventions)
    return first.conventions


class Alternation:
    """The participant of each batch: as many batches as their share of the training trials.

    It is a function of the number of the batch alone, so that a resumed run continues with the same
    order. The multiples of the golden ratio's fraction spread evenly (Knuth, The Art of Computer
    Programming, vol. 3, 6.4): every stretch of a training has the shares, to a batch or two.

    Args:
        n_trials: Number of training trials by participant.
    """

    def __init__(self, n_trials: Mapping[str, int]) -> None:
        self._names = tuple(n_trials)
        self._ends = list(accumulate(n_trials.values()))

    def __call__(self, step: int) -> str:
        """Return the participant of batch `step`."""
        trial = (step * TURN % (1 << 64)) * self._ends[-1] >> 64
        return self._names[bisect_right(self._ends, trial)]


def merged(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metrics of several participants as those of one validation.

    A number is the mean over participants, whatever the number of their trials, and is there by
    participant, too. A table by session gets the participant into its keys.

    Args:
        metrics: Metrics of each participant, by name.
    """
    found: dict[str, Any] = {}
    for key, first in next(iter(metrics.values())).items():
        values = {name: own[key] for name, own in metrics.items()}
        if isinstance(first, dict):
            found[key] = {
                f"{name}/{row}": value for name, own in values.items() for row, value in own.items()
            }
        elif any(value is None for value in values.values()):
            found[key] = None
        else:
            found[key] = sum(values.values()) / len(values)
            found[f"{key}_by_participant"] = values
    return found
