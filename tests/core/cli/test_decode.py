"""The command `decode` for saved logits and made-up sentences. (For runs: tests/core/evaluation and the
README.)
"""

import json

import numpy as np
import pytest
from refusals import complaint

import cortext
from cortext.cli import run
from cortext.decoding.fake import fake_log_probs

SENTENCES = ["good morning", "how are you", "see you soon", "thank you very much"]


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    directory = tmp_path_factory.mktemp("decode")
    (directory / "text.txt").write_text("\n".join(SENTENCES) + "\n")
    cortext.LanguageModel.build([directory / "text.txt"], 2, directory / "lm")
    return str(directory / "lm")


@pytest.fixture
def logits(tmp_path):
    np.savez(
        tmp_path / "logits.npz",
        first=fake_log_probs(SENTENCES[0]),
        second=fake_log_probs(SENTENCES[1]),
    )
    return str(tmp_path / "logits.npz")


def test_saved_logits_become_rows(lm, logits, tmp_path, capsys):
    out = tmp_path / "out.csv"
    given = ["decode", "--logits", logits, "--order", "release", "--lm", lm, "--out", str(out)]
    assert run(given) == 0
    printed = capsys.readouterr().out
    assert "good morning" in printed
    assert "2 rows" in printed
    assert out.read_text() == "id,text\nfirst,good morning\nsecond,how are you\n"

    assert run([*given, "--temperature", "1.5", "--threads", "1", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [(trial["id"], trial["text"]) for trial in facts["trials"]] == [
        ("first", "good morning"),
        ("second", "how are you"),
    ]
    assert [trial["degraded"] for trial in facts["trials"]] == [None, None]


def test_options_of_the_search_come_from_a_file(lm, tmp_path, capsys):
    (tmp_path / "options.yaml").write_text("nbest: 1\n")
    given = ["decode", "--fake-text", "see you soon", "--lm", lm, "--json"]
    assert run([*given, "--options", str(tmp_path / "options.yaml")]) == 0
    assert len(json.loads(capsys.readouterr().out)["hypotheses"]) == 1


def test_a_made_up_sentence_is_found_with_its_times(lm, capsys):
    assert (
        run(["decode", "--fake-text", "See you soon!", "--noise", "0", "--lm", lm, "--json"]) == 0
    )
    facts = json.loads(capsys.readouterr().out)
    best = facts["hypotheses"][0]
    assert best["text"] == "see you soon"
    tokens = fake_log_probs("see you soon", 0.0).argmax(axis=1)
    first = np.flatnonzero(tokens)[0]  # the first frame that is no blank
    assert [word["word"] for word in best["words"]] == ["see", "you", "soon"]
    assert best["words"][0]["start_ms"] == 80 * first
    assert facts["n_frames"] == len(tokens)
    assert facts["not_in_lexicon"] == []
    assert any("posteriors of the search" in note for note in facts["notes"])

    assert run(["decode", "--fake-text", "see the zebra", "--seed", "2", "--lm", lm]) == 0
    printed = capsys.readouterr().out
    assert "not in the lexicon, so never found: the zebra" in printed
    assert "see 0.16-" in printed


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ([], ["nothing to decode", "--logits", "--fake-text"]),
        (["RUN"], ["RUN needs --data"]),
        (["RUN", "--data", "x"], ["RUN needs --out"]),
        (["RUN", "--logits", "x.npz"], ["RUN and --logits at once"]),
        (["--logits", "x.npz", "--fake-text", "x"], ["--logits and --fake-text at once"]),
        (["--logits", "x.npz", "--out", "x.csv"], ["--logits needs --order"]),
        (["--logits", "x.npz", "--order", "lm"], ["--logits needs --out"]),
        (
            ["--logits", "x.npz", "--order", "lm", "--out", "x.csv", "--split", "val"],
            ["--split does not go with"],
        ),
        (
            ["--logits", "x.npz", "--order", "lm", "--out", "x.csv", "--skip-bad"],
            ["--skip-bad does not go with"],
        ),
        (
            ["RUN", "--data", "x", "--out", "x.csv", "--order", "lm"],
            ["--order does not go with RUN"],
        ),
        (
            ["--fake-text", "x", "--temperature", "2"],
            ["--temperature does not go with --fake-text"],
        ),
        (["--fake-text", "x", "--out", "x.csv"], ["--out does not go with --fake-text"]),
        (["--fake-text", "x", "--data", "x"], ["--data does not go with --fake-text"]),
        (["--fake-text", "12"], ["no word", "'12'"]),
        (["--fake-text", "x", "--noise", "-1"], ["noise"]),
        (["--logits", "none.npz", "--order", "lm", "--out", "x.csv"], ["none.npz", "no such file"]),
        (["--logits", "x.npz", "--order", "lab", "--out", "x.csv"], ["'lab'", "lm, release"]),
    ],
)
def test_wrong_mixes_are_one_line_and_write_nothing(
    given, parts, lm, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    line = complaint(capsys, "decode", *given, "--lm", lm)
    assert all(part in line for part in parts), line
    assert not list(tmp_path.iterdir())


def test_a_wrong_temperature_is_named(lm, logits, tmp_path, capsys):
    given = [
        "decode",
        "--logits",
        logits,
        "--order",
        "release",
        "--lm",
        lm,
        "--out",
        str(tmp_path / "out.csv"),
    ]
    assert "temperature is 0.0" in complaint(capsys, *given, "--temperature", "0")
    assert not (tmp_path / "out.csv").exists()
