"""Compare the errors of the models on simulated recordings, and those with each of their options.

    python benchmarks/models_on_simulation.py [--out build/models] [--part NAME ...] [--workers 2]
        [--minutes M] [--plan] [--json FILE] [--plot FILE]

Reduced models (a GRU of 2 x 192 units, a Transformer of 3 x 128) are trained on five simulated
participants. First a pilot measures the processor time that a batch of each setting takes. It turns
a budget of processor time into a number of batches, so that all settings with the same budget cost
the same. The study has parts:

- models:       GRU and Transformer, with and without day layers; a short and a long budget
- convergence:  both models, alone and with diphones, with three times the long budget
- options:      time masks, diphones and intermediate CTC in each; the long budget
- drift:        no drift between days, and twice the usual one; the short budget
- trials:       both models with 10,000 training trials in the place of 1,320; the long budget
- pretraining:  both models without labels, as many batches as a short training
- participants: 50, 200 and all trials of a participant; from fresh weights, and from those that were
                pretrained or trained on another participant

A piece is one training; it ends with fitted decoder options. Pieces that `--out` already has are
not repeated, and a piece that was stopped goes on from its last validation. `--plan` prints the
pieces and the processor time that they take; `--minutes` starts no piece after that time.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import h5py
import numpy as np
import torch

from cortext.data import PackedDataset, open_packed, pack
from cortext.decoding.ngram import LanguageModel
from cortext.evaluation.fit_decoder import FitDecoder
from cortext.files import atomic_directory, json_lines
from cortext.provenance import provenance
from cortext.training import TrainConfig, Trainer, read_train_config
from cortext.training.pretrain import OVERRIDES
from cortext_bench.harness import (
    cost_of,
    machine,
    made_once,
    markdown_table,
    study_arguments,
    write_result,
)
from cortext_data.simulate import simulate
from cortext_data.simulate.config import PRESETS
from models_tables import RATES, compare, plot, print_tables

SEEDS = (0, 1, 2, 3, 4)
"""Seeds of the simulated participants; the seeds of a training follow from them."""
BUDGETS = {"brief": 30.0, "short": 60.0, "long": 180.0, "longest": 540.0}
"""Processor time of a training, in seconds, without validation."""
BESIDE_S = 20.0
"""Processor time of a piece's validations and fitted decoder options, about; for the plan."""
VALIDATIONS = 8
"""Validations of a training, evenly spaced; the best weights are kept."""
PILOT_BATCHES = 10, 40
"""Batches that warm up, and those that are measured."""
SIMULATION = ["test_per_day=0"]
N_DAYS = 6
DRIFT = ("tuning_drift", "gain_drift", "baseline_drift", "channel_turnover")
"""Settings of the simulator that make days differ."""


@dataclass(frozen=True)
class Condition:
    """The recordings of a participant."""

    train_per_day: int = 220
    drift: float = 1.0
    """Factor on the simulator's usual drift."""


CONDITIONS = {
    "usual drift": Condition(),
    "no drift": Condition(drift=0.0),
    "double drift": Condition(drift=2.0),
    "10,000 trials": Condition(train_per_day=1_667),
}

GRU = ["model.n_units=192"]
TRANSFORMER = [
    "model.n_units=128",
    "model.n_layers=3",
    "model.n_heads=2",
    # More batches for the same processor time.
    "dataset.batch_size=16",
    # Twice the recipe's: 16.8 % PER in place of 18.0 % on participant 0 with 120 s.
    "lr_max=0.004",
    "lr_max_day=0.004",
]
MASKS = "[{kind: time_mask, n_masks: 20, max_share: 0.05, patch_bins: 4, after_smoothing: true}]"
NO_DAYS = ["model.input_network.day_layer=none"]


@dataclass(frozen=True)
class ModelSetting:
    """A row of the table: a recipe with changes."""

    recipe: str
    changes: Sequence[str]
    beside: str | None = None
    """The setting that it is compared with."""


SETTINGS = {
    "GRU": ModelSetting("demo", GRU),
    "GRU, no day layers": ModelSetting("demo", [*GRU, *NO_DAYS], "GRU"),
    "Transformer": ModelSetting("transformer", TRANSFORMER, "GRU"),
    "Transformer, no day layers": ModelSetting(
        "transformer", [*TRANSFORMER, *NO_DAYS], "Transformer"
    ),
}
MODELS = tuple(SETTINGS)
SETTINGS |= {
    "GRU, time masks": ModelSetting("demo", [*GRU, f"dataset.augmentations={MASKS}"], "GRU"),
    "Transformer, no time masks": ModelSetting(
        "transformer", [*TRANSFORMER, "dataset.augmentations=[]"], "Transformer"
    ),
}
for model, recipe, changes, middle in (
    ("GRU", "demo", GRU, 1),
    ("Transformer", "transformer", TRANSFORMER, 2),
):
    SETTINGS |= {
        f"{model}, diphones": ModelSetting(recipe, [*changes, "model.diphones=true"], model),
        f"{model}, intermediate CTC": ModelSetting(
            recipe, [*changes, f"model.intermediate_layer={middle}"], model
        ),
    }
OPTIONS = tuple(name for name in SETTINGS if name not in MODELS)
KINDS = ("GRU", "Transformer")
DIPHONES = tuple(f"{name}, diphones" for name in KINDS)
GIVEN = {"50": 50, "200": 200, "all": None}
"""Training trials of the new participant, spread over the days."""
PRETRAINING = "pretraining"
STARTS = ("fresh", "pretrained", "trained")


@dataclass(frozen=True)
class Piece:
    """One training of the study."""

    part: str
    condition: str
    setting: str
    budget: str
    seed: int
    given: str = "all"
    """Training trials that it gets, a key of GIVEN."""
    start: str = "fresh"
    """`fresh` weights, or those of another participant, `pretrained` without labels or `trained`."""

    @property
    def name(self) -> str:
        """Name of its files."""
        parts = [self.condition, self.setting, self.budget, f"seed {self.seed}"]
        if self.part == PRETRAINING:
            parts.append(PRETRAINING)
        if self.part == "participants":
            parts += [f"{self.given} trials", self.start]
        return "-".join(map(slug, parts))

    def path(self, out: Path) -> Path:
        """Return the file of its result."""
        return out / "pieces" / f"{self.name}.json"

    @property
    def source(self) -> Piece | None:
        """The training on another participant whose weights it starts from."""
        if self.start == "fresh":
            return None
        other = SEEDS[(SEEDS.index(self.seed) + 1) % len(SEEDS)]
        part, budget = ("models", "long") if self.start == "trained" else (PRETRAINING, "short")
        return Piece(part, self.condition, self.setting, budget, other)


def slug(name: str) -> str:
    """Return a name as part of a file's name."""
    return name.replace(",", "").replace(" ", "_")


def study() -> dict[str, list[Piece]]:
    """Return the pieces by part, in the order in which they are trained."""
    usual = "usual drift"
    made = {
        "models": [(usual, name, each) for name in MODELS for each in ("short", "long")],
        "convergence": [(usual, name, "longest") for name in (*KINDS, *DIPHONES)],
        "options": [(usual, name, "long") for name in OPTIONS],
        "drift": [
            (each, name, "short") for each in ("no drift", "double drift") for name in MODELS
        ],
        "trials": [("10,000 trials", name, "long") for name in KINDS],
        PRETRAINING: [(usual, name, "short") for name in KINDS],
    }
    pieces = {
        part: [Piece(part, *each, seed) for seed in SEEDS for each in rows]
        for part, rows in made.items()
    }
    pieces["participants"] = [
        Piece("participants", usual, name, "brief", seed, given, start)
        for seed in SEEDS
        for name in KINDS
        for given in GIVEN
        for start in STARTS
    ]
    return pieces


def participant(condition: str, seed: int, out: Path) -> Path:
    """Return the folder of a simulated participant: `packed`, and the language model `lm`.

    Its sessions are named after the seed, so that no participant has another's days. It is made at
    the first call.

    Args:
        condition: Name of the condition.
        seed: Seed of the simulation.
        out: Folder of the study.
    """
    folder = out / "data" / f"{slug(condition)}-{seed}"
    if not folder.is_dir():
        chosen = CONDITIONS[condition]
        overrides = [*SIMULATION, f"n_days={N_DAYS}", f"train_per_day={chosen.train_per_day}"]
        overrides += [f"{name}={chosen.drift * getattr(PRESETS['demo'], name)}" for name in DRIFT]
        with atomic_directory(folder) as made:
            simulate(made / "raw", "demo", seed=seed, overrides=overrides)
            for session in (made / "raw").glob("sim.*"):
                rename_session(session, session.name.replace("sim", f"p{seed}", 1))
            pack(made / "raw", made / "packed")
            LanguageModel.build([made / "raw" / "text" / "lm.txt"], 4, made / "lm")
            shutil.rmtree(made / "raw")
    return folder


def rename_session(folder: Path, name: str) -> None:
    """Give a simulated session another name.

    Args:
        folder: Its session files.
        name: The new name.
    """
    for path in folder.glob("data_*.hdf5"):
        with h5py.File(path, "r+") as file:
            for trial in file.values():
                trial.attrs["session"] = name
    folder.rename(folder.with_name(name))


def first_trials(data: PackedDataset, count: int | None) -> PackedDataset:
    """Return the data with only the first training trials of each day.

    Args:
        data: Packed data.
        count: Training trials of all days together, spread evenly; None for all.
    """
    if count is None:
        return data
    split = data.split("train")
    order = np.lexsort((split.trial_N, split.block_N, split.day_N))
    days = [order[split.day_N[order] == day] for day in np.unique(split.day_N)]
    bounds = [count * number // len(days) for number in range(len(days) + 1)]
    kept = [day[: end - start] for day, start, end in zip(days, bounds, bounds[1:], strict=False)]
    taken = split.take(np.concatenate(kept))
    return data.showing({"train": taken, "val": data.split("val")})


def configuration(name: str, n_batches: int, seed: int) -> TrainConfig:
    """Return the settings of a training.

    Args:
        name: Name of the setting.
        n_batches: Number of batches, at whose end the learning rates have fallen.
        seed: Seed of the participant.
    """
    counts = ("num_training_batches", "lr_decay_steps", "lr_decay_steps_day")
    overrides = [*SETTINGS[name].changes, *(f"{each}={n_batches}" for each in counts)]
    overrides += [f"seed={seed + 10}", f"dataset.seed={seed + 1}"]
    every = max(1, n_batches // VALIDATIONS)
    overrides += [f"batches_per_val_step={every}", f"batches_per_train_log={every}"]
    return read_train_config(SETTINGS[name].recipe, overrides)


def batch_seconds(name: str, out: Path) -> float:
    """Return the processor time of a batch of a setting, measured at the first call.

    Args:
        name: Name of the setting.
        out: Folder of the study.
    """

    def measured() -> dict[str, Any]:
        torch.set_num_threads(1)
        data = participant("usual drift", SEEDS[0], out) / "packed"
        run = out / "pilot" / f"{slug(name)}-run"
        shutil.rmtree(run, ignore_errors=True)
        warmup, count = PILOT_BATCHES
        config = configuration(name, 100 * count, SEEDS[0])
        with Trainer(config, data, run, progress=False) as trainer:
            trainer.run(warmup)
            cost = cost_of(lambda: trainer.run(count))
            n_parameters = trainer.model.n_parameters
        shutil.rmtree(run)
        seconds = cost.cpu_seconds / count
        return {"seconds": seconds, "n_parameters": n_parameters, "wall": cost.seconds / count}

    return float(made_once(out / "pilot" / f"{slug(name)}.json", measured)["seconds"])


def n_batches(piece: Piece, out: Path) -> int:
    """Return the batches that a piece's budget pays for, a multiple of its validations."""
    each = VALIDATIONS * batch_seconds(piece.setting, out)
    return VALIDATIONS * max(1, round(BUDGETS[piece.budget] / each))


def train_piece(piece: Piece, out: Path, deadline: float = float("inf")) -> dict[str, Any] | None:
    """Return the result of a piece, trained at the first call.

    Return None after the deadline, and where the training that it starts from is missing.

    Args:
        piece: The training.
        out: Folder of the study.
        deadline: Time (`time.time`) after which no piece is begun.
    """
    path = piece.path(out)
    missing = piece.source is not None and not piece.source.path(out).is_file()
    if not path.is_file() and (missing or time.time() > deadline):
        return None
    return made_once(path, partial(_trained, piece, out))


def _trained(piece: Piece, out: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    folder = participant(piece.condition, piece.seed, out)
    data = first_trials(open_packed(folder / "packed"), GIVEN[piece.given])
    run = out / "runs" / piece.name
    config = configuration(piece.setting, n_batches(piece, out), piece.seed)
    fit = FitDecoder(folder / "lm", folder / "packed", threads=1)
    if piece.part == PRETRAINING:
        config = read_train_config(config, OVERRIDES)
    source = None if piece.source is None else out / "runs" / piece.source.name
    resume = (run / "config.yaml").is_file()
    with Trainer(
        config,
        data,
        run,
        resume=resume,
        init_from=None if resume else source,
        callbacks=[fit],
        progress=False,
    ) as trainer:
        summary = trainer.run()
    assert summary is not None
    lines = [line for line in json_lines(run / "metrics.jsonl") if line["kind"] == "val"]
    shutil.rmtree(run / "train_state")
    rates = {}
    if piece.part != PRETRAINING:
        assert fit.fitted is not None
        errors = fit.fitted.word_errors
        rates = {"per": summary.val_per, "wer": errors.rate("cross_fitted")}
        rates["wer_default_options"] = errors.rate("start")
    return {
        **asdict(piece),
        **rates,
        "batches": summary.steps,
        "best_batch": summary.best_step,
        "trials": summary.n_train_trials,
        "n_parameters": summary.n_parameters,
        "seconds": summary.seconds,
        "curve": [[line["step"], line.get("val_per"), line["val_loss"]] for line in lines],
    }


def plan(pieces: dict[str, list[Piece]], out: Path) -> list[list[object]]:
    """Return the rows of the plan: pieces, those that are done, and processor time left."""
    rows: list[list[object]] = []
    total = 0.0
    for part, each in pieces.items():
        left = [one for one in each if not one.path(out).is_file()]
        minutes = sum(BUDGETS[one.budget] + BESIDE_S for one in left) / 60
        total += minutes
        rows.append([part, len(each), len(each) - len(left), f"{minutes:.0f}"])
    return [*rows, ["all", sum(map(len, pieces.values())), "", f"{total:.0f}"]]


def run_study(
    pieces: dict[str, list[Piece]], out: Path, workers: int, minutes: float
) -> list[dict[str, Any]]:
    """Train the pieces that are not there yet, and return the results of all that are.

    Args:
        pieces: The pieces by part. Those of a part may start from those of an earlier one.
        out: Folder of the study.
        workers: Trainings at a time, one core each.
        minutes: Time after which no piece is begun.
    """
    deadline = time.time() + 60 * minutes
    # One at a time: another training beside it would change the processor time of a batch.
    for name in {one.setting: None for each in pieces.values() for one in each}:
        print(f"{name}: {1000 * batch_seconds(name, out):.1f} ms of processor time a batch")
    found = []
    with ProcessPoolExecutor(workers) as pool:
        for each in pieces.values():
            over = time.time() > deadline
            left = [one for one in each if not over and not one.path(out).is_file()]
            needed = {(one.condition, one.seed): None for one in left}
            for made in [pool.submit(participant, *one, out) for one in needed]:
                made.result()
            results = pool.map(partial(train_piece, out=out, deadline=deadline), each)
            for piece, result in zip(each, results, strict=True):
                if result is None:
                    continue
                found.append(result)
                shown = [
                    f"{each.upper()} {100 * result[each]:.1f} %" for each in RATES if each in result
                ]
                print(f"{piece.name:60} {'  '.join(shown)}", flush=True)
    return found


def main() -> None:
    parser = study_arguments(__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/models"))
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--part", nargs="*", choices=list(study()), help="parts; all by default")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no piece after")
    parser.add_argument("--plan", action="store_true", help="print the pieces; train nothing")
    arguments = parser.parse_args()
    out: Path = arguments.out
    pieces = {part: each for part, each in study().items() if part in (arguments.part or study())}
    if arguments.plan:
        columns = ["part", "pieces", "done", "minutes of one core left"]
        print(markdown_table(columns, plan(pieces, out)))
        return
    results = run_study(pieces, out, arguments.workers, arguments.minutes)
    rated = [result for result in results if result["part"] != PRETRAINING]
    compared = compare(rated, {name: each.beside for name, each in SETTINGS.items()})
    print_tables(compared)
    pilot = {name: batch_seconds(name, out) for name in {one["setting"]: None for one in results}}
    budgets = {"budgets_s": BUDGETS, "batch_seconds": pilot}
    figures = {**budgets, **compared, "pieces": results, **machine(), **provenance()}
    write_result(arguments.json, figures)
    if arguments.plot:
        plot(compared, arguments.plot)


if __name__ == "__main__":
    main()
