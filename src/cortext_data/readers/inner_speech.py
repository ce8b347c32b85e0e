"""Inner and attempted speech of T12, T15, T16 and T17 (Kunz et al. 2025, Dryad gf1vhhn1j).

A file such as `t12.2023.03.16_interleavedVerbalBehaviors_raw.mat` holds continuous features of one
session, the block of every bin, and for each trial its periods and its cue: a word or sentence, and
mostly the way of speaking it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Annotated

import numpy as np

from cortext.arguments import as_count
from cortext.data.checks import FaultError
from cortext.errors import ConfigError, DataError, nearest
from cortext.settings import Setting
from cortext_data.readers.files.matlab import MatFile, Numbers, open_mat
from cortext_data.readers.recording import (
    Block,
    Contents,
    RecordedTrial,
    Recording,
    Source,
    block_number,
    check_number,
    left_out_notes,
    numbers_in_blocks,
    side_by_side,
)
from cortext_data.readers.source_files import file_faults, files_in

EPOCHS = ("go", "delay")
AGAIN = "copy or unpack the release again"
_CROSSINGS, _POWER, _BLOCKS = "binnedTX", "spikePow", "blockNum"
_CUES, _CUE_LIST, _BIN = "trialCues", "cueList", "binSize"
_SETS, _SET_NAMES = "chanSets", "chanSetNames"
_NAME = re.compile(r"((t\d{1,4})\.\d{4}\.\d\d\.\d\d)_(.+?)(?:_raw)?\.mat", re.IGNORECASE)
_NO_SPEECH = re.compile(r"(do[\s_]*)?nothing", re.IGNORECASE)
_FILES_NAMED = 3


@dataclass(frozen=True)
class _ReaderSettings:
    """Settings of the reader, as `inner_speech` documents them."""

    epoch: str
    behaviour: str | None
    channels: str | None
    val_blocks: int


def inner_speech(
    source: Annotated[
        Path,
        Setting(help="Directory with .mat files of the release, or one of them.", argument=True),
    ],
    *,
    participant: Annotated[
        str | None,
        Setting(help="Participant, where there are several: t12, t15, t16 or t17."),
    ] = None,
    epoch: Annotated[str, Setting(help="Period of a trial: go, or the delay before it.")] = EPOCHS[
        0
    ],
    behaviour: Annotated[
        str | None,
        Setting(help="Keep only cues of this behaviour, such as attempted. Default: all."),
    ] = None,
    channels: Annotated[
        str | None,
        Setting(help="Keep only this set of channels, such as 55b. Default: all channels."),
    ] = None,
    val_blocks: Annotated[
        int, Setting(help="Last blocks of each session that become val.", minimum=0)
    ] = 1,
) -> Source:
    """Read inner and attempted speech (Kunz 2025) as session files.

    The last block of each session becomes val. The way of speaking becomes the trial's corpus.

    Example: cortext import inner-speech sentenceData --participant t12 --out data/inner

    Raises:
        ConfigError: For an option that is not possible.
        DataError: For a source without such files, and one of several participants.
    """
    if epoch not in EPOCHS:
        raise ConfigError(f"unknown epoch {epoch!r}; {nearest(epoch, EPOCHS)}")
    options = _ReaderSettings(epoch, behaviour, channels, as_count(val_blocks, "val_blocks"))
    files, others = _files(source, participant)
    recordings = []
    for session, found in groupby(files, key=lambda path: _name(path)[0]):
        paths = tuple(found)
        notes, others = _not_read(others), []  # once, with the first session
        recordings.append(Recording(session, paths, partial(_open, paths, options, notes)))
    settings = {
        "participant": participant,
        "epoch": epoch,
        "behaviour": behaviour,
        "channels": channels,
        "val_blocks": val_blocks,
    }
    return Source("inner-speech", recordings, settings=settings)


def _name(path: Path) -> tuple[str, str, str]:
    """Return the session, the participant and the experiment that a file's name states."""
    found = _NAME.fullmatch(path.name)
    assert found
    return found[1].lower(), found[2].lower(), found[3]


def _files(source: Path, participant: str | None) -> tuple[list[Path], list[Path]]:
    """Return the files of one participant by session, and those that are none of the release."""
    if not source.exists():
        raise DataError("no such file or directory", where=source, fix="check the path")
    given = files_in(source, ".mat") if source.is_dir() else [source]
    found = [path for path in given if _NAME.fullmatch(path.name)]
    others = [path for path in given if not _NAME.fullmatch(path.name)]
    if not found:
        raise DataError(
            "no file of the inner-speech release, such as t12.2023.03.16_sentences_raw.mat",
            where=source,
            fix="unpack an archive of the release and give its folder",
        )
    participants = sorted({_name(path)[1] for path in found})
    if participant is None and len(participants) > 1:
        raise DataError(
            f"files of {', '.join(participants)} found, whose arrays differ",
            where=source,
            fix=f"choose one, such as --participant {participants[0]}",
        )
    if participant is not None:
        if participant.lower() not in participants:
            raise ConfigError(
                f"no participant {participant!r}; {nearest(participant, participants)}"
            )
        found = [path for path in found if _name(path)[1] == participant.lower()]
    return sorted(found, key=lambda path: (_name(path)[0], path.name)), others


def _not_read(others: Sequence[Path]) -> list[str]:
    if not others:
        return []
    named = ", ".join(path.name for path in others[:_FILES_NAMED])
    more = f" and {len(others) - _FILES_NAMED} more" if len(others) > _FILES_NAMED else ""
    return [f"files with other names not read: {named}{more}"]


@contextmanager
def _open(
    paths: Sequence[Path], options: _ReaderSettings, notes: Sequence[str]
) -> Iterator[Contents]:
    """Open the files of one session."""
    names = (_CROSSINGS, _POWER, _BLOCKS, _CUES, _CUE_LIST, _BIN, f"{options.epoch}TrialEpochs")
    with ExitStack() as stack:
        opened: list[MatFile] = []
        files: list[_File] = []
        for path in paths:
            with file_faults(path):
                opened.append(stack.enter_context(open_mat(path, names)))
                files.append(_File.of(opened[-1], opened, options))
                _check_same(files)
        trials = [trial for file in files for trial in file.trials]
        if not trials:
            said = [cue for file in files for cue in file.cues if not cue.is_nothing]
            seen = ", ".join(sorted({cue.behaviour or "none" for cue in said})) or "none"
            found = f"no trial left of behaviour {options.behaviour or 'any'}; the cues have {seen}"
            raise FaultError(_CUES, found, "choose another --behaviour")
        left_out = sum((file.left_out for file in files), Counter[str]())
        notes = [*notes, *left_out_notes(left_out)]
        blocks = _blocks(trials, options.val_blocks)
        if options.val_blocks and all(block.split == "train" for block in blocks):
            notes.append("too few blocks for val: all are train")
        crossings, channels = files[0].bins.features[0], files[0].bins.channels
        n_counts = crossings.shape[1] if channels is None else len(channels)
        yield Contents(blocks, files[0].bins.bin_ms, range(n_counts), notes)


def _blocks(trials: Sequence[tuple[int, RecordedTrial]], n_val: int) -> list[Block]:
    """Return the blocks, the last ones for validation unless no other would be left."""
    found: dict[int, list[RecordedTrial]] = {}
    for number, trial in sorted(trials, key=lambda each: each[0]):
        found.setdefault(number, []).append(trial)
    first_val = len(found) - n_val if n_val < len(found) else len(found)
    return [
        Block(number, "val" if at >= first_val else "train", of_block)
        for at, (number, of_block) in enumerate(found.items())
    ]


def _check_same(files: Sequence[_File]) -> None:
    """Raise FaultError where the last file does not go with those before it."""
    last = files[-1]
    blocks = {block for block, _ in last.trials}
    for other in files[:-1]:
        name, bin_ms = other.bins.mat.path.name, other.bins.bin_ms
        if bin_ms != last.bins.bin_ms:
            found = f"bins of {last.bins.bin_ms:g} ms found, {bin_ms:g} ms in {name}"
            raise FaultError(_BIN, found, "import the files separately")
        if common := sorted({block for block, _ in other.trials} & blocks):
            found = f"block {common[0]} found, which {name} has, too"
            raise FaultError(_BLOCKS, found, "import the files to separate directories")


@dataclass(frozen=True)
class Cue:
    """One entry of the list of cues.

    Attributes:
        sentence: The words.
        behaviour: The way of speaking them, or None where the cue does not name it.
    """

    sentence: str
    behaviour: str | None

    @classmethod
    def of(cls, text: str) -> Cue:
        """Return the cue of a text such as `ban (attempted)` or `ban$0`."""
        words, _, number = text.partition("$")
        found = re.fullmatch(r"(.*)\(([^()]*)\)\s*", words, re.DOTALL)
        if found:
            words = found[1]
        behaviour = found[2] if found else number
        return cls(" ".join(words.split()), " ".join(behaviour.split()) or None)

    @property
    def is_nothing(self) -> bool:
        """True for a cue to do nothing."""
        return _NO_SPEECH.fullmatch(self.sentence) is not None


@dataclass(frozen=True, eq=False)
class _Bins:
    """Continuous bins of an open file, whose sizes have been checked.

    Attributes:
        mat: The open file.
        opened: All open files, of which one at a time has its features in memory.
        features: Threshold crossings and power, [T, C] each.
        bin_ms: Length of a bin.
        block_T: The block of each bin; of no trial, such as between blocks, any number.
        channels: Columns that are kept; None for all.
        epochs: Name of the variable with the periods.
    """

    mat: MatFile
    opened: Sequence[MatFile]
    features: Sequence[Numbers]
    bin_ms: float
    block_T: np.ndarray
    channels: Sequence[int] | None
    epochs: str

    @classmethod
    def of(cls, mat: MatFile, opened: Sequence[MatFile], options: _ReaderSettings) -> _Bins:
        """Check the variables of an open file."""
        crossings, power = (mat.numbers(name) for name in (_CROSSINGS, _POWER))
        if power.shape != crossings.shape:
            found = f"{list(power.shape)} found, {list(crossings.shape)} expected as in"
            raise FaultError(_POWER, f"{found} {_CROSSINGS}", AGAIN)
        n_bins, n_channels = crossings.shape
        if not n_bins:
            raise FaultError(_CROSSINGS, "no bins found", AGAIN)
        channels = _channels(mat, options.channels, n_channels)
        bin_ms = _bin_ms(mat)
        block_T = mat.vector(_BLOCKS)
        check_number(_BLOCKS, len(block_T), n_bins, "bins", _CROSSINGS, AGAIN)
        epochs = f"{options.epoch}TrialEpochs"
        return cls(mat, opened, (crossings, power), bin_ms, block_T, channels, epochs)

    def index(self, number: float) -> int | None:
        """Return the number of a bin, from 0; None where the file has no such bin."""
        return _index(number, len(self.block_T))

    def read(self, first: float, last: float, cue: float, n_cues: int) -> np.ndarray:
        """Return threshold crossings and power of a trial's bins, float32 [T, 2 C].

        First bin, last bin and cue are as in the file, counted from 1.
        """
        if _index(cue, n_cues) is None:
            found = f"cue {cue} found, 1 to {n_cues} (of {_CUE_LIST}) expected"
            raise FaultError(_CUES, found, AGAIN)
        start, end = self.index(first), self.index(last)
        if start is None or end is None or end < start:
            found = f"bins {first} to {last} found, 1 to {len(self.block_T)} expected"
            raise FaultError(self.epochs, found, AGAIN)
        blocks = np.unique(self.block_T[start : end + 1])
        if len(blocks) > 1:
            found = f"bins {first} to {last} of {self.mat.path.name} lie in blocks"
            found = f"{found} {blocks[0]:g} and {blocks[1]:g}"
            raise FaultError(self.epochs, found, "correct the period")
        block_number(blocks[0], _BLOCKS, AGAIN)
        for other in self.opened:
            if other is not self.mat:
                other.release()
        return side_by_side([each.read(start, end + 1, self.channels) for each in self.features])


@dataclass(frozen=True, eq=False)
class _File:
    """An open file.

    Attributes:
        bins: Its bins.
        cues: The list of cues.
        trials: Number of the block and the trial, for all that are kept.
        left_out: Number of trials by the reason why they were left out.
    """

    bins: _Bins
    cues: Sequence[Cue]
    trials: Sequence[tuple[int, RecordedTrial]]
    left_out: Counter[str]

    @classmethod
    def of(cls, mat: MatFile, opened: Sequence[MatFile], options: _ReaderSettings) -> _File:
        """Return the trials of an open file, with a cue and a period of bins each."""
        bins = _Bins.of(mat, opened, options)
        cues = [Cue.of(text) for text in mat.texts(_CUE_LIST)]
        periods = _periods(mat, bins.epochs)
        numbers = _places(mat.vector(_CUES))
        check_number(_CUES, len(numbers), len(periods), "trials", bins.epochs, AGAIN)
        # A trial in no bin is named with the first block.
        blocks = [_block(bins.block_T[bins.index(first) or 0]) for first, _ in periods]
        trials = []
        left_out: Counter[str] = Counter()
        for i, in_block in enumerate(numbers_in_blocks(blocks)):
            which = _index(numbers[i], len(cues))
            cue = Cue("", None) if which is None else cues[which]  # reading names a wrong number
            if cue.is_nothing:
                left_out["with the cue to do nothing"] += 1
            elif which is not None and options.behaviour not in (None, cue.behaviour):
                left_out["of another behaviour"] += 1
            else:
                first, last = periods[i]
                n_bins = int(last - first) + 1 if np.isfinite(last - first) else 0
                read = partial(bins.read, first, last, numbers[i], len(cues))
                speech = cue.behaviour or _name(mat.path)[2]
                trial = RecordedTrial(in_block, n_bins, read, cue.sentence, speech)
                trials.append((blocks[i], trial))
        return cls(bins, cues, trials, left_out)


def _index(number: float, n: int) -> int | None:
    """Return a number from 1 to n as one from 0; None for any other."""
    return number - 1 if isinstance(number, int) and 1 <= number <= n else None


def _block(number: float) -> int:
    """Return the number of a block; -1 for no block."""
    with suppress(FaultError):
        return block_number(number, _BLOCKS, AGAIN)
    return -1


def _bin_ms(file: MatFile) -> float:
    found = file.vector(_BIN)
    if len(found) != 1 or not 5 <= found[0] <= 50:
        listed = ", ".join(f"{value:g}" for value in found[:3]) or "nothing"
        raise FaultError(_BIN, f"{listed} found, milliseconds from 5 to 50 expected", AGAIN)
    return float(found[0])


def _periods(file: MatFile, name: str) -> list[tuple[float, float]]:
    """Return first and last bin of each trial, counted from 1, the last one included."""
    numbers = file.numbers(name)
    if numbers.shape[1] != 2:
        found = f"shape {list(numbers.shape)} found, [trials, 2] expected"
        raise FaultError(name, found, AGAIN)
    places = _places(numbers.read().ravel())
    return list(zip(places[::2], places[1::2], strict=True))


def _places(numbers: np.ndarray) -> list[float]:
    """Return numbers that count from 1; those that are not whole, such as NaN, stay as they are."""
    return [int(x) if float(x).is_integer() else x for x in numbers.tolist()]


def _channels(file: MatFile, chosen: str | None, n_channels: int) -> list[int] | None:
    """Return the columns of a set of channels, or None for all."""
    if chosen is None:
        return None
    for name in (_SETS, _SET_NAMES):
        if name not in file.names:
            raise FaultError(name, "variable missing", "import it without --channels")
    names = file.texts(_SET_NAMES)
    sets = file.cells(_SETS)
    check_number(_SET_NAMES, len(names), len(sets), "names", _SETS, AGAIN)
    if chosen not in names:
        found = f"no channels {chosen!r}; {nearest(chosen, names)}"
        raise FaultError(_SET_NAMES, found, "choose a set of the file")
    numbers = sets[names.index(chosen)].read().ravel()
    if not numbers.size or not np.isin(numbers, np.arange(1, n_channels + 1)).all():
        found = f"{chosen!r} has other numbers than channels 1 to {n_channels}"
        raise FaultError(_SETS, found, AGAIN)
    return [int(number) - 1 for number in numbers]
