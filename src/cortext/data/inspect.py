"""Inspection of a data set: sessions, splits, trials, minutes, labels, values, and its problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cortext.data.checks import FLOAT16_MAX, LIMITS, Limits, Problem
from cortext.data.conventions import RELEASE_CONVENTIONS, Conventions, Features
from cortext.data.dataset import Dataset, open_session_files
from cortext.data.feature_survey import FeatureSurvey
from cortext.data.label_sentences import LabelSentences
from cortext.data.packed import PackedDataset, is_packed, open_packed
from cortext.data.trial import Session, Trial
from cortext.describe import percent
from cortext.errors import DataError, shown
from cortext.processes import Progress
from cortext.tables import json_text


@dataclass
class SplitReport:
    """One split of one session, or of all. Only good trials count, apart from `n_bad`."""

    session: str
    split: str
    date: str | None = None
    post_implant_day: int | None = None
    n_trials: int = 0
    n_bad: int = 0
    minutes: float = 0.0
    n_sentences: int = 0
    """Trials with a sentence."""
    n_phonemes: int = 0
    """Tokens in the labels, which may be characters."""
    corpora: dict[str, int] = field(default_factory=dict)
    """Trials by corpus."""
    shortest_bins: int | None = None
    longest_bins: int | None = None
    lowest: float | None = None
    """The smallest feature value."""
    highest: float | None = None


@dataclass
class DatasetReport:
    """Plain data; `str(report)` is a table for people, `to_json()` the same for programs."""

    path: str
    kind: str
    """`session files` or `packed`"""
    n_features: int | None
    rows: list[SplitReport]
    """One per session and split."""
    totals: list[SplitReport]
    """One per split."""
    n_distinct_sentences: int
    phonemes_missing: list[str]
    """Tokens that occur in no label, which may be characters."""
    problems: list[Problem]
    conventions: Conventions = RELEASE_CONVENTIONS
    labels_differ: float | None = None
    """Share of the labels' tokens that differ from the usual pronunciations of their sentences.

    None where no pronunciation is known, or no sentence.
    """
    feature_notes: list[str] = field(default_factory=list)
    """Unusual properties of the features (`FeatureSurvey`)."""

    def plain(self) -> dict[str, Any]:
        """Return the report as plain values, without conventions that are the release's."""
        conventions = self.conventions.to_json()
        values = asdict(replace(self, conventions=RELEASE_CONVENTIONS))
        del values["conventions"]
        if not self.feature_notes:
            del values["feature_notes"]
        return values | ({"conventions": conventions} if conventions else {})

    def to_json(self) -> str:
        """Return the report as a JSON object."""
        return json_text(self.plain(), indent=2)

    def __str__(self) -> str:
        tokens = f"{self.conventions.inventory.unit}s"
        lines = [
            f"{self.path}: {self.kind}, {self.n_features or 'an unknown number of'} features",
            *(f"{name}: {shown(fact)}" for name, fact in self.conventions.facts().items()),
            "",
        ]
        header = (
            "session",
            "split",
            "trials",
            "bad",
            "minutes",
            "sentences",
            tokens,
            "bins",
            "values",
            "corpora",
        )
        lines += _aligned([header, *map(_cells, [*self.rows, *self.totals])])
        labels = [f"distinct sentences: {self.n_distinct_sentences}"]
        if self.totals and any(row.n_phonemes for row in self.totals):
            labels.append(f"{tokens} that never occur: {' '.join(self.phonemes_missing) or 'none'}")
        if self.labels_differ is not None:
            share = percent(self.labels_differ)
            differ = f"{tokens} that differ from the sentences' usual pronunciations: {share}"
            labels.insert(1, differ)
        lines += ["", *labels, "", f"problems: {len(self.problems) or 'none'}"]
        lines += [f"  {problem}" for problem in self.problems]
        return "\n".join([*lines, *(f"note: {shown(note)}" for note in self.feature_notes)])


def inspect(
    path: str | Path,
    progress: Progress | None = None,
    *,
    limits: Limits = LIMITS,
    check_sentences: bool = True,
    too_short: Callable[[Trial, str], str | None] = lambda trial, split: None,
    with_range: bool = True,
) -> DatasetReport:
    """Read every trial of a directory of session files, or of a packed one, and report.

    Bad trials do not raise; they are listed in `problems`. So are files that number trials as
    another split does, sentences with letters that the data's language would lose, and labels that
    are none of their sentences (`cortext.data.label_sentences`).

    Args:
        path: The directory.
        progress: Called with trials done and in all.
        limits: The largest trial that is read from session files.
        check_sentences: List sentences that the language would damage, and labels that do not fit
            their sentences.
        too_short: Returns why a trial of a split is too short for a model, or None. Such trials
            are listed, and not left out.
        with_range: Note features whose range is not the expected one.

    Raises:
        DataError: Where it is neither of them, and for a damaged `cortext.json`.
    """
    path = Path(path)
    if is_packed(path):
        packed = open_packed(path)
        survey = _Survey(packed.conventions, check_sentences, too_short)
        total = sum(len(packed.split(name)) for name in packed.splits)
        trials = _packed_trials(packed, survey)
        if progress:  # checking counts as reading every trial once, looking at them as once more
            packed.verify(lambda done, all_: progress(done * total // all_, 2 * total))
            survey.take(trials, lambda done, _: progress(total + done, 2 * total), total)
        else:
            packed.verify()
            survey.take(trials, None, total)
        survey.problems.extend(packed.bad_trials)
        survey.known_notes = packed.notes
        return survey.report(path, "packed", packed.n_features)
    dataset = open_session_files(path, limits=limits)
    survey = _Survey(dataset.conventions, check_sentences, too_short)
    survey.with_range = with_range
    total = sum(dataset.n_trials(split) for split in dataset.splits)
    survey.take(_session_trials(dataset, survey), progress, total)
    try:
        n_features: int | None = dataset.n_features
    except DataError:
        n_features = None
    return survey.report(path, "session files", n_features)


def _packed_trials(
    packed: PackedDataset, survey: _Survey
) -> Iterator[tuple[SplitReport, Trial | None]]:
    bad = Counter(
        (Path(problem.file).parent.name, Path(problem.file).stem) for problem in packed.bad_trials
    )
    for name in packed.splits:
        split = packed.split(name)
        rows = {}
        for day, session in enumerate(packed.sessions):
            rows[day] = _row(Session(session, {}), name, packed.post_implant_day)
            rows[day].n_bad = bad[session, f"data_{name}"]
        for i in range(len(split)):
            trial = split.trial(i)
            survey.check(trial, split.path, name)
            yield rows[int(split.day_N[i])], trial


def _session_trials(
    dataset: Dataset, survey: _Survey
) -> Iterator[tuple[SplitReport, Trial | None]]:
    days = dataset.post_implant_days()
    # Packing keeps features in float16; of raw ones it keeps the z-scores.
    max_abs = None if dataset.conventions.features == "raw" else FLOAT16_MAX
    for session in dataset.sessions:
        seen: dict[tuple[int, int], str] = {}
        for split in session.files:
            row = _row(session, split, days)
            before = len(survey.problems)
            twice = []
            yield row, None
            for trial in dataset.trials(
                split, [session.name], on_bad=survey.problems.append, max_abs=max_abs
            ):
                first = seen.setdefault((trial.block, trial.trial), split)
                if first != split:
                    twice.append(f"{trial.name} in {first}")
                survey.check(trial, session.files[split], split)
                yield row, trial
            row.n_bad = len(survey.problems) - before
            if twice:
                message = (
                    f"{len(twice)} trials have numbers of another split's (the first: {twice[0]});"
                    " check the splits"
                )
                survey.notes.append(Problem(str(session.files[split]), None, "trial_num", message))


def _row(session: Session, split: str, days: dict[str, int]) -> SplitReport:
    date = str(session.date) if session.date else None
    return SplitReport(session.name, split, date, days.get(session.name))


class _Survey:
    """Counts, while the trials pass by once."""

    def __init__(
        self,
        conventions: Conventions,
        check_sentences: bool,
        too_short: Callable[[Trial, str], str | None],
    ) -> None:
        self.conventions = conventions
        self._check_sentences = check_sentences
        self._too_short = too_short
        self._labels = LabelSentences(conventions)
        self.rows: list[SplitReport] = []
        self.problems: list[Problem] = []
        self.notes: list[Problem] = []
        self.sentences: set[str] = set()
        self.tokens: Counter[int] = Counter()
        self.features = FeatureSurvey()
        self.known_notes: Iterable[str] = ()
        self.with_range = True

    def take(
        self,
        trials: Iterable[tuple[SplitReport, Trial | None]],
        progress: Progress | None,
        total: int,
    ) -> None:
        done = 0
        for row, trial in trials:
            if not self.rows or self.rows[-1] is not row:
                self.rows.append(row)
            if trial is not None:
                self._count(row, trial)
                done += 1
                if progress:
                    progress(done, total)

    def check(self, trial: Trial, file: Path, split: str) -> None:
        """Note a trial that is too short, and letters of its sentence that the language would lose.

        The trial is not left out. Its label is compared with its sentence.
        """
        if why := self._too_short(trial, split):
            self.notes.append(Problem(str(file), trial.name, "n_time_steps", why))
        if not self._check_sentences or trial.sentence is None:
            return
        self._labels.add(trial, file)
        language = self.conventions.language
        if lost := language.damage(trial.sentence):
            error = language.refused({lost: []}, trial.sentence)
            message = f"{error.what}; {error.fix}"
            self.notes.append(Problem(str(file), trial.name, "sentence_label", message))

    def _scoring(self, path: Path) -> list[Problem]:
        """Return a note on the sentences whose words are scored otherwise than labelled."""
        note = self._check_sentences and self.conventions.language.scoring_note(self.sentences)
        return [Problem(str(path), None, "sentence_label", note)] if note else []

    def _count(self, row: SplitReport, trial: Trial) -> None:
        self.features.add(trial)
        row.n_trials += 1
        row.minutes += trial.n_bins * self.conventions.bin_ms / 60_000
        lengths = [n for n in (row.shortest_bins, row.longest_bins, trial.n_bins) if n is not None]
        row.shortest_bins = min(lengths)
        row.longest_bins = max(lengths)
        values = [v for v in (row.lowest, row.highest) if v is not None]
        values += [float(trial.features_TC.min()), float(trial.features_TC.max())]
        row.lowest = min(values)
        row.highest = max(values)
        if trial.corpus is not None:
            row.corpora[trial.corpus] = row.corpora.get(trial.corpus, 0) + 1
        if trial.sentence is not None:
            row.n_sentences += 1
            self.sentences.add(trial.sentence)
        if trial.phoneme_ids is not None:
            row.n_phonemes += len(trial.phoneme_ids)
            self.tokens.update(trial.phoneme_ids.tolist())

    def report(self, path: Path, kind: str, n_features: int | None) -> DatasetReport:
        totals: dict[str, SplitReport] = {}
        for row in self.rows:
            _add(totals.setdefault(row.split, SplitReport("all", row.split)), row)
        missing = [
            symbol
            for token, symbol in enumerate(self.conventions.inventory.symbols)
            if token and not self.tokens[token]
        ]
        labels_differ, misfits = self._labels.result()
        problems = [*self.problems, *self.notes, *self._scoring(path), *misfits]
        order = sorted(totals.values(), key=lambda row: ("train", "val", "test").index(row.split))
        return DatasetReport(
            str(path),
            kind,
            n_features,
            self.rows,
            order,
            len(self.sentences),
            missing,
            problems,
            self.conventions,
            labels_differ,
            self._feature_notes(kind),
        )

    def _feature_notes(self, kind: str) -> list[str]:
        """Return the notes on the features; packed ones have those of their session files, too."""
        is_raw = self.conventions.features == "raw" and kind == "session files"
        kind_of: Features = "raw" if is_raw else "z-scored"
        notes = self.features.notes(kind_of, with_range=self.with_range)
        return list(dict.fromkeys([*self.known_notes, *notes]))


def _add(total: SplitReport, row: SplitReport) -> None:
    for name in ("n_trials", "n_bad", "minutes", "n_sentences", "n_phonemes"):
        setattr(total, name, getattr(total, name) + getattr(row, name))
    for name, choose in (
        ("shortest_bins", min),
        ("longest_bins", max),
        ("lowest", min),
        ("highest", max),
    ):
        values = [
            value for value in (getattr(total, name), getattr(row, name)) if value is not None
        ]
        setattr(total, name, choose(values) if values else None)
    for corpus, n_trials in row.corpora.items():
        total.corpora[corpus] = total.corpora.get(corpus, 0) + n_trials


def _cells(row: SplitReport) -> tuple[str, ...]:
    numbers: list[Any] = [
        row.n_trials,
        row.n_bad,
        f"{row.minutes:.1f}",
        row.n_sentences,
        row.n_phonemes,
    ]
    bins = "" if row.shortest_bins is None else f"{row.shortest_bins}-{row.longest_bins}"
    values = "" if row.lowest is None else f"{row.lowest:.1f} to {row.highest:.1f}"
    corpora = ", ".join(f"{shown(name, 40)} {count}" for name, count in sorted(row.corpora.items()))
    return (shown(row.session, 100), row.split, *map(str, numbers), bins, values, corpora)


def _aligned(table: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    numeric = range(2, 9)
    return [
        "  ".join(
            cell.rjust(width) if column in numeric else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
