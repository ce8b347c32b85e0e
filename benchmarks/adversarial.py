"""Does adversarial training beat the plain GRU of equal size where structured noise is strong?

    python benchmarks/adversarial.py [--out build/adversarial] [--json FILE] [--plot FILE] [--only
    NAME ...]

Every setting is trained on one simulation (seed 0). Then the best of the plain GRU and the best of
the three networks are trained on three other simulations (seeds 1 to 3), each with initial weights
and batches of its own, and again with three times the batches. A plain GRU has at least as many
parameters as the three networks have together, adversary included; data, batches, augmentation and
the number of batches are the same, and learning rates are chosen for each. Runs that `--out`
already has are not repeated. One training takes about a minute on one core, three with three times
the batches.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import time
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import h5py
import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.linear_model import Ridge

from cortext.data import open_dataset, pack
from cortext.files import atomic_write
from cortext.models import build_model, load_model
from cortext.provenance import provenance
from cortext.text.inventory import RELEASE
from cortext.training import TrainConfig, read_train_config, train
from cortext_bench.harness import markdown_table, study_arguments, write_result
from cortext_data.simulate import simulate

NOISE = 2.0
DROPOUT = 0.2
TUNING_SEED = 0
SEEDS = (1, 2, 3)
BATCHES = 400
LONGER = 3
BATCH_SIZE = 16
N_DAYS = 2
N_ELECTRODES = 64
SIMULATION = [
    f"n_days={N_DAYS}",
    f"n_electrodes={N_ELECTRODES}",
    "train_per_day=300",
    "val_per_day=100",
    "test_per_day=0",
    "trials_per_block=50",
    "modulation=0.7",
    "phoneme_ms=130",
    "word_pause_ms=140",
    "lead_in_ms=150",
    "trail_ms=150",
]
COMMON = [
    "precision=fp32",
    "lr_warmup_steps=40",
    "lr_warmup_steps_day=40",
    f"dataset.batch_size={BATCH_SIZE}",
    "dataset.days_per_batch=2",
    "batches_per_train_log=50",
]
TRIPLE_UNITS = {"noise_units": 64, "clean_units": 128, "noisy_units": 32}
SHALLOW = {"noise_units": 48, "clean_units": 168, "clean_layers": 2, "noisy_units": 16}
NARROW = {"noise_units": 16, "clean_units": 197, "clean_layers": 2, "noisy_units": 16}
UNHELD = {"noisy_weight": 0.0, "noise_weight": 0.0, "reversal_end": 0.0}
STRONG = {"noisy_weight": 1.0, "reversal_end": 1.0, "reversal_ramp": 0.3}


@dataclass(frozen=True)
class TrainingSetting:
    """One training of the comparison: its model, learning rate, sizes and loss."""

    kind: str
    lr: float
    model: dict[str, Any] = field(default_factory=dict)
    loss: dict[str, Any] = field(default_factory=dict)
    batches: int = BATCHES
    noise: float = NOISE


def triple(lr: float = 0.004, units: dict[str, int] | None = None, **loss: Any) -> TrainingSetting:
    """Return a setting of the three networks; `loss` changes the default adversarial loss."""
    return TrainingSetting(
        "triple_gru", lr, {**(units or TRIPLE_UNITS), "rnn_dropout": DROPOUT}, loss
    )


def plain(lr: float, n_layers: int = 2) -> TrainingSetting:
    """Return a setting of the GRU with as many parameters as the three networks."""
    return TrainingSetting(
        "gru", lr, {"n_units": equal_units(n_layers), "n_layers": n_layers, "rnn_dropout": DROPOUT}
    )


def settings() -> dict[str, TrainingSetting]:
    """Return the rows of the table by name."""
    return {
        "gru: lr 0.002": plain(0.002),
        "gru: lr 0.004": plain(0.004),
        "gru: lr 0.008": plain(0.008),
        "gru: 1 layer, lr 0.004": plain(0.004, 1),
        "gru: 3 layers, lr 0.004": plain(0.004, 3),
        "triple: lr 0.002": triple(0.002),
        "triple: lr 0.004": triple(0.004),
        "triple: lr 0.008": triple(0.008),
        "triple: no adversary, no price": triple(**UNHELD),
        "triple: price 0.01": triple(noise_weight=0.01),
        "triple: adversary 1, reversal 1, ramp 0.3": triple(**STRONG),
        "triple: 2 clean layers": triple(units=SHALLOW),
        "triple: 2 clean layers, lr 0.002": triple(0.002, units=SHALLOW),
        "triple: 2 clean layers, 16 noise units": triple(units=NARROW),
        "triple: 2 clean layers, 16 noise units, lr 0.002": triple(0.002, units=NARROW),
        "triple: 2 clean layers, 16 noise units, no adversary, no price": triple(
            units=NARROW, **UNHELD
        ),
    }


def beside() -> dict[str, TrainingSetting]:
    """Return, by name, the runs that do not compete at the budget.

    They are the GRU without structured noise, and every setting with more batches.
    """
    without = {"gru: lr 0.002, no structured noise": replace(plain(0.002), noise=0.0)}
    return without | {
        longer(name): replace(one, batches=LONGER * BATCHES) for name, one in settings().items()
    }


def longer(name: str) -> str:
    """Name a setting that trains for more batches."""
    return f"{name}, {LONGER} times the batches"


@cache
def equal_units(n_layers: int) -> int:
    """Return the hidden units of the smallest GRU with at least the three networks' parameters."""
    wanted = n_parameters("triple_gru", tuple(TRIPLE_UNITS.items()))
    n_units = 32
    while n_parameters("gru", (("n_units", n_units), ("n_layers", n_layers))) < wanted:
        n_units += 1
    return n_units


def n_parameters(kind: str, model: tuple[tuple[str, Any], ...]) -> int:
    """Return the number of parameters of a model on the simulation's features and days."""
    config = read_train_config(
        TrainConfig(model={"kind": kind, "input_network": {}, **dict(model)})
    ).model
    network = build_model(
        config, n_features=2 * N_ELECTRODES, n_days=N_DAYS, n_classes=len(RELEASE)
    )
    return sum(parameter.numel() for parameter in network.parameters())


def configuration(setting: TrainingSetting, seed: int) -> TrainConfig:
    """Return the demo's recipe with the benchmark's budget and the setting."""
    config = read_train_config("demo", COMMON)
    counts = "num_training_batches", "lr_decay_steps", "lr_decay_steps_day"
    overrides = [
        f"batches_per_val_step={setting.batches // 4}",
        *(f"{name}={setting.batches}" for name in counts),
    ]
    overrides += [
        f"lr_max={setting.lr}",
        f"lr_max_day={setting.lr}",
        f"seed={seed + 10}",
        f"dataset.seed={seed + 1}",
    ]
    config = read_train_config(config, overrides)
    model = {"patch_size": 14, "patch_stride": 4, "input_network": {"input_layer_dropout": 0.2}}
    values = {name: getattr(config, name) for name in config.__dataclass_fields__}
    loss = {"kind": "adversarial", **setting.loss} if setting.kind == "triple_gru" else None
    return TrainConfig(
        **{**values, "model": {"kind": setting.kind, **model, **setting.model}, "loss": loss}
    )


def dataset(out: Path, seed: int, noise: float) -> Path:
    """Return the folder of a simulation: `raw` holds it with its truth, `packed` holds it packed.

    It is made at the first call.

    Args:
        out: Folder for all simulations.
        seed: Seed of the simulation.
        noise: Strength of the structured noise; 0 for none.
    """
    folder = out / f"data-{noise:g}-{seed}"
    if not (folder / "packed").exists():
        shutil.rmtree(folder, ignore_errors=True)
        simulate(
            folder / "raw",
            "demo",
            seed=seed,
            truth=True,
            overrides=[*SIMULATION, f"structured_noise={noise}"],
        )
        pack(folder / "raw", folder / "packed")
    return folder


def run(name: str, setting: TrainingSetting, seed: int, out: Path) -> dict[str, Any]:
    """Return the result of one training; train only where `runs.json` does not hold it yet.

    Args:
        name: Name of the setting in the table.
        setting: Model, loss and budget.
        seed: Seed of the simulation; those of the training follow from it.
        out: Folder of `runs.json` and of the simulations.
    """
    found = [one for one in read_runs(out) if (one["name"], one["seed"]) == (name, seed)]
    if found:
        return found[0]
    torch.set_num_threads(1)
    data = dataset(out, seed, setting.noise)
    work = out / "run"
    shutil.rmtree(work, ignore_errors=True)
    started = time.process_time()
    summary = train(configuration(setting, seed), data / "packed", work, progress=False)
    result = {"name": name, "seed": seed, **asdict(setting), "per": summary.val_per}
    result["cpu_s"] = round(time.process_time() - started, 1)
    result["n_parameters"] = n_parameters(setting.kind, tuple(setting.model.items()))
    if setting.kind == "triple_gru":
        result["noise_estimate"] = explained(work, data / "raw")
    text = json.dumps([*read_runs(out), result], indent=1)
    atomic_write(out / "runs.json", text.encode())
    print(
        f"{name:44} seed {seed}  PER {100 * result['per']:.1f} %  {result['cpu_s']:.0f} s",
        flush=True,
    )
    return result


def read_runs(out: Path) -> list[dict[str, Any]]:
    path = out / "runs.json"
    runs: list[dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else []
    return runs


@torch.no_grad()
def explained(run_directory: Path, raw: Path) -> dict[str, float]:
    """Measure the noise estimate: its share of the input's energy, and what can be read from it.

    `<what>_from_<where>` is the R2 of a ridge regression, on every other validation trial, that
    reads the true structured noise (log rates of all electrodes) or the true articulators from the
    input patches, from the noise estimate, or from the patches without it; each is the mean over
    the bins of a patch.
    """
    model = load_model(run_directory)
    sources: dict[str, list[np.ndarray]] = {"input": [], "noise": [], "clean": []}
    truths: dict[str, list[np.ndarray]] = {"structured": [], "speech": []}
    halves = []
    energy = np.zeros(2)
    position: dict[str, int] = {}
    for number, trial in enumerate(open_dataset(raw).trials("val")):
        index = position[trial.session] = position.get(trial.session, -1) + 1
        x_BTC = model.smooth(torch.from_numpy(trial.features_TC)[None])
        lost = trial.n_bins - x_BTC.shape[1]
        patches = model.network.inputs(x_BTC, torch.tensor([model.day(trial.session)]))
        noise, _ = model.network.noise_model(patches)
        for name, values in zip(sources, (patches, noise, patches - noise), strict=True):
            sources[name].append(values[0].unflatten(-1, (14, -1)).mean(1).numpy())
        energy += noise.square().sum().item(), patches.square().sum().item()
        with h5py.File(raw / trial.session / "truth.hdf5") as file:
            group = file[f"val/trial_{index:04d}"]
            for name, key in {"structured": "structured_noise", "speech": "articulators"}.items():
                values_TK = group[key][lost // 2 :][: x_BTC.shape[1]]
                truths[name].append(
                    np.stack(
                        [values_TK[4 * p : 4 * p + 14].mean(0) for p in range(patches.shape[1])]
                    )
                )
        halves += [number % 2] * patches.shape[1]
    half = np.array(halves)
    result = {"energy_share": float(energy[0] / energy[1])}
    for what, truth in truths.items():
        for where, source in sources.items():
            x = np.concatenate(source)
            y = np.concatenate(truth)
            fitted = Ridge(1.0).fit(x[half == 0], y[half == 0])
            rest = y[half == 1] - fitted.predict(x[half == 1])
            result[f"{what}_from_{where}"] = float(
                1 - rest.var(axis=0).sum() / y[half == 1].var(axis=0).sum()
            )
    return result


def compare(final: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Compare PER by kind of model, and seed by seed.

    A negative difference means that the three networks are better.
    """
    pers = {kind: [one["per"] for one in runs] for kind, runs in final.items()}
    differences = [a - b for a, b in zip(pers["triple_gru"], pers["gru"], strict=True)]
    return {
        "settings": {kind: runs[0]["name"] for kind, runs in final.items()},
        "per": pers,
        "mean_per": {kind: statistics.mean(values) for kind, values in pers.items()},
        "difference": differences,
        "mean_difference": statistics.mean(differences),
        "difference_sd": statistics.stdev(differences),
        "runs": final,
    }


def print_tables(figures: dict[str, Any]) -> None:
    """Print the settings, then the seeds."""
    shown = ("energy_share", "structured_from_noise", "speech_from_noise")
    rows = []
    for one in sorted(figures["tuning"], key=lambda r: r["per"]):
        found = one.get("noise_estimate")
        cells = ["", "", ""] if found is None else [f"{found[name]:.2f}" for name in shown]
        rows.append([one["name"], f"{one['n_parameters']:,}", f"{100 * one['per']:.1f} %", *cells])
    noise = ["share of energy", "structured noise in it", "speech in it"]
    print(markdown_table(["setting", "parameters", "PER", *noise], rows))
    for comparison in figures["comparisons"]:
        pers = *comparison["per"].values(), comparison["difference"]
        means = *comparison["mean_per"].values(), comparison["mean_difference"]
        rows = [
            [seed, f"{100 * gru:.1f} %", f"{100 * triple:.1f} %", f"{100 * difference:+.1f}"]
            for seed, gru, triple, difference in (*zip(SEEDS, *pers, strict=True), ("mean", *means))
        ]
        print("\n" + markdown_table(["seed", "GRU", "three networks", "difference"], rows))


def plot(figures: dict[str, Any], path: Path) -> None:
    """Plot the shares of structured noise and of speech that can be read from three signals.

    The signals are the input, the noise estimate, and the input without it.
    """
    estimates = [one["noise_estimate"] for one in figures["comparisons"][0]["runs"]["triple_gru"]]
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    for number, (what, label) in enumerate(
        {"structured": "structured noise", "speech": "articulators"}.items()
    ):
        means = [
            statistics.mean(one[f"{what}_from_{where}"] for one in estimates)
            for where in ("input", "noise", "clean")
        ]
        bars = axes.bar(np.arange(3) + 0.38 * number, means, 0.36, label=label)
        axes.bar_label(bars, fmt="%.2f", fontsize=8)
    axes.set_xticks(np.arange(3) + 0.19, ["input", "noise estimate", "input without it"])
    axes.set_ylabel("R² of a linear read-out")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = study_arguments(__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/adversarial"))
    parser.add_argument("--plot", type=Path)
    parser.add_argument(
        "--only", nargs="*", help="train these settings, by name, and do nothing after that"
    )
    parser.add_argument(
        "--seeds", nargs="*", type=int, default=[TUNING_SEED], help="of the settings in --only"
    )
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    chosen = settings() | beside()
    if arguments.only:
        for seed in arguments.seeds:
            for name in arguments.only:
                run(name, chosen[name], seed, out)
        return
    tuned = [run(name, chosen[name], TUNING_SEED, out) for name in settings()]
    # The question is about adversarial training: the controls without adversary are not chosen.
    held = [one for one in tuned if one["loss"].get("noisy_weight") != 0]
    best = {}
    for kind in ("gru", "triple_gru"):
        of_kind = [one for one in held if one["kind"] == kind]
        best[kind] = min(of_kind, key=lambda one: one["per"])["name"]
    comparisons = []
    for names in (best, {kind: longer(name) for kind, name in best.items()}):
        final = {
            kind: [run(name, chosen[name], seed, out) for seed in SEEDS]
            for kind, name in names.items()
        }
        comparisons.append(compare(final))
    further = [
        run(name, chosen[name], TUNING_SEED, out)
        for name in (next(iter(beside())), *map(longer, best.values()))
    ]
    data = {
        "simulation": [*SIMULATION, f"structured_noise={NOISE}"],
        "batch_size": BATCH_SIZE,
        "seeds": SEEDS,
    }
    figures = {
        **data,
        "comparisons": comparisons,
        "tuning": tuned,
        "further": further,
        **provenance(),
    }
    print_tables(figures)
    write_result(arguments.json, figures)
    if arguments.plot:
        plot(figures, arguments.plot)


if __name__ == "__main__":
    main()
