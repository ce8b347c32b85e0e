"""Recordings of Spanish characters in bins of 10 ms: their results, and what does not go with them.

Frames of their model are 40 ms apart.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from own_recordings import (
    DAYS,
    LETTERS,
    N_FEATURES,
    OTHERS,
    OWN,
    SENTENCES,
    write_own,
)
from refusals import complaint

from cortext.cli import run as command
from cortext.data import open_data
from cortext.data.conventions import Conventions
from cortext.decoding import Decoder
from cortext.decoding.ngram import LanguageModel
from cortext.errors import DataError, LanguageModelError
from cortext.evaluation import evaluate, pictures
from cortext.models import AcousticModel, GRUConfig, build_model, load_model, save_model
from cortext.models.card import Smoothing
from cortext.text.inventory import HANDWRITING, RELEASE
from cortext_live.steps.stepped import stepped_errors
from cortext_live.steps.stepping import open_stepper

KINDS = list(OTHERS)
OF_TOKENS = KINDS[:2]
"""What a language model is compared by: it knows no bins."""


def save_run(folder: Path, conventions: Conventions) -> Path:
    torch.manual_seed(0)
    config = GRUConfig(n_units=8, n_layers=1, patch_size=28, patch_stride=4)
    network = build_model(config, n_features=N_FEATURES, n_days=len(DAYS), n_classes=len(LETTERS))
    smoothing = Smoothing(smooth_data=False)
    save_model(
        AcousticModel(
            network,
            sessions=DAYS,
            n_features=N_FEATURES,
            smoothing=smoothing,
            conventions=conventions,
        ),
        folder,
    )
    return folder


def build_lm(folder: Path, conventions: Conventions, unit: str = "word") -> Path:
    plain = conventions.language.name == "en"
    text = "\n".join(SENTENCES).replace("í", "i") if plain else "\n".join(SENTENCES)
    LanguageModel.build(
        [text],
        2,
        folder,
        inventory=conventions.inventory,
        language=conventions.language,
        unit=unit,
    )
    return folder


def spoken(sentence: str) -> np.ndarray:
    """Logits float32 [P, V]: two frames for each character, with a blank before each and at the end."""
    frames = [token for each in sentence.replace(" ", "|") for token in ("_", each, each)]
    logits_PV = np.full((len(frames) + 1, len(LETTERS)), -10.0, dtype=np.float32)
    logits_PV[np.arange(len(frames) + 1), LETTERS.ids([*frames, "_"])] = 10.0
    return logits_PV


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Recordings, a model whose logits are right, and an evaluation with each language model."""
    root = tmp_path_factory.mktemp("own")
    data = write_own(root / "data", {"val": len(SENTENCES)})
    run = save_run(root / "run", OWN)

    def right(model, split, chosen, progress):
        return [spoken(split.sentence(i)) for i in chosen]

    lms = {unit: build_lm(root / unit, OWN, unit) for unit in ("word", "character")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cortext.evaluation.recognise.logits_of", right)
        patch.setattr("cortext.evaluation.report.N_PICTURES", 1)
        metrics = {
            unit: evaluate(run, data, "val", lm, root / f"eval-{unit}") for unit, lm in lms.items()
        }
    return SimpleNamespace(
        root=root,
        data=data,
        run=run,
        lm=lms["word"],
        lms=lms,
        metrics=metrics,
        evaluation=root / "eval-word",
    )


@pytest.fixture(scope="module")
def others(own):
    """A run, language models and an evaluation of each of the other conventions."""
    found = {}
    for kind, (conventions, _) in OTHERS.items():
        folder = own.root / kind.replace(" ", "-")
        save_run(folder / "run", conventions)
        if kind in OF_TOKENS:
            build_lm(folder / "lm", conventions)
        shutil.copytree(own.evaluation, folder / "eval")
        file = folder / "eval" / "metrics.json"
        content = json.loads(file.read_text())
        given = content["provenance"]
        for name in ("language", "bin_ms"):
            given.pop(name)
        given |= {"inventory": conventions.inventory.to_json()} | conventions.to_json()
        file.write_text(json.dumps(content))
        found[kind] = SimpleNamespace(
            run=folder / "run", lm=folder / "lm", evaluation=folder / "eval", says=OTHERS[kind][1]
        )
    return found


def read_lists(folder: Path) -> list[dict]:
    text = (folder / "nbest.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def table(path: Path) -> list[list[str]]:
    return list(csv.reader(path.read_text(encoding="utf-8").splitlines()))


@pytest.mark.parametrize("unit", ["word", "character"])
def test_accents_stand_in_scores_csv_lists_and_report(own, unit):
    metrics, folder = own.metrics[unit], own.root / f"eval-{unit}"
    assert metrics.per == metrics.wer == metrics.cer == 0.0
    assert "mi río".encode() in (folder / "predictions.csv").read_bytes()
    rows = table(folder / "predictions.csv")
    assert sorted(text for _, text in rows[1:]) == sorted(2 * SENTENCES)
    lists = read_lists(folder)
    assert all(each["hypotheses"][0]["text"] == each["reference"] for each in lists)
    assert all(0.5 < w["confidence"] <= 1 for e in lists for w in e["hypotheses"][0]["words"])
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert '<dd dir="auto">mi río' in page
    assert "<dt>Language</dt><dd>es</dd>" in page
    assert "<dt>Bins</dt><dd>10 ms</dd>" in page


def test_characters_are_named_and_grouped_as_their_inventory_says(own):
    header = table(own.evaluation / "confusion.csv")[0]
    assert header == ["reference", *"aeilmorsí", "|", "deleted"]
    page = (own.evaluation / "report.html").read_text(encoding="utf-8")
    assert "token error rate (TER)" in page
    assert "TER scores the most probable characters" in page
    assert "with the boundary between words" in page
    assert "phoneme" not in page.partition("<body")[2].replace('id="phonemes"', "").replace(
        'href="#phonemes"', ""
    )


def test_an_evaluation_keeps_its_conventions_where_they_are_not_the_releases(own):
    found = json.loads((own.evaluation / "metrics.json").read_text())["provenance"]
    assert found["inventory"] == {
        "name": "letras",
        "symbols": ["_", "|", *"aeilmorsí"],
        "roles": {"blank": "_", "boundary": "|"},
        "unit": "character",
    }
    assert (found["language"], found["bin_ms"], found["frame_ms"]) == ("es", 10, 40.0)


def test_times_follow_from_bins_of_10_ms(own):
    """Frames of `mi río`: `_ m m _ i i _ | | _ r r _ í í _ o o _`, every 40 ms."""
    for unit in own.lms:
        best = next(
            each["hypotheses"][0]
            for each in read_lists(own.root / f"eval-{unit}")
            if each["reference"] == "mi río"
        )
        times = [(word["word"], word["start_ms"], word["end_ms"]) for word in best["words"]]
        assert times == [("mi", 40.0, 240.0), ("río", 400.0, 720.0)]
    # 16 words, 54 characters of 28 bins, on each day.
    assert own.metrics["word"].words_per_minute == pytest.approx(16 / (54 * 28 * 0.010 / 60))
    # The first frame reads 28 bins, and its middle is at bin 14.
    assert pictures.frame_times(load_model(own.run)) == pytest.approx((0.140, 0.040))


def edited(own, tmp_path, **changes):
    """Return an evaluation whose `metrics.json` was edited."""
    shutil.copytree(own.evaluation, tmp_path / "eval")
    file = tmp_path / "eval" / "metrics.json"
    content = json.loads(file.read_text())
    content["provenance"] |= changes
    file.write_text(json.dumps(content))
    return tmp_path / "eval"


def test_saved_logits_are_decoded_again_with_their_own_tokens_and_times(own, tmp_path, capsys):
    out = tmp_path / "again.csv"
    for unit, lm in own.lms.items():
        given = ["decode", "--logits", own.evaluation, "--lm", lm, "--out", out, "--json"]
        assert command([str(each) for each in given]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["rates"][-1]["now"]["rate"] == 0.0, unit
        assert table(out) == table(own.evaluation / "predictions.csv")


@pytest.mark.parametrize("unit", ["word", "character"])
def test_a_made_up_sentence_is_said_in_the_language_of_the_model(own, capsys, unit):
    given = ["decode", "--fake-text", "¡Sí, mi RI\u0301O!", "--noise", "0", "--lm", own.lms[unit]]
    assert command([str(each) for each in [*given, "--json"]]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["hypotheses"][0]["text"] == "sí mi río"
    assert found["not_in_lexicon"] == []


def test_a_file_names_the_order_of_logits(own, tmp_path, capsys):
    np.savez(tmp_path / "logits.npz", **{f"t{n}": spoken(s) for n, s in enumerate(SENTENCES)})
    (tmp_path / "letras.json").write_text(json.dumps(LETTERS.to_json()))
    given = ["decode", "--logits", "logits.npz", "--order", "letras.json", "--lm", own.lm]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert command([str(each) for each in [*given, "--out", "out.csv"]]) == 0
    assert [text for _, text in table(tmp_path / "out.csv")[1:]] == list(SENTENCES)


@pytest.mark.parametrize("kind", KINDS)
def test_data_and_run_of_other_conventions_are_refused(kind, own, others, tmp_path, capsys):
    other = others[kind]
    for given in (
        ["evaluate", other.run, "--data", own.data, "--out", tmp_path / "out"],
        ["decode", other.run, "--data", own.data, "--split", "val", "--lm", own.lm, "--out",
         tmp_path / "out.csv"],
    ):  # fmt: skip
        line = complaint(capsys, *given)
        assert "the data and the run differ" in line
        assert_says(line, other)
    tuned = ["tune", "decoder", other.run, "--data", own.data, "--lm", own.lm, "--out"]
    assert command([str(each) for each in [*tuned, tmp_path / "tuned"]]) == 2
    assert_says(capsys.readouterr().err.splitlines()[-1], other)
    stepper = open_stepper(other.run)
    with pytest.raises(DataError, match="the data and the model 'it' differ: .*" + other.says):
        stepped_errors({"it": stepper}, open_data(own.data), "val")
    assert not (tmp_path / "out").exists()


def assert_says(line: str, other: SimpleNamespace) -> None:
    assert re.search(other.says, line), line


@pytest.mark.parametrize("kind", OF_TOKENS)
def test_language_models_of_other_tokens_or_language_are_refused(
    kind, own, others, tmp_path, capsys
):
    other = others[kind]
    np.save(tmp_path / "logits.npy", spoken("sí"))
    (tmp_path / "letras.json").write_text(json.dumps(LETTERS.to_json()))
    saved = ["--logits", tmp_path / "logits.npy", "--order", tmp_path / "letras.json"]
    cases = [
        ["evaluate", own.run, "--data", own.data, "--lm", other.lm, "--out", tmp_path / "out"],
        ["decode", "--logits", own.evaluation, "--lm", other.lm, "--out", tmp_path / "out"],
        ["ensemble", own.evaluation, own.evaluation, "--method", "average", "--lm", other.lm],
        ["ensemble", own.evaluation, own.evaluation, "--lattice", "--lm", other.lm],
        ["tune", "decoder", own.evaluation, "--lm", other.lm, "--out", tmp_path / "out"],
    ]
    if kind == "another language":  # lists of sentences have no tokens, and files no language
        cases.append(["ensemble", own.evaluation, "--method", "rover-lm", "--lm", other.lm])
    else:
        cases.append(["decode", *saved, "--lm", other.lm, "--out", tmp_path / "out"])
    for given in cases:
        line = complaint(capsys, *given)
        assert "the language model and" in line
        assert_says(line, other)
    with pytest.raises(LanguageModelError, match="and the second one differ: .*" + other.says):
        Decoder.from_dir(own.lm, second_lm=other.lm)
    assert not (tmp_path / "out").exists()


def test_a_second_language_model_is_of_the_same_unit(own):
    with pytest.raises(LanguageModelError, match="has words and the second one characters"):
        Decoder.from_dir(own.lm, second_lm=own.lms["character"])


@pytest.mark.parametrize("kind", KINDS)
def test_evaluations_of_other_conventions_do_not_go_together(kind, own, others, tmp_path, capsys):
    other = others[kind]
    cases = [
        ["ensemble", own.evaluation, other.evaluation, "--method", "average", "--lm", own.lm],
        ["tune", "decoder", own.evaluation, "--held-out", other.evaluation, "--lm", own.lm,
         "--out", tmp_path / "out"],
    ]  # fmt: skip
    for given in cases:
        line = complaint(capsys, *given)
        assert "this evaluation and" in line
        assert_says(line, other)
    lists = ["ensemble", own.evaluation, other.evaluation, "--method", "mbr"]
    if kind == "another language":
        assert_says(complaint(capsys, *lists), other)
    else:  # sentences are combined whatever tokens they were made of
        assert command([str(each) for each in lists]) == 0


def test_tuning_names_the_language_model_before_the_priors_that_it_lacks(own, tmp_path, capsys):
    LanguageModel.build(["si si", "no"], 2, tmp_path / "lm", inventory="characters")
    (tmp_path / "options.yaml").write_text("label_priors: {í: 0.5}\nprior_weight: 0.5\n")
    given = ["tune", "decoder", own.evaluation, "--options", tmp_path / "options.yaml"]
    line = complaint(capsys, *given, "--lm", tmp_path / "lm", "--out", tmp_path / "out")
    assert "the language model and the logits of" in line
    assert not (tmp_path / "out").exists()


def test_decoder_options_with_priors_of_other_tokens_are_refused(own, tmp_path, capsys):
    (tmp_path / "options.yaml").write_text("label_priors: {AA: 0.5}\nprior_weight: 0.5\n")
    given = ["evaluate", own.run, "--data", own.data, "--lm", own.lm, "--out", tmp_path / "out"]
    line = complaint(capsys, *given, "--options", tmp_path / "options.yaml")
    assert "label_priors names an unknown token 'AA'" in line


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"inventory": {"name": "x", "symbols": ["_"]}}, "it has 1 tokens"),
        ({"inventory": "letters"}, "unknown inventory 'letters'"),
        ({"inventory": {"name": "x", "symbols": ["_", 3]}}, "a list of texts is needed"),
        ({"language": "xx"}, "unknown language 'xx'"),
        ({"language": 3}, "the language is 3"),
        ({"bin_ms": 0}, "bin_ms is 0; 5 to 50 ms"),
        ({"bin_ms": "10"}, "bin_ms is '10'"),
    ],
)
def test_damaged_conventions_of_an_evaluation_are_one_line(own, tmp_path, capsys, changes, says):
    folder = edited(own, tmp_path, **changes)
    given = ["decode", "--logits", folder, "--lm", own.lm, "--out", tmp_path / "out.csv"]
    line = complaint(capsys, *given)
    assert says in line
    assert "metrics.json" in line
    assert not (tmp_path / "out.csv").exists()


def test_a_recording_of_english_needs_no_word_about_itself():
    assert replace(OWN, **vars(Conventions())).to_json() == {}


@pytest.mark.parametrize(
    ("inventory", "labels"),
    [(RELEASE, ["threshold\ncrossings", "spike-band\npower"]), (HANDWRITING, ["features"])],
)
def test_features_are_called_crossings_and_power_only_where_that_is_known(inventory, labels):
    picture = pictures.TrialPicture(
        features_TC=np.random.default_rng(0).normal(size=(50, 192)),
        bin_s=0.02,
        posterior_PV=np.full((12, len(inventory)), 1 / len(inventory)),
        frame_start_s=0.14,
        frame_s=0.08,
        phonemes=(),
        words=(),
        inventory=inventory,
    )
    axis = pictures.trial_figure(picture).axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == labels
