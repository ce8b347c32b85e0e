"""The kept comparison of TensorFlow with torch on the demo's recordings, and the page that
quotes it.
"""

import json
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/measured/tensorflow.md").read_text()
KEPT = json.loads((ROOT / "benchmarks" / "results" / "tensorflow-demo.json").read_text())
RECIPE = yaml.safe_load((ROOT / "src/cortext/configs/demo.yaml").read_text())
BACKENDS = ("torch", "tensorflow")


def within(part, whole):
    """Whether all that `part` says is said by `whole`."""
    if isinstance(part, dict):
        return all(within(value, whole[name]) for name, value in part.items())
    return part == whole


def test_both_are_the_demos_recipe_on_the_same_trials_by_the_same_code():
    runs = [KEPT[backend]["run"] for backend in BACKENDS]
    for run in runs:
        assert within(RECIPE, run["config"])
        assert (run["steps"], run["seed"], run["n_train_trials"], run["n_val_trials"]) == (
            600,
            10,
            1320,
            204,
        )
    assert runs[0]["config"] == runs[1]["config"]
    commits = {run["provenance"]["commit"] for run in runs}
    assert len(commits) == 1
    assert "dirty" not in commits.pop()
    assert [run["device"] for run in runs] == ["cpu", "cpu (1 core, tensorflow)"]
    assert {"tensorflow", "keras"} <= set(runs[1]["provenance"]["versions"])


def test_tensorflow_comes_to_torchs_error_rate_within_two_points():
    ours, theirs = (KEPT[backend]["run"]["val_per"] for backend in reversed(BACKENDS))
    assert ours == pytest.approx(theirs, abs=0.02)
    for backend in BACKENDS:
        low, high = KEPT[backend]["evaluation"]["per_ci95"]
        assert low < KEPT[backend]["evaluation"]["per"] < high


def test_the_page_has_the_kept_numbers():
    validations = [KEPT[backend]["validations"] for backend in BACKENDS]
    for torch, tensorflow in zip(*validations, strict=True):
        assert torch["step"] == tensorflow["step"]
        assert (
            f"| {torch['step']} | {torch['val_per']:.2%} | {tensorflow['val_per']:.2%} |".replace(
                "%", " %"
            )
            in PAGE
        )
    cells = []
    for backend in BACKENDS:
        found = KEPT[backend]["evaluation"]
        low, high = found["per_ci95"]
        cells.append(f"{100 * found['per']:.2f} % ({100 * low:.1f} to {100 * high:.1f})")
    assert f"| {' | '.join(cells)} |" in PAGE
