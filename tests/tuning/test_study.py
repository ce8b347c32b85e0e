"""What is kept of a search, and what is refused."""

import json
import re

import pytest

from cortext.errors import RunError
from cortext.tuning.study import Study

FINISHED = {"val_loss": 2.0, "val_wer": None, "best_step": 4, "steps": 6, "seconds": 1.5}


@pytest.fixture
def study(tmp_path) -> Study:
    study = Study(tmp_path, "val_per", {"search": {"seed": 0}}, 5)
    study.begin()
    return study


def again(study: Study, metric: str = "val_per", seed: int = 0) -> Study:
    other = Study(study.out, metric, {"search": {"seed": seed}}, 5)
    other.begin()
    return other


def test_trials_are_found_again_as_they_were(study):
    study.finish(
        study.add({"lr_max": 0.1, "dataset.must_include_days": [0, -1]}),
        {"val_per": 0.5, **FINISHED},
    )
    study.fail(study.add({"lr_max": 1e30}), "the loss is nan")
    study.add({"lr_max": 0.3})
    assert again(study).trials == study.trials
    assert [trial.state for trial in study.trials] == ["finished", "failed", "unfinished"]


def test_folders_have_safe_names(study):
    name = study.add(
        {"model": {"kind": "gru", "n": [1, 2]}, "lr_max": 1e-5, "text": "a/../b c" * 30}
    ).name
    assert re.fullmatch(
        r"0001-model=_kind[A-Za-z0-9._=-]+lr_max=1e-05-text=a_.._b-c[ab._c-]+", name
    )
    assert len(name) <= 85
    assert study.folder(study.trials[0]).parent == study.out / "trials"


def test_best_comes_first_then_what_has_no_result(study):
    values = [(0.3, 5.0), (0.2, 9.0), (0.2, 1.0), (float("nan"), 0.0)]
    for per, loss in values:
        study.finish(study.add({"x": per}), FINISHED | {"val_per": per, "val_loss": loss})
    study.fail(study.add({"x": 0}), "no")
    assert [trial.number for trial in study.ranked()] == [3, 2, 1, 4, 5]
    assert study.best is study.trials[2]


def test_nothing_is_best_before_a_trial_has_finished(study):
    assert study.best is None
    study.fail(study.add({"x": 0}), "no")
    assert study.best is None


def test_another_search_in_the_same_directory_is_refused(study):
    with pytest.raises(
        RunError, match=r"begun with search.seed = 0, now it is 1; .* another --out"
    ):
        again(study, seed=1)
    with pytest.raises(RunError, match="begun with metric = 'val_per', now it is 'val_loss'"):
        again(study, "val_loss")


def test_a_foreign_directory_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(RunError, match="something else than a search"):
        Study(tmp_path, "val_per", {}, 5).begin()
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"format_version": 2}', '{"format_version": 1, "trials": [3]}']
)
def test_a_damaged_file_is_named(study, content):
    study.file.write_text(content)
    with pytest.raises(RunError, match=r"study.json: the search cannot be read: .*"):
        again(study)


def test_the_json_is_best_first(study):
    study.finish(study.add({"x": 1}), FINISHED | {"val_per": 0.4})
    study.finish(study.add({"x": 2}), FINISHED | {"val_per": 0.3})
    content = json.loads(json.dumps(study.to_json()))
    assert [trial["settings"]["x"] for trial in content["trials"]] == [2, 1]
    assert content["best"]["run"] == str(study.out / "trials" / "0002-x=2")
