"""Checkpoints of the public release as run directories, and back.

The release (Neuroprosthetics-Lab/nejm-brain-to-text) keeps `checkpoint/best_checkpoint`, a file of
torch.save, and `checkpoint/args.yaml`. `train_state/release.safetensors` keeps the parts that a run
of ours has no place for, so that an imported checkpoint is exported unchanged.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from cortext.config import read_mapping, to_mapping
from cortext.data.conventions import RELEASE_CONVENTIONS
from cortext.errors import RunError
from cortext.files import atomic_directory, atomic_file, disk_errors, parse_json_object
from cortext.models import AcousticModel, load_model, save_model
from cortext.models.storage import read_tensors, write_tensors
from cortext.text.inventory import RELEASE
from cortext.training.checkpoint import RunDirectory, RunState
from cortext.training.config import TrainConfig, read_run_config
from cortext.training.release_settings import ELSEWHERE, SAME, assign, has, lookup
from cortext_published.release import layout
from cortext_published.release.reading import (
    ARGUMENTS,
    ReleaseExtras,
    configuration,
    model_of,
    optimizer_of,
    sections,
)
from cortext_published.release.untrusted import read_torch_file

WEIGHTS = "best_checkpoint"
_IDENTITY_STD = 0.1
"""Standard deviation, in bins, of a smoothing that changes nothing: its kernel is a single 1."""


@dataclass(frozen=True)
class Exchanged:
    """Summary of an import or an export.

    `val_per` and `val_loss` are None if the checkpoint has none.
    """

    path: str
    files: tuple[str, ...]
    n_sessions: int
    n_parameters: int
    step: int
    val_per: float | None
    val_loss: float | None
    notes: tuple[str, ...] = ()


def import_checkpoint(directory: str | Path, out: str | Path, name: str = WEIGHTS) -> Exchanged:
    """Write a run directory from a checkpoint of the release.

    The run can be evaluated, decoded with, started from (`init_from`) and resumed. Nothing in the
    checkpoint is run. A failure leaves nothing behind.

    Args:
        directory: Directory of the release's training, or its folder `checkpoint`.
        out: Run directory to write.
        name: Name of the checkpoint's file.

    Raises:
        RunError: If a file is missing or does not hold a checkpoint of the release, and if `out`
            is not empty or cannot be written.
        ConfigError: For arguments that a GRU run here cannot have.
    """
    folder = Path(directory)
    out = Path(out)
    if (folder / "checkpoint").is_dir():
        folder = folder / "checkpoint"
    for needed in (name, ARGUMENTS):
        if not (folder / needed).is_file():
            fix = f"give the directory that has checkpoint/{name} and checkpoint/{ARGUMENTS}"
            raise RunError(f"has no file {needed}", where=folder, fix=fix)
    arguments = read_mapping(folder / ARGUMENTS)
    config, n_features = configuration(arguments, folder / ARGUMENTS)
    path = folder / name
    with _naming(path):
        checkpoint = sections(read_torch_file(path))
        model = model_of(config, n_features, checkpoint["model_state_dict"])
        tensors, kept = optimizer_of(checkpoint, config, model)
    kept.arguments = {key: lookup(arguments, key, None) for key in ELSEWHERE if has(arguments, key)}
    metrics = {"step": kept.step, "val_per": kept.metrics["val_PER"], "val_wer": None}
    metrics["val_loss"] = kept.metrics.get("val_loss", math.inf)
    tensors |= {f"model/{name}": tensor for name, tensor in model.network.state_dict().items()}
    with _new_directory(out) as made:
        _write_yaml(made / "config.yaml", to_mapping(config))
        finished = kept.step >= config.num_training_batches
        progress = RunState(step=kept.step, best=metrics, last=metrics, finished=finished)
        progress.best_crc32 = save_model(model, made)
        RunDirectory(made).save_state(tensors, progress)
        _write_kept(made, kept)
    files = ("config.yaml", "model.json", "model.safetensors", "train_state")
    return _exchanged(out, files, model, kept.step, kept.metrics, [])


def export_release(run: str | Path, out: str | Path) -> Exchanged:
    """Write a GRU run in the release's layout: `out/checkpoint/best_checkpoint` and `args.yaml`.

    Names of weights begin with `_orig_mod.`, which the release's trainer needs and its evaluation
    script removes. If the last weights are not the best ones, they are in
    `final_checkpoint_batch_<number>`; only this file then has the optimiser's moments.

    Raises:
        RunError: For a run that the release's model cannot hold, and if `out` is not empty or
            cannot be written.
    """
    run = Path(run)
    out = Path(out)
    model = load_model(run)
    if (kind := model.network.config.kind) != "gru":
        raise RunError(
            f"is a model of kind {kind!r}; the release has only the GRU",
            where=run,
            fix="export a GRU run",
        )
    if model.network.config.diphones:
        problem = "is a model of diphones; the release's GRU has one output for each phoneme"
        raise RunError(problem, where=run, fix="export a run without model.diphones")
    if (days := model.network.config.input_network.day_layer) != "softsign":
        problem = f"has day_layer {days!r}; the release's GRU has an affine map and softsign"
        raise RunError(problem, where=run, fix="export a run with day_layer: softsign")
    if model.network.config.input_network.read_in is not None:
        problem = "its model has a read-in layer; the release's has none"
        raise RunError(problem, where=run, fix="export it with --format onnx")
    model.conventions.require(
        RELEASE_CONVENTIONS,
        mine="the run",
        theirs="the release",
        where=run,
        error=RunError,
        fix="export it with --format onnx",
    )
    config = read_run_config(run)
    kept = _read_kept(run)
    arguments, notes = _arguments(config, model, kept, run)
    saved = RunDirectory(run).load_state(notes.append)
    tensors, progress = saved if saved is not None else ({}, RunState())
    parts: dict[str, dict[str, torch.Tensor]] = {"model": {}, "optimizer": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition("/")
        parts.setdefault(part, {})[rest] = tensor
    best_step = progress.best["step"] if progress.best else progress.step
    # The moments are those of the last weights.
    is_last = progress.best is not None and best_step == progress.step
    metrics = _metrics(progress.best, kept, best_step)
    state = parts["optimizer"] if is_last else {}
    files = {
        WEIGHTS: _checkpoint(
            config, model, model.network.state_dict(), state, kept, best_step, metrics
        )
    }
    if saved is not None and not is_last:
        last = _metrics(progress.last, kept, progress.step)
        step = progress.step
        final = _checkpoint(config, model, parts["model"], parts["optimizer"], kept, step, last)
        files[f"final_checkpoint_batch_{step - 1}"] = final
    with _new_directory(out) as made:
        for name, content in files.items():
            with _torch_errors(out), atomic_file(made / "checkpoint" / name) as file:
                torch.save(content, file)
        _write_yaml(made / "checkpoint" / ARGUMENTS, arguments)
    names = tuple(f"checkpoint/{name}" for name in (*files, ARGUMENTS))
    return _exchanged(out, names, model, best_step, metrics, notes)


def _metrics(
    validation: dict[str, Any] | None, kept: ReleaseExtras | None, step: int
) -> dict[str, float]:
    """Return `val_PER` and `val_loss` of a validation.

    The validation of the imported checkpoint keeps the imported values.
    """
    if kept is not None and kept.step == step:
        return kept.metrics
    if validation is None:
        return {"val_PER": math.inf}  # as the release's trainer begins
    metrics = {"val_PER": validation["val_per"], "val_loss": validation["val_loss"]}
    return {key: value for key, value in metrics.items() if math.isfinite(value)}


def _checkpoint(
    config: TrainConfig,
    model: AcousticModel,
    weights: dict[str, torch.Tensor],
    state: dict[str, torch.Tensor],
    kept: ReleaseExtras | None,
    step: int,
    metrics: dict[str, float],
) -> dict[str, Any]:
    """Return the content that the release's trainer saves after `step` batches.

    `state` is our optimiser's state; an empty one leaves out the moments.
    """
    expected = layout.shapes(
        model.network.config, model.n_used_features, len(model.sessions), len(RELEASE)
    )
    theirs = layout.split_days(weights)
    names = layout.by_group(list(expected))
    if kept is None:
        groups, schedule = layout.fresh_optimizer(config, names)
    else:
        groups = [group | {"betas": tuple(group["betas"])} for group in kept.groups]
        schedule = kept.schedule
    if kept is None or kept.step != step:
        groups, schedule = layout.at_step(groups, schedule, config, step)
    moments = layout.moments_to_theirs(state) if state else {}
    for key, tensor in kept.moments.items() if kept and state else ():
        name, _, field = key.partition("/")
        moments.setdefault(name, {})[field] = tensor
    number = {name: i for i, name in enumerate(name for group in names.values() for name in group)}
    for group in groups:
        group["params"] = [number[name] for name in names[group["group_type"]]]
    return {
        "model_state_dict": OrderedDict((f"_orig_mod.{name}", theirs[name]) for name in expected),
        "optimizer_state_dict": {
            "state": {
                number[name]: moments[name]
                for name in sorted(moments, key=lambda name: number[name])
            },
            "param_groups": groups,
        },
        "scheduler_state_dict": schedule,
    } | metrics


def _arguments(
    config: TrainConfig, model: AcousticModel, kept: ReleaseExtras | None, run: Path
) -> tuple[dict[str, Any], list[str]]:
    """Return the mapping of args.yaml, and notes on differences of the release."""
    ours = to_mapping(config)
    n_used = model.n_used_features
    sessions = list(model.sessions)
    chances = config.dataset.dataset_probability_val
    if chances is None or config.dataset.sessions != sessions:
        chances = [1] * len(sessions)
    values = {key: setting.published for key, setting in ELSEWHERE.items()}
    values |= {
        "output_dir": f"trained_models/{run.name}",
        "checkpoint_dir": f"trained_models/{run.name}/checkpoint",
    }
    values |= {
        "dataset.neural_dim": model.n_features,
        "model.input_network.input_layer_sizes": [n_used],
    }
    values |= kept.arguments if kept else {}
    values |= {key: lookup(ours, key, None) for key in SAME}
    values |= {
        "use_amp": config.precision != "fp32",
        "model.n_input_features": n_used,
        "dataset.sessions": sessions,
    }
    values["dataset.dataset_probability_val"] = [int(chance) for chance in chances]
    notes = []
    if model.feature_subset is not None:
        notes.append(
            "the release's evaluation script gives the model all features, of which this one takes"
            " a subset"
        )
    # The release's evaluation script smooths whatever smooth_data says.
    if not config.dataset.data_transforms.smooth_data:
        values["dataset.data_transforms.smooth_kernel_std"] = _IDENTITY_STD
    ignored = [
        key for key in ("must_include_days", "bad_trials_dict") if getattr(config.dataset, key)
    ]
    notes += [f"the release's trainer ignores dataset.{key}" for key in ignored]
    if lacking := _unsupported(ours, to_mapping(TrainConfig())):
        notes.append(f"the release has no {', '.join(lacking)}")
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        assign(arguments, key, value)
    return arguments, notes


def _unsupported(ours: Any, defaults: Any, prefix: str = "") -> list[str]:
    """Return dotted keys of settings that the release lacks and that are not at their defaults."""
    if not isinstance(ours, dict) or not isinstance(defaults, dict):
        known = (*SAME, "precision", "model.kind")
        return [] if ours == defaults or prefix in known else [prefix]
    parts = (_unsupported(ours[k], defaults.get(k), f"{prefix}.{k}" if prefix else k) for k in ours)
    return [key for part in parts for key in part]


def _kept_file(run: Path) -> Path:
    return run / "train_state" / "release.safetensors"


def _write_kept(run: Path, kept: ReleaseExtras) -> None:
    content = {
        field: getattr(kept, field)
        for field in ("arguments", "groups", "schedule", "metrics", "step")
    }
    write_tensors(_kept_file(run), kept.moments, {"release": json.dumps(content)})


def _read_kept(run: Path) -> ReleaseExtras | None:
    try:
        moments, metadata, _ = read_tensors(_kept_file(run), "what the release's checkpoint held")
    except FileNotFoundError:
        return None
    try:
        return ReleaseExtras(**parse_json_object(metadata["release"]), moments=moments)
    except (KeyError, TypeError, ValueError):
        problem = "does not say what the release's checkpoint held"
        raise RunError(problem, where=_kept_file(run), fix="import the checkpoint again") from None


def _write_yaml(path: Path, mapping: dict[str, Any]) -> None:
    with atomic_file(path) as file:
        file.write(yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True).encode())


@contextmanager
def _new_directory(out: Path) -> Iterator[Path]:
    """Yield a directory to fill; it becomes `out` if the body succeeds.

    Raises RunError if `out` is not empty or cannot be written.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError("there is something already", where=out, fix="give another --out")
    with disk_errors(out), atomic_directory(out) as made:
        yield made


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the path to RunErrors of the body that name no place."""
    try:
        yield
    except RunError as error:
        raise RunError(error.what, where=error.where or path, fix=error.fix) from None


@contextmanager
def _torch_errors(out: Path) -> Iterator[None]:
    """Turn the RuntimeError of torch.save on a full disk into a RunError."""
    try:
        yield
    except RuntimeError as error:
        problem = f"cannot be written: {str(error).splitlines()[0]}"
        raise RunError(problem, where=out, fix="free some space or write elsewhere") from None


def _exchanged(
    path: Path,
    files: tuple[str, ...],
    model: AcousticModel,
    step: int,
    metrics: dict[str, float],
    notes: list[str],
) -> Exchanged:
    val_per = metrics.get("val_PER")
    val_loss = metrics.get("val_loss")
    return Exchanged(
        str(path),
        files,
        len(model.sessions),
        model.n_parameters,
        step,
        val_per,
        val_loss,
        tuple(notes),
    )
