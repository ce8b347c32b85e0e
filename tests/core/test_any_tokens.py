"""From recordings to sentences with the tokens, scripts and bins of five labs.

The log-probabilities are made of the recordings' own labels, so that words come out without a long
training. Expected tokens and sentences are written by hand.
"""

from __future__ import annotations

import csv
import json
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from cortext.cli import run as cortext
from cortext.data import Conventions, make_trial, open_data, write_session
from cortext.decoding import Decoder
from cortext.decoding.fake import STRENGTH
from cortext.decoding.saved import to_log_probs
from cortext.errors import TextError
from cortext.text import Inventory, Lexicon, get_inventory
from cortext.text.language import Language, get_language

DAY = "lab.2026.01.12"
FRAMES_A_TOKEN = 3

SPANISH = Inventory(
    "sonidos",
    ("_", "#", *"aefilnorstuɲ"),
    "_",
    "#",
    groups=(("vocales", ("a", "e", "i", "o", "u")),),
)
SYLLABLES = Inventory("pinyin", ("_", "ni3", "hao3", "wo3", "ren2", "shi4"), "_", None)
HEBREW = Inventory("otiyot", ("_", "|", *"אבגדהולםשר"), "_", None, "|", "character")


@dataclass(frozen=True)
class Lab:
    """Conventions of a lab, its words and what the first sentence becomes.

    Attributes:
        conventions: Tokens, language, length of a bin.
        lexicon: Pronunciations as the lines of a file; none where words are spelt.
        sentences: Sentences as they were prompted.
        label: Tokens of the first one.
        text: The first one as it is scored.
        options: Options of `lm build`.
    """

    conventions: Conventions
    lexicon: str
    sentences: tuple[str, ...]
    label: str
    text: str
    options: tuple[str, ...] = ()


LABS = {
    "Spanish": Lab(
        Conventions(SPANISH, get_language("es")),
        "el e l\nniño n i ɲ o\ntiene t i e n e\nfrío f r i o\nla l a\nseñora s e ɲ o r a\n",
        ("¡El niño tiene FRÍO!", "La señora tiene frío.", "el niño"),
        "e l # n i ɲ o # t i e n e # f r i o #",
        "el niño tiene frío",
    ),
    "characters with a lexicon": Lab(
        Conventions(get_inventory("characters"), bin_ms=10),
        "",
        ("I'd like tea.", "Tea, please!", "I like it"),
        "i ' d | l i k e | t e a",
        "i'd like tea",
    ),
    "an open vocabulary": Lab(
        Conventions(get_inventory("characters"), bin_ms=10),
        "",
        ("I'd like tea.", "Tea, please!", "I like it"),
        "i ' d | l i k e | t e a",
        "i'd like tea",
        ("--unit", "character"),
    ),
    "Chinese without a boundary": Lab(
        Conventions(SYLLABLES, get_language("zh")),
        "你 ni3\n好 hao3\n我 wo3\n人 ren2\n是 shi4\n",
        ("你好！", "我是人", "你是我"),
        "ni3 hao3",
        "你 好",
    ),
    "Hebrew": Lab(
        Conventions(HEBREW, Language("he", "א-ת", "none", "none"), 50),
        "",
        ("שלום אבא", "גבר שר", "אבא שר"),
        "ש ל ו ם | א ב א",
        "שלום אבא",
    ),
}


@pytest.fixture(params=LABS)
def lab(request) -> Lab:
    return LABS[request.param]


def write_recordings(lab: Lab, folder: Path) -> Path:
    """Write session files of the sentences, and the text and lexicon beside them."""
    inventory = lab.conventions.inventory
    (folder / "text.txt").write_text("".join(f"{text}\n" for text in lab.sentences))
    lexicon = None
    if lab.lexicon:
        (folder / "lexicon.txt").write_text(lab.lexicon)
        lexicon = Lexicon.read(folder / "lexicon.txt", inventory, closed=False)
    trials = [
        make_trial(
            np.full((200, 2), number),
            DAY,
            1,
            number,
            text,
            conventions=lab.conventions,
            lexicon=lexicon,
        )
        for number, text in enumerate(lab.sentences)
    ]
    write_session(folder / "data" / DAY / "data_val.hdf5", trials)
    lab.conventions.write(folder / "data")
    return folder / "data"


def logits_of(labels_U: np.ndarray, n_tokens: int) -> np.ndarray:
    """Return log-probabilities [P, V]: each token for three frames, then a blank."""
    tokens_P = np.concatenate([[0], *[[token] * FRAMES_A_TOKEN + [0] for token in labels_U]])
    logits_PV = np.random.default_rng(0).normal(size=(len(tokens_P), n_tokens))
    logits_PV[np.arange(len(tokens_P)), tokens_P] += STRENGTH
    return to_log_probs(logits_PV)


def test_sentences_come_out_as_they_were_meant(lab, tmp_path, capsys):
    data = write_recordings(lab, tmp_path)
    inventory = lab.conventions.inventory
    assert cortext(["inspect", str(data)]) == 0
    assert "problems: none" in capsys.readouterr().out
    assert cortext(["pack", str(data), "--out", str(tmp_path / "packed")]) == 0
    split = open_data(tmp_path / "packed").split("val")
    assert " ".join(inventory.names(split.labels(0))) == lab.label
    assert split.sentence(0) == lab.sentences[0]

    options = ["--lexicon", str(tmp_path / "lexicon.txt")] if lab.lexicon else []
    built = ["lm", "build", str(tmp_path / "text.txt"), "--data", str(tmp_path / "packed")]
    lm = tmp_path / "lm"
    assert cortext([*built, *options, *lab.options, "--order", "2", "--out", str(lm)]) == 0
    logits = {f"trial_{n}": logits_of(split.labels(n), len(inventory)) for n in range(len(split))}
    np.savez(tmp_path / "logits.npz", **logits)
    command = ["decode", "--logits", str(tmp_path / "logits.npz"), "--lm", str(lm)]
    command += ["--order", str(data / "cortext.json"), "--out", str(tmp_path / "texts.csv")]
    assert cortext(command) == 0
    with (tmp_path / "texts.csv").open(encoding="utf-8", newline="") as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    assert texts[0] == lab.text
    assert texts == [lab.conventions.language.normalize(text) for text in lab.sentences]


def test_an_accent_in_a_hotword_may_be_typed_in_two_ways(tmp_path):
    lab = LABS["Spanish"]
    write_recordings(lab, tmp_path)
    built = ["lm", "build", str(tmp_path / "text.txt"), "--data", str(tmp_path / "data")]
    built += ["--lexicon", str(tmp_path / "lexicon.txt"), "--order", "2"]
    assert cortext([*built, "--out", str(tmp_path / "lm")]) == 0
    decoder = Decoder.from_dir(tmp_path / "lm")
    log_probs_PV = logits_of(open_data(tmp_path / "data").split("val").labels(0), len(SPANISH))
    plain = decoder.decode(log_probs_PV, SPANISH)[0]
    for word in ("frío", unicodedata.normalize("NFD", "FRÍO")):
        found = decoder.decode(log_probs_PV, SPANISH, hotwords={word: 2.0})[0]
        assert found.text == lab.text
        assert found.score == pytest.approx(plain.score + 2.0, abs=1e-3)


def test_words_are_timed_in_the_frames_of_the_bins(tmp_path):
    """A frame of four bins of 10 ms: the first word has three letters, each of four frames."""
    lab = LABS["characters with a lexicon"]
    data = write_recordings(lab, tmp_path)
    built = ["lm", "build", str(tmp_path / "text.txt"), "--data", str(data), "--order", "2"]
    assert cortext([*built, "--out", str(tmp_path / "lm")]) == 0
    inventory = lab.conventions.inventory
    logits_PV = logits_of(open_data(data).split("val").labels(0), len(inventory))
    decoder = Decoder.from_dir(tmp_path / "lm")
    frame_ms = 4 * open_data(data).conventions.bin_ms
    words = decoder.decode(logits_PV, inventory).timed(frame_ms)[0].words
    assert [word.word for word in words] == ["i'd", "like", "tea"]
    # One blank, then 4 frames a token; words and boundaries begin at multiples of a frame.
    assert words[0].start_ms == 1 * 40
    assert words[1].start_ms == (1 + 4 * 4) * 40
    assert words[2].start_ms == (1 + 4 * 9) * 40


def test_letters_of_another_script_are_named(tmp_path):
    lab = LABS["Hebrew"]
    data = write_recordings(lab, tmp_path)
    conventions = json.loads((data / "cortext.json").read_text())
    assert conventions["language"]["letters"] == "א-ת"
    assert conventions["bin_ms"] == 50
    with pytest.raises(TextError, match="would lose a b c"):
        make_trial(np.zeros((200, 2)), DAY, 1, 9, "abc שלום", conventions=lab.conventions)
