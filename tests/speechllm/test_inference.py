"""Whole splits, in the formats of every other decoder."""

import csv
import io
import json
from contextlib import redirect_stdout

import pytest

from cortext.cli import run
from cortext.data import open_packed
from cortext.errors import ConfigError, DataError, DecodingError
from cortext_lm.ensemble import EnsembleOptions, combine_runs
from cortext_speechllm.inference import decode, evaluate


@pytest.fixture(scope="module")
def evaluated(trained, recordings, tmp_path_factory):
    """An evaluation directory by the command, and the metrics that it prints."""
    out = tmp_path_factory.mktemp("evaluated") / "eval"
    printed = io.StringIO()
    arguments = ["--data", recordings, "--nbest", "3", "--out", out, "--json"]
    with redirect_stdout(printed):
        assert run(["speech-llm", "evaluate", str(trained), *map(str, arguments)]) == 0
    return out, json.loads(printed.getvalue())


def test_an_evaluation_directory_is_written(evaluated, recordings):
    out, metrics = evaluated
    split = open_packed(recordings).split("val")
    assert metrics["n_trials"] == len(split)
    assert metrics["wer"] is not None
    assert metrics["per"] is not None
    written = json.loads((out / "metrics.json").read_text())
    assert written["wer"] == metrics["wer"]
    assert written["provenance"]["engine"] == "speech-llm"
    assert written["provenance"]["llm"]["class"] == "Qwen2AudioForConditionalGeneration"
    assert written["provenance"]["options"]["nbest"] == 3
    lists = [json.loads(line) for line in (out / "nbest.jsonl").read_text().splitlines()]
    assert len(lists) == len(split)
    for line in lists:
        scores = [each["score"] for each in line["hypotheses"]]
        assert scores == sorted(scores, reverse=True)
        # Of one token and more.
        assert all(each["llm"] <= each["score"] < 0 for each in line["hypotheses"])
        assert {each["acoustic"] for each in line["hypotheses"]} == {None}
    with (out / "predictions.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(split)
    report = (out / "report.html").read_text()
    assert "speech-llm engine" in report
    assert "the LoRA weights of the run" in report


def test_lists_take_part_in_an_ensemble(evaluated):
    out, metrics = evaluated
    found = combine_runs([out, out], EnsembleOptions())
    assert len(found.trials) == metrics["n_trials"]


def test_sentences_are_written_for_the_competition(trained, recordings, tmp_path):
    texts = decode(trained, recordings, "test", tmp_path / "out.csv", generation={"max_length": 4})
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == texts
    assert [row["id"] for row in rows] == [
        str(i) for i in range(len(open_packed(recordings).split("test")))
    ]


def test_what_cannot_be_written_is_one_line(trained, recordings, tmp_path):
    with pytest.raises(ConfigError, match=r"speech.generation.beams is 0"):
        decode(trained, recordings, "test", tmp_path / "out.csv", generation={"beams": 0})
    written: list[int] = []
    with pytest.raises(DecodingError, match=r"1024 tokens behind .* the model knows 1024"):
        decode(
            trained,
            recordings,
            "test",
            tmp_path / "out.csv",
            generation={"max_length": 1024},
            progress=lambda done, _: written.append(done),
        )
    assert not written
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "other").touch()
    with pytest.raises(DataError, match="exists and is not an evaluation directory"):
        evaluate(trained, recordings, "val", tmp_path / "file")


def test_commands(trained, recordings, cached, settings, tmp_path, capsys):
    overrides = [part for each in settings for part in ("--set", each)]
    train = [
        "speech-llm",
        "train",
        "--config",
        "speech_llm",
        "--data",
        str(recordings),
        "--out",
        str(tmp_path / "run"),
    ]
    assert run([*train, "--cache", str(cached), *overrides, "--set", "num_training_batches=2"]) == 0
    assert "2 batches" in capsys.readouterr().out
    assert run(train) == 2
    assert "there is no cached speech to align to" in capsys.readouterr().err
    common = ["--data", str(recordings), "--beams", "2", "--max-length", "4"]
    assert (
        run(["speech-llm", "decode", str(trained), *common, "--out", str(tmp_path / "a.csv")]) == 0
    )
    assert "a.csv: " in capsys.readouterr().out
    assert (
        run(["speech-llm", "evaluate", str(tmp_path), *common, "--out", str(tmp_path / "eval")])
        == 2
    )
    assert "no speech LLM here" in capsys.readouterr().err
