"""The order in which settings are tried: all of a grid, at random, or where earlier ones were good (TPE).

What is tried as number `n` is a function of the search, `n`, and for TPE of the trials before: a search that was
stopped goes on as if it had not been, and one with more trials begins with those of the shorter one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np

from cortext.errors import ConfigError
from cortext.extras import need
from cortext.tuning.space import Choice, Range, Space

MAX_GRID = 10_000
ATTEMPTS = 200  # draws until one is new; after that everything is taken to have been tried

Settings = dict[str, Any]
"""Values by the dotted names of settings."""


@dataclass(frozen=True)
class Search:
    """What is searched, how, and for how long. Raises ConfigError.

    n_trials: settings to try; for a grid None, which has as many as it has
    seed:     decides what is drawn; a grid draws nothing
    """

    method: Literal["grid", "random", "tpe"]
    space: Space
    n_trials: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.space:
            raise ConfigError("there is nothing to search; name a setting and its values")
        if self.method != "grid":
            if self.n_trials is None or self.n_trials < 1 or self.seed < 0:
                raise ConfigError(f"trials is {self.n_trials}, seed is {self.seed}; at least 1 and 0 are needed")
            return
        if self.n_trials is not None:
            raise ConfigError("a grid has as many trials as it has settings; leave out the number of trials")
        for key, values in self.space.items():
            if isinstance(values, Range):
                raise ConfigError(f"{key} is a range; a grid needs its values one by one")
        if self.total > MAX_GRID:
            raise ConfigError(f"the grid has {self.total:,} settings, more than {MAX_GRID:,}; search at random")

    @property
    def total(self) -> int:
        """Settings that will be tried (fewer where random ones run out)."""
        if self.n_trials is not None:
            return self.n_trials
        return math.prod(len(values.values) for values in self.space.values() if isinstance(values, Choice))

    def planned(self) -> list[Settings]:
        """All settings, in order, of a search that does not look at results."""
        if self.method == "grid":
            values = [values.values for values in self.space.values() if isinstance(values, Choice)]
            return [dict(zip(self.space, chosen, strict=True)) for chosen in product(*values)]
        return self._random() if self.method == "random" else []

    def _random(self) -> list[Settings]:
        generator = np.random.default_rng(self.seed)
        found: list[Settings] = []
        for _ in range(self.total):
            for _ in range(ATTEMPTS):
                drawn = {key: _draw(values, generator) for key, values in self.space.items()}
                if drawn not in found:
                    found.append(drawn)
                    break
            else:
                break  # few choices, all of them tried
        return found


def _draw(values: Choice | Range, generator: np.random.Generator) -> Any:
    if isinstance(values, Choice):
        return values.values[int(generator.integers(len(values.values)))]
    low, high = float(values.low), float(values.high)
    if values.whole:  # each whole number is an interval of its own
        low, high = low - 0.5, high + 0.5
    drawn = math.exp(generator.uniform(math.log(low), math.log(high))) if values.log else generator.uniform(low, high)
    return min(max(round(drawn) if values.whole else drawn, values.low), values.high)


@dataclass(frozen=True)
class Told:
    """What TPE hears of an earlier trial. `value` (lower is better) is None for one that failed."""

    settings: Settings
    value: float | None
    running: bool = False


def suggest(search: Search, told: Sequence[Told]) -> Settings | None:
    """The settings to try after those told, by Optuna's tree-structured Parzen estimator; None if nothing is new.

    A trial that failed counts as worse than any other; one still running as a bad one, so that trials at the same time
    differ. Raises MissingLibrary where Optuna is not installed.
    """
    optuna = _optuna()
    distributions = {key: _distribution(optuna, values) for key, values in search.space.items()}
    states = optuna.trial.TrialState
    history = []
    for one in told:
        done = one.value is not None and math.isfinite(one.value)
        state = states.RUNNING if one.running else states.COMPLETE if done else states.PRUNED
        params = {key: _encode(search.space[key], value) for key, value in one.settings.items()}
        value = one.value if state is states.COMPLETE else None
        history.append(optuna.create_trial(state=state, params=params, distributions=distributions, value=value))
    for attempt in range(ATTEMPTS):
        seed = int(np.random.default_rng((search.seed, len(told), attempt)).integers(2**31))
        sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=any(one.running for one in told))
        study = optuna.create_study(sampler=sampler)
        study.add_trials(history)
        params = study.ask(distributions).params
        settings = {key: _decode(values, params[key]) for key, values in search.space.items()}
        if all(one.settings != settings for one in told):
            return settings
    return None


def _optuna() -> Any:
    optuna = need("optuna", "tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _distribution(optuna: Any, values: Choice | Range) -> Any:
    """Choices are told by their number: Optuna takes no lists and sections."""
    if isinstance(values, Choice):
        return optuna.distributions.CategoricalDistribution(range(len(values.values)))
    if values.whole:
        return optuna.distributions.IntDistribution(values.low, values.high, log=values.log)
    return optuna.distributions.FloatDistribution(values.low, values.high, log=values.log)


def _encode(values: Choice | Range, value: Any) -> Any:
    return values.values.index(value) if isinstance(values, Choice) else value


def _decode(values: Choice | Range, param: Any) -> Any:
    return values.values[param] if isinstance(values, Choice) else param
