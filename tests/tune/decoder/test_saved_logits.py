"""Options tuned on logits that any program saved, with a file of their sentences."""

import json
from dataclasses import replace

import jiwer
import numpy as np
import pytest
import yaml

from cortext.cli import run
from cortext.config import load_config
from cortext.decoding import Decoder, DecoderOptions
from cortext.decoding.saved import to_log_probs
from cortext.errors import DataError, DecodingError
from cortext.evaluation.decoder_files import DecoderFiles
from cortext.evaluation.fit.search import STARTS
from cortext_tune import DecoderSearch, parse_space, tune_decoder
from cortext_tune.decoder.material import DevSet, tuning_parts
from cortext_tune.decoder.saved_logits import SavedLogits, read_references
from cortext_tune.decoder.space import SEARCHED

pytest.importorskip("optuna")


@pytest.fixture(scope="module")
def saved(evaluation, tmp_path_factory) -> SavedLogits:
    """The evaluation's logits and sentences as another program would save them."""
    folder = tmp_path_factory.mktemp("saved")
    files = sorted((evaluation / "logits").iterdir())
    arrays = {f"trial_{number}": np.load(file) for number, file in enumerate(files)}
    np.savez(folder / "logits.npz", **arrays)
    lines = [json.loads(line) for line in (evaluation / "nbest.jsonl").read_text().splitlines()]
    references = "".join(line["reference"] + "\n" for line in lines)
    (folder / "references.txt").write_text(references)
    return SavedLogits(folder / "logits.npz", folder / "references.txt", "release")


def test_saved_logits_are_tuned_on_as_those_of_an_evaluation_are(saved, evaluation, lm, tmp_path):
    space = parse_space(["blank_penalty=1:100:log", "word_score=-4:1"])
    search = DecoderSearch(space, n_trials=3, time_weight=0.0)
    files = DecoderFiles(lm, DecoderOptions(blank_penalty=1.0, beam=12.0))
    tuned = [
        tune_decoder(*tuning_parts(source, 0.3, 0), files, tmp_path / name, search)
        for name, source in (("saved", saved), ("evaluation", evaluation))
    ]
    assert [trial.options for trial in tuned[0].trials] == [
        trial.options for trial in tuned[1].trials
    ]
    assert [trial.metrics["errors"] for trial in tuned[0].trials] == [
        trial.metrics["errors"] for trial in tuned[1].trials
    ]
    assert tuned[0].judged[0].held_out == tuned[1].judged[0].held_out


def test_saved_probabilities_are_tuned_on_by_name_alone(saved, tmp_path):
    with np.load(saved.logits) as logits:
        probabilities = {name: np.exp(to_log_probs(array)) for name, array in logits.items()}
    np.savez(tmp_path / "probabilities.npz", **probabilities)
    unnamed = replace(saved, logits=tmp_path / "probabilities.npz")
    with pytest.raises(DecodingError, match="holds probabilities"):
        DevSet.read(unnamed)
    named = DevSet.read(replace(unnamed, scores="probabilities"))
    for found, expected in zip(named.log_probs, DevSet.read(saved).log_probs, strict=True):
        np.testing.assert_allclose(np.exp(found), np.exp(expected), atol=1e-5)


def test_the_usual_search_begins_with_the_start_and_options_known_to_be_good(
    saved, lm, tmp_path, capsys
):
    command = ["tune", "decoder", "--logits", saved.logits, "--references", saved.references]
    command += ["--order", "release", "--lm", lm, "--out", tmp_path / "out", "--held-out", "0"]
    assert run([str(part) for part in (*command, "--trials", "6", "--json")]) == 0
    content = json.loads(capsys.readouterr().out)
    trials = sorted(content["trials"], key=lambda trial: trial["number"])
    assert trials[0]["settings"]["blank_penalty"] == DecoderOptions().blank_penalty
    assert trials[0]["settings"]["prior_weight"] == 0.0
    for trial, start in zip(trials[1:5], STARTS, strict=True):
        searched = {name: value for name, value in start.items() if name in SEARCHED}
        assert trial["settings"].items() >= searched.items()
    assert {"sil_required", "recombine"} < trials[5]["settings"].keys()
    options = load_config(content["options_file"], DecoderOptions)
    log_probs = [to_log_probs(array) for array in np.load(saved.logits).values()]
    found = Decoder.from_dir(lm, options).decode_batch(log_probs, "release")
    references = saved.references.read_text().lower().replace(".", "").splitlines()
    wer = jiwer.wer(references, [nbest[0].text for nbest in found])
    assert wer == pytest.approx(min(trial["wer"] for trial in trials))


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_label_priors_without_weight_are_not_written(saved, lm, tmp_path, weight):
    space = parse_space([f"prior_weight={weight}", "word_score=-1,0"])
    start = DecoderOptions(blank_penalty=30.0)
    files = DecoderFiles(lm, replace(start, prior_weight=1.0))
    given = [start.changed({"label_priors": {"SIL": 0.5}, "prior_weight": 0.5})] if weight else []
    tune_decoder(
        *tuning_parts(saved, 0.0, 0),
        files,
        tmp_path / "out",
        DecoderSearch(space, n_trials=1 + len(given), time_weight=0.0),
        given=given,
    )
    written = yaml.safe_load((tmp_path / "out" / "options.yaml").read_text())
    assert bool(written["label_priors"]) == (weight > 0)
    # Without a weight the start's own settings are written, which have no priors.
    assert written["prior_weight"] == (weight or files.options.prior_weight)


def test_references_are_lines_in_order_or_json_lines_in_any_order(tmp_path):
    file = tmp_path / "references"
    file.write_text("I see.\n\nyou\n")
    assert read_references(file, ["a_2", "a_9", "a_10"]) == ["I see.", "", "you"]
    named = [{"name": "b", "text": "you"}, {"name": "c", "text": None}, {"name": "a", "text": "I"}]
    file.write_text("".join(json.dumps(line) + "\n" for line in named))
    assert read_references(file, ["c", "a", "b"]) == ["", "I", "you"]


@pytest.mark.parametrize(
    ("content", "names", "message"),
    [
        ("a\nb\n", "abc", "has 2 lines for 3 trials; give a sentence a line"),
        ("a\nb\n", "ba", "not in the order of their names; give lines such as"),
        ('{"name": "a", "text": "I"}\n', "ab", "has no line of trial 'b'"),
        ('{"name": "a", "text": "I"}\n{"name": "a", "text": "I"}', "a", "line 2: the trial 'a' is"),
        ('{"name": "z", "text": "I"}\n', "a", "line 1: the logits have no trial 'z'; known: a"),
        ('{"name": "a"}\n', "a", "line 1: has no 'name' and 'text'"),
        ('{"name": "a", "text": 3}\n', "a", "line 1: has no 'name' and 'text'"),
        ('{"name": "a", "text"\n', "a", "line 1: is no JSON object"),
        ('{"name": "a", "text": "I"}\nyou\n', "a", "line 2: is no JSON object"),
        (b"\xff\xfe", "a", "cannot be read: .*; give a sentence a line, as UTF-8"),
        (None, "a", "cannot be read: No such file or directory"),
    ],
)
def test_references_that_do_not_fit_are_one_line(tmp_path, content, names, message):
    file = tmp_path / "references.txt"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=message) as error:
        read_references(file, list(names))
    assert str(error.value).startswith(str(file))
    assert "\n" not in str(error.value)


def test_logits_without_any_sentence_are_refused(saved, tmp_path):
    (tmp_path / "empty").write_text("\n" * 24)
    with pytest.raises(DataError, match=r"empty: no trial has a reference .*; give them in"):
        DevSet.read(replace(saved, references=tmp_path / "empty"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "there is nothing to tune on; give an evaluation directory, or --logits with"),
        (["--logits", "l.npz"], "there is nothing to tune on"),
        (["--references", "r.txt"], "--references is given without --logits"),
        (["--order", "lm"], "--order is given without --logits"),
        (["somewhere", "--logits", "l.npz"], "both somewhere and --logits are given"),
        (["--logits", "/", "--references", "r", "--order", "lm"], "/ is a directory; give an eval"),
        (["--data", "packed"], "--data is given without a run"),
        (["--logits", "l.npz", "--references", "r", "--order", "kaldi"], "kaldi"),
        (["--logits", "l.npz", "--references", "r", "--order", "lm"], "l.npz: no such file"),
    ],
)
def test_what_is_missing_is_one_line_and_nothing_is_written(lm, tmp_path, capsys, more, message):
    command = ["tune", "decoder", *more, "--lm", str(lm), "--out", str(tmp_path / "out")]
    assert run(command) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.startswith("cortext: ")
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()
