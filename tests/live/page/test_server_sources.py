"""The sources of trials: the server plays the same bins as offline evaluation reads."""

import numpy as np
import pytest
from page_process import DAYS

from cortext.data import open_dataset, pack
from cortext.errors import ConfigError, CortextError, DataError, RunError
from cortext_data.simulate import simulate
from cortext_live.page.settings import LiveSettings
from cortext_live.page.setup import shown_name
from cortext_live.page.sources import Replay, Simulator


@pytest.fixture(scope="module")
def data(page_root):
    return page_root / "data"


@pytest.fixture(scope="module")
def simulator():
    return Simulator("tiny", ["sim.2025.01.06", "sim.2025.01.08"])


def test_replays_the_trials_of_a_split_in_order(data):
    source = Replay(data, "val")
    assert (source.sessions, source.n_features) == (DAYS, 48)
    numbers, number = [], source.after(None, None)
    while number is not None:
        numbers.append(number)
        number = source.after(number, None)
    for number, expected in zip(numbers, open_dataset(data).trials("val"), strict=True):
        trial = source.trial(number)
        assert (trial.session, trial.block, trial.trial, trial.sentence) == (
            (expected.session, expected.block, expected.trial, expected.sentence)
        )
        np.testing.assert_array_equal(
            trial.features_TC, expected.features_TC.astype(np.float16).astype(np.float32)
        )
        assert trial.features_TC.dtype == np.float32


def test_packed_directories_are_replayed_too(data, tmp_path):
    pack(data, tmp_path / "packed")
    first, second = Replay(data, "val"), Replay(tmp_path / "packed", "val")
    assert second.listing() == first.listing()
    np.testing.assert_array_equal(second.trial(4).features_TC, first.trial(4).features_TC)


def test_a_session_can_be_chosen_and_played_round(data):
    source = Replay(data, "val", loop=True)
    assert [source.after(number, DAYS[1]) for number in (None, 1, 3, 4, 5)] == [3, 3, 4, 5, 3]
    assert source.after(5, None) == 0
    with pytest.raises(DataError, match="did you mean"):
        source.after(None, "t15.2023.08.1")


def test_the_simulator_goes_on_for_ever_and_repeats_itself_by_number(simulator):
    source = simulator
    assert (source.sessions, source.n_features, source.listing()) == (("sim.2025.01.08",), 32, [])
    assert [source.after(number, None) for number in (None, 0, 10**6)] == [0, 1, 10**6 + 1]
    first, again, later = source.trial(3), source.trial(3), source.trial(10**6 + 3)
    np.testing.assert_array_equal(first.features_TC, again.features_TC)
    assert first.session == "sim.2025.01.08"
    assert abs(float(later.features_TC.std()) - 1) < 0.2  # z-scored, over its block
    with pytest.raises(DataError, match="no trial -1"):
        source.trial(-1)


def test_the_simulator_says_what_was_held_out_with_new_noise(simulator, tmp_path):
    (session,) = simulator.sessions
    recorded = {
        trial.sentence: trial
        for trial in simulate(tmp_path / "data", "tiny").trials("val", [session])
    }
    again = [trial for trial in map(simulator.trial, range(18)) if trial.sentence in recorded]
    assert {trial.sentence for trial in again} == set(recorded)
    for trial in again:
        assert not np.array_equal(trial.features_TC[:50], recorded[trial.sentence].features_TC[:50])


def test_a_simulation_that_the_run_knows_nothing_of_is_refused():
    with pytest.raises(RunError, match="the run knows none of the days that 'tiny' simulates"):
        Simulator("tiny", DAYS)
    with pytest.raises(ConfigError, match="unknown preset 'tinny'; did you mean 'tiny'"):
        Simulator("tinny", DAYS)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({}, "give one of --data, --simulate and --feed"),
        ({"feed": True, "simulate": "tiny"}, "give one of --data, --simulate and --feed"),
        ({"feed": True, "overrides": ["seed=1"]}, "--set changes a simulation"),
        ({"feed": True, "record_all": True}, "--record-all has no log"),
        ({"feed": True, "speed": 0.0}, "speed is 0.0; a number above 0 is needed"),
    ],
)
def test_what_cannot_be_served_is_said_before_anything_is_read(tmp_path, settings, line):
    with pytest.raises(CortextError, match=line):
        LiveSettings(tmp_path / "run", tmp_path / "lm", **settings)


@pytest.mark.parametrize(
    ("folder", "name"),
    [("demo/run", "demo"), ("demo/lm", "demo-lm"), ("demo/gru-3", "gru-3"), ("/run", "run")],
)
def test_a_folder_of_a_usual_name_takes_that_of_its_project(tmp_path, folder, name):
    assert shown_name(tmp_path / folder) == name
