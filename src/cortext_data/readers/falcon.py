"""FALCON H2: handwriting of participant T5 over 26 days (DANDI 000950), in NWB files.

Layout (snel-repo/falcon-challenge, `preproc/h2_preproc.py`): a file for each day and split.
`acquisition/binned_spikes` has 192 threshold-crossing counts in bins of 20 ms, a trial after the
other, with `timestamps`; a step in time above 21 ms begins another trial. `acquisition/eval_mask`
says which bins count. `intervals/trials` has the times of each trial's first and last bin, its
`cue` (`>` for a space, `~` for a full stop) and `block_num`.

On held-in days `held_in_calib` is for training; `held_in_minival` repeats its first two trials. On
held-out days `held_out_calib` has three trials. Only the evaluation server has the `eval` files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np

from cortext.arguments import as_path
from cortext.data.checks import FaultError, dead_link_fault
from cortext.data.trial import SPLITS
from cortext.errors import DataError
from cortext.settings import Setting
from cortext.text.inventory import HANDWRITING
from cortext.text.pronunciation import to_tokens
from cortext_data.readers.files.nwb_file import TRIALS, NwbFile, open_nwb
from cortext_data.readers.files.nwb_series import NwbSeries
from cortext_data.readers.recording import (
    Block,
    Contents,
    RecordedTrial,
    Recording,
    Source,
    block_number,
    left_out_notes,
    numbers_in_blocks,
)
from cortext_data.readers.source_files import files_in, named_faults

N_CHANNELS = 192
BIN_MS = 20
_BIN_S = BIN_MS / 1000
_LONGEST_STEP_S = 0.021  # the evaluator's: after a longer one another trial begins
_SPIKES = "acquisition/binned_spikes"
_MASK = "acquisition/eval_mask"
_SPLITS = {
    "held_in_calib": "train",
    "held_out_calib": "train",
    "held_in_minival": "val",
    "held_in_eval": "test",
    "held_out_eval": "test",
}
_SPLIT = "held.(?:in|out).(?:calib|minival|eval)"
_NAMES = (
    re.compile(rf"T5_(?P<date>\d{{4}}\.\d\d\.\d\d)_(?P<split>{_SPLIT})"),
    re.compile(rf"sub-T5-(?P<split>{_SPLIT})_ses-(?P<date>\d{{8}})(?:_[\w+-]+)?"),
)
_DATE = re.compile(r"(20\d\d)[._-]?(0[1-9]|1[0-2])[._-]?(0[1-9]|[12]\d|3[01])")
_AGAIN = "download the file again"


def falcon_h2(
    source: Annotated[
        str | Path,
        Setting(
            help="Directory with the NWB files of DANDI 000950, at any depth.",
            argument=True,
            kind=Path,
        ),
    ],
    *,
    held_out: Annotated[
        bool,
        Setting(help="Also write the held-out days, of which three trials are for training."),
    ] = True,
) -> Source:
    """Read the handwriting of FALCON H2 (DANDI 000950) as session files.

    The calibration becomes train, and minival, which repeats two of its trials, val. Features are
    z-scored as the evaluator lets a decoder do it: causally. The evaluator drives
    `cortext_published.falcon.FalconDecoder`.

    Example: cortext import falcon-h2 000950 --out data/h2

    Raises:
        DataError: For a folder without such files, or with other NWB files.
    """
    source = as_path(source, "source")
    days: dict[str, dict[str, Path]] = {}
    for path in _nwb_files(source):
        session, split = _named(path)
        if split.startswith("held_out") and not held_out:
            continue
        other = days.setdefault(session, {}).setdefault(split, path)
        if other != path:
            raise DataError(
                f"and {other} are both {split} of {session}",
                where=path,
                fix="give a folder with one of them",
            )
    if not days:
        raise DataError(
            "holds no NWB files of FALCON H2", where=source, fix="give the folder of DANDI 000950"
        )
    recordings = [_recording(session, days[session]) for session in sorted(days)]
    return Source(
        "falcon-h2",
        recordings,
        inventory=HANDWRITING,
        normalise="rolling",
        settings={"held_out": held_out},
    )


def session_of(tag: str | Path) -> str | None:
    """Return the session that a file's name or an evaluator's tag states; None for none.

    `T5_2022.05.18_held_in_eval.nwb`, `sub-T5-held-in-minival_ses-20220518` and `2022.05.18` are all
    of `t5.2022.05.18`.
    """
    found = _DATE.search(Path(tag).name)
    return f"t5.{'.'.join(found.groups())}" if found else None


def sentence_of(cue: str) -> str:
    """Return a cue as a sentence: blanks between the words, a point for each `~`."""
    return cue.replace(">", " ").replace("~", ".").strip()


def cue_of(text: str) -> str:
    """Return a decoded text as cues are written: `>` between the words, `~` for each point."""
    return ">".join(text.split()).replace(".", "~")


def _nwb_files(source: Path) -> list[Path]:
    if not source.is_dir():
        what = "is no folder" if source.exists() else "no such folder"
        raise DataError(what, where=source, fix="give the folder of DANDI 000950")
    found = files_in(source, ".nwb")
    for path in found:
        if (fault := dead_link_fault(path)) is not None:
            raise fault.problem(path, None).error()
    return found


def _named(path: Path) -> tuple[str, str]:
    """Return the session and the split that a file's name states."""
    found = next(filter(None, (name.fullmatch(path.stem) for name in _NAMES)), None)
    session = session_of(found["date"]) if found else None
    split = found["split"].replace("-", "_") if found else ""
    if session is None or split not in _SPLITS:
        raise DataError(
            "no name of FALCON H2, such as sub-T5-held-in-calib_ses-20220518.nwb",
            where=path,
            fix="give a folder with the files of DANDI 000950 alone",
        )
    return session, split


def _recording(session: str, files: dict[str, Path]) -> Recording:
    ordered = {split: files[split] for split in _SPLITS if split in files}

    @contextmanager
    def opened() -> Iterator[Contents]:
        with ExitStack() as stack:
            trials: list[_Trial] = []
            for split, path in ordered.items():
                # The first file names the recording in messages, the field names the others.
                place = "" if path == recording.paths[0] else split
                with named_faults(place):
                    file = stack.enter_context(open_nwb(path))
                    trials += _trials(file, session, split, place)
            yield _contents(trials)

    recording = Recording(session, tuple(ordered.values()), opened)
    return recording


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """A trial in one file.

    Attributes:
        split: Split of the file, such as `held_in_calib`.
        place: Name of the file in faults; empty for the first one.
        start_s: Time of its first bin.
        stop_s: Time of its last bin.
        cue: As in the file.
        block: Number of its block.
        first: Its first bin in the file.
        spikes: Series of the file.
        mask_T: bool [T], bins that count.
    """

    split: str
    place: str
    start_s: float
    stop_s: float
    cue: str
    block: int
    first: int
    spikes: NwbSeries
    mask_T: np.ndarray

    @property
    def key(self) -> tuple[int, int, str]:
        """Equal parts of two copies of a trial: times in ms, and the cue."""
        return round(1000 * self.start_s), round(1000 * self.stop_s), self.cue

    def read(self) -> np.ndarray:
        """Return the counts of the bins that count, [T, C]. Raises FaultError for damage."""
        with named_faults(self.place):
            _require_label(self.cue)
            x_TC = self.spikes.read(self.first, self.first + len(self.mask_T))
            if x_TC.min() < 0:
                raise FaultError(_SPIKES, f"{x_TC.min()} found, counts expected", _AGAIN)
            counts_TC: np.ndarray = x_TC[self.mask_T]
            return counts_TC


def _trials(file: NwbFile, session: str, split: str, place: str) -> list[_Trial]:
    """Return the trials of a file in its order."""
    date = file.date
    if session_of(date.isoformat()) != session:
        found = f"{date} found, the day of {session} expected"
        raise FaultError("session_start_time", found, "give the file its own name")
    spikes, mask = file.one_series(_SPIKES), file.one_series(_MASK)
    if spikes.shape[1:] != (N_CHANNELS,) or not spikes.shape[0]:
        found = f"shape {spikes.shape} found, [bins, {N_CHANNELS}] expected"
        raise FaultError(_SPIKES, found, _AGAIN)
    if mask.shape != spikes.shape[:1]:
        found = f"shape {mask.shape} found, ({spikes.shape[0]},) expected as in {_SPIKES}"
        raise FaultError(_MASK, found, _AGAIN)
    mask_T = mask.read() != 0
    times_T = spikes.times()
    edges = _edges(times_T)
    starts, stops, cues, blocks = _table(file, len(edges) - 1)
    trials: list[_Trial] = []
    for i, (first, end) in enumerate(pairwise(edges.tolist())):
        for column, stated_s, bin_s in (
            ("start_time", starts[i], times_T[first]),
            ("stop_time", stops[i], times_T[end - 1]),
        ):
            if not abs(stated_s - bin_s) <= _BIN_S / 2:
                what = f"{stated_s:g} s found for trial {i + 1}, {bin_s:g} s expected as its bins"
                raise FaultError(f"{TRIALS}/{column}", f"{what} have it", _AGAIN)
        trials.append(
            _Trial(
                split, place, times_T[first], times_T[end - 1], cues[i], blocks[i], first,
                spikes, mask_T[first:end],
            )
        )  # fmt: skip
    return trials


def _edges(times_T: np.ndarray) -> np.ndarray:
    """Return the first bin of each trial, and the number of bins."""
    steps_T = np.diff(times_T)
    if (steps_T <= 0).any():
        at = int(np.argmax(steps_T <= 0))
        found = f"bin {at + 1} is not later than bin {at}"
        raise FaultError(f"{_SPIKES}/timestamps", found, _AGAIN)
    inside_T = steps_T[steps_T <= _LONGEST_STEP_S]
    if inside_T.size and inside_T.min() < 2 * _BIN_S - _LONGEST_STEP_S:
        found = f"bins of {1000 * inside_T.min():.3g} ms found, {BIN_MS:g} ms expected"
        raise FaultError(f"{_SPIKES}/timestamps", found, _AGAIN)
    later = np.flatnonzero(steps_T > _LONGEST_STEP_S) + 1
    return np.concatenate(([0], later, [len(times_T)]))


def _table(
    file: NwbFile, n_trials: int
) -> tuple[np.ndarray, np.ndarray, Sequence[str], Sequence[int]]:
    """Return the start and stop in seconds, the cue and the block of each trial."""
    table = file.table()
    starts, stops, blocks = (
        np.asarray(table.column(name)) for name in ("start_time", "stop_time", "block_num")
    )
    cues = table.column("cue")
    for name, column in (("start_time", starts), ("stop_time", stops), ("block_num", blocks)):
        if column.dtype.kind not in "iuf":
            raise FaultError(f"{TRIALS}/{name}", "texts found, numbers expected", _AGAIN)
    if not isinstance(cues, list):
        raise FaultError(f"{TRIALS}/cue", "numbers found, texts expected", _AGAIN)
    if len(cues) != n_trials:
        found = f"{len(cues)} trials found, {n_trials} expected as the times of {_SPIKES} have"
        raise FaultError(TRIALS, found, _AGAIN)
    numbers = [block_number(block, f"{TRIALS}/block_num", _AGAIN) for block in blocks.tolist()]
    return starts, stops, cues, numbers


def _contents(found: list[_Trial]) -> Contents:
    """Return the blocks of a day; a trial that minival repeats is only in val.

    The blocks of val come after those of train, though they were recorded before: the evaluator,
    too, has them decoded after the calibration, on which causal z-scores look back.
    """
    repeated = {trial.key for trial in found if trial.split == "held_in_minival"}
    kept = [t for t in found if t.split == "held_in_minival" or t.key not in repeated]
    kept.sort(key=lambda trial: trial.start_s)
    for before, after in pairwise(kept):
        if after.start_s <= before.stop_s:
            what = f"a trial at {after.start_s:g} s begins before the one at {before.start_s:g} s"
            raise FaultError(TRIALS, f"{what} has ended", _AGAIN)
    blocks: dict[tuple[int, str], list[RecordedTrial]] = {}
    n_empty = 0
    numbers = numbers_in_blocks(trial.block for trial in kept)
    for trial, number in zip(kept, numbers, strict=True):
        n_bins = int(trial.mask_T.sum())
        n_empty += not n_bins
        if n_bins:
            entry = RecordedTrial(number, n_bins, trial.read, sentence_of(trial.cue))
            blocks.setdefault((trial.block, _SPLITS[trial.split]), []).append(entry)
    notes = []
    if len(kept) < len(found):
        notes.append(
            f"{len(found) - len(kept)} trials of held_in_calib that held_in_minival repeats are in"
            " val alone"
        )
    notes += left_out_notes({"none of whose bins counts (eval_mask)": n_empty})
    found_blocks = [Block(number, split, trials) for (number, split), trials in blocks.items()]
    return Contents(
        sorted(found_blocks, key=lambda block: SPLITS.index(block.split)),
        BIN_MS,
        range(N_CHANNELS),
        notes,
    )


def _require_label(cue: str) -> None:
    """Raise FaultError unless the label of a cue has each of its characters."""
    field = f"{TRIALS}/cue"
    known = HANDWRITING.symbols[1:]
    lost = [sign for sign in dict.fromkeys(cue.lower()) if sign not in known]
    if lost:
        found = f"{cue!r:.60} has {' '.join(lost)}, which inventory {HANDWRITING.name!r} lacks"
        raise FaultError(field, found, "correct the cue")
    label = "".join(to_tokens(sentence_of(cue), HANDWRITING))
    if label != ">".join(cue.lower().replace(">", " ").split()):
        found = f"{cue!r:.60} found, of which only {label!r:.60} would be the label"
        raise FaultError(field, found, "correct the cue")
