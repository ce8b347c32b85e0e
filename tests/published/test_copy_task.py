"""The published copy task as an evaluation directory, and its logits decoded again."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import complaint

import cortext
from cortext.cli import run
from cortext.decoding import Decoder
from cortext.evaluation.redecode import decode_evaluation
from cortext.text.inventory import LM, RELEASE, Inventory
from cortext_published.copy_task import import_copy_task
from cortext_tune.decoder.material import DevSet
from published import OPEN, SMALL, copy_task, personal_use, write_pickle


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pickle(tmp_path_factory.mktemp("published") / "t15_copyTask.pkl", copy_task())


@pytest.fixture(scope="module")
def imported(file: Path) -> Path:
    assert run(["import", "t15-analyses", str(file), "--out", str(file.parent / "copy")]) == 0
    return file.parent / "copy"


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that prefers `eye` to `i`, which sound the same."""
    directory = tmp_path_factory.mktemp("lm")
    text = "\n".join([*SMALL, *OPEN, *["eye am good"] * 5])
    cortext.LanguageModel.build([text], 2, directory / "lm")
    return directory / "lm"


def rows(path: Path) -> dict[int, str]:
    with path.open() as file:
        return {int(row["id"]): row["text"] for row in csv.DictReader(file)}


@pytest.mark.parametrize("order", [LM, RELEASE], ids=lambda order: order.name)
def test_logits_are_stored_in_the_order_of_models(tmp_path: Path, order: Inventory) -> None:
    content = copy_task(order=order)
    import_copy_task(write_pickle(tmp_path / "t15.pkl", content), tmp_path / "copy")
    files = sorted((tmp_path / "copy" / "logits").glob("*.npy"))
    assert len(files) == len(SMALL) + len(OPEN)
    for path, logits_PV in zip(files, content["decoded_logits"], strict=True):
        stored_PV = np.load(path)
        for token, symbol in enumerate(RELEASE.symbols):
            np.testing.assert_allclose(
                stored_PV[:, token], logits_PV[:, order.index[symbol]], rtol=1e-3
            )
    origin = json.loads((tmp_path / "copy" / "metrics.json").read_text())["provenance"]
    assert origin["inventory"]["symbols"] == list(RELEASE.symbols)
    assert origin["imported"] == {"file": "t15.pkl", "order": order.name, "verified": True}


def test_the_directory_holds_what_was_published(imported: Path) -> None:
    lines = [json.loads(line) for line in (imported / "nbest.jsonl").read_text().splitlines()]
    assert [line["reference"] for line in lines] == [*SMALL, *OPEN]
    assert lines[1]["hypotheses"][0]["text"] == "you thirsty"
    assert lines[1]["hypotheses"][0]["score"] is None
    assert [(line["session"], line["trial"]) for line in lines[3:6]] == [
        ("t15.day0025", 3),
        ("t15.day0027", 0),
        ("t15.day0032", 0),
    ]
    assert rows(imported / "predictions.csv")[5] == "can pretty much get everybody there"
    (name, words), *others = json.loads((imported / "vocabularies.json").read_text()).items()
    assert (name, others, words["trials"]) == ("50-word", [], [0, 1, 2, 3])
    assert words["words"] == sorted(
        "i am good are you thirsty bring my glasses here family is".split()
    )


def test_rates_are_those_of_the_published_sentences(imported: Path) -> None:
    metrics = json.loads((imported / "metrics.json").read_text())
    # Two sentences lack a word, of 14 words said with 50 words and 29 others.
    assert metrics["per"] == 0
    assert metrics["wer"] == pytest.approx(2 / 43)
    assert metrics["per_corpus"]["50-word"]["wer"] == pytest.approx(1 / 14)
    assert metrics["per_corpus"]["open vocabulary"]["wer"] == pytest.approx(1 / 29)
    assert metrics["post_implant_day"] == {
        "t15.day0025": 25, "t15.day0027": 27, "t15.day0032": 32
    }  # fmt: skip
    page = (imported / "report.html").read_text()
    assert "Evaluation of the published copy task" in page
    assert "days after implantation" in page
    assert "None" not in page


def test_all_trials_are_decoded_beside_the_published_sentences(
    imported: Path, lm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "decoded.csv"
    given = ["decode", "--logits", str(imported), "--lm", str(lm), "--out", str(out)]
    assert run(given) == 0
    printed = capsys.readouterr().out
    assert "WER as published" in printed
    decoded = rows(out)
    # `eye` is not among the words that the trial may hold.
    assert decoded[0] == "i am good"
    assert decoded[5] == "they can pretty much get everybody there"
    assert run([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["name"], row["n_trials"]) for row in found["rates"]] == [
        ("50-word", 4),
        ("open vocabulary", 4),
        ("all trials", 8),
    ]
    assert [row["per"] for row in found["rates"]] == [0, 0, 0]
    assert [row["before"]["rate"] for row in found["rates"]] == pytest.approx(
        [1 / 14, 1 / 29, 2 / 43]
    )
    assert [row["now"]["rate"] for row in found["rates"]] == [0, 0, 0]


def test_a_trial_of_two_vocabularies_is_decoded_once(
    imported: Path, lm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = imported / "vocabularies.json"
    content = limits.read_bytes()
    fifty = json.loads(content)["50-word"]
    again = {"words": fifty["words"][::-1], "trials": fifty["trials"][:2]}
    limits.write_text(json.dumps({"50-word": fifty, "the same words": again}))
    decoded = []
    decode_batch = Decoder.decode_batch

    def counted(self: Decoder, log_probs: list, *settings: Any) -> list:
        decoded.append(len(log_probs))
        return decode_batch(self, log_probs, *settings)

    monkeypatch.setattr(Decoder, "decode_batch", counted)
    try:
        decode_evaluation(imported, Decoder.from_dir(lm), tmp_path / "out.csv")
    finally:
        limits.write_bytes(content)
    assert decoded == [4, 4]
    assert rows(tmp_path / "out.csv")[0] == "i am good"


def test_an_evaluation_without_vocabularies_is_decoded_with_all_words(
    imported: Path, lm: Path, tmp_path: Path
) -> None:
    limits = imported / "vocabularies.json"
    content = limits.read_bytes()
    limits.unlink()
    try:
        found = decode_evaluation(imported, Decoder.from_dir(lm), tmp_path / "out.csv")
    finally:
        limits.write_bytes(content)
    assert rows(tmp_path / "out.csv")[0] == "eye am good"
    assert [row.name for row in found.rows] == ["all trials"]
    assert found.rows[0].now.counts.errors == 1


def test_decoder_options_are_tuned_on_it(imported: Path, lm: Path) -> None:
    material = DevSet.read(imported)
    found = material.decode(Decoder.from_dir(lm), [5, 0])
    # `eye` is not among the words that trial 0 may hold.
    assert [nbest[0].text for nbest in found] == [material.utterances[5].reference, "i am good"]
    assert [one.reference for one in material.utterances][:2] == ["i am good", "are you thirsty"]
    assert material.inventory == RELEASE
    assert all(len(array) for array in material.log_probs)


def test_other_files_are_refused_in_one_line(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use = write_pickle(tmp_path / "t15_personalUse.pkl", personal_use())
    content = copy_task()
    content["decoded_phonemes_raw"] = content["decoded_phonemes_raw"][::-1]
    wrong = write_pickle(tmp_path / "wrong.pkl", content)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    for arguments, says in (
        ((use, "--out", tmp_path / "o"), "holds no logits; draw it: cortext report release"),
        ((wrong, "--out", tmp_path / "o"), "no known token order gives the published phonemes"),
        ((file, "--out", tmp_path / "o", "--order", "lab"), "unknown inventory 'lab'"),
        ((file, "--out", tmp_path / "full"), "is not an evaluation directory"),
        ((tmp_path / "none.pkl", "--out", tmp_path / "o"), "none.pkl: cannot be read"),
    ):
        assert says in complaint(capsys, "import", "t15-analyses", *arguments)
    assert not (tmp_path / "o").exists()


def test_a_given_order_is_not_verified(tmp_path: Path) -> None:
    content = copy_task()
    content["decoded_phonemes_raw"] = content["decoded_phonemes_raw"][::-1]
    metrics = import_copy_task(write_pickle(tmp_path / "t15.pkl", content), tmp_path / "o", "lm")
    assert metrics.provenance["imported"] == {"file": "t15.pkl", "order": "lm", "verified": False}


def test_directories_that_cannot_be_decoded_are_refused(
    imported: Path, lm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def says(logits: Path, *more: object, out: Path = tmp_path / "o.csv") -> str:
        return complaint(capsys, "decode", "--logits", logits, "--lm", lm, "--out", out, *more)

    assert "says how its logits are ordered; leave it out" in says(imported, "--order", "lm")
    (tmp_path / "empty").mkdir()
    assert "no nbest.jsonl" in says(tmp_path / "empty")
    assert "is a directory" in says(imported, out=tmp_path)
    limits = imported / "vocabularies.json"
    content = limits.read_bytes()
    try:
        for damaged in (
            '{"50-word": {"words": ["a"]}}',
            '{"x": 3}',
            '{"x": {"words": [], "trials": []}}',
        ):
            limits.write_text(damaged)
            assert "vocabularies.json: cannot be read" in says(imported)
    finally:
        limits.write_bytes(content)
    assert not (tmp_path / "o.csv").exists()
