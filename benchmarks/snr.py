"""Difficulty of the demo's task at other signal-to-noise ratios: PER against SNR, several seeds.

    python benchmarks/snr.py [--out build/snr] [--json FILE] [--plot FILE] [--workers 2]

The demo's recipe is trained on the demo preset with `snr` at 1/4, 1/2, 1, 2 and 4: at 1/2 and 2
with five seeds, at 1 with three. Runs that `--out` already has are not repeated. A run takes
minutes on one core; `--workers` runs that many at a time.
"""

from __future__ import annotations

import shutil
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from matplotlib.figure import Figure

from cortext.data import pack
from cortext.training import train
from cortext_bench.harness import made_once, markdown_table, study_arguments, write_result
from cortext_data.simulate import simulate

SEEDS = {0.25: [0], 0.5: [0, 1, 2, 3, 4], 1.0: [0], 2.0: [0, 1, 2, 3, 4], 4.0: [0]}


def measure(snr: float, seed: int, out: Path) -> float:
    """Return the greedy PER on the validation split of one simulation, after training on it.

    Args:
        snr: Signal-to-noise ratio, relative to the demo's.
        seed: Seed of the simulation.
        out: Folder of the results; one that is there is read instead.
    """
    work = out / f"snr{snr:g}-seed{seed}"

    def trained() -> dict[str, float]:
        shutil.rmtree(work, ignore_errors=True)
        torch.set_num_threads(1)
        simulate(work / "data", "demo", seed=seed, overrides=[f"snr={snr}"])
        pack(work / "data", work / "packed")
        summary = train("demo", work / "packed", work / "run", progress=False)
        shutil.rmtree(work)
        return {"per": summary.val_per}

    return float(made_once(work.with_name(f"{work.name}.json"), trained)["per"])


def plot(pers: dict[float, list[float]], path: Path) -> None:
    """Plot the PER of every run against SNR, and the median."""
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
    parser = study_arguments(__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/snr"))
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
    rows = []
    for snr, values in pers.items():
        found = statistics.median(values), min(values), max(values)
        rows.append([f"{snr:g}", len(values), *(f"{100 * per:.1f} %" for per in found)])
    print(markdown_table(["SNR", "seeds", "PER, median", "lowest", "highest"], rows))
    figures = {"per": {f"{snr:g}": values for snr, values in pers.items()}}
    write_result(arguments.json, figures)
    if arguments.plot:
        plot(pers, arguments.plot)


if __name__ == "__main__":
    main()
