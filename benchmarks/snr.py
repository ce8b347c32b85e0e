"""How hard is the demo's task at other signal-to-noise ratios? PER against SNR, over simulator
seeds.

    python benchmarks/snr.py [--out build/snr] [--json FILE] [--plot FILE] [--workers 2]

The demo's recipe is trained on the demo preset with `snr` at 1/4, 1/2, 1, 2 and 4: at 1/2 and 2
with five seeds, at 1 with three. Runs that `--out` already has are not repeated. A run takes
minutes on one core; `--workers` runs that many at a time.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from matplotlib.figure import Figure

from cortext.data import pack
from cortext.data.simulate import simulate
from cortext.training import train

SEEDS = {0.25: [0], 0.5: [0, 1, 2, 3, 4], 1.0: [0], 2.0: [0, 1, 2, 3, 4], 4.0: [0]}


def measure(snr: float, seed: int, out: Path) -> float:
    """Greedy PER on the validation split of one simulation, after training on it."""
    result = out / f"snr{snr:g}-seed{seed}.json"
    if not result.is_file():
        work = out / f"snr{snr:g}-seed{seed}"
        shutil.rmtree(work, ignore_errors=True)
        torch.set_num_threads(1)
        simulate(work / "data", "demo", seed=seed, overrides=[f"snr={snr}"])
        pack(work / "data", work / "packed")
        summary = train("demo", work / "packed", work / "run", progress=False)
        result.write_text(json.dumps({"per": summary.val_per}))
        shutil.rmtree(work)
    per: float = json.loads(result.read_text())["per"]
    return per


def plot(pers: dict[float, list[float]], path: Path) -> None:
    """PER of every run against SNR, and the median."""
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for snr, values in pers.items():
        axes.plot(
            [snr] * len(values),
            [100 * per for per in values],
            "o",
            color="tab:blue",
            alpha=0.5,
            markersize=5,
        )
    axes.plot(
        list(pers), [100 * statistics.median(values) for values in pers.values()], color="tab:blue"
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(pers), [f"{snr:g}" for snr in pers])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("SNR relative to the demo")
    axes.set_ylabel("phoneme error rate, %")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("build/snr"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    runs = [(snr, seed) for snr, seeds in SEEDS.items() for seed in seeds]
    with ProcessPoolExecutor(arguments.workers) as pool:
        results = list(pool.map(measure, *zip(*runs, strict=True), [arguments.out] * len(runs)))
    pers = {
        snr: [per for run, per in zip(runs, results, strict=True) if run[0] == snr] for snr in SEEDS
    }
    print("| SNR | seeds | PER, median | lowest | highest |\n|---|---|---|---|---|")
    for snr, values in pers.items():
        row = [
            f"{100 * per:.1f} %" for per in (statistics.median(values), min(values), max(values))
        ]
        print(f"| {snr:g} | {len(values)} | {' | '.join(row)} |")
    if arguments.json:
        figures = {"per": {f"{snr:g}": values for snr, values in pers.items()}}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    if arguments.plot:
        plot(pers, arguments.plot)


if __name__ == "__main__":
    main()
