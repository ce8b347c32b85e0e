"""PER on a new day against its number of training trials, on simulated drift.

    python benchmarks/adapt.py [--out build/adapt] [--json FILE] [--plot FILE] [--seeds 1 2]
    python benchmarks/adapt.py --unlabelled [--out build/adapt] [--json FILE]

A small decoder (2 x 128 units, otherwise the demo's recipe) learns the first five days of a
simulated participant. It then gets the first N trials of two new days, 2 and 14 days later:

- no adaptation: the layer of the last known day, as it is
- day layer, whole model, whole model with 200 old trials: `cortext.training.adapt` with its default
  settings
- from scratch: a new model of the same size, trained on the N trials alone

A tenth of the N trials (at least one) is held out of training to choose the weights that are kept,
as a lab must do in the morning. PER is measured on the day's validation split, which has no other
use. `old` is the PER on the last known day's validation trials after the adaptation. The settings
of the adaptation were chosen on the simulator's seed 0, which is not among the seeds here. Results
that `--out` already has are not measured again.

`--unlabelled` measures the processor time of learning without labels instead, with a model of the
demo's size: for each of the first 25 sentences of a new day, what the model, the search and the
learner take together. So many sentences use up the steps that `replay` takes a day. Every sentence
is trusted, so that each is learnt from.
"""

from __future__ import annotations

import shutil
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from cortext.data.packed import PackedDataset, PackedSplit, open_packed, pack
from cortext.decoding import Decoder
from cortext.decoding.log_probs import greedy
from cortext.decoding.ngram import LanguageModel
from cortext.models import load_model
from cortext.provenance import provenance
from cortext.text.metrics import EditCounts, edit_counts
from cortext.training import Trainer, adapt, read_train_config, train
from cortext.training.adapt_trials import in_order_of_recording
from cortext.training.config import read_run_config
from cortext_bench.harness import made_once, markdown_table, study_arguments, write_result
from cortext_data.simulate import simulate
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.online import Place, Unlabelled
from cortext_live.recalibration.replay import labelled_sentence
from cortext_live.recalibration.settings import METHODS as LEARNING
from cortext_live.recalibration.settings import method_settings

TRIALS = (5, 10, 20, 50, 100)
N_KNOWN = 5
NEW_DAYS = {"2 days later": 5, "14 days later": 10}
"""Positions of the new days among the sessions."""
SCRATCH_DAY = "2 days later"
"""Without the known days it makes no difference how long ago they were."""
RATES = (10, 15, 20, 30, 50, 80)
"""Ticks of the picture, in percent."""
RECIPE = [
    "model.n_units=128",
    "num_training_batches=400",
    "lr_decay_steps=400",
    "lr_decay_steps_day=400",
]
TIMED_SENTENCES = 25
"""Sentences of the new day whose learning without labels is timed."""
METHODS = ("day layer", "whole model", "whole model, old trials")
COLOURS = {"no adaptation": "tab:grey", "day layer": "tab:blue", "whole model": "tab:orange"} | {
    "whole model, old trials": "tab:green",
    "from scratch": "tab:red",
}


def participant(seed: int, out: Path) -> PackedDataset:
    """Return a simulated participant's eleven days: five to learn from and six new ones.

    They are simulated and packed in `out` at the first call.
    """
    if not (out / "packed").is_dir():
        shutil.rmtree(out / "data", ignore_errors=True)
        overrides = ["n_days=11", "val_per_day=40", "test_per_day=0"]
        simulate(out / "data", "demo", seed=seed, overrides=overrides)
        pack(out / "data", out / "packed")
        shutil.rmtree(out / "data")
    return open_packed(out / "packed")


def per(run: Path, data: PackedDataset, session: str, layer_of: str | None = None) -> float:
    """Return the greedy PER on a session's validation split.

    Args:
        run: Run directory of the model.
        data: Packed data.
        session: Session whose trials are decoded.
        layer_of: Session whose day layer the model uses; None for `session`.
    """
    model = load_model(run)
    split = data.split("val").select(sessions=[session])
    counts = EditCounts()
    for start in range(0, len(split), 16):
        rows = np.arange(start, min(start + 16, len(split)))
        batch = split.batch(rows)
        logits_BPV, n_patches_B = model.logits_batch(
            batch.features_BTC, [layer_of or session] * len(rows), batch.n_bins_B
        )
        for row, logits_PV, n_patches in zip(rows, logits_BPV, n_patches_B, strict=True):
            labels_U = split.labels(row)
            assert labels_U is not None
            log_probs_PV = torch.from_numpy(logits_PV[:n_patches]).log_softmax(-1).numpy()
            counts += edit_counts(labels_U.tolist(), greedy(log_probs_PV, model.inventory))
    return counts.errors / counts.reference_length


def first_trials(data: PackedDataset, session: str, count: int) -> PackedDataset:
    """Return what a lab has on a new morning: the day's first training trials, no validation split.

    Args:
        data: Packed data.
        session: The new day.
        count: Number of trials.
    """
    split = data.split("train").select(sessions=[session])
    order = np.lexsort((split.trial_N, split.block_N))
    return data.showing({"train": split.take(order[:count])})


def from_scratch(data: PackedDataset, session: str, count: int, run: Path) -> None:
    """Train a new model on the day's first trials.

    Args:
        data: Packed data.
        session: The new day.
        count: Number of trials.
        run: Run directory to write.
    """
    steps = [
        f"{name}=200" for name in ("num_training_batches", "lr_decay_steps", "lr_decay_steps_day")
    ]
    overrides = [
        *RECIPE,
        *steps,
        "dataset.batch_size=16",
        "dataset.days_per_batch=1",
        "dataset.length_buckets=1",
    ]
    config = read_train_config(
        "demo", [*overrides, "best_metric=val_loss", f"dataset.sessions=[{session}]"]
    )
    with Trainer(config, first_trials(data, session, count), run, progress=False) as trainer:
        trainer.run()


def measure(
    data: PackedDataset, base: Path, day: str, method: str, count: int, run: Path
) -> dict[str, float]:
    """Measure one method with one number of trials.

    Args:
        data: Packed data of the participant.
        base: Run that was trained on the known days.
        day: Key of `NEW_DAYS`.
        method: One of `METHODS`, or `from scratch`.
        count: Number of trials of the new day.
        run: Run directory to write; an earlier one is deleted.

    Returns:
        `per` on the new day and `cpu_seconds`; for an adapted model also `old` (PER on the last
        known day), `nearest` and `batches_kept`.
    """
    shutil.rmtree(run, ignore_errors=True)
    session = data.sessions[NEW_DAYS[day]]
    last = data.sessions[N_KNOWN - 1]
    started = time.process_time()
    if method == "from scratch":
        from_scratch(data, session, count, run)
        return {"per": per(run, data, session), "cpu_seconds": time.process_time() - started}
    old = data if method.endswith("old trials") else None
    whole = method.startswith("whole model")
    new = first_trials(data, session, count)
    summary = adapt(base, new, run, old_data=old, whole_model=whole, progress=False)
    seconds = time.process_time() - started
    result = {"per": per(run, data, session), "old": per(run, data, last), "cpu_seconds": seconds}
    return result | {"nearest": summary.nearest, "batches_kept": summary.best_step}


def measure_participant(seed: int, out: Path) -> list[dict[str, Any]]:
    """Measure all methods on all new days with all numbers of trials."""
    data = participant(seed, out)
    base = out / "base"
    known = list(data.sessions[:N_KNOWN])
    if not (base / "summary.json").is_file():
        shutil.rmtree(base, ignore_errors=True)
        train(
            "demo",
            out / "packed",
            base,
            overrides=[*RECIPE, f"dataset.sessions={known}"],
            progress=False,
        )
    results = []
    for day, number in reversed(NEW_DAYS.items()):  # the one where there is more to see first
        unadapted = {
            "per": per(base, data, data.sessions[number], known[-1]),
            "old": per(base, data, known[-1]),
        }
        results.append(
            {"seed": seed, "day": day, "method": "no adaptation", "trials": 0} | unadapted
        )
        for count in TRIALS:
            for method in [*METHODS, *(["from scratch"] if day == SCRATCH_DAY else [])]:
                key = {"seed": seed, "day": day, "method": method, "trials": count}
                cached = (
                    out / f"{number}-{method.replace(', ', '-').replace(' ', '-')}-{count}.json"
                )
                measured = partial(measure, data, base, day, method, count, out / "run")
                results.append(key | made_once(cached, measured))
                print(results[-1], flush=True)
    return results


def learning_times(seed: int, out: Path) -> list[dict[str, Any]]:
    """Return the processor time of learning without labels, a row for each method.

    Args:
        seed: Seed of the simulated participant.
        out: Folder of the participant.
    """
    data = participant(seed, out)
    known = list(data.sessions[:N_KNOWN])
    base = out / "demo-size"
    if not (base / "summary.json").is_file():
        shutil.rmtree(base, ignore_errors=True)
        of_known = [f"dataset.sessions={known}"]
        train("demo", out / "packed", base, overrides=of_known, progress=False)
    if not (out / "lm").is_dir():
        said = [sentence for sentence in data.split("train").sentences if sentence]
        (out / "lm.txt").write_text("\n".join(said) + "\n")
        LanguageModel.build([out / "lm.txt"], 3, out / "lm")
    split = data.split("train").select(sessions=[data.sessions[N_KNOWN]])
    order = in_order_of_recording(split, data.sessions[N_KNOWN])[:TIMED_SENTENCES]
    return [timed(method, base, data, split.take(order), out / "lm") for method in LEARNING]


def timed(
    method: str, base: Path, data: PackedDataset, day: PackedSplit, lm: Path
) -> dict[str, Any]:
    """Return the processor seconds that a method takes for each sentence of a day.

    Args:
        method: A key of `cortext_live.recalibration.settings.METHODS`.
        base: Run that was trained on the known days.
        data: Packed data of the participant, whose known days are replayed.
        day: Sentences of the new day.
        lm: Language-model directory.
    """
    model = load_model(base)
    learner = Learner(model, read_run_config(base), method_settings(method, ["confidence=0"]))
    known = data.split("train").select(sessions=model.sessions)
    labels = [known.labels(i) for i in range(0, len(known), 4)]
    learner.remember(
        labelled_sentence(known, 4 * i, each) for i, each in enumerate(labels) if each is not None
    )
    way = Unlabelled(learner, Decoder.from_dir(lm))
    seconds = []
    for i in range(len(day)):
        started = time.process_time()
        features_TC = np.asarray(day.features(i), np.float32)
        logits_PV = way.model_of(day.session(i)).logits(features_TC, day.session(i))
        way.learn_from(Place("train", i), day, logits_PV)
        seconds.append(time.process_time() - started)
    bin_s = data.conventions.bin_ms / 1000
    return {
        "method": method,
        "sentences": len(seconds),
        "mean_length_s": float(day.n_bins_N.mean()) * bin_s,
        "steps": learner.n_steps,
        "mean_cpu_s": statistics.mean(seconds),
        "most_cpu_s": max(seconds),
    }


def print_times(rows: list[dict[str, Any]]) -> None:
    """Print the processor time of learning without labels."""
    columns = ["method", "sentences", "mean length", "steps", "processor s, mean", "most"]
    cells = [
        [
            row["method"],
            row["sentences"],
            f"{row['mean_length_s']:.1f} s",
            row["steps"],
            f"{row['mean_cpu_s']:.2f}",
            f"{row['most_cpu_s']:.2f}",
        ]
        for row in rows
    ]
    print(markdown_table(columns, cells))


def mean(results: list[dict[str, Any]], value: str, **wanted: Any) -> float | None:
    """Return the mean over participants of `value` in the results whose fields equal `wanted`.

    None where no result has it.
    """
    found = [
        r[value]
        for r in results
        if all(r[key] == item for key, item in wanted.items()) and value in r
    ]
    return statistics.mean(found) if found else None


def plot(results: list[dict[str, Any]], path: Path) -> None:
    """Plot PER against trials: a panel per new day, a line per method, a dot per participant."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    panels = figure.subplots(1, len(NEW_DAYS), sharey=True)
    for axes, day in zip(panels, NEW_DAYS, strict=True):
        for method, colour in COLOURS.items():
            rows = [
                r
                for r in results
                if r["method"] == method and (r["day"] == day or method == "from scratch")
            ]
            counts = sorted({r["trials"] for r in rows})
            means = [100 * (mean(rows, "per", trials=count) or 0) for count in counts]
            if method == "no adaptation":
                axes.axhline(means[0], color=colour, linestyle="--", label=method)
                continue
            axes.plot(
                [r["trials"] for r in rows],
                [100 * r["per"] for r in rows],
                ".",
                color=colour,
                alpha=0.4,
            )
            axes.plot(counts, means, color=colour, label=method)
        axes.set(
            title=f"a new day, {day}",
            xscale="log",
            yscale="log",
            ylim=(7, 100),
            xlabel="trials of the new day",
        )
        axes.set_xticks(TRIALS, [str(count) for count in TRIALS])
        axes.set_yticks(RATES, [str(rate) for rate in RATES])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("phoneme error rate, %")
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def print_tables(results: list[dict[str, Any]]) -> None:
    """Print the tables of the docs: PER on the new day, then on the last known day."""
    for value, title in (
        ("per", "PER on the new day"),
        ("old", "PER on the last known day, afterwards"),
    ):
        for day in NEW_DAYS:
            rows = []
            for method in COLOURS:
                cells = [
                    mean(
                        results,
                        value,
                        day=day,
                        method=method,
                        trials=0 if method == "no adaptation" else count,
                    )
                    for count in TRIALS
                ]
                if any(cell is not None for cell in cells):
                    rows.append(
                        [method, *("-" if c is None else f"{100 * c:.1f} %" for c in cells)]
                    )
            print(f"\n{title}, {day}\n\n{markdown_table(['method', *TRIALS], rows)}")


def main() -> None:
    parser = study_arguments(__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/adapt-benchmark"))
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--unlabelled", action="store_true", help="time learning without labels")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.unlabelled:
        folder = arguments.out / str(arguments.seeds[0])
        folder.mkdir(parents=True, exist_ok=True)
        times = learning_times(arguments.seeds[0], folder)
        print_times(times)
        write_result(arguments.json, {"times": times, "provenance": provenance()})
        return
    results = []
    for seed in arguments.seeds:
        (arguments.out / str(seed)).mkdir(parents=True, exist_ok=True)
        results += measure_participant(seed, arguments.out / str(seed))
    print_tables(results)
    figures = {"recipe": RECIPE, "results": results, "provenance": provenance()}
    write_result(arguments.json, figures)
    if arguments.plot:
        plot(results, arguments.plot)


if __name__ == "__main__":
    main()
