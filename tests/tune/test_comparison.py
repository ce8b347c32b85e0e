"""The ranking of training trials, their folders, and the JSON of a search."""

import json
import re
from pathlib import Path

from cortext_tune import Study, TuningTrial

FINISHED = {"val_loss": 2.0, "val_wer": None, "best_step": 4, "steps": 6, "seconds": 1.5}


def study(*trials: TuningTrial) -> Study:
    return Study(Path("out"), "val_per", {"search": {"seed": 0}}, 5, list(trials))


def finished(number: int, **metrics) -> TuningTrial:
    return TuningTrial(number, "finished", {"x": number}, metrics=FINISHED | metrics)


def test_folders_have_safe_names():
    settings = {"model": {"kind": "gru", "n": [1, 2]}, "lr_max": 1e-5, "text": "a/../b c" * 30}
    trial = TuningTrial(1, "finished", settings)
    folder = study(trial).folder(trial)
    assert re.fullmatch(
        r"0001-model=_kind[A-Za-z0-9._=-]+lr_max=1e-05-text=a_.._b-c[ab._c-]+", folder.name
    )
    assert len(folder.name) <= 85
    assert folder.parent == Path("out") / "trials"


def test_best_comes_first_then_what_has_no_result():
    values = [(0.3, 5.0), (0.2, 9.0), (0.2, 1.0), (float("nan"), 0.0)]
    trials = [finished(n, val_per=per, val_loss=loss) for n, (per, loss) in enumerate(values, 1)]
    found = study(*trials, TuningTrial(5, "failed", {"x": 0}, reason="no"))
    assert [trial.number for trial in found.ranked()] == [3, 2, 1, 4, 5]
    assert found.best is trials[2]


def test_nothing_is_best_before_a_trial_has_finished():
    assert study().best is None
    assert study(TuningTrial(1, "failed", {"x": 0}, reason="no")).best is None


def test_the_json_is_best_first():
    content = study(finished(1, val_per=0.4), finished(2, val_per=0.3)).to_json()
    content = json.loads(json.dumps(content))
    assert [trial["settings"]["x"] for trial in content["trials"]] == [2, 1]
    assert content["best"]["run"] == str(Path("out") / "trials" / "0002-x=2")
