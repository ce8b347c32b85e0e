"""`cortext demo --llm`: the model of the demo's own text beside the n-gram."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cortext.cli import run
from cortext.errors import MissingLibrary
from cortext_lm.llm.model import CausalLM


@pytest.mark.slow
def test_the_demo_decodes_with_its_own_neural_model(tmp_path: Path, capsys):
    out = tmp_path / "demo"
    assert run(["demo", "--preset", "tiny", "--llm", "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result["llm"]) == {"rescoring", "fusion"}
    sources = json.loads((out / "llm" / "cortext.json").read_text())["sources"]
    assert [source["path"] for source in sources] == [str(out / "data" / "text" / "lm.txt")]
    assert CausalLM.load(out / "llm").end is not None
    for name, metrics in result["llm"].items():
        lines = [
            json.loads(line)
            for line in (out / f"eval-{name}" / "nbest.jsonl").read_text().splitlines()
        ]
        assert metrics["n_trials"] == len(lines) == result["metrics"]["n_trials"]
        assert all(line["degraded"] is None and line["hypotheses"][0]["llm"] < 0 for line in lines)
    plain = [json.loads(line) for line in (out / "eval" / "nbest.jsonl").read_text().splitlines()]
    assert all(line["hypotheses"][0]["llm"] is None for line in plain)


def test_the_demo_says_at_once_what_is_not_installed(tmp_path: Path, monkeypatch, capsys):
    def missing(module: str, extra: str) -> None:
        raise MissingLibrary(f"{module} is not installed", fix=f"pip install '.[{extra}]'")

    monkeypatch.setattr("cortext_data.demo.need", missing)
    assert run(["demo", "--preset", "tiny", "--llm", "--out", str(tmp_path / "demo")]) == 2
    assert (
        capsys.readouterr().err == "cortext: transformers is not installed; pip install '.[llm]'\n"
    )
    assert not (tmp_path / "demo").exists()
