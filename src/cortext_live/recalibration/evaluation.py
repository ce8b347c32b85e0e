"""Evaluation of a method that keeps a model calibrated, beside a frozen model and daily labels."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cortext.arguments import as_path
from cortext.data.checks import Problem
from cortext.data.packed import PackedDataset
from cortext.decoding.decoder import part_of
from cortext.evaluation.recognise import Data, Recognised, recognise
from cortext.evaluation.report import Compared
from cortext.evaluation.run import config_of, evaluation_directory, searched_origin
from cortext.evaluation.scores import Metrics, Rates, TrialResult, group_rates, rates
from cortext.evaluation.settings import Options, SearchSettings
from cortext.files import atomic_write
from cortext.models import load_model
from cortext.models.participants import run_for
from cortext.processes import Progress
from cortext.tables import json_text
from cortext.text.metrics import EditCounts, edit_counts
from cortext.training.participants.recordings import open_for
from cortext_live.adapt import run_config
from cortext_live.recalibration.labels import labelling_search
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.online import (
    LABELLED_PER_DAY,
    DailyLabels,
    Frozen,
    Unlabelled,
    Way,
    follow,
    in_order,
    unfit_places,
)
from cortext_live.recalibration.replay import LabelledSentence, labelled_sentence
from cortext_live.recalibration.settings import LearningOptions, method_settings

FILE = "online.json"
FROZEN = "frozen"
DAILY = "daily labels"


@dataclass(frozen=True)
class OnlineMetrics:
    """Errors of a method beside those of a frozen model and of daily labels.

    The fields are the keys of `online.json`.

    Attributes:
        method: Name of the method.
        settings: How it learnt.
        judged: Split that errors are measured on.
        heard: Splits that were learnt from.
        left_out: First labelled trials of each day that are not in the rates, because the way with
            daily labels has learnt from them.
        skipped: Trials and files that were left out as bad, of all splits.
        overall: Rates by way.
        by_day: Rates by way and session.
        by_trial: The scored trials in the order of recording: `session`, `block`, `trial`,
            `n_words`, `n_phonemes`, and by way `text`, `word_edits` and `phoneme_edits`.
    """

    method: str
    settings: LearningOptions
    judged: str
    heard: tuple[str, ...]
    left_out: int
    skipped: tuple[Problem, ...]
    overall: dict[str, Rates]
    by_day: dict[str, dict[str, Rates]]
    by_trial: list[dict[str, Any]]

    def last_quarter(self, way: str) -> float | None:
        """Return the word error rate of a way over the last quarter of the days."""
        by_day = list(self.by_day[way].values())
        last = [rates.edits.get("word") for rates in by_day[-math.ceil(len(by_day) / 4) :]]
        counts = [EditCounts(**each) for each in last if each]
        n_words = sum(each.reference_length for each in counts)
        return sum(each.errors for each in counts) / n_words if n_words else None


def evaluate_online(
    run: str | Path,
    data: Data,
    split: str,
    lm: str | Path,
    out: str | Path,
    method: str,
    *,
    learn_from: Sequence[str] = (),
    corrected: float = 0.0,
    overrides: Iterable[str] = (),
    options: Options = None,
    threads: int | None = 1,
    skip_bad: bool = False,
    progress: Progress | None = None,
    seed: int = 0,
) -> tuple[Metrics, OnlineMetrics]:
    """Decode a split in the order of recording while the model learns, and write an evaluation.

    The evaluation directory is that of the learning model; `online.json` there compares it.

    Args:
        run: Run directory of a trained model; it is not changed.
        data: Directory of session files, or a packed one; or what `open_dataset` returned.
        split: Split that errors are measured on.
        lm: Language-model directory.
        out: Evaluation directory to write.
        method: A key of `METHODS`.
        learn_from: Splits that the model learns from; that split itself by default.
        corrected: Share of the sentences that a person corrects at once.
        overrides: `key=value` changes of the method's settings.
        options: Decoder options, as `evaluate` takes them.
        threads: Threads of the search; None for one a core.
        skip_bad: Leave bad trials out and report them. A trial without a label is not bad: it is
            learnt from and not scored.
        progress: Called with steps done and in all.
        seed: Seed of noise, replay, corrections and intervals.

    Raises:
        CortextError: For all that `evaluate` refuses, and an unknown method or setting.
    """
    settings = method_settings(method, overrides)
    learnt_from = tuple(learn_from) or (split,)
    with evaluation_directory(out) as write, tempfile.TemporaryDirectory() as scratch:
        run = Path(run_for(as_path(run, "run"), data))
        model = load_model(run)
        packed = open_for(model.conventions, data, skip_bad=skip_bad)
        splits = list(dict.fromkeys([split, *learnt_from]))
        packed.verify(splits=splits)  # a damaged file is named now, not after the decoding
        unfit = unfit_places(model, packed, splits)
        if unfit and not skip_bad:
            raise next(iter(unfit.values())).error()
        search = SearchSettings(lm=lm, options=options, threads=threads)
        ways = _ways(run, packed, search, settings, method, corrected, seed, Path(scratch))
        recognised = {}
        for number, (name, way) in enumerate(ways.items()):
            bar = part_of(progress, number, len(ways))
            logits = follow(way, packed, split, learnt_from, bar, unfit=unfit)
            recognised[name] = recognise(
                run, packed, split, search, skip_bad=skip_bad, logits=logits
            )
        learnt = recognised[method]
        origin = searched_origin(run, data, lm, learnt, "cpu", seed) | {"config": config_of(run)}
        skipped = (*packed.bad_trials, *unfit.values())
        online = _compared(recognised, method, settings, split, learnt_from, skipped)
        metrics = write(learnt, run, origin, compared=_for_report(online))
        atomic_write(as_path(out, "out") / FILE, json_text(asdict(online)).encode())
    return metrics, online


def _ways(
    run: Path,
    data: PackedDataset,
    search: SearchSettings,
    settings: LearningOptions,
    method: str,
    corrected: float,
    seed: int,
    scratch: Path,
) -> dict[str, Way]:
    model = load_model(run)
    learner = Learner(model, run_config(run, model), settings, seed=seed)
    learner.remember(_known_sentences(model.sessions, data, settings.remembered // 2))
    assert search.lm is not None
    decoder, _ = labelling_search(run, search.lm, search.options)
    return {
        FROZEN: Frozen(model),
        DAILY: DailyLabels(run, data, scratch),
        method: Unlabelled(learner, decoder, corrected=corrected, seed=seed),
    }


def _known_sentences(
    sessions: Sequence[str], data: PackedDataset, most: int
) -> list[LabelledSentence]:
    """Return labelled training trials of days that the model knows, evenly spread."""
    if "train" not in data.splits:
        return []
    split = data.split("train")
    labelled = {
        i: labels_U
        for i in range(len(split))
        if split.session(i) in sessions and (labels_U := split.labels(i)) is not None
    }
    # Over all days, not the latest alone: the model must not forget how to read the earlier ones.
    every = np.linspace(0, len(labelled) - 1, min(most, len(labelled))).astype(np.int64)
    known = list(labelled)
    return [labelled_sentence(split, known[i], labelled[known[i]]) for i in every]


def _compared(
    recognised: dict[str, Recognised],
    method: str,
    settings: LearningOptions,
    scored: str,
    learnt_from: tuple[str, ...],
    skipped: tuple[Problem, ...],
) -> OnlineMetrics:
    # One way has learnt from the labels of these, so they are left out of the rates of all ways.
    left_out = LABELLED_PER_DAY if scored in learnt_from else 0
    recorded = in_order(recognised[method].data, [scored])
    by_index = {
        name: dict(zip(each.indices, each.trials, strict=True)) for name, each in recognised.items()
    }
    # A bad trial is in the recordings, and in no result.
    order = [place.index for place in recorded if place.index in by_index[method]]
    labelled: Counter[str] = Counter()
    rows, kept = [], []
    for index in order:
        trials = {name: each[index] for name, each in by_index.items()}
        trial = trials[method]
        labelled[trial.session] += trial.phonemes is not None
        rows.append(_row(trials, trial))
        if labelled[trial.session] > left_out:
            kept.append(index)
    rated = {name: [each[i] for i in kept] for name, each in by_index.items()}
    return OnlineMetrics(
        method=method,
        settings=settings,
        judged=scored,
        heard=learnt_from,
        left_out=left_out,
        skipped=skipped,
        overall={name: rates(each) for name, each in rated.items()},
        by_day={
            name: group_rates(each, [trial.session for trial in each])
            for name, each in rated.items()
        },
        by_trial=rows,
    )


def _for_report(online: OnlineMetrics) -> Compared:
    """Return the comparison for the report: first the method, then what it stands between."""
    names = (online.method, DAILY, FROZEN)
    splits = " and ".join(online.heard)
    note = (
        f"{online.method}: learnt from the sentences that it decoded ({splits})."
        f" {DAILY}: learnt from the first {LABELLED_PER_DAY} labelled trials of each day."
        f" {FROZEN}: learnt nothing."
    )
    if online.left_out:
        note += f" The first {online.left_out} labelled trials of each day are not in these rates."
    return Compared(
        {name: online.overall[name] for name in names},
        {name: online.by_day[name] for name in names},
        note,
    )


def _row(trials: dict[str, TrialResult], trial: TrialResult) -> dict[str, Any]:
    """Return a scored trial with its edits by way."""
    words = None if trial.reference is None else trial.reference.split()
    row: dict[str, Any] = {
        "session": trial.session,
        "block": trial.block,
        "trial": trial.trial,
        "n_words": None if words is None else len(words),
        "n_phonemes": None if trial.phonemes is None else len(trial.phonemes),
    }
    for name, each in trials.items():
        edits: dict[str, Any] = {"text": each.text}
        if words is not None:
            edits["word_edits"] = edit_counts(words, (each.text or "").split()).errors
        if trial.phonemes is not None:
            edits["phoneme_edits"] = edit_counts(trial.phonemes, each.greedy).errors
        row[name] = edits
    return row
