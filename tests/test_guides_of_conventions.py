"""The guides to own tokens, other languages and other bin lengths, from recordings to reports.

Their commands are run as they stand, at a size of seconds.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import pytest

from cortext.cli import run as cortext

GUIDES = Path(__file__).parents[1] / "docs" / "guides"
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SMALL = "--preset {} --set n_days=1 --set train_per_day=12 --set val_per_day=4 --set test_per_day=1"
SHORT = (
    "--config tiny --set num_training_batches=2 --set batches_per_val_step=2"
    " --set dataset.days_per_batch=1"
)


def run_guide(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the blocks of a guide in a folder, with small simulations and short trainings."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("cortext.evaluation.report.N_PICTURES", 1)
    namespace: dict[str, object] = {}
    for language, code in BLOCK.findall((GUIDES / name).read_text()):
        if language == "python":
            exec(code, namespace)
            continue
        for line in code.replace("\\\n", " ").splitlines():
            line = re.sub(r"--preset (\w+)", lambda found: SMALL.format(found[1]), line)
            line = re.sub(r"--config \w+", SHORT, line)
            assert cortext(shlex.split(line)[1:]) == 0, line


def evaluated(folder: Path) -> dict:
    """Return the metrics of an evaluation, whose report is there."""
    assert (folder / "report.html").stat().st_size > 10_000
    return json.loads((folder / "metrics.json").read_text())


def texts(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="") as file:
        return [row["text"] for row in csv.DictReader(file)]


@pytest.mark.slow
def test_spanish_goes_from_recordings_to_a_report(tmp_path, monkeypatch, capsys):
    run_guide("other-languages.md", tmp_path, monkeypatch)
    assert "los niños" in capsys.readouterr().out
    found = evaluated(tmp_path / "eval-es")
    assert found["provenance"]["language"] == "es"
    assert "ʝ" in found["provenance"]["inventory"]["symbols"]
    assert len(texts(tmp_path / "eval-es" / "predictions.csv")) == 4
    assert json.loads((tmp_path / "own" / "cortext.json").read_text())["language"] == "es"


@pytest.mark.slow
def test_characters_go_with_a_lexicon_and_without(tmp_path, monkeypatch, capsys):
    run_guide("own-tokens.md", tmp_path, monkeypatch)
    assert "kosa" in (tmp_path / "lm-sounds" / "lexicon.txt").read_text()
    closed, opened = (evaluated(tmp_path / f"eval-{name}") for name in ("words", "open"))
    assert closed["per"] == opened["per"]  # the same logits
    assert closed["provenance"]["inventory"]["roles"]["boundary"] == ">"
    assert closed["provenance"]["frame_ms"] == 40  # bins of 10 ms, four a frame


def test_bins_of_10_ms_are_kept_and_joined(tmp_path, monkeypatch):
    run_guide("bin-length.md", tmp_path, monkeypatch)
    models = [
        json.loads((tmp_path / name / "model.json").read_text()) for name in ("run-short", "run-20")
    ]
    assert [model.get("bin_ms", 20) for model in models] == [10, 20]
    assert [model["patch"] for model in models] == [
        {"size": 28, "stride": 8},
        {"size": 14, "stride": 4},
    ]
