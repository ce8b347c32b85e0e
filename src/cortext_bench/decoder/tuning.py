"""Tuning of a search's settings: the same effort for every search, the beam included.

All values come from the short lists in `Searcher.steps`. The first of `trials` settings is
`Searcher.start`. Until two thirds are used, a local search takes the best setting found so far and
moves one to three of its values by one to three places; a setting that is better, or as good and
faster, becomes the new best. The remaining trials look for speed: they take the fastest setting
whose word errors are within `SLACK` of the best and make one value of `speed` faster at a time.
When no such setting is left, the local search gets the rest. Beyond these trials, the best setting
is tried with each of `Searcher.sizes`, for the fast end of the frontier. Each trial decodes the
same utterances. No setting is tried twice. The draws depend only on the seed and the search's name.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SLACK = 0.01
"""Word error rate that a faster setting may lose while the fast end is looked for (one point)."""

DRAWS = 100
"""Draws for each trial, after which all settings nearby are taken to be tried."""

Settings = dict[str, Any]
Measure = Callable[[Settings], tuple[float, float]]
"""Word error rate and milliseconds per frame of settings."""


@dataclass(frozen=True)
class Tried:
    """One trial: settings, their word error rate, and milliseconds per frame of processor time."""

    settings: Settings
    wer: float
    ms: float


def tune(
    name: str,
    start: Mapping[str, Any],
    steps: Mapping[str, Sequence[Any]],
    speed: Mapping[str, int],
    measure: Measure,
    trials: int,
    sizes: Sequence[Mapping[str, Any]] = (),
    seed: int = 0,
) -> list[Tried]:
    """Tune a search by the method above; return all trials, in their order.

    Args:
        name: Name of the search; the draws depend on it.
        start: First settings.
        steps: Values of each setting, from which all trials are drawn.
        speed: By setting, the direction in its values that is faster.
        measure: Returns word error rate and milliseconds per frame of settings.
        trials: Number of trials before the sizes.
        sizes: Changes of the best setting that are tried at the end.
        seed: Seed of the draws.
    """
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    tried = [Tried(dict(start), *measure(dict(start)))]

    def attempt(settings: Settings) -> None:
        tried.append(Tried(settings, *measure(settings)))

    def search(until: int) -> None:
        for _ in range(DRAWS * trials):
            if len(tried) >= until:
                break
            settings = _moved(best(tried).settings, steps, generator)
            if settings is not None and _is_new(settings, tried):
                attempt(settings)

    search(trials * 2 // 3)
    limit = best(tried).wer + SLACK
    while len(tried) < trials and (faster := _faster(fastest(tried, limit), steps, speed, tried)):
        attempt(faster[int(generator.integers(len(faster)))])
    search(trials)
    for size in sizes_left(tried, sizes):
        attempt(size)
    return tried


def sizes_left(tried: Sequence[Tried], sizes: Sequence[Mapping[str, Any]]) -> list[Settings]:
    """Return the best setting in all sizes that it was not tried with."""
    settings = [{**best(tried).settings, **size} for size in sizes]
    return [one for one in settings if _is_new(one, tried)]


def best(tried: Sequence[Tried]) -> Tried:
    """Return the trial with the lowest word error rate; of equals the fastest."""
    return min(tried, key=lambda one: (one.wer, one.ms))


def fastest(tried: Sequence[Tried], wer: float) -> Tried:
    """Return the fastest trial with a word error rate of at most `wer`; without one, the best."""
    enough = [one for one in tried if one.wer <= wer]
    return min(enough, key=lambda one: one.ms) if enough else best(tried)


def frontier(tried: Sequence[Tried], most: int = 8) -> list[Tried]:
    """Return the trials that no other trial beats in time and word errors, fastest first.

    Args:
        tried: All trials of a search.
        most: Most trials to return. The fastest and the best stay; of the others those go first
            whose two neighbours are nearest to each other in the logarithm of time.
    """
    found: list[Tried] = []
    for one in sorted(tried, key=lambda one: (one.ms, one.wer)):
        if not found or one.wer < found[-1].wer:
            found.append(one)
    while len(found) > max(most, 2):
        steps = [later.ms / earlier.ms for earlier, later in itertools.pairwise(found)]
        gaps = [before * after for before, after in itertools.pairwise(steps)]
        del found[1 + gaps.index(min(gaps))]
    return found


def _is_new(settings: Settings, tried: Sequence[Tried]) -> bool:
    return all(one.settings != settings for one in tried)


def _moved(
    settings: Settings, steps: Mapping[str, Sequence[Any]], generator: np.random.Generator
) -> Settings | None:
    """Return settings with one to three values moved by one to three places; None beyond lists."""
    moved = dict(settings)
    for name in generator.choice(
        list(steps), min(len(steps), int(generator.integers(1, 4))), replace=False
    ).tolist():
        place = steps[name].index(moved[name]) + int(generator.choice((-3, -2, -1, 1, 2, 3)))
        if not 0 <= place < len(steps[name]):
            return None
        moved[name] = steps[name][place]
    return moved


def _faster(
    one: Tried, steps: Mapping[str, Sequence[Any]], speed: Mapping[str, int], tried: Sequence[Tried]
) -> list[Settings]:
    """Return untried settings that differ in one value, by one or two places to its faster side."""
    found = []
    for name, direction in speed.items():
        for places in (2, 1):
            place = steps[name].index(one.settings[name]) + direction * places
            if 0 <= place < len(steps[name]):
                settings = one.settings | {name: steps[name][place]}
                if _is_new(settings, tried):
                    found.append(settings)
    return found
