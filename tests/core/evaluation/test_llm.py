"""A large language model in `evaluate` and `decode`, end to end, with a tiny random one."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

pytest.importorskip("transformers")

from tiny_llm import save_tiny_lm

from cortext.cli import app, run
from cortext.decoding import DecoderOptions
from cortext.errors import DecodingError, WrongType
from cortext.evaluation import decode, evaluate
from cortext.evaluation.recognise import recognise
from cortext.evaluation.settings import LargeModelFiles, SearchSettings

pytestmark = pytest.mark.usefixtures("short_reports")

WEIGHT = 0.4
CONTEXT = "what did you see"
OPTIONS = {"nbest": 5, "lattice_beam": 30.0, "llm": {"weight": WEIGHT, "augment": 3}}


@pytest.fixture(scope="module")
def llm(tmp_path_factory) -> LargeModelFiles:
    return LargeModelFiles(str(save_tiny_lm(tmp_path_factory.mktemp("tiny-llm"))), device="cpu")


@pytest.fixture(scope="module")
def evaluated(tiny, llm, tmp_path_factory):
    out = tmp_path_factory.mktemp("evaluated") / "eval"
    steps = []
    metrics = evaluate(
        tiny.run, tiny.data, "val", tiny.lm, out, options=OPTIONS, llm=llm.model, context=CONTEXT,
        progress=lambda *step: steps.append(step),
    )  # fmt: skip
    return out, metrics, steps


def lines(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "nbest.jsonl").read_text().splitlines()]


def test_the_lists_are_ranked_by_both_models(evaluated):
    out, _, _ = evaluated
    scale = DecoderOptions().acoustic_scale
    lm_weight = DecoderOptions().lm_weight
    word_score = DecoderOptions().word_score
    for line in lines(out):
        found = line["hypotheses"]
        assert len(found) > 1
        assert line["degraded"] is None
        for one in found:
            llm = one["ngram"] if one["llm"] is None else one["llm"]
            both = lm_weight * ((1 - WEIGHT) * one["ngram"] + WEIGHT * llm)
            words = word_score * len(one["text"].split())
            assert one["score"] == pytest.approx(scale * one["acoustic"] + both + words, abs=1e-4)
        assert [one["score"] for one in found] == sorted(
            (one["score"] for one in found), reverse=True
        )
        total = sum(math.exp(one["score"] - found[0]["score"]) for one in found)
        assert found[0]["confidence"] == pytest.approx(1 / total)


def test_metrics_say_which_model_it_was(evaluated, llm):
    out, metrics, _ = evaluated
    said = json.loads((out / "metrics.json").read_text())
    named = said["provenance"]["llm"]
    assert (named["model"], named["lora"], named["revision"], named["device"]) == (
        llm.model,
        None,
        None,
        "cpu",
    )
    assert (named["class"], named["n_parameters"], named["context"]) == (
        "LlamaForCausalLM",
        39072,
        CONTEXT,
    )
    assert said["provenance"]["options"]["llm"]["weight"] == WEIGHT
    assert (said["n_degraded"], said["notes"]) == (0, [])
    assert said["seconds"]["llm"] > 0
    assert llm.model in (out / "report.html").read_text()
    assert metrics.n_trials == 6


def test_the_bar_covers_the_model_the_search_and_the_large_model(evaluated):
    _, _, steps = evaluated
    assert {total for _, total in steps} == {18}
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert steps[-1] == (18, 18)


def test_a_weight_of_nothing_is_no_model(tiny, llm):
    beside = {"nbest": 5, "llm": {"weight": 0.0, "mode": "fusion"}}
    without, found = (
        recognise(tiny.run, tiny.data, "val", SearchSettings(lm=tiny.lm, **settings))
        for settings in ({"options": {"nbest": 5}}, {"options": beside, "llm": llm})
    )
    assert [trial.nbest for trial in found.trials] == [trial.nbest for trial in without.trials]


def test_fusion_goes_through_the_same_door(tiny, llm):
    fused = {"nbest": 5, "llm": {"mode": "fusion", "every_frames": 2}}
    settings = SearchSettings(lm=tiny.lm, options=fused, llm=llm)
    found = recognise(tiny.run, tiny.data, "val", settings)
    assert found.degraded == []
    assert any(one.llm_score is not None for trial in found.trials for one in trial.nbest)


def test_where_the_model_fails_the_n_grams_sentences_are_kept_and_marked(tiny, llm, tmp_path):
    short = replace(llm, model=str(save_tiny_lm(tmp_path / "short")))
    config = json.loads((tmp_path / "short" / "config.json").read_text())
    (tmp_path / "short" / "config.json").write_text(
        json.dumps(config | {"max_position_embeddings": 4})
    )
    kept = decode(tiny.run, tiny.data, "val", tiny.lm, tmp_path / "a.csv", options=OPTIONS)
    found = decode(
        tiny.run, tiny.data, "val", tiny.lm, tmp_path / "b.csv", options=OPTIONS, llm=short
    )
    assert found == kept
    notes = list(found.notes)
    assert len(notes) == 1
    assert notes[0].startswith("6 of 6 sentences without the large model: ")
    assert (
        "a sentence has more tokens than the 3 that the model reads after the 1 before it"
        in notes[0]
    )
    assert notes[0].endswith(" (trials 0, 1, 2, 3, 4, 5)")
    metrics = evaluate(
        tiny.run, tiny.data, "val", tiny.lm, tmp_path / "eval", options=OPTIONS, llm=short
    )
    assert (metrics.n_degraded, metrics.notes) == (6, notes)
    assert all(line["degraded"] in notes[0] for line in lines(tmp_path / "eval"))


def test_a_large_model_needs_a_search(tiny, llm, tmp_path):
    with pytest.raises(
        DecodingError, match="ranks what the word search finds; give an n-gram, too"
    ):
        evaluate(tiny.run, tiny.data, "val", None, tmp_path / "eval", llm=Path(llm.model))
    with pytest.raises(WrongType, match="llm is of type int; a path is needed"):
        decode(tiny.run, tiny.data, "val", tiny.lm, tmp_path / "a.csv", llm=3)


def test_the_commands_take_a_large_model(tiny, llm, tmp_path):
    (tmp_path / "options.yaml").write_text(yaml.safe_dump(OPTIONS))
    given = [
        "--lm",
        tiny.lm,
        "--options",
        tmp_path / "options.yaml",
        "--llm",
        llm.model,
        "--context",
        CONTEXT,
    ]
    given += ["--llm-device", "cpu"]
    split = [tiny.run, "--data", tiny.data, "--split", "val"]
    shown = CliRunner().invoke(
        app, [str(word) for word in ["evaluate", *split, *given, "--out", tmp_path / "e", "--json"]]
    )
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["provenance"]["llm"]["context"] == CONTEXT
    shown = CliRunner().invoke(
        app, [str(word) for word in ["decode", *split, *given, "--out", tmp_path / "d.csv"]]
    )
    assert shown.exit_code == 0, shown.output
    assert (tmp_path / "d.csv").read_text() == (tmp_path / "e" / "predictions.csv").read_text()

    logits = {path.stem: np.load(path) for path in (tmp_path / "e" / "logits").glob("*.npy")}
    np.savez(tmp_path / "logits.npz", **logits)
    saved = [
        "decode",
        "--logits",
        tmp_path / "logits.npz",
        "--order",
        "release",
        *given,
        "--out",
        tmp_path / "s.csv",
    ]
    shown = CliRunner().invoke(app, [str(word) for word in [*saved, "--json"]])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["n_trials"] == 6
    fake = ["decode", "--fake-text", "you see me", *given, "--json"]
    shown = CliRunner().invoke(app, [str(word) for word in fake])
    assert shown.exit_code == 0, shown.output
    assert all("confidence" in one for one in json.loads(shown.stdout)["hypotheses"])


@pytest.mark.parametrize("command", ["evaluate", "decode"])
def test_a_model_that_cannot_be_loaded_is_an_error_before_the_work(command, tiny, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    out = tmp_path / "out"
    split = [
        str(tiny.run),
        "--data",
        str(tiny.data),
        "--split",
        "val",
        "--lm",
        str(tiny.lm),
        "--out",
        str(out),
    ]
    assert run([command, *split, "--llm", str(tmp_path / "empty")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"cortext: {tmp_path / 'empty'}: has no config.json")
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "empty"]
    assert run([command, *split, "--context", "hello"]) == 2
    assert "--context is given without --llm" in capsys.readouterr().err
