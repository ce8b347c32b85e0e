"""A search directory.

`study.json` says what is searched and what came of every trial, and is always whole.

`trials/` has a run directory for each trial, `packed/` the data where they were given as session
files.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from cortext.config import from_mapping
from cortext.errors import ConfigError, RunError
from cortext.files import atomic_write, read_json
from cortext.tuning.directory import ANOTHER, refuse_another, refuse_strangers
from cortext.tuning.search import Settings
from cortext.tuning.space import label
from cortext.tuning.tpe import Told
from cortext.tuning.trial import METRICS

FORMAT_VERSION = 1


@dataclass
class Trial:
    """One setting and what came of it.

    Metrics are those of the kept weights; None before the trial is finished.
    """

    number: int
    name: str
    """Its folder in `trials/`."""
    settings: Settings
    state: Literal["unfinished", "finished", "failed"] = "unfinished"
    metrics: dict[str, Any] = field(default_factory=dict)
    """`val_per`, `val_wer`, `val_loss`, of the batch `best_step`, after `steps` batches in
    `seconds`.
    """
    reason: str | None = None
    """Why it failed."""

    def __post_init__(self) -> None:
        if not re.fullmatch(rf"{self.number:04d}-[A-Za-z0-9._=-]{{0,80}}", self.name):
            raise ConfigError(f"{self.name!r} is no folder of trial {self.number}")
        for name in METRICS:
            if not isinstance(self.metrics.get(name), float | int | None):
                raise ConfigError(
                    f"{name} of trial {self.number} is {self.metrics[name]!r}; a number is needed"
                )


class Study:
    """All trials of a search, in the order in which they were begun.

    out: the directory; metric: what is minimised
    """

    def __init__(self, out: Path, metric: str, description: Mapping[str, Any], total: int) -> None:
        self.out, self.metric, self.total = out, metric, total
        self.description: dict[str, Any] = json.loads(json.dumps({"metric": metric, **description}))
        self.file = out / "study.json"
        self.trials: list[Trial] = []

    def begin(self) -> None:
        """Take over what an earlier sitting has left, or write the study's first file.

        Raises:
            RunError: For a directory of another search, of something else, and for a file that
                cannot be read.
        """
        if not self.file.is_file():
            refuse_strangers(self.out, {"packed", "trials"}.__contains__)
            self.save()
            return
        refuse_another(self.out, self._read(), self.description)

    def _read(self) -> dict[str, Any]:
        """Take the trials from the file; returns its description."""
        try:
            content = read_json(self.file)
            if content["format_version"] != FORMAT_VERSION:
                raise ConfigError(
                    f"its version is {content['format_version']}, not {FORMAT_VERSION}"
                )
            self.trials = [from_mapping(Trial, trial) for trial in content["trials"]]
            if [trial.number for trial in self.trials] != list(range(1, len(self.trials) + 1)):
                raise ConfigError("its trials are not numbered from 1")
            return dict(content["description"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError) as error:
            fix = f"{ANOTHER}; the runs in trials/ are not touched"
            raise RunError(
                f"the search cannot be read: {error}", where=self.file, fix=fix
            ) from None

    def save(self) -> None:
        """Write `study.json`. Raises RunError; the file before stays."""
        content = {"format_version": FORMAT_VERSION, "description": self.description}
        content |= {"trials": [asdict(trial) for trial in self.trials]}
        atomic_write(self.file, json.dumps(content, indent=1).encode())

    def add(self, settings: Settings) -> Trial:
        """Begin a trial with these settings."""
        number = len(self.trials) + 1
        safe = re.sub(r"[^A-Za-z0-9._=-]+", "_", label(settings).replace(" ", "-"))[:80]
        trial = Trial(number, f"{number:04d}-{safe}", dict(settings))
        self.trials.append(trial)
        self.save()
        return trial

    def folder(self, trial: Trial) -> Path:
        """The trial's run directory."""
        return self.out / "trials" / trial.name

    def finish(self, trial: Trial, metrics: Mapping[str, float | None]) -> None:
        """Record what a trial has reached."""
        trial.state, trial.metrics, trial.reason = "finished", dict(metrics), None
        self.save()

    def fail(self, trial: Trial, reason: str) -> None:
        """Record that a trial came to nothing."""
        trial.state, trial.reason = "failed", reason
        self.save()

    def value(self, trial: Trial) -> float:
        """What is minimised; infinite where there is no such number."""
        value = trial.metrics.get(self.metric)
        return math.inf if value is None or math.isnan(value) else value

    def ranked(self) -> list[Trial]:
        """Finished trials from best to worst, then the others by number."""

        def place(trial: Trial) -> tuple[Any, ...]:
            loss = trial.metrics.get("val_loss")
            return (
                trial.state != "finished",
                self.value(trial),
                math.inf if loss is None else loss,
                trial.number,
            )

        return sorted(self.trials, key=place)

    @property
    def best(self) -> Trial | None:
        """The best of the finished trials."""
        first = next(iter(self.ranked()), None)
        return first if first is not None and first.state == "finished" else None

    def count(self, state: str) -> int:
        """Trials in this state."""
        return sum(trial.state == state for trial in self.trials)

    def told(self) -> list[Told]:
        """The trials as TPE hears of them."""
        return [
            Told(
                trial.settings,
                self.value(trial) if trial.state == "finished" else None,
                trial.state == "unfinished",
            )
            for trial in self.trials
        ]

    def to_json(self) -> dict[str, Any]:
        """The search and its trials from best to worst, for `--json`."""
        trials = [asdict(trial) | {"run": str(self.folder(trial))} for trial in self.ranked()]
        best = trials[0] if self.best else None
        return {
            "out": str(self.out),
            **self.description,
            "n_trials": self.total,
            "best": best,
            "trials": trials,
        }
