"""Text as words with spellings and marks, and scores. Expected values were worked out by hand."""

import gzip

import pytest

from cortext.errors import LanguageModelError, TextError
from cortext.text.language import EN, LANGUAGES, Language
from cortext_live.casing.scores import CasingScores
from cortext_live.casing.texts import (
    LEAST_SENTENCES,
    WrittenSentence,
    parsed,
    part_of,
    read_sentences,
)
from cortext_live.casing.writing import Shown


def told(sentence):
    return [f"{word}={spelling}{mark}" for word, (spelling, mark) in zip(*sentence, strict=True)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Hi, it\u2019s Avni!\n", "hi=Hi, it's=it's avni=Avni!"),
        ('"Go," McGill said.', "go=Go, mcgill=McGill said=said."),
        ("Well; no: yes\u2026", "well=Well, no=no, yes=yes."),
        ("What?!", "what=What?"),
        ("Old-fashioned TV", "old-fashioned=Old-fashioned tv=TV"),
        ("Yes (he said).", "yes=Yes he=he said=said."),
    ],
)
def test_a_line_becomes_words_spellings_and_marks(line, expected):
    found = parsed(line, EN)
    assert told((found.words, found.shown)) == expected.split()
    assert found.ends == expected.endswith((".", "?", "!"))
    assert " ".join(found.words) == EN.normalize(line.replace("\u2019", "'"))


@pytest.mark.parametrize(
    "line",
    ["", " \n", "...", "In 1984 it rained.", "and/or", "na\u00efve", "a.b", "word " * 101],
)
def test_a_line_whose_words_cannot_be_told_is_left_out(line):
    assert parsed(line, EN) is None


def test_opening_marks_of_spanish_are_no_part_of_a_word():
    found = parsed("\u00bfQu\u00e9 tal, Avni? \u00a1Bien!", LANGUAGES["es"])
    assert (
        told((found.words, found.shown))
        == "qu\u00e9=Qu\u00e9 tal=tal, avni=Avni? bien=Bien!".split()
    )


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


MANY = [f"{'abcdefghij'[n % 10].upper()}{'x' * (n // 10)} is here." for n in range(600)]


def test_a_sentence_that_stands_twice_is_read_once(tmp_path):
    plain = write(tmp_path / "a.txt", MANY)
    packed = tmp_path / "b.txt.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert len(read_sentences([plain, packed], EN)) == 600


def test_text_that_teaches_nothing_is_refused_in_one_line(tmp_path):
    few = write(tmp_path / "few.txt", MANY[: LEAST_SENTENCES - 1])
    small = write(tmp_path / "small.txt", map(str.lower, MANY))
    bare = write(tmp_path / "bare.txt", [line.rstrip(".") for line in MANY])
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xff" * 100)
    with pytest.raises(TextError, match="499 different sentences of 499 lines can be used"):
        read_sentences([few], EN)
    with pytest.raises(TextError, match="0% of the sentences begin with a capital"):
        read_sentences([small], EN)
    with pytest.raises(TextError, match="0% of the sentences end with a full stop"):
        read_sentences([bare], EN)
    with pytest.raises(LanguageModelError, match="neither UTF-8 nor UTF-16"):
        read_sentences([binary], EN)
    with pytest.raises(LanguageModelError, match="No such file"):
        read_sentences([tmp_path / "none"], EN)
    for language in (LANGUAGES["zh"], Language("Cased", "a-zA-Z", lower_case=False)):
        with pytest.raises(TextError, match="needs no capitals"):
            read_sentences([few], language)


def test_parts_of_a_text_do_not_depend_on_capitals_and_marks():
    assert part_of(parsed("Yes, Avni!", EN)) == part_of(parsed("yes avni", EN))


def test_scores_are_those_that_a_hand_counts():
    meant = WrittenSentence(
        ("yes", "avni", "i", "see"),
        (Shown("Yes", ","), Shown("Avni", "."), Shown("I", ""), Shown("see", "?")),
        True,
    )
    given = [Shown("Yes", ","), Shown("avni", ","), Shown("I", ""), Shown("see", "?")]
    scores = CasingScores()
    scores.add(meant, given)
    scores.add(meant, meant.shown)
    assert (scores.words, scores.cased, scores.inner, scores.inner_cased) == (8, 7, 2, 1)
    # Commas: 2 right, 3 given, 2 meant; full stops: 1 right, 1 given, 2 meant.
    assert scores.f1(",") == pytest.approx(2 * 2 / 5)
    assert scores.f1(".") == pytest.approx(2 * 1 / 3)
    assert (scores.f1("?"), scores.f1("!")) == (1.0, None)
    assert scores.to_json()["sentences_right"] == 0.5


def test_the_last_mark_of_a_text_without_one_does_not_count():
    scores = CasingScores()
    scores.add(WrittenSentence(("a",), (Shown("A", ""),), False), [Shown("A", "?")])
    assert (scores.sentences, scores.right, scores.f1("?")) == (0, 0, None)
