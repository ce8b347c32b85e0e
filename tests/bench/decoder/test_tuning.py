import pytest

from cortext_bench.decoder.searcher import SEARCHERS, searcher
from cortext_bench.decoder.tuning import Tried, best, fastest, frontier, tune

STEPS = {"scale": tuple(range(10)), "score": tuple(range(10)), "beam": tuple(range(1, 13))}
START = {"scale": 2, "score": 8, "beam": 12}


def bowl(settings):
    """Errors have their minimum at scale 6 and score 4 and do not rise above beam 5.

    Time grows with the beam.
    """
    short = max(0, 5 - settings["beam"])
    errors = (settings["scale"] - 6) ** 2 + (settings["score"] - 4) ** 2 + 5 * short
    return 0.1 + 0.01 * errors, float(settings["beam"])


def test_the_best_settings_are_found_and_then_the_fastest_as_good():
    tried = tune("any", START, STEPS, {"beam": -1}, bowl, 90)
    assert best(tried).wer == pytest.approx(0.1)
    assert {name: best(tried).settings[name] for name in ("scale", "score")} == {
        "scale": 6,
        "score": 4,
    }
    assert fastest(tried, 0.1).settings["beam"] == 5


def test_every_search_gets_the_same_number_of_different_trials():
    for name in ("one", "other"):
        tried = tune(name, START, STEPS, {"beam": -1}, bowl, 40)
        assert len(tried) == 40
        assert len({tuple(one.settings.items()) for one in tried}) == 40
        assert tried[0].settings == START


def test_tuning_is_repeatable_and_ends_where_nothing_is_left():
    assert tune("a", START, STEPS, {"beam": -1}, bowl, 20) == tune(
        "a", START, STEPS, {"beam": -1}, bowl, 20
    )
    tried = tune(
        "a",
        {"beam": 1},
        {"beam": (1, 2)},
        {"beam": -1},
        lambda settings: (0.5, settings["beam"]),
        50,
    )
    assert {one.settings["beam"] for one in tried} <= {1, 2}


def test_of_equals_the_faster_is_better():
    slow, fast, wrong = (
        Tried({"beam": 9}, 0.2, 3.0),
        Tried({"beam": 5}, 0.2, 1.0),
        Tried({"beam": 1}, 0.3, 0.1),
    )
    assert best([slow, fast, wrong]) is fast
    assert fastest([slow, fast, wrong], 0.25) is fast
    assert fastest([slow, fast, wrong], 0.3) is wrong
    assert fastest([slow, fast, wrong], 0.1) is fast  # none reaches it: the best


def test_the_best_setting_is_tried_in_every_size():
    sizes = [{"beam": 1}, {"beam": 2}, {"beam": 5}]
    tried = tune("any", START, STEPS, {"beam": -1}, bowl, 90, sizes)
    chosen = best(tried[:90]).settings
    assert chosen["beam"] == 5
    assert [one.settings for one in tried[90:]] == [
        chosen | size for size in sizes if chosen | size not in [one.settings for one in tried[:90]]
    ]
    assert all(chosen | size in [one.settings for one in tried] for size in sizes)


def test_the_frontier_holds_what_nothing_else_beats():
    slow, fast, between = (
        Tried({"beam": 9}, 0.20, 8.0),
        Tried({"beam": 1}, 0.40, 1.0),
        Tried({"beam": 4}, 0.30, 2.0),
    )
    beaten = [Tried({"beam": 5}, 0.30, 3.0), Tried({"beam": 6}, 0.45, 1.0)]
    assert frontier([slow, *beaten, fast, between]) == [fast, between, slow]


def test_a_long_frontier_keeps_its_ends_and_is_thinned_where_it_is_dense():
    tried = [Tried({"beam": ms}, 1 / ms, ms) for ms in (1.0, 2.0, 2.1, 4.0, 8.0)]
    assert [one.ms for one in frontier(tried, 4)] == [
        1.0,
        2.0,
        4.0,
        8.0,
    ]  # 2.1 lies in the narrowest gap
    assert [one.ms for one in frontier(tried, 2)] == [1.0, 8.0]


@pytest.mark.parametrize("name", SEARCHERS)
def test_every_size_changes_what_trades_errors_for_time(name):
    kind = searcher(name)
    assert len(kind.sizes) > 3
    for size in kind.sizes:
        assert all(value in kind.steps[setting] for setting, value in size.items())
        assert set(kind.speed) & set(size)


@pytest.mark.parametrize("name", SEARCHERS)
def test_every_search_starts_from_values_that_tuning_may_choose(name):
    kind = searcher(name)
    assert set(kind.start) == set(kind.steps)
    assert all(kind.start[setting] in kind.steps[setting] for setting in kind.start)
    assert set(kind.speed) <= set(kind.steps)
