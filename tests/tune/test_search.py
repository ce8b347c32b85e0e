"""The order in which settings are tried."""

import math
import sys

import numpy as np
import pytest

from cortext.errors import ConfigError, MissingLibrary
from cortext_tune.search import Search, Settings, TuningTrial, suggest
from cortext_tune.space import Choice, Range


def first(search: Search, n: int) -> list[Settings]:
    """The first settings that the search tries, or all of them where it has fewer."""
    trials: list[TuningTrial] = []
    for number in range(n):
        if (settings := suggest(search, trials)) is None:
            break
        trials.append(TuningTrial(number, "finished", settings, 0.5))
    return [trial.settings for trial in trials]


def test_a_grid_is_every_combination_the_last_setting_fastest():
    search = Search("grid", {"a": Choice((1, 2)), "b": Choice(("x", "y", "z"))})
    assert search.total == 6
    assert [tuple(settings.values()) for settings in first(search, 7)] == [
        (1, "x"), (1, "y"), (1, "z"), (2, "x"), (2, "y"), (2, "z"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("grid", {}), "nothing to search"),
        (("grid", {"a": Range(0, 1)}), "a grid needs its values one by one"),
        (("grid", {"a": Choice((1,))}, 5), "leave out the number of trials"),
        (
            ("grid", {name: Choice(tuple(range(11))) for name in "abcd"}),
            "14,641 settings, more than 10,000",
        ),
        (("random", {"a": Range(0, 1)}, 0), "trials is 0"),
        (("random", {"a": Range(0, 1)}), "trials is None"),
        (("tpe", {"a": Range(0, 1)}, 5, -1), "seed is -1"),
    ],
)
def test_impossible_searches_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Search(*arguments)


def test_random_settings_are_uniform_on_their_scale():
    pytest.importorskip("optuna")
    space = {"rate": Range(1e-4, 1e-1, log=True), "share": Range(0.2, 0.6), "units": Range(1, 4)}
    drawn = first(Search("random", space, 4000), 4000)
    rates = np.log10([settings["rate"] for settings in drawn])
    shares = np.array([settings["share"] for settings in drawn])
    assert np.quantile(rates, [0.25, 0.5, 0.75]) == pytest.approx([-3.25, -2.5, -1.75], abs=0.1)
    assert np.quantile(shares, [0.25, 0.5, 0.75]) == pytest.approx([0.3, 0.4, 0.5], abs=0.015)
    counts = np.bincount([settings["units"] for settings in drawn], minlength=5)
    assert counts[1:] == pytest.approx(1000, abs=120)  # four standard deviations
    assert all(type(settings["units"]) is int for settings in drawn)


def test_more_random_trials_begin_with_the_same_ones():
    pytest.importorskip("optuna")
    space = {"a": Range(0.0, 1.0), "b": Choice((1, 2, 3))}
    few, many = (first(Search("random", space, n, seed=7), n) for n in (3, 10))
    assert many[:3] == few
    assert first(Search("random", space, 3, seed=8), 3) != few


def test_random_choices_are_not_repeated_and_run_out():
    pytest.importorskip("optuna")
    drawn = first(Search("random", {"a": Choice((1, 2)), "b": Choice((3, 4, 5))}, 50), 50)
    assert sorted(tuple(settings.values()) for settings in drawn) == [
        (1, 3),
        (1, 4),
        (1, 5),
        (2, 3),
        (2, 4),
        (2, 5),
    ]


def bowl(settings) -> float:
    return (math.log10(settings["rate"]) + 2.5) ** 2 + ((settings["units"] - 40) / 20) ** 2


SPACE = {"rate": Range(1e-5, 1.0, log=True), "units": Range(1, 100)}


def tpe(n: int, seed: int, value) -> list[TuningTrial]:
    trials: list[TuningTrial] = []
    search = Search("tpe", SPACE, n, seed)
    for number in range(n):
        settings = suggest(search, trials)
        found = value(settings)
        state = "failed" if found is None else "finished"
        trials.append(TuningTrial(number, state, settings, found))
    return trials


def test_tpe_comes_closer_than_chance():
    """After ten random trials it samples where the earlier ones were good."""
    pytest.importorskip("optuna")
    for seed in range(3):
        trials = tpe(40, seed, bowl)
        random = [bowl(settings) for settings in first(Search("random", SPACE, 40, seed), 40)]
        assert np.median([trial.value for trial in trials[20:]]) < 0.7 * np.median(random)


def test_tpe_continues_as_if_it_had_not_been_stopped():
    pytest.importorskip("optuna")
    trials = tpe(14, 3, bowl)
    search = Search("tpe", SPACE, 14, 3)
    for n in (0, 5, 13):
        assert suggest(search, trials[:n]) == trials[n].settings


def test_tpe_leaves_the_region_in_which_trials_fail():
    pytest.importorskip("optuna")
    failed = []
    for seed in range(3):
        trials = tpe(40, seed, lambda settings: None if settings["rate"] > 1e-2 else bowl(settings))
        failed += [trial.value is None for trial in trials[20:]]
    assert np.mean(failed) < 0.3  # two of five decades fail: 0.4 by chance


def test_tpe_does_not_repeat_what_has_run_or_is_running_and_ends_when_all_has():
    pytest.importorskip("optuna")
    search = Search("tpe", {"a": Choice(([1], [2], [3]))}, 5)
    trials = [TuningTrial(0, "finished", {"a": [2]}, 0.1), TuningTrial(1, "running", {"a": [3]})]
    assert suggest(search, trials) == {"a": [1]}
    assert suggest(search, [*trials, TuningTrial(2, "finished", {"a": [1]}, math.inf)]) is None


@pytest.mark.parametrize("method", ["random", "tpe"])
def test_without_optuna_a_line_says_what_to_install(monkeypatch, method):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingLibrary, match=r"pip install '\.\[tune\]'"):
        suggest(Search(method, {"a": Range(0, 1)}, 5), [])
