"""WER of the combined sentences of ten seeds, on real hypotheses of participants T15 and T12.

    cortext lm build transcripts_train.txt general_english.txt.gz --order 4 --vocab 60000 --out
    build/ensemble-lm
    python benchmarks/ensemble.py --data ../shared/data --lm build/ensemble-lm [--json FILE] [--plot
    FILE]

Prints, for each set of lists: the seeds alone, the best of the ten known, minimum Bayes risk,
ROVER, ROVER with the n-gram, and options chosen on other trials (nested cross-validation: 20
shuffles into 5 folds, in each of which options are chosen on four fifths and measured on the rest).
Intervals are 95 %, from a bootstrap over trials; differences are paired, to the better of plain
minimum Bayes risk and plain ROVER.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cortext.decoding.ngram import LanguageModel
from cortext.provenance import provenance
from cortext.text.metrics import bootstrap_interval, edit_counts
from cortext.text.normalize import normalize
from cortext_bench.harness import markdown_table, study_arguments, write_result
from cortext_lm.ensemble import Candidates, EnsembleOptions, read_lists
from cortext_lm.ensemble.fit import count_errors, cross_validate, tried_options

SETS = {"T15": "nbest/t15_val_even.jsonl", "T12": "phonemes/t12_val_even.jsonl"}
FIELD = "wfst_seed_hypotheses"
METHODS = {"minimum Bayes risk": "mbr", "ROVER": "rover", "ROVER with a 4-gram": "rover-lm"}
CHOSEN = "chosen on other trials"
N_BOOT = 2000


def interval(errors_N: np.ndarray, length_N: np.ndarray, seed: int) -> list[float | None]:
    """Return the 95 % bootstrap interval of the pooled error rate.

    Args:
        errors_N: Word errors of each trial.
        length_N: Words of each trial's reference.
        seed: Seed of the resampling; the same seed draws the same trials.
    """
    return list(bootstrap_interval(errors_N, length_N, N_BOOT, seed, 0.95))


def errors_of_seeds(trials: list[Candidates]) -> np.ndarray:
    """Count the word errors of each seed's best sentence, int64 [trials, seeds]."""
    counts = []
    for trial in trials:
        words = normalize(trial.reference or "").split()
        counts.append([edit_counts(words, found).errors for found in trial.best])
    return np.array(counts)


def measure(
    trials: list[Candidates], lm: LanguageModel, shuffles: int, seed: int
) -> dict[str, Any]:
    """Measure the WER of every row, in the order of the table.

    Args:
        trials: Candidates of all seeds for each trial.
        lm: Language model that scores sentences.
        shuffles: Repeats of the cross-validation that chooses the options.
        seed: Seed of the cross-validation and the intervals.
    """
    seconds = {}
    plain = {}
    for name, method in METHODS.items():
        start = time.perf_counter()
        errors_N1, length_N = count_errors(trials, [EnsembleOptions(method=method)], lm)
        plain[name] = errors_N1[:, 0]
        seconds[name] = time.perf_counter() - start
    better = min(("minimum Bayes risk", "ROVER"), key=lambda name: plain[name].sum())
    seeds_NS = errors_of_seeds(trials)
    total = length_N.sum()
    rows: dict[str, Any] = {
        "seeds alone": {
            "wer": float(seeds_NS.sum(axis=0).mean() / total),
            "lowest": float(seeds_NS.sum(axis=0).min() / total),
            "highest": float(seeds_NS.sum(axis=0).max() / total),
            "ci95": interval(seeds_NS.mean(axis=1), length_N, seed),
        },
        "best of the ten known": {
            "wer": float(seeds_NS.min(axis=1).sum() / total),
            "ci95": interval(seeds_NS.min(axis=1), length_N, seed),
        },
    }
    for name, errors_N in plain.items():
        difference_N = errors_N - plain[better]
        rows[name] = {
            "wer": float(errors_N.sum() / total),
            "ci95": interval(errors_N, length_N, seed),
            "difference": float(difference_N.sum() / total),
            "difference_ci95": interval(difference_N, length_N, seed),
            "seconds": seconds[name],
        }
    tried = tried_options(EnsembleOptions(), ["rover", "mbr", "rover-lm"], trials)
    errors_NK, length_N = count_errors(trials, tried, lm)
    found = cross_validate(
        errors_NK, length_N, plain[better], shuffles=shuffles, seed=seed, n_boot=N_BOOT
    )
    rows[CHOSEN] = {
        "wer": found.mean,
        "lowest": float(found.wer_S.min()),
        "highest": float(found.wer_S.max()),
        "difference": found.difference,
        "difference_ci95": [found.low, found.high],
        "shuffles": [float(wer) for wer in found.wer_S],
    }
    tried_wer = [
        {
            "options": {
                k: v for k, v in asdict(options).items() if v != asdict(EnsembleOptions())[k]
            },
            "wer": float(wer),
        }
        for options, wer in zip(tried, errors_NK.sum(axis=0) / total, strict=True)
    ]
    return {
        "n_trials": len(trials),
        "n_words": int(total),
        "better": better,
        "rows": rows,
        "tried": tried_wer,
    }


def print_table(name: str, found: dict[str, Any]) -> None:
    """Print the rows of one set as a table."""
    print(f"\n{name}: {found['n_trials']} trials, {found['n_words']} words\n")
    rows = []
    for label, row in found["rows"].items():
        spread = (
            f" ({100 * row['lowest']:.2f} to {100 * row['highest']:.2f})" if "lowest" in row else ""
        )
        cells = [f"{100 * row['wer']:.2f}{spread}", span(row.get("ci95")), "", ""]
        if "difference" in row and label != found["better"]:
            cells[2:] = [f"{100 * row['difference']:+.2f}", span(row["difference_ci95"], "+")]
        rows.append([label, *cells])
    to_plain = f"to plain {found['better']}, points"
    print(markdown_table(["", "WER, %", "95 % interval", to_plain, "95 % interval"], rows))


def span(bounds: list[float] | None, sign: str = "") -> str:
    """Format bounds in points: `1.23 to 4.56`; an empty string where there are none."""
    return "" if bounds is None else " to ".join(f"{100 * bound:{sign}.2f}" for bound in bounds)


def plot(results: dict[str, Any], path: Path) -> None:
    """Plot the WER of every row with its interval, a panel for each set."""
    figure = Figure(figsize=(8, 2.9), layout="constrained")
    for axes, (name, found) in zip(figure.subplots(1, len(results)), results.items(), strict=True):
        labels = list(found["rows"])[::-1]
        for place, label in enumerate(labels):
            row = found["rows"][label]
            low, high = row.get("ci95", (row["wer"], row["wer"]))
            colour = "#9aa1a9" if label in ("seeds alone", "best of the ten known") else "#2d80c4"
            axes.plot([100 * low, 100 * high], [place, place], color=colour, linewidth=2)
            axes.plot(100 * row["wer"], place, "o", color=colour)
            axes.annotate(
                f"{100 * row['wer']:.2f}",
                (100 * row["wer"], place),
                (0, 6),
                textcoords="offset points",
                ha="center",
                fontsize=8,
            )
        axes.set_yticks(range(len(labels)), labels if axes is figure.axes[0] else [])
        axes.set_ylim(-0.5, len(labels) - 0.3)
        axes.set_xlim(left=0)
        axes.set_xlabel("word error rate, %")
        axes.set_title(f"{name}: {found['n_trials']} trials", fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = study_arguments(__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--lm", type=Path, required=True)
    parser.add_argument("--shuffles", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    lm = LanguageModel.open(arguments.lm)
    results = {
        name: measure(
            read_lists(arguments.data / file, FIELD), lm, arguments.shuffles, arguments.seed
        )
        for name, file in SETS.items()
    }
    for name, found in results.items():
        print_table(name, found)
    facts = lm.info()
    model = {name: facts.get(name) for name in ("order", "vocabulary", "ngrams", "sources")}
    model["sources"] = [Path(source["path"]).name for source in facts.get("sources", [])]
    figures = {"sets": results, "lm": model, "seed": arguments.seed, "n_boot": N_BOOT}
    write_result(arguments.json, figures | provenance())
    if arguments.plot:
        plot(results, arguments.plot)


if __name__ == "__main__":
    main()
