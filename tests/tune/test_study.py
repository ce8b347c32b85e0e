"""A search directory: its description, and trials in a file that several processes share."""

import json
import resource
import sys

import pytest

from cortext.errors import DecodingError, MissingLibrary, RunError
from cortext_tune.search import Search
from cortext_tune.space import Choice, Range
from cortext_tune.study import Given, TrialStore, begin_study

SPACE = {"beam": Range(1.0, 9.0), "recombine": Choice(("max", "logadd"))}


@pytest.fixture
def open_store(tmp_path):
    """Opens the store of one directory, as another process would."""
    pytest.importorskip("optuna")
    opened = []

    def make(n_trials=6, given=(), as_options=None, out=tmp_path) -> TrialStore:
        opened.append(TrialStore(out, Search("tpe", SPACE, n_trials, 3), given, as_options))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def finish_all(store: TrialStore) -> list[dict]:
    found = []
    while (trial := store.claim()) is not None:
        store.finish(trial.number, trial.settings["beam"], {"errors": [1]})
        found.append(trial.settings)
    return found


def test_given_options_come_first_and_what_lies_outside_of_the_space_is_not_reported(open_store):
    outside = Given({"beam": 99.0}, {"recombine": "max"})
    store = open_store(3, [Given({"beam": 2.0}, {"beam": 2.0, "recombine": "max"}), outside])
    trials = [store.claim() for _ in range(3)]
    assert [trial.options for trial in trials[:2]] == [{"beam": 2.0}, {"beam": 99.0}]
    assert trials[1].settings == {"recombine": "max"}
    assert trials[2].settings.keys() == SPACE.keys()
    assert store.claim() is None


def test_a_trial_of_a_process_that_is_gone_is_taken_over_once_and_one_of_a_living_one_is_not(
    open_store,
):
    first, second = open_store(), open_store()
    begun = [first.claim(), first.claim()]
    assert second.claim().number == 2
    first.close()  # as the end of its process does, it drops the locks
    again = [second.claim(), second.claim()]
    assert [trial.number for trial in again] == [0, 1]
    assert [trial.settings for trial in again] == [trial.settings for trial in begun]
    for number in (0, 1, 2):
        second.finish(number, float(number), {"errors": [number]})
    assert [trial.value for trial in second.trials()] == [0.0, 1.0, 2.0]


def test_two_at_once_try_no_more_than_what_was_asked_for_and_nothing_twice(open_store):
    first, second = open_store(), open_store()
    running = [store.claim() for store in (first, second, first, second, first, second)]
    assert [trial.number for trial in running] == [0, 1, 2, 3, 4, 5]
    assert len({str(trial.settings) for trial in running}) == 6
    assert first.claim() is None
    assert second.claim() is None
    assert [trial.state for trial in first.trials()] == ["running"] * 6


def test_a_search_that_was_stopped_draws_what_it_would_have_drawn(open_store, tmp_path):
    whole = finish_all(open_store(14, out=tmp_path / "whole"))
    parts = finish_all(open_store(5, out=tmp_path / "parts"))
    parts += finish_all(open_store(14, out=tmp_path / "parts"))
    assert parts == whole
    assert len(whole) == 14


def test_what_came_of_each_trial_is_kept(open_store):
    store = open_store()
    numbers = [store.claim().number for _ in range(3)]
    store.finish(numbers[0], 7.5, {"errors": [1, 2], "ms_per_frame": 0.1})
    store.prune(numbers[1], {"errors": [9]})
    store.fail(numbers[2], "no memory")
    store.remember("part", {"errors": [3]})
    one, two, three = open_store().trials()
    assert (one.state, one.value, one.metrics) == (
        "finished",
        7.5,
        {"errors": [1, 2], "ms_per_frame": 0.1},
    )
    assert (two.state, two.value, two.metrics) == ("pruned", None, {"errors": [9]})
    assert (three.state, three.reason) == ("failed", "no memory")
    assert open_store().recall("part") == {"errors": [3]}
    assert open_store().recall("other") is None


def test_options_that_do_not_go_together_are_failed_trials(open_store):
    def as_options(settings):
        if settings["recombine"] == "max":
            raise DecodingError("not with max")
        return settings

    store = open_store(8, as_options=as_options)
    finish_all(store)
    trials = store.trials()
    assert len(trials) == 8
    assert {trial.settings["recombine"]: (trial.state, trial.reason) for trial in trials} == {
        "max": ("failed", "not with max"),
        "logadd": ("finished", None),
    }


def test_what_failed_is_tried_again_when_asked_and_not_counted_twice(open_store):
    def as_options(settings):
        if settings["recombine"] == "max" and settings["beam"] != 2.0:
            raise DecodingError("not with max")
        return settings

    given = [Given({"beam": 2.0}, {"beam": 2.0, "recombine": "max"})]
    store = open_store(4, given, as_options)
    store.fail(store.claim().number, "no memory")
    finish_all(store)
    before = store.trials()
    assert len(before) == 4
    # What does not go together is not tried.
    assert open_store(4, given, as_options).retry_failed() == 1
    # Fewer are asked for than there are: it is tried all the same.
    again = open_store(2, given, as_options)
    assert again.retry_failed() == 0  # by two processes at once
    trial = again.claim()
    assert (trial.options, trial.settings) == (before[0].options, before[0].settings)
    again.finish(trial.number, 1.5, {"errors": [1]})
    assert again.claim() is None
    assert again.trials()[1:] == before[1:]
    assert again.trials()[0].value == 1.5


@pytest.mark.parametrize("more", [0, 20])  # bytes that still fit: none, and a part of a line
def test_a_full_disk_is_one_line_and_the_search_continues_once_there_is_room(
    open_store, tmp_path, more
):
    store = open_store()
    trial = store.claim()
    room, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = store.file.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + more, most))
    try:
        with pytest.raises(
            RunError, match=r"study\.journal: cannot be used: .*File too large.*; make room"
        ):
            store.finish(trial.number, 1.0, {"errors": [1]})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, most))
    assert store.file.stat().st_size == size + more
    store.close()
    other = open_store()
    assert other.claim().number == trial.number
    other.finish(trial.number, 1.0, {"errors": [1]})
    assert [one.value for one in other.trials()] == [1.0]
    assert [one.value for one in store.trials()] == [1.0]


def test_a_damaged_file_and_a_missing_library_are_one_line(tmp_path, open_store, monkeypatch):
    (tmp_path / "study.journal").write_text("no journal\n" * 100)
    with pytest.raises(RunError, match=r"study.journal: cannot be used: .*; .*give another --out"):
        open_store()
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingLibrary, match=r"pip install '\.\[tune\]'"):
        open_store()


def test_the_file_is_one_that_optuna_reads(open_store, states, tmp_path):
    finish_all(open_store(2))
    assert states(tmp_path) == ["COMPLETE"] * 2


SEED = {"search": {"seed": 0}}


def test_another_search_in_the_same_directory_is_refused(tmp_path):
    begin_study(tmp_path, SEED, lambda name: False)
    assert json.loads((tmp_path / "study.json").read_text())["description"] == SEED
    begin_study(tmp_path, SEED, lambda name: False)
    with pytest.raises(
        RunError, match=r"begun with search.seed = 0, now it is 1; .* another --out"
    ):
        begin_study(tmp_path, {"search": {"seed": 1}}, lambda name: False)


def test_a_foreign_directory_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(RunError, match="something else than a search"):
        begin_study(tmp_path, SEED, lambda name: False)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"format_version": 2, "description": {}}', '{"format_version": 1}'],
)
def test_a_damaged_description_is_named(tmp_path, content):
    (tmp_path / "study.json").write_text(content)
    with pytest.raises(RunError, match=r"study.json: the search cannot be read: .*"):
        begin_study(tmp_path, SEED, lambda name: False)
