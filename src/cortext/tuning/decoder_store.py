"""The trials of a search for decoder options.

In an SQLite file that any number of processes share, with Optuna.

A process that runs a trial holds a lock, which the system drops when it ends, however it ends. A
trial that runs and whose lock nobody holds has lost its process, and whoever comes next takes it
over: none is lost, none counted twice.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cortext.errors import CortextError, RunError, first_line
from cortext.tuning.directory import ANOTHER, make
from cortext.tuning.search import Search, Settings
from cortext.tuning.tpe import Told, distributions, encoded, quiet_optuna, suggest

STUDY = "decoder"
STATES = {"COMPLETE": "finished", "FAIL": "failed", "PRUNED": "pruned", "RUNNING": "running"}
RETRIED = "retried"
"""What of the study has the numbers of failed trials whose options are tried again."""
WAIT_S = 60
"""So long a process waits for another one that writes."""


@dataclass(frozen=True)
class Tried:
    """One trial.

    Attributes:
        settings: What is searched, as far as its options lie in the space.
        options: Of the decoder, all of them, as plain values.
        value: What is minimised; None unless it has finished.
    """

    number: int
    state: str
    settings: Settings
    options: dict[str, Any]
    value: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None

    @property
    def lacking(self) -> str | None:
        """Why it failed, or what was missing while it ran, such as a large model that had no
        memory.
        """
        return self.reason or self.metrics.get("degraded")


@dataclass(frozen=True)
class Given:
    """Options to be tried before any are drawn, and what of them lies in the space."""

    options: dict[str, Any]
    settings: Settings


class Store:
    """The trials in `out/study.db`.

    given: tried first; as_options: the options of settings that were drawn; its errors are failed
    trials Raises MissingLibrary without Optuna and RunError for a file that cannot be used.
    """

    def __init__(
        self,
        out: Path,
        search: Search,
        given: Sequence[Given],
        as_options: Callable[[Settings], dict[str, Any]],
    ) -> None:
        self._optuna = quiet_optuna()
        self._search, self._given, self._as_options = search, given, as_options
        self._claims, self._held = out / ".claims", dict[int, int]()
        self.file = out / "study.db"
        with self._alone():
            self._storage = self._optuna.storages.RDBStorage(
                f"sqlite:///{self.file}", engine_kwargs={"connect_args": {"timeout": WAIT_S}}
            )
            self._study = self._optuna.create_study(
                storage=self._storage, study_name=STUDY, direction="minimize", load_if_exists=True
            )

    def trials(self) -> list[Tried]:
        """All of them, by number, without failed ones whose options are tried again."""
        return self._by_fate()[0]

    @property
    def total(self) -> int:
        """How many trials there will be."""
        return self._search.total + len(self._by_fate()[1])

    def retry_failed(self) -> int:
        """Have the options of failed trials tried again, in trials of their own.

        How many there are.

        Those that do not go together stay failed.
        """
        with self._alone():
            failed = [
                trial.number for trial in self.trials() if trial.state == "failed" and trial.options
            ]
            if failed:
                self._study.set_user_attr(RETRIED, [*(self.recall(RETRIED) or ()), *failed])
        return len(failed)

    def claim(self) -> Tried | None:
        """A trial for this process to run.

        One whose process is gone, one that is given, or one that is drawn.

        None where all are done or other processes have what is left.
        """
        with self._alone():
            for trial in self.trials():
                if trial.state == "running" and self._hold(trial.number):
                    return trial
            while (next_one := self._next()) is not None:
                if next_one.state == "running":
                    return next_one
        return None

    def finish(self, number: int, value: float, metrics: Mapping[str, Any]) -> None:
        """Record what a trial has reached."""
        self._end(number, {"metrics": dict(metrics)}, values=value)

    def prune(self, number: int, metrics: Mapping[str, Any]) -> None:
        """Record that a trial was given up before its end."""
        self._end(number, {"metrics": dict(metrics)}, state=self._optuna.trial.TrialState.PRUNED)

    def fail(self, number: int, reason: str) -> None:
        """Record that a trial came to nothing."""
        self._end(number, {"reason": reason}, state=self._optuna.trial.TrialState.FAIL)

    def remember(self, key: str, value: Any) -> None:
        """Keep something about the study, as plain values."""
        with self._alone():
            self._study.set_user_attr(key, value)

    def recall(self, key: str) -> Any:
        """What was kept, or None."""
        return self._study.user_attrs.get(key)

    def close(self) -> None:
        """Let go of trials that have not ended; the next process takes them over."""
        with self._alone():
            for number in list(self._held):
                self._let_go(number)
        self._storage.remove_session()
        self._storage.engine.dispose()

    def _by_fate(self) -> tuple[list[Tried], list[Tried]]:
        """The trials that count, and the failed ones that others have taken the place of, or
        will.
        """
        retried = set(self.recall(RETRIED) or ())
        trials = self._all()
        return [one for one in trials if one.number not in retried], [
            one for one in trials if one.number in retried
        ]

    def _next(self) -> Tried | None:
        """A new trial, in the file; failed where its options do not go together.

        None where there are enough.
        """
        trials, retried = self._by_fate()
        known = [trial.options for trial in trials]
        for failed in retried:
            if failed.options not in known:
                return self._add(failed.settings, failed.options)
        if len(trials) >= self._search.total:
            return None
        for given in self._given:
            if given.options not in known:
                return self._add(given.settings, given.options)
        told = [Told(trial.settings, trial.value, trial.state == "running") for trial in trials]
        settings = suggest(self._search, told)
        if settings is None:
            return None
        try:
            return self._add(settings, self._as_options(settings))
        except CortextError as error:
            return self._add(settings, {}, str(error))

    def _add(self, settings: Settings, options: dict[str, Any], reason: str | None = None) -> Tried:
        states = self._optuna.trial.TrialState
        known, params = (
            distributions(self._optuna, self._search.space),
            encoded(self._search.space, settings),
        )
        attributes = {"options": options} | ({} if reason is None else {"reason": reason})
        trial = self._optuna.create_trial(
            state=states.RUNNING if reason is None else states.FAIL,
            params=params,
            distributions={key: known[key] for key in params},
            user_attrs=attributes | {"settings": settings},
        )
        self._study.add_trial(trial)
        added = self._all()[-1]
        if reason is None:
            self._hold(added.number)
        return added

    def _end(self, number: int, attributes: Mapping[str, Any], **told: Any) -> None:
        with self._alone():
            found = self._study.get_trials(deepcopy=False)[number]
            trial = self._optuna.trial.Trial(self._study, found._trial_id)
            for key, value in attributes.items():
                trial.set_user_attr(key, value)
            self._study.tell(number, **told)
            self._let_go(number)

    def _all(self) -> list[Tried]:
        return [self._tried(trial) for trial in self._study.get_trials(deepcopy=False)]

    @staticmethod
    def _tried(trial: Any) -> Tried:
        facts = trial.user_attrs
        return Tried(
            trial.number,
            STATES[trial.state.name],
            facts["settings"],
            facts["options"],
            trial.value,
            facts.get("metrics", {}),
            facts.get("reason"),
        )

    def _hold(self, number: int) -> bool:
        """Take a trial's lock, unless a process that lives has it."""
        descriptor = os.open(self._claims / f"trial-{number}", os.O_CREAT | os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._held[number] = descriptor
        return True

    def _let_go(self, number: int) -> None:
        (self._claims / f"trial-{number}").unlink(missing_ok=True)
        os.close(self._held.pop(number))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """A context that no other process is in, in which what goes wrong with the file is a
        RunError.
        """
        make(self._claims)
        try:
            with (self._claims / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except CortextError:
            raise
        # SQLAlchemy's, SQLite's and Optuna's own: a full disk, a file of something else
        except Exception as error:
            what = first_line(error.__cause__ or error)
            fix = f"make room, and the same command goes on; or {ANOTHER}"
            raise RunError(f"cannot be used: {what}", where=self.file, fix=fix) from None
