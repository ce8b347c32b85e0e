"""Judge a decoder on a year of simulated drift: frozen, and with labels every day.

    python benchmarks/year.py [--out build/year] [--part frozen daily frozen-half ...]
        [--seeds 0 1 ...] [--minutes M] [--plan] [--text FILE] [--json FILE] [--plot FILE]
        [--reliability FILE]

Each participant (`simulate --preset months`) is recorded on six days in a fortnight and on forty
days over the next 400. A GRU of 2 x 128 units, otherwise the demo's recipe, learns the first six
days. It is judged on sentences of each later day that nothing learns from:

- frozen: the model as it is, with the layer of its last day
- daily: before a day is judged, the whole model learns from 20 labelled sentences of it and from
  old ones (`cortext.training.adapt`); each day begins with the model of the day before
- frozen-half, frozen-double, daily-half, daily-double: with half and double the rates at which days
  differ
- one-step, replay: the decoder learns from what it decodes, of all sentences of a day but those
  that judge (`cortext adapt --unlabelled`)
- service: `cortext recalibrate`; every fifth sentence is corrected or confirmed
- least-sure: the service, where the corrected ones are those decoded with the least confidence
- service-replay: the same with `--method replay --set whole_model=true`
- corrected-5, corrected-0, no-gate, no-replay: the service with every twentieth sentence or none,
  with words of any confidence, and without replay
- after-garbage, after-lost, after-stranger, after-missing: the service, where the sentences of one
  day are garbage, lack an array, are a stranger's for a fifth, or have no features

Phoneme errors (PER) are greedy. Words are searched with CMUdict's 126,000 words and a 3-gram of
general English (`--text`), with options fitted to the first six days. "Retained" are the errors at
the end of the year on the first days, which nothing learns from later but for replay. Pieces that `--out` already
has are not repeated, and a piece that was stopped goes on where it was. `--plan` prints the pieces
that are left; `--minutes` starts no piece after that time.
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch

from cortext.data import PackedDataset, open_packed, pack
from cortext.decoding import Decoder
from cortext.decoding.ngram import LanguageModel
from cortext.evaluation.fit_decoder import FitDecoder
from cortext.evaluation.fitted import read_fitted, take_over
from cortext.files import atomic_directory
from cortext.models import load_model
from cortext.provenance import provenance
from cortext.text.lexicon import Lexicon
from cortext.training import Trainer, adapt, read_train_config
from cortext.training.adapt_trials import in_order_of_recording
from cortext_bench.harness import made_once, markdown_table, study_arguments, write_result
from cortext_bench.materials import TEXTS, RealData
from cortext_data.simulate import preset_config, simulate
from cortext_data.simulate.months import events, later_days, regular_day
from cortext_live.recalibration.labels import labelling_search
from year_confidence import confidence_by_quarter, plot_confidences, print_confidences
from year_judging import judge, retained
from year_learning import COURSES, Year, learn
from year_tables import beside_daily, day_after, plot, print_tables, promotions, summary

SEEDS = tuple(range(10))
"""Seeds of the simulated participants."""
DRIFTS = {"half": 0.5, "usual": 1.0, "double": 2.0}
RATES = (
    "tuning_drift",
    "gain_drift",
    "baseline_drift",
    "channel_turnover",
    "array_shifts",
    "tuning_jumps",
    "within_day",
)
"""Settings of the simulator that a factor on drift multiplies."""
SIMULATION = ["further_per_day=25"]
"""Changes to the preset: sentences a day that judge."""
RECIPE = ["model.n_units=128", "batches_per_val_step=100"]
LABELLED = 20
"""Labelled sentences of a day that the daily decoder learns from, the first of the day."""
DAILY = {"batches": 100, "old_trials": 300}
"""Settings of the daily adaptation."""
DAILY_RECIPE = ["lr_max=0.002", "lr_max_day=0.004", "dataset.batch_size=16"]
"""Changes to its training: four times the rates of `cortext adapt`, in batches half as large.

With whole batches PER was one point lower on the two days tried, at twice the time.
"""
WORST_PER = 0.5
"""Largest PER on the labelled sentences held out of an adaptation whose model is carried on.

Garbage and a lost array must not reach the next day.
"""
ORDER = 3


@dataclass(frozen=True)
class Piece:
    """One course over the year of one participant."""

    method: str
    """`frozen`, `daily`, or a key of `COURSES`."""
    drift: str
    seed: int

    def path(self, out: Path) -> Path:
        """Return the file of its result."""
        return out / "pieces" / f"{self.method}-{self.drift}-{self.seed}.json"


METHODS = ("frozen", "daily")


def study(seeds: Iterable[int] = SEEDS) -> dict[str, list[Piece]]:
    """Return the pieces by part: `frozen`, `daily`, `frozen-half`, ..."""
    seeds = list(seeds)
    parts = {}
    for name in COURSES:
        parts[name] = [Piece(name, "usual", seed) for seed in seeds]
    for drifts in (("usual",), ("half", "double")):
        for method, drift in itertools.product(METHODS, drifts):
            name = method if drift == "usual" else f"{method}-{drift}"
            parts[name] = [Piece(method, drift, seed) for seed in seeds]
    return parts


def overrides(drift: str) -> list[str]:
    """Return the changes to the preset for a factor on drift."""
    usual = preset_config("months", SIMULATION)
    factors = [f"{name}={DRIFTS[drift] * getattr(usual, name)}" for name in RATES]
    return [*SIMULATION, *(factors if drift != "usual" else [])]


def language_model(out: Path, text: Path | None) -> Path:
    """Return the directory of the language model, built at the first call.

    Args:
        out: Folder of the study.
        text: Text of general English; None for that of `RealData`.
    """
    folder = out / "lm"
    if not folder.is_dir():
        chosen = text or RealData.find().root / TEXTS[1]
        LanguageModel.build([chosen], ORDER, folder, sorted(Lexicon.cmu()))
    return folder


def participant(drift: str, seed: int, out: Path) -> PackedDataset:
    """Return the recordings of a participant, simulated and packed at the first call."""
    folder = out / "data" / f"{drift}-{seed}"
    if not folder.is_dir():
        with atomic_directory(folder) as made:
            simulate(made / "raw", "months", seed=seed, overrides=overrides(drift))
            pack(made / "raw", made / "packed")
            shutil.rmtree(made / "raw")
    return open_packed(folder / "packed")


def known_sessions(data: PackedDataset, drift: str, seed: int) -> list[str]:
    """Return the sessions that the model is trained on: those before the later days."""
    n_later = len(later_days(preset_config("months", overrides(drift), seed)))
    return list(data.sessions[: len(data.sessions) - n_later])


def base_run(drift: str, seed: int, out: Path, lm: Path) -> Path:
    """Return the run that learnt the first days, trained at the first call."""
    run = out / "runs" / f"base-{drift}-{seed}"
    if (run / "summary.json").is_file() and read_fitted(run) is not None:
        return run
    data = participant(drift, seed, out)
    known = known_sessions(data, drift, seed)
    chosen = [*RECIPE, f"seed={seed + 10}", f"dataset.seed={seed + 1}"]
    config = read_train_config("demo", [*chosen, f"dataset.sessions={known}"])
    fit = FitDecoder(lm, data.path, threads=1)
    resume = (run / "config.yaml").is_file()
    with Trainer(config, data, run, resume=resume, callbacks=[fit], progress=False) as trainer:
        trainer.run()
    shutil.rmtree(run / "train_state", ignore_errors=True)
    return run


def decoder_of(run: Path, lm: Path) -> Decoder:
    """Return the search with the options and confidences that were fitted to a run."""
    return labelling_search(run, lm)[0]


def measure(piece: Piece, out: Path, lm: Path) -> dict[str, Any]:
    """Return a piece's errors by day."""
    torch.set_num_threads(1)
    config = preset_config("months", overrides(piece.drift), piece.seed)
    data = participant(piece.drift, piece.seed, out)
    base = base_run(piece.drift, piece.seed, out, lm)
    known = known_sessions(data, piece.drift, piece.seed)
    decoder = decoder_of(base, lm)
    last_known = regular_day(config.n_days - 1)
    days = [day - last_known for day in later_days(config)]
    happened = [events(config).on(day) for day in later_days(config)]
    sessions = data.sessions[len(known) :]
    if piece.method == "frozen":
        model = load_model(base)
        found = [judge(model, data, session, known[-1], decoder) for session in sessions]
        found[-1]["retained"] = retained(model, data, known, decoder)
    elif piece.method == "daily":
        found = daily(piece, data, base, known, decoder, out)
    else:
        stranger = participant(piece.drift, (piece.seed + 1) % len(SEEDS), out)
        year = Year(data, stranger, base, known, days, happened, lm, decoder, piece.seed)
        with TemporaryDirectory() as scratch:
            found = learn(year, COURSES[piece.method], Path(scratch))
    rows = [
        {"session": session, "day": day, "events": list(names)} | errors
        for session, day, names, errors in zip(sessions, days, happened, found, strict=False)
    ]
    return {"method": piece.method, "drift": piece.drift, "seed": piece.seed, "days": rows}


def daily(
    piece: Piece, data: PackedDataset, base: Path, known: list[str], decoder: Decoder, out: Path
) -> list[dict[str, Any]]:
    """Return the errors of a model that learns from labelled sentences of each day.

    Args:
        piece: The piece; its days are kept as they are done.
        data: Packed data of the participant.
        base: Run that was trained on the known days.
        known: Those days.
        decoder: The search.
        out: Folder of the study.
    """
    folder = out / "daily" / f"{piece.drift}-{piece.seed}"
    parent = base
    found = []
    for number, session in enumerate(data.sessions[len(known) :]):
        run = folder / f"run-{number}"
        done = folder / f"day-{number}.json"
        if not done.is_file():
            shutil.rmtree(run, ignore_errors=True)  # of a day that was stopped
        errors = made_once(done, partial(one_day, data, session, parent, run, known, decoder))
        found.append(errors)
        if errors["carried_on"]:
            if parent != base:
                shutil.rmtree(parent, ignore_errors=True)
            parent = run
        else:
            shutil.rmtree(run, ignore_errors=True)
    found[-1]["retained"] = retained(load_model(parent), data, known, decoder)
    shutil.rmtree(folder)
    return found


def one_day(
    data: PackedDataset, session: str, parent: Path, run: Path, known: list[str], decoder: Decoder
) -> dict[str, Any]:
    """Adapt to a day with labels and judge it.

    Args:
        data: Packed data of the participant.
        session: The day.
        parent: Run that was carried on so far.
        run: Run directory to write.
        known: Days that the base was trained on.
        decoder: The search.
    """
    before = [name for name in load_model(parent).sessions if name != session]
    started = time.process_time()
    summary = adapt(
        parent,
        labelled(data, [session], []),
        run,
        session=session,
        whole_model=True,
        old_data=labelled(data, before, known),
        overrides=DAILY_RECIPE,
        progress=False,
        **DAILY,
    )
    seconds = time.process_time() - started
    take_over(parent, run)
    errors = judge(load_model(run), data, session, session, decoder)
    held_out = {"held_out_per": summary.val_per, "carried_on": summary.val_per <= WORST_PER}
    return {**errors, **held_out, "adapt_cpu_seconds": seconds}


def labelled(data: PackedDataset, sessions: Sequence[str], whole: Sequence[str]) -> PackedDataset:
    """Return the labelled sentences of some days: the first of each, or all of those in `whole`."""
    split = data.split("train")
    chosen = [
        in_order_of_recording(split, name)[: None if name in whole else LABELLED]
        for name in sessions
    ]
    return data.showing({"train": split.take(np.concatenate(chosen))})


def run_study(
    parts: Mapping[str, Sequence[Piece]], out: Path, lm: Path, minutes: float
) -> list[dict[str, Any]]:
    """Measure the pieces that are not there yet, and return the results of all that are.

    Args:
        parts: The pieces by part.
        out: Folder of the study.
        lm: Directory of the language model.
        minutes: Time after which no piece is begun.
    """
    deadline = time.time() + 60 * minutes
    results = []
    for piece in [each for pieces in parts.values() for each in pieces]:
        path = piece.path(out)
        if path.is_file() or time.time() < deadline:
            results.append(made_once(path, partial(measure, piece, out, lm)))
            print(f"{path.stem}: done", flush=True)
    return results


def without_words(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result without what it says of each sentence and word."""
    days = [
        {
            name: value
            for name, value in day.items()
            if not isinstance(value, list) or name == "events"
        }
        for day in result["days"]
    ]
    return result | {"days": days}


def main() -> None:
    parser = study_arguments(__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/year"))
    parser.add_argument("--plot", type=Path, help="picture of the errors over the year")
    parser.add_argument(
        "--reliability", type=Path, help="picture of the frozen model's confidences"
    )
    parser.add_argument("--part", nargs="*", choices=list(study()), help="parts; all by default")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--text", type=Path, help="general English, by default the real material's")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no piece after")
    parser.add_argument("--plan", action="store_true", help="print what is left; measure nothing")
    arguments = parser.parse_args()
    out: Path = arguments.out
    every = study(arguments.seeds)
    parts = {part: every[part] for part in arguments.part or every}
    if arguments.plan:
        left = {part: sum(not p.path(out).is_file() for p in each) for part, each in parts.items()}
        print(
            markdown_table(["part", "pieces", "left"], [[p, len(parts[p]), left[p]] for p in parts])
        )
        return
    out.mkdir(parents=True, exist_ok=True)
    lm = language_model(out, arguments.text)
    results = run_study(parts, out, lm, arguments.minutes)
    found = summary(results)
    found |= {
        "beside_daily": beside_daily(results),
        "promotions": {
            f"{each['method']}-{each['seed']}": promotions(each)
            for each in results
            if each["method"] in COURSES and COURSES[each["method"]].service
        },
        "day_after": day_after(results),
        "confidences": confidence_by_quarter(results),
        "sentence_confidences": confidence_by_quarter(results, "sentences"),
    }
    print_tables(found)
    print_confidences(found["confidences"])
    print_confidences(found["sentence_confidences"], "sentences")
    settings = {"simulation": overrides("usual"), "recipe": RECIPE, "daily": [DAILY, DAILY_RECIPE]}
    pieces = [without_words(each) for each in results]
    write_result(arguments.json, {**settings, **found, "pieces": pieces, **provenance()})
    if arguments.plot:
        plot(results, arguments.plot)
    if arguments.reliability:
        plot_confidences(found["confidences"], "frozen").savefig(arguments.reliability, dpi=150)


if __name__ == "__main__":
    main()
