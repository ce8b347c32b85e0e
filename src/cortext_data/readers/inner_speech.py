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

import numpy as np

from cortext.arguments import as_count
from cortext.data.checks import FaultError
from cortext.errors import ConfigError, DataError, nearest
from cortext_data.readers.files.matlab import MatFile, open_mat
from cortext_data.readers.recording import (
    Block,
    Contents,
    RecordedTrial,
    Recording,
    Source,
    block_number,
    left_out_notes,
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
    source: Path,
    *,
    participant: str | None = None,
    epoch: str = EPOCHS[0],
    behaviour: str | None = None,
    channels: str | None = None,
    val_blocks: int = 1,
) -> Source:
    """Return the cued words and sentences of one participant.

    Nothing is published as held out, so the last blocks of each session become `val`. Cues to do
    nothing are left out.

    Args:
        source: One file, or a folder with files of the release at any depth.
        participant: Participant such as `t12`; needed where there are files of several.
        epoch: `go` for the period of speech, `delay` for the one before it.
        behaviour: Keep only cues of this behaviour, such as `attempted` or `imaginedlistening`.
        channels: Keep only this set of channels, such as `55b`, of both kinds of features.
        val_blocks: Number of blocks of each session that become `val`.

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
        files: list[_File] = []
        for path in paths:
            with file_faults(path):
                opened = stack.enter_context(open_mat(path, names))
                files.append(_File(opened, options, files))
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
        yield Contents(blocks, files[0].bin_ms, range(files[0].n_counts), notes)


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
    for other in files[:-1]:
        if other.bin_ms != last.bin_ms:
            found = f"bins of {last.bin_ms:g} ms found, {other.bin_ms:g} ms in {other.path.name}"
            raise FaultError(_BIN, found, "import the files separately")
        if common := sorted(other.blocks & last.blocks):
            found = f"block {common[0]} found, which {other.path.name} has, too"
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


class _File:
    """One open file.

    Attributes:
        path: Path of the file.
        mat: The open file; features of one file at a time are in memory.
        bin_ms: Length of a bin.
        n_counts: Number of features that are counts; as many are power.
        cues: Entries of the list of cues.
        blocks: Numbers of its blocks.
        trials: Number of the block and the trial, for all that are kept.
        left_out: Number of trials by the reason why they were left out.
    """

    def __init__(self, file: MatFile, options: _ReaderSettings, together: Sequence[_File]) -> None:
        self.path = file.path
        self.mat = file
        self._together = together  # this file, too, once it has been opened
        self._experiment = _name(file.path)[2]
        self._features = [file.numbers(name) for name in (_CROSSINGS, _POWER)]
        self._n_bins, n_channels = self._features[0].shape
        if self._features[1].shape != self._features[0].shape:
            shapes = [list(each.shape) for each in self._features]
            found = f"{shapes[1]} found, {shapes[0]} expected as in {_CROSSINGS}"
            raise FaultError(_POWER, found, AGAIN)
        if not self._n_bins:
            raise FaultError(_CROSSINGS, "no bins found", AGAIN)
        self._channels = _channels(file, options.channels, n_channels)
        self.n_counts = n_channels if self._channels is None else len(self._channels)
        self.bin_ms = _bin_ms(file)
        self._block_T = file.vector(_BLOCKS)
        if len(self._block_T) != self._n_bins:
            found = f"{len(self._block_T)} bins found, {self._n_bins} expected as in {_CROSSINGS}"
            raise FaultError(_BLOCKS, found, AGAIN)
        self.cues = [Cue.of(text) for text in file.texts(_CUE_LIST)]
        self._epochs = f"{options.epoch}TrialEpochs"
        self._periods = _periods(file, self._epochs)
        numbers = _places(file.vector(_CUES))
        if len(numbers) != len(self._periods):
            found = f"{len(numbers)} trials found, {len(self._periods)} expected as in"
            raise FaultError(_CUES, f"{found} {self._epochs}", AGAIN)
        self.left_out: Counter[str] = Counter()
        self.trials = list(self._trials(numbers, options.behaviour))
        self.blocks = {block for block, _ in self.trials}

    def _trials(
        self, cues: Sequence[float], behaviour: str | None
    ) -> Iterator[tuple[int, RecordedTrial]]:
        """Yield block and trial of each trial that is kept."""
        seen: Counter[int] = Counter()
        for (first, last), number in zip(self._periods, cues, strict=True):
            # A trial in no bin is named with the first block.
            block = _block(self._block_T[_index(first, self._n_bins) or 0])
            in_block = seen[block]
            seen[block] += 1
            which = _index(number, len(self.cues))
            cue = None if which is None else self.cues[which]
            if cue is not None and cue.is_nothing:
                self.left_out["with the cue to do nothing"] += 1
            elif cue is not None and behaviour is not None and behaviour != cue.behaviour:
                self.left_out["of another behaviour"] += 1
            else:
                said = ("", None) if cue is None else (cue.sentence, cue.behaviour)
                yield (
                    block,
                    RecordedTrial(
                        in_block,
                        int(last - first) + 1 if np.isfinite(last - first) else 0,
                        partial(self._read, first, last, number),
                        said[0],
                        said[1] or self._experiment,
                    ),
                )

    def _read(self, first: float, last: float, cue: float) -> np.ndarray:
        """Return threshold crossings and power of a trial's bins, float32 [T, 2 C]."""
        if _index(cue, len(self.cues)) is None:
            found = f"cue {cue} found, 1 to {len(self.cues)} (of {_CUE_LIST}) expected"
            raise FaultError(_CUES, found, AGAIN)
        start, end = _index(first, self._n_bins), _index(last, self._n_bins)
        if start is None or end is None or end < start:
            found = f"bins {first} to {last} found, 1 to {self._n_bins} expected"
            raise FaultError(self._epochs, found, AGAIN)
        stop = end + 1
        # Bins of no trial, such as those between blocks, may have any number.
        blocks = np.unique(self._block_T[start:stop])
        if len(blocks) > 1:
            found = f"bins {first} to {last} of {self.path.name} lie in blocks {blocks[0]:g} and"
            raise FaultError(self._epochs, f"{found} {blocks[1]:g}", "correct the period")
        block_number(blocks[0], _BLOCKS, AGAIN)
        for other in self._together:
            if other is not self:
                other.mat.release()
        parts = [each.read(start, stop, self._channels) for each in self._features]
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes Inf, which is named
            return np.concatenate(parts, axis=1, dtype=np.float32, casting="unsafe")


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
    if len(names) != len(sets):
        found = f"{len(names)} names found, {len(sets)} expected as in {_SETS}"
        raise FaultError(_SET_NAMES, found, AGAIN)
    if chosen not in names:
        found = f"no channels {chosen!r}; {nearest(chosen, names)}"
        raise FaultError(_SET_NAMES, found, "choose a set of the file")
    numbers = sets[names.index(chosen)].read().ravel()
    if not numbers.size or not np.isin(numbers, np.arange(1, n_channels + 1)).all():
        found = f"{chosen!r} has other numbers than channels 1 to {n_channels}"
        raise FaultError(_SETS, found, AGAIN)
    return [int(number) - 1 for number in numbers]
