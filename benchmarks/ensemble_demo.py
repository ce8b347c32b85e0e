"""Posteriors averaged against sentences combined: four runs of the demo that differ in their seeds.

    make demo
    python benchmarks/ensemble_demo.py --demo runs/demo [--out build/ensemble] [--json FILE] [--plot FILE]

The demo's recipe is trained three more times on the demo's data, which takes minutes each; what `--out` already has is
not repeated. All pairs, all triples and all four runs are combined: by the sentences of their n-best lists (their best
sentences alone, too) and by their posteriors, which are decoded with the demo's language model and the search's
defaults. Intervals are 95 %, from a bootstrap over trials; differences are paired.
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
OF_POSTERIORS = [name for name in WAYS if name.startswith("posteriors")]


def evaluations(demo: Path, out: Path) -> list[Path]:
    """An evaluation directory of the validation split for every seed."""
    found = []
    for seed in SEEDS:
        run, folder = (demo / "run" if seed == 1 else out / f"seed{seed}"), out / f"eval{seed}"
        if not (folder / "metrics.json").is_file():
            if not (run / "summary.json").is_file():
                torch.set_num_threads(1)
                overrides = [f"seed={FIRST + seed}", f"dataset.seed={seed}"]
                train("demo", demo / "packed", run, lm=demo / "lm", overrides=overrides, progress=False)
            evaluate(run, demo / "packed", "val", demo / "lm", folder)
        found.append(folder)
    return found


def errors(texts: list[str], trials: list[Candidates]) -> np.ndarray:
    """Word errors int64 [trials]."""
    pairs = zip(trials, texts, strict=True)
    return np.array([edit_counts(normalize(t.reference or "").split(), text.split()).errors for t, text in pairs])


def measure(directories: list[Path], lm: Path, seed: int) -> dict[str, Any]:
    """WER of the runs alone, and of every way to combine two, three and four of them."""
    trials = read_evaluations(directories)
    length_N = np.array([len(normalize(trial.reference or "").split()) for trial in trials])
    total = length_N.sum()
    alone = [errors([" ".join(t.best[n]) for t in trials], trials) for n in range(len(directories))]
    sizes: dict[str, Any] = {}
    for size in range(2, len(directories) + 1):
        subsets = list(itertools.combinations(directories, size))
        mean_N = {}
        for name, options in WAYS.items():
            uses_lm = options["method"] in ("average", "rover-lm")
            counts = []
            for subset in subsets:
                found = combine_runs(subset, EnsembleOptions(**options), lm=lm if uses_lm else None)
                counts.append(errors([combined.text for combined in found.combined], trials))
            mean_N[name] = np.mean(counts, axis=0)
        best = min((name for name in WAYS if name not in OF_POSTERIORS), key=lambda name: mean_N[name].sum())
        rows = {}
        for name, errors_N in mean_N.items():
            difference_N = errors_N - mean_N[best]
            rows[name] = {
                "wer": float(errors_N.sum() / total),
                "ci95": interval(errors_N, length_N, seed),
                "difference": float(difference_N.sum() / total),
                "difference_ci95": interval(difference_N, length_N, seed),
            }
        sizes[str(size)] = {"subsets": len(subsets), "best_of_sentences": best, "rows": rows}
    return {
        "n_trials": len(trials),
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
        print("| | WER, % | 95 % interval | to the best of sentences, points | 95 % interval |\n|---|---|---|---|---|")
        for name, row in of_size["rows"].items():
            cells = [f"{100 * row['wer']:.2f}", span(row["ci95"]), "", ""]
            if name != of_size["best_of_sentences"]:
                cells[2:] = [f"{100 * row['difference']:+.2f}", span(row["difference_ci95"], "+")]
            print(f"| {name} | {' | '.join(cells)} |")


def plot(found: dict[str, Any], path: Path) -> None:
    """WER against the number of runs, a line for each way."""
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    sizes = [int(size) for size in found["combined"]]
    mean = 100 * float(np.mean(found["alone"]))
    axes.plot([1] * len(found["alone"]), [100 * wer for wer in found["alone"]], "o", color="#9aa1a9", markersize=4)
    for number, name in enumerate(WAYS):
        wers = [100 * found["combined"][str(size)]["rows"][name]["wer"] for size in sizes]
        style = {"linestyle": "-", "linewidth": 2} if name in OF_POSTERIORS else {"linestyle": "--", "linewidth": 1.2}
        axes.plot([1, *sizes], [mean, *wers], marker="o", markersize=3, color=f"C{number}", label=name, **style)
    axes.set_xticks([1, *sizes])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("runs combined")
    axes.set_ylabel("word error rate, %")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
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
    directories = evaluations(arguments.demo, arguments.out)
    found = measure(directories, arguments.demo / "lm", arguments.seed)
    print_tables(found)
    if arguments.json:
        figures = found | {"seed": arguments.seed, "n_boot": N_BOOT, **provenance()}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")
    if arguments.plot:
        plot(found, arguments.plot)


if __name__ == "__main__":
    main()
