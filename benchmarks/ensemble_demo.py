"""Posteriors averaged against sentences combined: four runs of the demo that differ in their seeds.

    make demo
    python benchmarks/ensemble_demo.py --demo runs/demo [--out build/ensemble] [--json FILE] [--plot
    FILE]

The demo's recipe is trained three more times on the demo's data, which takes minutes each; what
`--out` already has is not repeated. First all pairs, all triples and all four runs are combined on
the demo's validation split, with the search's defaults: by their best sentences, by their n-best
lists with scores, by all sentences of their lattices, and by their posteriors.

The blank penalty that is best for one run need not be best for an average: runs emit a phoneme in
different frames, so the mean favours the blank. All four runs are therefore combined once more, and
each way to combine gets its own penalty, one of five. Two sets of recordings are used: the demo's
validation split, and more recordings of the same simulated participant. The penalty for one set is
chosen on the other; the errors of both are added. A recording is left out if its sentence is in the
text that the demo's language model or its runs learned from. Intervals are 95 %, from a bootstrap
over trials; differences are paired, to the votes (ROVER) of the best sentences.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from cortext.data import pack
from cortext.decoding import Decoder, Hypothesis
from cortext.decoding.ngram import LanguageModel
from cortext.evaluation import evaluate
from cortext.provenance import provenance
from cortext.text.metrics import edit_counts
from cortext.text.normalize import normalize
from cortext.training import train
from cortext_bench.harness import markdown_table, study_arguments, write_result
from cortext_data.simulate import simulate
from cortext_lm.ensemble import (
    Candidate,
    Candidates,
    EnsembleOptions,
    combine,
    combine_runs,
    read_evaluations,
)
from cortext_lm.ensemble.options import MEANS
from cortext_lm.ensemble.posteriors import MOST_SENTENCES, read_average
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
    "lattices, minimum Bayes risk": {"method": "mbr", "lattice": True},
    "lattices, ROVER": {"method": "rover", "lattice": True},
    "posteriors, arithmetic mean": {"method": "average", "mean": "arithmetic"},
    "posteriors, geometric mean": {"method": "average", "mean": "geometric"},
}
TEXTS = "best sentences, ROVER"
PENALTIES = (16.0, 32.0, 64.0, 100.0, 140.0)
OF_POSTERIORS = [name for name in WAYS if name.startswith("posteriors")]


def run_of(seed: int, demo: Path, out: Path) -> Path:
    """Return the run directory of a seed; train it where it is missing.

    Args:
        seed: Number of the run; 1 is the demo's own.
        demo: Directory that `cortext demo` made.
        out: Folder of the other runs.
    """
    run = demo / "run" if seed == 1 else out / f"seed{seed}"
    if not (run / "summary.json").is_file():
        torch.set_num_threads(1)
        overrides = [f"seed={FIRST + seed}", f"dataset.seed={seed}"]
        train("demo", demo / "packed", run, lm=demo / "lm", overrides=overrides, progress=False)
    return run


def evaluations(demo: Path, packed: Path, out: Path, folder: Path) -> list[Path]:
    """Return evaluation directories of a validation split, one a seed; make those that are missing.

    Args:
        demo: Directory that `cortext demo` made.
        packed: Packed data to evaluate on.
        out: Folder of the runs.
        folder: Folder of the evaluations.
    """
    for seed in SEEDS:
        if not (folder / f"eval{seed}" / "metrics.json").is_file():
            evaluate(run_of(seed, demo, out), packed, "val", demo / "lm", folder / f"eval{seed}")
    return [folder / f"eval{seed}" for seed in SEEDS]


def more_recordings(demo: Path, folder: Path) -> Path:
    """Pack 600 validation trials of the demo's participant, in other blocks than the demo's."""
    if not (folder / "packed").is_dir():
        seed = json.loads((demo / "demo.json").read_text())["seed"]
        overrides = ["train_per_day=1", "val_per_day=100", "test_per_day=0"]
        simulate(folder / "data", "demo", seed=seed, overrides=overrides)
        pack(folder / "data", folder / "packed")
    return folder / "packed"


def learned(demo: Path) -> set[str]:
    """Return the normalised sentences that the demo's language model and runs learned from."""
    texts = [(demo / "data" / "text" / name).read_text() for name in ("lm.txt", "train.txt")]
    return {normalize(line) for text in texts for line in text.splitlines()}


def penalised(
    sets: dict[str, list[Path]], lm_dir: Path, known: set[str], seed: int
) -> dict[str, Any]:
    """Measure the WER of every way to combine all runs, each with its own best blank penalty.

    The penalty for a set of recordings is the one that is best on the other set.

    Args:
        sets: By name, the evaluation directories of all runs on a set of recordings.
        lm_dir: Language-model directory.
        known: Normalised sentences to leave out.
        seed: Seed of the intervals.
    """
    decoder = Decoder.from_dir(lm_dir)
    lm = LanguageModel.open(lm_dir)
    counts: dict[str, list[dict[float, np.ndarray]]] = {name: [] for name in ("alone", *WAYS)}
    lengths = []
    for directories in sets.values():
        trials = [
            t for t in read_evaluations(directories) if normalize(t.reference or "") not in known
        ]
        lengths.append(
            np.array([len(normalize(trial.reference or "").split()) for trial in trials])
        )
        alone = [read_average([directory], trials, "arithmetic") for directory in directories]
        means = {mean: read_average(directories, trials, mean) for mean in MEANS}
        found: dict[str, dict[float, np.ndarray]] = {name: {} for name in counts}
        for penalty in PENALTIES:
            search = decoder.with_options(blank_penalty=penalty, nbest=MOST_SENTENCES)
            lists = [search.decode_batch(log_probs, "release") for log_probs in alone]
            best = [errors([nbest[0].text for nbest in one], trials) for one in lists]
            found["alone"][penalty] = np.mean(best, axis=0)
            candidates = [
                replace(trial, systems=tuple(tuple(map(candidate, one[n])) for one in lists))
                for n, trial in enumerate(trials)
            ]
            for name, options in WAYS.items():
                if name in OF_POSTERIORS:
                    texts = [
                        nbest[0].text
                        for nbest in search.decode_batch(means[options["mean"]], "release")
                    ]
                else:
                    texts = [
                        combined.text
                        for combined in combine(candidates, EnsembleOptions(**options), lm=lm)
                    ]
                found[name][penalty] = errors(texts, trials)
        for name in counts:
            counts[name].append(found[name])
    length_N = np.concatenate(lengths)
    chosen = {
        name: [min(PENALTIES, key=lambda penalty: other[penalty].sum()) for other in (two, one)]
        for name, (one, two) in counts.items()
    }
    pooled = {
        name: np.concatenate(
            [of_set[penalty] for of_set, penalty in zip(counts[name], chosen[name], strict=True)]
        )
        for name in counts
    }
    rows = rows_of(pooled, length_N, seed)
    for name, row in rows.items():
        row["blank_penalty"] = chosen[name]
        row["wer_by_set"] = [
            {penalty: float(of_set[penalty].sum() / n.sum()) for penalty in PENALTIES}
            for of_set, n in zip(counts[name], lengths, strict=True)
        ]
    return {
        "n_trials": len(length_N),
        "n_words": int(length_N.sum()),
        "sets": list(sets),
        "rows": rows,
    }


def rows_of(errors_of: dict[str, np.ndarray], length_N: np.ndarray, seed: int) -> dict[str, Any]:
    """Return the WER of every way and its difference to the best sentences, with intervals.

    Args:
        errors_of: By way, the word errors of each trial.
        length_N: Words of each trial's reference.
        seed: Seed of the intervals.
    """
    rows: dict[str, Any] = {}
    for name, errors_N in errors_of.items():
        difference_N = errors_N - errors_of[TEXTS]
        rows[name] = {
            "wer": float(errors_N.sum() / length_N.sum()),
            "ci95": interval(errors_N, length_N, seed),
            "difference": float(difference_N.sum() / length_N.sum()),
            "difference_ci95": interval(difference_N, length_N, seed),
        }
    return rows


def candidate(hypothesis: Hypothesis) -> Candidate:
    """Return a sentence of a search as a candidate."""
    return Candidate(tuple(normalize(hypothesis.text).split()), hypothesis.score)


def errors(texts: list[str], trials: list[Candidates]) -> np.ndarray:
    """Count the word errors of each trial, int64 [trials]."""
    pairs = [
        (normalize(t.reference or "").split(), normalize(text).split())
        for t, text in zip(trials, texts, strict=True)
    ]
    return np.array([edit_counts(reference, words).errors for reference, words in pairs])


def measure(directories: list[Path], lm: Path, seed: int) -> dict[str, Any]:
    """Measure the WER of the runs alone, and of every way to combine two, three and four of them.

    Args:
        directories: Evaluation directories of the runs.
        lm: Language-model directory.
        seed: Seed of the intervals.
    """
    trials = read_evaluations(directories)
    length_N = np.array([len(normalize(trial.reference or "").split()) for trial in trials])
    alone = [errors([" ".join(t.best[n]) for t in trials], trials) for n in range(len(directories))]
    sizes: dict[str, Any] = {}
    for size in range(2, len(directories) + 1):
        subsets = list(itertools.combinations(directories, size))
        mean_N = {}
        for name, options in WAYS.items():
            uses_lm = options["method"] in ("average", "rover-lm") or "lattice" in options
            counts = []
            for subset in subsets:
                found = combine_runs(subset, EnsembleOptions(**options), lm=lm if uses_lm else None)
                counts.append(errors([combined.text for combined in found.combined], trials))
            mean_N[name] = np.mean(counts, axis=0)
        sizes[str(size)] = {"subsets": len(subsets), "rows": rows_of(mean_N, length_N, seed)}
    total = length_N.sum()
    return {
        "n_trials": len(trials),
        "n_words": int(total),
        "alone": [float(errors_N.sum() / total) for errors_N in alone],
        "combined": sizes,
    }


def print_rows(rows: dict[str, Any]) -> None:
    """Print the rows as a table."""
    lines = []
    for name, row in rows.items():
        cells = [f"{100 * row['wer']:.2f}", span(row["ci95"]), "", "", ""]
        if name != TEXTS:
            cells[2:4] = [f"{100 * row['difference']:+.2f}", span(row["difference_ci95"], "+")]
        cells[4] = " and ".join(f"{penalty:g}" for penalty in row.get("blank_penalty", [32]))
        lines.append([name, *cells])
    spread = "95 % interval"
    columns = ["", "WER, %", spread, "to best sentences, points", spread, "blank penalties"]
    print(markdown_table(columns, lines))


def plot(found: dict[str, Any], path: Path) -> None:
    """Plot WER by number of runs with the default search, and of four runs with chosen penalties.

    A way to combine has the same colour in both panels.
    """
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.2])
    default = found["default"]
    chosen = found["chosen"]
    sizes = [int(size) for size in default["combined"]]
    mean = 100 * float(np.mean(default["alone"]))
    for number, name in enumerate(WAYS):
        wers = [100 * default["combined"][str(size)]["rows"][name]["wer"] for size in sizes]
        style = "-" if name in OF_POSTERIORS else "--"
        left.plot([1, *sizes], [mean, *wers], style, marker="o", markersize=3, color=f"C{number}")
    left.set_xticks([1, *sizes])
    left.set_xlabel("runs combined")
    left.set_ylabel("word error rate, %")
    left.set_title(f"{default['n_trials']} trials, defaults", fontsize=10, loc="left")
    for place, (name, row) in enumerate(reversed(chosen["rows"].items())):
        colour = "#9aa1a9" if name == "alone" else f"C{list(WAYS).index(name)}"
        low, high = row["ci95"]
        right.plot([100 * low, 100 * high], [place, place], color=colour, linewidth=2)
        right.plot(100 * row["wer"], place, "o", color=colour)
        right.annotate(
            f"{100 * row['wer']:.2f}",
            (100 * row["wer"], place),
            (0, 5),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    right.set_yticks(range(len(chosen["rows"])), list(chosen["rows"])[::-1], fontsize=8)
    right.set_ylim(-0.5, len(chosen["rows"]) - 0.3)
    right.set_xlabel("word error rate, %")
    right.set_title(
        f"four runs, {chosen['n_trials']} trials, blank penalty chosen", fontsize=10, loc="left"
    )
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = study_arguments(__doc__)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"))
    parser.add_argument("--out", type=Path, default=Path("build/ensemble"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    demo = arguments.demo
    more = arguments.out / "more"
    first = evaluations(demo, demo / "packed", arguments.out, arguments.out)
    second = evaluations(demo, more_recordings(demo, more), arguments.out, more)
    default = measure(first, demo / "lm", arguments.seed)
    alone = ", ".join(f"{100 * wer:.2f}" for wer in default["alone"])
    print(
        f"{default['n_trials']} trials, {default['n_words']} words, the search's defaults. Alone:"
        f" {alone} %"
    )
    for size, of_size in default["combined"].items():
        print(f"\n{size} runs, mean of {of_size['subsets']}\n")
        print_rows(of_size["rows"])
    chosen = penalised(
        {"validation": first, "more": second}, demo / "lm", learned(demo), arguments.seed
    )
    print(
        f"\n{chosen['n_trials']} trials, {chosen['n_words']} words, blank penalty chosen on the"
        " other set, 4 runs\n"
    )
    print_rows(chosen["rows"])
    found = {"default": default, "chosen": chosen}
    facts = {"seed": arguments.seed, "n_boot": N_BOOT, **provenance()}
    write_result(arguments.json, found | facts)
    if arguments.plot:
        plot(found, arguments.plot)


if __name__ == "__main__":
    main()
