"""Posteriors averaged against sentences combined: four runs of the demo that differ in their seeds.

    make demo
    python benchmarks/ensemble_demo.py --demo runs/demo [--out build/ensemble] [--json FILE] [--plot FILE]

The demo's recipe is trained three more times on the demo's data, which takes minutes each; what `--out` already has is
not repeated. All pairs, all triples and all four runs are combined: by their best sentences, by their n-best lists with
scores, and by their posteriors, which are decoded with the demo's language model and the search's defaults. That is
done on the demo's validation split and, as this is small, on more recordings of the same simulated participant, of
which those are left out whose sentence is in the text that the demo's language model or its runs learned from.
Intervals are 95 %, from a bootstrap over trials; differences are paired, to the same runs' combined best sentences.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from cortext.data import pack
from cortext.data.simulate import simulate
from cortext.decoding.ensemble import Candidates, EnsembleOptions, combine_runs, read_evaluations
from cortext.evaluation import evaluate
from cortext.provenance import provenance
from cortext.text.metrics import edit_counts
from cortext.text.normalize import normalize
from cortext.training import train
from ensemble import N_BOOT, interval, span

SEEDS = (1, 2, 3, 4)
FIRST = 9
"""The demo's `seed` is 10 and its `dataset.seed` 1; the others' are 11 and 2, and so on."""

WAYS: dict[str, dict[str, Any]] = {
    "best sentences, minimum Bayes risk": {"method": "mbr", "nbest": 1},
    "best sentences, ROVER": {"method": "rover", "nbest": 1},
    "n-best lists, minimum Bayes risk": {"method": "mbr"},
    "n-best lists, ROVER": {"method": "rover"},
    "n-best lists, ROVER with the 4-gram": {"method": "rover-lm"},
    "posteriors, arithmetic mean": {"method": "average", "mean": "arithmetic"},
    "posteriors, geometric mean": {"method": "average", "mean": "geometric"},
}
TEXTS = "best sentences, ROVER"
OF_POSTERIORS = [name for name in WAYS if name.startswith("posteriors")]


def run_of(seed: int, demo: Path, out: Path) -> Path:
    """The run directory of a seed, trained if need be."""
    run = demo / "run" if seed == 1 else out / f"seed{seed}"
    if not (run / "summary.json").is_file():
        torch.set_num_threads(1)
        overrides = [f"seed={FIRST + seed}", f"dataset.seed={seed}"]
        train("demo", demo / "packed", run, lm=demo / "lm", overrides=overrides, progress=False)
    return run


def evaluations(demo: Path, packed: Path, out: Path, folder: Path) -> list[Path]:
    """An evaluation directory of a validation split for every seed."""
    for seed in SEEDS:
        if not (folder / f"eval{seed}" / "metrics.json").is_file():
            evaluate(run_of(seed, demo, out), packed, "val", demo / "lm", folder / f"eval{seed}")
    return [folder / f"eval{seed}" for seed in SEEDS]


def more_recordings(demo: Path, folder: Path) -> Path:
    """A packed directory with 600 validation trials of the demo's participant, in other blocks than the demo's."""
    if not (folder / "packed").is_dir():
        seed = json.loads((demo / "demo.json").read_text())["seed"]
        overrides = ["train_per_day=1", "val_per_day=100", "test_per_day=0"]
        simulate(folder / "data", "demo", seed=seed, overrides=overrides)
        pack(folder / "data", folder / "packed")
    return folder / "packed"


def learned(demo: Path) -> set[str]:
    """The sentences that the demo's language model and its runs were made from, normalised."""
    texts = [(demo / "data" / "text" / name).read_text() for name in ("lm.txt", "train.txt")]
    return {normalize(line) for text in texts for line in text.splitlines()}


def errors(texts: list[str], trials: list[Candidates]) -> np.ndarray:
    """Word errors int64 [trials]."""
    pairs = zip(trials, texts, strict=True)
    return np.array([edit_counts(normalize(t.reference or "").split(), text.split()).errors for t, text in pairs])


def measure(directories: list[Path], lm: Path, known: set[str], seed: int) -> dict[str, Any]:
    """WER of the runs alone, and of every way to combine two, three and four of them, without `known` sentences."""
    trials = read_evaluations(directories)
    kept_N = np.array([normalize(trial.reference or "") not in known for trial in trials])
    length_N = np.array([len(normalize(trial.reference or "").split()) for trial in trials])[kept_N]
    total = length_N.sum()
    alone = [errors([" ".join(t.best[n]) for t in trials], trials)[kept_N] for n in range(len(directories))]
    sizes: dict[str, Any] = {}
    for size in range(2, len(directories) + 1):
        subsets = list(itertools.combinations(directories, size))
        mean_N = {}
        for name, options in WAYS.items():
            uses_lm = options["method"] in ("average", "rover-lm")
            counts = []
            for subset in subsets:
                found = combine_runs(subset, EnsembleOptions(**options), lm=lm if uses_lm else None)
                counts.append(errors([combined.text for combined in found.combined], trials)[kept_N])
            mean_N[name] = np.mean(counts, axis=0)
        rows = {}
        for name, errors_N in mean_N.items():
            difference_N = errors_N - mean_N[TEXTS]
            rows[name] = {
                "wer": float(errors_N.sum() / total),
                "ci95": interval(errors_N, length_N, seed),
                "difference": float(difference_N.sum() / total),
                "difference_ci95": interval(difference_N, length_N, seed),
            }
        sizes[str(size)] = {"subsets": len(subsets), "rows": rows}
    return {
        "n_trials": int(kept_N.sum()),
        "n_words": int(total),
        "alone": [float(errors_N.sum() / total) for errors_N in alone],
        "alone_ci95": interval(np.mean(alone, axis=0), length_N, seed),
        "combined": sizes,
    }


def print_tables(found: dict[str, Any]) -> None:
    """A table for each number of runs."""
    alone = ", ".join(f"{100 * wer:.2f}" for wer in found["alone"])
    print(f"{found['n_trials']} trials, {found['n_words']} words. Alone: {alone} %")
    for size, of_size in found["combined"].items():
        print(f"\n{size} runs, mean of {of_size['subsets']}\n")
        print("| | WER, % | 95 % interval | to best sentences, points | 95 % interval |\n|---|---|---|---|---|")
        for name, row in of_size["rows"].items():
            cells = [f"{100 * row['wer']:.2f}", span(row["ci95"]), "", ""]
            if name != TEXTS:
                cells[2:] = [f"{100 * row['difference']:+.2f}", span(row["difference_ci95"], "+")]
            print(f"| {name} | {' | '.join(cells)} |")


def plot(sets: dict[str, Any], path: Path) -> None:
    """WER against the number of runs, a panel for each set and a line for each way."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for axes, (title, found) in zip(figure.subplots(1, len(sets), sharey=True), sets.items(), strict=True):
        sizes = [int(size) for size in found["combined"]]
        mean = 100 * float(np.mean(found["alone"]))
        axes.plot([1] * len(found["alone"]), [100 * wer for wer in found["alone"]], "o", color="#9aa1a9", markersize=4)
        for number, name in enumerate(WAYS):
            wers = [100 * found["combined"][str(size)]["rows"][name]["wer"] for size in sizes]
            style = "-" if name in OF_POSTERIORS else "--"
            axes.plot([1, *sizes], [mean, *wers], style, marker="o", markersize=3, color=f"C{number}", label=name)
        axes.set_xticks([1, *sizes])
        axes.set_xlabel("runs combined")
        axes.set_title(f"{title} ({found['n_trials']} trials)", fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("word error rate, %")
    figure.axes[0].legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"))
    parser.add_argument("--out", type=Path, default=Path("build/ensemble"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    demo, more = arguments.demo, arguments.out / "more"
    folders = {"the demo's validation split": (demo / "packed", arguments.out),
               "more recordings": (more_recordings(demo, more), more)}  # fmt: skip
    found = {}
    for name, (packed, folder) in folders.items():
        directories = evaluations(demo, packed, arguments.out, folder)
        found[name] = measure(directories, demo / "lm", learned(demo), arguments.seed)
        print(f"\n{name}: ", end="")
        print_tables(found[name])
    if arguments.json:
        figures = {"sets": found} | {"seed": arguments.seed, "n_boot": N_BOOT, **provenance()}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    if arguments.plot:
        plot(found, arguments.plot)


if __name__ == "__main__":
    main()
