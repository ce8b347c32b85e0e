"""NWB files of other labs, written with pynwb: FALCON H2, and what a BRAND rig exports."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
from foreign_files import HANDWRITTEN, SENTENCES, Written, counts, power

if TYPE_CHECKING:
    from pynwb import NWBFile

FALCON_DAYS = {"held-in": ("2022.05.18", "2022.05.23"), "held-out": ("2023.04.17",)}
CHICAGO = ZoneInfo("America/Chicago")


def written_cues(
    rng: np.random.Generator,
    blocks: Sequence[int],
    sentences: Sequence[str] = HANDWRITTEN,
    bins: tuple[int, int] = (60, 100),
) -> list[Written]:
    """Return one H2 trial for each block number given: {"binned_spikes": uint8 [T, 192]}."""
    return [
        Written(
            sentences[i % len(sentences)],
            block,
            {"binned_spikes": counts(rng, int(rng.integers(*bins)), 192, rate=0.5)},
        )
        for i, block in enumerate(blocks)
    ]


def write_falcon(
    root: Path,
    material: Mapping[tuple[str, str], Sequence[Written]] | None = None,
    dandi: bool = True,
    seed: int = 0,
) -> dict[tuple[str, str], list[Written]]:
    """Write FALCON H2 files with pynwb, as the preparation of DANDI 000950 does.

    Args:
        root: Folder of the dandiset.
        material: Trials by split and date, such as `("held-in-calib", "2022.05.18")`, each with the
            array `binned_spikes`, [T, 192]. Default: two held-in days and a held-out one; the
            minival files repeat the first two trials of the calibration.
        dandi: Name files as DANDI does, `sub-T5-held-in-calib/sub-T5-held-in-calib_ses-....nwb`;
            else as the preparation does, `held_in_calib/T5_2022.05.18_held_in_calib.nwb`.
        seed: Of the default material.
    """
    if material is None:
        rng = np.random.default_rng(seed)
        material = {}
        for day in FALCON_DAYS["held-in"]:
            trials = written_cues(rng, [1, 1, 1, 2, 2])
            material["held-in-calib", day] = trials
            material["held-in-minival", day] = trials[:2]
        for day in FALCON_DAYS["held-out"]:
            material["held-out-calib", day] = written_cues(rng, [1, 1, 1])
    for (split, day), trials in material.items():
        label = split.replace("-", "_")
        name = f"{label}/T5_{day}_{label}.nwb"
        if dandi:
            name = f"sub-T5-{split}/sub-T5-{split}_ses-{day.replace('.', '')}.nwb"
        _write_h2(root / name, day, label, trials)
    return {key: list(trials) for key, trials in material.items()}


def _write_h2(path: Path, day: str, label: str, trials: Sequence[Written]) -> None:
    from pynwb import NWBHDF5IO, NWBFile, TimeSeries
    from pynwb.file import Subject

    file = NWBFile(
        session_description="human BCI participant performing attempted handwriting task",
        identifier=f"T5_{day}_{label}",
        session_start_time=datetime.datetime.strptime(day, "%Y.%m.%d").replace(tzinfo=CHICAGO),
        experiment_description="handwriting with prompted sentences",
        lab="NPTL",
        institution="Stanford University",
    )
    file.subject = Subject(subject_id=f"T5_{label}", species="Homo sapiens", sex="M", age="P69Y")
    file.add_trial_column(name="cue", description="sentence participant was prompted to write")
    file.add_trial_column(name="block_num", description="experimental block of the trial")
    start, times = 0.0, []
    for trial in trials:
        n_bins = len(trial.arrays["binned_spikes"])
        t = np.arange(start, start + n_bins) * 0.02
        start += n_bins + 10 / 0.02  # ten seconds between trials
        file.add_trial(start_time=t[0], stop_time=t[-1], cue=trial.sentence, block_num=trial.block)
        times.append(t)
    t = np.concatenate(times)
    data = np.vstack([trial.arrays["binned_spikes"] for trial in trials])
    about = "Threshold crossings aggregated in 20ms bins"
    file.add_acquisition(
        TimeSeries(name="binned_spikes", description=about, timestamps=t, data=data, unit="int")
    )
    mask = np.full(t.size, True)
    file.add_acquisition(TimeSeries(name="eval_mask", timestamps=t, data=mask, unit="bool"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with NWBHDF5IO(path, "w") as io:
        io.write(file)


@dataclass(frozen=True, eq=False)
class Rig:
    """One NWB file as a rig's export writes it.

    trials: arrays "threshold_crossings" (int16) and "spike_band_power" (float32), [T, C]
    start_s, stop_s: [n] of each trial; the last bin ends at `stop_s`
    split:  of each trial
    spikes: sorted spike times in seconds by unit
    """

    trials: list[Written]
    start_s: np.ndarray
    stop_s: np.ndarray
    split: list[str]
    spikes: list[np.ndarray] = field(default_factory=list)


def write_nwb(
    path: Path,
    trials: Sequence[Written] | None = None,
    bin_ms: int = 20,
    n_channels: int = 64,
    n_units: int = 0,
    split: Sequence[str] | None = None,
    timestamps: bool = False,
    compress: bool = False,
    start: str = "2026.05.04",
    seed: int = 0,
) -> Rig:
    """Write an NWB file with pynwb as a BRAND rig exports it: continuous series, trials, units.

    The series run through the pauses between the trials, ten bins each. The columns of `trials` are
    the lab's own: `prompt`, `block_id`, `purpose`.

    Args:
        path: The file.
        trials: Default: six in two blocks, with `n_channels` channels.
        bin_ms: Length of a bin.
        n_channels: Of each series, for the default trials.
        n_units: Sorted units, with spikes drawn at 20 a second; 0: no `units`.
        split: `train`, `val` or `test` of each trial. Default: the last trial of a block is `val`.
        timestamps: Write a time for each bin instead of a rate.
        compress: Compress the series with gzip.
        start: Date of the session.
        seed: Of all that is drawn.
    """
    from pynwb import NWBHDF5IO, NWBFile

    rng = np.random.default_rng(seed)
    trials = list(trials or rig_trials(rng, n_channels))
    names = list(trials[0].arrays)
    if split is None:
        blocks = [*(trial.block for trial in trials), None]
        split = ["val" if b != blocks[i + 1] else "train" for i, b in enumerate(blocks[:-1])]
    file = NWBFile(
        session_description="attempted speech",
        identifier=f"rig-{start}",
        session_start_time=datetime.datetime.strptime(start, "%Y.%m.%d").replace(tzinfo=CHICAGO),
    )
    parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for name, about in (("prompt", "sentence"), ("block_id", "block"), ("purpose", "split")):
        file.add_trial_column(name=name, description=about)
    at, start_s, stop_s = 0, [], []
    for trial, part in zip(trials, split, strict=True):
        for name in names:
            x_TC = trial.arrays[name]
            pause = rng.integers(0, 5, (10, x_TC.shape[1])).astype(x_TC.dtype)
            parts[name] += [pause, x_TC]
        first, at = at + 10, at + 10 + len(trial.arrays[names[0]])
        start_s.append(first * bin_ms / 1000)
        stop_s.append(at * bin_ms / 1000)
        file.add_trial(
            start_time=start_s[-1], stop_time=stop_s[-1],
            prompt=trial.sentence, block_id=trial.block, purpose=part,
        )  # fmt: skip
    clock = {"rate": 1000 / bin_ms}
    if timestamps:
        clock = {"timestamps": np.arange(at) * (bin_ms / 1000)}
    for name in names:
        _add_series(file, name, np.concatenate(parts[name]), clock, compress)
    end_s = at * bin_ms / 1000
    spikes = [np.sort(rng.uniform(0, end_s, int(20 * end_s))) for _ in range(n_units)]
    for times in spikes:
        file.add_unit(spike_times=times)
    path.parent.mkdir(parents=True, exist_ok=True)
    with NWBHDF5IO(path, "w") as io:
        io.write(file)
    return Rig(trials, np.array(start_s), np.array(stop_s), list(split), spikes)


def _add_series(
    file: NWBFile, name: str, x_TC: np.ndarray, clock: Mapping[str, Any], compress: bool
) -> None:
    from hdmf.backends.hdf5 import H5DataIO
    from pynwb import TimeSeries

    data = H5DataIO(x_TC, compression="gzip", chunks=True) if compress else x_TC
    file.add_acquisition(TimeSeries(name=name, data=data, unit="n/a", **clock))


def rig_trials(
    rng: np.random.Generator, n_channels: int, blocks: Sequence[int] = (1, 1, 1, 2, 2, 2)
) -> list[Written]:
    """Return one trial for each block number given."""
    trials = []
    for i, block in enumerate(blocks):
        n_bins = int(rng.integers(60, 80))
        crossings = counts(rng, n_bins, n_channels).astype(np.int16)
        arrays = {
            "threshold_crossings": crossings,
            "spike_band_power": power(rng, n_bins, n_channels),
        }
        trials.append(Written(SENTENCES[i % len(SENTENCES)], block, arrays))
    return trials
