"""Agreement with KenLM's lmplz and query on files that they made (see lmplz/README.md)."""

from pathlib import Path

import pytest
from ngram_oracle import read_arpa

from cortext import _native
from cortext.decoding.ngram import LanguageModel
from cortext.decoding.ngram.vocabulary import LN10

MADE_BY_LMPLZ = Path(__file__).parents[2] / "core" / "decoding" / "ngram" / "lmplz"
VOCABULARY = (MADE_BY_LMPLZ / "vocabulary.txt").read_text().split()


def by_words(values, words):
    names = {number: word for word, number in words.items()}
    return {
        " ".join(names[number] for number in ngram): value / LN10 for ngram, value in values.items()
    }


@pytest.mark.parametrize(
    ("name", "text", "order", "options", "fallback"),
    [
        ("text", "text", 4, {}, [False] * 3 + [True]),
        ("text.pruned", "text", 4, {"prune": (0, 0, 1)}, [False] * 3 + [True]),
        (
            "text.limited",
            "text",
            4,
            {"prune": (0, 1, 1, 2), "vocabulary": VOCABULARY},
            [False] * 3 + [True],
        ),
        ("tiny", "tiny", 3, {}, [True] * 3),
    ],
)
def test_estimates_are_those_of_lmplz(tmp_path, name, text, order, options, fallback):
    model = LanguageModel.build(
        [MADE_BY_LMPLZ / f"{text}.txt"], order, tmp_path / "lm", keep_arpa=True, **options
    )
    assert [discount["fallback"] for discount in model.info()["discounts"]] == fallback
    ours, theirs = (
        read_arpa(tmp_path / "lm" / "lm.arpa"),
        read_arpa(MADE_BY_LMPLZ / f"{name}.arpa.gz"),
    )
    assert ours.counts == theirs.counts
    for field in ("probs", "backoffs"):
        expected = by_words(getattr(theirs, field), theirs.words)
        assert by_words(getattr(ours, field), ours.words) == pytest.approx(expected, abs=1e-6)


def test_sentences_score_as_query_scores_them():
    model = _native.NGram.open(str(MADE_BY_LMPLZ / "text.arpa.gz"))
    for line in (MADE_BY_LMPLZ / "scores.tsv").read_text().splitlines():
        total, unknown, sentence = line.split("\t")
        assert model.sentence(sentence) / LN10 == pytest.approx(float(total), abs=1e-4)
        assert sum(word not in model for word in sentence.split()) == int(unknown)
