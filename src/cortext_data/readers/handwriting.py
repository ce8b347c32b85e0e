"""Attempted handwriting of participant T5 (Willett et al. 2021, Dryad wh70rxwmv).

`Datasets/<session>/sentences.mat` holds the sentences of a session in bins of 10 ms,
`singleLetters.mat` beside it the scaling that the release uses, and `RNNTrainingSteps` two
partitions into training and test: held-out blocks, the harder ones, and held-out trials.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np

from cortext.data.checks import FaultError, dead_link
from cortext.data.scaling import Scale
from cortext.errors import ConfigError, CortextError, DataError, nearest
from cortext.files import is_plain_name
from cortext.settings import Setting
from cortext.text.inventory import HANDWRITING
from cortext.text.language import EN
from cortext.text.pronunciation import to_tokens
from cortext_data.readers.files.matlab import MatFile, Numbers, open_mat
from cortext_data.readers.recording import (
    Contents,
    RecordedTrial,
    Recording,
    Source,
    block_number,
    check_number,
    in_blocks,
    left_out_notes,
    numbers_in_blocks,
)
from cortext_data.readers.source_files import file_faults

BIN_MS = 10
PARTITIONS = ("HeldOutBlocks", "HeldOutTrials")
PUBLISHED = (
    "the mean of the nearest block of single letters subtracted, divided by their standard"
    " deviation over the session"
)
AGAIN = "copy or unpack the release again"
_CUBE, _LENGTHS, _PROMPTS = "neuralActivityCube", "numTimeBinsPerSentence", "sentencePrompt"
_BLOCKS, _CONDITIONS = "sentenceBlockNums", "sentenceCondition"
_MEANS, _SD, _LETTER_BLOCKS = "meansPerBlock", "stdAcrossAllData", "blockList"
_PAUSE = "#"


def handwriting(
    source: Annotated[
        Path, Setting(help="Directory that the archive was unpacked in.", argument=True)
    ],
    *,
    partition: Annotated[
        str,
        Setting(
            help="What is held out: HeldOutBlocks (the harder one) or HeldOutTrials; it becomes"
            " val."
        ),
    ] = PARTITIONS[0],
) -> Source:
    """Read attempted handwriting (Willett 2021) as session files.

    Labels are characters. Features are scaled as in the publication, by blocks of single letters.

    Example: cortext import handwriting handwritingBCIData --out data/handwriting

    Raises:
        ConfigError: For another partition.
        DataError: For a folder that is not the release.
    """
    if partition not in PARTITIONS:
        raise ConfigError(f"unknown partition {partition!r}; {nearest(partition, PARTITIONS)}")
    root = _root(source)
    held_out = root / "RNNTrainingSteps" / f"trainTestPartitions_{partition}.mat"
    if not held_out.is_file():
        raise DataError("no such file, which says what is held out", where=held_out, fix=AGAIN)
    recordings = []
    for folder in sorted((root / "Datasets").iterdir()):
        name, sentences = folder.name, folder / "sentences.mat"
        # Opening a link that leads nowhere names it, so that no day is lost in silence.
        is_lost = not name.startswith(".") and dead_link(sentences) is not None
        if not (sentences.exists() or is_lost):
            continue
        letters = sentences.with_name("singleLetters.mat")
        if not (letters.is_file() or is_lost):
            raise DataError("no such file, which has the scaling", where=letters, fix=AGAIN)
        if not is_plain_name(name):
            raise DataError("its folder cannot name a session", where=sentences, fix="rename it")
        opens = partial(_open, name, sentences, letters, held_out)
        recordings.append(Recording(name, (sentences, letters, held_out), opens))
    if not recordings:
        raise DataError("has no sentences.mat", where=root / "Datasets", fix=AGAIN)
    return Source(
        "handwriting",
        recordings,
        inventory=HANDWRITING,
        normalise="published",
        published=PUBLISHED,
        settings={"partition": partition},
    )


def _root(source: Path) -> Path:
    for root in (source, source / "handwritingBCIData", source.parent):
        if (root / "Datasets").is_dir():
            return root
    raise DataError(
        "no handwriting release: it has no folder Datasets",
        where=source,
        fix="give the folder handwritingBCIData, unpacked",
    )


@contextmanager
def _open(session: str, sentences: Path, letters: Path, held_out: Path) -> Iterator[Contents]:
    """Open one session."""
    with file_faults(letters):
        scales = _Scales.read(letters)
    with open_mat(sentences, (_CUBE, _LENGTHS, _PROMPTS, _BLOCKS)) as file:
        trials = _Sentences(file)
        if trials.cube.shape[-1] != len(scales.sd_C):
            found = f"shape {list(trials.cube.shape)} found, [n, bins, {len(scales.sd_C)}] expected"
            raise FaultError(_CUBE, f"{found} as in {letters.name}", AGAIN)
        with file_faults(held_out):
            splits = _splits(session, held_out, len(trials))
        numbers = numbers_in_blocks(trials.blocks)
        kept = [
            (block, splits[at], trials.trial(at, numbers[at]))
            for at, block in enumerate(trials.blocks)
            if at in splits
        ]
        yield Contents(
            [replace(one, published=scales.nearest(one.number)) for one in in_blocks(kept)],
            BIN_MS,
            range(trials.cube.shape[-1]),
            left_out_notes({"in neither part of the partition": len(trials) - len(splits)}),
        )


class _Sentences:
    """Sentences of an open `sentences.mat`.

    Attributes:
        cube: Spike counts [n, T, C], of which each sentence has its own number of bins.
        blocks: Number of each sentence's block.
    """

    def __init__(self, file: MatFile) -> None:
        self.cube: Numbers = file.numbers(_CUBE, 3)
        self._lengths = file.whole(_LENGTHS).tolist()
        self._prompts = file.texts(_PROMPTS)
        self.blocks = [block_number(n, _BLOCKS, AGAIN) for n in file.vector(_BLOCKS).tolist()]
        has_conditions = _CONDITIONS in file.names and file.kind(_CONDITIONS) == "texts"
        self._conditions: Sequence[str | None] = (
            file.texts(_CONDITIONS) if has_conditions else [None] * len(self)
        )
        for name, values in (
            (_LENGTHS, self._lengths),
            (_PROMPTS, self._prompts),
            (_BLOCKS, self.blocks),
            (_CONDITIONS, self._conditions),
        ):
            check_number(name, len(values), len(self), "entries", _CUBE, AGAIN)
        if self.cube.dtype.kind == "f":
            fix = "take the file as it was published"
            raise FaultError(_CUBE, f"{self.cube.dtype} found, whole numbers expected", fix)

    def __len__(self) -> int:
        """Return the number of sentences."""
        return self.cube.shape[0]

    def trial(self, at: int, number: int) -> RecordedTrial:
        """Return one sentence as trial `number` of its block."""
        return RecordedTrial(
            number,
            self._lengths[at],
            partial(self._read, at),
            sentence_of(self._prompts[at]),
            self._conditions[at] or None,
        )

    def _read(self, at: int) -> np.ndarray:
        """Return the counts of one sentence, [T, C]."""
        check_prompt(self._prompts[at])
        n_bins, most = self._lengths[at], self.cube.shape[1]
        if not 0 < n_bins <= most:
            raise FaultError(_LENGTHS, f"{n_bins} bins found, 1 to {most} expected", AGAIN)
        return self.cube.read(at, at + 1)[0, :n_bins]


def sentence_of(prompt: str) -> str:
    """Return a prompt such as `hello>world~` as a sentence: `hello world.`, without pauses."""
    return prompt.replace(_PAUSE, "").replace(">", " ").replace("~", ".")


def check_prompt(prompt: str) -> None:
    """Raise an error unless the label of a prompt's sentence is the prompt, but for pauses.

    Raises:
        TextError: For letters that a label would lose.
        FaultError: For marks and spaces that it would.
    """
    characters = prompt.replace(_PAUSE, "")
    EN.require(sentence_of(prompt))
    try:
        label = "".join(to_tokens(sentence_of(prompt), HANDWRITING, EN))
    except CortextError as error:
        raise FaultError(_PROMPTS, error.what, "correct the prompt") from None
    if label != characters:
        raise FaultError(
            _PROMPTS,
            f"{characters[:60]!r} found, which would be labelled {label[:60]!r}",
            "write letters, one `>` between words, and one mark after a word",
        )


@dataclass(frozen=True, eq=False)
class _Scales:
    """Published scaling of a session.

    Attributes:
        blocks: Numbers of the blocks of single letters, [B].
        means_BC: Their means, float64 [B, C].
        sd_C: Standard deviation over the session, float64 [C].
    """

    blocks: np.ndarray
    means_BC: np.ndarray
    sd_C: np.ndarray

    @classmethod
    def read(cls, path: Path) -> _Scales:
        """Read them from `singleLetters.mat`."""
        with open_mat(path, (_MEANS, _SD, _LETTER_BLOCKS)) as file:
            blocks = file.whole(_LETTER_BLOCKS)
            means_BC = file.numbers(_MEANS).read().astype(np.float64)
            sd_C = file.vector(_SD).astype(np.float64)
        if means_BC.shape != (len(blocks), len(sd_C)) or not len(blocks):
            found = f"{list(means_BC.shape)} found, [{len(blocks)}, {len(sd_C)}] expected"
            raise FaultError(_MEANS, found, AGAIN)
        for name, values in ((_MEANS, means_BC), (_SD, sd_C)):
            if not np.isfinite(values).all() or (name == _SD and values.min() < 0):
                raise FaultError(name, "NaN, Inf or a negative number found", AGAIN)
        return cls(blocks, means_BC, sd_C)

    def nearest(self, block: int) -> Scale:
        """Return the scaling by the nearest block of single letters; the first one of equals."""
        return Scale(self.means_BC[np.argmin(np.abs(self.blocks - block))], self.sd_C)


def _splits(session: str, path: Path, n_sentences: int) -> dict[int, str]:
    """Return the split by number of the sentence, counted from 0."""
    found: dict[int, str] = {}
    variables = {f"{session}_train": "train", f"{session}_test": "val"}
    with open_mat(path, list(variables)) as file:
        for name, split in variables.items():
            for number in file.whole(name).tolist():
                if not 0 <= number < n_sentences:
                    wrong = f"sentence {number} found, 0 to {n_sentences - 1} expected"
                    raise FaultError(name, wrong, AGAIN)
                if number in found:
                    raise FaultError(name, f"sentence {number} found again", AGAIN)
                found[number] = split
    if not found:
        raise FaultError(f"{session}_train", "no sentence found", AGAIN)
    return found
