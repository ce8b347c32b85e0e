"""From packed trials to sentences: the model, then the search. `evaluate` and `decode` share this.

Shapes: B trials, T bins, C features, P patches, V tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cortext.arguments import as_path, check_function, check_type
from cortext.data import Dataset, PackedDataset, PackedSplit, open_packed
from cortext.data.checks import SKIP_HINT, Problem
from cortext.data.conventions import RELEASE_CONVENTIONS, Conventions
from cortext.data.dataset import Description
from cortext.data.packed import data_path
from cortext.decoding import DecoderOptions
from cortext.decoding.decoder import notes_of, part_of
from cortext.decoding.log_probs import greedy, log_softmax
from cortext.decoding.ngram import LanguageModel
from cortext.errors import DataError, nearest
from cortext.evaluation.decoder_options import ChosenOptions
from cortext.evaluation.fit.confidence import ChosenConfidence
from cortext.evaluation.fit.options import TrialName
from cortext.evaluation.logits import logits_of
from cortext.evaluation.scores import TrialResult
from cortext.evaluation.settings import SearchSettings
from cortext.evaluation.vocabularies import Vocabulary
from cortext.evaluation.word_search import WordSearch, check_search, stage
from cortext.models import AcousticModel, load_model
from cortext.models.participants import run_for
from cortext.processes import Progress
from cortext.text.lexicon import Lexicon
from cortext.training.participants.recordings import open_for

Data = Dataset | PackedDataset | str | Path
"""A directory of session files or a packed one, or either of them open."""


@dataclass(frozen=True, kw_only=True)
class Results:
    """Trials with their logits and sentences, whether a model or a release made them.

    Attributes:
        engine: What made the sentences: `native` (the word search) or the name of what did.
        lm: Language model of the search; None without a search of ours.
        trials: In the order of sessions and trials.
        days: Days from implantation by session, where they are known.
        skipped: Why trials were left out, by number in the split; a file that cannot be read has a
            negative number.
        options: Options of the search for trials that no fit has seen, and where they come from.
        cross_fitted: Options for trials that the fit has seen, by the trial's number.
        seconds: What each stage took.
        llm: Description of the large language model; None without one.
        confidence: What the confidences of words are; None without a search.
        limited: Vocabularies that the sentences of some trials are made of.
        conventions: Tokens, language and length of a bin of the trials.
    """

    split: str
    engine: str
    lm: LanguageModel | None = None
    trials: tuple[TrialResult, ...]
    days: dict[str, int] = field(default_factory=dict)
    skipped: dict[int, Problem] = field(default_factory=dict)
    options: ChosenOptions | None = None
    cross_fitted: dict[int, DecoderOptions] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    llm: dict[str, Any] | None = None
    confidence: ChosenConfidence | None = None
    limited: tuple[Vocabulary, ...] = ()
    conventions: Conventions = RELEASE_CONVENTIONS

    @property
    def vocabulary(self) -> Lexicon | None:
        """Words that the search can write; None where it can spell any, and without a search."""
        return None if self.lm is None or self.lm.is_open else self.lm.lexicon

    @property
    def degraded(self) -> list[str]:
        """Missing parts of the sentences of each trial that lacks something asked for."""
        return [
            trial.nbest.degraded for trial in self.trials if trial.nbest and trial.nbest.degraded
        ]

    @property
    def notes(self) -> list[str]:
        """Lines about the language model, and sentences that lack something asked for."""
        lists = {trial.id: trial.nbest for trial in self.trials if trial.nbest}
        said = (self.llm or {}).get("notes", [])
        return notes_of([*(() if self.lm is None else self.lm.notes), *said], lists)


@dataclass(frozen=True, kw_only=True)
class Recognised(Results):
    """The trials of a split that a model of ours has recognised.

    Attributes:
        indices: Position of each trial in `data.split(split)`.
    """

    data: PackedDataset
    model: AcousticModel
    indices: tuple[int, ...]


def recognise(
    run: str | Path,
    data: Data,
    split: str,
    search: SearchSettings | None = None,
    *,
    fit: bool = False,
    device: str = "cpu",
    skip_bad: bool = False,
    description: str | Path | None = None,
    logits: Mapping[int, np.ndarray] | None = None,
    progress: Progress | None = None,
) -> Recognised:
    """Run the model, and the word search where it has a language model, over a split.

    Args:
        run: Run directory of a trained model.
        data: Directory of session files, or a packed one.
        split: `train`, `val` or `test`.
        search: Settings of the word search; without them or their `lm` no words are searched for.
        fit: Fit decoder options to these trials first, and keep them in the run.
        device: Where the model runs.
        skip_bad: Leave bad trials out and report them.
        description: The release's table of blocks, for post-implant days and corpora.
        logits: float32 [P, V] by the trial's position in the split, where a model that keeps
            learning has made them; None lets the run's model make them.
        progress: Called with steps done and in all.

    Raises:
        CortextError: For all that `evaluate` refuses.
    """
    run = run_for(as_path(run, "run"), data)
    where = data_path(data)
    check_function(progress, "progress")
    check_type(fit, bool, "fit", "True or False")
    search = search or SearchSettings()
    check_search(search, fit)
    seconds: dict[str, float] = {}
    with stage(seconds, "load"):
        words = None
        if search.lm is not None:
            words = WordSearch(run, search.lm, search, fit)
        blocks = Description.read(description) if description is not None else Description()
        model = load_model(run, device)
        cache = _packed_by_training(run, where)
        packed = open_for(model.conventions, data, cache, skip_bad=skip_bad)
        trials_of = packed.split(split)
        packed.verify(splits=[split])  # reads every byte: a damaged copy would only decode worse
        _check_fits(model, packed, where)
        if words is not None:
            words.require(model)
        ids, skipped = number_trials(trials_of, packed.bad_trials)
        knows_all = logits is not None
        chosen = _choose(model, trials_of, ids, skipped, skip_bad, where, knows_all=knows_all)
    parts = 1 if words is None else 1 + words.stages
    reports = [part_of(progress, part, parts) for part in range(parts)]
    with stage(seconds, "model"):
        if logits is None:
            logits = dict(zip(chosen, logits_of(model, trials_of, chosen, reports[0]), strict=True))
        trials = [_trial(trials_of, i, ids[i], logits[i], model, blocks) for i in chosen]
    if words is not None:
        log_probs = [log_softmax(trial.logits_PV) for trial in trials]
        names = [TrialName.of(trials_of, i) for i in chosen]
        if fit:
            with stage(seconds, "fit"):
                words.fit(log_probs, names, model.inventory, (str(where), split), reports[1])
                words.fit_confidence(model, trials_of, chosen, str(where), reports[2])
        found = words.sentences(log_probs, names, model.inventory, seconds, reports[1 + 2 * fit :])
        # The search counts frames, and gives each one 80 ms.
        timed = [nbest.timed(model.frame_ms) for nbest in found]
        trials = [replace(trial, nbest=nbest) for trial, nbest in zip(trials, timed, strict=True)]
    return Recognised(
        data=packed,
        split=split,
        model=model,
        engine="native",
        trials=tuple(trials),
        days=packed.post_implant_day,
        indices=tuple(chosen),
        skipped=skipped,
        lm=None if words is None else words.lm,
        options=None if words is None else words.options,
        confidence=None if words is None else words.confidence,
        cross_fitted={
            trials[number].id: options
            for number, options in (words.cross_fitted.items() if words else ())
        },
        seconds=seconds,
        llm=None if words is None else words.about_llm,
        conventions=packed.conventions,
    )


def _packed_by_training(run: Path, data: Path) -> Path | None:
    """Return the packed copy of these session files in the run directory; None for none."""
    cache = run / "packed"
    try:
        packed = open_packed(cache)
    except DataError:
        return None
    return cache if packed.source == data.resolve() else None


def number_trials(
    split: PackedSplit, problems: Sequence[Problem]
) -> tuple[list[int], dict[int, Problem]]:
    """Number the trials as the competition does, those that packing left out included.

    Numbers count over sessions in order and trials in file order, bad trials included, so that a
    bad trial does not shift the rows of `predictions.csv` after it. A file that cannot be read at
    all has no numbers: it gets -1, -2 ...
    """
    bad: dict[str, dict[int, Problem]] = {}
    skipped: dict[int, Problem] = {}
    for problem in problems:
        file = Path(problem.file)
        if file.name != f"data_{split.name}.hdf5":
            continue
        if problem.trial is None:
            skipped[-1 - len(skipped)] = problem
        else:
            bad.setdefault(file.parent.name, {})[int(problem.trial.rpartition("_")[2])] = problem
    ids = [0] * len(split)
    number = 0
    for day, session in enumerate(split.sessions):
        left = bad.get(session, {})
        rows = np.flatnonzero(split.day_N == day)
        waiting = iter(rows.tolist())
        # Packing kept the file's order: the trials that are left fill the places between bad ones.
        for position in range(len(rows) + len(left)):
            if position in left:
                skipped[number] = left[position]
            elif (row := next(waiting, None)) is not None:
                ids[row] = number
            number += 1
    return ids, skipped


def _check_fits(model: AcousticModel, data: PackedDataset, where: Path) -> None:
    if data.n_features != model.n_features:
        found = f"{data.n_features} features found, the model needs {model.n_features}"
        raise DataError(found, where=where, fix="give the data the run was trained for")
    # By name, not by number: labels and decoded tokens are compared as symbols, so the data may
    # have them in another order.
    data.conventions.require(
        model.conventions, mine="the data", theirs="the run", where=where, by_number=False
    )


def _choose(
    model: AcousticModel,
    split: PackedSplit,
    ids: Sequence[int],
    skipped: dict[int, Problem],
    skip_bad: bool,
    where: Path,
    *,
    knows_all: bool,
) -> list[int]:
    """Return the positions of the trials that the model can read, in the order of their numbers.

    The others are added to `skipped`, or are an error. With `knows_all` no day is unknown.
    """
    chosen = []
    n_patches_N = model.n_patches(split.n_bins_N)
    for i in range(len(split)):
        problem = unfit_trial(model, split, i, int(n_patches_N[i]), where, knows_all=knows_all)
        if problem is None:
            chosen.append(i)
        elif skip_bad:
            skipped[ids[i]] = problem
        else:
            raise problem.error()
    if not chosen:
        first = f"; the first: {next(iter(skipped.values()))}" if skipped else ""
        raise DataError(f"no trial of split {split.name!r} can be used{first}", where=where)
    return sorted(chosen, key=lambda i: ids[i])


def unfit_trial(
    model: AcousticModel,
    split: PackedSplit,
    i: int,
    n_patches: int,
    where: Path,
    *,
    knows_all: bool,
) -> Problem | None:
    """Return why the model cannot read a trial: an unknown day, or not one frame.

    Args:
        model: The model.
        split: Split of the trial.
        i: Its position there.
        n_patches: Frames that the model gives for it.
        where: The data, for the message.
        knows_all: True where the model gets a layer for every day.
    """
    session = split.session(i)
    name = f"{session}/block {split.block_N[i]}/trial {split.trial_N[i]}"
    if not knows_all and session not in model.sessions:
        found = f"session {session!r} is unknown to the run; {nearest(session, model.sessions)}"
        message = f"{found}; adapt the run to that day with cortext adapt, {SKIP_HINT}"
        return Problem(str(where), name, "session", message)
    if n_patches < 1:
        found = f"{split.n_bins_N[i]} bins are too few for one frame of this model"
        return Problem(
            str(where), name, "n_time_steps", f"{found}; record longer trials, {SKIP_HINT}"
        )
    return None


def _trial(
    split: PackedSplit,
    i: int,
    number: int,
    logits_PV: np.ndarray,
    model: AcousticModel,
    blocks: Description,
) -> TrialResult:
    labels = split.labels(i)
    session = split.session(i)
    block = int(split.block_N[i])
    return TrialResult(
        id=number,
        session=session,
        block=block,
        trial=int(split.trial_N[i]),
        n_bins=int(split.n_bins_N[i]),
        corpus=blocks.corpus(session, block) or split.corpora[i],
        sentence=split.sentence(i),
        phonemes=None if labels is None else tuple(split.conventions.inventory.names(labels)),
        greedy=tuple(model.inventory.names(greedy(log_softmax(logits_PV), model.inventory))),
        logits_PV=logits_PV,
        language=split.conventions.language,
    )


def in_order(
    trials: Sequence[TrialResult], skipped: Mapping[int, Problem]
) -> Iterator[tuple[int, TrialResult | None]]:
    """Yield numbers and trials of the split in order; None for a trial that was left out."""
    found: dict[int, TrialResult | None] = dict.fromkeys(
        number for number in skipped if number >= 0
    )
    found |= {trial.id: trial for trial in trials}
    yield from sorted(found.items())
