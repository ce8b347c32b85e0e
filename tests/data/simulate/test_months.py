"""Every part of a year's drift against its formula, the events on their days, raw features."""

import json
import shutil
from dataclasses import replace
from datetime import date
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from cortext.cli import run
from cortext.config import with_overrides
from cortext.data import open_dataset, open_packed
from cortext.data.conventions import Conventions
from cortext.errors import ConfigError
from cortext.text import normalize
from cortext.text.lexicon import Lexicon
from cortext_data.simulate import PRESETS, preset_config, simulate
from cortext_data.simulate.brain import Electrodes, electrodes, later_in_day, vocabulary
from cortext_data.simulate.config import SimulatorConfig
from cortext_data.simulate.material import material_of
from cortext_data.simulate.months import drift_factor, events, later_days, later_trials
from cortext_data.simulate.plan import PlannedBlock, PlannedDay, PlannedTrial, Prompt, plan_days
from cortext_data.simulate.write import simulate_block

MONTHS = PRESETS["months"]
STEADY = replace(
    MONTHS,
    n_electrodes=256,
    tuning_drift=0.0,
    array_shifts=0.0,
    tuning_jumps=0.0,
    drift_spread=0.0,
    within_day=0.0,
    stable_tuning=0.0,
    channel_turnover=0.0,
    array_losses=0,
    garbage_days=0,
    reference_changes=0,
    silent_days=0,
)
"""Months in which nothing changes but gains and baselines."""
SMALL = [
    "n_electrodes=8",
    "n_days=2",
    "train_per_day=6",
    "val_per_day=2",
    "later_days=8",
    "later_span=80",
    "later_per_day=[3, 5]",
    "further_per_day=2",
]


def correlations(config: SimulatorConfig, a: Electrodes, b: Electrodes) -> np.ndarray:
    """Correlation of each electrode's drives on two days."""
    return np.einsum("ef,fg,eg->e", a.tuning_EF, vocabulary(config).covariance_FF, b.tuning_EF)


@pytest.mark.parametrize("days", [10, 40, 400])
def test_stable_share_of_tuning_stays_and_the_rest_decays(days):
    config = replace(STEADY, tuning_drift=0.03, stable_tuning=0.4)
    path = tuple(range(1, days + 2, 5))
    found = correlations(config, electrodes(config, (1,)), electrodes(config, path)).mean()
    assert found == pytest.approx(0.4 + 0.6 * np.exp(-0.03 * days), abs=0.06)


def every_forty_days(config: SimulatorConfig, n: int) -> np.ndarray:
    """Correlation of each electrode's drives on days 40 apart, [n, E]."""
    path = tuple(range(1, 40 * n + 2, 5))
    ends = [electrodes(config, path[: 8 * k + 1]) for k in range(n + 1)]
    return np.stack([correlations(config, a, b) for a, b in pairwise(ends)])


def test_moves_of_arrays_happen_at_their_rate_and_turn_all_electrodes_a_little():
    config = replace(STEADY, n_electrodes=64, array_shifts=0.05, array_shift=0.3)
    found = every_forty_days(config, 25)
    # An array moves twice in 40 days on average: exp(-0.05 * 0.3 * 40) = 0.549.
    assert found.mean() == pytest.approx(0.549, abs=0.06)
    of_arrays = found.reshape(-1, 16)
    still = (of_arrays > 0.999).all(axis=1)
    assert (still == (of_arrays > 0.999).any(axis=1)).all()
    # No move at all has a chance of exp(-2) = 0.135.
    assert still.mean() == pytest.approx(0.135, abs=0.08)


def test_jumps_give_their_share_of_electrodes_new_tuning_and_leave_the_others():
    config = replace(STEADY, n_electrodes=64, tuning_jumps=0.05, jump_share=0.25)
    found = every_forty_days(config, 25)
    same = found > 0.999
    # 2 jumps on average: exp(-0.05 * 0.25 * 40) = 0.607 of the electrodes are in none.
    assert same.mean() == pytest.approx(0.607, abs=0.08)
    assert np.abs(found[~same].mean()) < 0.05


def test_participants_differ_by_a_log_normal_factor():
    config = replace(STEADY, drift_spread=0.5)
    logs = np.log([drift_factor(replace(config, seed=seed)) for seed in range(300)])
    assert logs.mean() == pytest.approx(0, abs=0.1)
    assert logs.std() == pytest.approx(0.5, abs=0.07)
    assert drift_factor(STEADY) == 1


def test_day_moves_tuning_gain_and_baseline_like_so_many_days():
    config = replace(STEADY, tuning_drift=0.05, stable_tuning=0.4, within_day=4.0)
    morning = electrodes(config, (1,))
    assert later_in_day(morning, config, 1, 0) is morning
    noon, evening = (later_in_day(morning, config, 1, n) for n in (50, 100))
    for later, days in ((noon, 2), (evening, 4)):
        expected = 0.4 + 0.6 * np.exp(-0.05 * days)
        found = correlations(config, morning, later).mean()
        assert found == pytest.approx(expected, abs=0.03)
        alive = morning.alive_E
        gain = np.log(later.depth_E[alive] / morning.depth_E[alive])
        assert gain.std() == pytest.approx(config.gain_drift * days**0.5, rel=0.2)
        base = (later.baseline_E - morning.baseline_E)[alive]
        assert base.std() == pytest.approx(config.baseline_drift * days**0.5, rel=0.2)
    # Another day moves elsewhere: two fresh directions agree by chance alone.
    other = later_in_day(morning, config, 2, 100)
    assert correlations(config, evening, other).mean() < 0.95


def test_later_trials_of_a_day_are_recorded_with_later_electrodes():
    config = replace(STEADY, n_electrodes=16, within_day=50.0, tuning_drift=0.05)
    prompts = tuple(
        PlannedTrial(n, "train", Prompt("we had dinner by the sea", "grammar")) for n in range(2)
    )
    blocks = (PlannedBlock(1, prompts), PlannedBlock(2, prompts))
    day = PlannedDay("sim.2025.01.06", (1,), blocks)
    e = electrodes(config, (1,))
    second = simulate_block(config, day, blocks[1], e)[1].trial.features_TC
    # The same block with the electrodes after the three trials before, and none that move.
    still = replace(config, within_day=0.0)
    expected = simulate_block(still, day, blocks[1], later_in_day(e, config, 1, 3))
    np.testing.assert_array_equal(second, expected[1].trial.features_TC)


def test_plan_has_forty_days_over_400_with_twenty_to_sixty_sentences():
    for seed in range(5):
        config = replace(MONTHS, seed=seed)
        days = np.array(later_days(config))
        assert len(days) == 40
        assert days[0] > 12
        assert days[-1] <= 412
        assert (np.diff(days) > 0).all()
        counts = [later_trials(config, day) for day in days]
        assert 20 <= min(counts) < 30
        assert 50 < max(counts) <= 60
        begin, end = events(config).silence
        assert end - begin == 13
        assert begin >= 113
        assert not ((days >= begin) & (days <= end)).any()


def test_events_are_on_days_of_their_own_in_the_last_three_quarters():
    config = replace(MONTHS, array_losses=3, garbage_days=2, reference_changes=2)
    happened = events(config)
    days = [*happened.lost, *happened.garbage, *happened.references]
    places = sorted(later_days(config).index(day) for day in days)
    assert len(days) == 7
    assert min(np.diff(places)) >= 2
    assert min(days) >= 113
    too_many = replace(MONTHS, garbage_days=16)
    with pytest.raises(ConfigError, match="18 events need 36 days"):
        events(too_many)


def test_lost_array_is_silent_on_its_day_and_back_on_the_next():
    day, array = next(iter(events(MONTHS).lost.items()))
    place = later_days(MONTHS).index(day)
    path = (1, *later_days(MONTHS))
    before, lost, after = (electrodes(MONTHS, path[: place + n]) for n in (1, 2, 3))
    rows = np.arange(64) // 16 == array
    assert not lost.alive_E[rows].any()
    assert (lost.depth_E[rows] == 0).all()
    assert lost.alive_E[~rows].mean() > 0.7
    for each in (before, after):
        assert each.alive_E[rows].mean() > 0.5


def test_garbage_carries_no_speech_on_its_day_only():
    (day,) = events(MONTHS).garbage
    place = later_days(MONTHS).index(day)
    path = (1, *later_days(MONTHS))
    before, garbage, after = (electrodes(MONTHS, path[: place + n]) for n in (1, 2, 3))
    assert (garbage.depth_E == 0).all()
    assert (before.depth_E > 0).mean() > 0.6
    assert (after.depth_E > 0).mean() > 0.6


def test_changed_reference_shifts_its_array_and_adds_common_noise_from_its_day_on():
    config = replace(STEADY, n_electrodes=64, reference_changes=1, baseline_drift=0.0)
    since, array = next(iter(events(config).references.items()))
    path = (1, *later_days(config))
    place = path.index(since)
    rows = np.arange(64) // 16 == array
    before = electrodes(config, path[:place])
    assert before.reference_A is None
    for after in (electrodes(config, path[: place + 1]), electrodes(config, path)):
        moved = (after.baseline_E - before.baseline_E)[before.alive_E]
        expected = np.where(rows, 0.5, 0.0)[before.alive_E]
        np.testing.assert_allclose(moved, expected, atol=1e-5)
        assert after.reference_A.tolist() == [0.5 * (n == array) for n in range(4)]


def test_changed_reference_correlates_the_power_of_its_array():
    config = replace(STEADY, n_electrodes=32, reference_changes=1, reference_noise=2.0)
    since, array = next(iter(events(config).references.items()))
    path = (1, *later_days(config))
    trials = tuple(
        PlannedTrial(n, "train", Prompt("we had dinner by the sea", "")) for n in range(8)
    )
    block = PlannedBlock(1, trials)
    means = []
    for until in (path.index(since), path.index(since) + 1):
        day = PlannedDay("sim.2025.01.06", path[:until], (block,))
        made = simulate_block(config, day, block, electrodes(config, path[:until]))
        power = np.concatenate([one.trial.features_TC for one in made])[:, 32:]
        fast = np.diff(np.log(power), axis=0).reshape(-1, 4, 8)
        means.append([np.corrcoef(fast[:, a].T)[np.triu_indices(8, 1)].mean() for a in range(4)])
    gained = np.array(means[1]) - means[0]
    assert gained[array] > 0.3
    assert np.abs(np.delete(gained, array)).max() < 0.1


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("later_span=50", "later_span is 50; it must be 54 or more"),
        ("later_per_day=[0, 5]", "later_per_day is .*positive"),
        ("stable_tuning=1", "stable_tuning is 1.* below 1"),
        ("further_per_day=-1", "further_per_day is -1"),
    ],
)
def test_settings_that_cannot_be_are_named(override, message):
    with pytest.raises(ConfigError, match=message):
        with_overrides(MONTHS, [override])


def test_events_need_months():
    with pytest.raises(ConfigError, match="garbage_days is 1; it must be 0 unless plan=months"):
        preset_config("tiny", ["garbage_days=1"])


@pytest.fixture(scope="module")
def months(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("months") / "small"
    simulate(out, "months", truth=True, workers=1, overrides=SMALL)
    return out


def test_any_number_of_workers_gives_the_same_bits(months, tmp_path):
    simulate(tmp_path / "two", "months", truth=True, workers=2, overrides=SMALL)
    for path in sorted(months.rglob("*.*")):
        if path.is_file():
            assert (tmp_path / "two" / path.relative_to(months)).read_bytes() == path.read_bytes()


def test_features_are_counts_and_power_as_recorded(months):
    assert Conventions.read(months).features == "raw"
    assert json.loads((months / "simulation.json").read_text())["config"]["normalise"] == "none"
    features = np.concatenate([trial.features_TC for trial in open_dataset(months).trials("train")])
    counts, power = features[:, :8], features[:, 8:]
    assert (counts == np.round(counts)).all()
    assert counts.min() == 0
    # 22 Hz at rest in bins of 20 ms, more in speech; power is 1 at the median electrode's rest.
    assert 0.3 < np.median(counts.mean(axis=0)) < 1.2
    assert power.min() > 0
    assert 0.7 < np.median(power) < 1.5


def inspected(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Output of `cortext inspect` for a data set."""
    assert run(["inspect", str(path), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_raw_months_are_packed_by_the_past_alone_and_inspected(months, tmp_path, capsys):
    for name, source in (("all", months), ("fewer", tmp_path / "fewer")):
        if name == "fewer":
            shutil.copytree(months, source)
            last = max(path.name for path in source.glob("sim.*"))
            shutil.rmtree(source / last)
        assert run(["pack", str(source), "--out", str(tmp_path / f"packed-{name}")]) == 0
    capsys.readouterr()
    # Two days of 6 and 2 sentences, and eight with 2 that judge.
    for path in (months, tmp_path / "packed-all"):
        found = inspected(path, capsys)
        assert found["problems"] == []
        assert {row["split"]: row["n_trials"] for row in found["totals"]}["val"] == 20
    assert "raw" in json.dumps(inspected(months, capsys)["conventions"])
    whole, fewer = (open_packed(tmp_path / f"packed-{name}") for name in ("all", "fewer"))
    assert len(fewer.sessions) == len(whole.sessions) - 1
    for split in ("train", "val"):
        for row in range(len(fewer.split(split))):
            one, other = (each.split(split).trial(row) for each in (fewer, whole))
            np.testing.assert_array_equal(one.features_TC, other.features_TC)
            assert np.abs(one.features_TC).max() <= 10


def test_level_of_power_follows_the_baseline():
    trials = (PlannedTrial(0, "train", Prompt("we had dinner by the sea", "")),)
    day = PlannedDay("sim.2025.01.06", (1,), (PlannedBlock(1, trials),))
    e = electrodes(STEADY, (1,))
    louder = replace(e, baseline_E=e.baseline_E + np.float32(0.8))
    one, other = (
        simulate_block(STEADY, day, day.blocks[0], each)[0].trial.features_TC
        for each in (e, louder)
    )
    # 0.25 of the log rate; the counts, from which power also follows a little, change too.
    gained = np.log(other[:, 256:].mean(axis=0) / one[:, 256:].mean(axis=0))
    assert np.median(gained) == pytest.approx(0.2, abs=0.03)


def test_truth_names_the_events_and_has_the_evening(months):
    config = preset_config("months", SMALL)
    named = {}
    for day in plan_days_of(config):
        with h5py.File(months / day.session / "truth.hdf5") as truth:
            named[day.day] = list(truth.attrs["events"])
            n = day.n_trials
            expected = later_in_day(electrodes(config, day.history), config, day.day, n)
            np.testing.assert_array_equal(truth["evening/tuning_EF"], expected.tuning_EF)
    happened = events(config)
    assert [day for day, names in named.items() if "garbage" in names] == list(happened.garbage)
    (lost,) = happened.lost
    assert [day for day, names in named.items() if any("lost" in n for n in names)] == [lost]
    (since,) = happened.references
    changed = [day for day, names in named.items() if any("reference" in n for n in names)]
    assert changed == [day for day in named if day >= since]


def plan_days_of(config: SimulatorConfig) -> list[PlannedDay]:
    """The days of a plan, with sentences that do not matter."""
    return plan_days(config, {s: [Prompt("x", "")] * 10_000 for s in ("train", "val", "test")})


def test_sessions_have_the_date_of_their_day(months):
    days = plan_days_of(preset_config("months", SMALL))
    assert sorted(path.name for path in months.glob("sim.*")) == [day.session for day in days]
    for day in days:
        when = date(*map(int, day.session.split(".")[1:]))
        assert (when - date(2025, 1, 6)).days + 1 == day.day


def test_share_of_the_sentences_ends_with_a_name_that_no_lexicon_has():
    config, material = material_of(replace(MONTHS, n_days=1, further_per_day=5), "months")
    prompts, lm_text = material.prompts(config)
    listed = set(handwritten_names())
    assert len(listed) > 50
    assert not set(Lexicon.cmu()) & listed
    for split in ("train", "val"):
        last = [normalize(prompt.text).split()[-1] for prompt in prompts[split]]
        named = [word for word in last if word in listed]
        assert len(named) == round(0.05 * len(last)) > 5
        assert len(set(named)) > 4
    assert not {word for line in lm_text for word in normalize(line).split()} & listed
    plain, _ = material.prompts(replace(config, name_share=0.0))
    for with_name, without in zip(prompts["val"], plain["val"], strict=True):
        words = normalize(with_name.text).split()
        assert words[: len(normalize(without.text).split())] == normalize(without.text).split()


def handwritten_names() -> list[str]:
    """The names of the package."""
    folder = resources.files("cortext_data.simulate") / "text"
    return (folder / "names.txt").read_text().lower().split()


def test_names_need_english_phonemes(tmp_path):
    with pytest.raises(ConfigError, match="name_share needs English phonemes"):
        simulate(tmp_path / "out", "spanish", overrides=["name_share=0.1"])
