"""Pictures and numbers of docs/measured/simulator.md.

A trial, the signal beside a real trial's, and what drift does.

    python tools/plot_simulator.py [--out docs/images]

The real trial is read from $CORTEXT_REAL_DATA (default ../shared/data); without it the simulated
one stands alone.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from cortext.text.inventory import RELEASE
from cortext_data.simulate import PRESETS, SimulatorConfig
from cortext_data.simulate.articulators import ARTICULATORS, articulate
from cortext_data.simulate.brain import electrodes
from cortext_data.simulate.config import ARRAYS
from cortext_data.simulate.plan import PlannedBlock, PlannedDay, PlannedTrial, Prompt
from cortext_data.simulate.sentences import splits
from cortext_data.simulate.statistics import (
    BANDS_HZ,
    LAGS,
    SignalStatistics,
    mean_statistics,
    signal_statistics,
)
from cortext_data.simulate.write import SimulatedTrial, simulate_block

ROOT = Path(__file__).resolve().parents[1]
REAL = (
    Path(os.environ.get("CORTEXT_REAL_DATA", ROOT.parent / "shared" / "data"))
    / "neural/t12_one_trial_256x591.npy"
)
LEAD_BINS = 8  # typical lead of an electrode, by which frames are labelled
DRIFT_DAYS = (1, 2, 3, 5, 8, 12, 16, 20, 30, 45, 60)


def record_day(
    config: SimulatorConfig, history: tuple[int, ...], sentences: list[str]
) -> list[SimulatedTrial]:
    """The sentences spoken in blocks of 50 on the last day of `history`."""
    blocks = []
    for start in range(0, len(sentences), 50):
        prompts = enumerate(sentences[start : start + 50])
        trials = tuple(PlannedTrial(i, "train", Prompt(text, "")) for i, text in prompts)
        blocks.append(PlannedBlock(start // 50 + 1, trials))
    day = PlannedDay("sim.2025.01.06", history, tuple(blocks))
    e = electrodes(config, history)
    return [trial for block in blocks for trial in simulate_block(config, day, block, e)]


def plot_trial(made: SimulatedTrial, config: SimulatorConfig, path: Path) -> None:
    figure, (top, middle, bottom) = plt.subplots(
        3, 1, figsize=(11, 8.5), sharex=True, height_ratios=(1, 2.4, 4), layout="constrained"
    )
    u = made.utterance
    seconds = made.trial.n_bins * 0.02
    for token, start, end in zip(u.ids_S, u.starts_S * 0.005, u.ends_S * 0.005, strict=True):
        if token != RELEASE.sil:
            top.axvspan(start, end, color="#d8e4f0", ec="#5b7ea3", lw=0.5)
            top.text(
                (start + end) / 2, 0.5, RELEASE.symbols[token], ha="center", va="center", fontsize=7
            )
    top.set(yticks=[], title=made.trial.sentence, ylabel="phonemes")
    extent = (0, seconds, len(ARTICULATORS) - 0.5, -0.5)
    positions = articulate(u, config.undershoot)
    middle.imshow(
        positions.T,
        aspect="auto",
        cmap="RdBu_r",
        vmin=-1,
        vmax=1,
        extent=extent,
        interpolation="nearest",
    )
    middle.set_yticks(range(len(ARTICULATORS)), ARTICULATORS, fontsize=7)
    n = config.n_features
    smooth = np.apply_along_axis(np.convolve, 0, made.trial.features_TC, gaussian(2.0), "same")
    image = bottom.imshow(
        smooth.T,
        aspect="auto",
        cmap="magma",
        vmin=-1,
        vmax=1.5,
        extent=(0, seconds, n, 0),
        interpolation="nearest",
    )
    names = [f"{array}, {kind}" for kind in ("crossings", "power") for array in ARRAYS]
    bottom.set_yticks((np.arange(8) + 0.5) * n / 8, names, fontsize=8)
    for edge in range(1, 8):
        bottom.axhline(edge * n / 8, color="white", lw=2 if edge == 4 else 0.6)
    bottom.set(xlabel="seconds since the go cue")
    figure.colorbar(image, ax=bottom, label="z-score, smoothed", pad=0.01)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def gaussian(std_bins: float) -> np.ndarray:
    kernel = np.exp(-0.5 * (np.arange(-8, 9) / std_bins) ** 2)
    return kernel / kernel.sum()


def plot_signal(found: dict[str, SignalStatistics], path: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for (name, statistics), style in zip(found.items(), ("o-", "s--", "^:"), strict=False):
        left.plot(LAGS, statistics.autocorrelation, style, label=name)
        right.plot(range(len(BANDS_HZ)), statistics.spectrum, style, label=name)
    left.set(xlabel="lag in bins of 20 ms", ylabel="autocorrelation", ylim=(0, None))
    right.set(ylabel="power over mean power", xlabel="Hz")
    right.set_xticks(range(len(BANDS_HZ)), [f"{low}-{high}" for low, high in BANDS_HZ])
    right.axhline(1, color="grey", lw=0.5)
    left.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def print_signal(found: dict[str, SignalStatistics]) -> None:
    print("| | " + " | ".join(found) + " |\n|---|" + "---|" * len(found))
    rows = [("mean correlation of two features", [f"{s.correlation:.3f}" for s in found.values()])]
    for i, lag in enumerate(LAGS):
        rows.append(
            (f"autocorrelation, lag {lag}", [f"{s.autocorrelation[i]:.3f}" for s in found.values()])
        )
    for i, (low, high) in enumerate(BANDS_HZ):
        rows.append((f"power at {low}-{high} Hz", [f"{s.spectrum[i]:.2f}" for s in found.values()]))
    for name, values in rows:
        print(f"| {name} | " + " | ".join(values) + " |")


def frames(trials: list[SimulatedTrial]) -> tuple[np.ndarray, np.ndarray]:
    """Smoothed features [N, C] and phonemes [N] of the frames with speech."""
    x = []
    y = []
    for made in trials:
        labels = made.utterance.ids_per_bin(LEAD_BINS)
        said = labels != RELEASE.sil
        x.append(
            np.apply_along_axis(np.convolve, 0, made.trial.features_TC, gaussian(2.0), "same")[said]
        )
        y.append(labels[said])
    return np.concatenate(x), np.concatenate(y)


def linear_classifier(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Linear discriminant analysis with shared covariance: weights [C, 41] and offsets [41]."""
    classes = np.arange(len(RELEASE))
    counts = np.bincount(y, minlength=len(classes))
    means = np.stack(
        [x[y == c].mean(axis=0) if counts[c] else np.zeros(x.shape[1]) for c in classes]
    )
    centred = x - means[y]
    covariance = centred.T @ centred / len(x) + 1e-3 * np.eye(x.shape[1])
    weights = np.linalg.solve(covariance, means.T)
    prior = np.log(np.where(counts, counts, 1e-9) / len(y))
    return weights, prior - 0.5 * np.einsum("vc,cv->v", means, weights)


def error(model: tuple[np.ndarray, np.ndarray], x: np.ndarray, y: np.ndarray) -> float:
    return float(((x @ model[0] + model[1]).argmax(axis=1) != y).mean())


def drift_errors(config: SimulatorConfig, seed: int) -> tuple[list[float], list[float]]:
    """Frame error of two classifiers on every day of DRIFT_DAYS.

    One is trained on day 1, the other on the day itself.
    """
    config = replace(config, seed=seed)
    sentences = [sentence.text for sentence in splits(150, 0, 0, seed).train]
    old = []
    fresh = []
    first = None
    for i in range(len(DRIFT_DAYS)):
        trials = record_day(config, DRIFT_DAYS[: i + 1], sentences)
        own = linear_classifier(*frames(trials[:100]))
        first = first or own
        test = frames(trials[100:])
        old.append(error(first, *test))
        fresh.append(error(own, *test))
    return old, fresh


def plot_drift(config: SimulatorConfig, path: Path) -> None:
    runs = np.array([drift_errors(config, seed) for seed in range(3)])
    figure, axis = plt.subplots(figsize=(7.5, 4), layout="constrained")
    for kind, (name, color) in enumerate(
        [("trained on day 1", "#b5432a"), ("trained on the day itself", "#2a6bb5")]
    ):
        axis.plot(DRIFT_DAYS, 100 * runs[:, kind].mean(axis=0), "o-", color=color, label=name)
        axis.fill_between(
            DRIFT_DAYS,
            100 * runs[:, kind].min(axis=0),
            100 * runs[:, kind].max(axis=0),
            color=color,
            alpha=0.15,
            lw=0,
        )
    axis.set(xlabel="day", ylabel="phoneme error of single smoothed frames, %", ylim=(0, 100))
    axis.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    print("\n| day | trained on day 1 | trained on the day itself |\n|---|---|---|")
    for day, old, fresh in zip(DRIFT_DAYS, *runs.mean(axis=0), strict=True):
        print(f"| {day} | {100 * old:.0f} % | {100 * fresh:.0f} % |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    sentences = [sentence.text for sentence in splits(50, 0, 0, 0).train]
    found = {}
    if REAL.is_file():
        found["real trial (T12)"] = signal_statistics(np.load(REAL).T)
    for preset in ("demo", "t15"):
        trials = record_day(PRESETS[preset], (1,), sentences)
        found[f"simulated, {preset}"] = mean_statistics(
            [signal_statistics(t.trial.features_TC) for t in trials]
        )
        if preset == "demo":
            plot_trial(trials[0], PRESETS[preset], out / "simulator_trial.png")
    print_signal(found)
    plot_signal(found, out / "simulator_signal.png")
    plot_drift(PRESETS["demo"], out / "simulator_drift.png")


if __name__ == "__main__":
    main()
