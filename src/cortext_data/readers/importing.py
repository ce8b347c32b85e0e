"""Recordings in a format of others, written as session files.

Each recording is gone through twice. First every trial is checked, labelled and measured: so all
problems are known, and the mean and standard deviation of a whole block, before anything is
written. Then the z-scored trials are written. `import_record.py` notes what has been written: an
import that was cut off continues there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cortext.arguments import as_path
from cortext.data.checks import (
    FLOAT16_MAX,
    SKIP_HINT,
    FaultError,
    Problem,
    check_features,
    check_labels,
    patch_for,
)
from cortext.data.conventions import Conventions, Features, checked_bin_ms
from cortext.data.rebin import rebin
from cortext.data.scaling import ROLLING_TRIALS, Moments, by_bin, trial_moments
from cortext.data.session_files import check_texts, write_session
from cortext.data.trial import SPLITS, Trial, make_trial
from cortext.errors import ConfigError, CortextError, DataError, TextError, nearest, shown
from cortext.files import disk_errors, exclusive
from cortext.processes import Progress
from cortext.text.lexicon_formats import PLAIN
from cortext_data.readers.import_record import ImportRecord
from cortext_data.readers.recording import (
    Block,
    Contents,
    RecordedTrial,
    Recording,
    Source,
    divided_note,
)
from cortext_data.readers.source_files import file_faults
from cortext_data.readers.survey import Survey

NORMALISATIONS = {
    "block": "z-scored by block",
    "rolling": f"z-scored causally, over the last {ROLLING_TRIALS} trials and the trial so far",
    "published": "",
    "none": "not normalised",
    "raw": "as recorded",
}
"""Scaling of features -> its words in `cortext.json`; a source has those of `published`."""
_MOST_KEPT = 256 << 20
"""Bytes of a recording's features that are kept for the second pass; others are read again."""


@dataclass
class Imported:
    """Result of an import.

    Attributes:
        out: Directory of the session files.
        n_written: Recordings that this call wrote.
        n_kept: Recordings that an earlier call had written.
        notes: What the user should know of each recording, such as trials that were left out on
            purpose.
        problems: Trials and files that could not be used.
        n_refused: Recordings that were not written because of their problems.
        n_incomplete: Those among them of which no trial may be left out.
    """

    out: Path
    n_written: int = 0
    n_kept: int = 0
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    n_refused: int = 0
    n_incomplete: int = 0


def import_source(
    source: Source,
    out: str | Path,
    *,
    normalise: str | None = None,
    bin_ms: float | None = None,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> Imported:
    """Write recordings of another format as session files.

    Args:
        source: The recordings, as a reader gives them.
        out: Directory of its own; an import that was cut off continues in it.
        normalise: One of `NORMALISATIONS`; by default what the reader advises.
        bin_ms: Length of the bins to write, 5 to 50 ms; by default that of the recordings. Bins are
            joined before features are z-scored.
        skip_bad: Leave out trials and files that cannot be used. Without it a recording with a
            problem is not written; the others are. Of a recording that is only useful as a whole no
            trial is left out.
        progress: Called with megabytes of source files done and in all.

    Returns:
        The written sessions, and every problem found.

    Raises:
        DataError: For a directory with something else in it, and a failed write.
        ConfigError: For an option that is not possible.
    """
    out = as_path(out, "out")
    normalise = source.normalise if normalise is None else normalise
    if normalise not in NORMALISATIONS or (normalise == "published" and source.published is None):
        known = [name for name in NORMALISATIONS if name != "published" or source.published]
        raise ConfigError(f"unknown normalisation {normalise!r}; {nearest(normalise, known)}")
    if not source.recordings:
        raise DataError(f"holds no recordings of {source.reader}", where=out)
    if bin_ms is not None:
        bin_ms = checked_bin_ms(bin_ms)
    if out.exists() and not out.is_dir():
        raise DataError("is no directory", where=out, fix="name a new directory")
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    refusal = DataError("another import writes there", where=out, fix="wait until it has ended")
    with exclusive(out, refusal):
        return _Import(source, out, normalise, bin_ms, skip_bad, progress).run()


@dataclass
class _Ready:
    """A trial that has passed the checks; without its features where they are read again."""

    trial: Trial
    split: str
    source: RecordedTrial
    moments: Moments


class _Import:
    """One call of `import_source`."""

    def __init__(
        self,
        source: Source,
        out: Path,
        normalise: str,
        bin_ms: float | None,
        skip_bad: bool,
        progress: Progress | None,
    ) -> None:
        self.source = source
        self.out = out
        self.normalise = normalise
        self.skip_bad = skip_bad
        self.result = Imported(out)
        if source.lexicon is not None and source.lexicon.format not in ("", PLAIN):
            self.result.notes.append(f"lexicon read as {source.lexicon.format}")
        self.record = ImportRecord(out, self._settings(bin_ms))
        self.bin_ms: float | None = bin_ms or self.record.bin_ms
        self.n_features: int | None = self.record.n_features
        self._progress = progress
        self._sizes = [sum(map(_size, each.paths)) for each in source.recordings]
        self._done = 0.0

    def _settings(self, bin_ms: float | None) -> dict[str, Any]:
        source = self.source
        return {
            "reader": source.reader,
            "normalise": self.normalise,
            "bin_ms": bin_ms,
            "conventions": Conventions(source.inventory, source.language).to_json(),
            **source.settings,
        }

    def run(self) -> Imported:
        """Write every recording that has not been written."""
        for recording, size in zip(self.source.recordings, self._sizes, strict=True):
            if self.record.has(recording):
                self.result.n_kept += 1
                self.result.notes += self.record.notes(recording)
            else:
                self._import(recording, size)
            self._done += size
            self._advance()
        return self.result

    def _advance(self, n_bytes: float = 0) -> None:
        """Show progress: all recordings that are done, and these bytes of the next one."""
        if self._progress is not None:
            done = self._done + n_bytes
            self._progress(int(done / 1e6), max(1, int(sum(self._sizes) / 1e6)))

    def _import(self, recording: Recording, size: int) -> None:
        """Check one recording and write it, unless it has problems."""
        problems: list[Problem] = []
        before = self.record.state(recording)
        known = self.bin_ms, self.n_features
        notes: list[str] = []
        survey = Survey(())
        with ExitStack() as opened:
            try:
                contents = opened.enter_context(recording.open())
                survey = Survey(contents.groups)
                ready = self._check(recording, contents, size, problems, survey)
            except (FaultError, DataError, OSError) as error:
                ready = []
                problems.append(_problem(error, recording))
            if is_dead := bool(ready) and survey.is_dead():
                problem = "no feature is left that says anything; name other features"
                problems.append(Problem(str(recording.paths[0]), None, None, problem))
            self.result.problems += problems
            if ready or not problems:
                notes = self._notes(recording, contents, survey)
                self.result.notes += notes
            if is_dead or not ready or (problems and (recording.whole or not self.skip_bad)):
                self.result.n_refused += bool(problems)
                self.result.n_incomplete += bool(problems and recording.whole)
                self.bin_ms, self.n_features = known  # a refused trial decides nothing
                return
            with file_faults(recording.paths[0]):  # it could be read a moment ago
                files = self._write(recording, contents, ready, size, survey)
        if self.record.state(recording) != before:  # which trials are new is unknown
            for file in files:
                file.unlink(missing_ok=True)
            problem = "changed while it was read; import it again"
            self.result.problems.append(Problem(str(recording.paths[0]), None, None, problem))
            self.result.n_refused += 1
            return
        ranges = survey.ranges()
        self.record.add(recording, files, self.bin_ms, self.n_features, notes, ranges)
        self.result.n_written += 1

    def _notes(self, recording: Recording, contents: Contents, survey: Survey) -> list[str]:
        """Return what the user should know of a recording, as it is shown and kept."""
        notes = list(contents.notes)
        if self.bin_ms is not None and contents.bin_ms > self.bin_ms:
            notes.append(divided_note("bins", contents.bin_ms, self.bin_ms))
        is_divided = self.bin_ms is not None and (self.bin_ms / contents.bin_ms) % 1 != 0
        notes += survey.notes(self.normalise, self.record.ranges(), is_divided)
        return [f"{recording.session}: {note}" for note in notes]

    def _check(
        self,
        recording: Recording,
        contents: Contents,
        size: int,
        problems: list[Problem],
        survey: Survey,
    ) -> list[_Ready]:
        """Return the trials that can be used, and note the problems of the others."""
        conventions = self._conventions(recording, contents)
        trials = [(block, trial) for block in contents.blocks for trial in block.trials]
        ready: dict[int, _Ready] = {}
        faults: dict[int, Problem] = {}
        seen: set[tuple[int, int]] = set()
        waiting: list[int] = []  # trials with NaN, until it is known which channels are dead
        n_kept = 0

        def check(at: int, absent_C: np.ndarray | None) -> None:
            nonlocal n_kept
            block, trial = trials[at]
            try:
                if absent_C is None:
                    if (block.number, trial.number) in seen:
                        finding = "the block has two trials of this number"
                        raise FaultError("trial_num", finding, "number them differently")
                    seen.add((block.number, trial.number))
                x_TC = self._features(contents, trial, absent_C)
                if absent_C is None and x_TC.ndim == 2 and survey.add(block.number, x_TC):
                    waiting.append(at)
                    return
                one = self._ready(recording, x_TC, block, trial, conventions)
                n_kept += one.trial.features_TC.nbytes
                if n_kept > _MOST_KEPT:
                    one.trial = _without_features(one.trial)
                ready[at] = one
            except (FaultError, CortextError) as error:
                name = f"block {block.number} trial {trial.number}"
                faults[at] = _problem(error, recording, name)

        for at in range(len(trials)):
            check(at, None)
            self._advance(0.5 * size * (at + 1) / len(trials))
        for at in waiting:
            check(at, survey.absent())
        problems += [faults[at] for at in sorted(faults)]
        return [ready[at] for at in sorted(ready)]

    def _conventions(self, recording: Recording, contents: Contents) -> Conventions:
        """Return the conventions of a recording's session files."""
        if self.bin_ms is None:
            self.bin_ms = checked_bin_ms(contents.bin_ms)
        elif self.bin_ms != contents.bin_ms and self.record.settings["bin_ms"] is None:
            raise DataError(
                f"its bins last {contents.bin_ms:g} ms, those of other recordings"
                f" {self.bin_ms:g} ms",
                where=recording.paths[0],
                fix="give --bin-ms with the longer ones",
            )
        source = self.source
        how = NORMALISATIONS[self.normalise] or source.published
        features: Features = "raw" if self.normalise == "raw" else "z-scored"
        return Conventions(source.inventory, source.language, self.bin_ms, how, features)

    def _ready(
        self,
        recording: Recording,
        x_TC: np.ndarray,
        block: Block,
        source: RecordedTrial,
        conventions: Conventions,
    ) -> _Ready:
        """Return a checked trial; raise FaultError or TextError for one that cannot be used."""
        if source.sentence is None and block.split != "test":
            finding = f"no sentence found, which trials of {block.split} need"
            raise FaultError("sentence_label", finding, "give one, or make it a trial of test")
        trial = make_trial(
            x_TC,
            recording.session,
            block.number,
            source.number,
            source.sentence,
            corpus=source.corpus,
            conventions=conventions,
            lexicon=self.source.lexicon,
        )
        check_texts(trial)
        patch = patch_for(conventions)
        # Features that are not scaled must fit into float16, which packing keeps.
        max_abs = FLOAT16_MAX if self.normalise == "none" else None
        check_features(trial.features_TC, self.n_features, max_abs=max_abs, patch=patch)
        if trial.phoneme_ids is not None:
            check_labels(
                trial.phoneme_ids, trial.n_bins, patch=patch, inventory=conventions.inventory
            )
        self.n_features = trial.features_TC.shape[1]
        moments, _ = trial_moments(trial.features_TC)  # an artefact does not flatten the others
        return _Ready(trial, block.split, source, moments)

    def _features(
        self, contents: Contents, trial: RecordedTrial, absent_C: np.ndarray | None
    ) -> np.ndarray:
        """Return the recorded numbers of a trial in the bins that are written, [T, C].

        Features that are absent, bool [C], become 0.
        """
        x_TC = trial.read()
        if absent_C is not None and absent_C.any():
            x_TC = np.where(absent_C, 0, x_TC)
        if self.bin_ms == contents.bin_ms:
            return x_TC
        assert self.bin_ms is not None
        return rebin(x_TC, contents.bin_ms, self.bin_ms, contents.counts)

    def _write(
        self,
        recording: Recording,
        contents: Contents,
        ready: list[_Ready],
        size: int,
        survey: Survey,
    ) -> list[Path]:
        """Write the session files of one recording; return them."""
        scales = self._scales(contents, ready)
        absent_C = survey.absent()
        dead_C = np.any(list(survey.dead().values()), axis=0)
        n_done = 0

        def scaled(split: str) -> Iterator[Trial]:
            nonlocal n_done
            for one, scale in zip(ready, scales, strict=True):
                if one.split != split:
                    continue
                x_TC = one.trial.features_TC
                if not len(x_TC):
                    x_TC = self._features(contents, one.source, absent_C)
                z_TC = scale(x_TC)
                z_TC[:, dead_C] = 0
                yield replace(one.trial, features_TC=z_TC)
                one.trial = _without_features(one.trial)
                n_done += 1
                self._advance(size * (0.5 + 0.5 * n_done / len(ready)))

        folder = self.out / recording.session
        files = []
        for split in SPLITS:
            if any(one.split == split for one in ready):
                path = folder / f"data_{split}.hdf5"
                self.record.claim(path, recording)
                write_session(path, scaled(split))
                files.append(path)
        return files

    def _scales(
        self, contents: Contents, ready: list[_Ready]
    ) -> list[Callable[[np.ndarray], np.ndarray]]:
        """Return the function that scales the features of each trial."""
        if self.normalise in ("none", "raw"):
            return [lambda x_TC: np.array(x_TC, np.float32)] * len(ready)
        if self.normalise == "rolling":
            moments = [one.moments for one in ready]
            return [
                by_bin(len(one.mean_C), moments[max(0, number - ROLLING_TRIALS) : number]).push
                for number, one in enumerate(moments)
            ]
        if self.normalise == "published":
            published = {block.number: block.published for block in contents.blocks}
            return [_given(published[one.trial.block]) for one in ready]
        by_block: dict[int, list[Moments]] = {}
        for one in ready:
            by_block.setdefault(one.trial.block, []).append(one.moments)
        scales = {number: Moments.total(parts).scale() for number, parts in by_block.items()}
        return [scales[one.trial.block] for one in ready]


def _given(scale: Callable[[np.ndarray], np.ndarray] | None) -> Callable[[np.ndarray], np.ndarray]:
    if scale is None:
        raise FaultError(None, "a block without the published scaling found", "use another one")
    return scale


def _size(path: Path) -> int:
    """Return the bytes of a file; 0 where there is none, which opening it says."""
    return path.stat().st_size if path.exists() else 0


def _without_features(trial: Trial) -> Trial:
    return replace(trial, features_TC=trial.features_TC[:0].copy())


def _problem(
    error: FaultError | CortextError | OSError, recording: Recording, trial: str | None = None
) -> Problem:
    """Return an error as a problem of a recording, or of one of its trials."""
    file, field_name = str(recording.paths[0]), None
    if isinstance(error, FaultError):
        field_name, message = error.field, error.message
    elif isinstance(error, CortextError):
        field_name = "sentence_label" if isinstance(error, TextError) else None
        message = "; ".join(filter(None, (error.what, error.fix)))
        if trial is None and error.where is not None:
            file = str(error.where)  # the one of several files in which it was found
    else:
        message = f"{error.strerror}; check it"
    if trial is not None and not recording.whole:
        message += f", {SKIP_HINT}"
    return Problem(file, trial, field_name, shown(message))
