"""Writing a simulation: session files, texts, the configuration and, if wanted, the truth."""

from __future__ import annotations

import json
import multiprocessing
import platform
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from cortext.arguments import as_count, as_path
from cortext.cores import available_cores
from cortext.data.dataset import Dataset, open_session_files
from cortext.data.hdf5_output import new_hdf5
from cortext.data.session_files import write_session
from cortext.data.trial import SPLITS, Trial
from cortext.errors import DataError
from cortext.files import atomic_directory, disk_errors
from cortext.processes import Progress, uninterrupted
from cortext.provenance import version_of
from cortext.text.inventory import Inventory
from cortext.text.language import Language
from cortext.text.pronunciation import pronounced
from cortext_data.simulate.articulators import ARTICULATORS, articulate, targets
from cortext_data.simulate.brain import Electrodes, electrodes, later_in_day
from cortext_data.simulate.config import STEP_MS, SimulatorConfig, preset_config
from cortext_data.simulate.material import Material, material_of
from cortext_data.simulate.months import events
from cortext_data.simulate.neural import max_lead_bins, record
from cortext_data.simulate.plan import PlannedBlock, PlannedDay, Prompt, plan_days, trial_counts
from cortext_data.simulate.speech import TimedPhonemes, utter, with_pauses
from cortext_data.simulate.structured import BlockNoise

MIN_SD = 1e-6
"""Standard deviation under which a feature counts as constant over a block; it becomes zero."""


@dataclass(frozen=True)
class SimulatedTrial:
    """A trial, the split it belongs to, and when each of its phonemes was spoken."""

    trial: Trial
    split: str
    utterance: TimedPhonemes


def simulate(
    out: str | Path,
    preset: str = "demo",
    *,
    seed: int | None = None,
    workers: int | None = 1,
    text: str | Path | None = None,
    lexicon: str | Path | None = None,
    language: Language | str | Path | None = None,
    inventory: Inventory | str | Path | None = None,
    truth: bool = False,
    overrides: Iterable[str] = (),
    progress: Progress | None = None,
) -> Dataset:
    """Write simulated session files of an attempted-speech experiment, and their texts.

    Besides `<session>/data_{train,val,test}.hdf5` there are `text/{train,val,test,lm}.txt` and
    `simulation.json`; where they differ from the release's conventions, `cortext.json`; and with a
    lexicon, `text/lexicon.txt`.

    Args:
        out: Directory to make; it must not exist, or be empty. It appears when all is written, or
            not at all.
        preset: `tiny`, `demo`, `t15`, `months`, `spanish` or `handwriting` (see PRESETS).
        seed: Seed of all random draws; the preset's own when None.
        workers: Processes; the files are the same, bit by bit, with any number of them. With None
            as many as there are processors, or fewer where the days are too small to be worth
            starting one.
        text: A file of sentences, one a line, to be attempted instead of the project's own.
        lexicon: A `lexicon.txt` with a pronunciation of each word. English phonemes and characters
            need none.
        language: Language of the text, by name or in a file; the preset's by default.
        inventory: Tokens of the lexicon, by name or in a file. By default they are the lexicon's
            symbols in sorted order (`cortext.text.lexicon.inventory_of`); without a lexicon, the
            preset's.
        truth: Also write `<session>/truth.hdf5`: articulators and alignments of every trial, tuning
            and drift.
        overrides: `key=value` changes to the preset's SimulatorConfig.
        progress: Called with trials done and trials in all.

    Raises:
        ConfigError: For a preset, key or value that cannot be right.
        DataError: When `out` is not empty or the disk is too small.
        TextError: For a text, a lexicon, a language or an inventory that cannot be used.
    """
    config = preset_config(preset, overrides, seed)
    out = as_path(out, "out")
    config, material = material_of(config, preset, text, lexicon, language, inventory)
    workers = None if workers is None else as_count(workers, "workers", 1)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(
            "exists and is not empty", where=out, fix="choose another directory or remove it"
        )
    prompts, lm_text = material.prompts(config)
    days = plan_days(config, prompts)
    n_bins = sum(
        u.n_bins for day in days for block in day.blocks for u in _utter(config, day, block)
    )
    with disk_errors(out), atomic_directory(out) as temporary:
        _check_space(temporary, n_bins * config.n_features * 4, out)
        config.conventions.write(temporary)
        _write_texts(temporary / "text", prompts, lm_text)
        if material.lexicon is not None:
            material.lexicon.write(temporary / "text" / "lexicon.txt")
        _write_days(temporary, config, days, truth, workers, progress)
        _write_record(temporary / "simulation.json", config, preset, material, days, n_bins)
    return open_session_files(out)


def simulate_block(
    config: SimulatorConfig, day: PlannedDay, block: PlannedBlock, e: Electrodes
) -> list[SimulatedTrial]:
    """Return the trials of one block, z-scored over it as in the release (Card et al. 2024).

    With `normalise=none` the features are as recorded.

    Args:
        config: The simulation.
        day: Day of the block, for its name and number.
        block: Trials to simulate.
        e: The day's electrodes.
    """
    inventory = config.inventory
    tokens = targets(inventory, config.seed)
    utterances = _utter(config, day, block)
    bounds = np.cumsum([0, *(utterance.n_bins for utterance in utterances)])
    features = np.empty((bounds[-1], config.n_features), dtype=np.float32)
    pad = max_lead_bins(config)
    noise = _noise(config, day, block, e, bounds[-1])
    earlier = sum(len(other.trials) for other in day.blocks if other.number < block.number)
    for planned, utterance, start in zip(block.trials, utterances, bounds, strict=False):
        positions = articulate(utterance, config.undershoot, pad, tokens)
        added = (
            None
            if noise is None
            else noise.trial(planned.number, start, utterance.n_bins).log_rate_TE
        )
        now = later_in_day(e, config, day.day, earlier + planned.number)
        recorded = record(positions, now, config, day.day, block.number, planned.number, added)
        features[start : start + utterance.n_bins] = recorded
    if config.normalise == "block":
        zscore(features)
    trials = []
    for planned, utterance, start in zip(block.trials, utterances, bounds, strict=False):
        prompt = planned.prompt
        labels = None
        if planned.split != "test":
            ids = inventory.ids(_spoken(config, prompt))
            labels = ids[ids != inventory.blank]  # pauses that labels do not name
        trial = Trial(
            features[start : start + utterance.n_bins], day.session, block.number, planned.number,
            None if labels is None else prompt.text, labels, prompt.corpus, config.conventions,
        )  # fmt: skip
        trials.append(SimulatedTrial(trial, planned.split, utterance))
    return trials


def zscore(features_TC: np.ndarray) -> None:
    """Bring every feature to mean 0 and deviation 1, in place; a constant one becomes 0."""
    # Summed in float64: a block has tens of thousands of bins.
    features_TC -= features_TC.mean(axis=0, dtype=np.float64).astype(np.float32)
    sd = np.sqrt(
        np.einsum("tc,tc->c", features_TC, features_TC, dtype=np.float64) / len(features_TC)
    )
    features_TC *= np.where(sd > MIN_SD, 1 / np.maximum(sd, MIN_SD), 0).astype(np.float32)


def _utter(config: SimulatorConfig, day: PlannedDay, block: PlannedBlock) -> list[TimedPhonemes]:
    return [
        utter(_spoken(config, t.prompt), config, day.day, block.number, t.number)
        for t in block.trials
    ]


def _spoken(config: SimulatorConfig, prompt: Prompt) -> Sequence[str]:
    """Return the tokens of a sentence with its pauses."""
    if prompt.spoken is not None:
        return prompt.spoken
    return with_pauses(pronounced(prompt.text, config.inventory, config.language), config.inventory)


def _noise(
    config: SimulatorConfig, day: PlannedDay, block: PlannedBlock, e: Electrodes, n_bins: int
) -> BlockNoise | None:
    return BlockNoise(config, e, day.day, block.number, n_bins) if config.structured_noise else None


def _check_space(folder: Path, n_bytes: int, out: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < 1.01 * n_bytes:
        problem = f"{n_bytes / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free"
        raise DataError(problem, where=out, fix="free some space, write elsewhere or simulate less")


def _write_texts(folder: Path, prompts: dict[str, list[Prompt]], lm_text: list[str]) -> None:
    folder.mkdir()
    for split, chosen in prompts.items():
        (folder / f"{split}.txt").write_text(
            "".join(f"{prompt.text}\n" for prompt in chosen), encoding="utf-8"
        )
    (folder / "lm.txt").write_text(
        "".join(f"{sentence}\n" for sentence in lm_text), encoding="utf-8"
    )


def _write_record(
    path: Path,
    config: SimulatorConfig,
    preset: str,
    material: Material,
    days: list[PlannedDay],
    n_bins: int,
) -> None:
    """Write the settings and versions that produced the data.

    Nothing in it depends on when, where or by how many workers it was made.
    """
    packages = {name: version_of(name) for name in ("cortext", "numpy", "h5py")}
    record = {
        "preset": preset,
        "seed": config.seed,
        "config": config.to_json(),
        "text": None if material.text is None else material.text.name,
        **({} if material.lexicon_file is None else {"lexicon": material.lexicon_file.name}),
        "sessions": [day.session for day in days],
        "trials": trial_counts(config),
        "hours": round(n_bins * config.bin_ms / 3_600_000, 3),
        "versions": {"python": platform.python_version(), **packages},
    }
    path.write_text(json.dumps(record, indent=2) + "\n")


_WORTH_A_PROCESS = 5000
"""Trials times electrodes that take about as long to simulate as a process takes to start."""


def _write_days(
    root: Path,
    config: SimulatorConfig,
    days: list[PlannedDay],
    truth: bool,
    workers: int | None,
    progress: Progress | None,
) -> None:
    """Write one session after another, or several at a time in processes of their own."""
    # A day is the smallest job: its electrodes have drifted through all days before it.
    jobs = [(root, config, day, truth) for day in days]
    total = sum(day.n_trials for day in days)
    done = 0
    if workers is None:
        workers = min(available_cores(), total * config.n_electrodes // _WORTH_A_PROCESS)

    def finished(n_trials: int) -> None:
        nonlocal done
        done += n_trials
        if progress is not None:
            progress(done, total)

    if workers <= 1 or len(jobs) == 1:
        for job in jobs:
            finished(_write_day(*job))
        return
    # Fresh processes, since forking one that holds threads may deadlock.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context) as pool:
        with uninterrupted():
            futures = [pool.submit(_write_day, *job) for job in jobs]
        try:
            for future in as_completed(futures):
                finished(future.result())
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _write_day(root: Path, config: SimulatorConfig, day: PlannedDay, truth: bool) -> int:
    """Write the files of one session, a block in memory at a time; return its number of trials."""
    e = electrodes(config, day.history)
    folder = root / day.session
    for split in SPLITS:
        blocks = list(day.blocks_with(split))
        if blocks:
            trials = (t for block in blocks for t in simulate_block(config, day, block, e))
            write_session(
                folder / f"data_{split}.hdf5", (t.trial for t in trials if t.split == split)
            )
    if truth:
        _write_truth(folder / "truth.hdf5", config, day, e)
    return day.n_trials


def _write_truth(path: Path, config: SimulatorConfig, day: PlannedDay, e: Electrodes) -> None:
    """Write the day's electrodes, and sentence, alignment and articulators of every trial.

    `electrodes/*` hold the fields of Electrodes, `evening/*` those that the day has changed at its
    end, and the attribute `events` names the events of the day. `<split>/trial_NNNN`, numbered as
    in the session file, hold `articulators` float32 [T, K] and `alignment` int64 [S, 3] (token,
    start and end in ms), and attributes. Where there is structured noise, `structured_noise`
    float32 [T, E] (log rate), `artefacts` int64 [N, 3] (waveform, start and end in ms) and `steps`
    int64 [S] (ms) are there too.
    """
    tokens = targets(config.inventory, config.seed)
    with new_hdf5(path) as (file, check_disk):
        file.attrs["articulators"] = ARTICULATORS
        for name, values in asdict(e).items():
            if values is not None:
                file[f"electrodes/{name}"] = values
        if config.within_day:
            evening = later_in_day(e, config, day.day, day.n_trials)
            for name in ("tuning_EF", "depth_E", "baseline_E"):
                file[f"evening/{name}"] = getattr(evening, name)
        if config.plan == "months":
            file.attrs["events"] = events(config).on(day.day)
        numbers = dict.fromkeys(SPLITS, 0)
        for block in day.blocks:
            utterances = _utter(config, day, block)
            bounds = np.cumsum([0, *(u.n_bins for u in utterances)])
            noise = _noise(config, day, block, e, bounds[-1])
            for planned, u, start in zip(block.trials, utterances, bounds, strict=False):
                group = file.create_group(f"{planned.split}/trial_{numbers[planned.split]:04d}")
                numbers[planned.split] += 1
                group["articulators"] = articulate(u, config.undershoot, tokens=tokens)
                group["alignment"] = np.stack(
                    [u.ids_S, u.starts_S * STEP_MS, u.ends_S * STEP_MS], axis=1
                )
                if noise is not None:
                    made = noise.trial(planned.number, start, u.n_bins)
                    group["structured_noise"] = made.log_rate_TE
                    group["artefacts"] = made.artefacts_N3 * [1, config.bin_ms, config.bin_ms]
                    group["steps"] = made.steps_S * config.bin_ms
                group.attrs.update(block_num=block.number, trial_num=planned.number)
                group.attrs["sentence_label"] = planned.prompt.text
                check_disk()
