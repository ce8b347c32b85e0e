"""The commands about language models."""

import json

import numpy as np
import pytest

from cortext.cli import run
from cortext.data import make_trial, write_session
from cortext.data.conventions import Conventions
from cortext.text import CHARACTERS, get_language


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("Good morning. How are you?\nhow are they\nsee you soon\nhow are you\n")
    return path


def out_of(capsys, *arguments):
    assert run([*map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_prune_takes_as_many_numbers_as_follow(text, tmp_path, capsys):
    lm = tmp_path / "lm"
    for position in (["--prune", 0, 0, 1, text], [text, "--prune", 0, 0, 1]):
        out = out_of(capsys, "lm", "build", *position, "--order", 3, "--out", lm, "--json")
        assert json.loads(out)["prune"] == [0, 0, 1]
    assert json.loads(out)["counts"][2] == 3  # <s> how are, how are you, are you </s>


@pytest.mark.parametrize(
    "option",
    [
        ["--prune", "none"],
        ["--prune", "-1"],
        ["--memory", "nan"],
        ["--memory", "1e12"],
        ["--vocab", ""],
    ],
)
def test_what_is_no_number_is_refused(text, tmp_path, capsys, option):
    assert run(["lm", "build", str(text), *option, "--out", str(tmp_path / "lm")]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "lm").exists()


def test_a_model_is_described_with_its_file_type_and_size(text, tmp_path, capsys):
    lm = tmp_path / "lm"
    table = out_of(
        capsys, "lm", "build", text, "--order", 2, "--vocab", 3, "--binary", "probing", "--out", lm
    )
    for expected in ("probing", "bytes per ngram", "out of vocabulary", "rate 0.3"):
        assert expected in table
    facts = json.loads(out_of(capsys, "lm", "info", lm, "--json"))
    assert facts["order"] == 2
    assert facts["vocabulary"] == facts["lexicon_words"] == 3  # how, are and you, three times each
    assert facts["counts"][0] == 6
    assert facts["bytes_per_ngram"] == round(
        (lm / "lm.bin").stat().st_size / sum(facts["counts"]), 2
    )


def test_a_model_of_letters_scores_words(text, tmp_path, capsys):
    lm = tmp_path / "lm"
    out_of(capsys, "lm", "build", text, "--order", 3, "--type", "spelling", "--out", lm)
    scored = json.loads(out_of(capsys, "lm", "score", lm, text, "--json"))
    assert (scored["sentences"], scored["oov_rate"]) == (14, 0)


def test_texts_are_mixed_from_the_command_line(text, tmp_path, capsys):
    (tmp_path / "other.txt").write_text("how are you\nare you there\n")
    (tmp_path / "held.txt").write_text("are you there now\n")
    arguments = [
        "--interpolate",
        "--held-out",
        tmp_path / "held.txt",
        "--order",
        2,
        "--out",
        tmp_path / "lm",
        "--json",
    ]
    facts = json.loads(out_of(capsys, "lm", "build", text, tmp_path / "other.txt", *arguments))
    first, second = facts["interpolation"]["weights"]
    assert first < 0.1 < 0.9 < second


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lm", "info", "{}/none"], "no such directory"),
        (
            ["lm", "build", "{}/none.txt", "--out", "{}/lm"],
            "none.txt: cannot read the text: No such file",
        ),
        (
            ["lm", "build", "{}/text.txt", "--vocab", "{}/none", "--out", "{}/lm"],
            "cannot read the vocabulary",
        ),
        (
            ["lm", "build", "{}/text.txt", "--order", "9", "--out", "{}/lm"],
            "order is 9; it must be at least 1 and at most 6",
        ),
    ],
)
def test_mistakes_are_one_line(text, tmp_path, capsys, arguments, message):
    assert run([argument.format(tmp_path) for argument in arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_words_without_a_pronunciation_are_counted_and_named(tmp_path, capsys):
    (tmp_path / "text.txt").write_text("el niño y la niña. el agua\nla niña y el niño\n")
    (tmp_path / "lexicon.txt").write_text("el e l\nagua a g u a\nla l a\n")
    options = ["--lexicon", tmp_path / "lexicon.txt", "--language", "es", "--order", 1]
    arguments = ["lm", "build", tmp_path / "text.txt", *options, "--out", tmp_path / "lm"]
    assert run([*map(str, arguments)]) == 0
    printed = capsys.readouterr()
    assert printed.err.endswith("3 words without a pronunciation left out: niña, niño, y\n")
    facts = json.loads((tmp_path / "lm" / "lm.json").read_text())
    assert facts["pronunciations"] == {"from_lexicon": 3, "without": 3}
    assert facts["without_pronunciation"] == ["niña", "niño", "y"]
    assert (tmp_path / "lm" / "tokens.txt").read_text().split() == [
        "BLANK", "a", "e", "g", "l", "u", "SIL",
    ]  # fmt: skip


def test_tokens_and_language_come_from_data(text, tmp_path, capsys):
    session = "t15.2023.08.11"
    german = Conventions(CHARACTERS, get_language("de"))
    features_TC = np.zeros((200, 4), np.float32)
    trial = make_trial(features_TC, session, 1, 1, "Hallo Welt", conventions=german)
    write_session(tmp_path / "data" / session / "data_train.hdf5", [trial])
    arguments = ["lm", "build", text, "--data", tmp_path / "data", "--order", 2]
    arguments += ["--unit", "character", "--out", tmp_path / "lm", "--json"]
    facts = json.loads(out_of(capsys, *arguments))
    assert (facts["inventory"]["name"], facts["language"]) == ("characters", "de")
    assert run([*map(str, arguments), "--language", "de"]) == 2
    assert "leave --inventory and --language out" in capsys.readouterr().err
