import csv
from collections import Counter
from dataclasses import replace
from datetime import date

import pytest

from cortext.config import with_overrides
from cortext.errors import ConfigError
from cortext_data.simulate.config import PRESETS, preset_config
from cortext_data.simulate.plan import PlannedDay, Prompt, plan_days, trial_counts
from cortext_data.simulate.streams import Purpose, stream


def planned(preset: str) -> list[PlannedDay]:
    counts = trial_counts(PRESETS[preset])
    prompts = {
        split: [Prompt(f"{split} {i}", "grammar") for i in range(n)] for split, n in counts.items()
    }
    return plan_days(PRESETS[preset], prompts)


def test_t15_has_the_release_s_sessions_and_nearly_its_trials():
    # The release holds 8,072 / 1,426 / 1,450 trials after a few bad ones were removed from the
    # table's blocks.
    assert trial_counts(PRESETS["t15"]) == {"train": 8234, "val": 1452, "test": 1476}
    days = planned("t15")
    assert len(days) == 45
    assert days[0].session == "sim.2023.08.11"
    assert days[-1].session == "sim.2025.04.13"
    assert sum(any(True for _ in day.blocks_with("val")) for day in days) == 41


def test_t15_agrees_with_the_release_s_table(real_data):
    with (real_data / "t15" / "t15_copyTaskData_description.csv").open(
        encoding="utf-8-sig"
    ) as file:
        table = list(csv.reader(file))[1:]
    blocks = [(day, block) for day in planned("t15") for block in day.blocks]
    assert len(blocks) == len(table)
    for (day, block), (when, post_implant, number, n, corpus, split) in zip(
        blocks, table, strict=True
    ):
        assert day.session == f"sim.{when.replace('-', '.')}"
        assert (day.day, block.number, len(block.trials)) == (
            int(post_implant),
            int(number),
            int(n),
        )
        assert {trial.prompt.corpus for trial in block.trials} == {corpus}
        assert {trial.split for trial in block.trials} == (
            {"train"} if split == "Train" else {"val", "test"}
        )


def test_demo_is_recorded_on_the_clinic_s_weekdays():
    days = planned("demo")
    when = [date(*map(int, day.session.split(".")[1:])) for day in days]
    assert [day.weekday() for day in when] == [0, 2, 4, 0, 2, 4]
    assert [(day - when[0]).days + 1 for day in when] == [day.day for day in days]
    assert days[2].history == (1, 3, 5)


def test_every_prompt_is_said_once_and_in_its_split():
    config = PRESETS["demo"]
    trials = [trial for day in planned("demo") for block in day.blocks for trial in block.trials]
    assert Counter(trial.split for trial in trials) == trial_counts(config)
    assert all(trial.prompt.text.startswith(trial.split) for trial in trials)
    assert len({trial.prompt.text for trial in trials}) == len(trials)


def test_blocks_are_short_and_held_out_trials_have_blocks_of_their_own():
    for day in planned("demo"):
        for block in day.blocks:
            assert len(block.trials) <= PRESETS["demo"].trials_per_block
            assert [trial.number for trial in block.trials] == list(range(len(block.trials)))
            assert {trial.split for trial in block.trials} in ({"train"}, {"val", "test"})


def test_streams_are_named_by_what_they_are_for():
    first = stream(1, Purpose.SPIKES, 2, 3, 4).random(8)
    assert (first == stream(1, Purpose.SPIKES, 2, 3, 4).random(8)).all()
    for other in [(2, 3, 5), (2, 4, 4), (3, 3, 4)]:
        assert not (first == stream(1, Purpose.SPIKES, *other).random(8)).any()
    assert not (first == stream(1, Purpose.POWER, 2, 3, 4).random(8)).any()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("n_electrodes=30", "n_electrodes is 30; it must be a multiple of 4"),
        ("snr=-1", "snr is -1.0; it must be at least 0 and finite"),
        ("snr=.inf", "snr is inf; it must be at least 0 and finite"),
        ("latent_s=[1, .inf]", "latent_s is [1.0, inf]"),
        ("seed=-1", "seed is -1"),
        ("baseline_hz=200", "baseline_hz is 200.0; it must be above 0 and at most 100"),
        ("n_latents=3", "n_latents is 3; it must be at least 10"),
        ("lead_ms=[200, 40]", "lead_ms is [200.0, 40.0]"),
        ("snrr=1", "did you mean 'snr'?"),
        ("attempt=whispered", "one of 'vocalized', 'silent' is needed"),
    ],
)
def test_a_value_that_cannot_be_right_is_named(override, message):
    with pytest.raises(ConfigError) as caught:
        with_overrides(PRESETS["demo"], [override])
    assert message in str(caught.value)


def test_an_unknown_preset_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match="unknown preset 'demmo'; did you mean 'demo'"):
        preset_config("demmo")


def test_a_seed_replaces_the_preset_s():
    assert preset_config("tiny", ["snr=2"], seed=9) == replace(PRESETS["tiny"], snr=2.0, seed=9)
