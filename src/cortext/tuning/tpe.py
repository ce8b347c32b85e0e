"""What to try next, by Optuna's tree-structured Parzen estimator after Bergstra et al. 2011."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortext.extras import need
from cortext.tuning.search import ATTEMPTS, Search, Settings
from cortext.tuning.space import Choice, Range, Space


@dataclass(frozen=True)
class Told:
    """What TPE hears of an earlier trial.

    Attributes:
        settings: Some of what is searched; what is missing has a value outside of the space.
        value: Lower is better; None for one that failed.
    """

    settings: Settings
    value: float | None
    running: bool = False


def suggest(search: Search, told: Sequence[Told]) -> Settings | None:
    """The settings to try after those told, by Optuna's tree-structured Parzen estimator.

    None if nothing is new.

    A trial that failed counts as worse than any other; one still running as a bad one, so that
    trials at the same time differ. Raises MissingLibrary where Optuna is not installed.
    """
    optuna = quiet_optuna()
    known = distributions(optuna, search.space)
    states = optuna.trial.TrialState
    history = []
    for one in told:
        done = one.value is not None and math.isfinite(one.value)
        state = states.RUNNING if one.running else states.COMPLETE if done else states.PRUNED
        params = encoded(search.space, one.settings)
        value, kinds = (
            one.value if state is states.COMPLETE else None,
            {key: known[key] for key in params},
        )
        history.append(
            optuna.create_trial(state=state, params=params, distributions=kinds, value=value)
        )
    for attempt in range(ATTEMPTS):
        seed = int(np.random.default_rng((search.seed, len(told), attempt)).integers(2**31))
        sampler = optuna.samplers.TPESampler(
            seed=seed, constant_liar=any(one.running for one in told)
        )
        study = optuna.create_study(sampler=sampler)
        study.add_trials(history)
        params = study.ask(known).params
        settings = {key: _decode(values, params[key]) for key, values in search.space.items()}
        if all(one.settings != settings for one in told):
            return settings
    return None


def quiet_optuna() -> Any:
    """The library, which says nothing but warnings.

    Raises MissingLibrary where it is not installed.
    """
    optuna = need("optuna", "tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def distributions(optuna: Any, space: Space) -> dict[str, Any]:
    """The space as Optuna has it.

    Choices go by their number, because it takes no lists and sections.
    """
    found = {}
    for key, values in space.items():
        if isinstance(values, Choice):
            found[key] = optuna.distributions.CategoricalDistribution(range(len(values.values)))
        else:
            kind = (
                optuna.distributions.IntDistribution
                if values.whole
                else optuna.distributions.FloatDistribution
            )
            found[key] = kind(values.low, values.high, log=values.log)
    return found


def encoded(space: Space, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as Optuna has them."""
    params = {}
    for key, value in settings.items():
        values = space[key]
        params[key] = values.values.index(value) if isinstance(values, Choice) else value
    return params


def _decode(values: Choice | Range, param: Any) -> Any:
    return values.values[param] if isinstance(values, Choice) else param
