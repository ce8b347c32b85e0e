"""A language model of a few sentences, and trials that say them."""

import json
from pathlib import Path

import numpy as np
import pytest

from cortext.decoding.ngram import LanguageModel
from cortext.text.lexicon import Lexicon
from cortext_bench.posteriors import INVENTORY

SENTENCES = [
    "the cat sat",
    "the cats sat too",
    "two cats sat",
    "i see the sea",
    "i see two cats",
    "the sea is too blue",
]


@pytest.fixture(scope="session")
def lm_dir(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("models") / "lm"
    LanguageModel.build(SENTENCES, 3, out, keep_arpa=True)
    return out


def spelt(sentence: str) -> list[str]:
    """The first pronunciation of each word, each closed by `|`."""
    return [p for word in sentence.split() for p in (*Lexicon.cmu().pronunciations(word)[0], "|")]


@pytest.fixture
def trials_file(tmp_path) -> Path:
    """Twelve trials.

    In some the network missed a phoneme, took one for another, or heard one too many.
    """
    lines = []
    for number, sentence in enumerate(SENTENCES * 2):
        true = spelt(sentence)
        decoded = list(true)
        if number % 3 == 1:
            decoded[0] = "D"
        if number % 4 == 2:
            decoded.insert(2, "AH")
        if number == 7:
            del decoded[3]
        lines.append(
            json.dumps({"reference": sentence, "true_phonemes": true, "gru_phonemes": decoded})
        )
    path = tmp_path / "trials.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def clear_posterior():
    """Log-probabilities of a sentence.

    Three frames a phoneme, the last one blank, 0.9 on the right token.
    """

    def make(sentence: str) -> np.ndarray:
        tokens = INVENTORY.ids(["SIL" if symbol == "|" else symbol for symbol in spelt(sentence)])
        rows = [INVENTORY.blank] + [
            row for token in tokens for row in (token, token, INVENTORY.blank)
        ]
        probabilities_PV = np.full((len(rows), len(INVENTORY)), 0.1 / (len(INVENTORY) - 1))
        probabilities_PV[np.arange(len(rows)), rows] = 0.9
        return np.log(probabilities_PV).astype(np.float32)

    return make
