"""Recordings in the formats of other labs, written with the labs' own libraries.

Each writer follows the published layout of its format and returns what it wrote, so that a test
computes its expectations by hand. Without material, it writes a little of its own from a seed.
Brain-to-Text '24, handwriting and inner speech are here; `foreign_nwb.py` writes NWB files with
pynwb, `foreign_matlab.py` any variables as MATLAB v5 or v7.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from foreign_matlab import cells, column, save_v5, save_v73, texts

SENTENCES = ("Hi there.", "It's me!", "Oh, no.", "We see you?", "Not yet.", "Call me.")
"""Short ones: a trial needs about four bins for each phoneme."""


@dataclass(frozen=True, eq=False)
class Written:
    """One trial as it was written.

    sentence: the prompt
    block:    number of its block
    arrays:   [T, C] each, by the name of the variable or series in the file
    """

    sentence: str
    block: int
    arrays: Mapping[str, np.ndarray]


def counts(rng: np.random.Generator, *shape: int, rate: float = 1.0) -> np.ndarray:
    """Return Poisson counts, uint8."""
    return rng.poisson(rate, shape).astype(np.uint8)


def power(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return positive float32 numbers like spike band power in microvolt^2."""
    return (rng.gamma(2.0, 20.0, shape) + 10).astype(np.float32)


# --- Brain-to-Text '24 ----------------------------------------------------------------------

T12_DAYS = ("t12.2022.04.28", "t12.2022.05.05")
T12_ARRAYS = ("tx1", "tx2", "tx3", "tx4", "spikePow")
T12Material = Mapping[tuple[str, str], Sequence[Written]]


def t12_trials(
    rng: np.random.Generator,
    blocks: Sequence[int],
    sentences: Sequence[str] = SENTENCES,
    bins: tuple[int, int] = (60, 80),
) -> list[Written]:
    """Return one trial for each block number given, with [T, 256] arrays."""
    trials = []
    for i, block in enumerate(blocks):
        n_bins = int(rng.integers(*bins))
        arrays = {f"tx{k}": counts(rng, n_bins, 256, rate=2 / k) for k in (1, 2, 3, 4)}
        arrays["spikePow"] = power(rng, n_bins, 256)
        trials.append(Written(sentences[i % len(sentences)], block, arrays))
    return trials


def write_t12(
    root: Path, material: T12Material | None = None, compress: bool = True, seed: int = 0
) -> dict[tuple[str, str], list[Written]]:
    """Write `root/competitionData/{train,test,competitionHoldOut}/<day>.mat`, MATLAB v5.

    Args:
        root: Folder that gets `competitionData`.
        material: Trials by folder and day, such as `("train", "t12.2022.04.28")`, each with the
            arrays `T12_ARRAYS`, [T, 256]. Default: two days with three blocks; the first day has no
            holdout.
        compress: Compress, as MATLAB does.
        seed: Of the default material.

    Returns:
        Trials by folder and day, in the order of the file.
    """
    if material is None:
        rng = np.random.default_rng(seed)
        material = {}
        for day in T12_DAYS:
            material["train", day] = t12_trials(rng, [3, 3, 3, 4, 4])
            material["test", day] = t12_trials(rng, [9, 9])
        hidden = ["redacted"]
        material["competitionHoldOut", T12_DAYS[1]] = t12_trials(rng, [1, 1, 2], hidden)
    for (folder, day), trials in material.items():
        save_v5(root / "competitionData" / folder / f"{day}.mat", t12_variables(trials), compress)
    return {key: list(trials) for key, trials in material.items()}


def t12_variables(trials: Sequence[Written]) -> dict[str, object]:
    """Return the variables of one file."""
    width = max(len(trial.sentence) for trial in trials)
    variables: dict[str, object] = {
        "sentenceText": np.array([trial.sentence.ljust(width) for trial in trials]),
        "blockIdx": column([trial.block for trial in trials], "u1"),
    }
    for name in T12_ARRAYS:
        variables[name] = cells([trial.arrays[name] for trial in trials])
    return variables


# --- Handwriting ----------------------------------------------------------------------------

HANDWRITING_DAYS = ("t5.2019.05.08", "t5.2020.01.13")
HANDWRITTEN = ("hi>there~", "it's>me?", "oh,>no~", "we>see~")
CONDITIONS = ("BrownCorpus", "OpenEndedQuestion")


@dataclass(frozen=True, eq=False)
class Handwritten:
    """One session of the handwriting release.

    trials:     arrays {"counts": uint8 [T, 192]}; prompts with `>` for spaces
    means:      [B, 192] of each block of the single letters
    letters:    [B] numbers of these blocks
    sd_C:       [192] over the single letters
    """

    trials: list[Written]
    means: np.ndarray
    letters: np.ndarray
    sd_C: np.ndarray


def handwritten(
    rng: np.random.Generator,
    blocks: Sequence[int] = (5, 5, 8, 8, 8),
    sentences: Sequence[str] = HANDWRITTEN,
    letters: Sequence[int] = (2, 7),
    bins: tuple[int, int] = (90, 130),
) -> Handwritten:
    """Return a session with one sentence for each block number given."""
    trials = [
        Written(
            sentences[i % len(sentences)],
            block,
            {"counts": counts(rng, int(rng.integers(*bins)), 192, rate=0.3)},
        )
        for i, block in enumerate(blocks)
    ]
    means = rng.uniform(0.1, 0.6, (len(letters), 192))
    return Handwritten(trials, means, np.array(letters), rng.uniform(0.3, 0.9, 192))


def write_handwriting(
    root: Path,
    sessions: Mapping[str, Handwritten] | None = None,
    partitions: Mapping[str, Mapping[str, tuple[Sequence[int], Sequence[int]]]] | None = None,
    compress: bool = True,
    seed: int = 0,
) -> dict[str, Handwritten]:
    """Write `root/handwritingBCIData` with `Datasets` and `RNNTrainingSteps`, MATLAB v5.

    Args:
        root: Folder that gets `handwritingBCIData`.
        sessions: By name. Default: two; the prompts of the second one have `#` for pauses.
        partitions: For `HeldOutBlocks` and `HeldOutTrials`: numbers of the sentences of training
            and of test, from 0, by session. Default: blocks: the last block; trials: every third.
        compress: Compress, as MATLAB does.
        seed: Of the default material.
    """
    if sessions is None:
        rng = np.random.default_rng(seed)
        paused = [prompt.replace(">", "#>", 1) for prompt in HANDWRITTEN]
        sessions = {
            HANDWRITING_DAYS[0]: handwritten(rng),
            HANDWRITING_DAYS[1]: handwritten(rng, sentences=paused),
        }
    data = root / "handwritingBCIData"
    for name, session in sessions.items():
        folder = data / "Datasets" / name
        save_v5(folder / "sentences.mat", handwriting_variables(session), compress)
        save_v5(folder / "singleLetters.mat", letters_variables(session), compress)
    if partitions is None:
        partitions = {kind: {} for kind in ("HeldOutBlocks", "HeldOutTrials")}
        for name, session in sessions.items():
            blocks = [trial.block for trial in session.trials]
            held = [i for i, block in enumerate(blocks) if block == blocks[-1]]
            kept = [i for i in range(len(blocks)) if i not in held]
            partitions["HeldOutBlocks"][name] = (kept, held)
            held = list(range(0, len(blocks), 3))
            kept = [i for i in range(len(blocks)) if i not in held]
            partitions["HeldOutTrials"][name] = (kept, held)
    for kind, parts in partitions.items():
        variables = {}
        for name, (train, test) in parts.items():
            variables[f"{name}_train"] = np.array([train], np.int64)
            variables[f"{name}_test"] = np.array([test], np.int64)
        save_v5(data / "RNNTrainingSteps" / f"trainTestPartitions_{kind}.mat", variables, compress)
    return dict(sessions)


def handwriting_variables(session: Handwritten) -> dict[str, object]:
    """Return the variables of `sentences.mat`."""
    trials = session.trials
    lengths = [len(trial.arrays["counts"]) for trial in trials]
    cube = np.zeros((len(trials), max(lengths), 192), np.uint8)
    for row, trial in zip(cube, trials, strict=True):
        row[: len(trial.arrays["counts"])] = trial.arrays["counts"]
    conditions = [CONDITIONS[i % 2] for i in range(len(trials))]
    shape = (len(trials), 1)
    return {
        "neuralActivityCube": cube,
        "numTimeBinsPerSentence": column(lengths, "u2"),
        "sentencePrompt": texts([trial.sentence for trial in trials], shape),
        "sentenceCondition": texts(conditions, shape),
        "sentenceBlockNums": column([trial.block for trial in trials], "u1"),
        "blockList": column(sorted({trial.block for trial in trials}), "u1"),
        "neuralActivityTimeSeries": np.concatenate([trial.arrays["counts"] for trial in trials]),
        "clockTimeSeries": column(np.arange(sum(lengths)) * 0.01),
    }


def letters_variables(session: Handwritten) -> dict[str, object]:
    """Return the variables of `singleLetters.mat`."""
    return {
        "meansPerBlock": session.means,
        "stdAcrossAllData": session.sd_C[None],
        "blockList": column(session.letters, "u1"),
        "neuralActivityCube_a": np.zeros((2, 20, 192), np.uint8),
    }


# --- Inner speech ---------------------------------------------------------------------------

CUES = ("ban (attempted)", "ban (imaginedlistening)", "DO_NOTHING", "kite (attempted)")


@dataclass(frozen=True, eq=False)
class Continuous:
    """One file of the inner-speech release.

    arrays:  "binnedTX" and "spikePow", [T, F], over all bins
    blocks:  [T] the block of each bin
    go:      [n, 2] first and last bin of each trial, counted from 1, the last one included
    delay:   [n, 2] of the delay before it
    cues:    [n] numbers into `cue_list`, from 1
    """

    arrays: dict[str, np.ndarray]
    blocks: np.ndarray
    go: np.ndarray
    delay: np.ndarray
    cues: np.ndarray
    cue_list: Sequence[str]
    bin_ms: int
    chan_sets: Mapping[str, np.ndarray]

    def trial(self, i: int) -> Written:
        """Return the bins of one trial's go period."""
        first, last = (int(n) for n in self.go[i])
        arrays = {name: x[first - 1 : last] for name, x in self.arrays.items()}
        block = int(self.blocks[first - 1])
        return Written(self.cue_list[int(self.cues[i]) - 1], block, arrays)

    @property
    def trials(self) -> list[Written]:
        """All trials in order."""
        return [self.trial(i) for i in range(len(self.go))]


def continuous(
    rng: np.random.Generator,
    cues: Sequence[str] = CUES,
    blocks: Sequence[int] = (1, 1, 1, 3, 3, 3),
    n_features: int = 256,
    bin_ms: int = 20,
    go_bins: tuple[int, int] = (60, 90),
) -> Continuous:
    """Return recorded material with one trial for each block number given."""
    go, delay, numbers, bin_blocks = [], [], [], []
    at = 0
    for i, block in enumerate(blocks):
        wait, length, rest = 25, int(rng.integers(*go_bins)), 15
        delay.append((at + 1, at + wait))
        go.append((at + wait + 1, at + wait + length))
        numbers.append(i % len(cues) + 1)
        bin_blocks += [block] * (wait + length + rest)
        at += wait + length + rest
    arrays = {"binnedTX": counts(rng, at, n_features), "spikePow": power(rng, at, n_features)}
    half = n_features // 2
    sets = {"6v": np.arange(1, half + 1), "55b": np.arange(half + 1, n_features + 1)}
    return Continuous(
        arrays, np.array(bin_blocks), np.array(go), np.array(delay), np.array(numbers),
        list(cues), bin_ms, sets,
    )  # fmt: skip


def write_inner_speech(
    path: Path,
    recorded: Continuous | None = None,
    compress: bool = True,
    v73: bool = False,
    seed: int = 0,
) -> Continuous:
    """Write one file such as `t12.2023.05.12_isolatedVerbalBehaviors_raw.mat`.

    Args:
        path: The file.
        recorded: What to write. Default: six trials in two blocks, 256 features, 20 ms bins.
        compress: Compress, as MATLAB does (v5).
        v73: Write MATLAB v7.3 instead of v5.
        seed: Of the default material.
    """
    recorded = recorded or continuous(np.random.default_rng(seed))
    variables = inner_speech_variables(recorded)
    if v73:
        save_v73(path, variables)
    else:
        save_v5(path, variables, compress)
    return recorded


def inner_speech_variables(recorded: Continuous) -> dict[str, object]:
    """Return the variables of one file."""
    names = list(recorded.chan_sets)
    return {
        **recorded.arrays,
        "blockNum": column(recorded.blocks),
        "goTrialEpochs": recorded.go.astype("f8"),
        "delayTrialEpochs": recorded.delay.astype("f8"),
        "trialCues": column(recorded.cues),
        "cueList": texts(recorded.cue_list, (len(recorded.cue_list), 1)),
        "chanSets": cells([recorded.chan_sets[name][None].astype("f8") for name in names]),
        "chanSetNames": texts(names, (1, len(names))),
        "binSize": np.array([[float(recorded.bin_ms)]]),
    }
