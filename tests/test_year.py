"""The study of a year: its arithmetic by hand, its plan, and a small one from end to end."""

import json

import pytest

import year
from cortext.data.simulate import preset_config
from year_tables import at_day, rate, summary, undisturbed


def day(number: int, errors: int, *events: str) -> dict:
    """The errors of a day with 100 phonemes and 20 words."""
    counts = {"phoneme_errors": errors, "phonemes": 100, "word_errors": errors // 2, "words": 20}
    return {"day": number, "events": list(events)} | counts


DAYS = [
    day(8, 10),
    day(18, 20),
    day(38, 40),
    day(48, 90, "garbage"),
    day(60, 44, "other reference: 55b"),
    day(70, 80, "lost: area 4", "other reference: 55b"),
    day(80, 48),
    day(90, 52),
]


def test_rates_are_of_all_sentences_together():
    assert rate(DAYS[:2], "phoneme") == pytest.approx(0.15)
    assert rate(DAYS[:3], "word") == pytest.approx(35 / 60)


def test_published_day_is_interpolated_between_undisturbed_days():
    # From 20 % at day 18 to 40 % at day 38, then to 44 % at day 60.
    assert at_day(DAYS, 28) == pytest.approx(0.30)
    assert at_day(DAYS, 49) == pytest.approx(0.42)


def test_lost_arrays_and_garbage_are_apart_and_changed_references_are_not():
    assert [each["day"] for each in undisturbed(DAYS)] == [8, 18, 38, 60, 80, 90]
    (row,) = summary([{"method": "frozen", "drift": "usual", "seed": 3, "days": DAYS}])["rows"]
    assert row["per"] == pytest.approx([0.15, 0.40, 0.44, 0.50])
    assert row["wer"] == pytest.approx([15 / 40, 1.0, 1.1, 50 / 40])
    assert row["worst_per"] == pytest.approx(0.52)
    assert row["missed_days"] == [18, 38, 60, 80, 90]
    assert row["disturbed"] == pytest.approx({"garbage": 0.9, "lost: area 4": 0.8})


def test_half_and_double_drift_change_rates_and_no_size():
    usual, half, double = (
        preset_config("months", year.overrides(name)) for name in ("usual", "half", "double")
    )
    assert double.tuning_jumps == pytest.approx(4 * half.tuning_jumps)
    assert double.within_day == pytest.approx(2 * usual.within_day)
    for name in ("jump_share", "array_shift", "stable_tuning", "garbage_days", "snr"):
        assert getattr(half, name) == getattr(usual, name) == getattr(double, name)


def test_all_participants_are_in_all_parts():
    parts = year.study()
    assert {part: len(pieces) for part, pieces in parts.items()} == {
        "frozen": 10,
        "daily": 10,
        "frozen-half": 10,
        "frozen-double": 10,
        "daily-half": 10,
        "daily-double": 10,
    }
    names = [piece.path(year.Path()) for pieces in parts.values() for piece in pieces]
    assert len(set(names)) == 60


@pytest.mark.slow
def test_small_year_goes_from_recordings_to_tables_and_repeats_nothing(
    tmp_path, monkeypatch, capsys
):
    small = ["n_electrodes=8", "n_days=2", "train_per_day=12", "val_per_day=6", "later_days=8"]
    small += ["later_span=80", "later_per_day=[6, 6]", "further_per_day=2", "phoneme_ms=150"]
    monkeypatch.setattr(year, "SIMULATION", small)
    sizes = ["model.n_units=16", "dataset.batch_size=8", "dataset.days_per_batch=2"]
    steps = ["num_training_batches=4", "lr_decay_steps=4", "lr_decay_steps_day=4"]
    warmup = ["lr_warmup_steps=1", "lr_warmup_steps_day=1", "batches_per_val_step=2"]
    monkeypatch.setattr(year, "RECIPE", [*sizes, *steps, *warmup])
    monkeypatch.setattr(year, "DAILY", {"batches": 2, "old_trials": 4})
    monkeypatch.setattr(year, "LABELLED", 4)
    monkeypatch.setattr(year, "WORST_PER", 2.0)
    text = tmp_path / "english.txt"
    text.write_text("we had dinner by the sea .\nplease open the window before dinner .\n" * 3)
    arguments = ["year.py", "--out", str(tmp_path / "out"), "--text", str(text), "--seeds", "4"]
    arguments += ["--part", "frozen", "daily"]
    found = []
    for name in ("first", "second"):
        written = [f"--json={tmp_path / name}.json", f"--plot={tmp_path / name}.png"]
        monkeypatch.setattr("sys.argv", [*arguments, *written])
        year.main()
        found.append(json.loads((tmp_path / f"{name}.json").read_text()))
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        assert "\nusual drift, daily\n\n| participant |" in capsys.readouterr().out
    first, second = found
    assert first["pieces"] == second["pieces"]
    assert [piece["method"] for piece in first["pieces"]] == ["frozen", "daily"]
    for piece in first["pieces"]:
        assert len(piece["days"]) == 8
        assert all(each["phoneme_errors"] >= 0 for each in piece["days"])
        assert [name for each in piece["days"] for name in each["events"]].count("garbage") == 1
    # Both judge the same sentences, and only the daily model has learnt.
    frozen, daily = (piece["days"] for piece in first["pieces"])
    assert [each["phonemes"] for each in frozen] == [each["phonemes"] for each in daily]
    assert frozen[-1]["phoneme_errors"] != daily[-1]["phoneme_errors"]
    assert not (tmp_path / "out" / "daily" / "usual-4").exists()
