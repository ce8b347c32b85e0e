"""A search directory: its description (`study.json`) and its trials (`study.journal`).

`study.journal` is an Optuna study that any number of processes share, on one machine or in a shared
folder. A process that runs a trial holds a lock, which the system drops when the process ends in
any way. A running trial without a lock holder has lost its process; the next process takes it over.
No trial is lost, and none is counted twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from filelock import FileLock, Timeout

from cortext.config import first_difference
from cortext.errors import CortextError, RunError, first_line
from cortext.files import atomic_write, read_json
from cortext.tables import json_text
from cortext_tune.search import (
    Search,
    Settings,
    State,
    TuningTrial,
    distributions,
    encoded,
    load_optuna,
    suggest,
)

FORMAT_VERSION = 1
JOURNAL = "study.journal"
"""Name of Optuna's journal. SQLite's locks often fail in shared folders. A trial costs 10 ms."""
STUDY = "decoder"
"""Name of the study in the file, for all kinds of searches."""
STATES: dict[str, State] = {
    "COMPLETE": "finished",
    "FAIL": "failed",
    "PRUNED": "pruned",
    "RUNNING": "running",
}
ANOTHER = "give another --out"
CORRECT = f"correct that and add --retry-failed, or search elsewhere and {ANOTHER}"
"""Advice where every trial failed."""


def make_directory(out: Path) -> None:
    """Make the search directory. Raises RunError for a file, and where it cannot be made."""
    if out.exists() and not out.is_dir():
        raise RunError("is a file; a directory is needed", where=out, fix=ANOTHER)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot be written: {error.strerror}", where=out, fix=ANOTHER) from None


def begin_study(out: Path, description: Mapping[str, Any], is_ours: Callable[[str], bool]) -> None:
    """Write `study.json`, or check that the one there describes the same search.

    Args:
        out: The search directory.
        description: Identity of the search: two searches with the same one are the same.
        is_ours: Returns True for the name of a file that a search writes; hidden files are not
            checked.

    Raises:
        RunError: Where another search, or something else, is there.
    """
    file, description = out / "study.json", json.loads(json.dumps(dict(description)))
    if not file.is_file():
        names = sorted(path.name for path in out.iterdir() if not path.name.startswith("."))
        for name in names:
            if not is_ours(name):
                raise RunError(
                    f"there is something else than a search: {name}", where=out, fix=ANOTHER
                )
        content: dict[str, Any] = {"format_version": FORMAT_VERSION, "description": description}
        atomic_write(file, f"{json_text(content, indent=1)}\n".encode())
        return
    try:
        content = read_json(file)
        if content["format_version"] != FORMAT_VERSION:
            raise ValueError(f"its version is {content['format_version']}, not {FORMAT_VERSION}")
        before = dict(content["description"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"the search cannot be read: {error}", where=file, fix=ANOTHER) from None
    refuse_another(out, before, description)


def refuse_another(out: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise RunError, naming the first difference, where two descriptions differ.

    Args:
        out: Directory, for the message.
        before: Description in the directory.
        now: Description of this call.
    """
    if changed := first_difference(before, now):
        key, old, new = changed
        fix = f"go on with the command it was begun with, or {ANOTHER}"
        raise RunError(
            f"the search was begun with {key} = {old!r}, now it is {new!r}", where=out, fix=fix
        )


@dataclass(frozen=True)
class Given:
    """Decoder options to try before any are drawn, and their settings in the space."""

    options: dict[str, Any]
    settings: Settings


class TrialStore:
    """The trials of a search directory.

    Raises MissingLibrary without Optuna and RunError for a file that cannot be used.

    Args:
        out: The search directory.
        search: Source of new settings.
        given: Options to try first.
        as_options: Turns settings into options; by default they are the settings. Its CortextError
            makes the trial fail.
        first: Number of the first trial.
    """

    def __init__(
        self,
        out: Path,
        search: Search,
        given: Sequence[Given] = (),
        as_options: Callable[[Settings], dict[str, Any]] | None = None,
        first: int = 0,
    ) -> None:
        self._optuna = load_optuna()
        self._search = search
        self._given = given
        self._as_options = as_options
        self._first = first
        self._locks = out / ".claims"
        self._held: dict[int, FileLock] = {}
        self.total = search.total
        self.file = out / JOURNAL
        with self._exclusive():
            self._study = self._open(self.file)

    def trials(self) -> list[TuningTrial]:
        """Return all trials by number, each as its last attempt went. Raises RunError."""
        trials = [self._trial(attempt) for attempt in self._attempts().values()]
        if [trial.number for trial in trials] != list(
            range(self._first, self._first + len(trials))
        ):
            problem = f"its trials are not numbered from {self._first}"
            raise RunError(problem, where=self.file, fix=ANOTHER)
        return trials

    def claim(self) -> TuningTrial | None:
        """Return a trial for this process to run: one that lost its process, a given or a new one.

        Return None where all are done or other processes run the rest.
        """
        with self._exclusive():
            for trial in self.trials():
                if trial.state == "running" and self._hold(trial.number):
                    return trial
            while (new := self._next()) is not None:
                if new.state == "running":
                    self._hold(new.number)
                    return new
        return None

    def retry_failed(self) -> int:
        """Queue failed trials again, under their numbers; return their number.

        A trial whose settings gave no options stays failed.
        """
        with self._exclusive():
            failed = [trial for trial in self.trials() if trial.state == "failed" and trial.options]
            for trial in failed:  # running without a lock: whoever comes next takes it over
                self._add(replace(trial, state="running", metrics={}, reason=None))
        return len(failed)

    def finish(self, number: int, value: float, metrics: Mapping[str, Any]) -> None:
        """Record the result of a trial.

        Args:
            number: Number of the trial.
            value: Value that is minimised.
            metrics: Metrics of the trial.
        """
        self._end(number, {"metrics": dict(metrics)}, values=value)

    def prune(self, number: int, metrics: Mapping[str, Any]) -> None:
        """Record that a trial was given up before its end."""
        self._end(number, {"metrics": dict(metrics)}, state=self._optuna.trial.TrialState.PRUNED)

    def fail(self, number: int, reason: str) -> None:
        """Record why a trial failed."""
        self._end(number, {"reason": reason}, state=self._optuna.trial.TrialState.FAIL)

    def remember(self, key: str, value: Any) -> None:
        """Store a JSON value that belongs to no trial."""
        with self._exclusive():
            self._study.set_user_attr(key, value)

    def recall(self, key: str) -> Any:
        """Return a value that `remember` has stored, or None."""
        return self._study.user_attrs.get(key)

    def close(self) -> None:
        """Release the unfinished trials of this process to other processes."""
        for number in list(self._held):
            self._held.pop(number).release()

    def _open(self, file: Path) -> Any:
        storages = self._optuna.storages
        # Every write is inside `_exclusive`. Optuna's own lock is a file, which a killed process
        # would leave behind: others would wait for 30 s.
        held = SimpleNamespace(acquire=lambda: True, release=lambda: None)
        backend = storages.journal.JournalFileBackend(str(file), held)
        return self._optuna.create_study(
            storage=storages.JournalStorage(backend),
            study_name=STUDY,
            direction="minimize",
            load_if_exists=True,
        )

    def _next(self) -> TuningTrial | None:
        """Add the next new trial; it is failed where `as_options` raises an error."""
        trials = self.trials()
        if len(trials) >= self._search.total:
            return None
        number = self._first + len(trials)
        tried = [trial.options for trial in trials]
        for given in self._given:
            if given.options not in tried:
                return self._add(
                    TuningTrial(number, "running", given.settings, options=given.options)
                )
        settings = suggest(self._search, trials)
        if settings is None:  # the whole space has been tried
            self.total = len(trials)
            return None
        try:
            options = (self._as_options or dict)(settings)
        except CortextError as error:
            return self._add(TuningTrial(number, "failed", settings, reason=str(error)))
        return self._add(TuningTrial(number, "running", settings, options=options))

    def _add(self, trial: TuningTrial) -> TuningTrial:
        names = {own: name for name, own in STATES.items()}
        known = distributions(self._search.space)
        facts = {"number": trial.number, "settings": trial.settings, "options": trial.options}
        self._study.add_trial(
            self._optuna.create_trial(
                state=self._optuna.trial.TrialState[names[trial.state]],
                value=trial.value,
                params=encoded(self._search.space, trial.settings),
                distributions={key: known[key] for key in trial.settings},
                user_attrs=facts | {"metrics": trial.metrics, "reason": trial.reason},
            )
        )
        return trial

    def _end(self, number: int, facts: Mapping[str, Any], **outcome: Any) -> None:
        with self._exclusive():
            attempt = self._attempts()[number]
            trial = self._optuna.trial.Trial(self._study, attempt._trial_id)
            for key, value in facts.items():
                trial.set_user_attr(key, value)
            self._study.tell(attempt.number, **outcome)
            (self._locks / f"trial-{number}").unlink(missing_ok=True)
            self._held.pop(number).release()

    def _attempts(self) -> dict[int, Any]:
        """Return Optuna's trials by number; of a repeated one, the last."""
        by_number = {}
        for attempt in self._study.get_trials(deepcopy=False):
            by_number[attempt.user_attrs.get("number")] = attempt
        return by_number

    @staticmethod
    def _trial(attempt: Any) -> TuningTrial:
        facts = attempt.user_attrs
        return _checked(
            TuningTrial(
                facts.get("number"),
                STATES[attempt.state.name],
                facts["settings"],
                attempt.value,
                facts.get("metrics", {}),
                facts.get("reason"),
                facts["options"],
            )
        )

    def _hold(self, number: int) -> bool:
        """Take a trial's lock, unless a living process has it."""
        lock = FileLock(self._locks / f"trial-{number}")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return False
        self._held[number] = lock
        return True

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Keep other processes out of this context and turn errors of the file into RunErrors."""
        make_directory(self._locks)
        try:
            with FileLock(self._locks / "lock"):
                _drop_partial_line(self.file)
                yield
        except CortextError:
            raise
        except Exception as error:  # a full disk; whatever Optuna raises for a damaged file
            reason = first_line(error.__cause__ or error)
            fix = f"make room, and the same command goes on; or {ANOTHER}"
            raise RunError(f"cannot be used: {reason}", where=self.file, fix=fix) from None


def _checked(trial: TuningTrial) -> TuningTrial:
    """Check a trial that was read, and return it; raise RunError for impossible values.

    The file may come from somebody else, and a trial's number is part of file names.
    """
    if type(trial.number) is not int:
        raise RunError(f"{trial.number!r} is no number of a trial", fix=ANOTHER)
    for name in ("settings", "options", "metrics"):
        if not isinstance(getattr(trial, name), dict):
            raise RunError(f"the {name} of trial {trial.number} are no table", fix=ANOTHER)
    for name in ("val_per", "val_wer", "val_loss", "ms_per_frame"):
        value = trial.metrics.get(name)
        if not isinstance(value, int | float | None):
            raise RunError(f"{name} of trial {trial.number} is {value!r}, no number", fix=ANOTHER)
    return trial


def _drop_partial_line(file: Path) -> None:
    """Remove a last line that a kill or a full disk has cut: Optuna would refuse the next ones."""
    with suppress(FileNotFoundError), file.open("r+b") as journal:
        size = journal.seek(0, os.SEEK_END)
        if size:
            journal.seek(-1, os.SEEK_END)
            if journal.read() != b"\n":
                journal.seek(0)
                journal.truncate(journal.read().rfind(b"\n") + 1)
