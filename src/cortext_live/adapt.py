"""Adaptation to a recording day: its day layer is fitted to its first trials.

A model without day layers learns with the part that its class names in `adapted`, for all days.

The new layer starts as a copy of a known day's layer: the one that gives the trials the lowest CTC
loss. By default only the new layer learns, and everything else stays the same to the bit. Otherwise
the whole model learns with small steps; every batch then has old trials, where some are given.

A day that the model knows may be adapted to again, with more trials. Its own layer is then one of
the layers compared, and it is the layer that learns.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from cortext.arguments import as_count, as_path
from cortext.data.checks import Problem
from cortext.data.packed import PackedDataset
from cortext.data.packed_dataset import joined
from cortext.errors import ConfigError, Interrupted, RunError
from cortext.files import atomic_write
from cortext.models import AcousticModel, build_model, load_model
from cortext.provenance import provenance
from cortext.training.batches import Batches
from cortext.training.config import TrainConfig, read_run_config
from cortext.training.loss import ctc_loss
from cortext.training.progress import reading_bar
from cortext.training.setup import with_labels
from cortext.training.trainer import Trainer
from cortext_live.adapt_trials import (
    DayTrials,
    choose_day,
    opened,
    trials_of_old_days,
)

TRIALS_PER_DAY = 16
"""Number of trials of a day in a batch."""
COMPARED_TRIALS = 20
"""Number of trials, evenly spread over the new day, that choose the nearest known day."""


@dataclass(frozen=True)
class AdaptSummary:
    """The result of an adaptation; `adaptation.json` holds it.

    Rates are fractions, losses CTC losses of a trial.
    """

    run: str
    source: str
    """The run that was adapted."""
    session: str
    """The day that was adapted to."""
    nearest: str | None
    """The known day whose layer the new layer began as a copy of; None for no day layers.

    The nearest day of a day that the model knew may be that day itself.
    """
    loss_by_session: dict[str, float]
    """Mean loss of the day's compared training trials under each known day's layer."""
    whole_model: bool
    n_trials: int
    """Number of the day's trials that the model learnt from."""
    n_old_trials: int
    n_val_trials: int
    validated_on: Literal["the day's validation split", "trials held out of training"]
    val_per_before: float
    """PER before learning, with a copy of the nearest day's layer."""
    val_per: float
    val_loss_before: float
    val_loss: float
    batches: int
    best_step: int
    """Number of batches after which the kept weights were taken.

    0 if learning did not lower the validation loss.
    """
    skipped: tuple[Problem, ...]
    """Trials and files that were left out as bad."""
    seconds: float
    n_unlabelled: int = 0
    """Number of the day's training trials that were left out because they have no label."""
    errors: str = "PER"
    """Name of `val_per`, as the inventory gives it."""

    def to_json(self) -> dict[str, Any]:
        """Return the summary as plain values, without fields that equal the release's."""
        mapping = asdict(self)
        if self.errors == "PER":
            del mapping["errors"]
        return mapping

    def __str__(self) -> str:
        part = "its day layer" if self.nearest else "the input layers of all days"
        learnt = "the whole model" if self.whole_model else part
        old = f" and {self.n_old_trials} old ones" if self.n_old_trials else ""
        before = 100 * self.val_per_before
        after = 100 * self.val_per
        began = f"with the layer of {self.nearest}" if self.nearest else "before"
        rates = f"{self.errors} {before:.1f} % {began}, {after:.1f} % now"
        what = (
            f"{self.session}: {learnt} learnt from {self.n_trials} trials{old} in"
            f" {self.seconds:.0f} s"
        )
        return f"{self.run}: {what}; {rates} ({self.validated_on}: {self.n_val_trials})"


def adapt(
    run: str | Path,
    data: str | Path | PackedDataset,
    out: str | Path,
    *,
    trials: int | None = None,
    session: str | None = None,
    whole_model: bool = False,
    old_data: str | Path | PackedDataset | None = None,
    old_trials: int = 200,
    batches: int = 60,
    device: str = "cpu",
    overrides: Iterable[str] = (),
    skip_bad: bool = False,
    progress: bool = True,
    then: Callable[[Trainer], None] = lambda trainer: None,
) -> AdaptSummary:
    """Fit a trained model to a new day, and write a run that knows the old days and the new one.

    An adaptation that fails leaves nothing in `out`.

    Args:
        run: The run directory to start from.
        data: Packed directory or session files with training trials of the new day. The day's
            validation split is validated on. Without one, a share of the training trials
            (`dataset.test_percentage`) is held out for validation.
        out: The new run directory.
        trials: Number of the day's training trials to use, in the order of recording; None for
            all.
        session: The day to adapt to. It must be given if the data have several new days, or
            several days that are all known.
        whole_model: Let all parameters learn, not only the new day's layer. Of a model without
            day layers, the part that its class names in `adapted` learns otherwise.
        old_data: Recordings of known days, perhaps in the same directory; None for none. Every
            batch then has trials of one known day, too. Needs `whole_model`.
        old_trials: Number of old trials to use, evenly spread over the known days.
        batches: Number of batches to train on. A batch has 16 trials of the new day, and as many
            of a known day where there are old trials.
        device: `cpu`, `cuda` or `cuda:N`.
        overrides: `key=value` changes of the training configuration.
        skip_bad: Leave out trials that cannot be read, as in `pack`.
        progress: Draw bars on stderr if it is a terminal.
        then: Called at the end, when everything is written; what it raises undoes nothing.

    Returns:
        The result of the adaptation, as written to `adaptation.json` in `out`.

    Raises:
        ConfigError, DataError, RunError: For settings, trials and weights that do not fit.
    """
    started = time.perf_counter()
    out, run = as_path(out, "out"), as_path(run, "run")
    _check_arguments(out, trials, whole_model, old_data, old_trials, batches)
    source = load_model(run)
    config = run_config(Path(run), source)
    with reading_bar(progress) as bar:
        new = opened(data, source, ("train", "val"), skip_bad, bar, progress)
        old = None
        if old_data is not None:
            old = opened(old_data, source, ("train",), skip_bad, bar, progress)
    day = choose_day(source, new, session, trials, config)
    model = source if day.session in source.sessions else with_day(source, day.session)
    settings = _settings(config, model, day, old is not None, whole_model, batches)
    learnt_from = day.data
    if old is not None:
        known = [name for name in source.sessions if name != day.session]
        of_old_days = trials_of_old_days(with_labels(old), known, old_trials, config)
        learnt_from = joined([day.data, of_old_days])
    with Trainer(
        settings,
        learnt_from,
        out,
        model=model,
        device=device,
        overrides=overrides,
        progress=progress,
        check=False,  # the model has been trained before
    ) as trainer:
        with _emptied_on_failure(out):
            summary = _adapted(trainer, source, day, str(run), whole_model, started, progress)
            write_adaptation(out, summary.to_json())
        then(trainer)
    return summary


def write_adaptation(run: Path, summary: Mapping[str, Any]) -> None:
    """Write `adaptation.json` of a run: the summary of its adaptation, and the provenance."""
    text = json.dumps({**summary, "provenance": provenance()}, indent=2, default=str)
    atomic_write(run / "adaptation.json", text.encode())


@contextmanager
def _emptied_on_failure(out: Path) -> Iterator[None]:
    """Remove everything in `out` if the body fails.

    An adaptation takes too little time for resuming to be worth it.
    """
    try:
        yield
    except BaseException as error:
        for path in out.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if isinstance(error, Interrupted):
            raise RunError("interrupted; nothing is kept", where=out, fix="adapt again") from None
        raise


def check_new(out: Path) -> None:
    """Raise RunError unless a run directory to write is absent or empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError("exists already", where=out, fix="give another --out")


def _check_arguments(
    out: Path, trials: int | None, whole_model: bool, old_data: Any, old_trials: int, batches: int
) -> None:
    check_new(out)
    for name, count in (("trials", trials), ("old_trials", old_trials), ("batches", batches)):
        if count is not None:
            as_count(count, name)
    if (trials is not None and trials < 1) or old_trials < 1 or batches < 1:
        problem = f"trials is {trials}, old_trials {old_trials} and batches {batches}"
        raise ConfigError(f"{problem}; each must be at least 1")
    if old_data is not None and not whole_model:
        what = "old trials are learnt from only where the whole model learns"
        raise ConfigError(what, fix="give --whole-model too, or leave out --old-data")


def run_config(run: Path, model: AcousticModel) -> TrainConfig:
    """Return the run's training configuration, or the defaults if the run holds none.

    Architecture, smoothing and feature subset come from the model itself.
    """
    architecture = model.network.config
    config = read_run_config(run) if (run / "config.yaml").is_file() else TrainConfig()
    dataset = replace(
        config.dataset,
        data_transforms=replace(config.dataset.data_transforms, **asdict(model.smoothing)),
        feature_subset=model.feature_subset,
    )
    return replace(config, model=architecture, dataset=dataset)


def with_day(source: AcousticModel, session: str, like: str | None = None) -> AcousticModel:
    """Return a copy of a model that knows a day.

    Args:
        source: The model.
        session: The day; a copy of the model where it knows the day already.
        like: A day that the model knows, whose layer a new day begins with; None for fresh weights.
    """
    weights = source.network.state_dict()
    known = session in source.sessions
    sessions = source.sessions if known else (*source.sessions, session)
    network = build_model(
        source.network.config,
        n_features=source.n_used_features,
        n_days=len(sessions),
        n_classes=len(source.inventory),
    )
    for name, tensor in network.state_dict().items():
        grown = name.startswith("day_") and not known
        (tensor[:-1] if grown else tensor).copy_(weights[name])
        if grown and like is not None:
            tensor[-1].copy_(weights[name][source.sessions.index(like)])
    return AcousticModel(
        network,
        sessions=sessions,
        n_features=source.n_features,
        conventions=source.conventions,
        smoothing=source.smoothing,
        feature_subset=source.feature_subset,
    )


def _has_day_layers(model: AcousticModel) -> bool:
    return any(name.startswith("day_") for name, _ in model.network.named_parameters())


def learning_parts(model: AcousticModel) -> list[str]:
    """Return how the names of the parameters begin that learn where not all do.

    Raises ConfigError for a model without day layers whose class names no other part.
    """
    if _has_day_layers(model):
        return ["day_"]
    parts = list(getattr(model.network, "adapted", ()))
    if not parts:
        problem = (
            f"a model of kind {model.network.config.kind!r} without day layers has no part to adapt"
        )
        raise ConfigError(problem, fix="give --whole-model")
    return parts


def _settings(
    config: TrainConfig,
    model: AcousticModel,
    day: DayTrials,
    mixed: bool,
    whole_model: bool,
    batches: int,
) -> TrainConfig:
    """Return the run's configuration with the settings of an adaptation.

    Few trials overfit: the fewer there are, the smaller the learning rate. The numbers were chosen
    on simulated drift over two days to three weeks; see docs/measured/adapt.md.
    """
    number = model.sessions.index(day.session)
    lr_day = min(4e-3, 1e-4 * len(day.data.split("train")))
    lr = lr_day / 8
    warmup = batches // 10
    n_days = 2 if mixed else 1
    dataset = replace(
        config.dataset,
        batch_size=TRIALS_PER_DAY * n_days,
        days_per_batch=n_days,
        length_buckets=1,
        must_include_days=[number] if mixed else None,
        sessions=None,
        dataset_probability_val=[float(name == day.session) for name in model.sessions],
    )
    return replace(
        config,
        dataset=dataset,
        trainable=None if whole_model else learning_parts(model),
        num_training_batches=batches,
        lr_scheduler_type="cosine",
        lr_max=lr,
        lr_min=lr / 20,
        lr_decay_steps=batches,
        lr_warmup_steps=warmup,
        lr_max_day=lr_day,
        lr_min_day=lr_day / 20,
        lr_decay_steps_day=batches,
        lr_warmup_steps_day=warmup,
        # The published 0.1 suits long trainings: within a few dozen batches the weights would
        # hardly move.
        epsilon=1e-8,
        batches_per_train_log=max(1, batches // 6),
        batches_per_val_step=max(1, batches // 3),
        batches_per_save=0,
        best_metric="val_loss",  # finer than the PER of a few trials, which has steps of percents
        early_stopping=False,
        save_all_val_steps=False,
        save_final_model=False,
        save_val_logits=False,
    )


@torch.no_grad()
def _begin_as_nearest(trainer: Trainer, day: int, n_known: int, progress: bool) -> dict[str, float]:
    """Copy the layer of the known day with the lowest CTC loss to the new day.

    Returns:
        Mean loss of the compared trials, by known session.
    """
    model = trainer.model
    assert isinstance(model, AcousticModel)
    network = model.network
    sessions = model.sessions
    backend = trainer.backend
    split = trainer.train_split
    transforms = trainer.config.dataset.data_transforms
    new = np.flatnonzero(trainer.layer_of_day[split.day_N] == day)
    compared = new[np.linspace(0, len(new) - 1, min(len(new), COMPARED_TRIALS)).astype(np.int64)]
    batch = Batches(
        split,
        trainer.layer_of_day,
        transforms,
        backend.host,
        network.n_patches,
        clear_padding=model.pads_last_patch,
    ).batch(compared)
    losses = {}
    with reading_bar(progress, "comparing days") as bar:
        for known, session in enumerate(sessions[:n_known]):
            of_known = replace(batch, day_B=torch.full_like(batch.day_B, known))
            logits_BPV = backend.forward(of_known).logits
            losses_B = ctc_loss(logits_BPV, batch.n_patches_B, batch.labels_BU, batch.n_labels_B)
            losses[session] = float(losses_B.mean())
            bar(known + 1, n_known)
    best = min(range(n_known), key=list(losses.values()).__getitem__)
    for name, parameter in network.named_parameters():
        if name.startswith("day_"):
            parameter[day] = parameter[best]
    backend.load(backend.state())  # also takes over the weights changed above
    return losses


def _adapted(
    trainer: Trainer,
    source: AcousticModel,
    day: DayTrials,
    run: str,
    whole_model: bool,
    started: float,
    progress: bool,
) -> AdaptSummary:
    """Begin with the nearest day's layer, train to the end, and return the result."""
    number = trainer.model.sessions.index(day.session)
    losses = {}
    if _has_day_layers(source):
        losses = _begin_as_nearest(trainer, number, len(source.sessions), progress)
    before = trainer.validate()
    result = trainer.run()
    assert result is not None  # it has run to the end
    assert result.val_per is not None  # the task is CTC
    split = trainer.train_split
    n_trials = int((trainer.layer_of_day[split.day_N] == number).sum())
    own = trainer.validator.batches.split.name == "val"
    return AdaptSummary(
        run=result.run,
        source=run,
        session=day.session,
        nearest=min(losses, key=losses.__getitem__, default=None),
        loss_by_session=losses,
        whole_model=whole_model,
        n_trials=n_trials,
        n_old_trials=len(split) - n_trials,
        n_val_trials=result.n_val_trials,
        validated_on="the day's validation split" if own else "trials held out of training",
        val_per_before=before["val_per"],
        val_per=result.val_per,
        val_loss_before=before["val_loss"],
        val_loss=result.val_loss,
        batches=result.steps,
        best_step=result.best_step,
        skipped=result.skipped,
        seconds=round(time.perf_counter() - started, 2),
        n_unlabelled=day.n_unlabelled,
        errors=result.errors,
    )
