"""The study of models: its arithmetic by hand, its plan, and a small one from end to end."""

import json
import multiprocessing
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import models_on_simulation as study
from cortext.data import pack
from cortext_data.simulate import simulate
from models_tables import compare, mean_and_interval

SMALL = ["n_electrodes=8", "test_per_day=0", "val_per_day=3", "phoneme_ms=150"]


def result(setting: str, seed: int, per: float, **others: object) -> dict:
    """The result of one training, as a piece of the study keeps it."""
    rest = {"part": "models", "condition": "usual drift", "budget": "long", "given": "all"}
    rest |= {"start": "fresh", "batches": 100, "wer": per / 2}
    return rest | {"setting": setting, "seed": seed, "per": per} | others


def test_interval_of_a_mean_is_students():
    # Standard deviation 1.5811, over the root of 5; the 97.5 % point with 4 degrees is 2.7764.
    found = mean_and_interval([1, 2, 3, 4, 5])
    assert found["mean"] == 3
    assert found["interval"] == pytest.approx([3 - 1.9632, 3 + 1.9632], abs=1e-4)
    assert mean_and_interval([2]) == {"mean": 2, "interval": None}


def test_settings_are_compared_participant_by_participant():
    found = [result("GRU", seed, per) for seed, per in enumerate((0.1, 0.2, 0.3))]
    # Participant 1 is missing; the others are 0.01 and 0.03 better.
    found += [result("Transformer", 0, 0.09), result("Transformer", 2, 0.27)]
    gru, transformer = compare(found, {"GRU": None, "Transformer": "GRU"})["rows"]
    assert gru["per"]["mean"] == pytest.approx(0.2)
    assert gru["per_difference"] is None
    assert transformer["seeds"] == [0, 2]
    assert transformer["per_difference"]["mean"] == pytest.approx(-0.02)
    assert transformer["wer_difference"]["mean"] == pytest.approx(-0.01)
    # Standard deviation 0.014142, over the root of 2; the 97.5 % point with 1 degree is 12.706.
    low, high = transformer["per_difference"]["interval"]
    assert (low, high) == pytest.approx((-0.02 - 0.12706, -0.02 + 0.12706), abs=1e-5)


def test_an_option_is_compared_with_the_model_of_another_part():
    found = [result("GRU", 0, 0.1), result("GRU", 1, 0.2)]
    found += [result("diphones", seed, per, part="options") for seed, per in ((0, 0.4), (1, 0.3))]
    _, option = compare(found, {"GRU": None, "diphones": "GRU"})["rows"]
    assert option["beside"] == "GRU"
    assert option["per_difference"]["mean"] == pytest.approx(0.2)  # of 0.3 and 0.1


def test_start_from_another_participant_is_compared_with_fresh_weights():
    few = {"part": "participants", "given": "50"}
    found = [result("Transformer", 0, 0.5, **few), result("GRU", 0, 0.3, **few)]
    found += [result("Transformer", 0, 0.4, start="trained", **few)]
    rows = compare(found, {"GRU": None, "Transformer": "GRU"})["rows"]
    assert rows[2]["beside"] == "fresh"
    assert rows[2]["per_difference"]["mean"] == pytest.approx(-0.1)
    assert rows[0]["per_difference"]["mean"] == pytest.approx(0.2)


def test_first_trials_are_spread_over_the_days(tmp_path):
    simulate(tmp_path / "data", "tiny", overrides=[*SMALL[:1], "train_per_day=8", "val_per_day=2"])
    data = pack(tmp_path / "data", tmp_path / "packed")
    some = study.first_trials(data, 5)
    train = some.split("train")
    # 5 of 2 days are 2 and 3, in the order of recording.
    assert train.day_N.tolist() == [0, 0, 1, 1, 1]
    assert train.trial_N.tolist() == [0, 1, 0, 1, 2]
    assert len(some.split("val")) == len(data.split("val"))
    np.testing.assert_array_equal(train.features(0), data.split("train").features(0))
    assert study.first_trials(data, None) is data


def test_every_training_has_readable_settings_and_starts_from_an_earlier_one():
    parts = study.study()
    done = set()
    for pieces in parts.values():
        for piece in pieces:
            assert piece.source is None or piece.source.name in done
            assert piece.source is None or piece.source.seed != piece.seed
        done |= {piece.name for piece in pieces}
    for name in study.SETTINGS:
        config = study.configuration(name, 160, 3)
        assert (config.num_training_batches, config.batches_per_val_step) == (160, 20)
        assert config.lr_decay_steps == config.lr_decay_steps_day == 160
        assert (config.seed, config.dataset.seed) == (13, 4)


def test_renamed_sessions_are_read(tmp_path):
    simulate(tmp_path / "data", "tiny", overrides=["train_per_day=4", "val_per_day=2"])
    folder = next((tmp_path / "data").glob("sim.*"))
    study.rename_session(folder, folder.name.replace("sim", "p7"))
    data = pack(tmp_path / "data", tmp_path / "packed")
    assert data.sessions[0] == folder.name.replace("sim", "p7")
    assert data.split("train").session(0) == data.sessions[0]


@pytest.fixture
def small(monkeypatch):
    """The study with two participants and trainings of less than a second."""
    sizes = ["model.n_units=32", "dataset.batch_size=8"]
    settings = {
        name: replace(each, changes=[*each.changes, *sizes])
        for name, each in study.SETTINGS.items()
    }
    monkeypatch.setattr(study, "SETTINGS", settings)
    monkeypatch.setattr(study, "SIMULATION", SMALL)
    monkeypatch.setattr(study, "N_DAYS", 4)
    monkeypatch.setattr(study, "SEEDS", (0, 1))
    monkeypatch.setattr(study, "BUDGETS", {"brief": 0.2, "short": 0.2, "long": 0.4, "longest": 3.0})
    monkeypatch.setattr(study, "PILOT_BATCHES", (2, 6))
    conditions = {name: study.Condition(8, each.drift) for name, each in study.CONDITIONS.items()}
    monkeypatch.setattr(study, "CONDITIONS", conditions)
    monkeypatch.setattr(study, "GIVEN", {"8": 8, "all": None})
    monkeypatch.setattr(study, "MODELS", ("GRU", "Transformer"))
    monkeypatch.setattr(study, "OPTIONS", ("Transformer, diphones",))
    monkeypatch.setattr(study, "KINDS", ("Transformer",))


@pytest.mark.slow
def test_small_study_goes_from_recordings_to_tables_and_repeats_nothing(
    small, tmp_path, monkeypatch, capsys
):
    arguments = ["models_on_simulation.py", "--out", str(tmp_path), "--workers", "1"]
    parts = ["models", "options", "pretraining", "participants"]
    arguments += ["--part", *parts]
    found = []
    for name in ("first", "second"):
        written = [f"--json={tmp_path / name}.json", f"--plot={tmp_path / name}.png"]
        monkeypatch.setattr("sys.argv", [*arguments, *written])
        study.main()
        found.append(json.loads((tmp_path / f"{name}.json").read_text()))
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
        printed = capsys.readouterr().out
        for heading in ("models", "options", "participants"):
            assert f"\n{heading}\n\n| setting |" in printed
    first, second = found
    assert first["pieces"] == second["pieces"]
    assert len(first["pieces"]) == sum(len(study.study()[part]) for part in parts)
    for row in first["rows"]:
        assert row["seeds"] == [0, 1]
        assert row["per"]["mean"] > 0
        # The whole number of batches, in eights, that costs nearest to the budget.
        seconds = first["batch_seconds"][row["setting"]]
        budget = study.BUDGETS[row["budget"]]
        assert row["batches"] == 8 or abs(row["batches"] * seconds - budget) <= 4.001 * seconds


@pytest.mark.slow
def test_training_that_was_killed_goes_on_where_it_was(small, tmp_path):
    piece = study.Piece("models", "usual drift", "GRU", "longest", 0)
    study.batch_seconds("GRU", tmp_path)
    work = multiprocessing.get_context("fork").Process(
        target=study.train_piece, args=(piece, tmp_path)
    )
    work.start()
    run = tmp_path / "runs" / piece.name
    until = time.monotonic() + 120
    while time.monotonic() < until and _validations(run) < 2:
        time.sleep(0.01)
    work.kill()
    work.join()
    assert 2 <= _validations(run) < study.VALIDATIONS
    assert not piece.path(tmp_path).is_file()
    continued = study.train_piece(piece, tmp_path)
    # The same training without a stop, elsewhere.
    (tmp_path / "other").mkdir()
    for name in ("data", "pilot"):
        (tmp_path / "other" / name).symlink_to(tmp_path / name)
    whole = study.train_piece(piece, tmp_path / "other")
    assert continued is not None
    assert whole is not None
    assert continued["curve"] == whole["curve"]
    assert (continued["per"], continued["wer"]) == (whole["per"], whole["wer"])


def _validations(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_text().count('"kind": "val"') if path.is_file() else 0


def test_nothing_is_begun_after_the_deadline_or_without_its_source(tmp_path):
    piece = study.Piece("models", "usual drift", "GRU", "short", 0)
    assert study.train_piece(piece, tmp_path, deadline=time.time() - 1) is None
    for start in ("pretrained", "trained"):
        piece = study.Piece("participants", "usual drift", "GRU", "brief", 0, start=start)
        assert study.train_piece(piece, tmp_path) is None
    assert not list(tmp_path.iterdir())
