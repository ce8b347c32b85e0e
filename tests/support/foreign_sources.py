"""A small source of each format that `cortext import` reads, and the trials that must come of it.

The expectations follow from what the writers wrote and from the published splits; nothing is asked
of the readers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import foreign_files as files
import foreign_nwb as nwb
import numpy as np
from foreign_files import Written


@dataclass(frozen=True, eq=False)
class Expected:
    """A trial as it must be written.

    recording: trials of one recording and block are z-scored together
    x_TC:      what was recorded, float64
    scale:     mean and standard deviation that the release uses, where it is the default
    """

    recording: str
    session: str
    split: str
    block: int
    number: int
    sentence: str | None
    x_TC: np.ndarray
    scale: tuple[np.ndarray, np.ndarray] | None = None


@dataclass(frozen=True, eq=False)
class Made:
    """A source on the disk.

    words:  what follows `cortext import`: format, source and options
    trials: by recording, in the order in which they are gone through
    scaled: how features are scaled unless the user says otherwise
    """

    words: list[str]
    trials: list[Expected]
    scaled: str = "block"


def numbered(trials: Sequence[Written]) -> list[tuple[int, Written]]:
    """Return each trial with its number in its block, from 0."""
    seen: dict[int, int] = {}
    found = []
    for trial in trials:
        number = seen.get(trial.block, 0)
        seen[trial.block] = number + 1
        found.append((number, trial))
    return found


def make_t12(root: Path) -> Made:
    """Two days; the first has no holdout."""
    wrote = files.write_t12(root)
    splits = {"train": "train", "test": "val", "competitionHoldOut": "test"}
    trials = []
    for (folder, day), of_file in wrote.items():
        for number, trial in numbered(of_file):
            power = trial.arrays["spikePow"][:, :128]
            x_TC = np.concatenate([trial.arrays["tx1"][:, :128], power], axis=1, dtype=np.float64)
            sentence = None if folder == "competitionHoldOut" else trial.sentence
            place = (f"{folder}/{day}", day, splits[folder], trial.block, number)
            trials.append(Expected(*place, sentence, x_TC))
    return Made(["t12", str(root / "competitionData")], trials)


RIG_MAPPING = """
format: cortext-mapping
format_version: 1
reader: nwb
participant: t99
bin_ms: 20
features:
- {name: acquisition/threshold_crossings, kind: counts}
- {name: acquisition/spike_band_power, kind: power, columns: 0-31}
- {name: units, kind: counts}
sentence: {name: prompt}
block: {name: block_id}
split: {name: purpose, train: [train], val: [val]}
"""


def make_nwb(root: Path) -> Made:
    """Two days of a rig: two series, of one of which half the columns, and three sorted units."""
    trials = []
    for seed, day in enumerate(("2026.05.04", "2026.05.11")):
        rig = nwb.write_nwb(root / "rig" / f"{day}.nwb", n_units=3, start=day, seed=seed)
        session = f"t99.{day}"
        for (number, trial), split, start_s in zip(
            numbered(rig.trials), rig.split, rig.start_s, strict=True
        ):
            crossings = trial.arrays["threshold_crossings"]
            power = trial.arrays["spike_band_power"][:, :32]
            edges = [round(start_s + 0.02 * i, 6) for i in range(len(crossings) + 1)]
            spikes = np.stack([np.histogram(times, edges)[0] for times in rig.spikes], axis=1)
            x_TC = np.concatenate([crossings, power, spikes], axis=1, dtype=np.float64)
            place = (day, session, split, trial.block, number)
            trials.append(Expected(*place, trial.sentence, x_TC))
    mapping = root / "rig.yaml"
    mapping.write_text(RIG_MAPPING)
    return Made(["nwb", str(root / "rig"), "--mapping", str(mapping)], trials)


CELLS_MAPPING = """
format: cortext-mapping
format_version: 1
reader: mat
participant: t98
bin_ms: 20
trials: {layout: cells}
features:
- {name: tx1, kind: counts}
- {name: spikePow, kind: power, columns: 128-255}
sentence: {name: sentenceText}
block: {name: blockIdx}
split: {val_blocks: 1}
"""


def make_mat(root: Path, v73: bool) -> Made:
    """Two days of another lab's cells, one a trial; the last block is for validation."""
    rng = np.random.default_rng(1)
    trials = []
    for day in ("2025.03.14", "2025.03.21"):
        wrote = files.t12_trials(rng, [1, 1, 2, 2, 5])
        save = files.save_v73 if v73 else files.save_v5
        variables = files.t12_variables(wrote)
        if v73:
            variables["sentenceText"] = files.texts(
                [trial.sentence for trial in wrote], (len(wrote), 1)
            )
        save(root / "lab" / f"t98.{day}_sentences.mat", variables)
        for number, trial in numbered(wrote):
            power = trial.arrays["spikePow"][:, 128:]
            x_TC = np.concatenate([trial.arrays["tx1"], power], axis=1, dtype=np.float64)
            split = "val" if trial.block == 5 else "train"
            place = (day, f"t98.{day}", split, trial.block, number)
            trials.append(Expected(*place, trial.sentence, x_TC))
    mapping = root / "lab.yaml"
    mapping.write_text(CELLS_MAPPING)
    return Made(["mat", str(root / "lab"), "--mapping", str(mapping)], trials)


def make_handwriting(root: Path) -> Made:
    """Two sessions of 10 ms bins; the last block is held out."""
    trials = []
    for session, wrote in files.write_handwriting(root).items():
        last = wrote.trials[-1].block
        for number, trial in numbered(wrote.trials):
            prompt = trial.sentence.replace("#", "").replace(">", " ").replace("~", ".")
            nearest = min(
                range(len(wrote.letters)), key=lambda i: abs(wrote.letters[i] - trial.block)
            )
            scale = (wrote.means[nearest], wrote.sd_C)
            split = "val" if trial.block == last else "train"
            place = (session, session, split, trial.block, number)
            trials.append(Expected(*place, prompt, trial.arrays["counts"].astype(float), scale))
    return Made(["handwriting", str(root)], trials, "published")


def make_inner_speech(root: Path, v73: bool) -> Made:
    """Two sessions; cues to do nothing are left out, the last block is for validation."""
    trials = []
    for seed, date in enumerate(("2023.05.12", "2023.06.02")):
        path = root / "inner" / "Data" / f"t16.{date}_isolatedVerbalBehaviors_raw.mat"
        recorded = files.write_inner_speech(path, v73=v73, seed=seed)
        for number, trial in numbered(recorded.trials):
            if trial.sentence == "DO_NOTHING":
                continue
            arrays = [trial.arrays["binnedTX"], trial.arrays["spikePow"]]
            split = "val" if trial.block == 3 else "train"
            place = (date, f"t16.{date}", split, trial.block, number)
            words = trial.sentence.partition(" (")[0]
            trials.append(Expected(*place, words, np.concatenate(arrays, axis=1, dtype=float)))
    return Made(["inner-speech", str(root / "inner")], trials)


def make_falcon(root: Path) -> Made:
    """Two held-in days, whose first two trials are there twice, and a held-out one."""
    wrote = nwb.write_falcon(root / "000950")
    trials = []
    for (split, day), of_file in wrote.items():
        if split == "held-in-minival":
            continue
        places = []
        for number, trial in numbered(of_file):
            is_val = split == "held-in-calib" and len(places) < 2
            sentence = trial.sentence.replace(">", " ").replace("~", ".")
            place = (day, f"t5.{day}", "val" if is_val else "train", trial.block, number)
            places.append(Expected(*place, sentence, trial.arrays["binned_spikes"].astype(float)))
        # Training trials come first: the evaluator, too, has the others decoded after them.
        trials += sorted(places, key=lambda trial: trial.split)
    return Made(["falcon-h2", str(root / "000950")], trials, "rolling")


FORMATS: Mapping[str, Callable[[Path], Made]] = {
    "t12": make_t12,
    "handwriting": make_handwriting,
    "inner-speech v5": lambda root: make_inner_speech(root, v73=False),
    "inner-speech v7.3": lambda root: make_inner_speech(root, v73=True),
    "falcon-h2": make_falcon,
    "nwb": make_nwb,
    "mat v5": lambda root: make_mat(root, v73=False),
    "mat v7.3": lambda root: make_mat(root, v73=True),
}
