"""Sentences of texts in other languages than English."""

import pytest

from cortext.errors import TextError
from cortext.text import EN, Language, get_language, prose
from cortext.text.sentences import sentences


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("es", "¿Qué tal? ¡Hola, Sr. García! Bien…", ["qué tal", "hola sr garcía", "bien"]),
        ("de", "Dr. Müller kam. Gut!", ["dr müller kam", "gut"]),
        ("nl", "'s Avonds? Ja. Z'n fiets.", ["'s avonds", "ja", "z'n fiets"]),
        ("zh", "你好。我很好！他呢？", ["你 好", "我 很 好", "他 呢"]),
    ],
)
def test_a_line_holds_one_sentence_or_more(name, line, expected):
    assert list(sentences([line], get_language(name))) == expected


def test_a_language_of_ones_own_ends_sentences_with_full_stops_and_their_relatives():
    arabic = Language("my arabic", "ء-ي")
    assert list(sentences(["هل أنت هنا؟ نعم. حسنا"], arabic)) == ["هل أنت هنا", "نعم", "حسنا"]


def test_english_is_prose():
    lines = ["Dr. Smith paid $5. He left!\n", "café\n"]
    assert list(sentences(lines, EN)) == list(prose.sentences(lines))


def test_damage_is_an_error_with_lines_and_letters_and_their_number():
    lines = ["Sí.\n", *(f"Coração. No {letter}.\n" for letter in "ABCDEFG"), "7\n"]
    with pytest.raises(TextError) as caught:
        list(sentences(lines, get_language("es"), where="text.txt"))
    assert str(caught.value) == (
        "text.txt, line 2, line 3, line 4, line 5, line 6 and 3 more: language 'es' would lose"
        " ç ã 7; choose the text's language, or write other letters and numbers as words"
    )


def test_damaged_sentences_can_be_left_out_and_are_counted():
    report = prose.Report()
    lines = ["Sí. Coração.\n", "\n", "...\n", "a\ud800b\n", "si " * 251]
    found = sentences(lines, get_language("es"), report, skip_damaged=True)
    assert list(found) == ["sí"]
    assert report.to_json() == {
        "lines": 5,
        "sentences": 1,
        "words": 1,
        "rejected": {"damaged": 2, "no_letters": 1, "too_long": 1},
        "rejected_examples": {
            "damaged": ["Coração.", "a\ufffd\ufffd\ufffdb"],
            "no_letters": ["..."],
            "too_long": [("si " * 251)[:80]],
        },
    }


def test_a_long_line_is_cut_between_sentences():
    assert len(list(sentences(["你好。" * 5000], get_language("zh")))) == 5000
