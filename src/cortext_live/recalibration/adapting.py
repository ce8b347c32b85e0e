"""Adaptation to a recording day without labels: a run learns from what it decodes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from cortext.arguments import as_count, as_path
from cortext.config import to_mapping
from cortext.data.checks import Problem
from cortext.data.packed import PackedDataset
from cortext.errors import ConfigError, DataError
from cortext.evaluation.fit.confidence import FittedConfidence
from cortext.evaluation.fit.options import FittedOptions
from cortext.evaluation.settings import Options
from cortext.files import atomic_directory, atomic_write, check_writable, disk_errors
from cortext.models import AcousticModel, load_model, save_model
from cortext.training.config import TrainConfig
from cortext.training.progress import reading_bar
from cortext.training.summary import write_summary
from cortext_live.adapt import check_new, run_config, write_adaptation
from cortext_live.adapt_trials import opened, session_to_adapt_to
from cortext_live.recalibration.labels import labelling_search
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.old_sentences import old_sentences
from cortext_live.recalibration.online import (
    DecodedTrial,
    Unlabelled,
    follow,
    in_order,
    unfit_places,
)
from cortext_live.recalibration.settings import LearningOptions, method_settings


@dataclass(frozen=True)
class UnlabelledSummary:
    """The result of an adaptation without labels; `adaptation.json` holds it.

    There are no error rates: they would need labels.
    """

    run: str
    source: str
    """The run that was adapted."""
    session: str
    """The day that was adapted to."""
    began_as: str
    """The known day whose layer the day began with; the day itself where the run knew it."""
    method: str
    """Name of the method."""
    settings: LearningOptions
    """Settings of the method."""
    language_model: str
    """Directory of the language model that decoded the sentences."""
    decoder_options: str
    """Decoder options of the search, and where they come from."""
    heard: tuple[str, ...]
    """Splits that were decoded."""
    n_trials: int
    """Number of trials that were decoded or corrected."""
    n_learnt: int
    """Number of them that the model learnt from."""
    n_corrected: int
    """Number of trials whose label was used instead of the decoded sentence."""
    n_old_trials: int
    """Number of labelled trials of known days that were kept for replay."""
    steps: int
    """Steps of the optimiser."""
    confidence: float | None
    """Mean confidence of the decoded sentences; None if none was decoded."""
    skipped: tuple[Problem, ...]
    """Trials and files that were left out as bad."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the summary as plain values."""
        return asdict(self)

    def __str__(self) -> str:
        decoded = "decoded" if not self.n_corrected else f"decoded or {self.n_corrected} corrected"
        return (
            f"{self.run}: {self.session}: {self.steps} steps by {self.method} from"
            f" {self.n_learnt} of {self.n_trials} {decoded} sentences in {self.seconds:.0f} s;"
            f" began with the layer of {self.began_as}"
        )


def adapt_unlabelled(
    run: str | Path,
    data: str | Path | PackedDataset,
    out: str | Path,
    method: str,
    lm: str | Path,
    *,
    session: str | None = None,
    trials: int | None = None,
    learn_from: Sequence[str] = ("train",),
    corrections: bool = False,
    old_data: str | Path | PackedDataset | None = None,
    old_trials: int = 200,
    overrides: Iterable[str] = (),
    options: Options = None,
    skip_bad: bool = False,
    progress: bool = True,
    seed: int = 0,
) -> UnlabelledSummary:
    """Decode a day in the order of recording, learn from it, and write a run that knows the day.

    Each trial is decoded before anything is learnt from it. An adaptation that fails leaves nothing
    in `out`.

    Args:
        run: The run directory to start from; it is not changed.
        data: Packed directory or session files with the day. Labels are not needed and not used.
        out: The new run directory.
        method: A key of `METHODS`.
        lm: Language-model directory.
        session: The day; it must be given if the data have several new days, or several days that
            are all known.
        trials: Number of the day's trials to use, in the order of recording; None for all.
        learn_from: Splits to decode and learn from.
        corrections: Learn from the labels that the data have: they are corrections.
        old_data: Labelled recordings of known days to replay; None for none.
        old_trials: Number of old trials to keep, evenly spread over the known days; at most half of
            the sentences that the method keeps.
        overrides: `key=value` changes of the method's settings.
        options: Decoder options; those fitted to the run by default.
        skip_bad: Leave out trials that cannot be read, as in `pack`.
        progress: Draw bars on stderr if it is a terminal.
        seed: Seed of noise, dropout and replay.

    Raises:
        CortextError: For an unknown method or setting, and for data, language models and weights
            that do not fit.
    """
    started = time.perf_counter()
    out, run, lm = as_path(out, "out"), as_path(run, "run"), as_path(lm, "lm")
    settings = method_settings(method, overrides)
    _check_arguments(out, method, settings, trials, old_data, old_trials)
    source = load_model(run)
    config = run_config(run, source)
    decoder, chosen = labelling_search(run, lm, options)
    decoder.lm.require(source.inventory, source.language, theirs="the run")
    day, name, skipped = _day(source, config, data, session, trials, learn_from, skip_bad, progress)
    learner = Learner(source, config, settings, seed=seed)
    old = []
    if old_data is not None:
        most = min(old_trials, settings.remembered // 2)
        # Without the day itself: its labels would make the result one of learning with labels.
        days = [each for each in source.sessions if each != name]
        old = old_sentences(
            source, config, old_data, days, most, skip_bad=skip_bad, progress=progress
        )
    learner.remember(old)
    way = Unlabelled(learner, decoder, corrected=float(corrections), seed=seed)
    check_writable(out)  # now, not after the learning
    with reading_bar(progress, "learning") as bar:
        follow(way, day, day.splits[0], day.splits, bar)
    confidences = [each.confidence for each in way.trials if each.confidence is not None]
    learnt = [each.learnt for each in way.trials if each.learnt is not None and each.learnt.steps]
    summary = UnlabelledSummary(
        run=str(out),
        source=str(run),
        session=name,
        began_as=name if name in source.sessions else source.sessions[-1],
        method=method,
        settings=settings,
        language_model=str(lm),
        decoder_options=chosen.note,
        heard=day.splits,
        n_trials=len(way.trials),
        n_learnt=len(learnt),
        n_corrected=len(way.trials) - len(confidences),
        n_old_trials=len(old),
        steps=learner.n_steps,
        confidence=sum(confidences) / len(confidences) if confidences else None,
        skipped=skipped,
        seconds=round(time.perf_counter() - started, 2),
    )
    with disk_errors(out), atomic_directory(out) as folder:
        _write(folder, learner.model, config, summary, _log(day, way.trials))
        FittedOptions.take_over(run, folder)
        FittedConfidence.take_over(run, folder)
    return summary


def _check_arguments(
    out: Path,
    method: str,
    settings: LearningOptions,
    trials: int | None,
    old_data: Any,
    old_trials: int,
) -> None:
    check_new(out)
    for name, count in (("trials", trials), ("old_trials", old_trials)):
        if count is not None and as_count(count, name) < 1:
            raise ConfigError(f"{name} is {count}; it must be at least 1")
    if old_data is not None and not settings.replayed:
        problem = f"old trials are given, and {method} replays none"
        raise ConfigError(problem, fix="take replay as the method, or leave out --old-data")


def _day(
    model: AcousticModel,
    config: TrainConfig,
    data: str | Path | PackedDataset,
    wanted: str | None,
    trials: int | None,
    splits: Sequence[str],
    skip_bad: bool,
    shown: bool,
) -> tuple[PackedDataset, str, tuple[Problem, ...]]:
    """Return the day's first trials, its name, and the trials that were left out as bad."""
    with reading_bar(shown) as bar:
        every = opened(data, model, splits, skip_bad, bar, shown)
    every = every.select(bad_trials=config.dataset.bad_trials_dict)
    days = {day for name in splits for day in every.split(name).day_N.tolist()}
    recorded = [every.sessions[day] for day in sorted(days)]
    trials_named = f"trials of session {{}} in {' or '.join(splits)}"
    session = session_to_adapt_to(model, recorded, wanted, every.path, trials_named)
    day = every.showing({name: every.split(name).select(sessions=[session]) for name in splits})
    unfit = unfit_places(model, day, splits)
    if unfit and not skip_bad:
        raise next(iter(unfit.values())).error()
    # Over all splits in the order of recording: the first trials of the day are not those of one.
    places = [place for place in in_order(day, splits) if place not in unfit]
    count = len(places) if trials is None else trials
    if not 0 < count <= len(places):
        problem = f"session {session} has {len(places)} trials that can be read"
        raise DataError(
            problem, where=every.path, fix="record more, or ask for fewer with --trials"
        )
    chosen = {
        name: np.array([place.index for place in places[:count] if place.split == name], np.int64)
        for name in splits
    }
    chosen_splits = {name: day.split(name).take(rows) for name, rows in chosen.items() if len(rows)}
    return day.showing(chosen_splits), session, (*every.bad_trials, *unfit.values())


def _log(day: PackedDataset, trials: Sequence[DecodedTrial]) -> bytes:
    """Return the lines of `metrics.jsonl`: a trial each, without decoded texts."""
    lines = []
    step = 0
    for each in trials:
        split = day.split(each.place.split)
        line: dict[str, Any] = {
            "split": split.name,
            "block": int(split.block_N[each.place.index]),
            "trial": int(split.trial_N[each.place.index]),
            "confidence": each.confidence,
            "steps": 0 if each.learnt is None else each.learnt.steps,
        }
        step += line["steps"]
        line["step"] = step
        if each.learnt is not None and math.isfinite(each.learnt.loss):
            line["train_loss"] = each.learnt.loss
        lines.append(json.dumps(line))
    return "".join(f"{line}\n" for line in lines).encode()


def _write(
    folder: Path, model: AcousticModel, config: TrainConfig, summary: UnlabelledSummary, log: bytes
) -> None:
    """Write the files of a run that other commands read."""
    text = yaml.safe_dump(to_mapping(config), sort_keys=False, allow_unicode=True)
    atomic_write(folder / "config.yaml", text.encode())
    atomic_write(folder / "metrics.jsonl", log)
    save_model(model, folder)
    write_summary(folder / "summary.json", summary.to_json(), config)
    write_adaptation(folder, summary.to_json())
