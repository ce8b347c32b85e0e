"""The later days of a plan of months, and the days on which something happens.

Everything here follows from the settings and the seed alone, so that any day can be simulated
without the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cortext.errors import ConfigError
from cortext_data.simulate.config import ARRAYS, EVENTS, N_ARRAYS, SimulatorConfig
from cortext_data.simulate.streams import Purpose, stream

_DAYS, _SPREAD, _EVENTS, _TRIALS, _SILENCE = range(5)
"""Numbers of the random streams, in the place of a trial's."""


@dataclass(frozen=True)
class Events:
    """Events of a plan of months. Days count from implantation, arrays from 0.

    Attributes:
        lost: Array by the day on which its channels are lost.
        garbage: Days without speech in the features.
        references: Array by the day from which on its reference is another one.
        silence: First and last day without a recording, or None.
    """

    lost: dict[int, int]
    garbage: tuple[int, ...]
    references: dict[int, int]
    silence: tuple[int, int] | None

    def on(self, day: int) -> list[str]:
        """Return the names of what a day's recording differs by: `lost: area 4`, `garbage`."""
        named = [f"lost: {ARRAYS[self.lost[day]]}"] if day in self.lost else []
        named += ["garbage"] if day in self.garbage else []
        changed = [array for since, array in self.references.items() if day >= since]
        return [*named, *(f"other reference: {ARRAYS[array]}" for array in changed)]


def regular_day(index: int) -> int:
    """Return the day since implantation of a recording day of a regular plan, counted from 0."""
    return index // 3 * 7 + index % 3 * 2 + 1


@lru_cache(maxsize=8)
def later_days(config: SimulatorConfig) -> tuple[int, ...]:
    """Return the later recording days: as many equal stretches of time have one each.

    It is drawn from the middle half of the stretch, which keeps gaps within half of their mean.
    """
    first = regular_day(config.n_days - 1) + 1
    silence = _silence(config)
    days = np.arange(first, first + config.later_span)
    if silence is not None:
        days = days[(days < silence[0]) | (days > silence[1])]
    generator = stream(config.seed, Purpose.MONTHS, trial=_DAYS)
    stretches = np.array_split(days, config.later_days)
    middles = [s[len(s) // 4 : len(s) - len(s) // 4] for s in stretches]
    return tuple(int(generator.choice(middle)) for middle in middles)


def later_trials(config: SimulatorConfig, day: int) -> int:
    """Return the number of training trials of a later day."""
    low, high = config.later_per_day
    return int(stream(config.seed, Purpose.MONTHS, day, trial=_TRIALS).integers(low, high + 1))


@lru_cache(maxsize=8)
def events(config: SimulatorConfig) -> Events:
    """Return the events, each on a recording day in the last three quarters.

    Between two of them there is at least one recording day without any, on which the effect of
    the first is seen alone.

    Raises:
        ConfigError: For more events than there are days for.
    """
    counts = {name: getattr(config, name) for name in EVENTS}
    if config.plan != "months":
        return Events({}, (), {}, None)
    begin = _last_three_quarters(config)
    possible = np.array([day for day in later_days(config) if day >= begin])
    n = sum(counts.values())
    if 2 * n > len(possible):
        raise ConfigError(
            f"{n} events need {2 * n} days in the last three quarters; there are {len(possible)}",
            fix="raise `later_days`, or lower " + ", ".join(counts),
        )
    generator = stream(config.seed, Purpose.MONTHS, trial=_EVENTS)
    # Of each stretch but its last day, so that no two events are on neighbouring days.
    stretches = np.array_split(possible, n) if n else []
    days = [int(generator.choice(stretch[:-1])) for stretch in stretches]
    drawn = iter(generator.permutation(days).tolist())
    lost, garbage, references = ([next(drawn) for _ in range(count)] for count in counts.values())
    arrays = generator.integers(N_ARRAYS, size=n).tolist()
    return Events(
        dict(zip(lost, arrays, strict=False)),
        tuple(sorted(garbage)),
        dict(zip(references, reversed(arrays), strict=False)),
        _silence(config),
    )


@lru_cache(maxsize=8)
def drift_factor(config: SimulatorConfig) -> float:
    """Return the participant's factor on the rates of `SimulatorConfig.drift_spread`."""
    generator = stream(config.seed, Purpose.MONTHS, trial=_SPREAD)
    return float(np.exp(config.drift_spread * generator.standard_normal()))


def _last_three_quarters(config: SimulatorConfig) -> int:
    return regular_day(config.n_days - 1) + 1 + config.later_span // 4


def _silence(config: SimulatorConfig) -> tuple[int, int] | None:
    if not config.silent_days:
        return None
    generator = stream(config.seed, Purpose.MONTHS, trial=_SILENCE)
    n_choices = config.later_span - config.later_span // 4 - config.silent_days
    start = _last_three_quarters(config) + int(generator.integers(n_choices))
    return start, start + config.silent_days - 1
