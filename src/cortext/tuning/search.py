"""The order in which settings are tried.

All of a grid, at random, or where earlier ones were good (TPE).

What is tried as number `n` is a function of the search, `n`, and for TPE of the trials before: a
search that was stopped goes on as if it had not been, and one with more trials begins with those of
the shorter one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np

from cortext.errors import ConfigError
from cortext.tuning.space import Choice, Range, Space

MAX_GRID = 10_000
ATTEMPTS = 200  # draws until one is new; after that everything is taken to have been tried

Settings = dict[str, Any]
"""Values by the dotted names of settings."""


@dataclass(frozen=True)
class Search:
    """What is searched, how, and for how long. Raises ConfigError.

    Attributes:
        n_trials: Settings to try; for a grid None, which has as many as it has.
        seed: Decides what is drawn; a grid draws nothing.
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
        """Settings that will be tried (fewer where random ones run out)."""
        if self.n_trials is not None:
            return self.n_trials
        return math.prod(
            len(values.values) for values in self.space.values() if isinstance(values, Choice)
        )

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
    drawn = (
        math.exp(generator.uniform(math.log(low), math.log(high)))
        if values.log
        else generator.uniform(low, high)
    )
    return min(max(round(drawn) if values.whole else drawn, values.low), values.high)
