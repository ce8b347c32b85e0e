"""Settings that a search tries, one after the other: a grid, at random, or by TPE.

The settings of trial `n` are a function of the search, `n`, and for TPE of the earlier trials. So
a stopped search continues as if it had not been stopped, and a longer one begins like a shorter
one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from typing import Any, Literal

import numpy as np

from cortext.arguments import as_count, check_type
from cortext.errors import ConfigError
from cortext.extras import need
from cortext_tune.space import Choice, Range, Space

MAX_GRID = 10_000
"""Most combinations of a grid."""
ATTEMPTS = 200
"""Draws in a row that repeat earlier trials before the space counts as exhausted."""

Settings = dict[str, Any]
"""Values by the dotted names of settings."""
State = Literal["running", "unfinished", "finished", "failed", "pruned"]
OPEN = ("running", "unfinished")
"""States of a trial without an outcome."""


@dataclass(frozen=True)
class TuningTrial:
    """A trial of a search: its settings and its result.

    Attributes:
        settings: The searched settings; of decoder options, only values in the space.
        value: The value that is minimised; None unless the trial has finished.
        metrics: Measurements of the trial.
        reason: Reason of a failure.
        options: All options of the decoder, as plain values; only in a decoder search.
    """

    number: int
    state: State
    settings: Settings
    value: float | None = None
    metrics: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Search:
    """The space of a search, its method and its length. Raises ConfigError.

    Attributes:
        n_trials: Number of settings to try; None for a grid, which tries all combinations.
        seed: Seed of the draws; a grid draws nothing.
    """

    method: Literal["grid", "random", "tpe"]
    space: Space
    n_trials: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_type(self.space, dict, "space", "a mapping of settings to Choice or Range")
        if self.n_trials is not None:
            as_count(self.n_trials, "n_trials")
        as_count(self.seed, "seed")
        if not self.space:
            raise ConfigError("there is nothing to search; name a setting and its values")
        if self.method != "grid":
            if self.n_trials is None or self.n_trials < 1 or self.seed < 0:
                raise ConfigError(
                    f"trials is {self.n_trials}, seed is {self.seed}; at least 1 and 0 are needed"
                )
            return
        if self.n_trials is not None:
            raise ConfigError(
                "a grid has as many trials as it has settings; leave out the number of trials"
            )
        for key, values in self.space.items():
            if isinstance(values, Range):
                raise ConfigError(f"{key} is a range; a grid needs its values one by one")
        if self.total > MAX_GRID:
            raise ConfigError(
                f"the grid has {self.total:,} settings, more than {MAX_GRID:,}; search at random"
            )

    @property
    def total(self) -> int:
        """Number of trials, unless a search at random has tried the whole space before."""
        return self.n_trials or math.prod(len(values) for values in self._values())

    def grid(self) -> Iterator[Settings]:
        """Yield all combinations, the last setting fastest."""
        # Optuna's GridSampler would shuffle them: trial 1 would not be the first value given.
        for chosen in product(*self._values()):
            yield dict(zip(self.space, chosen, strict=True))

    def _values(self) -> list[tuple[Any, ...]]:
        return [values.values for values in self.space.values() if isinstance(values, Choice)]


def suggest(search: Search, trials: Sequence[TuningTrial]) -> Settings | None:
    """Return the settings to try after these trials; None if no new ones are found.

    TPE is the tree-structured Parzen estimator of Bergstra et al. 2011. It ranks a failed
    trial below all others, and a running one as a bad one: trials at the same time differ. Raises
    MissingLibrary where Optuna is not installed.
    """
    if search.method == "grid":
        return next(islice(search.grid(), len(trials), None), None)
    optuna = load_optuna()
    known = distributions(search.space)
    # A list, as settings may hold lists and cannot be hashed; `in` compares them in C.
    tried = [trial.settings for trial in trials]
    history = []
    if search.method == "tpe":
        history = [_observed(search.space, known, trial) for trial in trials]
    for attempt in range(ATTEMPTS):
        seed = int(np.random.default_rng((search.seed, len(trials), attempt)).integers(2**31))
        if search.method == "tpe":
            running = any(trial.state in OPEN for trial in trials)
            sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=running)
        else:
            sampler = optuna.samplers.RandomSampler(seed)
        # A study in memory: in the one on disk, a rejected draw would stay as a trial.
        study = optuna.create_study(sampler=sampler)
        study.add_trials(history)
        settings = _decoded(search.space, study.ask(known).params)
        if settings not in tried:
            return settings
    return None


def load_optuna() -> Any:
    """Import Optuna and silence its log. Raises MissingLibrary where it is not installed."""
    optuna = need("optuna", "tune")
    if optuna.logging.get_verbosity() != optuna.logging.WARNING:
        # Only once: it empties the caches of all loggers, and every draw calls this function.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def distributions(space: Space) -> dict[str, Any]:
    """Return Optuna's distributions of a space."""
    kinds = load_optuna().distributions
    by_key = {}
    for key, values in space.items():
        if isinstance(values, Choice):
            # By index: a value may be a list or a section, which Optuna does not take.
            by_key[key] = kinds.CategoricalDistribution(range(len(values.values)))
        else:
            kind = kinds.IntDistribution if values.is_integer else kinds.FloatDistribution
            by_key[key] = kind(values.low, values.high, log=values.log)
    return by_key


def encoded(space: Space, settings: Settings) -> dict[str, Any]:
    """Return Optuna's parameters of settings."""
    params = {}
    for key, value in settings.items():
        values = space[key]
        params[key] = values.values.index(value) if isinstance(values, Choice) else value
    return params


def _decoded(space: Space, params: dict[str, Any]) -> Settings:
    settings = {}
    for key, values in space.items():
        settings[key] = values.values[params[key]] if isinstance(values, Choice) else params[key]
    return settings


def _observed(space: Space, known: dict[str, Any], trial: TuningTrial) -> Any:
    """Return a trial in Optuna's form, for the sampler."""
    import optuna

    states = optuna.trial.TrialState
    finished = trial.value is not None and math.isfinite(trial.value)
    # A pruned trial without a value ranks below all others; the sampler ignores a failed one.
    state = states.COMPLETE if finished else states.PRUNED
    if trial.state in OPEN:
        state = states.RUNNING
    return optuna.create_trial(
        state=state,
        params=encoded(space, trial.settings),
        distributions={key: known[key] for key in trial.settings},
        value=trial.value if state is states.COMPLETE else None,
    )
