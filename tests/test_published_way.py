"""The published way stays as it was: English, ARPABET, bins of 20 ms.

The expected values were computed with the version before inventories, languages and the length of a
bin became data. They cover what does not depend on the processor: text, whole numbers, and plain
arithmetic on exact values. Scores of sentences are compared as numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from importlib import resources
from pathlib import Path

import h5py
import numpy as np
import pytest
from untrained import untrained_run

from cortext.data import make_trial, open_packed, pack, write_session
from cortext.decoding import Decoder
from cortext.decoding.fake import fake_log_probs
from cortext.decoding.ngram import LanguageModel
from cortext.decoding.saved import decode_saved
from cortext.evaluation import evaluate
from cortext.text import normalize, to_phonemes

DAY = "t15.2023.08.11"
N_FEATURES = 8
SENTENCES = ("I'd like some water, please.", "We're going home now!", "Are the two of them well?")
TEXTS = (*SENTENCES, "We want water now.", "Are you going home?", "I'd like to go, too.")
ODD = (
    "3.5 km (café)",
    "one\ttwo",
    "half- finished, well-known",
    "yes--no",
    "yes -- no",
    "yes-- no",
    "a---b",
    "the end -",
    "say 'no' to O'Neil",
    "'Tis the season; 'twas   rock 'n' roll",
    "co-op BBC btw hmm",
    "zork's zorks' zork-like keep'em",
    "naïve Straße frío Ñandú",
    "can\u2019t won\u2019t",
    "A\u00a0B\u200bC\nD",
    "Mr. Dr. 1st 2nd $5",
)


ARPABET = (
    "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W"
    " Y Z ZH"
)
PUBLISHED = {
    "normal forms": "000659938d1fb26e",
    "labels": "1be08e96e9886a26",
    "data_train.hdf5": "41b877fda6414000",
    "data_test.hdf5": "086a3afeabddd000",
    "index.json": "c9b18bf7d545e5f4",
    "index.npz": "a58ac8c93c78f057",
    "train.f16": "1a579b13afeea2d1",
    "tokens.txt": "b5b1ca6eb62e31b6",
    "lexicon.txt": "1e375fe58d066e14",
    "lm.json": "ddb15a2ffc670c31",
    "n-grams": "b95ed2671b852bbb",
    "model.json": "bb0d6ab80c873cbf",
    "texts.csv": "71d8887e8d45e01f",
    "n-best lists": "c43ab70581416c84",
}
"""Checksums by what they cover."""
SCORES = (
    -137.813,
    -118.24,
    -126.425,
    -119.022,
    -123.67,
    -124.714,
    -118.464,
    -121.802,
    -109.188,
    -115.1,
    -115.123,
)
"""Scores of the n-best lists of the six sentences, one after another."""


def shipped_texts() -> list[str]:
    """Return every twentieth sentence that the simulator's participant says, and odd ones."""
    folder = resources.files("cortext_data.simulate") / "text"
    lines = [
        line
        for name in ("home.txt", "people.txt", "care.txt", "world.txt")
        for line in (folder / name).read_text(encoding="utf-8").splitlines()
    ]
    return [*lines[::20], *ODD]


def check(name: str, content: str | bytes) -> None:
    """Compare a checksum with that of before."""
    assert digest(content) == PUBLISHED[name], f"{name} has changed"


def digest(content: str | bytes) -> str:
    """Return a short checksum."""
    data = content.encode() if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()[:16]


def trials():
    """Return trials whose features are exact multiples of 1/8."""
    for number, sentence in enumerate(SENTENCES):
        bins = np.arange(160 + number)[:, None] * np.arange(1, N_FEATURES + 1)
        features_TC = ((bins * 37 + number) % 65 - 32) / 8
        yield make_trial(features_TC, DAY, 1 + number // 2, number, sentence, corpus="Switchboard")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory) -> Path:
    """Session files of the three sentences, a split of which withholds the labels."""
    root = tmp_path_factory.mktemp("published") / "data"
    write_session(root / DAY / "data_train.hdf5", trials())
    write_session(root / DAY / "data_val.hdf5", trials())
    withheld = (replace(trial, sentence=None, phoneme_ids=None) for trial in trials())
    write_session(root / DAY / "data_test.hdf5", withheld)
    return root


@pytest.fixture(scope="module")
def lm(tmp_path_factory) -> Path:
    """A 3-gram of six sentences, also as text."""
    out = tmp_path_factory.mktemp("published") / "lm"
    LanguageModel.build(TEXTS, 3, out, keep_arpa=True, binary="trie")
    return out


def test_sentences_keep_their_normal_form():
    check("normal forms", "\n".join(map(normalize, shipped_texts())))


def test_sentences_keep_their_labels():
    texts = shipped_texts()
    assert len(texts) > 240
    check("labels", "\n".join(" ".join(to_phonemes(text)) for text in texts))


def test_session_files_keep_their_content(recordings):
    """Names, types, layout and values of all arrays and attributes; nothing stands beside them."""
    assert [path.name for path in recordings.iterdir()] == [DAY]
    for split in ("train", "test"):
        with h5py.File(recordings / DAY / f"data_{split}.hdf5") as file:
            found = [str(sorted(file.attrs.items()))]
            for name, group in file.items():
                found += [f"{name} {key} {value!s}" for key, value in group.attrs.items()]
                found += [
                    f"{key} {values.dtype} {values.shape} {values.chunks} {digest(values[()].tobytes())}"
                    for key, values in group.items()
                ]
        check(f"data_{split}.hdf5", "\n".join(found))


def test_packed_data_keep_their_bytes(recordings, tmp_path):
    pack(recordings, tmp_path / "packed")
    names = sorted(path.name for path in (tmp_path / "packed").iterdir())
    assert names == ["index.json", "index.npz", "test.f16", "train.f16", "val.f16"]
    text = (tmp_path / "packed" / "index.json").read_text()
    outer = json.loads(text)
    # These three hold the folder, the time and the library that writes zip archives.
    for key in ("source", "source_files", "arrays"):
        text = text.replace(json.dumps(outer["index"][key]), "")
    check("index.json", text.replace(outer["checksum"], ""))
    with np.load(tmp_path / "packed" / "index.npz") as arrays:
        found = [f"{key} {arrays[key].dtype} {arrays[key].tolist()}" for key in arrays.files]
    check("index.npz", "\n".join(found))
    check("train.f16", (tmp_path / "packed" / "train.f16").read_bytes())
    assert open_packed(tmp_path / "packed").n_features == N_FEATURES


def test_a_language_model_keeps_its_files(lm):
    assert sorted(path.name for path in lm.iterdir()) == [
        "lexicon.txt",
        "lm.arpa",
        "lm.bin",
        "lm.json",
        "tokens.txt",
    ]
    check("tokens.txt", (lm / "tokens.txt").read_bytes())
    check("lexicon.txt", (lm / "lexicon.txt").read_bytes())
    facts = json.loads((lm / "lm.json").read_text())
    check("lm.json", json.dumps(facts | {"version": None, "discounts": None}))
    lines = [line.split("\t") for line in (lm / "lm.arpa").read_text().splitlines()]
    grams = [line[1] for line in lines if len(line) > 1]
    numbers = [
        float(line[place]) for line in lines for place in (0, 2) if len(line) > max(place, 1)
    ]
    check("n-grams", "\n".join(grams))
    assert math.fsum(numbers) == pytest.approx(-63.4481, abs=1e-3)


def test_a_model_keeps_its_description(tmp_path):
    untrained_run(tmp_path, [DAY], N_FEATURES)
    check("model.json", (tmp_path / "model.json").read_bytes())


def test_decoding_keeps_its_sentences_and_scores(lm, tmp_path):
    np.savez(
        tmp_path / "saved.npz",
        **{f"trial_{seed}": fake_log_probs(text, 2.0, seed) for seed, text in enumerate(TEXTS)},
    )
    decoder = Decoder.from_dir(lm, {"nbest": 3})
    found = decode_saved(tmp_path / "saved.npz", "release", decoder, tmp_path / "texts.csv")
    check("texts.csv", (tmp_path / "texts.csv").read_bytes())
    texts = [hypothesis.text for nbest in found.values() for hypothesis in nbest]
    scores = [hypothesis.score for nbest in found.values() for hypothesis in nbest]
    check("n-best lists", "\n".join(texts))
    assert scores == pytest.approx(SCORES, abs=1e-3)


def test_an_evaluation_keeps_its_origin_and_its_predictions(recordings, lm, tmp_path, monkeypatch):
    """An untrained model says little, but the files name the tokens and the frames."""
    monkeypatch.setattr("cortext.evaluation.report.N_PICTURES", 1)
    run = untrained_run(tmp_path / "run", [DAY], N_FEATURES)
    evaluate(run, recordings, "val", lm, tmp_path / "eval")
    metrics = json.loads((tmp_path / "eval" / "metrics.json").read_text())
    origin = metrics["provenance"]
    symbols = ["BLANK", *ARPABET.split(), "SIL"]
    assert json.dumps(origin["inventory"]) == json.dumps({"name": "release", "symbols": symbols})
    assert origin["frame_ms"] == 80
    # Keys that only other conventions have.
    assert not {"conventions", "language", "bin_ms", "unit"} & (set(metrics) | set(origin))
    rows = (tmp_path / "eval" / "predictions.csv").read_bytes().split(b"\n")
    assert rows[0].strip() == b"id,text"
    assert len(rows) == 1 + 3 + 1
    frames = [np.load(path).shape for path in sorted((tmp_path / "eval" / "logits").iterdir())]
    assert frames == [(35, 41), (35, 41), (36, 41)]
