"""The study of a year: its arithmetic by hand, its plan, and a small one from end to end."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import t

import year
import year_learning
from cortext.data import pack
from cortext_data.simulate import preset_config, simulate
from cortext_live.recalibration.recorded import LoggedSentences
from cortext_live.usage.heard import HeardFeatures
from cortext_live.usage.writer import UsageLog
from year_confidence import confidence_by_quarter
from year_learning import COURSES, Course, Year, disturbance, least_sure
from year_tables import (
    at_day,
    beside_daily,
    day_after,
    mean_and_half_width,
    paired,
    promotions,
    rate,
    summary,
    undisturbed,
)


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
    assert row["retained"] is None


def test_retained_errors_are_of_the_last_day():
    days = [*DAYS[:-1], DAYS[-1] | {"retained": day(0, 30)}]
    (row,) = summary([piece("service", days)])["rows"]
    assert row["retained"] == pytest.approx([0.30, 15 / 20])


def piece(method: str, days: list[dict], seed: int = 3) -> dict:
    return {"method": method, "drift": "usual", "seed": seed, "days": days}


def test_differences_to_daily_labels_are_of_days_and_leave_disturbed_ones_out():
    daily = [day(n, 10) for n in range(24)]
    own = [day(n, 10 + 4 * (n % 6)) for n in range(18)]
    own += [day(n, 90, "garbage") for n in range(18, 23)] + [day(23, 50)]
    rows = beside_daily([piece("daily", daily), piece("service", own), piece("service", own, 4)])
    assert [(row["method"], row["seed"]) for row in rows] == [("service", 3)]
    # By hand: 5 + 2 n of 20 words are wrong, daily 5, so 10 n points more, n from 0 to 5.
    quarters = rows[0]["points"]
    assert quarters[0][0] == pytest.approx(25)
    half = t.ppf(0.975, 5) * np.std([0, 10, 20, 30, 40, 50], ddof=1) / np.sqrt(6)
    assert quarters[0][1] == pytest.approx(half, rel=5e-3)
    assert quarters[3] == (pytest.approx(100 * (25 - 5) / 20), None)


def test_mean_has_students_interval():
    values = np.random.default_rng(0).normal(size=10).tolist()
    mean, half = mean_and_half_width(values)
    assert mean == pytest.approx(np.mean(values))
    assert half == pytest.approx(t.ppf(0.975, 9) * np.std(values, ddof=1) / np.sqrt(10), rel=2e-3)


def test_promoted_models_are_compared_with_their_parents_while_they_are_the_parent():
    same = [(1, 5), (0, 5)]
    days = [
        {"promoted": 0},
        {"promoted": 4, "promoted_by_sentence": [(2, 5), (1, 5)], "parent_by_sentence": same},
        {"promoted": 4, "promoted_by_sentence": [(1, 5), (0, 5)], "parent_by_sentence": same},
        {"promoted": 9, "promoted_by_sentence": same, "parent_by_sentence": same},
    ]
    first, second = promotions(piece("service", days))
    assert (first["model"], first["days"]) == (4, 2)
    assert first["points"] == pytest.approx(100 * 2 / 20)
    # Differences 1, 1, 0, 0 in sentences of five words.
    error = np.std([1, 1, 0, 0], ddof=1) / np.sqrt(4) / 5
    assert first["low"] == pytest.approx(100 * (2 / 20 - t.ppf(0.975, 3) * error), abs=1.0)
    assert second == {"model": 9, "days": 1, "points": 0.0, "low": 0.0}
    assert paired([(3, 4), (1, 4)], [(1, 4), (1, 4)])[0] == pytest.approx(25.0)


def test_day_after_a_disturbance_is_compared_with_the_undisturbed_service():
    by_day = [{"by_sentence": [(n, 10), (n, 10)]} for n in range(4)]
    worse = [*by_day[:2], {"by_sentence": [(9, 10), (9, 10)]}, {"by_sentence": [(5, 10), (4, 10)]}]
    service = [*by_day, {"by_sentence": [(0, 10), (0, 10)]}]
    (row,) = day_after([piece("service", service), piece("after-lost", worse)])
    assert row["method"] == "after-lost"
    assert row["points"][0] == pytest.approx(100 * (9 - 6) / 20)


def test_confidences_are_measured_by_quarter_and_kind():
    sure = [(0.9, 1.0, 1)] * 9 + [(0.9, 1.0, 0)]
    unsure = [(0.1, 1.0, 0)] * 9 + [(0.1, 1.0, 1)]
    days = [{"confidences": sure + unsure}] * 2 + [{"confidences": unsure}] * 2
    rows = confidence_by_quarter([piece("frozen", days), piece("daily", [{}] * 4)])
    assert [(row["quarter"], row["kind"]) for row in rows[:3]] == [
        (1, "calibrated"),
        (1, "posterior"),
        (2, "calibrated"),
    ]
    calibrated, posterior = rows[:2]
    assert calibrated["right"] == posterior["right"] == 0.5
    assert calibrated["brier_skill"] == pytest.approx(1 - 0.09 / 0.25)
    assert calibrated["auroc"] == pytest.approx(0.81 + 0.5 * 0.18)
    assert calibrated["ece"] == pytest.approx(0.0, abs=1e-12)
    assert (calibrated["n_sure"], calibrated["sure_right"]) == (10, 0.9)
    assert posterior["brier_skill"] == pytest.approx(1 - 0.5 / 0.25)
    assert calibrated["not_above_0"] == []
    assert posterior["not_above_0"] == [3]


def test_sentences_are_measured_as_words_are():
    days = [{"confidences": [(1.0, 1.0, 1)] * 4, "sentences": [(0.9, 0.5, 1), (0.1, 0.5, 0)]}] * 4
    rows = confidence_by_quarter([piece("service", days)], "sentences")
    assert len(rows) == 8
    assert rows[0]["n"] == 2
    assert rows[0]["brier_skill"] == pytest.approx(1 - 0.01 / 0.25)
    assert rows[1]["brier_skill"] == pytest.approx(0.0)


def test_disturbances_change_one_day_as_they_say():
    happened = [[]] * 9 + [["garbage"], [], [], [], []]
    course = {"data": None, "stranger": None, "base": None, "known": [], "lm": None}
    own = Year(**course, days=list(range(14)), happened=happened, decoder=None, seed=1)
    assert own.disturbed_day() == 11
    x_TC = np.ones((3, 512), np.float32)
    for number in (10, 12):
        found, _ = disturbance(own, "lost", number, 5)(0, x_TC)
        assert np.array_equal(found, x_TC)
    found, is_own = disturbance(own, "lost", 11, 5)(0, x_TC)
    expected = x_TC.copy()
    expected[:, 64:128] = expected[:, 320:384] = 0
    assert is_own
    assert np.array_equal(found, expected)
    assert Course("replay").disturbed == ""


def test_missing_features_are_not_kept_and_no_draw_changes(tmp_path):
    small = ["n_electrodes=8", "n_days=1", "train_per_day=2", "val_per_day=1", "later_days=14"]
    small += ["later_span=90", "later_per_day=[23, 23]", "further_per_day=1", "phoneme_ms=150"]
    simulate(tmp_path / "raw", "months", seed=1, overrides=small)
    data = pack(tmp_path / "raw", tmp_path / "packed")
    course = {"data": data, "stranger": None, "base": None, "known": data.sessions[:1], "lm": None}
    own = Year(**course, days=list(range(14)), happened=[[]] * 14, decoder=None, seed=1)
    assert own.disturbed_day() == 11
    service = SimpleNamespace(work=lambda: False)  # what it learns is not looked at
    conventions = replace(data.conventions, features="z-scored")
    drawn = {}
    for number in (11, 12):
        folder = tmp_path / f"log-{number}"
        random, clock = np.random.default_rng(1), year_learning._Clock()
        with UsageLog(folder, conventions, heard=HeardFeatures(folder)) as log:
            course = COURSES["after-missing"]
            year_learning._day(own, course, number, log, service, clock, random)
        drawn[number] = random.random()
        read = LoggedSentences(folder, conventions, 16)
        read.refresh()
        said = read.log.utterances
        assert len(said) == 23
        kept = [read.sentence(n) is not None for n in said]
        labelled = [each.label is not None for each in said.values()]
        assert kept == [number == 12] * 23
        assert any(labelled) == (number == 12)
    assert drawn[11] == drawn[12]


def test_half_and_double_drift_change_rates_and_no_size():
    usual, half, double = (
        preset_config("months", year.overrides(name)) for name in ("usual", "half", "double")
    )
    assert double.tuning_jumps == pytest.approx(4 * half.tuning_jumps)
    assert double.within_day == pytest.approx(2 * usual.within_day)
    for name in ("jump_share", "array_shift", "stable_tuning", "garbage_days", "snr"):
        assert getattr(half, name) == getattr(usual, name) == getattr(double, name)


def test_the_least_sure_sentences_are_as_many_as_were_drawn():
    confidences = [0.9, 0.2, 0.5, 0.1, 0.2]
    assert least_sure([True, False, True, False, False], confidences) == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert not any(least_sure([False] * 5, confidences))


def test_all_participants_are_in_all_parts():
    parts = year.study()
    assert set(parts) == {
        *("frozen", "daily", "frozen-half", "frozen-double", "daily-half", "daily-double"),
        *("one-step", "replay", "service", "service-replay", "corrected-5", "corrected-0"),
        *("no-gate", "no-replay", "least-sure"),
        *("after-garbage", "after-lost", "after-stranger", "after-missing"),
    }
    assert {len(pieces) for pieces in parts.values()} == {10}
    names = [piece.path(year.Path()) for pieces in parts.values() for piece in pieces]
    assert len(set(names)) == 190


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
    arguments += ["--part", "frozen", "daily", "replay", "service"]
    found = []
    for name in ("first", "second"):
        written = [f"--json={tmp_path / name}.json", f"--plot={tmp_path / name}.png"]
        written += [f"--reliability={tmp_path / name}-confidences.png"]
        monkeypatch.setattr("sys.argv", [*arguments, *written])
        year.main()
        found.append(json.loads((tmp_path / f"{name}.json").read_text()))
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        assert (tmp_path / f"{name}-confidences.png").stat().st_size > 5_000
        assert "\nusual drift, daily\n\n| participant |" in capsys.readouterr().out
    first, second = found
    assert first["pieces"] == second["pieces"]
    methods = [piece["method"] for piece in first["pieces"]]
    assert methods == ["frozen", "daily", "replay", "service"]
    for piece in first["pieces"]:
        assert len(piece["days"]) == 8
        assert all(each["phoneme_errors"] >= 0 for each in piece["days"])
        assert [name for each in piece["days"] for name in each["events"]].count("garbage") == 1
        retained = piece["days"][-1]["retained"]
        assert 0 <= retained["phoneme_errors"] <= retained["phonemes"]
    # Both judge the same sentences, and only the daily model has learnt.
    frozen, daily, replay, service = (piece["days"] for piece in first["pieces"])
    for course in (daily, replay, service):
        assert [each["phonemes"] for each in frozen] == [each["phonemes"] for each in course]
    assert frozen[-1]["phoneme_errors"] != daily[-1]["phoneme_errors"]
    first_days = frozen[-1]["retained"], daily[-1]["retained"]
    assert first_days[0]["phonemes"] == first_days[1]["phonemes"]
    assert first_days[0]["phoneme_errors"] != first_days[1]["phoneme_errors"]
    assert {row["method"] for row in first["beside_daily"]} == {"frozen", "replay", "service"}
    assert not (tmp_path / "out" / "daily" / "usual-4").exists()
